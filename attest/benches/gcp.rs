//! The verification of GCP's evidence, each kind as a time and as a ratio to its own raw signature verification by aws-lc-rs, measured
//! in the same run: the floor under which it cannot go.
//!
//! `cargo bench -p attest --bench gcp`; it fails if one costs more than [`LIMIT_RATIO`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a benchmark may panic"
)]

#[path = "../tests/gcp_authority/mod.rs"]
mod gcp_authority;

use std::hint::black_box;
use std::path::Path;

use attest::gcp::{self, GoogleKeys, vtpm};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaPublicKeyComponents};
use criterion::Criterion;
use gcp_authority::{Ca, GOOGLE, NOW, at, audience, claims, ek_params, keys_of};
use rcgen::{KeyPair, RsaKeySize};

/// A whole verification, in verifications of the signature alone.
const LIMIT_RATIO: f64 = 1.5;

const TOKEN_FLOOR: &str = "RSA-2048 verify, identity token's size";
const TOKEN: &str = "identity token: whole verify";
const CERTIFICATE_FLOOR: &str = "RSA-4096 verify, certificate's size";
const CERTIFICATE: &str = "vTPM certificate: whole verify";

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    identity_token(&mut criterion);
    certificate(&mut criterion);
    criterion.final_summary();
    let within = [report(TOKEN, TOKEN_FLOOR), report(CERTIFICATE, CERTIFICATE_FLOOR)];
    if within.contains(&false) {
        std::process::exit(1);
    }
}

fn identity_token(criterion: &mut Criterion) {
    let (keys, audiences) = (keys_of(&GOOGLE), [audience()]);
    let token = GOOGLE.sign(&claims());
    let (input, _) = token.rsplit_once('.').unwrap();
    raw(
        criterion,
        TOKEN_FLOOR,
        &GOOGLE.modulus(),
        input.as_bytes(),
        &GOOGLE.signature(&RSA_PKCS1_SHA256, input.as_bytes()),
    );
    criterion.bench_function(TOKEN, |bencher| {
        bencher.iter(|| black_box(gcp::verify(token.as_bytes(), &keys, &audiences, at(NOW)).unwrap()));
    });
    let jwks = serde_json::json!({"keys": [GOOGLE.jwk("one"), GOOGLE.jwk("two")]}).to_string();
    criterion.bench_function("JWK set of two keys", |bencher| {
        bencher.iter(|| black_box(GoogleKeys::from_jwks(jwks.as_bytes()).unwrap()));
    });
}

/// Under a CA with an RSA-4096 key, as Google's younger one has.
fn certificate(criterion: &mut Criterion) {
    let key = || KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096).unwrap();
    let ca = Ca::new(key());
    let ek = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let certificate = ca.issue(&ek_params(), &ek);
    let roots = vtpm::VtpmRoots::new(vec![ca.certificate()], vec![]).unwrap();

    let signer = gcp_authority::Signer::new(aws_lc_rs::rsa::KeySize::Rsa4096);
    raw(
        criterion,
        CERTIFICATE_FLOOR,
        &signer.modulus(),
        &certificate,
        &signer.signature(&RSA_PKCS1_SHA256, &certificate),
    );
    criterion.bench_function(CERTIFICATE, |bencher| {
        bencher.iter(|| black_box(vtpm::verify(&certificate, &[], &roots, at(NOW)).unwrap()));
    });
}

fn raw(criterion: &mut Criterion, name: &str, modulus: &[u8], message: &[u8], signature: &[u8]) {
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            let key = RsaPublicKeyComponents {
                n: black_box(modulus),
                e: &[1, 0, 1][..],
            };
            key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).unwrap();
        });
    });
}

/// Prints the ratio; whether it is within the limit, or there are no figures.
fn report(whole: &str, floor: &str) -> bool {
    let (Some(whole_ns), Some(floor_ns)) = (median_ns(whole), median_ns(floor)) else {
        println!("{whole}: no figures, this was no measuring run");
        return true;
    };
    let ratio = whole_ns / floor_ns;
    println!(
        "{whole}: {:.1} µs, {ratio:.2}x {floor} ({:.1} µs), at most {LIMIT_RATIO}x is allowed",
        whole_ns / 1000.0,
        floor_ns / 1000.0
    );
    ratio <= LIMIT_RATIO
}

/// The median that criterion has stored for a benchmark.
fn median_ns(name: &str) -> Option<f64> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), Into::into);
    let folder = name.replace(['?', '"', '/', '\\', '*', '<', '>', ':', '|', '^'], "_");
    let file = std::fs::read(target.join("criterion").join(folder).join("new/estimates.json")).ok()?;
    serde_json::from_slice::<serde_json::Value>(&file).ok()?["median"]["point_estimate"].as_f64()
}
