//! The MachineConfig of a pool's pre-approved config, as the gateway gives it to unauthenticated clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use attest_certificates::source::{self, SourceError as FileError};
use attest_ignition::data_url;
use attest_ignition::machine_config::appended::CONTENT;
use attest_ignition::machine_config::second_stage::{OBJECT_LIMIT_BYTES, Object, SecondStageError};
use attest_system::causes::with_causes;
use attest_tls::Beside;
use reqwest::header::ACCEPT;
use reqwest::{Client, Response, StatusCode, redirect};
use rustls::RootCertStore;
use serde_json::Value;
use url::Url;

use crate::settings::SecondStageSettings;

/// The spec version that each object for machine-config-daemon can be said in.
const ACCEPTED: &str = "application/vnd.coreos.ignition+json;version=3.5.0";
/// Largest answer: a MachineConfig of the largest size stands in it twice, once as base64.
const BODY_LIMIT_BYTES: usize = 8 * OBJECT_LIMIT_BYTES;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For a whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a pool's object is not known.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Authorities(#[from] FileError),
    #[error("{url}: {problem}")]
    Request { url: String, problem: String },
    /// Refused, or unknown.
    #[error(
        "{url}: status {status}: the gateway gives the pre-approved config of this pool to no unauthenticated client; apply `attest-gateway second-stage` by hand"
    )]
    Status { url: String, status: u16 },
    #[error("{url}: more than {BODY_LIMIT_BYTES} bytes")]
    TooLarge { url: String },
    /// The gateway does not know of the second stage of this pool, or has an older state of it.
    #[error("{url}: the config has no {CONTENT} in it")]
    NoContent { url: String },
    #[error(transparent)]
    Object(#[from] SecondStageError),
    /// An object that no gateway makes for this pool.
    #[error("{url}: {name:?} is not the name of a pre-approved MachineConfig of this pool")]
    Name { url: String, name: String },
}

/// The gateway, as nodes reach it.
#[derive(Debug, Clone)]
pub struct Source {
    settings: SecondStageSettings,
    /// The gateway's CAs, read for each request.
    authorities: PathBuf,
}

/// A server is verified by its CAs alone.
#[derive(Debug)]
struct AnyKey;

impl Beside for AnyKey {}

impl Source {
    #[must_use]
    pub const fn new(settings: SecondStageSettings, authorities: PathBuf) -> Self {
        Self { settings, authorities }
    }

    /// Fetches the object of a pool whose MachineConfigPool has this name.
    ///
    /// # Errors
    /// [`SourceError`].
    pub async fn object(&self, pool: &str, machine_config_pool: &str) -> Result<Object, SourceError> {
        let mut url = self.settings.url.clone();
        url.set_path(&format!("/config/{pool}"));
        let shown = url.to_string();
        let client = self.client(&mut url).await?;
        let failed = |error: reqwest::Error| SourceError::Request {
            url: shown.clone(),
            problem: with_causes(&error.without_url()),
        };
        let response = client.get(url).header(ACCEPT, ACCEPTED).send().await.map_err(failed)?;
        if response.status() != StatusCode::OK {
            return Err(SourceError::Status {
                status: response.status().as_u16(),
                url: shown,
            });
        }
        let body = body(response, &shown).await?;
        let content = content(&body).ok_or_else(|| SourceError::NoContent { url: shown.clone() })?;
        let object = object(&content, machine_config_pool)?;
        match is_name(&object.name, pool) {
            true => Ok(object),
            false => Err(SourceError::Name {
                url: shown,
                name: object.name,
            }),
        }
    }

    /// Makes a client that trusts the CAs of the file, and connects to the address of the settings.
    async fn client(&self, url: &mut Url) -> Result<Client, SourceError> {
        let shown = url.to_string();
        let failed = |problem: String| SourceError::Request {
            url: shown.clone(),
            problem,
        };
        let mut roots = RootCertStore::empty();
        for authority in source::authorities(&self.authorities)? {
            roots.add(authority.der).map_err(|error| failed(error.to_string()))?;
        }
        let authorities = attest_tls::authorities(roots).map_err(|error| failed(error.to_string()))?;
        let tls = attest_tls::client_config(authorities, AnyKey, None).map_err(|error| failed(error.to_string()))?;
        let mut client = Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .http1_only()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .referer(false)
            .user_agent(concat!("attest-controller/", env!("CARGO_PKG_VERSION")))
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT);
        if let Some(address) = &self.settings.address {
            let found = tokio::net::lookup_host(address.as_str()).await;
            let addresses: Vec<SocketAddr> = found.map_err(|error| failed(format!("{address}: {error}")))?.collect();
            let port = addresses.first().map(SocketAddr::port);
            let host = url.host_str().unwrap_or_default().to_owned();
            client = client.resolve_to_addrs(&host, &addresses);
            // reqwest takes the IP addresses only. The certificate is not checked for a port.
            url.set_port(port).map_err(|()| failed("the URL cannot have a port".to_owned()))?;
        }
        client.build().map_err(|error| failed(with_causes(&error.without_url())))
    }
}

async fn body(mut response: Response, url: &str) -> Result<Vec<u8>, SourceError> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if chunk.len() <= BODY_LIMIT_BYTES - body.len() => body.extend_from_slice(&chunk),
            Ok(Some(_)) => return Err(SourceError::TooLarge { url: url.to_owned() }),
            Ok(None) => return Ok(body),
            Err(error) => {
                return Err(SourceError::Request {
                    url: url.to_owned(),
                    problem: with_causes(&error.without_url()),
                });
            }
        }
    }
}

/// Returns the whole MachineConfig that stands in a served config.
fn content(config: &[u8]) -> Option<Vec<u8>> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let files = config.pointer("/storage/files")?.as_array()?;
    let file = files
        .iter()
        .find(|file| file.get("path").and_then(Value::as_str) == Some(CONTENT))?;
    let source = file.pointer("/contents/source")?.as_str()?;
    data_url::decode(source)
}

/// Makes the object of a MachineConfig's JSON. Of what a gateway says, the name and the `spec` are taken, and no other metadata.
fn object(content: &[u8], machine_config_pool: &str) -> Result<Object, SecondStageError> {
    if content.len() > OBJECT_LIMIT_BYTES * 2 {
        return Err(SecondStageError::TooLarge { found: content.len() });
    }
    let mut object = Object::of(content, machine_config_pool)?;
    let labels = object.value.pointer("/metadata/labels").cloned().unwrap_or_default();
    let spec = object.value.get_mut("spec").map(Value::take).unwrap_or_default();
    object.value = serde_json::json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": object.name, "labels": labels},
        "spec": spec,
    });
    Ok(object)
}

/// Whether a gateway names the pre-approved MachineConfig of this pool so.
fn is_name(name: &str, pool: &str) -> bool {
    let hash = name
        .strip_prefix("rendered-")
        .and_then(|rest| rest.strip_prefix(pool))
        .and_then(|rest| rest.strip_prefix("-pre-approved-"));
    hash.is_some_and(|hash| !hash.is_empty() && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest_ignition::machine_config::second_stage::LABELS;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_is_of_its_pool_and_of_no_other() {
        assert!(is_name("rendered-worker-pre-approved-0a1", "worker"));
        for name in [
            "rendered-worker-0a1",
            "rendered-worker-pre-approved-",
            "rendered-worker-pre-approved-0A1",
            "rendered-infra-pre-approved-0a1",
            "rendered-worker-pre-approved-0a1-x",
            "99-worker",
            "",
        ] {
            assert!(!is_name(name, "worker"), "{name}");
        }
    }

    #[test]
    fn of_an_object_name_and_spec_are_taken_and_nothing_else() {
        let content = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "rendered-worker-pre-approved-0a1",
                "namespace": "default",
                "labels": {"machineconfiguration.openshift.io/role": "master"},
                "annotations": {"a": "b"},
                "finalizers": ["c"],
                "ownerReferences": [{}],
            },
            "spec": {"fips": true},
            "status": {},
        });
        let found = object(content.to_string().as_bytes(), "worker").unwrap();
        let labels: serde_json::Map<String, Value> = LABELS.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        assert_eq!(
            found.value,
            json!({
                "apiVersion": "machineconfiguration.openshift.io/v1",
                "kind": "MachineConfig",
                "metadata": {"name": "rendered-worker-pre-approved-0a1", "labels": labels},
                "spec": {"fips": true},
            })
        );
        for wrong in [json!([]), json!({"metadata": {}}), json!({"metadata": {"name": 7}}), json!("x")] {
            assert!(object(wrong.to_string().as_bytes(), "worker").is_err(), "{wrong}");
        }
        assert!(object(&vec![b' '; 2 * OBJECT_LIMIT_BYTES + 1], "worker").is_err());
    }

    #[test]
    fn a_config_without_the_file_has_no_content() {
        for config in [
            json!({}),
            json!({"storage": {"files": [{"path": "/etc/a", "contents": {"source": "data:,a"}}]}}),
            json!({"storage": {"files": [{"path": CONTENT, "contents": {"source": "https://a"}}]}}),
            json!({"storage": {"files": [{"path": CONTENT}]}}),
        ] {
            assert_eq!(content(config.to_string().as_bytes()), None, "{config}");
        }
        assert_eq!(content(b"x"), None);
        let config = json!({"storage": {"files": [{"path": CONTENT, "contents": {"source": "data:,a"}}]}});
        assert_eq!(content(config.to_string().as_bytes()).unwrap(), b"a");
    }
}
