//! Verification of TPM evidence: what is accepted, and for each accepted thing one refusal per altered field.

mod keys;
mod quoted;

use crate::support;
use crate::support::{Case, NOW, SERVER_KEY, SoftKey, ek_area};
use attest::challenge::INTERMEDIATES_LIMIT;
use attest::protocol::{Blob, HexDigest};
use attest::tpm::ak::{AkPublic, Hierarchy};
use attest::tpm::reference_values::AcceptedValues;
use attest::tpm::wire::{Attributes, KeyParameters, SelectedBank, SymmetricCipher, TpmScheme, TpmSignature};
use attest::{AppraisalPolicy, HashAlg, PcrSelection, ReferenceValues, Reject, SpkiSha256, TpmEvidenceError};

fn good() -> Case {
    Case::new(SoftKey::p256())
}

#[test]
fn accepts_each_ak_type_and_returns_its_claims() {
    let rsa = |scheme: fn(HashAlg) -> TpmScheme, hash| SoftKey::rsa(scheme(hash));
    for ak in [
        SoftKey::p256(),
        SoftKey::p384(),
        rsa(TpmScheme::RsaSsa, HashAlg::Sha256),
        rsa(TpmScheme::RsaSsa, HashAlg::Sha384),
        rsa(TpmScheme::RsaSsa, HashAlg::Sha512),
        rsa(TpmScheme::RsaPss, HashAlg::Sha256),
        rsa(TpmScheme::RsaPss, HashAlg::Sha384),
        rsa(TpmScheme::RsaPss, HashAlg::Sha512),
    ] {
        let case = Case::new(ak);
        let claims = case.verify().unwrap_or_else(|reject| panic!("{:?}: {reject}", case.ak.scheme()));
        assert_eq!(
            claims.identity().as_str(),
            format!("tpm:{}", attest::EkDigest::from_public_area(&case.ek_area.to_bytes()).unwrap())
        );
        assert_eq!(
            (claims.pool(), claims.name(), *claims.server_key().unwrap()),
            ("worker", Some("worker-0"), SERVER_KEY)
        );
        let tpm = claims.tpm().unwrap();
        assert_eq!(
            (tpm.clock_ms, tpm.reset_count, tpm.restart_count, tpm.clock_safe),
            (123_456, 7, 1, true)
        );
        assert_eq!(
            (tpm.firmware_version, &tpm.pcrs, tpm.pcr_bank),
            (0x2019_1023_0016_3636, &case.pcrs, HashAlg::Sha256)
        );
    }
}

#[test]
fn accepts_a_sha384_bank_and_previous_server_key() {
    let sha384 = (0..8).map(|pcr| (pcr, vec![pcr; 48])).collect();
    Case::with_pcrs(SoftKey::p256(), HashAlg::Sha384, sha384).verify().unwrap();
    let claims = good()
        .but(|case| case.server_keys = vec![SpkiSha256([1; 32]), SERVER_KEY])
        .verify()
        .unwrap();
    assert_eq!(*claims.server_key().unwrap(), SERVER_KEY);
}

#[test]
fn attack_03_rejects_an_unendorsed_ek() {
    good().but(|case| case.endorse = false).refused("ek-not-endorsed");
    assert_eq!(
        good().but(|case| case.endorse = false).issue().unwrap_err().code(),
        "ek-not-endorsed"
    );
    // Endorsed, but the credential was never activated: the AK is somewhere else.
    good().but(|case| case.secret_sha256[0] ^= 1).refused("credential-mismatch");
}

fn good_with(original: &Case, quoted: Vec<u8>, signature: &[u8]) -> Case {
    let mut case = good();
    case.ak_area = original.ak_area.clone();
    case.raw_quoted = Some(quoted);
    case.signature = Some(signature.to_vec());
    case
}

#[test]
fn number_of_ek_intermediates_is_limited() {
    let with = |count: usize| {
        let case = good();
        let mut attester = case.attester();
        attester.ek_intermediates = vec![Blob(vec![0x30, 0x00]); count];
        let request = attest::protocol::ChallengeRequest {
            kubelet_key_sha256: None,
            rehearsal: false,
            pool: "worker".to_owned(),
            name: None,
            attester: attester.into(),
        };
        let policy = support::accepting(&case.selection);
        let lifetime = std::time::Duration::from_secs(60);
        let drawn = attest::challenge::Drawn::draw().unwrap();
        attest::Challenge::issue(
            &request,
            &case.endorsements(),
            &policy,
            "gateway.test",
            &drawn,
            support::at(NOW),
            lifetime,
        )
        .map(|_| ())
        .map_err(|reject| reject.code())
    };
    assert_eq!(with(INTERMEDIATES_LIMIT), Ok(()));
    assert_eq!(with(INTERMEDIATES_LIMIT + 1), Err("malformed-request"));
}

#[test]
fn names_and_pools_are_dns_names() {
    let pool = |pool: &str| {
        good()
            .but(|case| case.pool = pool.to_owned())
            .issue()
            .map(|_| ())
            .map_err(|reject| reject.code())
    };
    assert_eq!(pool("worker"), Ok(()));
    assert_eq!(pool("gpu-2.rack"), Ok(()));
    for bad in ["", "../worker", "a/b", "Worker", "-x", "w\n", "wörker", &"x".repeat(64)] {
        assert_eq!(pool(bad), Err("malformed-request"), "{bad:?}");
    }
}
