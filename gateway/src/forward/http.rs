//! Records as JSON lines, by POST.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, StatusCode, redirect, retry};
use zeroize::Zeroizing;

use super::batch::Sent;
use super::sink::{DELIVERY_LIMIT, OpenError, Refused, Sink};
use super::tls;
use crate::causes::with_causes;
use crate::files;
use crate::settings::Address;

/// What a batch is: which lines of which chain.
const BATCH: &str = "attest-batch";
/// For TCP and TLS.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longest bearer token.
const TOKEN_LIMIT_BYTES: u64 = 16 * 1024;

/// A server that takes records. Of an answer only its status is looked at.
pub(super) struct Http {
    client: Client,
    url: Address,
    token_file: Option<PathBuf>,
}

impl Http {
    pub(super) fn open(name: &str, url: &Address, ca: Option<&Path>, token_file: Option<PathBuf>) -> Result<Self, OpenError> {
        let builder = Client::builder()
            .http1_only()
            // The environment has no say in who is sent records, and neither has whoever answers.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            .user_agent(concat!("attest-gateway/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_LIMIT)
            .timeout(DELIVERY_LIMIT);
        let builder = match ca {
            Some(ca) => builder.tls_backend_preconfigured(tls::client_config(name, ca)?),
            None => builder.tls_backend_preconfigured(tls::trusting_nobody(name)?),
        };
        let client = builder.build().map_err(|error| OpenError::Client {
            name: name.to_owned(),
            problem: with_causes(&error.without_url()),
        })?;
        Ok(Self {
            client,
            url: url.clone(),
            token_file,
        })
    }

    /// Whether the token is there at this moment. It may come later: it is read anew for each delivery.
    pub(super) fn check_token(name: &str, path: &Path) -> Result<(), OpenError> {
        let problem = |problem: String| OpenError::File {
            name: name.to_owned(),
            path: path.to_owned(),
            problem,
        };
        let text = files::read_text(path, TOKEN_LIMIT_BYTES)
            .map(Zeroizing::new)
            .map_err(|error| problem(error.to_string()))?;
        bearer(&text).map(drop).map_err(|error| problem(error.to_owned()))
    }

    /// Read each time, so that a new one is used at once.
    async fn token(&self) -> Result<Option<HeaderValue>, Refused> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let failed = |error: std::io::Error| Refused::because(format!("{}: {error}", path.display()));
        let read = tokio::task::spawn_blocking({
            let path = path.clone();
            move || files::read_text(&path, TOKEN_LIMIT_BYTES).map(Zeroizing::new)
        });
        let text = read.await.map_err(std::io::Error::other).and_then(|read| read).map_err(failed)?;
        let token = bearer(&text).map_err(|error| Refused::because(format!("{}: {error}", path.display())))?;
        Ok(Some(token))
    }
}

fn bearer(text: &str) -> Result<HeaderValue, &'static str> {
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("holds no token: one line of visible characters");
    }
    let mut value = HeaderValue::from_str(&Zeroizing::new(format!("Bearer {token}"))).map_err(|_| "holds no token")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Which lines these are, for whoever looks for doubles: each line says it too.
fn batch_id(records: &[Sent]) -> Option<HeaderValue> {
    let (first, last) = (records.first()?.chain.as_ref()?, records.last()?.chain.as_ref()?);
    HeaderValue::from_str(&format!("{}:{}-{}:{}", first.id, first.number, last.id, last.number)).ok()
}

#[async_trait]
impl Sink for Http {
    async fn give(&mut self, records: &[Sent]) -> Result<(), Refused> {
        let mut body = Vec::with_capacity(records.iter().map(|record| record.line.len() + 1).sum());
        for record in records {
            body.extend_from_slice(&record.line);
            body.push(b'\n');
        }
        let mut request = self
            .client
            .post(self.url.0.clone())
            .header(CONTENT_TYPE, "application/x-ndjson")
            .body(body);
        if let Some(id) = batch_id(records) {
            request = request.header(BATCH, id);
        }
        if let Some(token) = self.token().await? {
            request = request.header(AUTHORIZATION, token);
        }
        let answer = request.send().await;
        // The URL may hold what is secret.
        let status = answer
            .map_err(|error| Refused::because(with_causes(&error.without_url())))?
            .status();
        if status.is_success() {
            return Ok(());
        }
        Err(Refused {
            why: format!("it answers HTTP {}", status.as_u16()),
            too_many: status == StatusCode::PAYLOAD_TOO_LARGE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line_and_never_shown() {
        let token = bearer("secret-token\n");
        assert!(token.as_ref().is_ok_and(HeaderValue::is_sensitive));
        assert!(!format!("{token:?}").contains("secret"));
        for wrong in ["", " \n", "a b", "a\nb", "\u{e4}"] {
            assert!(bearer(wrong).is_err(), "{wrong:?}");
        }
    }
}
