//! A migrated store: no process continues to use it at its old place, and pending decisions are settled first.

use attest_gateway::settings::Settings;
use attest_store::{AnyStore, EntryKind, Spend, Spendable, Store, UseOccasion};
use cloud_fixtures::etcd::signal;

use super::export::{backup, copy, gateway as embedded_gateway, refusal};
use super::gateways::gateway;
use super::*;
use crate::conformance::{adopted_at, decided_at, use_for, would_spend};
use crate::support::kubelet::embedded;
use crate::support::pending::{evidence, is_recorded_late};
use crate::support::{Gateway, POOL, bearer, now};

/// Creates a gateway on the same store, on another host, that does not serve; `to.toml` names a free place.
fn another(of: &Gateway) -> Gateway {
    let other = Gateway::init();
    let settings = std::fs::read_to_string(of.path("gateway.toml")).unwrap();
    std::fs::write(other.path("gateway.toml"), &settings).unwrap();
    std::fs::write(other.path("to.toml"), settings.replace("prefix = \"b\"", "prefix = \"c\"")).unwrap();
    assert!(settings.contains("prefix = \"b\""), "{settings}");
    other
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_a_paused_gateway_serves_nothing_after_migration() {
    let site = Site::start();
    let mut one = gateway(&site, "");
    let full = one.rendered(POOL, "full");
    let token = one.token(&["--name", "rack7", "--uses", "9"]);
    one.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    signal(one.process_id(), "STOP");
    let other = another(&one);
    let moving = || copy(&other, "gateway.toml", "to.toml");
    assert!(refusal(&moving()).contains("serves; stop it first"));
    // As its lease is over when it has stood still for long enough.
    site.etcd.ctl(&["del", "--prefix", "b/replica/"]);
    let moved = moving();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
    signal(one.process_id(), "CONT");
    for _ in 0..3 {
        one.config("/config/worker", &[&bearer(&token)]).await.check_retry();
    }
    let said = one.line(|line| line.contains("was migrated to"));
    assert!(said.contains("below c"), "{said}");
    let ready = one.client.get(one.url("/readyz")).send().await.unwrap();
    assert_eq!(ready.status(), 503);
    for gateway in [&one, &other] {
        for command in [
            &["token", "revoke", "rack7"][..],
            &["token", "list"],
            &["seal", "rotate"],
            &["backup", "b"],
            &["check"],
        ] {
            let refused = gateway.try_command(command);
            let said = String::from_utf8([refused.stdout, refused.stderr].concat()).unwrap();
            assert!(!refused.status.success(), "{command:?}: {said}");
            assert!(said.contains("was migrated to") && said.contains("below c"), "{command:?}: {said}");
        }
    }
    one.kill();
    assert!(!one.try_command(&["serve"]).status.success());
    // It goes on where the store is.
    std::fs::copy(other.path("to.toml"), one.path("gateway.toml")).unwrap();
    one.command(&["store", "accept"]);
    one.run();
    one.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
}

fn ticket(id: &str) -> Spendable {
    Spendable {
        kind: EntryKind::Ticket,
        id: id.to_owned(),
        limit: 1,
        remember_until: now() + 86_400,
    }
}

/// Returns which tickets can be used again in the store of these settings.
async fn reusable_tickets(gateway: &Gateway, settings: &str, ids: &[&str]) -> Vec<bool> {
    let store = AnyStore::open(&Settings::load(&gateway.path(settings)).unwrap().store).unwrap();
    let mut good = Vec::new();
    for id in ids {
        good.push(matches!(store.spend(ticket(id)).await.unwrap(), Spend::Granted { .. }));
    }
    good
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_settles_pending_decisions_before_migration() {
    const LOST: [&str; 2] = ["0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdee"];
    let site = Site::start();
    let mut gateway = embedded_gateway(&site);
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let token = gateway.token(&["--name", "rack7", "--uses", "9"]);
    assert_eq!(gateway.config("/config/worker", &[&bearer(&token)]).await.status, 200);
    let recorded = gateway.records().pop().unwrap()["id"].as_str().unwrap().to_owned();
    gateway.kill();
    let under_way = async |store: &dyn Store, id: &str, decision: &str| {
        let decided = evidence(decision, now() + 60, "ab".repeat(32).parse().unwrap());
        let spent = use_for(store, ticket(id), UseOccasion::Any, decided).await;
        assert!(matches!(spent, Spend::Granted { .. }), "{spent:?}");
    };
    let store = embedded(&gateway);
    under_way(&store, "served", &recorded).await;
    under_way(&store, "lost", LOST[0]).await;
    drop(store);
    let moved = copy(&gateway, "embedded.toml", "etcd.toml");
    let said = String::from_utf8(moved.stdout).unwrap();
    assert!(
        moved.status.success() && said.contains("gave back 1 uses of tickets and tokens; 1 decisions move with the store"),
        "{said}"
    );
    let gone_along = site.etcd.ctl(&["get", "--prefix", "--keys-only", "a/gateway/kv/pending/"]);
    assert!(
        gone_along.trim().ends_with(LOST[0]) && !gone_along.contains(&recorded),
        "{gone_along}"
    );
    assert_eq!(reusable_tickets(&gateway, "etcd.toml", &["served", "lost"]).await, [false, true]);
    // And back.
    let store = AnyStore::open(&Settings::load(&gateway.path("etcd.toml")).unwrap().store).unwrap();
    under_way(&store, "lost again", LOST[1]).await;
    drop(store);
    super::export::remove(&gateway);
    let moved = copy(&gateway, "etcd.toml", "embedded.toml");
    let said = String::from_utf8(moved.stdout).unwrap();
    assert!(
        moved.status.success() && said.contains("gave back 1 uses of tickets and tokens; 2 decisions move with the store"),
        "{said}"
    );
    assert_eq!(
        reusable_tickets(&gateway, "embedded.toml", &["served", "lost again"]).await,
        [false, true]
    );
    // The next start records both, each once.
    for _ in 0..2 {
        gateway.run();
        let records = gateway.records();
        for lost in LOST {
            let late: Vec<_> = records.iter().filter(|record| record["id"] == lost).collect();
            assert_eq!(late.len(), 1, "{records:?}");
            is_recorded_late(late[0], "unknown");
        }
        gateway.terminate();
        assert!(gateway.wait().success());
    }
    assert_eq!(embedded(&gateway).pending().await.unwrap(), []);
}

/// A backup that is imported into another engine has pending decisions that no gateway there recognizes as its own.
#[tokio::test(flavor = "multi_thread")]
async fn imported_pending_decisions_count_as_used() {
    let site = Site::start();
    for (from, to) in [("embedded.toml", "etcd.toml"), ("etcd.toml", "embedded.toml")] {
        site.etcd.ctl(&["del", "--prefix", ""]);
        let gateway = embedded_gateway(&site);
        let open = |settings: &str| AnyStore::open(&Settings::load(&gateway.path(settings)).unwrap().store).unwrap();
        std::fs::create_dir_all(gateway.path("state")).unwrap();
        let at = now();
        use_for(&open(from), ticket("t"), UseOccasion::Any, decided_at("d1", at)).await;
        assert!(backup(&gateway, from, "store.jsonl").status.success());
        let taken = super::export::program(&gateway, to, &["restore", gateway.path("store.jsonl").to_str().unwrap()]);
        let taken = { taken }.output().unwrap();
        assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
        let store = open(to);
        Store::serve(&store).await.unwrap();
        let would = would_spend(&store, ticket("t"), UseOccasion::Any, now()).await;
        assert_eq!(would.unwrap(), Spend::Exhausted);
        assert_eq!(
            store.pending().await.unwrap(),
            [adopted_at("d1", at)],
            "{to}: it is to be recorded here"
        );
        assert!(!store.give_back("d1").await.unwrap(), "{to}: its use counts");
        // What is under way at a start is another's.
        use_for(&store, ticket("u"), UseOccasion::Any, decided_at("d2", now())).await;
        drop(store);
        let store = open(to);
        Store::serve(&store).await.unwrap();
        assert!(store.give_back("d2").await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn store_copy_undo_reverts_an_unfinished_migration() {
    let site = Site::start();
    let gateway = embedded_gateway(&site);
    gateway.command(&["ek", "add", &"a".repeat(64), "--name", "worker-1"]);
    let to = gateway.path("etcd.toml");
    let undo = || {
        super::export::program(
            &gateway,
            "embedded.toml",
            &["store", "copy", "--undo", "--to", to.to_str().unwrap()],
        )
        .output()
        .unwrap()
    };
    assert!(refusal(&undo()).contains("was not migrated"));
    // It may not say that it is there: a user of etcd who has no right to.
    site.etcd.ctl(&["user", "add", "root", "--new-user-password", "root"]);
    site.etcd.ctl(&["user", "grant-role", "root", "root"]);
    site.etcd.ctl(&["user", "add", "gateway", "--new-user-password", "gateway"]);
    site.etcd.ctl(&["role", "add", "gateway"]);
    let grant = |key: &str| {
        site.etcd
            .ctl(&["role", "grant-permission", "gateway", "readwrite", key, "--prefix"])
    };
    site.etcd
        .ctl(&["role", "grant-permission", "gateway", "read", "a/gateway/", "--prefix"]);
    for key in ["a/gateway/kv/", "a/gateway/taking"] {
        grant(key);
    }
    site.etcd.ctl(&["user", "grant-role", "gateway", "gateway"]);
    site.etcd.ctl(&["auth", "enable"]);
    let settings = std::fs::read_to_string(&to).unwrap();
    std::fs::write(&to, format!("{settings}user = \"gateway\"\npassword_file = \"password\"\n")).unwrap();
    std::fs::write(gateway.path("password"), "gateway").unwrap();
    let said = refusal(&copy(&gateway, "embedded.toml", "etcd.toml"));
    assert!(said.contains("permission"), "{said}");
    let refused = gateway.try_command(&["machines", "list"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("was migrated to") && said.contains("--undo"), "{said}");
    let undone = undo();
    assert!(undone.status.success(), "{}", String::from_utf8_lossy(&undone.stderr));
    assert!(gateway.command(&["machines", "list"]).contains("worker-1"));
    let mut gateway = gateway;
    gateway.run();
    // The first one was refused.
    let acts = gateway.wait_for_acts(2, "store.copy-undo");
    assert!(
        acts[1]["admin"]["things"][0]["before"]["moved"]
            .as_str()
            .unwrap()
            .ends_with("below a/gateway"),
        "{acts:?}"
    );
}
