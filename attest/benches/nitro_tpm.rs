//! The verification of a NitroTPM document, as a time and as a ratio to its own five P-384 signatures verified by aws-lc-rs alone in the
//! same run: the floor under which no verification of such a document can go.
//!
//! `cargo bench -p attest --bench nitro_tpm`; it fails if the whole costs more than [`WHOLE_LIMIT_RATIO`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::panic,
    missing_docs,
    reason = "a benchmark may panic"
)]

#[path = "../tests/nitro_authority/mod.rs"]
mod nitro_authority;

use std::hint::black_box;
use std::path::Path;

use attest::aws::nitro_tpm;
use aws_lc_rs::signature::{ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA384_FIXED, UnparsedPublicKey};
use ciborium::Value;
use criterion::Criterion;
use nitro_authority::{Case, at, cbor, sign};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The whole verification, in times of its five signatures.
const WHOLE_LIMIT_RATIO: f64 = 1.5;

const FLOOR: &str = "NitroTPM, its 5 P-384 signatures alone";
const WHOLE: &str = "NitroTPM, whole verify";

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let case = Case::new();
    let (document, roots) = (case.document(), case.nitro_roots());
    println!("document: {} bytes, {} certificates", document.len(), case.levels.len());

    let chain = case.certificates();
    let parsed: Vec<X509Certificate<'_>> = chain.iter().map(|der| X509Certificate::from_der(der).unwrap().1).collect();
    let point = |index: usize| parsed[index].public_key().subject_public_key.data.to_vec();
    let of_certificates: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> = (1..parsed.len())
        .map(|index| {
            let certificate = &parsed[index];
            let signature = certificate.signature_value.data.to_vec();
            (point(index - 1), certificate.tbs_certificate.as_ref().to_vec(), signature)
        })
        .collect();
    let payload = case.payload();
    let bytes = |bytes: &[u8]| Value::Bytes(bytes.to_vec());
    let signed = cbor(&Value::Array(vec![
        "Signature1".into(),
        bytes(&case.protected),
        bytes(&[]),
        bytes(&payload),
    ]));
    let signature = sign(&case.levels[4].key, &case.protected, &payload);
    let leaf = point(4);

    criterion.bench_function(FLOOR, |bencher| {
        bencher.iter(|| {
            for (key, message, signature) in &of_certificates {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_ASN1, black_box(key))
                    .verify(message, signature)
                    .unwrap();
            }
            UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, black_box(&leaf))
                .verify(&signed, &signature)
                .unwrap();
        });
    });
    criterion.bench_function(WHOLE, |bencher| {
        bencher.iter(|| black_box(nitro_tpm::verify(black_box(&document), &roots, &case.expected(), at(case.now)).unwrap()));
    });
    criterion.final_summary();
    report();
}

/// Prints the ratio and fails above the limit.
fn report() {
    let (Some(floor), Some(whole)) = (median_ns(FLOOR), median_ns(WHOLE)) else {
        return println!("no figures: this was no measuring run");
    };
    let ratio = whole / floor;
    println!(
        "\nwhole verify: {:.1} µs, {ratio:.2}x its signatures ({:.1} µs), at most {WHOLE_LIMIT_RATIO}x is allowed",
        whole / 1000.0,
        floor / 1000.0
    );
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
