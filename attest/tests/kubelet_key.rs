//! The key of the node's kubelet, in what is signed.

use attest::nonce::{PURPOSE_CONFIG, qualifying_data};
use attest::protocol::{Attester, ChallengeRequest, HexDigest};
use attest::{Claims, Reject, SpkiSha256, purpose};

use crate::support::{Case, NONCE, SERVER_KEY, SoftKey};

const KEY: SpkiSha256 = SpkiSha256([0x4b; 32]);

/// The purpose of a challenge that names a key.
fn keyed(case: &mut Case) {
    case.purpose = purpose::with_kubelet_key(&KEY);
}

/// Changes the TPM's signed data to those for this purpose and nonce.
fn signs(purpose: &str, nonce: &[u8]) -> impl FnOnce(&mut Case) {
    let extra_data = qualifying_data(nonce, purpose, "worker", &SERVER_KEY);
    move |case: &mut Case| case.quoted.extra_data = extra_data.to_vec()
}

fn case() -> Case {
    Case::new(SoftKey::p256())
}

#[test]
fn signed_purpose_carries_the_kubelet_key() {
    let key = |case: Case| case.verify().map(|claims| claims.kubelet_key_sha256().copied());
    let purpose = purpose::with_kubelet_key(&KEY);
    assert_eq!(key(case().but(keyed).but(signs(&purpose, &NONCE))).unwrap(), Some(KEY));
    assert_eq!(key(case()).unwrap(), None);
}

#[test]
fn claims_record_the_kubelet_key_if_attested() {
    let member = |claims: &Claims| serde_json::to_value(claims).unwrap().get("kubelet_key_sha256").cloned();
    let purpose = purpose::with_kubelet_key(&KEY);
    let claims = case().but(keyed).but(signs(&purpose, &NONCE)).verify().unwrap();
    assert_eq!(member(&claims), Some(KEY.to_string().into()));
    assert_eq!(member(&case().verify().unwrap()), None);
}

#[test]
fn kubelet_key_other_than_the_challenges_is_refused() {
    let purpose = purpose::with_kubelet_key(&KEY);
    let mut other = KEY;
    other.0[31] ^= 1;
    let altered = purpose::with_kubelet_key(&other);
    let in_capitals = purpose.replace("4b", "4B");
    let twice = format!("{purpose}.kubelet-key.{KEY}");
    // Altered, removed, in another spelling, doubled, cut, and of another challenge.
    for signed in [&altered, PURPOSE_CONFIG, &in_capitals, &twice, &purpose[..purpose.len() - 1], ""] {
        case().but(keyed).but(signs(signed, &NONCE)).refused("quote-extra-data");
    }
    case().but(keyed).but(signs(&purpose, &[0x12; 32])).refused("quote-extra-data");
    // Added.
    case().but(signs(&purpose, &NONCE)).refused("quote-extra-data");
}

#[test]
fn challenge_request_requires_a_sha256_kubelet_key() {
    let issue = |digest: Option<HexDigest>| case().but(|case| case.kubelet_key = digest).issue();
    let purpose_of = |digest: Option<HexDigest>| issue(digest).map(|issued| issued.challenge.purpose);
    assert_eq!(purpose_of(None).unwrap(), PURPOSE_CONFIG);
    assert_eq!(purpose_of(Some(KEY.into())).unwrap(), purpose::with_kubelet_key(&KEY));
    for length in [48, 64] {
        let refused = issue(HexDigest::new(&vec![0x4b; length])).unwrap_err();
        assert_eq!(refused.code(), "malformed-request", "{length}");
        let is_about_it = matches!(
            refused,
            Reject::Request {
                field: "kubelet_key_sha256",
                ..
            }
        );
        assert!(is_about_it, "{length}: {refused}");
    }
    let read = |member: &str| {
        let attester = serde_json::to_string(&Attester::from(case().attester())).unwrap();
        let text = format!("{{\"pool\":\"worker\",{member}\"attester\":{attester}}}");
        serde_json::from_str::<ChallengeRequest>(&text).map(|request| request.kubelet_key_sha256)
    };
    let member = format!("\"kubelet_key_sha256\":\"{KEY}\",");
    assert_eq!(read(&member).unwrap(), Some(KEY.into()));
    assert_eq!(read("").unwrap(), None);
    read(&member.repeat(2)).unwrap_err();
    for wrong in [&KEY.to_string()[1..], &KEY.to_string()[2..], &format!("{KEY}00"), "", "zz"] {
        read(&format!("\"kubelet_key_sha256\":\"{wrong}\",")).unwrap_err();
    }
    read("\"kubelet_key_sha256\":7,").unwrap_err();
    read(&format!("\"kubelet_key\":\"{KEY}\",")).unwrap_err();
}
