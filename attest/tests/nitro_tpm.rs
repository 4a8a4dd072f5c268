//! NitroTPM attestation documents of a generated authority: what is accepted, and one refusal for each thing that can be wrong.

mod chains;
mod fields;
mod rules;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::nitro_authority;
use crate::nitro_authority::{Case, INSTANCE, MODULE, NONCE, NOW, REGION, SERVER_KEY, at, leaf, named, p256, p384};
use attest::aws::nitro_tpm::{
    self, DOCUMENT_LIMIT_BYTES, NitroRoots, NitroTpmError, NitroTpmRules, NitroTpmSubject, RootProblem, VerifiedNitroTpm, appraise,
    expected_user_data,
};
use attest::nonce::PURPOSE_CONFIG;
use attest::{Reject, SpkiSha256};
use ciborium::Value;
use proptest::prelude::*;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd};
use rustls_pki_types::CertificateDer;

/// Verifies and expects this variant with this code.
#[track_caller]
fn refused(case: &Case, variant: &str, code: &str) -> NitroTpmError {
    let error = case.verify().map(|_| ()).expect_err(variant);
    is(&error, variant, code);
    error
}

#[track_caller]
fn is(error: &NitroTpmError, variant: &str, code: &str) {
    let debug = format!("{error:?}");
    let name = debug.split([' ', '(']).next().unwrap();
    assert_eq!((name, error.code()), (variant, code), "{error}");
}

fn case(change: impl FnOnce(&mut Case)) -> Case {
    Case::new().but(change)
}

const MALFORMED: &str = "nitro-tpm-malformed";
const SHAPE: &str = "nitro-tpm-shape";

#[test]
fn nitro_tpm_document_is_accepted() {
    let verified = Case::new().verify().unwrap();
    let document = &verified.document;
    assert_eq!(
        (document.module_id.as_str(), document.instance.as_str(), document.region.as_str()),
        (MODULE, INSTANCE, REGION)
    );
    assert_eq!((document.timestamp_ms, document.pcrs.len()), (NOW * 1000 - 2500, 24));
    assert_eq!(document.pcrs[&4].as_bytes(), [4; 48]);
    assert_eq!(
        (document.nonce.as_ref().map(AsRef::as_ref), document.public_key.as_ref()),
        (Some(NONCE.as_slice()), None)
    );
    assert_eq!(verified.server_key, SERVER_KEY);
    assert_eq!(verified.identity(), format!("aws-nitrotpm:{INSTANCE}"));

    let record = serde_json::to_value(&verified).unwrap();
    assert_eq!(record["instance"], INSTANCE);
    assert_eq!(record["pcrs"]["4"], "04".repeat(48));
    assert_eq!(record["account"], serde_json::Value::Null);
}

#[test]
fn equivalent_documents_are_accepted() {
    let accepted = |change: fn(&mut Case)| drop(case(change).verify().unwrap());
    accepted(|case| case.tag = Some(18));
    accepted(|case| case.indefinite = false);
    accepted(|case| case.set("public_key", None));
    accepted(|case| case.set("public_key", Value::Bytes(Vec::new())));
    accepted(|case| case.set("public_key", Value::Bytes(vec![1; 1024])));
    accepted(|case| case.fields.reverse());
    // The root need not be in the bundle, and the bundle need not be in order.
    accepted(|case| {
        let mut bundle: Vec<_> = case.certificates().iter().map(|certificate| certificate.to_vec()).collect();
        bundle.pop();
        bundle.remove(0);
        bundle.reverse();
        case.cabundle = Some(bundle);
    });
    drop(Case::small().verify().unwrap());
}

/// The envelope: nothing in it is signed but the protected header and the payload.
#[test]
fn malformed_envelopes_are_refused() {
    let check = |change: fn(&mut Case), variant: &str, code: &str| drop(refused(&case(change), variant, code));
    check(|case| case.tag = Some(17), "Tag", MALFORMED);
    check(|case| case.appended = vec![0], "Cbor", MALFORMED);
    check(
        |case| case.unprotected = Value::Map(vec![(4.into(), Value::Bytes(vec![1]))]),
        "Unprotected",
        MALFORMED,
    );
    check(|case| case.unprotected = Value::Null, "Cbor", MALFORMED);
    check(|case| case.signature = Some(vec![0; 95]), "SignatureLength", MALFORMED);
    check(|case| case.signature = Some(vec![0; 97]), "SignatureLength", MALFORMED);
    check(|case| case.signature = Some(Vec::new()), "SignatureLength", MALFORMED);
    check(|case| case.signature = Some(vec![0; 96]), "Signature", "nitro-tpm-signature");
    check(|case| case.signing_key = Some(p384()), "Signature", "nitro-tpm-signature");
    let algorithm = "nitro-tpm-algorithm";
    // ES256, ES512, no algorithm, a second header, the same twice, the same but longer.
    check(|case| case.protected = vec![0xa1, 0x01, 0x26], "Algorithm", algorithm);
    check(|case| case.protected = vec![0xa1, 0x01, 0x38, 0x23], "Algorithm", algorithm);
    check(|case| case.protected = Vec::new(), "Algorithm", algorithm);
    check(
        |case| case.protected = vec![0xa2, 0x01, 0x38, 0x22, 0x03, 0x00],
        "Algorithm",
        algorithm,
    );
    check(
        |case| case.protected = vec![0xa2, 0x01, 0x38, 0x22, 0x01, 0x38, 0x22],
        "Algorithm",
        algorithm,
    );
    check(|case| case.protected = vec![0xa1, 0x18, 0x01, 0x38, 0x22], "Algorithm", algorithm);
    check(|case| case.protected = vec![0xa1; 4096], "Algorithm", algorithm);

    let (roots, expected) = (Case::new().nitro_roots(), case(|_| {}));
    let verify = |bytes: &[u8]| nitro_tpm::verify(bytes, &roots, &expected.expected(), at(NOW)).unwrap_err();
    is(&verify(&vec![0; DOCUMENT_LIMIT_BYTES + 1]), "TooLarge", MALFORMED);
    for bytes in [&[][..], &[0x84], &[0x80], &[0x9f, 0xff], &[0xd2, 0xd2, 0x84]] {
        assert_eq!(verify(bytes).code(), MALFORMED, "{bytes:02x?}");
    }
}

/// A document that was altered after it was signed, in every field; and one that another instance has signed.
#[test]
fn attack_11_altered_document_fails_signature_before_parsing() {
    let signed = Case::new();
    for (position, (name, _)) in signed.fields.iter().enumerate() {
        let altered = Case::new()
            .but(|case| case.fields[position].1 = Value::Bytes(vec![7; 48]))
            .payload();
        let swapped = Case::new().but(|case| {
            case.signature = Some(nitro_authority::sign(&case.levels[4].key, nitro_authority::ES384, &case.payload()));
            case.swapped_payload = Some(altered);
        });
        // Whatever is wrong with the altered field: nobody has looked.
        assert_eq!(
            refused(&swapped, "Signature", "nitro-tpm-signature"),
            NitroTpmError::Signature,
            "{name:?}"
        );
    }
    // The certificate of another instance, of the same authority: it verifies its own documents only.
    let other = "i-0fffffffffffffff0-tpm0000000000000000";
    let other_module = |case: &mut Case| *case.levels.last_mut().unwrap() = leaf(&format!("{other}.{REGION}.aws"));
    refused(&case(other_module), "ModuleIdNotCertified", SHAPE);
    for common_name in [
        MODULE.to_owned(),
        format!("{MODULE}.aws"),
        format!("{MODULE}.EU.aws"),
        format!("{MODULE}.{REGION}.example"),
        format!("{MODULE}x.{REGION}.aws"),
        format!("x{MODULE}.{REGION}.aws"),
        format!("{INSTANCE}.{REGION}.aws"),
    ] {
        let certified = case(|case| *case.levels.last_mut().unwrap() = leaf(&common_name));
        refused(&certified, "ModuleIdNotCertified", SHAPE);
    }
    // Two common names, of which one is right.
    let two = case(|case| {
        let mut name = named(&format!("{MODULE}.{REGION}.aws"));
        name.push(rcgen::DnType::CustomDnType(vec![2, 5, 4, 3]), "second");
        case.levels.last_mut().unwrap().params.distinguished_name = name;
    });
    refused(&two, "ModuleIdNotCertified", SHAPE);
    // A certificate of the attacker's own, beside the right one.
    let own = Case::new()
        .but(|case| case.levels[0].key = Arc::new(p384()))
        .certificates()
        .pop()
        .unwrap()
        .to_vec();
    refused(
        &case(|case| case.fields.insert(0, ("certificate".into(), Value::Bytes(own.clone())))),
        "FieldRepeated",
        MALFORMED,
    );
}

#[test]
fn attack_06_document_without_nonce_is_refused() {
    let nonce = "nitro-tpm-nonce";
    refused(&case(|case| case.nonce = Vec::new()), "Nonce", nonce);
    refused(&case(|case| case.set("nonce", Value::Null)), "Nonce", nonce);
    let neither = |value: Option<Value>| {
        case(|case| {
            case.set("nonce", value);
            case.nonce = Vec::new();
        })
    };
    refused(&neither(None), "Nonce", nonce);
    refused(&neither(Some(Value::Null)), "Nonce", nonce);
    refused(&neither(Some(Value::Bytes(Vec::new()))), "Nonce", nonce);
}

#[test]
fn attack_07_document_for_another_challenge_is_refused() {
    refused(&case(|case| case.nonce = vec![0x12; 32]), "Nonce", "nitro-tpm-nonce");
    refused(&case(|case| case.nonce = NONCE[..31].to_vec()), "Nonce", "nitro-tpm-nonce");
    refused(&case(|case| case.pool = "master".to_owned()), "UserData", "nitro-tpm-user-data");
    refused(&case(|case| case.purpose = "report".to_owned()), "UserData", "nitro-tpm-user-data");
    refused(&case(|case| case.set("user_data", Value::Null)), "UserData", "nitro-tpm-user-data");
    refused(
        &case(|case| case.set("user_data", Value::Bytes(NONCE.to_vec()))),
        "UserData",
        "nitro-tpm-user-data",
    );
}

#[test]
fn attack_10_document_for_another_server_is_refused() {
    refused(
        &case(|case| case.server_keys = vec![SpkiSha256([1; 32])]),
        "UserData",
        "nitro-tpm-user-data",
    );
    refused(&case(|case| case.server_keys = Vec::new()), "UserData", "nitro-tpm-user-data");
    // After a rotation the key before is known, too.
    let verified = case(|case| case.server_keys = vec![SpkiSha256([1; 32]), SERVER_KEY])
        .verify()
        .unwrap();
    assert_eq!(verified.server_key, SERVER_KEY);
    assert_ne!(
        expected_user_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY),
        expected_user_data(&NONCE, PURPOSE_CONFIG, "worker", &SpkiSha256([1; 32]))
    );
}

#[test]
fn attack_23_every_truncation_is_refused() {
    let case = Case::small();
    let (document, roots) = (case.document(), case.nitro_roots());
    for end in 0..document.len() {
        let error = nitro_tpm::authenticate(&document[..end], &roots, at(NOW)).unwrap_err();
        assert_eq!(error.code(), MALFORMED, "{end}: {error}");
    }
}

#[test]
fn attack_23_every_flipped_bit_is_refused() {
    let case = Case::small();
    let (document, roots) = (case.document(), case.nitro_roots());
    let mut altered = document.clone();
    for bit in 0..document.len() * 8 {
        altered[bit / 8] ^= 1 << (bit % 8);
        assert!(
            nitro_tpm::authenticate(&altered, &roots, at(NOW)).is_err(),
            "bit {bit} of {}",
            document.len() * 8
        );
        altered[bit / 8] = document[bit / 8];
    }
}

static SMALL: LazyLock<(Vec<u8>, NitroRoots)> = LazyLock::new(|| (Case::small().document(), Case::small().nitro_roots()));

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(nitro_tpm::authenticate(&bytes, &SMALL.1, at(NOW)).is_err());
    }

    /// Garbage as payload of a good envelope, and as an envelope that begins well.
    #[test]
    fn attack_23_garbage_payload_never_panics(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let swapped = [&[0x84, 0x44, 0xa1, 0x01, 0x38, 0x22, 0xa0, 0x59][..], &u16::try_from(payload.len()).unwrap().to_be_bytes(), &payload, &[0x58, 0x60], &[0; 96]].concat();
        prop_assert!(nitro_tpm::authenticate(&swapped, &SMALL.1, at(NOW)).is_err());
    }

    #[test]
    fn attack_23_spliced_document_is_refused(at_byte in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..40)) {
        let mut altered = SMALL.0.clone();
        let position = at_byte.index(altered.len());
        let end = altered.len().min(position + bytes.len());
        altered.splice(position..end, bytes);
        prop_assume!(altered != SMALL.0);
        prop_assert!(nitro_tpm::authenticate(&altered, &SMALL.1, at(NOW)).is_err());
    }
}
