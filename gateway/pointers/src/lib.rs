//! Pointer configs, the few lines that a node has before it has anything: written, read, and given other CAs. Nothing here opens a file or asks a server.

#![deny(unreachable_pub)]

mod acceptance;
mod hint;
mod reading;
mod renewal;

pub use acceptance::{NotAccepted, accepts};
use attest_certificates::{Certificate, Fingerprint};
use attest_ignition::SpecVersion;
use data_encoding::BASE64;
pub use hint::{AUTHORITIES_LIMIT, PARAMETER, hint, parse_hint};
pub use reading::{ConfigSource, PointerCa, PointerCredential, PointerForm, READING_LIMIT_BYTES, ReadPointer, ReadingError};
pub use renewal::{NotRenewed, Ours, Renewal, renewed};
use serde_json::{Value, json};
use url::Url;

/// Path of pools, below the gateway's root.
const PATH: &str = "/config/";
/// Longest token: what the gateway reads of one.
const TOKEN_LIMIT_BYTES: usize = 4096;

/// What a pointer says.
#[derive(Clone, Copy)]
pub struct PointerOptions<'a> {
    /// URL by which nodes reach the gateway: `https://host:port`.
    pub base: &'a Url,
    /// The pool that they join.
    pub pool: &'a str,
    /// The CAs that they trust, and no others.
    pub authorities: &'a [Certificate],
    /// A provisioning token, for machines that cannot attest.
    pub token: Option<&'a str>,
}

/// Reason why a pointer cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PointerBuildError {
    /// The URL is of no use to a node.
    #[error("{0}: nodes reach the gateway by https only, at a host's name or address")]
    Base(Url),
    /// The URL has more than a host and a port. It is not shown: it may have a password.
    #[error("the URL has more than https://host:port: the gateway serves /config/POOL at its root, and TLS ends nowhere but there")]
    BaseParts,
    /// A spec version that cannot say it.
    #[error(
        "no pointer of spec {0}: it drops httpHeaders without a word, tickets and tokens with them; 3.1.0 and later are written, and 2.2.0"
    )]
    Spec(SpecVersion),
    /// A token that the gateway would not read. It is not shown.
    #[error("the token is empty, longer than {TOKEN_LIMIT_BYTES} bytes, or has other than printable ASCII characters")]
    Token,
}

impl PointerOptions<'_> {
    /// The config in spec 3.1.0: the oldest that has `httpHeaders`, so that every Ignition of spec 3.1 and later reads it.
    ///
    /// # Errors
    /// [`PointerBuildError`].
    pub fn render(&self) -> Result<Value, PointerBuildError> {
        self.render_as(SpecVersion::V3_1)
    }

    /// Renders the config in a spec version, with `merge` and not `replace`, so that the CA stays in the node's config. Spec 2.2 has no
    /// headers, so a token is in the URL there.
    ///
    /// # Errors
    /// [`PointerBuildError`].
    pub fn render_as(&self, spec: SpecVersion) -> Result<Value, PointerBuildError> {
        if spec == SpecVersion::V3_0 {
            return Err(PointerBuildError::Spec(spec));
        }
        if self.token.is_some_and(|token| !is_readable(token)) {
            return Err(PointerBuildError::Token);
        }
        let mut source = self.source()?;
        let (list, mut entry) = if spec == SpecVersion::V2_2 {
            if let Some(token) = self.token {
                source.query_pairs_mut().append_pair("token", token);
            }
            ("append", json!({}))
        } else {
            let header = |token| json!({ "httpHeaders": [{ "name": "Authorization", "value": format!("Bearer {token}") }] });
            ("merge", self.token.map_or_else(|| json!({}), header))
        };
        if let Some(entry) = entry.as_object_mut() {
            entry.insert("source".to_owned(), source.as_str().into());
        }
        let authorities = trusted(self.authorities);
        Ok(json!({
            "ignition": {
                "version": spec,
                "config": { list: [entry] },
                "security": { "tls": { "certificateAuthorities": authorities } },
            }
        }))
    }

    /// Returns the pool's URL, with the hint about the CAs for the gateway. A Machine Config Server ignores it.
    fn source(&self) -> Result<Url, PointerBuildError> {
        let base = self.base;
        let plain = base.username().is_empty() && base.password().is_none() && base.query().is_none() && base.fragment().is_none();
        if !plain || !matches!(base.path(), "" | "/") {
            return Err(PointerBuildError::BaseParts);
        }
        let refused = || PointerBuildError::Base(base.clone());
        if base.scheme() != "https" || !base.has_host() || base.port() == Some(0) {
            return Err(refused());
        }
        let mut source = base.join(&format!("{PATH}{}", self.pool)).map_err(|_| refused())?;
        let authorities: Vec<Fingerprint> = distinct(self.authorities).iter().map(|authority| authority.fingerprint).collect();
        source.set_query(hint(&authorities).as_deref());
        Ok(source)
    }
}

/// Returns the entries of a config by which Ignition trusts these CAs.
fn trusted(authorities: &[Certificate]) -> Vec<Value> {
    let source = |authority: &&Certificate| {
        let pem = BASE64.encode(authority.pem().as_bytes());
        json!({ "source": format!("data:text/plain;charset=utf-8;base64,{pem}") })
    };
    distinct(authorities).iter().map(source).collect()
}

/// A bundle may hold one twice, and Ignition refuses a config that does.
fn distinct(authorities: &[Certificate]) -> Vec<&Certificate> {
    let mut distinct: Vec<(Fingerprint, &Certificate)> = Vec::new();
    for authority in authorities {
        if !distinct.iter().any(|(fingerprint, _)| *fingerprint == authority.fingerprint) {
            distinct.push((authority.fingerprint, authority));
        }
    }
    distinct.into_iter().map(|(_, authority)| authority).collect()
}

fn is_readable(token: &str) -> bool {
    (1..=TOKEN_LIMIT_BYTES).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]
mod tests {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    use super::*;
    use attest_ignition::{Config, data_url};

    fn authority(name: &str) -> Certificate {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Certificate::parse(made.cert.der().clone()).unwrap()
    }

    fn written() -> impl Iterator<Item = SpecVersion> {
        SpecVersion::ALL.into_iter().filter(|spec| *spec != SpecVersion::V3_0)
    }

    fn render(base: &str, authorities: &[Certificate], token: Option<&str>, spec: SpecVersion) -> Result<Value, PointerBuildError> {
        let base = Url::parse(base).unwrap();
        PointerOptions {
            base: &base,
            pool: "worker",
            authorities,
            token,
        }
        .render_as(spec)
    }

    fn source_of(pointer: &Value) -> &str {
        let config = &pointer["ignition"]["config"];
        let list = config.get("merge").or(config.get("append")).unwrap();
        list[0]["source"].as_str().unwrap()
    }

    #[test]
    fn pointer_is_valid_in_every_ignition_version() {
        let two = [authority("a"), authority("b")];
        for (authorities, token) in [
            (&two[..0], None),
            (&two[..1], Some("abc")),
            (&two[..], None),
            (&two[..], Some("a+b/c=&d")),
        ] {
            for spec in written() {
                let pointer = render("https://api-int.example.com:22623", authorities, token, spec).unwrap();
                assert_eq!(pointer["ignition"]["version"], spec.as_str());
                Config::parse(pointer.to_string().as_bytes()).unwrap_or_else(|error| panic!("{spec}: {error}"));
                let source = Url::parse(source_of(&pointer)).unwrap();
                assert!(
                    source.as_str().starts_with("https://api-int.example.com:22623/config/worker"),
                    "{source}"
                );
                let bundle: Vec<Fingerprint> = authorities.iter().map(|authority| authority.fingerprint).collect();
                let shorts = bundle.iter().map(Fingerprint::short).collect::<Vec<_>>();
                let hint = parse_hint(source.query(), &bundle);
                assert_eq!(hint, (!authorities.is_empty()).then_some(shorts), "{source}");
                let header = pointer
                    .pointer("/ignition/config/merge/0/httpHeaders/0/value")
                    .and_then(Value::as_str);
                let in_query = source
                    .query_pairs()
                    .find(|(name, _)| name == "token")
                    .map(|(_, value)| value.into_owned());
                let (by_header, by_query) = if spec == SpecVersion::V2_2 { (None, token) } else { (token, None) };
                assert_eq!(header, by_header.map(|token| format!("Bearer {token}")).as_deref());
                assert_eq!(in_query.as_deref(), by_query);
            }
        }
    }

    #[test]
    fn pointer_lists_each_authority_once() {
        let (a, b) = (authority("a"), authority("b"));
        let pointer = render("https://a:1", &[a.clone(), b.clone(), a.clone()], None, SpecVersion::V3_1).unwrap();
        let listed = pointer["ignition"]["security"]["tls"]["certificateAuthorities"].as_array().unwrap();
        let ders: Vec<CertificateDer<'_>> = listed
            .iter()
            .map(|authority| data_url::decode(authority["source"].as_str().unwrap()).unwrap())
            .map(|pem| CertificateDer::from_pem_slice(&pem).unwrap())
            .collect();
        assert_eq!(ders, [a.der.clone(), b.der.clone()]);
        let hint = format!("ca={},{}", a.fingerprint.short(), b.fingerprint.short());
        assert_eq!(source_of(&pointer), format!("https://a:1/config/worker?{hint}"));
    }

    #[test]
    fn too_many_authorities_yield_no_fingerprints() {
        let many: Vec<Certificate> = (0..=AUTHORITIES_LIMIT).map(|number| authority(&number.to_string())).collect();
        let pointer = render("https://a:1", &many, None, SpecVersion::V3_1).unwrap();
        assert_eq!(source_of(&pointer), "https://a:1/config/worker");
        let all = pointer["ignition"]["security"]["tls"]["certificateAuthorities"].as_array().unwrap();
        assert_eq!(all.len(), many.len());
    }

    #[test]
    fn validates_the_gateway_url() {
        let check = |base: &str, expected: Result<&str, &str>| {
            let found = render(base, &[], None, SpecVersion::V3_1);
            let found = found.as_ref().map(source_of).map_err(ToString::to_string);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                _ => panic!("{base}: {found:?}"),
            }
        };
        check("https://a.example:22623", Ok("https://a.example:22623/config/worker"));
        check("https://a.example:22623/", Ok("https://a.example:22623/config/worker"));
        check("https://a.example", Ok("https://a.example/config/worker"));
        check("https://192.0.2.1:22623", Ok("https://192.0.2.1:22623/config/worker"));
        check("https://[2001:db8::1]:22623/", Ok("https://[2001:db8::1]:22623/config/worker"));
        check("http://a.example:22624", Err("https only"));
        check("ftp://a.example", Err("https only"));
        check("data:,a", Err("more than"));
        check("https://a.example:0", Err("https only"));
        for parts in [
            "https://a/config",
            "https://a/b/",
            "https://a//",
            "https://a?b=c",
            "https://a#b",
            "https://u@a",
            "https://u:secret@a",
        ] {
            check(parts, Err("more than https://host:port"));
            let error = render(parts, &[], None, SpecVersion::V3_1).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn rejects_unusable_tokens_without_showing_them() {
        let refused = |token, spec| render("https://a", &[], token, spec).unwrap_err().to_string();
        assert!(refused(None, SpecVersion::V3_0).contains("httpHeaders"));
        let long = "x".repeat(TOKEN_LIMIT_BYTES + 1);
        for spec in written() {
            for token in ["", "two words", "line\n", "caf\u{e9}", &long] {
                let error = refused(Some(token), spec);
                assert!(error.contains("the token is empty") && !error.contains("caf"), "{error}");
            }
        }
    }
}
