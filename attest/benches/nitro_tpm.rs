//! The verification of a NitroTPM document, as a time and as a ratio to its own five P-384 signatures verified by aws-lc-rs alone in the
//! same run: the floor under which no verification of such a document can go.
//!
//! `cargo bench -p attest --bench nitro_tpm`; it fails if the whole costs more than [`WHOLE_LIMIT_RATIO`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark may panic"
)]

mod interleaved;
#[path = "../tests/nitro_authority/mod.rs"]
mod nitro_authority;

use std::hint::black_box;

use attest::aws::nitro_tpm;
use aws_lc_rs::signature::{ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA384_FIXED, UnparsedPublicKey};
use ciborium::Value;
use interleaved::{Interleaved, Limit};
use nitro_authority::{Case, at, cbor, sign};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The whole verification, in times of its five signatures.
const WHOLE_LIMIT_RATIO: f64 = 1.5;

const FLOOR: &str = "NitroTPM, its 5 P-384 signatures alone";
const WHOLE: &str = "NitroTPM, whole verify";

fn main() {
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

    let mut steps = Interleaved::default();
    steps.step(FLOOR, || {
        for (key, message, signature) in &of_certificates {
            UnparsedPublicKey::new(&ECDSA_P384_SHA384_ASN1, black_box(key))
                .verify(message, signature)
                .unwrap();
        }
        UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, black_box(&leaf))
            .verify(&signed, &signature)
            .unwrap();
    });
    steps.step(WHOLE, || {
        drop(black_box(
            nitro_tpm::verify(black_box(&document), &roots, &case.expected(), at(case.now)).unwrap(),
        ));
    });
    steps.run(&[Limit {
        whole: WHOLE,
        floor: FLOOR,
        ratio: WHOLE_LIMIT_RATIO,
    }]);
}
