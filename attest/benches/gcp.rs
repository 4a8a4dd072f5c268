//! Measures the verification of GCP's evidence, each kind as a time and as a ratio to its own raw signature verification by aws-lc-rs in
//! the same run: the hash over the very bytes that are signed, and RSA by a key from the JWK set or the certificate. The table also shows
//! RSA by a key that is parsed already, as in the verification of identity tokens.
//!
//! `cargo bench -p attest --bench gcp`; it fails if one costs more than [`LIMIT_RATIO`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark may panic"
)]

#[path = "../tests/gcp_authority/mod.rs"]
mod gcp_authority;
mod interleaved;

use std::hint::black_box;

use attest::gcp::{self, GoogleKeys};
use attest::tpm::vtpm;
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaPublicKeyComponents, UnparsedPublicKey};
use gcp_authority::{GOOGLE, NOW, VtpmCa, at, audience, claims, ek_params, keys_of};
use interleaved::{Interleaved, Limit};
use rcgen::{KeyPair, PublicKeyData, RsaKeySize};
use x509_parser::prelude::{FromDer, X509Certificate};

/// A whole verification, in verifications of the signature alone.
const LIMIT_RATIO: f64 = 1.5;

const TOKEN_FLOOR: &str = "RSA-2048 verify of the identity token";
const TOKEN: &str = "identity token: whole verify";
const CERTIFICATE_FLOOR: &str = "RSA-4096 verify of the certificate";
const CERTIFICATE: &str = "vTPM certificate: whole verify";

fn main() {
    let limit = |whole, floor| Limit {
        whole,
        floor,
        ratio: LIMIT_RATIO,
    };
    let mut steps = Interleaved::default();
    identity_token(&mut steps);
    steps.run(&[limit(TOKEN, TOKEN_FLOOR)]);
    let mut steps = Interleaved::default();
    certificate(&mut steps);
    steps.run(&[limit(CERTIFICATE, CERTIFICATE_FLOOR)]);
}

fn identity_token(steps: &mut Interleaved<'_>) {
    let (keys, audiences) = (keys_of(&GOOGLE), [audience()]);
    let token = GOOGLE.sign(&claims());
    let (input, _) = token.rsplit_once('.').unwrap();
    let (input, modulus) = (input.to_owned(), GOOGLE.modulus());
    let signature = GOOGLE.signature(&RSA_PKCS1_SHA256, input.as_bytes());
    let key = move || RsaPublicKeyComponents {
        n: modulus.clone(),
        e: vec![1, 0, 1],
    };
    let ready = key().to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256).unwrap();
    let (same_input, same_signature) = (input.clone(), signature.clone());
    steps.step("RSA-2048 verify of the token, key ready", move || {
        ready.verify_sig(black_box(same_input.as_bytes()), &same_signature).unwrap();
    });
    let key = key();
    steps.step(TOKEN_FLOOR, move || {
        black_box(&key)
            .verify(&RSA_PKCS1_2048_8192_SHA256, input.as_bytes(), &signature)
            .unwrap();
    });
    steps.step(TOKEN, move || {
        drop(black_box(
            gcp::verify(black_box(token.as_bytes()), &keys, &audiences, at(NOW)).unwrap(),
        ));
    });
    let jwks = serde_json::json!({"keys": [GOOGLE.jwk("one"), GOOGLE.jwk("two")]}).to_string();
    steps.step("JWK set of two keys", move || {
        drop(black_box(GoogleKeys::from_jwks(black_box(jwks.as_bytes())).unwrap()));
    });
}

/// Measures a certificate of a CA with an RSA-4096 key, like Google's younger one.
fn certificate(steps: &mut Interleaved<'_>) {
    let key = || KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096).unwrap();
    let ca = VtpmCa::new(key());
    let ek = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let certificate = ca.issue(&ek_params(), &ek);
    let roots = vtpm::VtpmRoots::new(vec![ca.certificate()], vec![]).unwrap();

    let (_, parsed) = X509Certificate::from_der(&certificate).unwrap();
    let (signed, signature) = (parsed.tbs_certificate.as_ref().to_vec(), parsed.signature_value.data.to_vec());
    let ca_key = ca.0.der_bytes().to_vec();
    steps.step(CERTIFICATE_FLOOR, move || {
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, black_box(&ca_key));
        key.verify(&signed, &signature).unwrap();
    });
    steps.step(CERTIFICATE, move || {
        drop(black_box(vtpm::verify(black_box(&certificate), &[], &roots, at(NOW)).unwrap()));
    });
}
