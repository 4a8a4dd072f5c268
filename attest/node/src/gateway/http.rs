//! The HTTP client: TLS that trusts the pointer's CAs only, neither redirects nor proxies.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use attest_wire::protocol::BOOT_ID_HEADER;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder, StatusCode};
use tokio::runtime::Runtime;
use zeroize::Zeroizing;

use super::error::GatewayError;
use super::identity::ClientIdentity;
use super::tls::{self, PointerTrust};
use crate::boot_id;
use crate::failure::printable;

/// Time limit for a connection, with its TLS handshake. A gateway with more nodes than it can serve at once accepts them one after the
/// other, and a node that hangs up starts over. Ignition waits as long for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Polls of tasks between two looks at the timers. A connection whose server sends informational responses (1xx) without end is read for as long as tokio's budget
/// lets one poll go on; with the default of 61 such polls, the time limit of its request would be noticed many seconds late.
pub(crate) const POLLS_BETWEEN_TIMERS: u32 = 1;

/// The HTTP client for all gateways of one pointer.
pub struct Http {
    /// Runtime of the client; `Some` until this is dropped.
    pub(super) runtime: Option<Runtime>,
    pub(super) client: Client,
    pub(super) trust: Arc<PointerTrust>,
    pub(super) identity: Option<Arc<ClientIdentity>>,
}

impl Http {
    /// A client that trusts `trust` and nothing else, and follows neither redirects nor proxies.
    ///
    /// # Errors
    /// [`GatewayError::Client`].
    pub fn new(trust: PointerTrust) -> Result<Self, GatewayError> {
        Self::build(trust, None)
    }

    /// Like [`Http::new`], but shows a client certificate to a server that requests one.
    ///
    /// # Errors
    /// [`GatewayError::Client`].
    pub fn showing(trust: PointerTrust, identity: ClientIdentity) -> Result<Self, GatewayError> {
        Self::build(trust, Some(Arc::new(identity)))
    }

    fn build(trust: PointerTrust, identity: Option<Arc<ClientIdentity>>) -> Result<Self, GatewayError> {
        let trust = Arc::new(trust);
        let mut builder = Client::builder();
        if identity.is_some() {
            // Each attempt has a handshake of its own, so that it is known whether the certificate was shown.
            builder = builder.pool_max_idle_per_host(0);
        }
        let mut headers = HeaderMap::new();
        if let Some(id) = boot_id::read().and_then(|id| HeaderValue::from_str(&id).ok()) {
            headers.insert(BOOT_ID_HEADER, id);
        }
        let tls = trust.client_config(identity.as_ref());
        let client = builder
            .tls_backend_preconfigured(tls.map_err(|error| GatewayError::Client(error.to_string()))?)
            .tls_info(true)
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .connect_timeout(CONNECT_LIMIT)
            .user_agent(concat!("attest-node/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .build()
            .map_err(|error| GatewayError::Client(chain(&error)))?;
        // One worker thread keeps the connection alive while this one waits for the TPM.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .event_interval(POLLS_BETWEEN_TIMERS)
            .enable_all()
            .build()
            .map_err(|error| GatewayError::Client(error.to_string()))?;
        Ok(Self {
            runtime: Some(runtime),
            client,
            trust,
            identity,
        })
    }
}

impl Http {
    /// Sends one request to a server other than a gateway. Returns its status and its whole body, if that is within the limit.
    ///
    /// # Errors
    /// A message for the administrator.
    pub(crate) fn ask(
        &self,
        limit_bytes: usize,
        time: Duration,
        request: impl FnOnce(&Client) -> RequestBuilder,
    ) -> Result<(StatusCode, Zeroizing<Vec<u8>>), String> {
        let runtime = self.runtime.as_ref().ok_or("it is shut down")?;
        let lost = |error: reqwest::Error| match tls::certificate_error(&error) {
            Some(refused) => self.trust.explain(refused).0.to_string(),
            None => printable(&chain(&error)),
        };
        runtime.block_on(async {
            let mut response = request(&self.client).timeout(time).send().await.map_err(lost)?;
            let mut body = Zeroizing::new(Vec::with_capacity(limit_bytes));
            while let Some(chunk) = response.chunk().await.map_err(lost)? {
                if body.len() + chunk.len() > limit_bytes {
                    return Err(format!("it answers with more than {limit_bytes} bytes"));
                }
                body.extend_from_slice(&chunk);
            }
            Ok((response.status(), body))
        })
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        // A name resolution that hangs cannot be cancelled; it must not hold up the report of what failed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

/// Returns the innermost cause with a message. reqwest's own text repeats the URL.
pub(crate) fn chain(error: &reqwest::Error) -> String {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    let innermost = texts.pop().unwrap_or_else(|| error.to_string());
    if error.is_timeout() {
        format!("timeout ({innermost})")
    } else {
        innermost
    }
}
