//! `RUSTC_BOOTSTRAP=1 cargo fuzz run gcp_identity_token` in `attest/`: no identity token and no JWK set makes the verifier panic, and no
//! identity token is trusted without a signature.
#![no_main]

use std::time::Duration;

use attest::gcp::{Audience, GoogleKeys, verify};
use attest::{SpkiSha256, UnixTime};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    let audience = Audience::new("gateway", "ignition-config", "worker", &[7; 32], &SpkiSha256([9; 32]));
    // A key that nobody has the private half of.
    let n = base64url(&[0xc5; 256]);
    let keys = format!(r#"{{"keys":[{{"kty":"RSA","kid":"k","e":"AQAB","n":"{n}"}}]}}"#);
    let keys = GoogleKeys::from_jwks(keys.as_bytes()).expect("a set of one key");
    assert!(verify(bytes, &keys, std::slice::from_ref(&audience), now).is_err());
    // As a payload, behind a header that is fine: `{"alg":"RS256","kid":"k"}`.
    let payload = base64url(bytes);
    let token = format!("eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ.{payload}.AAAA");
    assert!(verify(token.as_bytes(), &keys, &[audience], now).is_err());
    let _ = GoogleKeys::from_jwks(bytes);
});

fn base64url(bytes: &[u8]) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().enumerate().fold(0u32, |bits, (place, byte)| bits | u32::from(*byte) << (16 - 8 * place));
        for place in 0..=group.len() {
            text.push(char::from(alphabet[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}
