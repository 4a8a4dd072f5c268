//! A real Machine Config Server ("upstream") as the source of a pool's full config.
//!
//! Each spec version is asked for by itself and kept as it came: a node gets exactly what the Machine Config Server would have given it. If
//! asking for an old version would do harm there, it is made here. All versions are of one state of the cluster, or the fetch fails.

mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use attest_ignition::SpecVersion;
use attest_ignition::machine_config::appended::{KERNEL_ARGUMENTS, KERNEL_ARGUMENTS_SINCE};
use attest_pool::upstream::{FetchedConfig, FetchedVersion, ROUNDS_LIMIT, UpstreamError, UpstreamSettings};
use attest_system::causes::with_causes;
use axum::body::Bytes;
use reqwest::header::{ACCEPT, ETAG, HeaderMap, IF_NONE_MATCH};
use reqwest::{Client, Response, StatusCode, redirect};
use url::{Host, Url};

/// Versions that are asked for, newest first. A Machine Config Server has never given 3.0.0.
const VERSIONS: [SpecVersion; 7] = [
    SpecVersion::V3_6,
    SpecVersion::V3_5,
    SpecVersion::V3_4,
    SpecVersion::V3_3,
    SpecVersion::V3_2,
    SpecVersion::V3_1,
    SpecVersion::V2_2,
];
/// Limits that requests to a healthy upstream stay far below.
const LIMITS: UpstreamLimits = UpstreamLimits {
    connect: Duration::from_secs(10),
    request: Duration::from_secs(30),
    body_bytes: 16 * 1024 * 1024,
};
/// Time for which a connection is kept for the fetch's next request. The next fetch makes a new one, and checks the certificate again.
const IDLE_LIMIT: Duration = Duration::from_secs(5);
/// Longest entity tag that is kept: a hash with quotes has far fewer.
const ETAG_LIMIT_BYTES: usize = 256;

#[derive(Debug, Clone, Copy)]
struct UpstreamLimits {
    /// For TCP and TLS.
    connect: Duration,
    /// For a whole request, its connection and the answer's body included.
    request: Duration,
    body_bytes: usize,
}

/// A Machine Config Server, for one pool.
#[derive(Debug, Clone)]
pub struct Upstream {
    client: Client,
    url: Url,
    /// The pool's name there.
    pool: String,
    name: String,
    limits: UpstreamLimits,
    settings: UpstreamSettings,
}

/// Result of a request for one version.
enum VersionAnswer {
    Given(FetchedVersion),
    /// The server does not have this version. Without a status, the server has answered with an older one.
    Denied(Option<StatusCode>),
}

impl Upstream {
    /// Reads the CA; `pool` is the name to ask for if the settings have none.
    ///
    /// # Errors
    /// [`UpstreamError`].
    pub fn new(settings: UpstreamSettings, pool: &str) -> Result<Self, UpstreamError> {
        Self::with_limits(settings, pool, LIMITS)
    }

    fn with_limits(settings: UpstreamSettings, pool: &str, limits: UpstreamLimits) -> Result<Self, UpstreamError> {
        let mut url = settings.url.clone();
        let pool = settings.pool.as_deref().unwrap_or(pool).to_owned();
        url.set_path(&format!("/config/{pool}"));
        let name = match settings.address {
            Some(address) => format!("{url} at {address}"),
            None => url.to_string(),
        };
        let problem = |problem: String| UpstreamError::Client {
            upstream: name.clone(),
            problem,
        };
        let tls = tls::client_config(&settings.ca, settings.keys_sha256.clone(), &name)?;
        let mut client = Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .http1_only()
            // The environment has no say in whom the gateway asks, and neither has whoever answers.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .referer(false)
            .user_agent(concat!("attest-gateway/", env!("CARGO_PKG_VERSION")))
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(IDLE_LIMIT)
            .connect_timeout(limits.connect)
            .timeout(limits.request);
        if let Some(address) = settings.address {
            let Some(Host::Domain(host)) = url.host() else {
                return Err(UpstreamError::AddressOfAddress { upstream: name });
            };
            client = client.resolve(host, address);
            // reqwest takes the IP address only; the port must be the URL's. The certificate is not checked for a port.
            url.set_port(Some(address.port()))
                .map_err(|()| problem("the URL cannot have a port".to_owned()))?;
        }
        let client = client.build().map_err(|error| problem(with_causes(&error.without_url())))?;
        Ok(Self {
            client,
            url,
            pool,
            name,
            limits,
            settings,
        })
    }

    /// Returns the pool's name at the upstream.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    #[must_use]
    pub const fn settings(&self) -> &UpstreamSettings {
        &self.settings
    }

    /// Asks for every version. Versions in `last` are only fetched again if they changed, if upstream can tell that.
    ///
    /// A version that upstream denies is not in the result. Any other problem is an error, and the earlier result stays the best one. At
    /// most three times two requests for each version are made.
    ///
    /// # Errors
    /// [`UpstreamError`].
    pub async fn fetch(&self, last: Option<&FetchedConfig>) -> Result<FetchedConfig, UpstreamError> {
        for _ in 0..ROUNDS_LIMIT {
            if let Some(fetched) = self.round(last).await? {
                return Ok(fetched);
            }
        }
        Err(UpstreamError::Changing {
            upstream: self.name.clone(),
        })
    }

    /// Asks for every version once. `None` if the config changed meanwhile.
    async fn round(&self, last: Option<&FetchedConfig>) -> Result<Option<FetchedConfig>, UpstreamError> {
        let mut versions = BTreeMap::new();
        let mut failed = Vec::new();
        let mut newest_status = None;
        for version in VERSIONS {
            if version < KERNEL_ARGUMENTS_SINCE && has_kernel_arguments(&versions) {
                break;
            }
            match self.ask(version, last.and_then(|last| last.configs().get(&version))).await? {
                VersionAnswer::Given(given) => {
                    versions.insert(version, given);
                }
                VersionAnswer::Denied(status) => {
                    newest_status = newest_status.or(status);
                    if status == Some(StatusCode::INTERNAL_SERVER_ERROR) {
                        failed.push(version);
                    }
                }
            }
        }
        let Some(fetched) = FetchedConfig::from_configs(versions) else {
            return Err(UpstreamError::NotGiven {
                upstream: self.name.clone(),
                status: newest_status.map(|status| status.as_u16()),
            });
        };
        // 500 is how a Machine Config Server denies a version, but also how it fails. Nodes of that version would be refused until the
        // next fetch, so it is asked twice.
        for version in failed {
            if matches!(self.ask(version, None).await?, VersionAnswer::Given(_)) {
                return Ok(None);
            }
        }
        // The first again, at the very end: if it is the same still, then so was the state all the time.
        let (newest, first) = fetched.newest_version();
        match self.ask(newest, Some(first)).await? {
            VersionAnswer::Given(again) if again.bytes == first.bytes => Ok(Some(fetched)),
            VersionAnswer::Given(_) | VersionAnswer::Denied(_) => Ok(None),
        }
    }

    async fn ask(&self, version: SpecVersion, known: Option<&FetchedVersion>) -> Result<VersionAnswer, UpstreamError> {
        let etag = known.and_then(|known| known.etag.as_ref());
        let accept = format!("application/vnd.coreos.ignition+json;version={version}, */*;q=0.1");
        let mut request = self.client.get(self.url.clone()).header(ACCEPT, accept);
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let response = request.send().await.map_err(|error| self.failed(version, error))?;
        match (response.status(), known) {
            (StatusCode::OK, known) => {
                let etag = etag_of(response.headers());
                let bytes = self.body(version, response).await?;
                self.read(version, bytes, etag, known).await
            }
            (StatusCode::NOT_MODIFIED, Some(known)) if etag.is_some() => Ok(VersionAnswer::Given(known.clone())),
            (
                status @ (StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::NOT_ACCEPTABLE | StatusCode::INTERNAL_SERVER_ERROR),
                _,
            ) => Ok(VersionAnswer::Denied(Some(status))),
            (status, _) => Err(UpstreamError::Status {
                upstream: self.name.clone(),
                version,
                status: status.as_u16(),
            }),
        }
    }

    async fn body(&self, version: SpecVersion, mut response: Response) -> Result<Bytes, UpstreamError> {
        let limit = self.limits.body_bytes;
        let too_large = || UpstreamError::TooLarge {
            upstream: self.name.clone(),
            version,
            limit,
        };
        let announced = response.content_length().unwrap_or(0);
        let announced = usize::try_from(announced).map_err(|_| too_large())?;
        if announced > limit {
            return Err(too_large());
        }
        let mut body = Vec::with_capacity(announced);
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(version, error))? {
            if chunk.len() > limit - body.len() {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.into())
    }

    async fn read(
        &self,
        version: SpecVersion,
        bytes: Bytes,
        etag: Option<String>,
        known: Option<&FetchedVersion>,
    ) -> Result<VersionAnswer, UpstreamError> {
        if let Some(known) = known.filter(|known| known.bytes == bytes) {
            let config = Arc::clone(&known.config);
            return Ok(VersionAnswer::Given(FetchedVersion { bytes, etag, config }));
        }
        // Megabytes of JSON take their time, which requests of nodes should not wait for.
        let parsed = tokio::task::spawn_blocking(move || FetchedVersion::parse(bytes, etag)).await;
        let upstream = self.name.clone();
        match parsed {
            Ok(Ok((found, given))) if found == version => Ok(VersionAnswer::Given(given)),
            // So a Machine Config Server answers for a version that is newer than all it has.
            Ok(Ok((found, _))) if found < version => Ok(VersionAnswer::Denied(None)),
            Ok(Ok((found, _))) => Err(UpstreamError::NewerVersion { upstream, version, found }),
            Ok(Err(source)) => Err(UpstreamError::NotAConfig { upstream, version, source }),
            Err(_) => Err(UpstreamError::Stopped { upstream }),
        }
    }

    fn failed(&self, version: SpecVersion, error: reqwest::Error) -> UpstreamError {
        UpstreamError::Request {
            upstream: self.name.clone(),
            version,
            problem: with_causes(&error.without_url()),
        }
    }
}

/// Returns whether a Machine Config Server would have to move Ignition's kernel arguments into the MachineConfig for a version before 3.3.
/// It adds them to the object that all its answers are made of, with each request of that kind (machine-config-operator 7ff337a,
/// `MigrateKernelArgsIfNecessary` on what `machineConfigLister` gives). So no two answers would be the same, and every node's would grow.
/// Those versions are made here instead, from the newest one.
fn has_kernel_arguments(versions: &BTreeMap<SpecVersion, FetchedVersion>) -> bool {
    let mut newer = versions.values();
    newer.any(|version| !version.config.list(KERNEL_ARGUMENTS).is_empty())
}

fn etag_of(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(ETAG)?.to_str().ok()?;
    (etag.len() <= ETAG_LIMIT_BYTES).then(|| etag.to_owned())
}

#[cfg(test)]
mod tests;
