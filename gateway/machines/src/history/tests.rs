use std::collections::BTreeMap;

use attest::protocol::HexDigest;
use attest::tpm::event_log::EventLogError;
use attest::tpm::rules::{BootRefusal, Check, EventDetail};
use attest::{Counters, HashAlg, NodeIdentity, TpmEvidenceError, Withheld};
use attest_store::Embedded;
use data_encoding::BASE64URL_NOPAD;

use super::*;
use crate::enrolment::attested_tpms;
use crate::revocations::named;

/// 26 November 2026, at ten in the morning.
const NOW: u64 = 1_795_687_200;
const DAY: u64 = 86_400;

fn store() -> (tempfile::TempDir, Embedded) {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
    (folder, store)
}

fn identity(byte: u8) -> String {
    NodeIdentity::from_ek(HexDigest::from([byte; 32]).try_into().unwrap()).to_string()
}

fn counters((reset_count, restart_count, clock_ms): (u32, u32, u64), clock_safe: bool, firmware_version: u64) -> Counters {
    Counters {
        reset_count,
        restart_count,
        clock_ms,
        clock_safe,
        firmware_version,
    }
}

fn hex(byte: u8) -> String {
    HexDigest::from([byte; 32]).to_string()
}

/// Returns a digest of this byte as stored.
fn short(byte: u8) -> String {
    hex(byte)[..16].to_owned()
}

/// Returns digests as stored: per PCR the first bytes of a digest that consists of this byte.
fn begins(all: &[(u8, u8)]) -> String {
    let bytes: Vec<u8> = all.iter().flat_map(|(pcr, byte)| [&[*pcr][..], &[*byte; 8]].concat()).collect();
    BASE64URL_NOPAD.encode(&bytes)
}

/// Returns a boot with these values of PCRs 4 and 7, these logs of them, and these images.
fn boot_of(pcr_4: u8, said: &[(u8, u8)], images: Option<&[u8]>) -> Boot {
    let images = images.map(|images| (Check::Images.label(), images.iter().map(|byte| short(*byte)).collect::<Vec<_>>()));
    let text = serde_json::json!({
        "bank": HashAlg::Sha256,
        "pcrs": begins(&[(4, pcr_4), (7, 7)]),
        "said_form": 1,
        "said": begins(said),
        "values": images.into_iter().collect::<BTreeMap<_, _>>(),
    });
    serde_json::from_str(&text.to_string()).unwrap()
}

/// Returns such a boot with this log of PCR 4.
fn boot(pcr_4: u8, said: u8, images: Option<&[u8]>) -> Boot {
    boot_of(pcr_4, &[(4, said), (7, 7)], images)
}

/// Returns the history of a TPM with this current state, as [`History::read`] does.
async fn history(store: &dyn Store, id: &str, counters: Option<Counters>, boot: Boot) -> History {
    let get = async |id: &String| store.get(EntryKind::Clock, id).await.unwrap();
    let [of_counters, of_boot] = ids(id);
    let (known, trusted) = (get(&of_counters).await, get(&of_boot).await);
    let past = TpmHistory::new(id.to_owned(), Kind::Tpm, counters, boot, [known, trusted]).unwrap();
    History(vec![past])
}

/// Stores the current state, by a decision.
async fn note(store: &dyn Store, history: History, at: u64, decision: &str) {
    let decision = decision.to_owned();
    let noted = store.transact(move |transaction| history.note(transaction, at, &decision));
    let noted: Result<_, StoreError> = noted.await;
    noted.unwrap();
}

fn refuses(counters_back: HistoryPolicy, firmware_back: HistoryPolicy, another_log: HistoryPolicy) -> HistoryRules {
    HistoryRules {
        counters_back,
        firmware_back,
        another_log,
    }
}

#[tokio::test]
async fn alerts_when_tpm_counters_or_clock_decrease() {
    let told = async |before: (u32, u32, u64), now: (u32, u32, u64), clock_safe: bool| {
        let (_folder, store) = store();
        let (known, now) = (counters(before, true, 1), counters(now, clock_safe, 1));
        let first = history(&store, &identity(1), Some(known), boot(4, 0xa, None)).await;
        assert_eq!(first.alerts().count(), 0, "nothing is known yet");
        assert!(attested_tpms(&store).await.unwrap().is_empty(), "it has not attested yet");
        note(&store, first, NOW, "d1").await;
        assert_eq!(attested_tpms(&store).await.unwrap(), [identity(1)].into());
        let other = history(&store, &identity(2), Some(counters((0, 0, 0), true, 0)), boot(4, 0xb, None)).await;
        assert_eq!(other.alerts().count(), 0, "another TPM");
        let second = history(&store, &identity(1), Some(now), boot(4, 0xa, None)).await;
        second.alerts().count() == 1
    };
    let before = (5, 5, 5);
    for (now, clock_safe, backwards) in [
        ((5, 5, 5), true, false),
        ((5, 5, 6), true, false),
        ((5, 6, 6), true, false),
        ((6, 0, 6), true, false),
        ((5, 5, 4), true, true),
        ((6, 0, 4), true, true),
        // The TPM says itself that it may have reported a later time.
        ((5, 5, 4), false, false),
        ((5, 4, 6), true, true),
        ((4, 9, 6), false, true),
    ] {
        assert_eq!(told(before, now, clock_safe).await, backwards, "{now:?} {clock_safe}");
    }
}

#[tokio::test]
async fn alerts_when_the_firmware_version_decreases() {
    let (_folder, store) = store();
    let told = async |version| {
        let now = counters((1, 1, 1), true, version);
        let history = history(&store, &identity(1), Some(now), boot(4, 0xa, None)).await;
        let alerts = history.alerts().next().is_some();
        note(&store, history, NOW, "d").await;
        alerts
    };
    for (version, back) in [
        (5, false),
        (5, false),
        (7, false),
        (6, true),
        (6, false),
        (u64::MAX, false),
        (0, true),
    ] {
        assert_eq!(told(version).await, back, "{version}");
    }
    // What cannot be read is not known: it may be a later release's.
    let [_, id] = ids(&identity(1));
    let kept = store.get(EntryKind::Clock, &id).await.unwrap().unwrap().value;
    let text = begins(&[(4, 4), (7, 7)]);
    for unreadable in ["no JSON".to_owned(), kept.replace(&text, &text[1..]), kept.replace(&text, "AAA")] {
        assert_ne!(unreadable, kept);
        assert!(!told(9).await);
        let (id, value) = (id.clone(), unreadable);
        store.put(EntryKind::Clock, StoreEntry { id, value }).await.unwrap();
        assert!(!told(3).await && told(2).await);
    }
}

#[tokio::test]
async fn alerts_when_event_log_changes_despite_same_pcrs() {
    let (_folder, store) = store();
    let told = async |boot: Boot| {
        let history = history(&store, &identity(1), None, boot).await;
        history.alerts().next()
    };
    let first = history(&store, &identity(1), None, boot(4, 0xa, None)).await;
    note(&store, first, NOW, "0123456789abcdef").await;
    let said = told(boot(4, 0xb, None)).await.unwrap();
    for part in ["PCR 4", "2026-11-26", "0123456789abcdef"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert_eq!(told(boot(4, 0xa, None)).await, None, "the same");
    // What is said of another value is another boot's.
    assert_eq!(told(boot(5, 0xb, None)).await, None);
    // Another release reads logs otherwise: nothing can be compared.
    let text = serde_json::to_string(&boot(4, 0xb, None)).unwrap();
    let of_another_form: Boot = serde_json::from_str(&text.replace("\"said_form\":1", "\"said_form\":2")).unwrap();
    assert_eq!(told(of_another_form).await, None);
    let of_another_bank: Boot = serde_json::from_str(&text.replace("\"sha256\"", "\"sha384\"")).unwrap();
    assert_eq!(told(of_another_bank).await, None);
    // Whether there has to be a log is another rule's to say.
    assert_eq!(told(boot_of(4, &[(7, 7)], None)).await, None);
}

#[tokio::test]
async fn boot_is_stored_daily_and_on_change() {
    let (_folder, store) = store();
    let [_, id] = ids(&identity(1));
    let written = async |boot: Boot, at: u64, decision: &str| {
        let history = history(&store, &identity(1), Some(counters((1, 1, 1), true, 1)), boot).await;
        note(&store, history, at, decision).await;
        let entry = store.get(EntryKind::Clock, &id).await.unwrap().unwrap();
        entry.value.contains(&format!("\"{decision}\""))
    };
    for (number, (made, at, expected)) in [
        (boot(4, 0xa, None), NOW, true),
        (boot(4, 0xa, None), NOW + 3600, false),
        (boot(5, 0xa, None), NOW + 3600, true),
        (boot(5, 0xb, None), NOW + 3600, true),
        (boot(5, 0xb, Some(&[1])), NOW + 3600, true),
        (boot(5, 0xb, Some(&[1])), NOW + DAY, true),
        // A clock that was set back.
        (boot(5, 0xb, Some(&[1])), NOW, true),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(written(made, at, &format!("d{number}")).await, expected, "{number}");
    }
}

#[tokio::test]
async fn refusal_names_the_previous_value_of_the_machine() {
    let (_folder, store) = store();
    let first = history(&store, &identity(1), None, boot(4, 0xa, Some(&[1, 2, 3]))).await;
    let pcr = |index| {
        let (bank, quoted, accepted) = (HashAlg::Sha256, String::new(), Withheld::from_text("nothing"));
        TpmEvidenceError::PcrMismatch {
            index,
            bank,
            quoted,
            accepted,
        }
    };
    let event = |check, digest: u8| {
        TpmEvidenceError::Boot(BootRefusal::NotAccepted {
            check,
            event: 17,
            bank: HashAlg::Sha256,
            digest: hex(digest),
            said: EventDetail::Nothing,
            accepted: Withheld::from_text("nothing"),
        })
    };
    assert_eq!(first.before(&pcr(4).into()), None, "nothing is known yet");
    note(&store, first, NOW - 2 * DAY, "d").await;
    let said = async |boot: Boot, error: TpmEvidenceError| {
        let history = history(&store, &identity(1), None, boot).await;
        history.before(&error.into()).unwrap_or_default()
    };
    let that = "this machine booted that until 2026-11-24";
    let then = |byte: u8| format!("this machine booted {}… until 2026-11-24", short(byte));
    let another = || boot(5, 0xa, Some(&[1, 2, 9]));
    // It lapsed, or was taken out of what is accepted.
    assert_eq!(said(another(), event(Check::Images, 2)).await, that);
    assert_eq!(said(boot(4, 0xa, None), pcr(4)).await, that);
    // Another stands in its place.
    assert_eq!(said(another(), event(Check::Images, 9)).await, then(3));
    assert_eq!(
        said(another(), pcr(4)).await,
        format!("PCR 4 of this machine was {}… until 2026-11-24", short(4))
    );
    // It is there beside all others.
    let more = boot(5, 0xa, Some(&[1, 2, 3, 9]));
    assert_eq!(
        said(more, event(Check::Images, 9)).await,
        "this machine booted without that until 2026-11-24"
    );
    let others = boot(5, 0xa, Some(&[9]));
    let all = said(others, event(Check::Images, 9)).await;
    assert!(all.contains(&format!("{}…, {}…, {}…", short(1), short(2), short(3))), "{all}");
    // Nothing is kept of what a check saw: the PCR says whether it was the same.
    assert_eq!(said(another(), event(Check::Authorities, 9)).await, that);
    assert_eq!(said(another(), event(Check::Grub, 9)).await, "", "that PCR was not quoted");
    let off = TpmEvidenceError::Boot(BootRefusal::SecureBootOff { check: Check::SecureBoot });
    assert_eq!(said(another(), off).await, that);
    // Refusals that are about no boot.
    for other in [
        TpmEvidenceError::Signature,
        TpmEvidenceError::EventLogMissing,
        TpmEvidenceError::EventLog(EventLogError::TooLarge { bytes: 1 }),
    ] {
        assert_eq!(said(another(), other).await, "");
    }
}

#[tokio::test]
async fn refused_regressions_stay_refused_until_history_is_forgotten() {
    let bad = [
        (counters((4, 0, 9), true, 9), boot(4, 0xa, None)),
        (counters((9, 0, 9), true, 2), boot(4, 0xa, None)),
        (counters((9, 0, 9), true, 9), boot(4, 0xb, None)),
    ];
    for (which, (now, boot_now)) in bad.into_iter().enumerate() {
        let (_folder, store) = store();
        let known = counters((5, 0, 5), true, 5);
        let first = history(&store, &identity(1), Some(known), boot(4, 0xa, None)).await;
        note(&store, first, NOW, "d").await;
        let found = async |rules: HistoryRules| {
            let history = history(&store, &identity(1), Some(now), boot_now.clone()).await;
            history.refused(rules)
        };
        assert_eq!(found(HistoryRules::default()).await, None);
        for (rule, answers) in [
            (0, refuses(HistoryPolicy::Refuse, HistoryPolicy::Alert, HistoryPolicy::Alert)),
            (1, refuses(HistoryPolicy::Alert, HistoryPolicy::Refuse, HistoryPolicy::Alert)),
            (2, refuses(HistoryPolicy::Alert, HistoryPolicy::Alert, HistoryPolicy::Refuse)),
        ] {
            let refused = found(answers).await;
            assert_eq!(refused.is_some(), rule == which, "{which}: {refused:?}");
            assert!(refused.is_none_or(|refused| refused.tpm == identity(1)));
        }
        let all = refuses(HistoryPolicy::Refuse, HistoryPolicy::Refuse, HistoryPolicy::Refuse);
        assert!(
            found(all).await.is_some() && found(all).await.is_some(),
            "it does not get better by itself"
        );
        assert!(forget(&store, &identity(1)).await.unwrap());
        assert_eq!(found(all).await, None);
        assert_eq!(attested_tpms(&store).await.unwrap(), [identity(1)].into(), "it has attested");
    }
}

#[tokio::test]
async fn history_is_forgotten_by_name_digest_or_instance() {
    let (_folder, store) = store();
    let of_instance = "azure-vtpm:b1310a36-d400-46f6-82cb-6217df846586";
    let with_subscription = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
    assert_eq!(history_identity(with_subscription), of_instance);
    let digest = identity(1).trim_start_matches("tpm:").to_owned();
    for (id, who) in [
        (identity(1), named(&digest).unwrap()),
        (identity(1), named("worker-7").unwrap()),
        (of_instance.to_owned(), named(with_subscription).unwrap()),
        (of_instance.to_owned(), named(of_instance).unwrap()),
    ] {
        let value = identity(1);
        let id_of_name = "worker-7".to_owned();
        store.put(EntryKind::Name, StoreEntry { id: id_of_name, value }).await.unwrap();
        for id in [&id, &identity(9)] {
            let first = history(&store, id, Some(counters((5, 5, 5), true, 5)), boot(4, 0xa, None)).await;
            note(&store, first, NOW, "d").await;
        }
        assert!(forget(&store, &who).await.unwrap(), "{who}");
        let back = async |id: &str| {
            let now = history(&store, id, Some(counters((0, 0, 0), true, 0)), boot(4, 0xb, None)).await;
            now.alerts().count()
        };
        assert_eq!((back(&id).await, back(&identity(9)).await), (0, 3), "{who}");
    }
    assert!(!forget(&store, &identity(3)).await.unwrap());
    assert!(!forget(&store, "worker-8").await.unwrap());
}
