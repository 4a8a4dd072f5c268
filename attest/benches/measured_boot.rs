//! Replay and interpretation of an event log of 34 kB, as a ratio to hashing alone: each event's data once, and what each extends.
//!
//! `cargo bench -p attest --bench measured_boot`; it fails if they cost more than [`WHOLE_LIMIT_RATIO`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark may panic"
)]

mod interleaved;
#[path = "../tests/log_builder/mod.rs"]
mod log_builder;
#[path = "../tests/measured_boot/machine.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod machine;

use std::collections::BTreeMap;
use std::hint::black_box;

use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::tpm::event_log::EventLog;
use attest::tpm::measured_boot::{DatabaseName, MeasuredBoot};
use aws_lc_rs::digest;
use interleaved::{Interleaved, Limit};

/// Limit for the whole (parsing, replay, comparison with the quote, and interpretation of all events), in hashings.
const WHOLE_LIMIT_RATIO: f64 = 2.0;

const FLOOR: &str = "hashing alone: data and extends";
const WHOLE: &str = "event log: replay and meaning";

fn main() {
    let log = machine::server(machine::real_certificate);
    let bytes = log.build();
    let quoted: BTreeMap<u8, HexDigest> = log.pcrs(HashAlg::Sha256).into_iter().filter(|(pcr, _)| *pcr < 15).collect();
    let parsed = EventLog::parse(&bytes).unwrap();
    let trusted = parsed.check_against(HashAlg::Sha256, &quoted).unwrap();
    let boot = MeasuredBoot::from_events(&trusted);
    assert_eq!(boot.secure_boot(), Ok(true));
    assert_eq!(
        (
            boot.database(DatabaseName::Dbx).unwrap().hashes.len(),
            boot.grub_texts().unwrap().len()
        ),
        (250, 40)
    );
    println!("event log: generated, {} bytes, {} events", bytes.len(), boot.events.len());

    let mut steps = Interleaved::default();
    steps.step(FLOOR, || {
        let mut value = [0; 32];
        for event in parsed.events() {
            black_box(digest::digest(&digest::SHA256, event.data));
            let extended = digest::digest(
                &digest::SHA256,
                [value, event.digest(HashAlg::Sha256).unwrap().try_into().unwrap()].as_flattened(),
            );
            value.copy_from_slice(extended.as_ref());
        }
        black_box(value);
    });
    steps.step("event log: parse, replay, compare", || {
        let parsed = EventLog::parse(&bytes).unwrap();
        black_box(parsed.check_against(HashAlg::Sha256, &quoted).unwrap().explained_pcrs().count());
    });
    steps.step("event log: meaning", || drop(black_box(MeasuredBoot::from_events(&trusted))));
    steps.step(WHOLE, || {
        let parsed = EventLog::parse(&bytes).unwrap();
        drop(black_box(MeasuredBoot::from_events(
            &parsed.check_against(HashAlg::Sha256, &quoted).unwrap(),
        )));
    });
    steps.run(&[Limit {
        whole: WHOLE,
        floor: FLOOR,
        ratio: WHOLE_LIMIT_RATIO,
    }]);
}
