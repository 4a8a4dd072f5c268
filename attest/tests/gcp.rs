//! Identity tokens of Google Compute Engine: what is accepted, and one refusal for each thing that can be wrong.

mod claims;
mod signature;

use crate::gcp_authority::{
    ACCOUNT, GATEWAY, GOOGLE, INSTANCE_ID, JwtSigner, KID, NONCE, NOW, PROJECT_ID, PROJECT_NUMBER, SERVER_KEY, at, audience, claims,
    compact, keys, keys_of,
};
use crate::vectors;
use attest::gcp::{
    self, AGE_LIMIT_SECONDS, Audience, CLOCK_SKEW_SECONDS, GcpError, GoogleKeys, IDENTITY_TOKEN_LIMIT_BYTES, JWKS_LIMIT_BYTES, KEYS_LIMIT,
    KeysError, LIFETIME_LIMIT_SECONDS, VerifiedIdentity,
};
use attest::nonce::{PURPOSE_CONFIG, SpkiSha256, qualifying_data};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PSS_SHA256, RsaEncoding,
};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use proptest::prelude::*;
use serde_json::{Value, json};

fn verify(token: impl AsRef<[u8]>) -> Result<VerifiedIdentity, GcpError> {
    gcp::verify(token.as_ref(), &keys_of(&GOOGLE), &[audience()], at(NOW))
}

/// Verifies a token signed by Google's key, with one claim altered; `null` removes it.
fn altered(pointer: &str, value: Value) -> Result<VerifiedIdentity, GcpError> {
    verify(GOOGLE.sign(&with(pointer, value)))
}

fn with(pointer: &str, value: Value) -> Value {
    let mut claims = claims();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let parent = claims.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Value::Null => drop(parent.remove(name)),
        value => drop(parent.insert(name.to_owned(), value)),
    }
    claims
}

#[track_caller]
fn refused(pointer: &str, value: Value, expect: GcpError) {
    assert_eq!(altered(pointer, value), Err(expect));
}

#[track_caller]
fn refused_as(result: Result<VerifiedIdentity, GcpError>, code: &str) {
    assert_eq!(result.map_err(|error| error.code()).unwrap_err(), code);
}

const MACHINE: &str = "/google/compute_engine";

#[test]
fn identity_token_of_an_instance_is_accepted() {
    let identity = verify(GOOGLE.sign(&claims())).unwrap();
    let instance = &identity.instance;
    assert_eq!(identity.identity(), format!("gcp:{PROJECT_ID}/{INSTANCE_ID}"));
    assert_eq!((instance.project_id(), instance.project_number()), (PROJECT_ID, PROJECT_NUMBER));
    assert_eq!((instance.zone(), instance.region()), ("europe-west3-a", "europe-west3"));
    assert_eq!(
        (instance.instance_id(), instance.instance_name()),
        ("152986662232938449", "worker-7")
    );
    assert_eq!(
        (identity.created, identity.issued, identity.expires),
        (NOW - 600, NOW - 5, NOW + 3595)
    );
    assert_eq!(identity.licenses, ["1000204", "5926592092274602096"]);
    assert_eq!(identity.confidentiality, Some(1));
    assert_eq!(identity.service_account.id, "104029292853099978293");
    assert_eq!(identity.service_account.email, "739419398126-compute@developer.gserviceaccount.com");
    assert_eq!(identity.key_id.as_str(), KID);
    let record = serde_json::to_value(&identity).unwrap();
    assert_eq!(record["instance"]["instance_id"], "152986662232938449");
}

#[test]
fn optional_claims_may_be_absent_or_unknown() {
    let image_without_licence = altered(&format!("{MACHINE}/license_id"), Value::Null).unwrap();
    assert!(image_without_licence.licenses.is_empty());
    assert_eq!(
        altered(&format!("{MACHINE}/instance_confidentiality"), Value::Null)
            .unwrap()
            .confidentiality,
        None
    );
    assert!(altered("/aud", json!([audience().as_str()])).is_ok());
    assert!(altered("/google/organization_number", json!(1)).is_ok());
    assert!(altered(&format!("{MACHINE}/more"), json!({"in": "future"})).is_ok());
    let domain_scoped = altered(&format!("{MACHINE}/project_id"), json!("example.com:project")).unwrap();
    assert_eq!(domain_scoped.identity(), format!("gcp:example.com:project/{INSTANCE_ID}"));
    let without_type = GOOGLE.sign_with(&json!({"alg": "RS256", "kid": KID}), &claims());
    assert!(verify(without_type).is_ok());
}

#[test]
fn attack_17_a_recycled_name_is_another_identity() {
    let first = verify(GOOGLE.sign(&claims())).unwrap();
    let second = altered(&format!("{MACHINE}/instance_id"), json!("152986662232938450")).unwrap();
    assert_eq!(first.instance.instance_name(), second.instance.instance_name());
    assert_ne!(first.identity(), second.identity());
    let moved = altered(&format!("{MACHINE}/instance_name"), json!("renamed")).unwrap();
    assert_eq!(first.identity(), moved.identity());
}

#[test]
fn attack_19_token_size_and_nesting_are_limited() {
    let padded = |bytes: usize| GOOGLE.sign(&with("/more", json!("x".repeat(bytes))));
    assert!(verify(padded(4000)).is_ok());
    let token = padded(IDENTITY_TOKEN_LIMIT_BYTES);
    assert_eq!(verify(&token), Err(GcpError::TooLarge { bytes: token.len() }));
    assert_eq!(verify("a.b"), Err(GcpError::Parts { found: 2 }));
    assert_eq!(verify("a.b.c.d.e"), Err(GcpError::Parts { found: 5 }));
    let header = json!({"alg": "RS256", "kid": KID}).to_string();
    let deep = format!("{{\"google\":{}", "[".repeat(4000));
    refused_as(
        verify(GOOGLE.sign_bytes(header.as_bytes(), deep.as_bytes())),
        "gcp-identity-malformed",
    );
    refused_as(
        verify(GOOGLE.sign_bytes("[".repeat(4000).as_bytes(), b"{}")),
        "gcp-identity-malformed",
    );
    let long = verify(GOOGLE.sign_with(&json!({"alg": "RS256", "kid": "k".repeat(3000)}), &claims())).unwrap_err();
    assert!(long.to_string().len() < 400, "{long}");
}

#[test]
fn attack_23_a_truncated_token_is_refused_at_every_byte() {
    let token = GOOGLE.sign(&claims());
    for length in 0..token.len() {
        assert!(verify(&token.as_bytes()[..length]).is_err(), "{length}");
    }
}

#[test]
fn attack_23_every_flipped_bit_is_refused() {
    let token = GOOGLE.sign(&claims());
    let keys = keys_of(&GOOGLE);
    let audiences = [audience()];
    for position in 0..token.len() {
        for bit in 0..8 {
            let mut flipped = token.clone().into_bytes();
            flipped[position] ^= 1 << bit;
            let result = gcp::verify(&flipped, &keys, &audiences, at(NOW));
            assert!(result.is_err(), "bit {bit} of byte {position}");
        }
    }
}

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(verify(&bytes).is_err());
        let _ = GoogleKeys::from_jwks(&bytes);
        let header = json!({"alg": "RS256", "kid": KID}).to_string();
        prop_assert!(verify(GOOGLE.sign_bytes(header.as_bytes(), &bytes)).is_err());
        prop_assert!(verify(GOOGLE.sign_bytes(&bytes, claims().to_string().as_bytes())).is_err());
    }

    #[test]
    fn attack_23_garbage_in_a_claim_never_panics(
        place in 0usize..14, number in any::<f64>(), integer in any::<i64>(), text in "\\PC{0,40}", kind in 0u8..5,
    ) {
        let pointer = [
            "/aud", "/azp", "/email", "/email_verified", "/exp", "/google", "/iat", "/iss", "/sub", "/name#x", "/updated_at",
            "/google/compute_engine/instance_id", "/google/compute_engine/project_number", "/google/compute_engine/license_id",
        ][place];
        let value = match kind {
            0 => json!(number),
            1 => json!(integer),
            2 => json!(text),
            3 => json!([text, number]),
            _ => json!({text: integer}),
        };
        let _ = altered(pointer, value);
    }
}

/// No key of 2019 is published any more, and the vector's signature is left out.
#[test]
fn a_recorded_token_is_read_and_refused() {
    let Some(token) = vectors::vector("gcp/idtoken/google-auth-java.STANDARD_ID_TOKEN.jwt") else {
        return;
    };
    let kid = "df3758908b792293ad977a0b991d98a77f4eeecd";
    assert_eq!(verify(&token), Err(GcpError::KeyUnknown { kid: kid.to_owned() }));
    let keys = keys(&[GOOGLE.jwk(kid)]).unwrap();
    let then = at(1_564_529_400);
    assert_eq!(gcp::verify(&token, &keys, &[audience()], then), Err(GcpError::Signature));
    // Its claims under a signature: a token for a service account, without format=full.
    let payload = token.split(|byte| *byte == b'.').nth(1).unwrap();
    let mut claims: Value = serde_json::from_slice(&BASE64URL_NOPAD.decode(payload).unwrap()).unwrap();
    assert_eq!(claims["azp"], claims["sub"]);
    let header = json!({"alg": "RS256", "kid": kid, "typ": "JWT"});
    let signed = |claims: &Value| gcp::verify(GOOGLE.sign_with(&header, claims).as_bytes(), &keys, &[audience()], then);
    refused_as(signed(&claims), "gcp-identity-audience");
    claims["aud"] = json!(audience().as_str());
    assert_eq!(signed(&claims), Err(GcpError::ClaimMissing { claim: "email" }));
}
