//! The seal, with keys in a file.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn unseals_only_unaltered_text_of_the_same_kind() {
    let folder = tempfile::tempdir().unwrap();
    let seal = SealKeyRing::open(&folder.path().join("seal.key")).unwrap();
    let text = seal.seal(Sealed::Challenge, b"content").unwrap();
    assert_eq!(seal.unseal(Sealed::Challenge, &text).unwrap().as_slice(), b"content");
    assert_eq!(seal.unseal(Sealed::Ticket, &text), Err(NotSealed), "another kind");
    let (id, sealed) = text.split_once('.').unwrap();
    let bytes = BASE64URL_NOPAD.decode(sealed.as_bytes()).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut altered = bytes.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            seal.unseal(Sealed::Challenge, &format!("{id}.{}", BASE64URL_NOPAD.encode(&altered))),
            Err(NotSealed),
            "bit {bit}"
        );
    }
    for length in 0..text.len() {
        assert_eq!(
            seal.unseal(Sealed::Challenge, &text[..length]),
            Err(NotSealed),
            "{length} characters"
        );
    }
    assert_eq!(seal.unseal(Sealed::Challenge, sealed), Err(NotSealed), "without the key's id");
    assert!(!text.contains("content") && seal.seal(Sealed::Challenge, b"content").unwrap() != text);
}

#[test]
fn refuses_sealed_text_over_the_length_limit() {
    let folder = tempfile::tempdir().unwrap();
    let seal = SealKeyRing::open(&folder.path().join("seal.key")).unwrap();
    let longest = (SEALED_LIMIT_BYTES * 3 / 4 - 100..)
        .find(|length| seal.seal(Sealed::Ticket, &vec![0; *length]).unwrap().len() == SEALED_LIMIT_BYTES)
        .unwrap();
    for (length, opens) in [(longest, true), (longest + 1, false)] {
        let text = seal.seal(Sealed::Ticket, &vec![0; length]).unwrap();
        assert_eq!(seal.unseal(Sealed::Ticket, &text).is_ok(), opens, "{} characters", text.len());
    }
}

#[test]
fn shared_key_dates_use_the_slower_clock() {
    assert_eq!(Times::new(5, 3), Times { store: 3, clock: 3 });
    assert_eq!(Times::new(3, 5), Times { store: 3, clock: 5 });
}

#[test]
fn replace_if_there_creates_no_missing_key_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seal.key");
    SealKeyRing::replace_if_exists(&file).unwrap();
    assert!(!file.exists());
    let text = SealKeyRing::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap();
    SealKeyRing::replace_if_exists(&file).unwrap();
    assert_eq!(SealKeyRing::open(&file).unwrap().unseal(Sealed::Ticket, &text), Err(NotSealed));
}

#[test]
fn key_file_survives_restart_and_must_be_private() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seal.key");
    let text = SealKeyRing::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap();
    assert!(SealKeyRing::open(&file).unwrap().unseal(Sealed::Ticket, &text).is_ok());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let other = SealKeyRing::open(&folder.path().join("other.key")).unwrap();
    assert_eq!(other.unseal(Sealed::Ticket, &text), Err(NotSealed));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(SealKeyRing::open(&file), Err(SealError::Mode { mode: 0o640, .. })));
    let bad = folder.path().join("bad.key");
    for text in ["abc", &"ab".repeat(32), "attestation-gateway seal 2\n"] {
        fs::write(&bad, text).unwrap();
        fs::set_permissions(&bad, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(SealKeyRing::open(&bad), Err(SealError::NoKey(_))), "{text}");
    }
}

const DAY: u64 = 24 * 3600;
const KEEP: Duration = Duration::from_secs(600);

#[tokio::test]
async fn previous_key_unseals_until_its_retention_ends() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seal.key");
    let seal = SealKeyRing::open(&file).unwrap();
    assert!(
        seal.maintain(100 * DAY, KEEP).await.unwrap(),
        "nobody says how old the first key is"
    );
    assert!(!seal.maintain(130 * DAY - 1, KEEP).await.unwrap());
    let old = seal.seal(Sealed::Ticket, b"x").unwrap();
    assert!(seal.maintain(130 * DAY, KEEP).await.unwrap(), "a month is over");
    let new = seal.seal(Sealed::Ticket, b"x").unwrap();
    assert_ne!(old.split_once('.').unwrap().0, new.split_once('.').unwrap().0);
    let opens = |seal: &SealKeyRing, text: &str| seal.unseal(Sealed::Ticket, text).is_ok();
    seal.maintain(130 * DAY + 600, KEEP).await.unwrap();
    assert!(opens(&seal, &old) && opens(&seal, &new));
    seal.maintain(130 * DAY + 601, KEEP).await.unwrap();
    assert!(!opens(&seal, &old) && opens(&seal, &new));
    assert_eq!(fs::read_to_string(&file).unwrap().lines().count(), 2, "the head, and one key");
    // By a command, while the gateway runs.
    SealKeyRing::rotate(&file, 131 * DAY, KEEP).unwrap();
    assert!(
        !opens(&seal, &SealKeyRing::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap()),
        "not seen yet"
    );
    assert!(!seal.maintain(131 * DAY, KEEP).await.unwrap());
    assert!(opens(&seal, &SealKeyRing::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap()) && opens(&seal, &new));
    SealKeyRing::replace(&file).unwrap();
    let replaced = SealKeyRing::open(&file).unwrap();
    assert!(!opens(&replaced, &new) && opens(&replaced, &replaced.seal(Sealed::Ticket, b"x").unwrap()));
}

#[test]
fn a_crash_leaves_no_partial_key_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seal.key");
    // What a crash while it was written leaves.
    fs::write(folder.path().join(".seal.key.part"), "attestation-gateway se").unwrap();
    let text = SealKeyRing::open(&file).unwrap().seal(Sealed::Ticket, b"x").unwrap();
    assert!(SealKeyRing::open(&file).unwrap().unseal(Sealed::Ticket, &text).is_ok());
    let names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["seal.key"]);
    for broken in [
        "",
        "abc",
        "attestation-gateway seal 2\n",
        "attestation-gateway seal 2\n00 1 abc\n",
        "attestation-gateway seal 1\n",
    ] {
        fs::write(&file, broken).unwrap();
        assert!(matches!(SealKeyRing::open(&file), Err(SealError::NoKey(_))), "{broken:?}");
    }
}
