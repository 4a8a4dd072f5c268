//! Tests of waiting machines, with the embedded store.

mod acceptance;
mod unknown;

use std::sync::Arc;

use attest::HashAlg;
use attest::reference_sets::{NewValue, ReferenceQuery};
use attest::values::HexDigest;
use attest_log::Acceptable;
use attest_pool::{UnknownMachines, WaitingRules};
use attest_store::{Embedded, EntryKind, Store, StoreEntry, StoreError, Transact};
use tempfile::TempDir;

use super::ask::{CHANGES_LIMIT, MACHINES_LIMIT, QUESTIONS_LIMIT};
use super::questions::{QuestionSnapshot, question_id};
use super::*;

const POOL: &str = "worker";
const RULES: WaitingRules = WaitingRules {
    machines: 2,
    window_seconds: 3600,
    wait_seconds: 600,
    unknown: UnknownMachines::Wait,
};
const START: u64 = 1_000_000;

struct Room {
    store: Arc<Embedded>,
    awaited: WaitingList,
    folder: TempDir,
}

impl Room {
    /// Ends the wait of a machine; returns what it has waited for, and since when.
    async fn ended(&self, machine: &str) -> Option<(String, u64)> {
        let machine = machine.to_owned();
        let ended = self.store.transact(move |transaction| end_wait(transaction, POOL, &machine));
        let waited: Option<StoreEntry> = ended.await.unwrap_or_else(|error: StoreError| panic!("{error}"));
        waited.and_then(|entry| waited_for(&entry).unwrap())
    }

    fn new() -> Self {
        Self::in_folder(tempfile::tempdir().unwrap())
    }

    fn in_folder(folder: TempDir) -> Self {
        let store = Arc::new(Embedded::open(&folder.path().join("gateway.db")).unwrap());
        let awaited = WaitingList::new(store.clone(), store.clone());
        Self { store, awaited, folder }
    }

    async fn ask(&self, pool: &str, machine: &str, values: &[NewValue], at: u64) -> MachineStep {
        self.take(pool, machine, values, at, false).await
    }

    async fn take(&self, pool: &str, machine: &str, values: &[NewValue], at: u64, observed: bool) -> MachineStep {
        let about = Acceptable::Values(values.to_vec());
        let request = WaitRequest {
            observed,
            ..request(pool, machine, &about, at)
        };
        self.awaited.ask(request).await.unwrap()
    }

    async fn shows(&self, machine: &str, values: &[u8], at: u64) -> MachineStep {
        self.ask(POOL, machine, &all(values), at).await
    }

    /// Asks for a machine of an observing pool, which lets it in.
    async fn boots(&self, machine: &str, values: &[u8], at: u64) -> MachineStep {
        self.take(POOL, machine, &all(values), at, true).await
    }

    async fn rows(&self, at: u64) -> Vec<QuestionRow> {
        questions(&*self.store, Some(POOL), START + at).await.unwrap()
    }
}

/// Returns the request of a machine that was refused for this alone.
fn request<'a>(pool: &'a str, machine: &'a str, about: &'a Acceptable, at: u64) -> WaitRequest<'a> {
    WaitRequest {
        pool,
        rules: &RULES,
        machine,
        name: None,
        about,
        then_values: 0,
        network: "192.0.2.1",
        decision: "0123",
        observed: false,
        now: START + at,
    }
}

/// Returns new values, one per byte.
fn all(values: &[u8]) -> Vec<NewValue> {
    let value = |byte: &u8| NewValue::digest(ReferenceQuery::Images, HashAlg::Sha256, HexDigest::from([*byte; 32]));
    values.iter().map(value).collect()
}

fn wait(step: MachineStep) -> Wait {
    match step {
        MachineStep::Begins(wait) | MachineStep::Waits(wait) => wait,
        MachineStep::NotWaiting(why) => panic!("{why}"),
    }
}

fn refused(step: MachineStep) -> NotAwaited {
    match step {
        MachineStep::NotWaiting(why) => why,
        other => panic!("{other:?}"),
    }
}

fn id(values: &[u8]) -> String {
    question_id(POOL, &Acceptable::Values(all(values)))
}

#[tokio::test]
async fn question_is_raised_after_enough_machines() {
    let room = Room::new();
    let first = room.shows("tpm:a", &[1, 2], 0).await;
    assert!(
        matches!(
            &first,
            MachineStep::Begins(Wait {
                machines: 1,
                is_put: false,
                is_asked: false,
                left_seconds: 600,
                ..
            })
        ),
        "{first:?}"
    );
    let again = room.shows("tpm:a", &[1, 2], 60).await;
    assert!(
        matches!(
            &again,
            MachineStep::Waits(Wait {
                machines: 1,
                is_asked: false,
                left_seconds: 540,
                ..
            })
        ),
        "{again:?}"
    );
    // Another pool's machines are none of this one's.
    let other = wait(room.ask("other", "tpm:b", &all(&[1, 2]), 60).await);
    assert_eq!((other.machines, other.is_asked), (1, false));
    let second = room.shows("tpm:b", &[2, 1], 70).await;
    assert!(
        matches!(
            &second,
            MachineStep::Begins(Wait {
                machines: 2,
                is_put: true,
                is_asked: true,
                ..
            })
        ),
        "{second:?}"
    );
    let third = wait(room.shows("tpm:c", &[1, 2], 80).await);
    assert_eq!((third.machines, third.is_put, third.is_asked), (3, false, true));
    let rows = room.rows(80).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0].machines, rows[0].is_asked, rows[0].question.machine.as_str()),
        (3, true, "tpm:a")
    );
    let showing: Vec<&str> = rows[0].showing.iter().map(|one| one.machine.as_str()).collect();
    assert_eq!((showing, rows[0].more), (vec!["tpm:a", "tpm:b", "tpm:c"], 0));
}

#[tokio::test]
async fn each_value_counts_in_every_boot_with_it() {
    let room = Room::new();
    assert!(!wait(room.shows("tpm:a", &[1, 2], 0).await).is_asked);
    // This one has the kernel of the first, and not its firmware.
    let kernel = wait(room.shows("tpm:b", &[1], 0).await);
    assert_eq!((kernel.machines, kernel.is_put), (2, true));
    let both = wait(room.shows("tpm:a", &[1, 2], 1).await);
    assert_eq!((both.machines, both.is_asked), (1, false), "nobody else has that firmware");
}

#[tokio::test]
async fn question_row_lists_machines_and_overlapping_questions() {
    let room = Room::new();
    let name = attest_store::StoreEntry {
        id: "tpm:b".to_owned(),
        value: "worker-2".to_owned(),
    };
    room.store.put(EntryKind::NameOf, name).await.unwrap();
    wait(room.shows("tpm:b", &[1], 0).await);
    wait(room.shows("tpm:a", &[1], 5).await);
    wait(room.boots("tpm:c", &[1], 6).await);
    // One has more, one has less, and one has something else.
    wait(room.shows("tpm:d", &[1, 2, 3], 7).await);
    wait(room.shows("tpm:e", &[2], 7).await);
    wait(room.shows("tpm:f", &[9], 7).await);
    let rows = room.rows(8).await;
    let row = |values: &[u8]| rows.iter().find(|row| row.id == id(values)).unwrap();
    let showing = |row: &QuestionRow| -> Vec<(String, Option<String>, u64, bool)> {
        let showing = row.showing.iter().cloned();
        showing
            .map(|one| (one.machine, one.name, one.since - START, one.observed))
            .collect()
    };
    let own = |name: &str| format!("tpm:{name}");
    assert_eq!(
        showing(row(&[1])),
        [
            (own("b"), Some("worker-2".to_owned()), 0, false),
            (own("a"), None, 5, false),
            (own("c"), None, 6, true)
        ]
    );
    let keys = |values: &[u8]| -> Vec<String> { all(values).iter().map(NewValue::key).collect() };
    let beside = |row: &QuestionRow| -> Vec<(String, usize, Vec<String>)> {
        let beside = row.related.iter().cloned();
        beside.map(|one| (one.id, one.machines, one.more)).collect()
    };
    assert_eq!(beside(row(&[1])), [(id(&[1, 2, 3]), 1, keys(&[2, 3]))]);
    assert_eq!(
        beside(row(&[1, 2, 3])),
        [(id(&[1]), 3, Vec::new()), (id(&[2]), 1, Vec::new())],
        "who says yes to it says so to these"
    );
    assert_eq!(beside(row(&[9])), []);
    // What was answered is not open any more; and of many some are named.
    refuse(&*room.store, POOL, &id(&[2]), "no", "alice", START).await.unwrap();
    for machine in 0..9 {
        wait(room.shows(&format!("tpm:more-{machine}"), &[1], 9).await);
    }
    let rows = room.rows(10).await;
    let row = |values: &[u8]| rows.iter().find(|row| row.id == id(values)).unwrap();
    assert_eq!(beside(row(&[1, 2, 3])), [(id(&[1]), 12, Vec::new())]);
    assert_eq!((row(&[1]).showing.len(), row(&[1]).more), (8, 4));
}

#[tokio::test]
async fn machine_waits_at_most_the_window() {
    let room = Room::new();
    wait(room.shows("tpm:a", &[1], 0).await);
    assert_eq!(wait(room.shows("tpm:a", &[1], 599).await).left_seconds, 1);
    for at in [600, 601, 3000] {
        let why = refused(room.shows("tpm:a", &[1], at).await);
        assert_eq!(
            why,
            NotAwaited::Over {
                question: id(&[1]),
                since: START
            },
            "{at}"
        );
    }
    // It still counts for others.
    assert!(wait(room.shows("tpm:b", &[1], 3000).await).is_put);
    // A window after it was seen last, nothing is known of it.
    assert_eq!(wait(room.shows("tpm:a", &[1], 3000 + 3600).await).left_seconds, 600);
    // A clock that is set back has nobody wait for longer.
    assert_eq!(wait(room.shows("tpm:a", &[1], 10).await).left_seconds, 600);
    assert!(matches!(
        room.shows("tpm:a", &[1], 610).await,
        MachineStep::NotWaiting(NotAwaited::Over { .. })
    ));
}

#[tokio::test]
async fn machines_admitted_by_an_observing_pool_count() {
    let room = Room::new();
    assert!(matches!(
        room.boots("tpm:a", &[1], 0).await,
        MachineStep::Begins(Wait { machines: 1, .. })
    ));
    // However long that is.
    for at in [1, 600, 3000] {
        assert!(matches!(room.boots("tpm:a", &[1], at).await, MachineStep::Waits(_)), "{at}");
    }
    assert!(wait(room.boots("tpm:b", &[1], 3000).await).is_put);
    assert_eq!(room.rows(3000).await[0].machines, 2);
    // The pool is strict from now on: it waits, from now on, and not for ever.
    let strict = room.shows("tpm:a", &[1], 3100).await;
    assert!(
        matches!(
            &strict,
            MachineStep::Begins(Wait {
                left_seconds: 600,
                is_put: false,
                ..
            })
        ),
        "{strict:?}"
    );
    assert_eq!(wait(room.shows("tpm:a", &[1], 3699).await).left_seconds, 1);
    refused(room.shows("tpm:a", &[1], 3700).await);
    // It observes again, and what is denied is so for whoever it lets in.
    assert!(matches!(room.boots("tpm:a", &[1], 3701).await, MachineStep::Begins(_)));
    refuse(&*room.store, POOL, &id(&[1]), "no", "alice", START).await.unwrap();
    assert!(matches!(
        refused(room.boots("tpm:a", &[1, 2], 3702).await),
        NotAwaited::Refused { .. }
    ));
    // That it is let in as it should be, nobody has waited for.
    assert!(matches!(room.boots("tpm:c", &[9], 3702).await, MachineStep::Begins(_)));
    assert_eq!(room.ended("tpm:c").await, None);
    assert!(room.rows(3702).await.iter().all(|row| row.question.about.values() != all(&[9])));
}

/// An entry without the field `observed`, as older releases and pools that do not observe write it.
#[tokio::test]
async fn entry_without_observed_field_waits() {
    let room = Room::new();
    wait(room.shows("tpm:a", &[1], 0).await);
    let entries = room.store.list(EntryKind::Waiting).await.unwrap();
    assert!(entries.iter().all(|entry| !entry.value.contains("observed")), "{entries:?}");
    assert_eq!(wait(room.shows("tpm:a", &[1], 1).await).left_seconds, 599);
}

#[tokio::test]
async fn machine_has_one_question_and_limited_changes() {
    let room = Room::new();
    for changed in 0..=CHANGES_LIMIT {
        let value = u8::try_from(changed).unwrap();
        assert!(matches!(room.shows("tpm:rogue", &[value], 0).await, MachineStep::Begins(_)));
    }
    for value in 100..200 {
        assert_eq!(refused(room.shows("tpm:rogue", &[value], 1).await), NotAwaited::Changes);
    }
    let rows = room.rows(1).await;
    assert_eq!(rows.len(), 1, "the last one that it waits for");
    // What it waited for is taken away as soon as nobody can be writing it.
    wait(room.shows("tpm:honest", &[77], 700).await);
    let left = QuestionSnapshot::list(&*room.store).await.unwrap();
    wait(room.shows("tpm:honest-2", &[77], 701).await);
    assert!(left.questions.len() <= usize::try_from(CHANGES_LIMIT).unwrap() + 2);
    assert_eq!(QuestionSnapshot::list(&*room.store).await.unwrap().questions.len(), 2);
    // In the next window it may do so again.
    assert!(matches!(room.shows("tpm:rogue", &[200], 3601).await, MachineStep::Begins(_)));
}

#[tokio::test]
async fn full_question_table_evicts_no_question() {
    let room = Room::new();
    wait(room.shows("tpm:honest", &[255], 0).await);
    for rogue in 1..QUESTIONS_LIMIT {
        let value = u8::try_from(rogue).unwrap();
        wait(room.shows(&format!("tpm:rogue-{rogue}"), &[value], 0).await);
    }
    assert_eq!(refused(room.shows("tpm:rogue", &[200], 0).await), NotAwaited::Questions);
    assert_eq!(QuestionSnapshot::list(&*room.store).await.unwrap().questions.len(), QUESTIONS_LIMIT);
    // What was there is asked, and answered.
    assert!(wait(room.shows("tpm:honest-2", &[255], 1).await).is_put);
    // Another pool has a table of its own; and this one is empty after a window.
    wait(room.ask("other", "tpm:c", &all(&[200]), 1).await);
    for _ in 0..10 {
        wait(room.ask("other", &format!("tpm:{}", rand(&room).await), &all(&[200]), 3700).await);
    }
    wait(room.shows("tpm:late", &[200], 3700).await);
}

/// Returns a different name each time.
async fn rand(room: &Room) -> usize {
    room.store.list(EntryKind::Waiting).await.unwrap().len() + 1_000_000
}

#[tokio::test]
async fn number_of_waiting_machines_is_limited() {
    let room = Room::new();
    let mut ids = Vec::new();
    for machine in 0..MACHINES_LIMIT {
        ids.push(format!("tpm:{machine}"));
    }
    // As they would have been written, in one transaction each hundred.
    wait(room.shows(&ids[0], &[1], 0).await);
    let one = room.store.list(EntryKind::Waiting).await.unwrap();
    let one = one.into_iter().find(|entry| entry.id.starts_with("machine:")).unwrap();
    for some in ids[1..].chunks(100) {
        let write = some.iter().map(|machine| attest_store::StoreEntry {
            id: format!("machine:{POOL}:{machine}"),
            value: one.value.clone(),
        });
        assert!(room.store.change(EntryKind::Waiting, Vec::new(), write.collect()).await.unwrap());
    }
    assert_eq!(refused(room.shows("tpm:more", &[1], 0).await), NotAwaited::Machines);
    assert!(wait(room.shows(&ids[7], &[1], 0).await).is_asked, "who waits goes on waiting");
}

#[tokio::test]
async fn refusal_covers_supersets_but_not_subsets() {
    let room = Room::new();
    wait(room.shows("tpm:a", &[1, 2], 0).await);
    let no = id(&[1, 2]);
    for reason in ["", &"x".repeat(201), "a\nb"] {
        let refused = refuse(&*room.store, POOL, &no, reason, "alice", START).await;
        assert!(matches!(refused, Err(AnswerError::Reason { .. })), "{reason:?}");
    }
    for (pool, id) in [("other", no.as_str()), (POOL, "0123"), (POOL, "")] {
        let unknown = refuse(&*room.store, pool, id, "why", "alice", START).await;
        assert!(matches!(unknown, Err(AnswerError::Unknown { .. })), "{pool} {id}");
    }
    refuse(&*room.store, POOL, &no, "unknown kernel", "alice", START + 5).await.unwrap();
    let why = NotAwaited::Refused {
        question: no.clone(),
        by: "alice".to_owned(),
        at: START + 5,
        reason: "unknown kernel".to_owned(),
    };
    assert_eq!(refused(room.shows("tpm:a", &[1, 2], 6).await), why);
    assert_eq!(refused(room.shows("tpm:b", &[2, 1, 3], 6).await), why);
    wait(room.shows("tpm:c", &[1], 6).await);
    let twice = refuse(&*room.store, POOL, &no, "again", "bob", START).await;
    assert!(matches!(twice, Err(AnswerError::Answered { by, .. }) if by == "alice"));
    // It stays denied for as long as nobody takes it back, whoever comes.
    let later = 100 * 3600;
    wait(room.shows("tpm:d", &[9], later).await);
    assert_eq!(refused(room.shows("tpm:a", &[1, 2], later).await), why);
    withdraw_refusal(&*room.store, POOL, &no).await.unwrap();
    assert!(matches!(
        withdraw_refusal(&*room.store, POOL, &no).await,
        Err(AnswerError::NotRefused { .. })
    ));
    wait(room.shows("tpm:a", &[1, 2], later).await);
}

#[tokio::test]
async fn waiting_machines_survive_restart_and_are_shared() {
    let room = Room::new();
    let other = WaitingList::new(room.store.clone(), room.store.clone());
    wait(room.shows("tpm:a", &[1], 0).await);
    let about = Acceptable::Values(all(&[1]));
    assert!(wait(other.ask(request(POOL, "tpm:b", &about, 0)).await.unwrap()).is_put);
    assert!(!wait(room.shows("tpm:a", &[1], 1).await).is_put, "the other one has asked");
    let Room { folder, store, awaited } = room;
    drop((store, awaited, other));
    let room = Room::in_folder(folder);
    assert_eq!(wait(room.shows("tpm:a", &[1], 100).await).left_seconds, 500);
    assert!(room.rows(100).await[0].is_asked);
}

#[test]
fn question_id_depends_on_values_not_names() {
    let named = |name: &str| NewValue {
        name: Some(name.to_owned()),
        ..all(&[1]).remove(0)
    };
    let of = |pool: &str, values: Vec<NewValue>| question_id(pool, &Acceptable::Values(values));
    assert_eq!(of(POOL, vec![named("a")]), of(POOL, vec![named("b")]));
    let others = [
        of("other", all(&[1])),
        of(POOL, all(&[2])),
        of(POOL, all(&[1, 2])),
        of(POOL, Vec::new()),
        question_id(POOL, &Acceptable::Ek("01".to_owned())),
    ];
    assert!(others.iter().all(|other| *other != id(&[1]) && other.len() == 32));
}

/// Returns an EK of its own for each number.
fn ek(number: usize) -> Acceptable {
    Acceptable::Ek(format!("{number:064x}"))
}

impl Room {
    /// Asks for an unknown TPM from a network.
    async fn unknown(&self, number: usize, network: &str, at: u64) -> MachineStep {
        let (about, machine) = (ek(number), format!("tpm:{number:064x}"));
        let request = WaitRequest {
            network,
            ..request(POOL, &machine, &about, at)
        };
        self.awaited.ask(request).await.unwrap()
    }
}
