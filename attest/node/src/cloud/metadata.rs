//! A client for metadata servers: plain HTTP, one address, no redirects, no proxies, bounded answers in bounded time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use reqwest::{Client, StatusCode};
use tokio::runtime::Runtime;
use url::Url;
use zeroize::Zeroizing;

use crate::deadline::{Backoff, Deadline};
use crate::failure::printable;
use crate::gateway::{POLLS_BETWEEN_TIMERS, chain, tls};

use super::CloudError;

/// The address of every cloud's metadata server. Asked for by address and not by name, as Ignition does: a name would be whatever
/// the network's DNS says.
const ADDRESS: &str = "http://169.254.169.254";
/// Time limit for a connection. The hypervisor answers; a longer delay means that the network is not up.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for one request. Signed evidence takes some hundred milliseconds; Ignition waits as long.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Too many requests: every metadata server has a limit for each instance.
const TOO_MANY_REQUESTS: u16 = 429;

/// Base URL of the metadata server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataAddress(String);

impl Default for MetadataAddress {
    fn default() -> Self {
        Self(ADDRESS.to_owned())
    }
}

impl fmt::Display for MetadataAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for MetadataAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected http://ADDRESS or http://ADDRESS:PORT".to_owned();
        let url = Url::parse(text).map_err(|_| expected())?;
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        let anonymous = url.username().is_empty() && url.password().is_none();
        if url.scheme() == "http" && url.has_host() && bare && anonymous {
            Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
        } else {
            Err(expected())
        }
    }
}

/// Request to a metadata server.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// `true` for a PUT without a body, `false` for a GET.
    pub put: bool,
    /// Path and query, from the root.
    pub path: &'a str,
    /// Headers. Some hold secrets, so there is no `Debug`.
    pub headers: &'a [(&'static str, &'a str)],
    /// Largest answer that is read, in bytes.
    pub limit_bytes: usize,
    /// Statuses below 500 that ask for a retry, in addition to 429.
    pub come_again: &'static [u16],
}

impl<'a> Ask<'a> {
    #[must_use]
    pub const fn get(path: &'a str, headers: &'a [(&'static str, &'a str)], limit_bytes: usize) -> Self {
        Self {
            put: false,
            path,
            headers,
            limit_bytes,
            come_again: &[],
        }
    }
}

/// Answer of a metadata server with status 200. It may be secret.
pub struct MetadataAnswer {
    /// Requested URL, for messages.
    pub url: String,
    pub body: Zeroizing<Vec<u8>>,
}

impl MetadataAnswer {
    /// The body as one line of printable ASCII without blanks, of this many characters at the most.
    ///
    /// # Errors
    /// [`CloudError::Answer`], which says that the body is not `what`.
    pub fn printable_line(&self, what: &str, limit_chars: usize) -> Result<Zeroizing<String>, CloudError> {
        let word = std::str::from_utf8(self.body.trim_ascii())
            .ok()
            .filter(|text| (1..=limit_chars).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()));
        word.map(|text| Zeroizing::new(text.to_owned()))
            .ok_or_else(|| self.invalid(format!("data other than {what}")))
    }

    /// An error about this answer.
    #[must_use]
    pub fn invalid(&self, what: String) -> CloudError {
        CloudError::Answer {
            url: self.url.clone(),
            what,
        }
    }
}

/// Response of one attempt, before its status is evaluated.
pub(super) struct RawResponse {
    pub(super) status: StatusCode,
    pub(super) flavor: Option<String>,
    body: Zeroizing<Vec<u8>>,
}

/// The client for one metadata server.
pub struct MetadataClient {
    /// Runtime of the client; `Some` until this is dropped.
    runtime: Option<Runtime>,
    client: Client,
    base: String,
}

impl MetadataClient {
    /// A client for the server at `base`.
    ///
    /// # Errors
    /// [`CloudError::Client`].
    pub fn new(base: &MetadataAddress) -> Result<Self, CloudError> {
        let client = Client::builder()
            // Trusts nobody: whatever this client is led to, it speaks no TLS.
            .tls_backend_preconfigured(tls::trusting_nobody().map_err(|error| CloudError::Client(error.to_string()))?)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_LIMIT)
            .user_agent(concat!("attest-node/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| CloudError::Client(chain(&error)))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .event_interval(POLLS_BETWEEN_TIMERS)
            .enable_all()
            .build()
            .map_err(|error| CloudError::Client(error.to_string()))?;
        Ok(Self {
            runtime: Some(runtime),
            client,
            base: base.0.clone(),
        })
    }

    /// Asks until there is an answer, or no time. A network that is not up yet, a 5xx and a 429 are asked again, as Ignition does.
    ///
    /// # Errors
    /// [`CloudError::Unreachable`], [`CloudError::Failing`], [`CloudError::Refused`] for any other status than 200,
    /// [`CloudError::Answer`] for one that is too large.
    pub fn ask(&self, ask: Ask<'_>, deadline: Deadline) -> Result<MetadataAnswer, CloudError> {
        let url = self.url_for_messages(ask.path);
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        let mut said = None;
        loop {
            attempts += 1;
            let failed = match self.attempt(ask, deadline.remaining().min(REQUEST_LIMIT)) {
                Ok(raw) if raw.status == StatusCode::OK => return Ok(MetadataAnswer { url, body: raw.body }),
                Ok(raw) => {
                    let status = raw.status.as_u16();
                    if !raw.status.is_server_error() && status != TOO_MANY_REQUESTS && !ask.come_again.contains(&status) {
                        return Err(CloudError::Refused { url, status });
                    }
                    said = Some(status);
                    CloudError::Failing {
                        url: url.clone(),
                        attempts,
                        status,
                    }
                }
                // The deadline may have cut this one off, and not the server: it says nothing of one that answered just before.
                Err(NoMetadata::Perhaps(error)) => match said.take().filter(|_| deadline.remaining().is_zero()) {
                    Some(status) => CloudError::Failing {
                        url: url.clone(),
                        attempts,
                        status,
                    },
                    None => CloudError::Unreachable {
                        url: url.clone(),
                        attempts,
                        error,
                    },
                },
                Err(NoMetadata::Surely(error)) => return Err(error),
            };
            match backoff.pause(deadline) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(failed),
            }
        }
    }

    /// Like [`Metadata::ask`], but returns `None` if the server does not have the path (404), or gives an empty answer, which is the same
    /// to Ignition.
    ///
    /// # Errors
    /// The same as [`Metadata::ask`].
    pub fn ask_for_optional(&self, ask: Ask<'_>, deadline: Deadline) -> Result<Option<MetadataAnswer>, CloudError> {
        match self.ask(ask, deadline) {
            Ok(answer) if answer.body.trim_ascii().is_empty() => Ok(None),
            Ok(answer) => Ok(Some(answer)),
            Err(CloudError::Refused { status, .. }) if status == StatusCode::NOT_FOUND.as_u16() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks once; `None` if no server answers within this time.
    pub(super) fn probe(&self, ask: Ask<'_>, limit: Duration) -> Option<RawResponse> {
        self.attempt(ask, limit).ok()
    }

    /// Returns the URL without its query, which is of no use to a reader; a console has narrow lines.
    fn url_for_messages(&self, path: &str) -> String {
        format!("{}{}", self.base, path.split('?').next().unwrap_or_default())
    }

    fn attempt(&self, ask: Ask<'_>, limit: Duration) -> Result<RawResponse, NoMetadata> {
        let Some(runtime) = &self.runtime else {
            return Err(NoMetadata::Surely(CloudError::Client("it is shut down".to_owned())));
        };
        let url = format!("{}{}", self.base, ask.path);
        let request = if ask.put { self.client.put(url) } else { self.client.get(url) };
        let request = ask
            .headers
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, *value));
        runtime.block_on(async {
            let lost = |error: reqwest::Error| match error.is_builder() {
                true => NoMetadata::Surely(CloudError::Client(chain(&error))),
                false => NoMetadata::Perhaps(printable(&chain(&error))),
            };
            let mut response = request.timeout(limit).send().await.map_err(lost)?;
            let flavor = response.headers().get("metadata-flavor").and_then(|value| value.to_str().ok());
            let (status, flavor) = (response.status(), flavor.map(str::to_owned));
            if status != StatusCode::OK {
                // What stands on an error's page is of no use, and may be longer than any answer.
                let body = Zeroizing::default();
                return Ok(RawResponse { status, flavor, body });
            }
            let mut body = Zeroizing::new(Vec::with_capacity(ask.limit_bytes));
            while let Some(chunk) = response.chunk().await.map_err(lost)? {
                if body.len() + chunk.len() > ask.limit_bytes {
                    return Err(NoMetadata::Surely(CloudError::Answer {
                        url: self.url_for_messages(ask.path),
                        what: format!("more than {} bytes", ask.limit_bytes),
                    }));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(RawResponse { status, flavor, body })
        })
    }
}

/// Failed attempt, without an answer.
enum NoMetadata {
    /// Another attempt may bring one.
    Perhaps(String),
    /// No further attempt can succeed.
    Surely(CloudError),
}

impl Drop for MetadataClient {
    fn drop(&mut self) {
        // A connection that hangs must not hold up the report of what failed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for MetadataClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metadata({})", self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Option<&str>) {
        assert_eq!(text.parse::<MetadataAddress>().ok().map(|base| base.0).as_deref(), expect, "{text}");
    }

    #[test]
    fn metadata_base_must_be_a_plain_http_address() {
        check("http://127.0.0.1:8080", Some("http://127.0.0.1:8080"));
        check("http://127.0.0.1:8080/", Some("http://127.0.0.1:8080"));
        check("http://metadata.google.internal", Some("http://metadata.google.internal"));
        check("http://[fd00:ec2::254]", Some("http://[fd00:ec2::254]"));
        check("https://127.0.0.1", None);
        check("http://127.0.0.1/latest", None);
        check("http://127.0.0.1/?a", None);
        check("http://127.0.0.1/#a", None);
        check("http://user@127.0.0.1", None);
        check("http://:secret@127.0.0.1", None);
        check("127.0.0.1", None);
        check("file:///etc", None);
        check("", None);
        assert_eq!(MetadataAddress::default().0.parse(), Ok(MetadataAddress::default()));
    }
}
