//! Tests for the controller's messages, and for its behaviour when something is missing.

use super::*;

/// Runs `check`; returns what it prints.
fn check(site: &Site) -> String {
    let output = site.controller.output("check");
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_which_rights_are_missing() {
    let site = Site::with(DEFAULT);
    let said = check(&site);
    for what in [
        "certificate signing requests",
        "serving certificate signing requests",
        "nodes for approval",
        "machines for approval",
    ] {
        assert!(
            said.contains(&format!("ok       cluster: its API allows a watch of {what}\n")),
            "{said}"
        );
    }
    let mut less = machine_rules();
    less["rules"] = json!([]);
    site.api.put(less);
    let said = check(&site);
    let line = said.lines().find(|line| line.starts_with("DEGRADED")).unwrap_or_default();
    assert!(line.contains("machines for approval") && line.contains("cannot list"), "{said}");
    // A role that lacks the rights to read a CSR whole and to list egress addresses.
    let mut less = rights().into_iter().find(|object| object["kind"] == "ClusterRole").unwrap();
    let rules = less["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["resources"] != json!(["egressips"]));
    let verbs = rules.iter_mut().find(|rule| rule["resources"] == json!([CSRS])).unwrap()["verbs"].as_array_mut();
    verbs.unwrap().retain(|verb| verb != "get");
    site.api.put(less);
    let said = check(&site);
    let line = said.lines().find(|line| line.starts_with("DEGRADED")).unwrap_or_default();
    assert!(
        line.contains("certificate signing requests") && line.contains("cannot get"),
        "{said}"
    );
    assert!(said.contains("egress IPs"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_unreadable_and_unknown_pools() {
    let site = Site::with("[approval]\nenabled = true\npools = [\"worker\", \"workers\"]");
    let folder = site.controller.path("pools");
    let unknown = format!("DEGRADED approval.pools names workers, but {} has no such pool\n", folder.display());
    let said = check(&site);
    assert!(said.contains(&unknown), "{said}");
    site.controller.pool("infra", "[");
    let output = site.controller.output("check");
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find(|line| line.starts_with("ERROR    ")).unwrap_or_default();
    assert!(!output.status.success() && line.contains("infra/pool.toml"), "{said}");
    // Each cause stands in it once.
    let output = site.controller.output("serve");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{said}");
    assert_eq!(said.matches("infra/pool.toml").count(), 1, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_and_serve_exit_with_2_on_a_store_of_a_newer_release() {
    let site = Site::with(ANY_KEY);
    site.attested(NODE).await;
    let file = site.controller.path("state/gateway.db");
    let alter = "PRAGMA user_version = 2; UPDATE store SET release = '0.2.0'";
    rusqlite::Connection::open(&file).unwrap().execute_batch(alter).unwrap();
    let before = fs::read(&file).unwrap();
    for command in ["check", "serve"] {
        let output = site.controller.output(command);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(
            said.contains("gateway.db has store schema 2") && said.contains("reads 1: run release 0.2.0 or a newer one"),
            "{command}: {said}"
        );
    }
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_is_disabled_by_default() {
    let mut site = Site::with("");
    site.controller.run();
    site.attested(NODE).await;
    site.asks("csr-1", NODE).await;
    let asked = site.api.asked();
    assert!(
        asked
            .iter()
            .all(|asked| !asked.user.ends_with(":attest-controller") || !asked.resource.starts_with(CSRS)),
        "{asked:?}"
    );
    assert!(!site.is_approved("csr-1") && site.events("csr-1").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn approves_nothing_without_access_to_machine_objects() {
    let site = Site::start();
    site.attested(NODE).await;
    let role = machine_rules();
    let mut less = role.clone();
    less["rules"] = json!([]);
    site.api.put(less);
    site.api.restart(RestartHistory::Lost);
    site.controller
        .line(|line| line.contains("machines for approval") && line.contains("cannot"));
    site.asks("csr-1", NODE).await;
    shown(&site.api, "it is said", || !site.events("csr-1").is_empty()).await;
    assert!(site.wait_left("csr-1", "csr-watch-failed").await.contains("machines"));
    site.api.put(role);
    site.wait_approved("csr-1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_health_and_metrics_and_nothing_else() {
    let site = Site::by_default();
    site.attested(NODE).await;
    site.asks("csr-1", NODE).await;
    site.wait_left("csr-1", "csr-key-not-attested").await;
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/", 404),
        ("/v1/attest", 404),
    ] {
        assert_eq!(site.controller.get(path).await.0, status, "{path}");
    }
    let (_, metrics) = site.controller.get("/metrics").await;
    for line in [
        "attest_controller_leader 1\n",
        "attest_controller_cluster_watch_broken{what=\"nodes for approval\"} 0\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_until_a_gateway_creates_the_store() {
    let mut site = Site::with(DEFAULT);
    drop(std::mem::replace(
        &mut site.store,
        Embedded::open(&site.controller.path("other.db")).unwrap(),
    ));
    for file in fs::read_dir(site.controller.path("state")).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    site.controller.run();
    site.controller.line(|line| line.contains("no gateway has created it yet"));
    assert_eq!(
        (site.controller.get("/healthz").await.0, site.controller.get("/readyz").await.0),
        (200, 503)
    );
    assert!(!site.controller.path("state/gateway.db").exists());
    site.store = Embedded::open(&site.controller.path("state/gateway.db")).unwrap();
    let key = KeyPair::generate().unwrap();
    site.attested_with(NODE, &key).await;
    site.asks_for("own", NODE, &key);
    site.wait_approved("own").await;
    assert!(site.controller.stop().success());
}
