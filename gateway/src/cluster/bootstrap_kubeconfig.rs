//! The kubelets' bootstrap kubeconfig, as a Machine Config Server puts it into configs: for pools whose configs no such server gives.
//!
//! Its token is that of the service account `node-bootstrapper`, in the Secret `node-bootstrapper-token` that the server has mounted; its CAs are those of the
//! ConfigMap `kube-apiserver-server-ca`, of which the server reads a copy that each node could change (`kubeconfig-data` in the operator's namespace, and
//! `manifests/machineconfigdaemon/role.yaml`), or else the Secret's; its server is the cluster's internal URL of the API, which the operator gives the server as an argument
//! (machine-config-operator 7ff337a: `pkg/server/cluster_server.go`, `kubeconfigFromSecret` and `GetConfig`; `manifests/machineconfigserver/daemonset.yaml`;
//! `pkg/operator/sync.go`). What that writes has no `kind`, and neither has this.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attest_certificates::source;
use attest_cluster_api::cached_object::{Bundle, CachedContent, ObjectName, One, secret};
use attest_cluster_api::{ClusterClient, ClusterError, WatchCache, keep_by_fields, resources};
use attest_system::files::PRIVATE;
use data_encoding::BASE64;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;
use url::Url;
use zeroize::Zeroizing;

use super::copies::{CopiedFile, Text, now_and_then};

const NAMESPACE: &str = "openshift-machine-config-operator";
const TOKEN: ObjectName = ObjectName {
    what: "node-bootstrapper's token",
    namespace: NAMESPACE,
    name: "node-bootstrapper-token",
};
const CA: ObjectName = ObjectName {
    what: "CAs of the API",
    namespace: "openshift-config-managed",
    name: "kube-apiserver-server-ca",
};
/// Name of the watch on the API's URL for nodes, which the only object of its kind has.
const INFRASTRUCTURE: &str = "infrastructure";
const INFRASTRUCTURE_FIELDS: &str = "metadata.name=cluster";
/// Name of the kubeconfig in messages.
const ALL: &str = "bootstrap kubeconfig";
/// Longest token that is taken, in bytes: a service account's has about 1,000.
const TOKEN_LIMIT_BYTES: usize = 16 * 1024;

/// A Secret's token and CAs.
#[derive(Clone)]
struct ServiceAccountToken {
    token: Option<Text>,
    ca: Option<String>,
}

impl fmt::Debug for ServiceAccountToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl CachedContent for ServiceAccountToken {
    const KIND: &'static str = "Secret";
    const PLURAL: &'static str = "secrets";

    fn read(_: &str, object: &Value) -> Self {
        Self {
            token: secret(object, "token").map(Arc::new),
            ca: secret(object, "ca.crt").map(|text| text.as_str().to_owned()),
        }
    }
}

/// State of these objects at the API.
struct KubeconfigInputs {
    token: Option<ServiceAccountToken>,
    ca: Option<Bundle>,
    server: Option<String>,
}

impl KubeconfigInputs {
    /// Returns the kubeconfig, if a kubelet could use it. Each part of it has the form that it should have, so nothing is quoted.
    fn made(&self) -> Result<Zeroizing<String>, String> {
        let ServiceAccountToken { token, ca } = self.token.as_ref().ok_or_else(|| format!("there is no Secret {TOKEN}"))?;
        let token = token.as_ref().ok_or_else(|| format!("Secret {TOKEN} has no token"))?;
        if !is_token(token) {
            return Err(format!("Secret {TOKEN}: token is not a service account's"));
        }
        let of_config_map = self.ca.as_ref().and_then(|Bundle(text)| text.as_ref()).map(|text| (CA, text));
        let of_secret = || ca.as_ref().map(|text| (TOKEN, text));
        let (of, ca) = of_config_map
            .or_else(of_secret)
            .ok_or_else(|| format!("neither ConfigMap {CA} nor Secret {TOKEN} has the CAs of the API"))?;
        source::certificates_in(ca).map_err(|problem| format!("{of}: {problem}"))?;
        let server = self.server.as_deref().unwrap_or_default();
        if !is_server(server) {
            return Err(format!(
                "Infrastructure cluster: status.apiServerInternalURI is {server:?}, and not the https URL of an API"
            ));
        }
        let ca = BASE64.encode(ca.as_bytes());
        Ok(Zeroizing::new(format!(
            "clusters:
- cluster:
    certificate-authority-data: {ca}
    server: {server}
  name: local
contexts:
- context:
    cluster: local
    user: kubelet
  name: kubelet
current-context: kubelet
users:
- name: kubelet
  user:
    token: {}
",
            token.as_str()
        )))
    }
}

/// Returns whether it has the form of a JWT, like service accounts' tokens (RFC 7519, section 3.1).
fn is_token(token: &str) -> bool {
    let of_base64url =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    token.len() <= TOKEN_LIMIT_BYTES && token.starts_with("eyJ") && token.split('.').count() == 3 && token.split('.').all(of_base64url)
}

/// Returns whether it is the URL of a server, without a path.
fn is_server(server: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'/' | b'.' | b'-' | b'[' | b']');
    server.bytes().all(plain)
        && Url::parse(server)
            .is_ok_and(|url| url.scheme() == "https" && url.has_host() && url.path() == "/" && server.starts_with("https://"))
}

fn infrastructures(cluster: &ClusterClient) -> Api<DynamicObject> {
    Api::all_with(cluster.client(), &resources::infrastructures())
}

fn server_of(object: &DynamicObject) -> Option<String> {
    let server = object.data.pointer("/status/apiServerInternalURI")?.as_str()?;
    Some(server.to_owned())
}

/// Checks once whether all of it can be read.
pub(super) async fn check_access(cluster: &ClusterClient) -> [(&'static str, Result<(), ClusterError>); 3] {
    let one = ListParams::default().limit(1).fields(INFRASTRUCTURE_FIELDS);
    let api = infrastructures(cluster);
    let (token, ca, infrastructure) = tokio::join!(
        TOKEN.check_access::<ServiceAccountToken>(cluster),
        CA.check_access::<Bundle>(cluster),
        cluster.ask(INFRASTRUCTURE, api.list_metadata(&one))
    );
    [token, ca, (INFRASTRUCTURE, infrastructure.map(drop))]
}

/// Has the file say what the cluster says, asked for once.
///
/// # Errors
/// The reason why it does not.
pub(super) async fn first(cluster: &ClusterClient, path: &Path) -> Result<(), String> {
    let told = |error: ClusterError| error.to_string();
    let one = ListParams::default().limit(1).fields(INFRASTRUCTURE_FIELDS);
    let (token, ca) = (TOKEN.ask(cluster).await.map_err(told)?, CA.ask(cluster).await.map_err(told)?);
    let api = infrastructures(cluster);
    let found = cluster.ask(INFRASTRUCTURE, api.list(&one)).await.map_err(told)?;
    let server = found.items.first().and_then(server_of);
    let made = KubeconfigInputs { token, ca, server }.made()?;
    CopiedFile::new(ALL, path.to_owned(), PRIVATE).write(made).await.map(drop)
}

/// Keeps the file as the cluster has it, for as long as it is polled.
pub async fn keep_bootstrap_kubeconfig(cluster: Arc<ClusterClient>, path: PathBuf) {
    let (token, keep_token) = TOKEN.keep::<ServiceAccountToken>(&cluster);
    let (ca, keep_ca) = CA.keep::<Bundle>(&cluster);
    let (api, of) = (infrastructures(&cluster), resources::infrastructures());
    let (infrastructure, keeping) = keep_by_fields(&api, of, INFRASTRUCTURE_FIELDS, INFRASTRUCTURE, cluster.health());
    let told = KubeconfigWatches { token, ca, infrastructure };
    tokio::join!(
        keep_token.run(),
        keep_ca.run(),
        keeping.without_what_anybody_adds().run(),
        told.follow(path)
    );
}

struct KubeconfigWatches {
    token: One<ServiceAccountToken>,
    ca: One<Bundle>,
    infrastructure: WatchCache<DynamicObject>,
}

impl KubeconfigWatches {
    async fn follow(mut self, path: PathBuf) {
        let mut copied = CopiedFile::new(ALL, path, PRIVATE);
        let mut every = now_and_then();
        loop {
            tokio::select! {
                () = self.token.changed() => {}
                () = self.ca.changed() => {}
                () = self.infrastructure.changed() => {}
                _ = every.tick() => {}
            }
            if let Some(said) = self.inputs() {
                copied.take(said.made()).await;
            }
        }
    }

    /// Returns the state at the API, once all of it is known.
    fn inputs(&self) -> Option<KubeconfigInputs> {
        Some(KubeconfigInputs {
            token: self.token.now()?,
            ca: self.ca.now()?,
            server: self.infrastructure.all()?.first().and_then(|object| server_of(object)),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pki::issue::{self, Algorithm, SigningKey};
    use attest_ignition::lint;

    const TOKEN_TEXT: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQifQ.c2lnbmF0dXJl";
    const SERVER: &str = "https://api-int.example.com:6443";

    fn ca(name: &str) -> String {
        let now = attest::UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        let key = SigningKey::generate(Algorithm::EcdsaP256).unwrap();
        issue::authority(name, key, 10, now).unwrap().certificate.pem()
    }

    fn inputs(token: &str, of_secret: Option<&str>, of_config_map: Option<&str>, server: &str) -> KubeconfigInputs {
        let mut data = json!({"token": BASE64.encode(token.as_bytes())});
        if let Some(ca) = of_secret {
            data["ca.crt"] = BASE64.encode(ca.as_bytes()).into();
        }
        KubeconfigInputs {
            token: Some(ServiceAccountToken::read("n", &json!({"data": data}))),
            ca: of_config_map.map(|ca| Bundle(Some(ca.to_owned()))),
            server: Some(server.to_owned()),
        }
    }

    #[test]
    fn bootstrap_kubeconfig_equals_the_mcs_one() {
        let (of_secret, of_config_map) = (ca("secret"), ca("config map"));
        let read = |said: KubeconfigInputs| -> Value { serde_saphyr::from_str(&said.made().unwrap()).unwrap() };
        let expect = |ca: &str| {
            json!({
                "clusters": [{"cluster": {"certificate-authority-data": BASE64.encode(ca.as_bytes()), "server": SERVER}, "name": "local"}],
                "contexts": [{"context": {"cluster": "local", "user": "kubelet"}, "name": "kubelet"}],
                "current-context": "kubelet",
                "users": [{"name": "kubelet", "user": {"token": TOKEN_TEXT}}],
            })
        };
        assert_eq!(read(inputs(TOKEN_TEXT, Some(&of_secret), None, SERVER)), expect(&of_secret));
        // The operator has those of the ConfigMap over those beside the token.
        let both = inputs(TOKEN_TEXT, Some(&of_secret), Some(&of_config_map), SERVER);
        assert_eq!(read(both), expect(&of_config_map));
    }

    #[test]
    fn refuses_unusable_inputs_without_printing_secrets() {
        let ca = ca("secret");
        let refused = |said: KubeconfigInputs, expect: &str| {
            let problem = said.made().err().unwrap();
            assert!(problem.contains(expect), "{expect}: {problem}");
            assert!(!problem.contains("c2lnbmF0dXJl"), "{problem}");
        };
        let token = |token: &str| inputs(token, Some(&ca), None, SERVER);
        for wrong in [
            "",
            "x",
            "eyJ.c2lnbmF0dXJl",
            "eyJ.a.b.c",
            "eyJ..c",
            "eyJ.a.b\n",
            "eyJ.a.b: c",
            "a.b.c",
            &format!("eyJ.a.{}", "b".repeat(TOKEN_LIMIT_BYTES)),
        ] {
            refused(token(wrong), "is not a service account's");
        }
        let server = |server: &str| inputs(TOKEN_TEXT, Some(&ca), None, server);
        for wrong in [
            "",
            "http://api-int.example.com:6443",
            "https:api-int.example.com",
            "https://",
            "https://api-int.example.com/path",
            "https://user@api-int.example.com",
            "https://api-int.example.com?a",
            "https://api-int.example.com #",
            "https://api-int.example.com\n",
        ] {
            refused(server(wrong), "status.apiServerInternalURI");
        }
        assert!(server("https://[fd00::1]:6443").made().is_ok());
        refused(inputs(TOKEN_TEXT, None, None, SERVER), "has the CAs of the API");
        refused(inputs(TOKEN_TEXT, Some("no PEM"), None, SERVER), "holds no certificate");
        refused(
            inputs(TOKEN_TEXT, Some(&ca), Some("no PEM"), SERVER),
            "kube-apiserver-server-ca: holds no certificate",
        );
        let nobody = KubeconfigInputs {
            token: None,
            ..token(TOKEN_TEXT)
        };
        refused(nobody, "there is no Secret");
        let nothing = KubeconfigInputs {
            token: Some(ServiceAccountToken::read("n", &json!({"data": {"token": 7}}))),
            ..token(TOKEN_TEXT)
        };
        refused(nothing, "has no token");
    }

    #[test]
    fn debug_output_hides_the_kubeconfig_token() {
        let said = inputs(TOKEN_TEXT, Some(&ca("secret")), None, SERVER);
        assert!(!format!("{:?}", said.token).contains("c2lnbmF0dXJl"));
        let source = attest_ignition::data_url::encode(said.made().unwrap().as_bytes());
        let config = json!({"ignition": {"version": "3.4.0"}, "storage": {"files": [{"path": "/etc/kubernetes/kubeconfig", "contents": {"source": source}}]}});
        let found = lint::lint(&attest_ignition::Config::from_value(config).unwrap(), &[]);
        let names: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["token /etc/kubernetes/kubeconfig"]);
    }
}
