//! An API that is unavailable, slow, or loses answers.

use cloud_fixtures::kubernetes::{Disturbance, Mishap, RestartHistory};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_api_is_an_error_until_recovery() {
    for wrong in [
        Disturbance::Down,
        Disturbance::Silent,
        Disturbance::Status(503),
        Disturbance::Status(429),
    ] {
        let site = Site::start();
        let store = site.open_for("one", Duration::from_millis(800)).unwrap();
        put(&store, "a", "1").await.unwrap();
        site.api.disturb(wrong);
        let (written, got, page, count) = tokio::join!(
            put(&store, "a", "2"),
            get(&store, "a"),
            store.page(range("a", "b"), 1),
            store.count(range("a", "b"))
        );
        for error in [written.unwrap_err(), got.unwrap_err(), page.unwrap_err(), count.unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("the cluster's API") && error.contains(HEAD), "{wrong:?}: {error}");
        }
        site.api.recover();
        let begun = std::time::Instant::now();
        while put(&store, "a", "3").await.is_err() {
            assert!(begun.elapsed() < crate::support::LIMIT, "{wrong:?}");
        }
        assert_eq!(get(&store, "a").await.unwrap().as_deref(), Some("3"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn continues_after_the_api_restarts_without_history() {
    let site = Site::start();
    let store = site.open("one");
    for history in [RestartHistory::Kept, RestartHistory::Lost] {
        let before = count_up(&store, "counter").await.unwrap();
        site.api.restart(history);
        assert_eq!(count_up(&store, "counter").await.unwrap(), before + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_with_lost_answers_are_applied_once() {
    let site = Site::start();
    let store = site.open("one");
    let mut expected = 0;
    for mishaps in [
        &[Mishap::Done][..],
        &[Mishap::NotDone],
        &[Mishap::NotDone, Mishap::NotDone],
        &[Mishap::NotDone, Mishap::Done],
        &[Mishap::NotDone, Mishap::Done, Mishap::Done, Mishap::NotDone],
    ] {
        site.api.befall(mishaps.iter().copied());
        expected += 1;
        assert_eq!(count_up(&store, "counter").await.unwrap(), expected, "{mishaps:?}");
        while !site.api.is_over() {
            expected += 1;
            assert_eq!(count_up(&store, "counter").await.unwrap(), expected, "{mishaps:?}");
        }
    }
    assert_eq!(get(&site.open("two"), "counter").await.unwrap(), Some(expected.to_string()));
}

/// A request may arrive at any time: an API handles requests of closed connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_commit_is_void_after_its_retry() {
    let site = Site::start();
    let store = site.open("one");
    put(&store, "counter", "0").await.unwrap();
    for number in 1..20 {
        site.api.befall([Mishap::Late]);
        assert_eq!(count_up(&store, "counter").await.unwrap(), number);
        site.api.let_through();
        assert_eq!(get(&store, "counter").await.unwrap(), Some(number.to_string()));
    }
    // Also where others have written meanwhile, and where what settles it is late, too.
    let other = site.open("two");
    site.api.befall([Mishap::Late, Mishap::Late]);
    let (one, two) = tokio::join!(count_up(&store, "counter"), count_up(&other, "counter"));
    let mut numbers = [one.unwrap(), two.unwrap()];
    numbers.sort_unstable();
    assert_eq!(numbers, [20, 21]);
    site.api.let_through();
    for store in [&store, &other] {
        assert_eq!(get(store, "counter").await.unwrap().as_deref(), Some("21"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_lost_answers_never_apply_a_write_twice() {
    let site = Site::start();
    let stores: Vec<Kubernetes> = ["one", "two", "three"].map(|name| site.open(name)).into();
    // Each third write or so comes to no answer, in one way or another.
    let mishaps = (0..200_u32).map(|number| match number.wrapping_mul(2_654_435_761) >> 28 {
        0 | 1 => Mishap::Done,
        2 | 3 => Mishap::NotDone,
        4 => Mishap::Late,
        _ => Mishap::None,
    });
    site.api.befall(mishaps);
    let counted = stores.iter().map(|store| async move {
        let mut numbers = Vec::new();
        for number in 0..40 {
            numbers.push(count_up(store, "counter").await.unwrap());
            if number % 5 == 0 {
                site_value(store, number).await;
            }
        }
        numbers
    });
    let mut numbers: Vec<u32> = futures_util::future::join_all(counted).await.concat();
    site.api.let_through();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=120).collect::<Vec<u32>>());
    assert_eq!(get(&stores[0], "counter").await.unwrap().as_deref(), Some("120"));
}

/// Writes a large value, so that compaction runs during the test.
async fn site_value(store: &Kubernetes, number: u32) {
    put(store, &format!("large/{number}"), &"x".repeat(12_000)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn names_missing_rights_of_the_service_account() {
    let site = Site::start();
    let token = site.api.token(NAMESPACE, "nobody");
    site.tokens.lock().unwrap().insert("one".to_owned(), token.clone());
    let refused = site.try_open("one").unwrap_err().to_string();
    assert!(
        refused.contains("cannot get resource") && refused.contains("get, list, create, patch and delete"),
        "{refused}"
    );
    assert!(!refused.contains(&token), "{refused}");
}
