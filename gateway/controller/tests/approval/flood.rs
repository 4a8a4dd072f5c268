//! CSRs by the thousand, and as large as the API takes them, as any node's credential can create them.

use std::time::Instant;

use super::*;

/// About the largest object that an API takes.
const LARGE_BYTES: usize = 1_180_000;
/// Number of large CSRs, in four pages: what the controller has of them at a time does not depend on how many there are, and all of them are in this
/// process while the test runs.
const LARGE_COUNT: usize = 40;
const CROWD: usize = 5_000;

/// The most memory that the controller has had so far, bytes.
fn memory(controller: &Controller) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", controller.process_id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Processor time that the controller has used so far.
fn processor_time(controller: &Controller) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", controller.process_id())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    // A tick is 10 ms wherever Linux tells a process (`USER_HZ`).
    Duration::from_millis(10 * ticks)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_53_largest_csrs_are_read_in_small_pages() {
    let count = LARGE_COUNT;
    let mut site = Site::with(DEFAULT);
    site.controller.run();
    let before = memory(&site.controller);
    assert!(site.controller.stop().success());
    let large = data_encoding::BASE64.encode(&vec![b'x'; LARGE_BYTES / 4 * 3]);
    for number in 0..count {
        let mut object = by_bootstrapper(client_csr(&format!("large-{number:03}"), NODE), &[]);
        object["spec"]["request"] = json!(large);
        site.api.put(object);
    }
    // Of another signer, which is not asked for.
    site.api.put(by(
        csr("another-signers", "example.com/signer", &large, "client auth"),
        "somebody",
        &[],
    ));
    site.api.forget_asked();
    site.controller.run();
    let key = KeyPair::generate().unwrap();
    site.attested_with(NODE, &key).await;
    site.asks_for("own", NODE, &key);
    site.wait_approved("own").await;
    let grown = memory(&site.controller).saturating_sub(before);
    println!("{grown} bytes more for {count} CSRs of {LARGE_BYTES}");
    assert!(grown < 160 * 1024 * 1024, "{grown} bytes for {count} CSRs of {LARGE_BYTES}");
    let asked = site.api.asked();
    let lists: Vec<_> = asked
        .iter()
        .filter(|asked| asked.resource == CSRS && asked.verb == "list")
        .collect();
    let all_selected = lists.iter().all(|asked| asked.query.contains("fieldSelector=spec.signerName"));
    assert!(lists.len() > count.div_ceil(10) && all_selected, "{lists:?}");
    // Not all of them in one page, as the default of 500 would have it.
    let largest = lists.iter().map(|asked| asked.answered_bytes).max().unwrap();
    assert!(largest < 11 * LARGE_BYTES, "a page of {largest} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_53_flood_of_csrs_for_one_name_is_harmless() {
    let site = Site::by_default();
    let one = by_bootstrapper(client_csr("crowd", NODE), &[]);
    let key = KeyPair::generate().unwrap();
    site.attested_with(NODE, &key).await;
    for number in 0..CROWD {
        let mut other = one.clone();
        other["metadata"]["name"] = json!(format!("crowd-{number}"));
        site.api.put(other);
    }
    let other = KeyPair::generate().unwrap();
    site.attested_with("worker-2", &other).await;
    site.asks_for("others", "worker-2", &other);
    site.wait_approved("others").await;
    site.asks_for("own", NODE, &key);
    site.wait_approved("own").await;
    // While they stay: a measurement, not a wait for anything.
    let (since, used) = (Instant::now(), processor_time(&site.controller));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (took, used) = (since.elapsed(), processor_time(&site.controller) - used);
    let share = used.as_secs_f64() / took.as_secs_f64();
    println!("{CROWD} CSRs of one name: {share:.3} processors");
    assert!(share < 0.2, "{share} processors");
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_csrs_leaves_events_for_attested_names() {
    let site = Site::by_default();
    for number in 0..300 {
        site.api.put(by_bootstrapper(
            client_csr(&format!("nobodys-{number}"), &format!("nobody-{number}")),
            &[],
        ));
    }
    // Their events have begun.
    shown(&site.api, "strangers' CSRs have events", || site.api.all("events").len() >= 50).await;
    let key = KeyPair::generate().unwrap();
    site.attested_with(NODE, &key).await;
    site.asks("honest", NODE).await;
    site.wait_left("honest", "csr-key-not-attested").await;
}
