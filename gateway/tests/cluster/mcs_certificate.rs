//! MCS certificate and CA from the cluster, read by the real program, presented to nodes, and cached.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use attest::UnixTime;
use attest_certificates::Certificate;
use attest_gateway::pki::issue::{self, IssuedCertificate, SigningKey};
use attest_gateway::pki::{Algorithm, CertificateRequest, GatewayNames};
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use data_encoding::BASE64;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{Gateway, now};

const NAMESPACE: &str = "openshift-machine-config-operator";
const TLS: &str = "machine-config-server-tls";
const CA: &str = "machine-config-server-ca";
const FILE: &str = "state/cluster/machine-config-server.yaml";
const DAY: u64 = 86_400;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Creates a CA that is this number of days old.
fn ca(name: &str, days: u64) -> IssuedCertificate {
    let key = SigningKey::generate(Algorithm::EcdsaP256).unwrap();
    issue::authority(name, key, 400, at(now() - days * DAY)).unwrap()
}

/// Creates a certificate of 30 days by a CA that is this number of days old.
fn signed(ca: &IssuedCertificate, days: u64) -> IssuedCertificate {
    let names = GatewayNames {
        hosts: vec!["localhost".to_owned()],
        addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
    };
    let wanted = CertificateRequest {
        days: 30,
        ..CertificateRequest::default()
    };
    issue::serving(&ca.certificate, &ca.key, &names, &wanted, at(now() - days * DAY)).unwrap()
}

/// Starts an API of which the gateway may read these objects, and nothing else.
fn api() -> KubernetesApi {
    let api = KubernetesApi::start();
    let objects = [
        (NAMESPACE, "secrets", TLS),
        (NAMESPACE, "configmaps", CA),
        ("kube-system", "configmaps", "root-ca"),
    ];
    for (namespace, resource, name) in objects {
        let version = "rbac.authorization.k8s.io/v1";
        let metadata = json!({"name": format!("of-{name}-{resource}"), "namespace": namespace});
        let rules = json!([{"apiGroups": [""], "resources": [resource], "resourceNames": [name], "verbs": ["list", "watch"]}]);
        api.put(json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules}));
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]});
        let subjects = json!([{"kind": "ServiceAccount", "name": "gateway", "namespace": "attest-gateway"}]);
        api.put(json!({"apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects}));
    }
    api
}

fn put_bundle(api: &KubernetesApi, authorities: &[&IssuedCertificate]) {
    let bundle: String = authorities.iter().map(|ca| ca.certificate.pem()).collect();
    let metadata = json!({"name": CA, "namespace": NAMESPACE});
    api.put(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca-bundle.crt": bundle}}));
}

fn put_data(api: &KubernetesApi, data: Value) {
    let metadata = json!({"name": TLS, "namespace": NAMESPACE});
    api.put(json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}));
}

fn data(made: &IssuedCertificate) -> Value {
    let encoded = |text: &str| BASE64.encode(text.as_bytes());
    json!({"tls.crt": encoded(&made.certificate.pem()), "tls.key": encoded(&made.key.pem())})
}

fn init(api: &KubernetesApi) -> Gateway {
    let gateway = Gateway::init();
    std::fs::write(gateway.path("kubeconfig"), api.kubeconfig(&api.token("attest-gateway", "gateway"))).unwrap();
    gateway.settings("[cluster]\napi = \"kubeconfig\"\nconfigs = false\nmcs_certificate = true\n");
    std::fs::create_dir_all(gateway.path("state")).unwrap();
    // What `init` made is not what is served.
    std::fs::remove_dir_all(gateway.path("tls")).unwrap();
    gateway
}

/// Returns the certificate that a node with this CA sees; `None` if the node refuses it.
async fn shown(gateway: &Gateway, trusted: &IssuedCertificate) -> Option<Certificate> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.certificate.der.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect("localhost".try_into().unwrap(), stream).await.ok()?;
    let leaf = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
    Some(Certificate::parse(leaf).unwrap())
}

fn output_text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    both.concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn presents_and_caches_the_clusters_current_mcs_certificate() {
    let (api, old, new) = (api(), ca("old", 100), ca("new", 50));
    let (first, second) = (signed(&old, 1), signed(&new, 1));
    put_bundle(&api, &[&old]);
    put_data(&api, data(&first));
    let mut gateway = init(&api);
    gateway.run();
    assert_eq!(shown(&gateway, &old).await.as_ref(), Some(&first.certificate));
    let mode = std::fs::metadata(gateway.path(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // A CA that has signed nothing here is in no pointer: each node of the cluster may write that ConfigMap.
    let carried = |gateway: &Gateway| gateway.command(&["pointer", "create", "--pool", "worker"]).matches("data:").count();
    put_bundle(&api, &[&new, &old]);
    gateway.line(|line| {
        line.contains("MCS CA: ignoring CAs that did not sign the certificate") && line.contains(&new.certificate.fingerprint.short())
    });
    assert_eq!(carried(&gateway), 1);
    // The operator's rotation: a new CA, a certificate by it, and then the old one goes.
    put_data(&api, data(&second));
    gateway.line(|line| line.contains("the MCS certificate is now"));
    assert_eq!(shown(&gateway, &new).await.as_ref(), Some(&second.certificate));
    assert_eq!(carried(&gateway), 2);
    let status = gateway.command(&["ca", "status"]);
    assert!(
        status.contains("switched") && status.contains("the cluster's operator rotates the CA"),
        "{status}"
    );
    let listed = gateway.command(&["certificate", "list"]);
    assert!(
        listed.contains("by the cluster's operator") && !listed.contains("certificate renew"),
        "{listed}"
    );
    put_bundle(&api, &[&new]);
    gateway.line(|line| line.contains("CAs of new pointers are now"));
    assert_eq!(carried(&gateway), 1);

    // What is the operator's to rotate no command of the gateway's does.
    for command in [&["ca", "introduce"][..], &["ca", "retire", "--force"], &["certificate", "renew"]] {
        let output = gateway.try_command(command);
        assert!(
            !output.status.success() && output_text(&output).contains("cluster.mcs_certificate"),
            "{}",
            output_text(&output)
        );
    }

    // What nodes would not take is not taken, and what goes takes nothing away.
    let other = ca("other", 10);
    let (of_other, expired) = (signed(&other, 1), signed(&new, 40));
    let mut mixed = data(&second);
    mixed["tls.key"] = data(&of_other)["tls.key"].clone();
    let wrong = [
        (mixed, "tls.key does not hold the private key of Secret"),
        (data(&of_other), "nodes that trust ConfigMap"),
        (data(&expired), "is valid from"),
        (json!({"tls.crt": data(&second)["tls.crt"]}), "has no tls.key"),
        (json!({"tls.crt": "YQ==", "tls.key": "YQ=="}), "tls.crt holds no certificate"),
        (json!({"tls.crt": "YWFh".repeat(1_400_000), "tls.key": "YQ=="}), "has no tls.crt"),
    ];
    let key_text = data(&of_other)["tls.key"].as_str().unwrap()[40..80].to_owned();
    for (data, expect) in wrong {
        put_data(&api, data);
        gateway.line(|line| line.contains(expect) && line.contains("using the last good state"));
    }
    api.remove("secrets", NAMESPACE, TLS);
    gateway.line(|line| line.contains("there is no Secret") && line.contains(TLS));
    assert_eq!(shown(&gateway, &new).await.as_ref(), Some(&second.certificate));
    assert!(!gateway.output().contains(&key_text) && !gateway.output().contains("PRIVATE KEY"));

    // A start without the API, and a word from it afterwards that was not waited for.
    api.disturb(Disturbance::Down);
    gateway.terminate();
    gateway.wait();
    gateway.run();
    assert_eq!(shown(&gateway, &new).await.as_ref(), Some(&second.certificate));
    let third = signed(&new, 0);
    put_data(&api, data(&third));
    api.restart(RestartHistory::Lost);
    gateway.line(|line| line.contains("the MCS certificate is now"));
    assert_eq!(shown(&gateway, &new).await.as_ref(), Some(&third.certificate));
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_to_start_without_the_clusters_mcs_certificate() {
    let api = api();
    let gateway = init(&api);
    let fails = |expect: &str| {
        for command in ["check", "serve"] {
            let output = gateway.try_command(&[command]);
            assert!(
                !output.status.success() && output_text(&output).contains(expect),
                "{command}: {}",
                output_text(&output)
            );
        }
    };
    std::fs::remove_dir(gateway.path("state")).unwrap();
    // Root makes no state for the gateway's user by looking.
    let output = gateway.try_command(&["check"]);
    assert!(
        output_text(&output).contains("does not exist yet; the gateway reads the cluster when it starts"),
        "{}",
        output_text(&output)
    );
    assert!(!gateway.path("state").exists());
    std::fs::create_dir(gateway.path("state")).unwrap();
    fails("there is no Secret");
    let old = ca("old", 100);
    put_data(&api, data(&signed(&old, 1)));
    fails("there is neither ConfigMap");
    // Where the operator does not rotate, and before OpenShift 4.19.
    let metadata = json!({"name": "root-ca", "namespace": "kube-system"});
    api.put(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": old.certificate.pem()}}));
    assert!(gateway.try_command(&["check"]).status.success());
    assert!(gateway.path(FILE).exists());
    // A copy that is of no use any longer is had anew.
    std::fs::write(gateway.path(FILE), "").unwrap();
    assert!(gateway.try_command(&["check"]).status.success());
    // A right that is missing is no reason to begin without.
    std::fs::remove_file(gateway.path(FILE)).unwrap();
    api.remove("roles", NAMESPACE, &format!("of-{TLS}-secrets"));
    fails("forbidden");
}

#[test]
fn cluster_mcs_certificate_conflicts_with_tls_files() {
    let gateway = Gateway::init();
    for key in ["ca", "certificate", "key"] {
        gateway.settings(&format!(
            "[cluster]\napi = \"in-cluster\"\nmcs_certificate = true\n[tls]\n{key} = \"tls/x\"\n"
        ));
        let output = gateway.try_command(&["check"]);
        assert!(
            !output.status.success() && output_text(&output).contains("cluster.mcs_certificate"),
            "{}",
            output_text(&output)
        );
    }
}
