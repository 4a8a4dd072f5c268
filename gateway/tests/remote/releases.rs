//! Two releases on one store: the newer one writes entries that are unknown to the other.

use attest::HashAlg;
use attest::reference_sets::{NewValue, ReferenceQuery};
use attest::values::HexDigest;
use attest_log::Acceptable;
use attest_machines::waiting::{MachineStep, WaitRequest, WaitingList, end_wait, questions, refuse};
use attest_machines::{enrolment, history};
use attest_pool::{UnknownMachines, WaitingRules};
use attest_store::{EntryKind, Store, StoreEntry, StoreError, Tick, Transact};

use super::*;

/// Entries as a later release might have written them: of another kind, or of known kinds with ids of another form. Some of them cannot be
/// read.
const BESIDE: [(&str, &str); 6] = [
    ("entry/verdict/tpm:00", r#"{"v":1,"value":"{\"good\":true}"}"#),
    ("entry/verdict/tpm:01", r#"{"v":2,"more":1}"#),
    ("entry/waiting/verdict:worker:00", r#"{"v":1,"value":"{\"good\":true}"}"#),
    ("entry/clock/slept:tpm:00", r#"{"v":1,"value":"7"}"#),
    ("use/verdict/00", r#"{"v":2,"more":1}"#),
    ("expiry/verdict/00000000000000000001/00", r#"{"v":2,"more":1}"#),
];
const START: u64 = 1_000_000;
const RULES: WaitingRules = WaitingRules {
    machines: 1,
    window_seconds: 3600,
    wait_seconds: 600,
    unknown: UnknownMachines::Refuse,
};

pub async fn what_another_release_keeps_beside_is_left_as_it_is<S: Site>() {
    let site = S::start();
    let store = Arc::new(site.open("one"));
    for (key, value) in BESIDE {
        put(&*store, key, value).await.unwrap();
    }
    let counters = StoreEntry {
        id: "tpm:00".to_owned(),
        value: r#"{"reset_count":7,"restart_count":1,"clock_ms":123456}"#.to_owned(),
    };
    Store::put(&*store, EntryKind::Clock, counters).await.unwrap();

    // Machines wait, are answered, and are forgotten.
    let awaited = WaitingList::new(store.clone(), store.clone());
    let value = NewValue::digest(ReferenceQuery::Images, HashAlg::Sha256, HexDigest::from([1; 32]));
    let about = Acceptable::Values(vec![value]);
    let shown = |machine, now| WaitRequest {
        pool: "worker",
        rules: &RULES,
        machine,
        name: None,
        about: &about,
        then_values: 0,
        network: "192.0.2.1",
        decision: "0123",
        observed: false,
        now,
    };
    assert!(matches!(awaited.ask(shown("tpm:00", START)).await.unwrap(), MachineStep::Begins(_)));
    let rows = questions(&*store, None, START).await.unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    refuse(&*store, "worker", &rows[0].id, "no", "alice", START).await.unwrap();
    assert!(matches!(
        awaited.ask(shown("tpm:00", START + 1)).await.unwrap(),
        MachineStep::NotWaiting(_)
    ));
    awaited.ask(shown("tpm:01", START + 10_000)).await.unwrap();
    let ended = Transact::transact(&*store, |transaction| end_wait(transaction, "worker", "tpm:01"));
    assert_eq!(ended.await.unwrap_or_else(|error: StoreError| panic!("{error}")), None);
    // So is what a machine was, and what expires; and the TPMs that have attested are those that have.
    let tpms = enrolment::attested_tpms(&*store).await.unwrap();
    assert_eq!(tpms.into_iter().collect::<Vec<_>>(), ["tpm:00"]);
    assert!(history::forget(&*store, "tpm:00").await.unwrap());
    let passed = std::time::Duration::from_secs(100_000);
    store.forget_expired(Tick { now: START, passed }).await.unwrap();
    let far = Tick {
        now: START + 1_000_000,
        passed: passed * 10,
    };
    store.forget_expired(far).await.unwrap();
    let other = site.open("two");
    for (key, value) in BESIDE {
        assert_eq!(get(&other, key).await.unwrap().as_deref(), Some(value), "{key}");
    }
}
