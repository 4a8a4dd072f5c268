//! Behaviour that nodes know from a Machine Config Server: status, headers and spec version of each answer.
//! `docs/reference/protocol.md` has the reasons for differences.

use std::fs;

use crate::support::{Answer, Gateway, POOL, accept, bearer};
use attest_ignition::data_url;
use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Creates a gateway whose worker pool is one of MachineConfigs.
fn gateway_of_machine_configs(manifests: &str) -> Gateway {
    let gateway = Gateway::init();
    gateway.machine_configs(POOL, &[("all.yaml", manifests)]);
    gateway
}

const MANIFESTS: &str = r#"
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 00-worker
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  neededBeforeNodeApproved: true
  kernelArguments: [early=1]
  config:
    ignition: {version: 3.3.0}
    kernelArguments: {shouldExist: [from=ignition]}
    storage:
      files:
      - {path: /etc/early, mode: 0644, contents: {source: "data:,early"}}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  config:
    ignition: {version: 2.2.0}
    storage:
      files:
      - {filesystem: root, path: /etc/late, mode: 0600, contents: {source: "data:,late"}}
"#;

async fn ask(gateway: &Gateway, method: Method, path: &str, accept: Option<&str>) -> Answer {
    let mut request = gateway.client.request(method, gateway.url(path));
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    Answer::send(request).await
}

fn version(answer: &Answer) -> String {
    let config: Value = serde_json::from_slice(&answer.body).unwrap();
    config["ignition"]["version"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_the_spec_version_of_the_accept_header() {
    let mut gateway = gateway_of_machine_configs(MANIFESTS);
    gateway.run();
    // Asked for, and served: a status and a version.
    for (asked, status, served) in [
        (None, 200, "2.2.0"),
        (Some("*/*".to_owned()), 200, "2.2.0"),
        (Some("application/json".to_owned()), 200, "2.2.0"),
        (Some(accept("2.1.0")), 400, ""),
        (Some(accept("2.2.0")), 200, "2.2.0"),
        (Some(accept("2.3.0")), 200, "2.2.0"),
        (Some(accept("2.4.0")), 200, "2.2.0"),
        // The Machine Config Server cannot, and answers 500, which Ignition would retry for ever.
        (Some(accept("3.0.0")), 200, "3.0.0"),
        (Some(accept("3.1.0")), 200, "3.1.0"),
        (Some(accept("3.2.0")), 200, "3.2.0"),
        (Some(accept("3.3.0")), 200, "3.3.0"),
        (Some(accept("3.4.0")), 200, "3.4.0"),
        (Some(accept("3.4.0-experimental")), 200, "3.4.0"),
        (Some(accept("3.5.0")), 200, "3.5.0"),
        // The Machine Config Server ends at 3.5.0.
        (Some(accept("3.6.0")), 200, "3.6.0"),
        (Some(accept("3.9.0")), 200, "3.6.0"),
        (Some(accept("4.0.0")), 400, ""),
    ] {
        let answer = ask(&gateway, Method::GET, "/config/worker", asked.as_deref()).await;
        assert_eq!(answer.status.as_u16(), status, "{asked:?}");
        if status == 200 {
            assert_eq!(version(&answer), served, "{asked:?}");
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
            assert_eq!(answer.header("transfer-encoding"), None);
        } else {
            assert_eq!(answer.code(), "spec-version-unknown");
        }
    }
    let records = gateway.records();
    assert_eq!(records[0]["spec_version"], "2.2.0");
    assert_eq!(records.last().unwrap()["code"], "spec-version-unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_spec_versions_that_cannot_express_the_config() {
    let mut gateway = Gateway::init();
    let luks = r#"{"ignition":{"version":"3.4.0"},"storage":{"luks":[{"name":"data","device":"/dev/sdb","discard":true}]}}"#;
    fs::write(gateway.path("pools/worker/full/config.ign"), luks).unwrap();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let token = gateway.token(&[]);
    let ask = async |version: &str| {
        let request = gateway.client.get(gateway.url("/config/worker")).header("accept", accept(version));
        Answer::send(request.header("authorization", bearer(&token))).await
    };
    assert_eq!(version(&ask("3.4.0").await), "3.4.0");
    let answer = ask("3.3.0").await;
    answer.refused(406, "spec-version-too-old");
    assert!(
        !String::from_utf8(answer.body).unwrap().contains("luks"),
        "what is in the config is told to nobody"
    );
    let reason = gateway.records().last().unwrap()["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("storage.luks.0") && reason.contains("3.3.0"), "{reason}");
    let report = gateway.command(&["check"]);
    assert!(report.contains("spec 3.3.0 or older cannot get the full config"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_and_paths_answer_like_the_mcs() {
    let gateway = Gateway::start();
    for (method, path, status) in [
        (Method::GET, "/config/worker", 200),
        (Method::HEAD, "/config/worker", 200),
        (Method::GET, "/config/worker/", 200),
        (Method::GET, "/config/worker?role=other", 200),
        (Method::POST, "/config/worker", 405),
        (Method::PUT, "/config/worker", 405),
        (Method::DELETE, "/config/worker", 405),
        (Method::OPTIONS, "/config/worker", 405),
        // Documented by the Machine Config Server as 404; it answers 500, which Ignition would retry for ever.
        (Method::GET, "/config/nowhere", 404),
        // The Machine Config Server would take the last element for the pool.
        (Method::GET, "/config/other/worker", 404),
        (Method::GET, "/config/", 404),
        (Method::GET, "/", 404),
        (Method::GET, "/healthz", 200),
        (Method::HEAD, "/healthz", 200),
        (Method::POST, "/healthz", 405),
        (Method::GET, "/metrics", 404),
    ] {
        let answer = ask(&gateway, method.clone(), path, None).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}");
    }
    assert!(ask(&gateway, Method::GET, "/healthz", None).await.body.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn head_matches_get_and_etags_are_honoured() {
    let gateway = Gateway::start();
    let wanted = accept("3.4.0");
    let get = ask(&gateway, Method::GET, "/config/worker", Some(&wanted)).await;
    let head = ask(&gateway, Method::HEAD, "/config/worker", Some(&wanted)).await;
    assert!(head.body.is_empty());
    for header in ["content-length", "content-type", "etag", "cache-control", "vary"] {
        assert_eq!(head.header(header), get.header(header), "{header}");
        assert!(get.header(header).is_some(), "{header}");
    }
    let etag = get.header("etag").unwrap();
    let ask = async |known: &str| {
        let request = gateway.client.get(gateway.url("/config/worker"));
        Answer::send(request.header("accept", &wanted).header("if-none-match", known)).await
    };
    for known in [etag.to_owned(), format!("\"x\", {etag}"), format!("W/{etag}")] {
        let answer = ask(&known).await;
        assert_eq!(
            (answer.status.as_u16(), answer.body.len(), answer.header("etag")),
            (304, 0, Some(etag)),
            "{known}"
        );
    }
    for unknown in ["\"x\"", "*", "", etag.trim_matches('"')] {
        ask(unknown).await.is_config(&get.body);
    }
    // Another version is another representation.
    let other = Answer::send(gateway.client.get(gateway.url("/config/worker")).header("accept", accept("3.3.0"))).await;
    assert_ne!(other.header("etag"), Some(etag));
    assert_eq!(gateway.records()[0]["config_sha256"], etag.trim_matches('"'));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_on_plain_http() {
    let gateway = Gateway::start();
    let mut stream = TcpStream::connect(gateway.address()).await.unwrap();
    stream
        .write_all(b"GET /config/worker HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP/1.1"), "{answer:?}");
}

/// Returns a file's contents in a served config, as text.
fn file(config: &Value, path: &str) -> Option<String> {
    let files = config["storage"]["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == path)?;
    let source = file["contents"]["source"].as_str().unwrap();
    Some(String::from_utf8(data_url::decode(source).unwrap()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn adds_the_mcs_files_in_its_order() {
    let gateway = gateway_of_machine_configs(MANIFESTS);
    fs::write(gateway.path("pools/worker/kubeconfig"), "apiVersion: v1\nkind: Config\n").unwrap();
    gateway.edit_pool(POOL, "# kubeconfig = ", "kubeconfig = ");
    let served = |set: &str, version: &str| -> Value {
        serde_json::from_str(&gateway.command(&["config", "render", "--pool", POOL, "--set", set, "--spec", version])).unwrap()
    };
    let paths = |config: &Value| -> Vec<String> {
        let files = config["storage"]["files"].as_array().unwrap();
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    };
    let full = served("full", "3.4.0");
    assert_eq!(
        paths(&full),
        [
            "/etc/early",
            "/etc/late",
            "/etc/machine-config-daemon/node-annotations.json",
            "/etc/kubernetes/kubeconfig",
            "/etc/mcs-machine-config-content.json",
            "/etc/ignition-machine-config-encapsulated.json",
        ]
    );
    let pre_approved = served("pre-approved", "3.4.0");
    assert_eq!(
        paths(&pre_approved),
        [
            "/etc/early",
            "/etc/kubernetes/kubeconfig",
            "/etc/mcs-machine-config-content.json",
            "/etc/ignition-machine-config-encapsulated.json",
        ]
    );
    let json = |config: &Value, path: &str| -> Value { serde_json::from_str(&file(config, path).unwrap()).unwrap() };
    let annotations = json(&full, "/etc/machine-config-daemon/node-annotations.json");
    let content = json(&full, "/etc/mcs-machine-config-content.json");
    let name = content["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("rendered-worker-"), "{name}");
    for key in ["currentConfig", "desiredConfig", "firstPivotConfig"] {
        assert_eq!(annotations[format!("machineconfiguration.openshift.io/{key}")], name);
    }
    assert_eq!(annotations["machineconfiguration.openshift.io/state"], "Done");
    assert_eq!(content["spec"]["config"]["storage"]["files"].as_array().unwrap().len(), 2);
    // Before 3.3 Ignition knows no kernel arguments: the first boot applies them from the encapsulated MachineConfig, each once, however
    // often an old version was asked for.
    const ENCAPSULATED: &str = "/etc/ignition-machine-config-encapsulated.json";
    for (version, arguments) in [
        ("3.4.0", vec!["early=1"]),
        ("3.2.0", vec!["early=1", "from=ignition"]),
        ("3.2.0", vec!["early=1", "from=ignition"]),
        ("2.2.0", vec!["early=1", "from=ignition"]),
        ("3.3.0", vec!["early=1"]),
    ] {
        let config = served("full", version);
        let encapsulated = json(&config, ENCAPSULATED);
        assert_eq!(encapsulated["spec"]["kernelArguments"], serde_json::json!(arguments), "{version}");
        assert_eq!(
            encapsulated["spec"]["config"],
            serde_json::json!({"ignition": {"version": version}})
        );
        assert_eq!(config.get("kernelArguments").is_some(), version >= "3.3.0", "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_22_pre_approved_config_reveals_no_secrets() {
    let mut gateway = gateway_of_machine_configs(&MANIFESTS.replace("data:,late", "data:,hunter2"));
    gateway.run();
    for version in ["2.2.0", "3.1.0", "3.4.0", "3.6.0"] {
        let answer = ask(&gateway, Method::GET, "/config/worker", Some(&accept(version))).await;
        let text = String::from_utf8(answer.body).unwrap();
        assert!(text.contains("/etc/early"), "{text}");
        for secret in ["hunter2", "/etc/late", "99-worker"] {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
    gateway.kill();
    // A secret in it keeps the pool from being served, until the administrator says by its name that it is meant to be there.
    let words = ["RSA", "PRIVATE", "KEY"].join(" ");
    let key = data_url::encode(format!("-----BEGIN {words}-----\nMIIE\n-----END {words}-----\n").as_bytes());
    gateway.machine_configs(POOL, &[("all.yaml", &MANIFESTS.replace("data:,early", &key))]);
    let refused = gateway.try_command(&["check", "--strict"]);
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stdout).unwrap();
    assert!(
        said.contains("DEGRADED pool worker: ") && said.contains("\"private-key /etc/early\"") && !said.contains("MIIE"),
        "{said}"
    );
    gateway.edit_pool(
        POOL,
        "acknowledged = []",
        "acknowledged = [\"private-key /etc/early\", \"token /gone\"]",
    );
    let report = gateway.command(&["check"]);
    assert!(report.contains("\"token /gone\", which the config does not have"), "{report}");
}
