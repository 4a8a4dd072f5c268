//! Probe for open servers: asks for configs as Ignition does, without credentials and with any server certificate, and judges the answers.
//!
//! The gateway is worth nothing while another server gives its full config to any client. Each control-plane host of OpenShift runs a
//! Machine Config Server that does, with TLS on 22623 and without on 22624. This is how an administrator sees whether they are closed.

mod judge;
mod target;
mod tls;

use std::io;
use std::time::Duration;

use attest_ignition::SpecVersion;
use attest_system::causes::with_causes;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue, USER_AGENT};
use reqwest::{Client, Response, StatusCode, redirect};

pub use self::judge::{OwnConfigs, ServedConfig};
pub use self::target::{BadTarget, ProbePort, ProbeTarget};

/// User agent of the requests, because some server might treat other clients differently. The gateway itself does not look at it.
const IGNITION: HeaderValue = HeaderValue::from_static("Ignition/2.26.0");
/// Requested versions, newest first: a server may have one and not another. A Machine Config Server has never given 3.0.0; a client that
/// names no version gets 2.2.0 from it.
const VERSIONS: [Option<SpecVersion>; 8] = [
    Some(SpecVersion::V3_6),
    Some(SpecVersion::V3_5),
    Some(SpecVersion::V3_4),
    Some(SpecVersion::V3_3),
    Some(SpecVersion::V3_2),
    Some(SpecVersion::V3_1),
    Some(SpecVersion::V2_2),
    None,
];
/// Most redirects that are followed. Ignition follows any number, but more than a few lead nowhere.
const REDIRECTS_LIMIT: usize = 5;
/// Ports at which a control-plane host usually answers: the API and SSH.
const OTHER_PORTS: [u16; 2] = [6443, 22];
const NO_ANSWER: &str = "no answer in time";
const LIMITS: ProbeLimits = ProbeLimits {
    connect: Duration::from_secs(5),
    request: Duration::from_secs(30),
    body_bytes: 8 * 1024 * 1024,
};

#[derive(Debug, Clone, Copy)]
struct ProbeLimits {
    /// For TCP and TLS. A connection that a firewall drops takes this long.
    connect: Duration,
    /// For a whole request. A Machine Config Server under load takes seconds.
    request: Duration,
    /// For a body, in bytes. etcd, from which full configs come, takes objects of 1.5 MiB; the files in them are encoded a second time.
    body_bytes: usize,
}

/// Result of asking one port for one pool.
#[derive(Debug)]
pub enum ProbeResult {
    /// An unauthenticated client gets more than the pre-approved config.
    Open(String),
    /// An unauthenticated client gets at most the pre-approved config.
    PreApproved(String),
    /// An unauthenticated client gets no config.
    Closed(String),
    /// The server could not be asked.
    Unknown(String),
}

/// Result of opening a TCP connection to a port.
#[derive(Debug)]
pub enum Reachability {
    Connected,
    /// The host refuses the connection.
    Refused(String),
    /// No answer of the host's: it may be down, or a firewall drops packets.
    Silent(String),
}

impl ProbeResult {
    /// Returns whether unauthenticated clients get what they must not.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// Returns whether the server could not be asked.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

#[derive(Debug, Clone)]
pub struct Stranger {
    client: Client,
    limits: ProbeLimits,
}

/// The HTTP client cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be set up: {0}")]
pub struct NoClient(String);

impl Stranger {
    /// Creates the client, which has no credentials.
    ///
    /// # Errors
    /// [`NoClient`].
    pub fn new() -> Result<Self, NoClient> {
        Self::with_limits(LIMITS)
    }

    fn with_limits(limits: ProbeLimits) -> Result<Self, NoClient> {
        let tls = tls::trusting_anybody().map_err(|error| NoClient(error.to_string()))?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .http1_only()
            // The environment has no say in who is asked.
            .no_proxy()
            .redirect(redirect::Policy::limited(REDIRECTS_LIMIT))
            .referer(false)
            .connect_timeout(limits.connect)
            .timeout(limits.request)
            .build()
            .map_err(|error| NoClient(with_causes(&error)))?;
        Ok(Self { client, limits })
    }

    /// Opens a TCP connection to a port, and closes it.
    pub async fn reach(&self, target: &ProbeTarget, port: ProbePort) -> Reachability {
        self.connect(target, port.number()).await
    }

    /// Returns a port at which the host answers, although it does not at the probed ones: what a firewall drops is closed.
    pub async fn answers_at(&self, target: &ProbeTarget) -> Option<u16> {
        for port in OTHER_PORTS {
            if !matches!(self.connect(target, port).await, Reachability::Silent(_)) {
                return Some(port);
            }
        }
        None
    }

    async fn connect(&self, target: &ProbeTarget, port: u16) -> Reachability {
        match tokio::time::timeout(self.limits.connect, target.connect(port)).await {
            Ok(Ok(())) => Reachability::Connected,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Reachability::Refused(error.to_string()),
            Ok(Err(error)) => Reachability::Silent(error.to_string()),
            Err(_) => Reachability::Silent(NO_ANSWER.to_owned()),
        }
    }

    /// Checks that an HTTP server listens at a port. The error is the result if none does.
    pub async fn listens(&self, target: &ProbeTarget, port: ProbePort) -> Result<(), ProbeResult> {
        let request = self.client.head(target.url(port, "/healthz"));
        match request.send().await {
            Err(error) if error.is_connect() || error.is_timeout() => Err(no_answer(&error)),
            _ => Ok(()),
        }
    }

    /// Asks a port for a pool's config in each version, until one gives more than it should.
    pub async fn ask(&self, target: &ProbeTarget, port: ProbePort, pool: &str, known: &OwnConfigs) -> ProbeResult {
        let mut best = None;
        for version in VERSIONS {
            match self.ask_once(target, port, pool, version, known).await {
                open @ ProbeResult::Open(_) => return open,
                // Another version might get more.
                unknown @ ProbeResult::Unknown(_) => best = Some(unknown),
                finding @ ProbeResult::PreApproved(_) if !matches!(best, Some(ProbeResult::Unknown(_))) => best = Some(finding),
                finding => best = best.or(Some(finding)),
            }
        }
        best.unwrap_or_else(|| ProbeResult::Closed("was not asked".to_owned()))
    }

    async fn ask_once(
        &self,
        target: &ProbeTarget,
        port: ProbePort,
        pool: &str,
        version: Option<SpecVersion>,
        known: &OwnConfigs,
    ) -> ProbeResult {
        let url = target.url(port, &format!("/config/{pool}"));
        let mut request = self
            .client
            .get(url)
            .header(USER_AGENT, IGNITION)
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(version) = version {
            request = request.header(ACCEPT, format!("application/vnd.coreos.ignition+json;version={version}, */*;q=0.1"));
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return no_answer(&error),
        };
        let status = response.status();
        if status != StatusCode::OK {
            return ProbeResult::Closed(format!("answers {}", status.as_u16()));
        }
        match self.body(response).await {
            Err(problem) => ProbeResult::Open(format!("answers 200 with {problem}")),
            Ok(body) => match known.judge(pool, &body) {
                ServedConfig::Beyond(what) => ProbeResult::Open(format!("gives {what}")),
                ServedConfig::PreApproved => {
                    ProbeResult::PreApproved(format!("gives nothing beyond the pre-approved config of pool {pool}"))
                }
                ServedConfig::NoConfig => ProbeResult::Closed(format!("answers 200 with {} bytes that are no Ignition config", body.len())),
            },
        }
    }

    /// Reads the body. An error is reported as open: a body that cannot be read to its end cannot be called harmless.
    async fn body(&self, mut response: Response) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(None) => return Ok(body),
                Ok(Some(chunk)) if body.len() + chunk.len() > self.limits.body_bytes => {
                    return Err(format!("more than {} bytes", self.limits.body_bytes));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Err(error) => return Err(format!("{} bytes, and then {}", body.len(), innermost_error(&error))),
            }
        }
    }
}

/// Returns the result for a request without an answer.
fn no_answer(error: &reqwest::Error) -> ProbeResult {
    match error.is_timeout() {
        true => ProbeResult::Unknown(NO_ANSWER.to_owned()),
        false => ProbeResult::Closed(innermost_error(error)),
    }
}

/// Returns the innermost error, without the URL and without control characters.
fn innermost_error(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    let text = if error.is_timeout() {
        NO_ANSWER.to_owned()
    } else {
        innermost.to_string()
    };
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}

/// Returns the pools to ask all servers for: this gateway's, and those that every cluster has.
#[must_use]
pub fn pools_to_ask<'p>(own: impl Iterator<Item = &'p String>) -> Vec<String> {
    // Every cluster has these two, whatever this gateway serves.
    let mut pools = vec!["master".to_owned(), "worker".to_owned()];
    pools.extend(own.cloned());
    pools.sort();
    pools.dedup();
    pools
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_silent_port_is_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = ProbeTarget::parse(&format!("127.0.0.1:{port}")).unwrap();
        let limits = ProbeLimits {
            request: Duration::from_millis(100),
            ..LIMITS
        };
        let stranger = Stranger::with_limits(limits).unwrap();
        for port in target.ports() {
            assert!(matches!(stranger.reach(&target, port).await, Reachability::Connected));
            let unknown = |finding: ProbeResult| assert!(matches!(&finding, ProbeResult::Unknown(why) if why == NO_ANSWER), "{finding:?}");
            unknown(stranger.listens(&target, port).await.unwrap_err());
            unknown(stranger.ask_once(&target, port, "worker", None, &OwnConfigs::default()).await);
        }
    }

    #[test]
    fn always_probes_the_worker_and_master_pools() {
        let own = ["infra".to_owned(), "worker".to_owned()];
        assert_eq!(pools_to_ask(own.iter()), ["infra", "master", "worker"]);
    }
}
