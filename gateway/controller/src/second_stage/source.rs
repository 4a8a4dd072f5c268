//! The MachineConfig of a pool's pre-approved config, as the gateways give it to unauthenticated clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use attest_certificates::Fingerprint;
use attest_certificates::source::{self, CertificateFileError as FileError};
use attest_ignition::data_url;
use attest_ignition::machine_config::appended::CONTENT;
use attest_ignition::machine_config::second_stage::{OBJECT_LIMIT_BYTES, SecondStageError, SecondStageObject, is_name};
use attest_pointers::hint;
use attest_system::causes::with_causes;
use attest_tls::ServerKnowledge;
use reqwest::header::ACCEPT;
use reqwest::{Client, Response, redirect};
use rustls::RootCertStore;
use serde_json::Value;
use url::Url;

use crate::settings::SecondStageSettings;

/// The spec version that each object for machine-config-daemon can be said in.
const ACCEPTED: &str = "application/vnd.coreos.ignition+json;version=3.5.0";
/// Largest answer: it has a MachineConfig of the largest size twice, once as base64.
const BODY_LIMIT_BYTES: usize = 8 * OBJECT_LIMIT_BYTES;
/// Most values of a JSON text. Of the smallest ones in arrays, each takes some hundred bytes of memory.
const VALUES_LIMIT: usize = 200_000;
/// Most gateways that are asked for a pool.
const GATEWAYS_LIMIT: usize = 16;
/// Longest part of an invalid name in a message.
const SHOWN_LIMIT_CHARACTERS: usize = 100;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a whole request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Reason why a pool's object is unknown.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Authorities(#[from] FileError),
    #[error("{url}: {problem}")]
    Request { url: String, problem: String },
    #[error(
        "{url}: status {status}: the gateway refuses the pre-approved config of this pool to unauthenticated clients; apply the output of `attest-gateway second-stage render` by hand"
    )]
    Refused { url: String, status: u16 },
    #[error("{url}: status {status}")]
    Status { url: String, status: u16 },
    #[error("{url}: more than {BODY_LIMIT_BYTES} bytes, or {VALUES_LIMIT} values")]
    TooLarge { url: String },
    /// The gateway has no second stage for this pool, or an older state of it.
    #[error("{url}: the config has no {CONTENT}")]
    NoContent { url: String },
    #[error(transparent)]
    Object(#[from] SecondStageError),
    /// A name of an object that no gateway makes for this pool.
    #[error("{url}: {name:?} is not the name of a pre-approved MachineConfig of this pool")]
    Name { url: String, name: String },
    #[error("second_stage.address {address}: {problem}")]
    NoGateway { address: String, problem: String },
}

/// The gateways, as nodes reach them.
#[derive(Debug, Clone)]
pub struct GatewayEndpoints {
    settings: SecondStageSettings,
    /// The gateway's CAs, read for each request.
    authorities: PathBuf,
}

/// A server is verified by its CAs alone.
#[derive(Debug)]
struct AnyKey;

impl ServerKnowledge for AnyKey {}

impl GatewayEndpoints {
    #[must_use]
    pub const fn new(settings: SecondStageSettings, authorities: PathBuf) -> Self {
        Self { settings, authorities }
    }

    /// Fetches the objects of a pool whose MachineConfigPool has this name: one, if all gateways have the same config. A gateway that does not answer gives no
    /// config to nodes either.
    ///
    /// # Errors
    /// [`SourceError`]: no gateway gives one.
    pub async fn objects(&self, pool: &str, machine_config_pool: &str) -> Result<Vec<SecondStageObject>, FetchError> {
        self.objects_at(&self.addresses().await?, pool, machine_config_pool).await
    }

    /// Like [`GatewayEndpoints::objects`], for the gateways at these addresses; `None` is the URL's host.
    ///
    /// # Errors
    /// Like [`GatewayEndpoints::objects`].
    pub async fn objects_at(
        &self,
        addresses: &[Option<SocketAddr>],
        pool: &str,
        machine_config_pool: &str,
    ) -> Result<Vec<SecondStageObject>, FetchError> {
        let authorities = source::authorities(&self.authorities)?;
        let mut url = self.settings.url.clone();
        url.set_path(&format!("/config/{pool}"));
        let shown = url.to_string();
        // As a pointer does that carries them: this client is none of those that a change of the CA waits for.
        let carried: Vec<Fingerprint> = authorities.iter().map(|authority| authority.fingerprint).collect();
        url.set_query(hint(&carried).as_deref());
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            let added = roots.add(authority.der);
            added.map_err(|error| request(&shown, error.to_string()))?;
        }
        let mut objects = Vec::new();
        let mut failed = None;
        for address in addresses {
            match object_at(*address, (url.clone(), &shown), roots.clone(), (pool, machine_config_pool)).await {
                Ok(object) if objects.contains(&object) => {}
                Ok(object) => objects.push(object),
                Err(error) => failed = Some(error),
            }
        }
        match failed.filter(|_| objects.is_empty()) {
            None => Ok(objects),
            Some(error) => Err(error),
        }
    }

    /// Returns the addresses to connect to: those of the settings' `address`, or `None` for the URL's host.
    async fn addresses(&self) -> Result<Vec<Option<SocketAddr>>, FetchError> {
        let Some(address) = &self.settings.address else {
            return Ok(vec![None]);
        };
        let problem = |problem: String| FetchError::NoGateway {
            address: address.clone(),
            problem,
        };
        let found = tokio::net::lookup_host(address.as_str()).await;
        let addresses: Vec<Option<SocketAddr>> = found
            .map_err(|error| problem(error.to_string()))?
            .map(Some)
            .take(GATEWAYS_LIMIT)
            .collect();
        match addresses.is_empty() {
            true => Err(problem("no gateway found".to_owned())),
            false => Ok(addresses),
        }
    }
}

fn request(url: &str, problem: String) -> FetchError {
    FetchError::Request {
        url: url.to_owned(),
        problem,
    }
}

/// Fetches a pool's object from one gateway, which proves by these CAs that it is one.
async fn object_at(
    address: Option<SocketAddr>,
    (mut url, shown): (Url, &str),
    roots: RootCertStore,
    (pool, machine_config_pool): (&str, &str),
) -> Result<SecondStageObject, FetchError> {
    let failed = |problem: String| request(shown, problem);
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
    if let Some(address) = address {
        client = client.resolve_to_addrs(url.host_str().unwrap_or_default(), &[address]);
        // reqwest takes the IP address only. The certificate is not checked for a port.
        url.set_port(Some(address.port()))
            .map_err(|()| failed("the URL cannot have a port".to_owned()))?;
    }
    let client = client.build().map_err(|error| failed(with_causes(&error.without_url())))?;
    let answer = client.get(url).header(ACCEPT, ACCEPTED).send().await;
    let response = answer.map_err(|error| failed(with_causes(&error.without_url())))?;
    match (response.status().as_u16(), shown.to_owned()) {
        (200, _) => {}
        (status @ (401 | 403), url) => return Err(FetchError::Refused { url, status }),
        (status, url) => return Err(FetchError::Status { url, status }),
    }
    let body = body(response, shown).await?;
    let content = content(&body).ok_or_else(|| FetchError::NoContent { url: shown.to_owned() })?;
    if !has_few_values(&content) {
        return Err(FetchError::TooLarge { url: shown.to_owned() });
    }
    let object = object(&content, machine_config_pool)?;
    match is_name(&object.name, pool) {
        true => Ok(object),
        false => Err(FetchError::Name {
            url: shown.to_owned(),
            name: object.name.chars().take(SHOWN_LIMIT_CHARACTERS).collect(),
        }),
    }
}

async fn body(mut response: Response, url: &str) -> Result<Vec<u8>, FetchError> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if chunk.len() <= BODY_LIMIT_BYTES - body.len() => body.extend_from_slice(&chunk),
            Ok(Some(_)) => return Err(FetchError::TooLarge { url: url.to_owned() }),
            Ok(None) if has_few_values(&body) => return Ok(body),
            Ok(None) => return Err(FetchError::TooLarge { url: url.to_owned() }),
            Err(error) => {
                return Err(request(url, with_causes(&error.without_url())));
            }
        }
    }
}

/// Returns whether a JSON text has no more values than memory may hold: at most one is before or after each of these characters.
fn has_few_values(json: &[u8]) -> bool {
    json.iter().filter(|byte| matches!(byte, b'{' | b'[' | b',')).count() <= VALUES_LIMIT
}

/// Returns the whole MachineConfig in a served config.
fn content(config: &[u8]) -> Option<Vec<u8>> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let files = config.pointer("/storage/files")?.as_array()?;
    let file = files
        .iter()
        .find(|file| file.get("path").and_then(Value::as_str) == Some(CONTENT))?;
    let source = file.pointer("/contents/source")?.as_str()?;
    data_url::decode(source)
}

/// Makes the object from a MachineConfig's JSON. It takes the gateway's name and `spec`, and no other metadata.
fn object(content: &[u8], machine_config_pool: &str) -> Result<SecondStageObject, SecondStageError> {
    if content.len() > OBJECT_LIMIT_BYTES * 2 {
        return Err(SecondStageError::TooLarge { found: content.len() });
    }
    let mut object = SecondStageObject::parse(content, machine_config_pool)?;
    let of_metadata = |place: &str| object.value.pointer(place).cloned().unwrap_or_default();
    let (labels, annotations) = (of_metadata("/metadata/labels"), of_metadata("/metadata/annotations"));
    let spec = object.value.get_mut("spec").map(Value::take).unwrap_or_default();
    object.value = serde_json::json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": object.name, "labels": labels, "annotations": annotations},
        "spec": spec,
    });
    Ok(object)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest_ignition::machine_config::second_stage::{LABELS, SPEC_DIGEST};
    use serde_json::json;

    use super::*;

    #[test]
    fn takes_only_name_and_spec_of_an_object() {
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
        let digest = attest_ignition::Hashed::json(&json!({"fips": true})).unwrap();
        let labels: serde_json::Map<String, Value> = LABELS.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        assert_eq!(
            found.value,
            json!({
                "apiVersion": "machineconfiguration.openshift.io/v1",
                "kind": "MachineConfig",
                "metadata": {"name": "rendered-worker-pre-approved-0a1", "labels": labels, "annotations": {SPEC_DIGEST: digest}},
                "spec": {"fips": true},
            })
        );
        for wrong in [json!([]), json!({"metadata": {}}), json!({"metadata": {"name": 7}}), json!("x")] {
            assert!(object(wrong.to_string().as_bytes(), "worker").is_err(), "{wrong}");
        }
        assert!(object(&vec![b' '; 2 * OBJECT_LIMIT_BYTES + 1], "worker").is_err());
    }

    #[test]
    fn config_without_the_machine_config_file_is_skipped() {
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
