//! An etcd that is slow, unavailable, or loses answers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cloud_fixtures::port::ReservedPort;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Returns settings for tests that wait for etcd's timeout. A busy machine needs some of it.
fn quick(endpoint: &str) -> EtcdSettings {
    EtcdSettings {
        timeout: Duration::from_secs(4),
        ..settings(endpoint.to_owned())
    }
}

/// Returns settings for requests without an answer, and for those that are retried until there is one.
fn hasty(endpoint: &str) -> EtcdSettings {
    EtcdSettings {
        timeout: Duration::from_millis(1500),
        ..settings(endpoint.to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reconnects_to_a_restarted_etcd() {
    let mut site = Site::start();
    let store = site.open_by("one", &quick(&site.etcd.endpoint())).unwrap();
    put(&store, "a", "1").await.unwrap();
    site.etcd.kill();
    let (put_it, got, page, count) = tokio::join!(
        put(&store, "a", "2"),
        get(&store, "a"),
        store.page(range("a", "b"), 1),
        store.count(range("a", "b"))
    );
    for error in [put_it.unwrap_err(), got.unwrap_err(), page.unwrap_err(), count.unwrap_err()] {
        let error = error.to_string();
        assert!(
            error.contains(&site.etcd.endpoint()) && error.contains("etcdctl endpoint status"),
            "{error}"
        );
    }
    site.etcd.restart();
    assert_eq!(in_the_end(async || get(&store, "a").await).await.as_deref(), Some("1"));
    in_the_end(async || put(&store, "a", "3").await).await;
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_paused_etcd_time_out() {
    let site = Site::start();
    let store = site.open_by("one", &quick(&site.etcd.endpoint())).unwrap();
    put(&store, "a", "1").await.unwrap();
    site.etcd.pause();
    let tasks = (0..20).map(|_| count_up(&store, "counter"));
    let asked = async { tokio::join!(futures_util::future::join_all(tasks), get(&store, "a")) };
    let (written, read) = tokio::time::timeout(LIMIT, asked).await.unwrap();
    assert!(read.is_err());
    for error in written {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("etcd") && error.contains(&site.etcd.endpoint()), "{error}");
    }
    site.etcd.resume();
    // What was sent may be done still, so the number is anything; but from here on nothing is in doubt.
    let before = in_the_end(async || count_up(&store, "counter").await).await;
    assert_eq!(count_up(&store, "counter").await.unwrap(), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn skips_unreachable_etcd_members() {
    let site = Site::start();
    let nobody = ReservedPort::reserve();
    // And one that takes connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = vec![
        format!("http://{}", nobody.address()),
        format!("http://{}", silent.local_addr().unwrap()),
        site.etcd.endpoint(),
    ];
    let three = EtcdSettings {
        endpoints,
        timeout: Duration::from_secs(12),
        ..site.settings()
    };
    let store = site.open_by("one", &three).unwrap();
    put(&store, "a", "1").await.unwrap();
    assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn survives_the_death_or_pause_of_one_member() {
    const EACH: u32 = 30;
    let mut members = etcd::EtcdServer::start_three();
    let states = tempfile::tempdir().unwrap();
    let three = EtcdSettings {
        endpoints: members.iter().map(etcd::EtcdServer::endpoint).collect(),
        timeout: Duration::from_secs(20),
        ..settings(String::new())
    };
    let stores = ["one", "two"].map(|name| {
        std::fs::create_dir(states.path().join(name)).unwrap();
        Etcd::open(&three, &states.path().join(name).join("gateway.db")).unwrap()
    });
    let mut expected = 0;
    for victim in &mut members {
        for stands_still in [false, true] {
            let counting = stores.clone().map(|store| {
                tokio::spawn(async move {
                    for _ in 0..EACH {
                        count_up(&store, "counter").await.unwrap();
                    }
                })
            });
            if stands_still {
                victim.pause();
            } else {
                victim.kill();
            }
            for counted in counting {
                counted.await.unwrap();
            }
            expected += 2 * EACH;
            if stands_still {
                victim.resume();
            } else {
                victim.restart();
            }
            assert_eq!(get(&stores[0], "counter").await.unwrap(), Some(expected.to_string()));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_nothing_until_an_uncertain_commit_is_settled() {
    let site = Site::start();
    let etcd = site.etcd.endpoint().strip_prefix("http://").unwrap().to_owned();
    let between = Between::start(etcd).await;
    let hasty = hasty(&format!("http://{}", between.address));
    let store = in_the_end(async || site.open_by("one", &hasty)).await;
    in_the_end(async || put(&store, "a", "1").await).await;
    between.deaf.store(true, Ordering::Relaxed);
    let doubt = put(&store, "a", "2").await.unwrap_err().to_string();
    assert!(doubt.contains("it is unknown whether the transaction was committed"), "{doubt}");
    let (got, page, count) = tokio::join!(get(&store, "a"), store.page(range("a", "b"), 1), store.count(range("a", "b")));
    assert!(got.is_err() && page.is_err() && count.is_err());
    between.deaf.store(false, Ordering::Relaxed);
    let found = in_the_end(async || get(&store, "a").await).await;
    // What only reads has put the process's own key: the lost commit comes before that, or never.
    let own = site.etcd.ctl(&["get", "--prefix", "--print-value-only", "a/gateway/committer/"]);
    assert!(own.trim().parse::<u64>().unwrap() > 2, "{own}");
    assert_eq!(found.as_deref(), Some("1"), "it never came to etcd");
}

#[tokio::test(flavor = "multi_thread")]
async fn page_and_count_settle_an_uncertain_commit() {
    let site = Site::start();
    let etcd = site.etcd.endpoint().strip_prefix("http://").unwrap().to_owned();
    let between = Between::start(etcd).await;
    let hasty = hasty(&format!("http://{}", between.address));
    // Each leaves nothing of its own key behind when it is closed.
    for counts in [false, true] {
        let store = in_the_end(async || site.open_by("one", &hasty)).await;
        in_the_end(async || put(&store, "a", "1").await).await;
        between.deaf.store(true, Ordering::Relaxed);
        put(&store, "a", "2").await.unwrap_err();
        between.deaf.store(false, Ordering::Relaxed);
        let whole = range("a", "b");
        let read = async || match counts {
            true => store.count(whole.clone()).await.map(drop),
            false => store.page(whole.clone(), 1).await.map(drop),
        };
        in_the_end(read).await;
        let own = site.etcd.ctl(&["get", "--prefix", "--print-value-only", "a/gateway/committer/"]);
        assert!(own.trim().parse::<u64>().unwrap() > 2, "{own}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_values_in_etcd_that_are_not_utf8() {
    let site = Site::start();
    let store = site.open("one");
    put(&store, "a", "1").await.unwrap();
    let put = |key: &str| {
        let put = format!(
            "printf '\\377' | etcdctl --endpoints={} put \"$(printf '{key}')\"",
            site.etcd.endpoint()
        );
        assert!(std::process::Command::new("sh").args(["-c", &put]).status().unwrap().success());
    };
    let read = async || store.page(range("a", "b"), 10).await.unwrap_err().to_string();
    put("a/gateway/kv/a1");
    let error = read().await;
    assert!(error.contains("key a1 cannot be read") && error.contains("utf-8"), "{error}");
    site.etcd.ctl(&["del", "a/gateway/kv/a1"]);
    put("a/gateway/kv/a\\377");
    let error = read().await;
    assert!(error.contains("a key that no release writes"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_a_commit_refused_for_lack_of_space() {
    let site = Site {
        etcd: etcd::EtcdServer::start_with_quota(2 << 20),
        states: tempfile::tempdir().unwrap(),
    };
    let store = site.open("one");
    let fill = || {
        run(&store, |transaction| {
            let number = transaction.get("counter")?.map_or(0, |number| number.parse::<u32>().unwrap()) + 1;
            transaction.put("fills", &"x".repeat(200_000))?;
            transaction.put("counter", &number.to_string())
        })
    };
    let mut done = 0;
    let refused = loop {
        match fill().await {
            Ok(()) => done += 1,
            Err(refused) => break refused.to_string(),
        }
    };
    for named in ["--quota-backend-bytes", "NOSPACE", "compact", "alarm disarm"] {
        assert!(refused.contains(named), "{refused}");
    }
    assert!(!refused.contains("not known"), "{refused}");
    // Reads need no room.
    assert_eq!(get(&store, "counter").await.unwrap(), Some(done.to_string()));
    fill().await.unwrap_err();
    assert_eq!(get(&store, "counter").await.unwrap(), Some(done.to_string()));
    make_room(&site.etcd);
    fill().await.unwrap();
    assert_eq!(get(&store, "counter").await.unwrap(), Some((done + 1).to_string()));
}

/// Returns an etcd whose quota is used up, with earlier data: `a` is 1.
async fn without_room() -> (Site, Etcd) {
    let site = Site {
        etcd: etcd::EtcdServer::start_with_quota(2 << 20),
        states: tempfile::tempdir().unwrap(),
    };
    let store = site.open("one");
    put(&store, "a", "1").await.unwrap();
    let large = "x".repeat(200_000);
    while put(&store, "fills", &large).await.is_ok() {}
    (site, store)
}

/// Frees space in etcd as an administrator does.
fn make_room(etcd: &etcd::EtcdServer) {
    let state = etcd.ctl(&["get", "none", "-w", "json"]);
    let (_, revision) = state.split_once("\"revision\":").unwrap();
    etcd.ctl(&["compact", revision.split(',').next().unwrap()]);
    etcd.ctl(&["defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_succeed_while_writes_lack_space() {
    let (_site, store) = without_room().await;
    // What comes at once goes into one commit; each reads what is written just before it.
    let at_once = (0..30).map(async |_| tokio::join!(put(&store, "a", "2"), get(&store, "a"), count_up(&store, "counter")));
    for (written, read, counted) in futures_util::future::join_all(at_once).await {
        for refused in [written.unwrap_err(), counted.map(drop).unwrap_err()] {
            assert!(refused.to_string().contains("NOSPACE"), "{refused}");
        }
        assert_eq!(read.unwrap().as_deref(), Some("1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_succeed_while_background_tasks_lack_space() {
    // More than go into one commit.
    const LATER: usize = 300;
    let (site, store) = without_room().await;
    let later = |key: String| store.later(Box::new(move |transaction| transaction.put(&key, "done")));
    for number in 0..LATER {
        later(format!("later/{number}"));
    }
    for number in 0..40 {
        later(format!("more/{number}"));
        assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("1"));
    }
    make_room(&site.etcd);
    let all = u64::try_from(LATER + 40).unwrap();
    let begun = std::time::Instant::now();
    while in_the_end(async || store.count(range("l", "n")).await).await < all {
        assert!(begun.elapsed() < LIMIT, "they are not done");
        tokio::task::yield_now().await;
    }
}

/// Proxy between a gateway and etcd that can lose a request, or an answer.
struct Between {
    address: SocketAddr,
    /// Number of pieces from etcd that are passed on; the last of them is lost, and the connection is cut. 0 after the cut.
    passes: Arc<AtomicUsize>,
    /// Set if no request reaches etcd: each connection that sends one is cut.
    deaf: Arc<AtomicBool>,
}

impl Between {
    async fn start(etcd: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let passes = Arc::new(AtomicUsize::new(0));
        let passing = Arc::clone(&passes);
        let deaf = Arc::new(AtomicBool::new(false));
        let hearing = Arc::clone(&deaf);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(&etcd).await.unwrap();
                tokio::spawn(pass(client, server, Arc::clone(&passing), Arc::clone(&hearing)));
            }
        });
        Self { address, passes, deaf }
    }
}

async fn pass(client: TcpStream, server: TcpStream, passes: Arc<AtomicUsize>, deaf: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = tokio::spawn(async move {
        let mut bytes = vec![0; 65_536];
        while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
            if deaf.load(Ordering::Relaxed) || to_server.write_all(&bytes[..length]).await.is_err() {
                break;
            }
        }
    });
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
        let left = passes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left == Ok(1) || to_client.write_all(&bytes[..length]).await.is_err() {
            break;
        }
    }
    there.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_was_lost_is_done_once() {
    let site = Site::start();
    let etcd = site.etcd.endpoint().strip_prefix("http://").unwrap().to_owned();
    let between = Between::start(etcd).await;
    let store = site.open_by("one", &settings(format!("http://{}", between.address))).unwrap();
    for round in 1..=42 {
        // The answer to the fetch, or to the commit, or a piece of one: each of them seven times.
        between.passes.store(1 + round as usize % 6, Ordering::Relaxed);
        assert_eq!(count_up(&store, "counter").await.unwrap(), round);
    }
    let direct = site.open("two");
    assert_eq!(get(&direct, "counter").await.unwrap().as_deref(), Some("42"));
}
