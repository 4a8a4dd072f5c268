//! Bootstrap tokens of the cluster as provisioning tokens, which the real program keeps current.

use std::time::Instant;

use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use serde_json::{Value, json};

use crate::support::{Gateway, LIMIT, bearer};

const NAME: &str = "kube-system/bootstrap-token-4hq7wz";
const TOKEN: &str = "4hq7wz.k2v9x0t8r1m5n3c6";
const END: &str = "2100-01-01T00:00:00Z";

/// Starts an API whose Secrets of one namespace the gateway may read, and nothing else.
fn api() -> KubernetesApi {
    let api = KubernetesApi::start();
    let (group, metadata) = (
        "rbac.authorization.k8s.io",
        json!({"name": "attest-gateway-bootstrap-tokens", "namespace": "kube-system"}),
    );
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]}]);
    api.put(json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules}));
    let role = json!({"apiGroup": group, "kind": "Role", "name": metadata["name"]});
    let subjects = json!([{"kind": "ServiceAccount", "name": "gateway", "namespace": "attest-gateway"}]);
    let version = format!("{group}/v1");
    api.put(json!({"apiVersion": version, "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects}));
    api
}

fn init(api: &KubernetesApi) -> Gateway {
    let gateway = Gateway::init();
    gateway.edit_pool("worker", "\ntoken = \"refuse\"", "\ntoken = \"full\"");
    std::fs::write(gateway.path("kubeconfig"), api.kubeconfig(&api.token("attest-gateway", "gateway"))).unwrap();
    gateway.settings("[cluster]\napi = \"kubeconfig\"\nconfigs = false\nbootstrap_tokens = [\"worker\", \"infra\"]\n");
    gateway
}

fn secret(text: &str, end: &str) -> Value {
    let (id, half) = text.split_once('.').unwrap();
    let data = [
        ("token-id", id),
        ("token-secret", half),
        ("usage-bootstrap-authentication", "true"),
        ("expiration", end),
    ];
    let data: serde_json::Map<String, Value> = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(data_encoding::BASE64.encode(value.as_bytes()))))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": data,
    })
}

fn remove(api: &KubernetesApi) {
    api.remove("secrets", "kube-system", "bootstrap-token-4hq7wz");
}

/// Waits until a line of the list has the token with these parts, or until the token is gone.
async fn list(gateway: &Gateway, name: &str, parts: Option<&[&str]>) {
    let begun = Instant::now();
    loop {
        let list = gateway.command(&["token", "list"]);
        let line = list.lines().find(|line| line.contains(name));
        let is_so = match (line, parts) {
            (Some(line), Some(parts)) => parts.iter().all(|part| line.contains(part)),
            (None, None) => true,
            _ => false,
        };
        if is_so {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{parts:?}: {list}");
    }
}

async fn fetched(gateway: &Gateway, pool: &str, token: &str) -> String {
    let answer = gateway.config(&format!("/config/{pool}"), &[&bearer(token)]).await;
    if answer.status == 200 { "served".to_owned() } else { answer.code() }
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_tokens_follow_their_secrets_in_the_cluster() {
    let api = api();
    let mut gateway = init(&api);
    gateway.run();
    assert_eq!(fetched(&gateway, "worker", TOKEN).await, "token-invalid");
    api.put(secret(TOKEN, END));
    list(&gateway, NAME, Some(&["infra,worker", "current", END])).await;
    assert_eq!(fetched(&gateway, "worker", TOKEN).await, "served");
    // Prolonged, and for fewer pools.
    let mut changed = secret(TOKEN, "2101-01-01T00:00:00Z");
    changed["metadata"]["annotations"] = json!({"attest-gateway.internal/pools": "infra"});
    api.put(changed);
    list(&gateway, NAME, Some(&[" infra ", "2101-01-01T00:00:00Z"])).await;
    assert_eq!(fetched(&gateway, "worker", TOKEN).await, "token-wrong-pool");
    // Expired.
    api.put(secret(TOKEN, "2026-01-01T00:00:00Z"));
    list(&gateway, NAME, Some(&["expired"])).await;
    assert_eq!(fetched(&gateway, "worker", TOKEN).await, "token-expired");
    api.put(secret(TOKEN, END));
    list(&gateway, NAME, Some(&["current"])).await;
    // Another secret half is another token.
    api.put(secret("4hq7wz.another0secret00", END));
    list(&gateway, NAME, Some(&["current"])).await;
    gateway.line(|line| line.contains("its bootstrap token was removed from the cluster"));
    assert_eq!(fetched(&gateway, "worker", TOKEN).await, "token-invalid");
    remove(&api);
    list(&gateway, NAME, None).await;
    assert_eq!(fetched(&gateway, "worker", "4hq7wz.another0secret00").await, "token-invalid");

    // Each of it is recorded, as the gateway's own act, and the text nowhere.
    let acts = gateway.wait_for_acts(7, "token.follow");
    for act in &acts {
        assert!(
            act["admin"]["by"]["gateway"].is_string() && act["admin"]["things"][0]["id"] == NAME,
            "{act}"
        );
    }
    let log = gateway.record_lines().concat() + &gateway.output();
    assert!(!log.contains("k2v9x0t8") && !log.contains("another0secret"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_invalid_bootstrap_token_secrets() {
    let api = api();
    let mut gateway = init(&api);
    gateway.run();
    let but = |change: &dyn Fn(&mut Value)| {
        let mut changed = secret(TOKEN, END);
        change(&mut changed);
        api.put(changed);
    };
    for (change, said) in [
        (
            &(|secret: &mut Value| secret["data"]["usage-bootstrap-authentication"] = json!("ZmFsc2U=")) as &dyn Fn(&mut Value),
            "not for authentication",
        ),
        (
            &|secret: &mut Value| drop(secret["data"].as_object_mut().unwrap().remove("expiration")),
            "has no expiration",
        ),
        (
            &|secret: &mut Value| secret["metadata"]["annotations"] = json!({"attest-gateway.internal/pools": "master"}),
            "names other pools",
        ),
        (&|secret: &mut Value| secret["data"]["token-secret"] = json!("!"), "not Base64"),
    ] {
        but(change);
        gateway.line(|line| line.contains("bootstrap-token-4hq7wz") && line.contains(said));
        assert_eq!(fetched(&gateway, "worker", TOKEN).await, "token-invalid", "{said}");
    }
    // Of another namespace, and of another type.
    remove(&api);
    but(&|secret: &mut Value| secret["metadata"]["namespace"] = json!("default"));
    but(&|secret: &mut Value| (secret["metadata"]["name"], secret["type"]) = (json!("other"), json!("Opaque")));
    // The first one that is good shows that the others were passed over.
    api.put(secret("abc123.k2v9x0t8r1m5n3c7", END));
    list(&gateway, "kube-system/bootstrap-token-abc123", Some(&["current"])).await;
    assert_eq!(gateway.command(&["token", "list"]).lines().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_tokens_and_administrator_tokens_do_not_collide() {
    let api = api();
    let mut gateway = init(&api);
    let own = gateway.token(&["--pool", "worker", "--name", "own"]);
    std::fs::write(gateway.path("secret.json"), secret(TOKEN, END).to_string()).unwrap();
    let file = gateway.path("secret.json").display().to_string();
    gateway.command(&["token", "create", "--pool", "worker", "--name", "by-hand", "--from-file", &file]);
    api.put(secret(TOKEN, END));
    gateway.run();
    gateway.line(|line| line.contains("by-hand") && line.contains("was imported by hand"));
    remove(&api);
    api.put(secret("abc123.k2v9x0t8r1m5n3c7", END));
    list(&gateway, "kube-system/bootstrap-token-abc123", Some(&["current"])).await;
    for (name, token) in [("own", own.as_str()), ("by-hand", TOKEN)] {
        list(&gateway, name, Some(&["current"])).await;
        assert_eq!(fetched(&gateway, "worker", token).await, "served", "{name}");
    }
    for arguments in [
        ["token", "create", "--pool", "worker", "--name", NAME].as_slice(),
        &["token", "rotate", "kube-system/bootstrap-token-abc123"],
        &["token", "revoke", "kube-system/bootstrap-token-abc123"],
    ] {
        let output = gateway.try_command(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("the cluster's"), "{arguments:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_tokens_catch_up_after_an_api_outage() {
    let api = api();
    let mut gateway = init(&api);
    api.put(secret(TOKEN, END));
    gateway.run();
    list(&gateway, NAME, Some(&["current"])).await;
    for history in [RestartHistory::Kept, RestartHistory::Lost] {
        api.disturb(Disturbance::Down);
        gateway.terminate();
        gateway.wait();
        gateway.run();
        gateway.line(|line| line.contains("cluster: watch of bootstrap tokens cannot begin: "));
        assert_eq!(fetched(&gateway, "worker", TOKEN).await, "served");
        remove(&api);
        api.restart(history);
        list(&gateway, NAME, None).await;
        assert_eq!(fetched(&gateway, "worker", TOKEN).await, "token-invalid");
        api.put(secret(TOKEN, END));
        list(&gateway, NAME, Some(&["current"])).await;
    }
}
