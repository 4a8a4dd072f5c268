//! Expired entries are removed by one of several gateways, at the pace of one, and in few requests.

use attest_store::{EntryKind, MaintenanceTask, Spendable, Store, Tick};

use super::*;

const DAY: u64 = 86_400;

fn challenge(number: u32, remember_until: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Challenge,
        id: format!("c{number:04}"),
        limit: 1,
        remember_until,
    }
}

/// Returns the number of transactions that etcd has executed.
async fn transactions(etcd: &etcd::EtcdServer) -> u64 {
    // For a client that needs none.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let metrics = reqwest::get(format!("{}/metrics", etcd.endpoint()))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let done = metrics
        .lines()
        .filter(|line| line.starts_with("grpc_server_handled_total{") && line.contains("grpc_code=\"OK\"") && line.contains("\"Txn\""));
    let number = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    done.map(number).sum::<f64>() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn three_gateways_advance_store_time_like_one() {
    let site = Site::start();
    let stores: Vec<Arc<dyn Store>> = ["one", "two", "three"]
        .map(|gateway| Arc::new(site.open(gateway)) as Arc<dyn Store>)
        .into();
    let mut all: Vec<MaintenanceTask> = stores.iter().map(MaintenanceTask::new).collect();
    let mut led = Vec::new();
    let mut times = Vec::new();
    for seconds in [0, 300, 600] {
        for tending in &mut all {
            let now = if seconds == 0 { 1000 } else { 100 * DAY };
            let tended = tending.tick(now, Duration::from_secs(seconds)).await.unwrap();
            led.push(tended.store.is_some());
            times.push(tended.time);
        }
    }
    assert_eq!(led, [true, false, false, true, false, false, true, false, false]);
    assert_eq!(
        times,
        [1000, 1000, 1000, 4000, 4000, 4000, 7000, 7000, 7000],
        "ten times as fast as one runs"
    );
    drop(all.remove(0));
    while all[0].tick(100 * DAY, Duration::from_secs(900)).await.unwrap().store.is_none() {}
    let tended = all[0].tick(100 * DAY, Duration::from_secs(1000)).await.unwrap();
    assert!(tended.store.is_some());
    assert_eq!(tended.time, 8000, "its own time counts, from its first turn on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_former_leader_removes_nothing() {
    let site = Site::start();
    let stores: Vec<Arc<dyn Store>> = ["one", "two"].map(|gateway| Arc::new(site.open(gateway)) as Arc<dyn Store>).into();
    let [mut one, mut two] = [&stores[0], &stores[1]].map(MaintenanceTask::new);
    one.tick(1000, Duration::ZERO).await.unwrap();
    // As if it stood still for longer than its lease.
    site.etcd.ctl(&["del", "a/gateway/leader/tend"]);
    assert!(two.tick(1000, Duration::ZERO).await.unwrap().store.is_some());
    let refused = one.tick(100 * DAY, Duration::from_secs(5 * DAY)).await.map(drop);
    assert!(matches!(refused, Err(StoreError::Led { .. })), "{refused:?}");
    assert_eq!(stores[0].time(100 * DAY).await.unwrap(), 1000);
    assert!(one.tick(100 * DAY, Duration::from_secs(6 * DAY)).await.unwrap().store.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_entries_are_fetched_in_batches() {
    const COUNT: u32 = 320;
    let site = Site::start();
    let store = site.open("one");
    let spends = (0..COUNT).map(|number| Store::spend(&store, challenge(number, 1000)));
    for spent in futures_util::future::join_all(spends).await {
        spent.unwrap();
    }
    let fenced: Arc<dyn Store> = Arc::new(store.clone());
    let mut tending = MaintenanceTask::new(&fenced);
    tending.tick(1000, Duration::ZERO).await.unwrap();
    let before = transactions(&site.etcd).await;
    tending.tick(10 * DAY, Duration::from_secs(DAY)).await.unwrap();
    let took = transactions(&site.etcd).await - before;
    // A page, a fetch and a commit for each thirty-two, and some more.
    assert!(took <= 3 * u64::from(COUNT / 32) + 15, "{took}");
    assert_eq!(store.count(range("use/", "use0")).await.unwrap(), 0);
    let forgotten = Tick {
        now: 10 * DAY,
        passed: Duration::ZERO,
    };
    store.forget_expired(forgotten).await.unwrap();
}
