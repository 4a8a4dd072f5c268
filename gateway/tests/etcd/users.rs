//! Changes of an etcd outside the store: of its users, and of its availability when a gateway starts.

use std::fs;

use attest_store::etcd::Etcd;
use cloud_fixtures::port::ReservedPort;

use super::*;
use crate::metrics::scraped;
use crate::support::Gateway;

/// Starts an etcd with JSON Web Tokens, with `root`, and a user `gateway` that may access the keys below the prefix.
fn with_users(prefix: &str) -> Site {
    let site = Site {
        etcd: etcd::EtcdServer::start_with_jwt(),
        states: tempfile::tempdir().unwrap(),
    };
    for arguments in [
        "user add root:secret".to_owned(),
        "user grant-role root root".to_owned(),
        "role add gateway".to_owned(),
        format!("role grant-permission gateway readwrite --prefix {prefix}/"),
        "user add gateway:password".to_owned(),
        "user grant-role gateway gateway".to_owned(),
        "auth enable".to_owned(),
    ] {
        site.etcd.ctl(&arguments.split(' ').collect::<Vec<_>>());
    }
    site
}

/// Runs a command of etcdctl as root.
fn change(site: &Site, arguments: &str) {
    let arguments = format!("--user root:secret {arguments}");
    site.etcd.ctl(&arguments.split(' ').collect::<Vec<_>>());
}

fn open(site: &Site) -> (Etcd, PathBuf) {
    let file = site.states.path().join("password");
    fs::write(&file, "password\n").unwrap();
    let settings = EtcdSettings {
        user: Some(("gateway".to_owned(), file.clone())),
        ..site.settings()
    };
    (site.open_by("one", &settings).unwrap(), file)
}

#[tokio::test(flavor = "multi_thread")]
async fn reauthenticates_after_changes_of_etcd_users() {
    let site = with_users("a/gateway");
    let (store, _) = open(&site);
    let leads = store.acquire_lease("rotate", Duration::from_secs(60)).await.unwrap().unwrap();
    put(&store, "a", "0").await.unwrap();
    for (number, arguments) in [
        "user add other:password",
        "role add other",
        "user grant-role other other",
        "user revoke-role other other",
        "user delete other",
        "role delete other",
    ]
    .iter()
    .enumerate()
    {
        change(&site, arguments);
        // A commit, a read, a count, and many at once: none of them was done before the gateway has authenticated again.
        let value = number.to_string();
        put(&store, "a", &value)
            .await
            .unwrap_or_else(|error| panic!("{arguments}: {error}"));
        assert_eq!(get(&store, "a").await.unwrap(), Some(value));
        change(&site, "role add again");
        assert_eq!(store.count(range("a", "b")).await.unwrap(), 1);
        change(&site, "role delete again");
        let all = (0..20).map(|_| get(&store, "a"));
        for answer in futures_util::future::join_all(all).await {
            answer.unwrap_or_else(|error| panic!("{arguments}: {error}"));
        }
    }
    // Each counted once: nothing is done twice for being asked twice.
    let before = count_up(&store, "count").await.unwrap();
    change(&site, "user add last:password");
    assert_eq!(count_up(&store, "count").await.unwrap(), before + 1);
    assert!(!leads.is_lost());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_own_password_is_read_again_when_etcd_refuses_it() {
    let site = with_users("a/gateway");
    let (store, file) = open(&site);
    put(&store, "a", "1").await.unwrap();
    change(&site, "user delete gateway");
    change(&site, "user add gateway:another");
    change(&site, "user grant-role gateway gateway");
    // Until the file has it, nothing is done, and the error says where to look and no password.
    let refused = get(&store, "a").await.unwrap_err().to_string();
    assert!(
        refused.contains("authentication failed") && refused.contains("store.password_file"),
        "{refused}"
    );
    for _ in 0..3 {
        let refused = put(&store, "a", "2").await.unwrap_err().to_string();
        assert!(
            refused.contains("authentication failed") && !refused.contains("another"),
            "{refused}"
        );
    }
    fs::write(&file, "another\n").unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
    put(&store, "a", "2").await.unwrap();
    // A user who may no longer do it is refused, and not asked for a password.
    change(&site, "user revoke-role gateway gateway");
    let refused = get(&store, "a").await.unwrap_err().to_string();
    assert!(refused.contains("permission denied"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_stays_ready_while_etcds_users_change() {
    let site = with_users("gateway");
    let mut gateway = Gateway::init();
    gateway.settings(&format!(
        "[store]\nengine = \"etcd\"\nendpoints = [{:?}]\nprefix = \"gateway\"\nkey_file = \"store.key\"\nuser = \"gateway\"\npassword_file = \"etcd.password\"",
        site.etcd.endpoint()
    ));
    fs::write(gateway.path("etcd.password"), "password\n").unwrap();
    gateway.command(&["store", "create-key"]);
    gateway.run();
    let ready = async |gateway: &Gateway| {
        let answer = gateway.client_of_new_connections().get(gateway.url("/readyz")).send();
        answer.await.unwrap().status()
    };
    assert_eq!(ready(&gateway).await, 200);
    change(&site, "user add other:password");
    assert_eq!(ready(&gateway).await, 200);
    // A command is another client of the same user.
    gateway.token(&["--name", "rack7", "--uses", "3"]);
    change(&site, "user delete other");
    assert_eq!(ready(&gateway).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_starts_before_its_etcd_waits_and_is_not_ready() {
    let mut site = Site::start();
    let mut gateway = Gateway::init();
    let metrics = ReservedPort::reserve();
    gateway.settings(&format!(
        "[store]\nengine = \"etcd\"\nendpoints = [{:?}]\nkey_file = \"store.key\"\ntimeout_seconds = 2\n[metrics]\nlisten = \"{}\"\n",
        site.etcd.endpoint(),
        metrics.address()
    ));
    gateway.command(&["store", "create-key"]);
    site.etcd.kill();
    gateway.begin();
    gateway.line(|line| line.contains("waiting for the store"));
    let get = async |path: &str| {
        let answer = gateway.client_of_new_connections().get(gateway.url(path)).send();
        answer.await.unwrap().status().as_u16()
    };
    assert_eq!((get("/healthz").await, get("/readyz").await), (200, 503));
    // Meanwhile Prometheus sees that the store fails.
    let scraped = async || scraped(metrics.address()).await;
    let found = scraped().await;
    assert!(found["attest_gateway_store_errors_total"] >= 1.0, "{found:#?}");
    let unready = "attest_gateway_http_requests_total{route=\"/readyz\",method=\"GET\",status=\"503\"}";
    assert_eq!(found[unready], 1.0);
    site.etcd.restart();
    gateway.line(|line| line.contains("listening on "));
    assert_eq!(get("/readyz").await, 200);
    let found = scraped().await;
    assert_eq!(
        (found[unready], found["attest_gateway_limit_max{limit=\"requests\"}"]),
        (1.0, 256.0)
    );
}
