//! Gateways whose store is on etcd.

use std::path::PathBuf;
use std::time::Instant;

use attest_gateway::credentials::seal::SealKeyRing;

use crate::support::{Gateway, POOL, bearer, now, tpm};

use super::*;

/// Returns the key that all gateways of the site share.
fn key_file(site: &Site) -> PathBuf {
    site.states.path().join("store.key")
}

/// Creates a gateway that accepts tokens.
pub(super) fn gateway(site: &Site, more: &str) -> Gateway {
    let mut gateway = patient(site, 20, more);
    gateway.run();
    gateway
}

/// Like [`gateway`], but without etcd it answers after a short timeout.
fn impatient(site: &Site) -> Gateway {
    let mut gateway = patient(site, 4, "");
    gateway.run();
    gateway
}

fn patient(site: &Site, seconds: u64, more: &str) -> Gateway {
    let gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.settings(&format!(
        "[store]\nengine = \"etcd\"\nendpoints = [\"{}\"]\nprefix = \"b\"\ntimeout_seconds = {seconds}\nkey_file = {:?}\n{more}",
        site.etcd.endpoint(),
        key_file(site)
    ));
    if !key_file(site).exists() {
        gateway.command(&["store", "create-key"]);
    }
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn mixed_releases_serve_until_the_schema_is_raised() {
    let site = Site::start();
    let (old, new) = (patient(&site, 20, ""), patient(&site, 20, ""));
    crate::upgrade::mixed_releases_serve_until_the_schema_is_raised(old, new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_all_gateways_refuse_spent_and_revoked_tokens() {
    let site = Site::start();
    let (one, two) = (gateway(&site, ""), gateway(&site, ""));
    let full = one.rendered(POOL, "full");
    let once = one.token(&["--name", "once", "--uses", "1"]);
    two.config("/config/worker", &[&bearer(&once)]).await.is_config(&full);
    one.config("/config/worker", &[&bearer(&once)]).await.refused(403, "token-spent");
    two.config("/config/worker", &[&bearer(&once)]).await.refused(403, "token-spent");
    let revoked = two.token(&["--name", "rack7", "--uses", "9"]);
    one.config("/config/worker", &[&bearer(&revoked)]).await.is_config(&full);
    one.command(&["token", "revoke", "rack7"]);
    for gateway in [&one, &two] {
        assert_eq!(gateway.config("/config/worker", &[&bearer(&revoked)]).await.status, 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn challenges_and_tickets_work_at_every_gateway_once() {
    let site = Site::start();
    let (one, two) = (gateway(&site, ""), gateway(&site, ""));
    let full = one.rendered(POOL, "full");
    let case = tpm();
    one.endorse(&case, &[]);
    let below = EtcdSettings {
        prefix: "b".to_owned(),
        ..site.settings()
    };
    let store = Arc::new(site.open_by("test", &below).unwrap());
    let seal = SealKeyRing::open_shared(store, &key_file(&site), now()).await.unwrap();
    let challenge = one.challenge(&case, None);
    let answer = two.answer_sealed(case, &challenge, &seal);
    let ticket = two.post("/v1/attest/evidence", &answer).await.ticket();
    one.post("/v1/attest/evidence", &answer).await.refused(403, "challenge-spent");
    for gateway in [&two, &one, &two, &one] {
        gateway.config("/config/worker", &[&bearer(&ticket)]).await.is_config(&full);
    }
    for gateway in [&one, &two] {
        gateway
            .config("/config/worker", &[&bearer(&ticket)])
            .await
            .refused(403, "ticket-spent");
        // What etcd runs again is no error.
        assert_eq!(gateway.how_often(|line| line.contains("cannot decide a request")), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_records_store_changes() {
    let site = Site::start();
    let below = EtcdSettings {
        prefix: "b".to_owned(),
        ..site.settings()
    };
    let another = site.open_by("another", &below).unwrap();
    let turn = another
        .acquire_lease("record what was changed", Duration::from_secs(30))
        .await
        .unwrap()
        .unwrap();
    let gateways = [gateway(&site, ""), gateway(&site, "")];
    gateways[0].command(&["ek", "add", &"a".repeat(64), "--name", "worker-1"]);
    let recorded = || gateways.each_ref().map(|gateway| gateway.acts("ek.add").len());
    // A lease that nobody keeps measures the time: either looks each second.
    let id = site.etcd.ctl(&["lease", "grant", "5"]);
    site.etcd.ctl(&["put", "clock", "runs", "--lease", id.split(' ').nth(1).unwrap()]);
    while site.etcd.ctl(&["get", "clock"]).contains("runs") {
        assert_eq!(recorded(), [0, 0], "it is another one's turn");
    }
    drop(turn);
    let begun = std::time::Instant::now();
    while recorded().iter().sum::<usize>() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    assert_eq!(recorded().iter().sum::<usize>(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_503_while_etcd_is_down() {
    let mut site = Site::start();
    let gateway = impatient(&site);
    let full = gateway.rendered(POOL, "full");
    let token = gateway.token(&["--name", "rack7", "--uses", "9"]);
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    site.etcd.kill();
    let ready = async || gateway.client.get(gateway.url("/readyz")).send().await.unwrap().status();
    let token = bearer(&token);
    let authorization = [token.as_str()];
    let (config, not_ready) = tokio::join!(gateway.config("/config/worker", &authorization), ready());
    config.check_retry();
    assert_eq!(not_ready, 503);
    let said = gateway.line(|line| line.contains("etcdctl endpoint status"));
    assert!(said.contains(&site.etcd.endpoint()), "{said}");
    let refused = gateway.try_command(&["token", "list"]);
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains(&site.etcd.endpoint()) && said.contains("store.endpoints"), "{said}");
    site.etcd.restart();
    let begun = Instant::now();
    while ready().await != 200 {
        assert!(begun.elapsed() < LIMIT);
    }
    gateway.config("/config/worker", &authorization).await.is_config(&full);
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_after_a_kill_and_refuses_copied_state() {
    let site = Site::start();
    let (mut one, copy) = (gateway(&site, ""), gateway(&site, ""));
    let token = one.token(&["--name", "rack7", "--uses", "9"]);
    one.kill();
    one.run();
    let full = one.rendered(POOL, "full");
    one.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    let mut copy = copy;
    copy.terminate();
    copy.wait();
    std::fs::copy(one.path("state/replica.id"), copy.path("state/replica.id")).unwrap();
    let refused = copy.try_command(&["serve"]);
    assert!(!refused.status.success());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("state folder was copied here"), "{said}");
    one.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_the_health_of_etcd() {
    let mut site = Site::start();
    let gateway = impatient(&site);
    let check = gateway.command(&["check"]);
    assert!(check.contains("etcd 3.") && check.contains("MiB of its quota"), "{check}");
    assert!(check.contains(&format!("etcd, {} below b opens", site.etcd.endpoint())), "{check}");
    site.etcd.kill();
    // A gateway that is started waits for it.
    let said = gateway.command(&["check"]);
    let line = said.lines().find(|line| line.starts_with("DEGRADED")).unwrap_or_default();
    assert!(line.contains("etcdctl endpoint status"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_uses_a_restored_etcd_store_only_after_accept() {
    let mut site = Site::start();
    let (mut one, mut two) = (gateway(&site, ""), gateway(&site, ""));
    site.etcd.save("before");
    let token = one.token(&["--name", "rack7", "--uses", "9"]);
    // Both know how far it has come.
    for gateway in [&one, &two] {
        assert_eq!(gateway.config("/config/worker", &[&bearer(&token)]).await.status, 200);
    }
    site.etcd.restore("before");
    for gateway in [&mut one, &mut two] {
        gateway.config("/config/worker", &[&bearer(&token)]).await.check_retry();
        gateway.terminate();
        gateway.wait();
    }
    let refused = one.try_command(&["serve"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("store accept") && said.contains("was seen before"), "{said}");
    let accepted = one.command(&["store", "accept"]);
    one.run();
    // It has another name now, and what the second knows is not it.
    let refused = two.try_command(&["token", "list"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("another store may trust revoked nodes"), "{said}");
    let also = two.command(&["store", "accept"]);
    two.run();
    let name = |said: &str| {
        let line = said.lines().find(|line| line.starts_with("accepted store:")).unwrap().to_owned();
        line.split(' ').nth(2).unwrap().to_owned()
    };
    assert_eq!(name(&accepted), name(&also), "both have the same store");
    for gateway in [&one, &two] {
        assert_eq!(
            gateway.config("/config/worker", &[&bearer(&token)]).await.status,
            403,
            "it is not in it"
        );
    }
    let refused = one.try_command(&["store", "accept"]);
    assert!(!refused.status.success());
}
