//! A store that was restored to an old state and then used by others. The gateways that know better notice it, and then all of them do.

use attest_store::AcceptedStore;

use super::*;

impl Site {
    fn accept(&self, gateway: &str) -> AcceptedStore {
        Etcd::accept(&self.settings(), &self.state(gateway).join("gateway.db"), |_| {
            Ok::<_, StoreError>(())
        })
        .unwrap()
    }

    fn log_text(&self) -> String {
        self.etcd.ctl(&["get", "--prefix", "--print-value-only", "a/gateway/set-back/"])
    }
}

async fn put_often(store: &Etcd, key: &str, times: u32) {
    for number in 0..times {
        put(store, key, &number.to_string()).await.unwrap();
    }
}

/// Verifies that all kinds of requests are refused.
async fn is_refused(store: &Etcd) {
    let answers = [
        get(store, "revoked").await.map(drop),
        put(store, "revoked", "again").await,
        store.count(range("a", "z")).await.map(drop),
        store.page(range("a", "z"), 1).await.map(drop),
    ];
    for refused in answers {
        assert!(matches!(refused, Err(StoreError::Replaced(_))), "{refused:?}");
    }
}

fn is_set_back(opened: Result<Etcd, StoreError>) -> String {
    match opened.unwrap_err() {
        refused @ StoreError::SetBack { .. } => refused.to_string(),
        refused => panic!("{refused}"),
    }
}

/// Loses five commits of gateway one. Gateway two, which does not know them, has written more than that since.
async fn gone_on_with(site: &mut Site, keep: impl AsyncFnOnce(Etcd) -> Option<Etcd>) -> (Option<Etcd>, Etcd) {
    drop(site.open("two"));
    let one = site.open("one");
    put_often(&one, "before", 3).await;
    site.etcd.save("before");
    put_often(&one, "revoked", 5).await;
    let known = one.store_mark().unwrap();
    let one = keep(one).await;
    site.etcd.restore("before");
    let two = site.open("two");
    put_often(&two, "later", 8).await;
    let now = two.store_mark().unwrap();
    assert!(now.id == known.id && now.mark > known.mark, "the mark says nothing: {now}, {known}");
    assert_eq!(site.log_text(), "");
    (one, two)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_a_running_gateway_detects_that_its_commits_vanished() {
    let mut site = Site::start();
    let (one, two) = gone_on_with(&mut site, async |one| Some(one)).await;
    is_refused(&one.unwrap()).await;
    // And who could not tell is told.
    assert_ne!(site.log_text(), "");
    is_refused(&two).await;
    for gateway in ["two", "new"] {
        let refused = is_set_back(site.try_open(gateway));
        assert!(refused.contains("a gateway on ") && refused.contains("store accept"), "{refused}");
    }
    // One accepts it, under another name; the others take it for that.
    let now = site.accept("one").now;
    assert_eq!(site.accept("two").now.id, now.id);
    assert_eq!(site.log_text(), "");
    for gateway in ["one", "two"] {
        put(&site.open(gateway), "again", gateway).await.unwrap();
    }
    is_refused(&two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_a_gateway_whose_commits_vanished_does_not_start() {
    let mut site = Site::start();
    let keep = async |one: Etcd| {
        one.keep_mark().await.unwrap();
        None
    };
    let (_, two) = gone_on_with(&mut site, keep).await;
    assert!(Etcd::exists(&site.settings(), &site.state("one").join("gateway.db")).is_err());
    assert_eq!(site.log_text(), "", "who only looks writes nothing");
    let refused = is_set_back(site.try_open("one"));
    assert!(refused.contains("of 8 commits") && refused.contains("it has 3"), "{refused}");
    is_refused(&two).await;
    is_set_back(site.try_open("two"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_detects_vanished_commits_by_the_log() {
    let mut site = Site::start();
    let log = site.state("one").join("attestation.jsonl");
    let keep = async |one: Etcd| {
        let line = serde_json::json!({ "store": one.store_mark().unwrap() });
        drop(one);
        // `store.mark` is of minutes before.
        std::fs::write(&log, format!("{line}\n")).unwrap();
        None
    };
    gone_on_with(&mut site, keep).await;
    is_set_back(site.try_open("one"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_42_a_detected_rollback_is_announced_to_all_gateways() {
    for starts_again in [false, true] {
        let mut site = Site::start();
        let (one, two) = (site.open("one"), site.open("two"));
        put(&one, "revoked", "1").await.unwrap();
        site.etcd.save("before");
        put(&two, "revoked", "2").await.unwrap();
        // It has read what the other wrote.
        get(&one, "revoked").await.unwrap();
        one.keep_mark().await.unwrap();
        drop(two);
        site.etcd.save("after");
        site.etcd.restore("before");
        // Who only looks finds it, and tells nobody: so `check` does.
        let look = |gateway: &str| Etcd::exists(&site.settings(), &site.state(gateway).join("gateway.db"));
        assert!(matches!(look("one"), Err(StoreError::Older { .. })) && look("new").is_ok() && site.log_text().is_empty());
        if starts_again {
            let refused = site.try_open("one").unwrap_err();
            assert!(matches!(refused, StoreError::Older { .. }), "{refused}");
        } else {
            is_refused(&one).await;
        }
        is_set_back(site.try_open("new"));
        // It is the state that was set back that is told so: the newest one is as good as it was.
        site.etcd.restore("after");
        assert_eq!(get(&one, "revoked").await.unwrap().as_deref(), Some("2"));
        put(&site.open("new"), "revoked", "3").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_commits_of_a_store_without_counters() {
    let site = Site::start();
    let one = site.open("one");
    put_often(&one, "a", 3).await;
    let id = one.store_mark().unwrap().id;
    drop(one);
    site.etcd.ctl(&["del", "--prefix", "a/gateway/wrote/"]);
    let mark = serde_json::json!({ "id": id, "mark": 4 });
    std::fs::write(site.state("one").join("store.mark"), mark.to_string()).unwrap();
    let one = site.open("one");
    assert_eq!(one.store_mark().unwrap().wrote.unwrap().commits, 0);
    // A mark that is as high is not enough to be known.
    one.keep_mark().await.unwrap();
    let kept = std::fs::read_to_string(site.state("one").join("store.mark")).unwrap();
    assert!(kept.contains("\"commits\":0"), "{kept}");
    // What it does not count stands beside what it does.
    site.etcd.ctl(&["put", "a/gateway/mark", ""]);
    put(&one, "a", "4").await.unwrap();
    let standing = one.store_mark().unwrap();
    assert_eq!((standing.mark, standing.wrote.unwrap().commits), (6, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_replica_id_counts_from_zero() {
    let site = Site::start();
    let one = site.open("one");
    put_often(&one, "a", 3).await;
    one.keep_mark().await.unwrap();
    drop(one);
    std::fs::remove_file(site.state("one").join("replica.id")).unwrap();
    let one = site.open("one");
    put(&one, "a", "4").await.unwrap();
    assert_eq!(one.store_mark().unwrap().wrote.unwrap().commits, 1);
    one.keep_mark().await.unwrap();
    drop(one);
    site.open("one");
}
