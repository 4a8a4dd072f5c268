//! Content over a limit is counted, and proves nothing.

use super::machine::*;
use super::{boot, verdict};
use crate::log_builder::{EV_IPL, LogBuilder, SHA256};
use attest::tpm::measured_boot::{
    CERTIFICATES_LIMIT, DatabaseName, EVENTS_LIMIT, HASHES_LIMIT, LogText, MANIFESTS_LIMIT, Meaning, Sha256, TEXT_LIMIT_BYTES,
};

fn with_dbx(value: &[u8]) -> LogBuilder {
    let mut log = LogBuilder::new(&[SHA256]);
    for (vendor, name, own) in secure_boot_variables(true) {
        log = log.variable(vendor, name, if name == "dbx" { value } else { &own });
    }
    log.separator(7)
}

#[test]
fn event_count_is_limited() {
    let log = |more: usize| (0..EVENTS_LIMIT - 6 + more).fold(with_dbx(&[]), |log, _| log.event(9, EV_IPL, b"x"));
    let read = boot(&log(0));
    assert_eq!((read.events.len(), read.left_out, read.secure_boot()), (EVENTS_LIMIT, 0, Ok(true)));
    let read = boot(&log(2));
    assert_eq!((read.events.len(), read.left_out), (EVENTS_LIMIT, 2));
    assert_eq!(
        (verdict(&read.secure_boot()), verdict(&read.files()), verdict(&read.images(4))),
        ("too many", "too many", "too many")
    );
}

#[test]
fn database_hash_count_is_limited() {
    let limit = u32::try_from(HASHES_LIMIT).unwrap();
    let read = boot(&with_dbx(&dbx(&hashes(limit))));
    assert!(read.database(DatabaseName::Dbx).unwrap().is_complete());
    // In one list, and in two.
    let (first, second) = (dbx(&hashes(limit)), dbx(&hashes(limit + 3)[HASHES_LIMIT..]));
    for value in [dbx(&hashes(limit + 3)), [first, second].concat()] {
        let read = boot(&with_dbx(&value));
        let database = read.database(DatabaseName::Dbx).unwrap();
        assert_eq!(
            (database.hashes.len(), database.left_out, database.is_complete()),
            (HASHES_LIMIT, 3, false)
        );
        let wanted: Vec<Sha256> = hashes(limit + 3).into_iter().map(Sha256).collect();
        assert_eq!(database.missing(&wanted), wanted[HASHES_LIMIT..]);
    }
}

#[test]
fn database_certificate_count_is_limited() {
    let list = signature_list(X509, &[&certificate("one")]);
    let read = boot(&with_dbx(&list.repeat(CERTIFICATES_LIMIT + 2)));
    let database = read.database(DatabaseName::Dbx).unwrap();
    assert_eq!(
        (database.certificates.len(), database.left_out, database.is_complete()),
        (CERTIFICATES_LIMIT, 2, false)
    );
}

#[test]
fn text_length_is_limited() {
    let text = |length: usize| {
        let read = boot(&LogBuilder::new(&[SHA256]).grub(&"x".repeat(length)));
        read.grub_texts().unwrap()[0].text.clone()
    };
    assert_eq!(text(TEXT_LIMIT_BYTES).whole().map(str::len), Some(TEXT_LIMIT_BYTES));
    let longer = text(TEXT_LIMIT_BYTES + 1);
    assert_eq!(longer.whole(), None);
    // As JSON it is no string, so that nothing compares a beginning.
    assert_eq!(serde_json::to_value(&longer).unwrap()["bytes"], TEXT_LIMIT_BYTES + 1);
    assert!(serde_json::to_value(text(1)).unwrap().is_string());
    // Characters of several bytes are not cut, and what is no Unicode is no text.
    let wide = LogText::utf16(&utf16(&"€".repeat(TEXT_LIMIT_BYTES)));
    assert!(
        matches!(&wide, LogText::Beginning { begins, bytes } if begins.len() <= TEXT_LIMIT_BYTES && begins.ends_with('€') && *bytes == 2 * TEXT_LIMIT_BYTES)
    );
    for text in [LogText::utf8(&[0xff, b'x']), LogText::utf16(&[0, 0xd8]), LogText::utf16(b"odd")] {
        assert_eq!(text.whole(), None);
    }
    assert_eq!(LogText::utf8(b"a\x1b[31mb\n").to_string(), "a\u{fffd}[31mb\u{fffd}");
}

#[test]
fn manifest_count_is_limited() {
    let note = [b"SP800-155 Event3".as_slice(), &[0; 20], &[0; 4], &[0; 4], &[0]].concat();
    let log = (0..=MANIFESTS_LIMIT).fold(LogBuilder::new(&[SHA256]), |log, _| log.event(0, 3, &note));
    assert_eq!(boot(&log).said_manifests.len(), MANIFESTS_LIMIT);
}

#[test]
fn every_kind_of_text_is_limited() {
    let long = "y".repeat(3 * TEXT_LIMIT_BYTES);
    let log = with_dbx(&[])
        .event(7, VARIABLE_AUTHORITY, &variable(SHIM, "SbatLevel", long.as_bytes()))
        .event(7, VARIABLE_AUTHORITY, &variable(OWNER, &long, b"x"))
        .image("x", &long)
        .measured(9, EV_IPL, b"x", long.as_bytes())
        .event(12, EV_IPL, &utf16(&long))
        .measured(14, EV_IPL, b"x", long.as_bytes())
        .measured(3, EV_IPL, b"x", long.as_bytes())
        .event(3, EV_IPL, long.as_bytes())
        .event(0, EV_S_CRTM_VERSION, &utf16(&long))
        .measured(1, VARIABLE_BOOT, b"x", &variable(GLOBAL, &long, b"x"));
    let read = boot(&log);
    for event in &read.events {
        let bytes = serde_json::to_string(&event.meaning).unwrap().len();
        assert!(bytes < 2 * TEXT_LIMIT_BYTES, "{:?} has {bytes} bytes", event.said_type);
    }
    assert!(
        read.events
            .iter()
            .any(|event| matches!(&event.meaning, Meaning::SbatLevel { level } if level.whole().is_none()))
    );
}

/// The benchmark's log has the content that the benchmark claims.
#[test]
fn benchmark_log_is_parsed_completely() {
    let log = server(certificate);
    let read = boot(&log);
    assert_eq!(read.secure_boot(), Ok(true));
    assert_eq!(
        read.database(DatabaseName::Dbx).unwrap().hashes.len(),
        usize::try_from(SERVER_HASHES).unwrap()
    );
    assert_eq!(
        (
            read.authorities().unwrap().len(),
            read.grub_texts().unwrap().len(),
            read.images(4).unwrap().len()
        ),
        (1, 40, 3)
    );
}
