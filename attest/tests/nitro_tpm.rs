//! NitroTPM attestation documents of a generated authority: what is accepted, and one refusal for each thing that can be wrong.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::nitro_authority;
use crate::nitro_authority::{Case, INSTANCE, MODULE, NONCE, NOW, REGION, SERVER_KEY, at, leaf, named, p256, p384};
use attest::aws::nitro_tpm::{
    self, ADVICE, DOCUMENT_LIMIT_BYTES, NitroRoots, NitroTpmError, NitroTpmRules, NitroTpmSubject, RootProblem, VerifiedNitroTpm, appraise,
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
const CERTIFICATE: &str = "nitro-tpm-certificate-invalid";
const SHAPE: &str = "nitro-tpm-shape";

#[test]
fn a_document_is_accepted() {
    let verified = Case::new().verify().unwrap();
    let document = verified.document();
    assert_eq!(
        (document.module_id(), document.instance(), document.region()),
        (MODULE, INSTANCE, REGION)
    );
    assert_eq!((document.timestamp_ms(), document.pcrs().len()), (NOW * 1000 - 2500, 24));
    assert_eq!(document.pcrs()[&4].as_bytes(), [4; 48]);
    assert_eq!((document.nonce(), document.public_key()), (Some(NONCE.as_slice()), None));
    assert_eq!(verified.server_key(), &SERVER_KEY);
    assert_eq!(verified.identity(), format!("aws-nitrotpm:{INSTANCE}"));

    let record = serde_json::to_value(&verified).unwrap();
    assert_eq!(record["instance"], INSTANCE);
    assert_eq!(record["pcrs"]["4"], "04".repeat(48));
    assert_eq!(record["account"], serde_json::Value::Null);
}

#[test]
fn forms_that_are_the_same_document() {
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
fn envelopes_that_are_refused() {
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

#[test]
fn fields_that_are_refused() {
    let check = |change: fn(&mut Case), variant: &str, code: &str| drop(refused(&case(change), variant, code));
    let none: Option<Value> = None;
    for field in ["module_id", "digest", "timestamp", "nitrotpm_pcrs"] {
        let without = Case::new().but(|case| case.set(field, none.clone()));
        refused(&without, "FieldMissing", MALFORMED);
        let twice = Case::new().but(|case| {
            let again = case.fields.iter().find(|(name, _)| name.as_text() == Some(field)).unwrap().clone();
            case.more_fields.push(again);
        });
        refused(&twice, "FieldRepeated", MALFORMED);
        for wrong in [
            Value::Null,
            Value::Bool(true),
            Value::Float(1.0),
            Value::Tag(0, Box::new("x".into())),
        ] {
            refused(&Case::new().but(|case| case.set(field, wrong.clone())), "Cbor", MALFORMED);
        }
    }
    for field in ["public_key", "user_data", "nonce"] {
        refused(
            &Case::new().but(|case| case.set(field, Value::Bytes(vec![1; 1025]))),
            "FieldLength",
            MALFORMED,
        );
        refused(&Case::new().but(|case| case.set(field, Value::from("text"))), "Cbor", MALFORMED);
        let twice = Case::new().but(|case| case.more_fields.push((field.into(), Value::Null)));
        refused(&twice, "FieldRepeated", MALFORMED);
    }
    check(
        |case| case.more_fields.push(("certificate".into(), Value::Bytes(vec![1]))),
        "FieldRepeated",
        MALFORMED,
    );
    check(
        |case| case.more_fields.push(("cabundle".into(), Value::Array(vec![]))),
        "FieldRepeated",
        MALFORMED,
    );
    // What is not known is passed over, but has to be CBOR of the few forms that a document has, and of no great depth.
    check(|case| case.more_fields.push(("extra".into(), Value::Float(1.0))), "Cbor", MALFORMED);
    let deep = Value::Array(vec![Value::Array(vec![Value::Array(vec![Value::Array(vec![])])])]);
    refused(&case(|case| case.more_fields.push(("extra".into(), deep))), "Cbor", MALFORMED);
    check(|case| case.more_fields.push((1.into(), Value::Null)), "Cbor", MALFORMED);
    check(|case| case.appended_to_payload = vec![0], "Cbor", MALFORMED);
    check(|case| case.set("timestamp", Value::from(-1)), "Cbor", MALFORMED);
    check(|case| case.set("digest", Value::from("SHA256")), "Digest", MALFORMED);
    check(|case| case.set("digest", Value::from("SHA512")), "Digest", MALFORMED);

    check(|case| case.set("nitrotpm_pcrs", Value::Map(Vec::new())), "FieldMissing", MALFORMED);
    check(|case| case.set_pcr(4, Some(vec![4; 32])), "PcrLength", MALFORMED);
    check(|case| case.set_pcr(4, Some(vec![4; 64])), "PcrLength", MALFORMED);
    check(|case| case.set_pcr(4, Some(Vec::new())), "PcrLength", MALFORMED);
    check(|case| case.set_pcr(32, Some(vec![4; 48])), "PcrIndex", MALFORMED);
    let twice: fn(u8) -> Vec<(Value, Value)> = |pcr| vec![(pcr.into(), Value::Bytes(vec![0; 48])), (pcr.into(), Value::Bytes(vec![1; 48]))];
    refused(
        &Case::new().but(|case| case.set("nitrotpm_pcrs", Value::Map(twice(4)))),
        "PcrRepeated",
        MALFORMED,
    );
    check(
        |case| case.set("nitrotpm_pcrs", Value::Map(vec![("4".into(), Value::Bytes(vec![0; 48]))])),
        "Cbor",
        MALFORMED,
    );
}

/// AWS says more one day: what is known is taken as before, and means the same.
#[test]
fn fields_that_are_not_known_are_passed_over() {
    let said = |case: &Case| {
        let verified = case.verify().unwrap();
        let document = verified.document();
        let bytes = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        let known = (document.module_id().to_owned(), document.timestamp_ms(), document.pcrs().clone());
        (
            known,
            bytes(document.user_data()),
            bytes(document.nonce()),
            bytes(document.public_key()),
        )
    };
    let plain = said(&Case::new());
    for more in [
        Value::Null,
        Value::from("text"),
        Value::Bytes(vec![7; 2000]),
        Value::Array(vec![1.into(), "x".into()]),
        Value::Map(vec![("module_id".into(), "i-0ffffffffffffffff-tpm0000000000000000".into())]),
    ] {
        let mut case = Case::new();
        case.more_fields.push(("nitrotpm_version".into(), more.clone()));
        assert_eq!(said(&case), plain, "{more:?}");
        case.more_fields.push(("nitrotpm_version".into(), more));
        assert_eq!(said(&case), plain);
    }
    // A name that only looks like a known one is none.
    let mut case = Case::new();
    case.more_fields.push(("Module_id".into(), Value::Null));
    assert_eq!(said(&case), plain);
}

/// A pool's rules, or a challenge, of a release that took enclaves.
#[test]
fn who_asks_for_an_enclave_is_told_that_none_are_taken() {
    let subject = |shape: &str| serde_json::from_value::<NitroTpmSubject>(serde_json::json!({"shape": shape}));
    assert_eq!(subject("nitro-tpm").unwrap(), NitroTpmSubject::default());
    assert_eq!(
        serde_json::to_value(NitroTpmSubject::default()).unwrap(),
        serde_json::json!({"shape": "nitro-tpm"})
    );
    let refused = subject("enclave").unwrap_err().to_string();
    assert!(
        refused.starts_with("documents of Nitro Enclaves are not taken any more"),
        "{refused}"
    );
    assert!(subject("other").is_err());
}

#[test]
fn an_enclaves_document_is_refused() {
    let enclave = |case: &mut Case| {
        let module = "i-0123456789abcdef0-enc0123456789abcdef";
        case.fields[3].0 = "pcrs".into();
        case.set("module_id", Value::from(module));
        *case.levels.last_mut().unwrap() = leaf(&format!("{module}.{REGION}.aws"));
    };
    refused(&case(enclave), "Shape", SHAPE);
    // Both at once, and an enclave that says to have an instance's PCRs.
    let both = ("pcrs".into(), Value::Map(vec![(0.into(), Value::Bytes(vec![0; 48]))]));
    refused(&case(|case| case.more_fields.push(both)), "Shape", SHAPE);
    let module = |module: &'static str| case(|case| case.set("module_id", Value::from(module)));
    for wrong in [
        "i-0123456789abcdef0-enc0000000000000000",
        "i-0123456789abcdef0",
        "i-0123456789abcdef0-tpm",
        "i-0123456789abcdef0-tpm000000000000000g",
        "i-0123456789ABCDEF0-tpm0000000000000000",
        "x-0123456789abcdef0-tpm0000000000000000",
        "",
    ] {
        refused(&module(wrong), "ModuleId", SHAPE);
    }
    refused(
        &case(|case| case.set("module_id", Value::from("i".repeat(65)))),
        "FieldLength",
        MALFORMED,
    );
}

/// Each level of the chain, altered: the signature of the document itself is right.
#[test]
fn chains_that_are_refused() {
    let check = |change: fn(&mut Case), variant: &str, code: &str| drop(refused(&case(change), variant, code));
    let unknown = "nitro-tpm-not-endorsed";
    let time = "nitro-tpm-certificate-time";
    check(|case| case.roots = Some(Vec::new()), "UnknownIssuer", unknown);
    check(
        |case| {
            case.roots = Some(vec![
                Case::new()
                    .but(|case| case.levels[0].key = Arc::new(p384()))
                    .certificates()
                    .remove(0),
            ])
        },
        "ChainSignature",
        CERTIFICATE,
    );
    check(|case| case.roots = Some(vec![other_root()]), "UnknownIssuer", unknown);
    check(|case| case.cabundle = Some(Vec::new()), "UnknownIssuer", unknown);
    check(|case| case.certificate = Some(vec![1, 2, 3]), "CertificateUnreadable", CERTIFICATE);
    check(|case| case.certificate = Some(Vec::new()), "CertificateUnreadable", CERTIFICATE);
    check(
        |case| case.certificate = Some([leaf_of(case), vec![0]].concat()),
        "CertificateUnreadable",
        CERTIFICATE,
    );
    check(
        |case| case.cabundle = Some(vec![vec![0x30, 0]]),
        "CertificateUnreadable",
        CERTIFICATE,
    );
    // An instance's CA as the signer.
    check(
        |case| {
            case.levels.pop();
        },
        "Path",
        CERTIFICATE,
    );
    check(|case| case.levels[3].params.is_ca = IsCa::ExplicitNoCa, "Path", CERTIFICATE);
    check(|case| case.levels[3].params.is_ca = IsCa::NoCa, "Path", CERTIFICATE);
    check(
        |case| case.levels[3].params.key_usages = vec![KeyUsagePurpose::DigitalSignature],
        "CertificateUsage",
        CERTIFICATE,
    );
    check(
        |case| case.levels[3].params.key_usages = Vec::new(),
        "CertificateUsage",
        CERTIFICATE,
    );
    check(
        |case| case.levels[4].params.key_usages = vec![KeyUsagePurpose::KeyAgreement],
        "CertificateUsage",
        CERTIFICATE,
    );
    check(
        |case| case.levels[4].params.key_usages = Vec::new(),
        "CertificateUsage",
        CERTIFICATE,
    );
    for level in [1, 3, 4] {
        let usage = case(|case| case.levels[level].params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
        refused(&usage, "Path", CERTIFICATE);
    }
    // The path length of the region's CA, and of the root.
    check(
        |case| case.levels[1].params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(1)),
        "Path",
        CERTIFICATE,
    );
    check(
        |case| case.levels[0].params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(2)),
        "Path",
        CERTIFICATE,
    );
    // P-384 and nothing else, in each place.
    check(
        |case| {
            case.levels[4].key = Arc::new(p256());
            case.signing_key = Some(p384());
        },
        "LeafKey",
        CERTIFICATE,
    );
    check(|case| case.levels[3].key = Arc::new(p256()), "ChainAlgorithm", CERTIFICATE);
    check(|case| case.levels[1].key = Arc::new(p256()), "ChainAlgorithm", CERTIFICATE);
    // Each validity, from both sides.
    for level in 0..5 {
        let late = case(|case| case.levels[level].params.not_before = date_time_ymd(2027, 1, 15) + Duration::from_secs(8 * 3600 + 1));
        refused(&late, "NotYetValid", time);
        let early = case(|case| case.levels[level].params.not_after = date_time_ymd(2027, 1, 15) + Duration::from_secs(8 * 3600 - 1));
        refused(&early, "Expired", time);
    }
    // Three hours.
    drop(case(|case| case.now = NOW + 2 * 3600).verify().unwrap());
    check(|case| case.now = NOW + 2 * 3600 + 1, "Expired", time);
    check(|case| case.now = NOW - 3601, "NotYetValid", time);
    check(|case| case.now = 0, "NotYetValid", time);
}

fn leaf_of(case: &Case) -> Vec<u8> {
    case.certificates().pop().unwrap().to_vec()
}

fn other_root() -> CertificateDer<'static> {
    case(|case| case.levels[0].params.distinguished_name = named("other"))
        .certificates()
        .remove(0)
}

#[test]
fn roots_that_are_refused() {
    let problem = |der: Vec<u8>| NitroRoots::new(&[der.into()]).unwrap_err().problem;
    let root = |change: fn(&mut CertificateParams), key: KeyPair| {
        let mut case = Case::new();
        change(&mut case.levels[0].params);
        case.levels[0].params.self_signed(&key).unwrap().der().to_vec()
    };
    assert!(matches!(problem(vec![1, 2]), RootProblem::Malformed(_)));
    assert!(matches!(
        problem([root(|_| {}, p384()), vec![0]].concat()),
        RootProblem::Malformed(_)
    ));
    assert_eq!(
        problem(root(|params| params.is_ca = IsCa::ExplicitNoCa, p384())),
        RootProblem::NotCa
    );
    assert_eq!(problem(root(|params| params.key_usages.clear(), p384())), RootProblem::NotCa);
    assert_eq!(problem(root(|_| {}, p256())), RootProblem::Key);
    assert!(NitroRoots::new(&[]).unwrap().is_empty());
    // The same twice is one.
    let twice = root(|_| {}, p384());
    assert!(NitroRoots::new(&[twice.clone().into(), twice.into()]).is_ok());
}

/// A document that was altered after it was signed, in every field; and what another instance has signed.
#[test]
fn attack_11_only_what_was_signed_is_parsed() {
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
fn attack_03_a_chain_of_ones_own() {
    let own = case(|case| case.levels[0].key = Arc::new(p384()));
    let authentic = Case::new();
    let verified = nitro_tpm::verify(&own.document(), &authentic.nitro_roots(), &authentic.expected(), at(NOW));
    is(&verified.unwrap_err(), "ChainSignature", CERTIFICATE);
}

#[test]
fn attack_06_no_nonce() {
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
fn attack_07_a_document_for_another_challenge() {
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
fn attack_10_a_document_made_for_another_server() {
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
    assert_eq!(verified.server_key(), &SERVER_KEY);
    assert_ne!(
        expected_user_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY),
        expected_user_data(&NONCE, PURPOSE_CONFIG, "worker", &SpkiSha256([1; 32]))
    );
}

#[test]
fn attack_19_chains_that_cost_too_much() {
    let bundle = |certificates: Vec<Vec<u8>>| case(|case| case.cabundle = Some(certificates));
    let authentic = || -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = Case::new().certificates().iter().map(|certificate| certificate.to_vec()).collect();
        all.pop();
        all
    };
    refused(&bundle(vec![vec![0; 1]; 9]), "CabundleLength", MALFORMED);
    refused(&bundle(vec![vec![0; 1025]]), "FieldLength", MALFORMED);
    refused(&case(|case| case.certificate = Some(vec![0; 1025])), "FieldLength", MALFORMED);
    // Lookalikes, which a path builder would try one after the other.
    let lookalike = Case::new().but(|case| case.levels[3].key = Arc::new(p384())).certificates()[3].to_vec();
    refused(&bundle([authentic(), vec![lookalike]].concat()), "CertificateRepeated", CERTIFICATE);
    // Strangers are passed over.
    let strangers = (0..4).map(|stranger| {
        let stranger = format!("stranger {stranger}");
        case(|case| case.levels[0].params.distinguished_name = named(&stranger))
            .certificates()
            .remove(0)
            .to_vec()
    });
    drop(bundle(strangers.chain(authentic()).collect()).verify().unwrap());
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
    fn attack_23_no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(nitro_tpm::authenticate(&bytes, &SMALL.1, at(NOW)).is_err());
    }

    /// Garbage as payload of a good envelope, and as an envelope that begins well.
    #[test]
    fn attack_23_no_payload_makes_it_panic(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let swapped = [&[0x84, 0x44, 0xa1, 0x01, 0x38, 0x22, 0xa0, 0x59][..], &u16::try_from(payload.len()).unwrap().to_be_bytes(), &payload, &[0x58, 0x60], &[0; 96]].concat();
        prop_assert!(nitro_tpm::authenticate(&swapped, &SMALL.1, at(NOW)).is_err());
    }

    #[test]
    fn attack_23_no_splice_is_accepted(at_byte in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..40)) {
        let mut altered = SMALL.0.clone();
        let position = at_byte.index(altered.len());
        let end = altered.len().min(position + bytes.len());
        altered.splice(position..end, bytes);
        prop_assume!(altered != SMALL.0);
        prop_assert!(nitro_tpm::authenticate(&altered, &SMALL.1, at(NOW)).is_err());
    }
}

/// Rules that the document of [`Case::new`] with the account 123456789012 keeps.
const RULES: &str = r#"
accounts = ["123456789012"]
regions = ["eu-central-1", "eu-west-1"]
instances = ["i-0123456789abcdef0"]
age_limit_seconds = 60
[pcrs]
"0-3" = "not checked"
4 = ["040404040404040404040404040404040404040404040404040404040404040404040404040404040404040404040404"]
"5-7" = "not checked"
12 = ["0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c"]
"#;

fn rules(text: &str) -> NitroTpmRules {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn verified() -> VerifiedNitroTpm {
    Case::new().verify().unwrap().with_account("123456789012", INSTANCE).unwrap()
}

#[test]
fn a_pool_accepts() {
    assert_eq!(appraise(&verified(), &rules(RULES), at(NOW)), Ok(()));
    assert_eq!(verified().identity(), format!("aws:123456789012/{INSTANCE}"));
    assert!(rules(RULES).checks_account());
    // The shortest rules: whoever runs it, wherever, with this PCR 4.
    let shortest = "accounts = \"not checked\"\n[pcrs]\n\"0-7\" = \"not checked\"";
    assert_eq!(appraise(&Case::new().verify().unwrap(), &rules(shortest), at(NOW)), Ok(()));
    assert!(!rules(shortest).checks_account() && rules(shortest).reference_values().checks_nothing());
}

#[test]
fn each_rule_refuses() {
    let check = |from: &str, to: &str, variant: &str, code: &str| {
        let altered = RULES.replacen(from, to, 1);
        assert_ne!(altered, RULES);
        is(&appraise(&verified(), &rules(&altered), at(NOW)).unwrap_err(), variant, code);
    };
    check("\"123456789012\"", "\"210987654321\"", "Account", "nitro-tpm-account");
    check("\"123456789012\"", "", "Account", "nitro-tpm-account");
    check("\"eu-central-1\", ", "", "Region", "nitro-tpm-region");
    check("\"eu-central-1\", \"eu-west-1\"", "", "Region", "nitro-tpm-region");
    check(
        "\"i-0123456789abcdef0\"",
        "\"i-0123456789abcdef1\"",
        "Instance",
        "nitro-tpm-instance",
    );
    check("\"i-0123456789abcdef0\"", "", "Instance", "nitro-tpm-instance");
    check("= 60", "= 2", "Age", "nitro-tpm-age");
    check("[\"0404", "[\"0504", "PcrMismatch", "nitro-tpm-pcr-mismatch");
    check("[\"0c0c", "[\"0d0c", "PcrMismatch", "nitro-tpm-pcr-mismatch");
    // A document from the future is as strange as an old one.
    is(
        &appraise(&verified(), &rules(RULES), at(NOW - 100)).unwrap_err(),
        "Age",
        "nitro-tpm-age",
    );
    assert_eq!(
        appraise(&verified(), &rules(&RULES.replace("age_limit_seconds = 60", "")), at(NOW + 100)),
        Ok(())
    );
    // A PCR that the rules name, and the document has not: also if any value would do.
    for pcr in [3, 4] {
        let without = case(|case| case.set_pcr(pcr, None)).verify().unwrap();
        let without = without.with_account("123456789012", INSTANCE).unwrap();
        let error = appraise(&without, &rules(RULES), at(NOW)).unwrap_err();
        assert_eq!(error, NitroTpmError::PcrMissing { index: pcr });
    }
    let error = appraise(&verified(), &rules(&RULES.replacen("[\"0404", "[\"0504", 1)), at(NOW)).unwrap_err();
    let error = Reject::from(error);
    let text = error.detail();
    assert!(
        text.contains(&"04".repeat(48)) && text.contains("0504"),
        "names both values: {text}"
    );
    assert!(!error.told().contains("0504"), "{}", error.told());
}

/// The account is nowhere in the document.
#[test]
fn the_account_has_to_be_shown_by_other_evidence() {
    let alone = Case::new().verify().unwrap();
    is(
        &appraise(&alone, &rules(RULES), at(NOW)).unwrap_err(),
        "AccountUnknown",
        "nitro-tpm-account",
    );
    is(
        &alone.clone().with_account("123456789012", "i-0123456789abcdef1").unwrap_err(),
        "OtherInstance",
        "nitro-tpm-other-instance",
    );
    for account in ["", "12345678901", "1234567890123", "12345678901x", "123456789012/"] {
        is(
            &alone.clone().with_account(account, INSTANCE).unwrap_err(),
            "AccountForm",
            "nitro-tpm-account",
        );
    }
}

#[test]
fn rules_that_cannot_be_meant() {
    let refused = |from: &str, to: &str, says: &str| {
        let altered = RULES.replacen(from, to, 1);
        assert_ne!(altered, RULES);
        let error = toml::from_str::<NitroTpmRules>(&altered).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    refused("accounts = [\"123456789012\"]", "", "accounts");
    refused("accounts = [\"123456789012\"]", "accounts = \"any\"", "not checked");
    refused("\"123456789012\"", "\"12345678901\"", "is no account");
    refused("\"eu-west-1\"", "\"eu-west\"", "is no region");
    refused("\"i-0123456789abcdef0\"", "\"i-*\"", "is no instance");
    refused("\"0-3\"", "\"0-2\"", "PCR 3 is not named");
    refused("\"5-7\"", "\"4-7\"", "PCR 4 is named twice");
    refused("12 = ", "16 = ", "PCR 16 can be reset");
    refused("\"5-7\"", "\"7-5\"", "is no PCR");
    refused("\"5-7\" = \"not checked\"", "\"5-7\" = []", "a range cannot share");
    refused("\"040404", "\"0404", "not checked");
    refused("age_limit_seconds", "age_limit", "unknown field");
    let sha256 = "04".repeat(32);
    refused(&"04".repeat(48), &sha256, "has 32 bytes");
    refused(&format!("[\"{}\"]", "04".repeat(48)), "[]", "accepts no value");
}

#[test]
fn every_code_is_stable_and_explained() {
    let codes: BTreeSet<&str> = ADVICE.iter().map(|advice| advice.code).collect();
    assert_eq!(codes.len(), ADVICE.len());
    let errors = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/errors.md")).unwrap();
    let section = errors
        .split("\n## ")
        .find(|section| section.starts_with("Codes of refused NitroTPM documents\n"))
        .unwrap();
    let listed: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(listed.len(), ADVICE.len());
    for attest::advice::Advice { code, title, next_step } in ADVICE {
        assert!(code.starts_with("nitro-tpm-"), "{code}");
        let row = format!("| `{code}` | {title} | {next_step} |");
        assert!(listed.contains(&row.as_str()), "docs/errors.md has not: {row}");
    }
}
