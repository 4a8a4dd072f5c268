//! Each step of a verification and the whole, as a time and as a ratio to one RSA-2048 verification by aws-lc-rs measured in the same run:
//! the floor under which no verification of an RSA quote can go.
//!
//! `cargo bench -p attest`; it fails if the whole verification costs more than [`WHOLE_LIMIT_RATIO`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::panic,
    missing_docs,
    reason = "a benchmark may panic"
)]

#[path = "../tests/log_builder/mod.rs"]
mod log_builder;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../tests/vectors/mod.rs"]
mod vectors;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;

use attest::protocol::HexDigest;
use attest::tpm::ak::AkPublic;
use attest::tpm::credential;
use attest::tpm::ek::EkPublic;
use attest::tpm::event_log::EventLog;
use attest::tpm::wire::{KeyParameters, Quoted, Scheme};
use attest::{HashAlg, Submission};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use criterion::Criterion;
use support::{Case, SoftKey, ek_area};

/// The whole verification of an RSA-2048 quote with a 34 kB event log, in RSA-2048 verifications.
const WHOLE_LIMIT_RATIO: f64 = 3.0;

const FLOOR: &str = "RSA-2048 verify, aws-lc-rs alone";
const WHOLE: &str = "whole verify, RSA-2048 AK, event log";

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let names = measure(&mut criterion);
    criterion.final_summary();
    report(&names);
}

fn measure(criterion: &mut Criterion) -> Vec<&'static str> {
    let (log, pcrs, source) = event_log();
    println!("event log: {source}, {} bytes", log.len());
    let with_log = |key: SoftKey| Case::with_pcrs(key, HashAlg::Sha256, pcrs.clone()).but(|case| case.event_log = Some(log.clone()));
    let rsa = with_log(SoftKey::rsa(Scheme::RsaSsa(HashAlg::Sha256)));
    let p256 = with_log(SoftKey::p256());
    let p384 = with_log(SoftKey::p384());

    let quoted = rsa.quoted.to_bytes();
    let signature = rsa.ak.sign(&quoted);
    let KeyParameters::Rsa { modulus, .. } = rsa.ak.parameters() else {
        panic!("an RSA key")
    };
    let raw_signature = &signature[6..];
    let ak = AkPublic::parse(&rsa.ak_area.to_bytes()).unwrap();
    let quoted_pcrs: BTreeMap<u8, HexDigest> = rsa.pcrs.clone();

    let mut names = Vec::new();
    let mut bench = |name: &'static str, body: &mut dyn FnMut()| {
        criterion.bench_function(name, |bencher| bencher.iter(&mut *body));
        names.push(name);
    };
    bench(FLOOR, &mut || {
        let key = RsaPublicKeyComponents {
            n: black_box(modulus.as_slice()),
            e: &[1, 0, 1][..],
        };
        key.verify(&RSA_PKCS1_2048_8192_SHA256, &quoted, raw_signature).unwrap();
    });
    for (name, case) in [
        (WHOLE, &rsa),
        ("whole verify, P-256 AK, event log", &p256),
        ("whole verify, P-384 AK, event log", &p384),
    ] {
        let (challenge, evidence, endorsements) = (case.challenge(), case.evidence(), case.endorsements());
        bench(name, &mut || {
            let submission = Submission::new(&challenge, &evidence, &case.server_keys);
            black_box(attest::verify(&submission, &endorsements, support::at(case.now)).unwrap());
        });
    }
    bench("AK: parse, check, Name", &mut || {
        drop(black_box(AkPublic::parse(&rsa.ak_area.to_bytes()).unwrap()))
    });
    bench("EK: parse, check, digest", &mut || {
        drop(black_box(EkPublic::parse(&rsa.ek_area.to_bytes()).unwrap()))
    });
    bench("quote: signature", &mut || {
        black_box(ak.verify(&quoted, &signature).unwrap());
    });
    bench("quote: parse", &mut || drop(black_box(Quoted::parse(&quoted).unwrap())));
    bench("event log: parse", &mut || drop(black_box(EventLog::parse(&log).unwrap())));
    bench("event log: parse, replay, compare", &mut || {
        let log = EventLog::parse(&log).unwrap();
        black_box(log.check_against(HashAlg::Sha256, &quoted_pcrs).unwrap().explained_pcrs().count());
    });
    for (name, key) in [
        ("make credential, RSA-2048 EK", SoftKey::rsa(Scheme::RsaSsa(HashAlg::Sha256))),
        ("make credential, P-256 EK", SoftKey::p256()),
        ("make credential, P-384 EK", SoftKey::p384()),
    ] {
        let ek = EkPublic::parse(&ek_area(&key).to_bytes()).unwrap();
        bench(name, &mut || drop(black_box(credential::make(&ek, ak.name(), &[7; 32]).unwrap())));
    }
    names
}

/// A real machine's log where the vectors are at hand, else a generated one of like size.
fn event_log() -> (Vec<u8>, BTreeMap<u8, Vec<u8>>, &'static str) {
    if let (Some(log), Some(pcrs)) = (
        vectors::vector("eventlogs/rhel8-uefi.bin"),
        vectors::vector("eventlogs/rhel8-uefi.bin.pcrs.json"),
    ) {
        let banks: BTreeMap<String, BTreeMap<u8, String>> = serde_json::from_slice(&pcrs).unwrap();
        let values = banks["sha256"].iter().filter(|(pcr, _)| **pcr < 8);
        let pcrs = values
            .map(|(pcr, value)| (*pcr, data_encoding::HEXLOWER.decode(value.as_bytes()).unwrap()))
            .collect();
        return (log, pcrs, "rhel8-uefi.bin");
    }
    let (log, pcrs) = log_builder::like_a_server();
    (log, pcrs, "generated")
}

/// Prints the table and fails above the limit.
fn report(names: &[&str]) {
    let Some(floor) = median_ns(FLOOR) else {
        return println!("no figures: this was no measuring run");
    };
    println!("\n{:<42} {:>12} {:>8}", "step", "median", "ratio");
    for name in names {
        let Some(median) = median_ns(name) else { continue };
        println!("{name:<42} {:>9.1} µs {:>7.2}x", median / 1000.0, median / floor);
    }
    let Some(whole) = median_ns(WHOLE) else { return };
    let ratio = whole / floor;
    println!("\nwhole verify: {ratio:.2}x one RSA-2048 verification, at most {WHOLE_LIMIT_RATIO}x is allowed");
    if ratio > WHOLE_LIMIT_RATIO {
        std::process::exit(1);
    }
}

/// The median that criterion has stored for a benchmark.
fn median_ns(name: &str) -> Option<f64> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), Into::into);
    let folder = name.replace(['?', '"', '/', '\\', '*', '<', '>', ':', '|', '^'], "_");
    let file = std::fs::read(target.join("criterion").join(folder).join("new/estimates.json")).ok()?;
    serde_json::from_slice::<serde_json::Value>(&file).ok()?["median"]["point_estimate"].as_f64()
}
