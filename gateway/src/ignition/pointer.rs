//! Pointer configs: the few lines that a node has before it has anything.

use data_encoding::BASE64;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};
use url::Url;

use crate::pki::Certificate;

/// What a pointer says.
#[derive(Clone, Copy)]
pub struct Pointer<'a> {
    /// How nodes reach the gateway: `https://host:port`.
    pub base: &'a Url,
    /// The pool that they join.
    pub pool: &'a str,
    /// The CAs that they trust, and no others.
    pub authorities: &'a [Certificate],
    /// A provisioning token, for machines that cannot attest.
    pub token: Option<&'a str>,
}

/// Why there is no pointer.
#[derive(Debug, thiserror::Error)]
pub enum PointerError {
    /// The URL is of no use to a node.
    #[error("{0}: nodes reach the gateway by https only, at a host's name or address")]
    Base(Url),
}

impl Pointer<'_> {
    /// The config. Spec 3.1.0: the oldest that has `httpHeaders`, so that every Ignition of spec 3.1 and later reads it. `merge` and not
    /// `replace`, so that the CA stays in the node's config.
    ///
    /// # Errors
    /// [`PointerError`].
    pub fn render(&self) -> Result<Value, PointerError> {
        let refused = || PointerError::Base(self.base.clone());
        if self.base.scheme() != "https" || !self.base.has_host() {
            return Err(refused());
        }
        let source = self.base.join(&format!("/config/{}", self.pool)).map_err(|_| refused())?;
        let mut merge = json!({ "source": source.as_str() });
        if let (Some(token), Some(merge)) = (self.token, merge.as_object_mut()) {
            merge.insert(
                "httpHeaders".to_owned(),
                json!([{ "name": "Authorization", "value": format!("Bearer {token}") }]),
            );
        }
        let authorities: Vec<Value> = self
            .authorities
            .iter()
            .map(|authority| json!({ "source": format!("data:text/plain;charset=utf-8;base64,{}", BASE64.encode(pem(&authority.der).as_bytes())) }))
            .collect();
        Ok(json!({
            "ignition": {
                "version": "3.1.0",
                "config": { "merge": [merge] },
                "security": { "tls": { "certificateAuthorities": authorities } },
            }
        }))
    }
}

/// A certificate as PEM.
#[must_use]
pub fn pem(der: &CertificateDer<'_>) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let encoded = BASE64.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at_checked(64).unwrap_or((rest, ""));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn ignition_takes_it() {
        let base = Url::parse("https://api-int.example.com:22623").unwrap();
        for token in [None, Some("abc")] {
            let pointer = Pointer {
                base: &base,
                pool: "worker",
                authorities: &[],
                token,
            };
            let pointer = pointer.render().unwrap();
            crate::ignition::Config::parse(pointer.to_string().as_bytes()).unwrap();
            let source = pointer.pointer("/ignition/config/merge/0/source").unwrap();
            assert_eq!(source, "https://api-int.example.com:22623/config/worker");
            let header = pointer
                .pointer("/ignition/config/merge/0/httpHeaders/0/value")
                .and_then(Value::as_str);
            assert_eq!(header, token.map(|_| "Bearer abc"));
        }
    }
}
