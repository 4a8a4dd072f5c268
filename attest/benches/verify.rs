//! Each step of a verification and the whole, as a time and as a ratio to one RSA-2048 verification by aws-lc-rs measured in the same run:
//! the floor under which no verification of an RSA quote can go.
//!
//! `cargo bench -p attest --bench verify`; it fails if the whole verification costs more than [`WHOLE_LIMIT_RATIO`].

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
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "../tests/vectors/mod.rs"]
mod vectors;

use std::collections::BTreeMap;
use std::hint::black_box;

use attest::protocol::HexDigest;
use attest::tpm::ak::AkPublic;
use attest::tpm::credential;
use attest::tpm::ek::EkPublic;
use attest::tpm::ek_certificate;
use attest::tpm::event_log::EventLog;
use attest::tpm::wire::{KeyParameters, QuoteAttest, TpmScheme};
use attest::{EkRoots, HashAlg, Submission};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use interleaved::{Interleaved, Limit};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;
use support::{Case, SoftKey, ek_area};

/// The whole verification of an RSA-2048 quote with a 34 kB event log, in RSA-2048 verifications: one for the quote, and two for the log, whose data are
/// hashed and read.
const WHOLE_LIMIT_RATIO: f64 = 4.0;

/// A refused challenge with eight certificates of one name, in RSA-2048 verifications: reading them, and no signature.
const MAZE_LIMIT_RATIO: f64 = 20.0;

const MAZE: &str = "refused: eight intermediates of one name";
const FLOOR: &str = "RSA-2048 verify, aws-lc-rs alone";
const WHOLE: &str = "whole verify, RSA-2048 AK, event log";

fn main() {
    let (log, pcrs, source) = event_log();
    println!("event log: {source}, {} bytes", log.len());
    let with_log = |key: SoftKey| Case::with_pcrs(key, HashAlg::Sha256, pcrs.clone()).but(|case| case.event_log = Some(log.clone()));
    let rsa = with_log(SoftKey::rsa(TpmScheme::RsaSsa(HashAlg::Sha256)));
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

    let (leaf, maze, roots) = maze();
    let mut steps = Interleaved::default();
    steps.step(FLOOR, || {
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
        steps.step(name, move || {
            let submission = Submission::new(&challenge, &evidence, &case.server_keys);
            black_box(attest::verify(&submission, &endorsements, support::at(case.now)).unwrap());
        });
    }
    steps.step("AK: parse, check, Name", || {
        drop(black_box(AkPublic::parse(&rsa.ak_area.to_bytes()).unwrap()))
    });
    steps.step("EK: parse, check, digest", || {
        drop(black_box(EkPublic::parse(&rsa.ek_area.to_bytes()).unwrap()))
    });
    steps.step("quote: signature", || {
        black_box(ak.verify(&quoted, &signature).unwrap());
    });
    steps.step("quote: parse", || drop(black_box(QuoteAttest::parse(&quoted).unwrap())));
    steps.step("event log: parse", || drop(black_box(EventLog::parse(&log).unwrap())));
    steps.step("event log: parse, replay, compare", || {
        let log = EventLog::parse(&log).unwrap();
        black_box(log.check_against(HashAlg::Sha256, &quoted_pcrs).unwrap().explained_pcrs().count());
    });
    for (name, key) in [
        ("make credential, RSA-2048 EK", SoftKey::rsa(TpmScheme::RsaSsa(HashAlg::Sha256))),
        ("make credential, P-256 EK", SoftKey::p256()),
        ("make credential, P-384 EK", SoftKey::p384()),
    ] {
        let (ek, ak) = (EkPublic::parse(&ek_area(&key).to_bytes()).unwrap(), &ak);
        steps.step(name, move || drop(black_box(credential::make(&ek, ak.name(), &[7; 32]).unwrap())));
    }
    steps.step(MAZE, || {
        let sent: Vec<&[u8]> = maze.iter().map(AsRef::as_ref).collect();
        drop(black_box(
            ek_certificate::verify(&leaf, &sent, &roots, support::at(support::NOW)).unwrap_err(),
        ));
    });
    steps.run(&[
        Limit {
            whole: WHOLE,
            floor: FLOOR,
            ratio: WHOLE_LIMIT_RATIO,
        },
        Limit {
            whole: MAZE,
            floor: FLOOR,
            ratio: MAZE_LIMIT_RATIO,
        },
    ]);
}

/// An EK certificate, and as many CAs as are read, each of which might have issued every other; none of them leads to the root.
fn maze() -> (CertificateDer<'static>, Vec<CertificateDer<'static>>, EkRoots) {
    let key = || KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let ca = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    };
    let sent = (0..ek_certificate::INTERMEDIATES_LIMIT).map(|_| ca("Maze").self_signed(&key()).unwrap().into());
    let leaf = CertificateParams::default()
        .signed_by(&key(), &Issuer::from_params(&ca("Maze"), &key()))
        .unwrap();
    let root: CertificateDer<'static> = ca("Root").self_signed(&key()).unwrap().into();
    (leaf.into(), sent.collect(), EkRoots::new(vec![root], Vec::new()).unwrap())
}

/// Returns a real machine's log if the vectors are available, else a generated one of similar size.
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
