//! Keys with false claims: not restricted, made in software, not endorsed, of another hierarchy; and genuine ones.

use attest::HashAlg;
use attest::protocol::{Attester as Presented, Blob, ChallengeRequest, HexDigest, TpmAttester, TpmEvidence};
use attest::tpm::wire::{
    Attributes, ClockInfo, Curve, KeyParameters, Public, QuoteAttest, SelectedBank, SymmetricCipher, TpmScheme, TpmSignature,
};
use attest_node::tpm::{AkKind, EkChoice, TpmDevice};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use swtpm_tests::{EkAuthority, IssuedChallenge, TestEndorsement, TpmServer};
use tss_esapi::attributes::ObjectAttributesBuilder;
use tss_esapi::handles::KeyHandle;
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, PublicAlgorithm};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::structures::{
    Digest, EccPoint, EccScheme, HashScheme, HashcheckTicket, KeyDerivationFunctionScheme, MaxBuffer, PublicBuilder,
    PublicEccParametersBuilder, SignatureScheme, SymmetricDefinitionObject,
};
use tss_esapi::traits::Marshall as _;

use crate::bench::{self, Bench, endorsement_key, request, sha256, with_password};

/// Creates a primary key for ECDSA with P-256 in the TPM. Returns its handle and its `TPMT_PUBLIC`.
pub fn signing_key(tpm: &mut TpmDevice, restricted: bool, hash: HashingAlgorithm) -> (KeyHandle, Vec<u8>) {
    let attributes = ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_sensitive_data_origin(true)
        .with_user_with_auth(true)
        .with_restricted(restricted)
        .with_sign_encrypt(true)
        .build()
        .unwrap();
    let parameters = PublicEccParametersBuilder::new()
        .with_symmetric(SymmetricDefinitionObject::Null)
        .with_ecc_scheme(EccScheme::EcDsa(HashScheme::new(hash)))
        .with_curve(EccCurve::NistP256)
        .with_key_derivation_function_scheme(KeyDerivationFunctionScheme::Null)
        .with_is_signing_key(true)
        .with_restricted(restricted)
        .build()
        .unwrap();
    let template = PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::Ecc)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_ecc_parameters(parameters)
        .with_ecc_unique_identifier(EccPoint::default())
        .build()
        .unwrap();
    let created = with_password(tpm, |context| {
        context.create_primary(Hierarchy::Endorsement, template, None, None, None, None)
    })
    .unwrap();
    (created.key_handle, created.out_public.marshall().unwrap())
}

/// Returns a quote with all the right contents, made in software.
pub(super) fn invented_quote(asked: &IssuedChallenge, evidence: &TpmEvidence) -> Vec<u8> {
    let values: Vec<&[u8]> = evidence.pcrs.values().map(HexDigest::as_bytes).collect();
    QuoteAttest {
        qualified_signer: vec![0x00, 0x0b, 1],
        extra_data: asked.extra_data().to_vec(),
        clock: ClockInfo {
            clock_ms: 1,
            reset_count: 1,
            restart_count: 0,
            safe: true,
        },
        firmware_version: 1,
        selection: vec![SelectedBank::new(HashAlg::Sha256, asked.task().pcrs.iter().copied())],
        pcr_digest: sha256(&values.concat()).to_vec(),
    }
    .to_bytes()
}

/// Makes the TPM sign any bytes.
pub(super) fn sign(tpm: &mut TpmDevice, key: KeyHandle, message: &[u8]) -> Result<Vec<u8>, tss_esapi::Error> {
    let buffer = MaxBuffer::try_from(message.to_vec()).unwrap();
    let hashed = |context: &mut tss_esapi::Context| context.hash(buffer, HashingAlgorithm::Sha256, Hierarchy::Endorsement);
    let (digest, ticket): (Digest, HashcheckTicket) = tpm.context().execute_without_session(hashed)?;
    with_password(tpm, |context| context.sign(key, digest, SignatureScheme::Null, ticket))?.marshall()
}

#[test]
fn attack_02_an_unrestricted_ak_signs_a_forged_quote() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let (key, unrestricted) = signing_key(&mut tpm, false, HashingAlgorithm::Sha256);
    bench.refuses_request(&request(&ek, &unrestricted), "ak-attributes");
    // Its area, with the bit set that the key does not have: another Name, so the TPM does not give the secret out.
    let mut claimed = Public::parse(&unrestricted).unwrap();
    claimed.attributes.0 |= Attributes::RESTRICTED;
    let asked = bench.asked(&request(&ek, &claimed.to_bytes()));
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let task = asked.task();
    attester
        .activate(task.credential_blob.as_ref(), task.encrypted_secret.as_ref())
        .unwrap_err();
    let mut forged = TpmEvidence {
        secret_sha256: [0; 32].into(),
        quoted: Blob::default(),
        signature: Blob::default(),
        pcrs: asked.task().pcrs.iter().map(|pcr| (*pcr, HexDigest::from([0; 32]))).collect(),
        event_log: None,
    };
    forged.quoted = invented_quote(&asked, &forged).into();
    forged.signature = sign(attester.tpm(), key, forged.quoted.as_ref()).unwrap().into();
    bench.refuses(&asked, forged, "credential-mismatch");
    // A true AK for the challenge, the other key for the signature.
    let request = request(&ek, attester.ak_public());
    bench.refuses_altered(&mut attester, &request, "quote-signature", |evidence, attester, asked| {
        evidence.quoted = invented_quote(asked, evidence).into();
        evidence.signature = sign(attester.tpm(), key, evidence.quoted.as_ref()).unwrap().into();
        // The AK itself signs no such thing.
        let ak = attester.ak_handle();
        sign(attester.tpm(), ak, evidence.quoted.as_ref()).unwrap_err();
    });
    drop(attester);
    tpm.context()
        .execute_without_session(|context| context.flush_context(key.into()))
        .unwrap();
}

/// Creates a key outside any TPM, with the public area of an EK and of an AK.
fn software_key() -> (EcdsaKeyPair, Public, Public) {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let ak = Public {
        name_alg: HashAlg::Sha256,
        attributes: Attributes(0x0005_0072),
        auth_policy: Vec::new(),
        symmetric: SymmetricCipher::Null,
        scheme: TpmScheme::Ecdsa(HashAlg::Sha256),
        key: KeyParameters::Ecc {
            curve: Curve::P256,
            x: x.to_vec(),
            y: y.to_vec(),
        },
    };
    let ek = Public {
        attributes: Attributes(0x0003_00b2),
        symmetric: SymmetricCipher::Aes128Cfb,
        scheme: TpmScheme::Null,
        ..ak.clone()
    };
    (pair, ek, ak)
}

fn software_quote(pair: &EcdsaKeyPair, asked: &IssuedChallenge, evidence: &mut TpmEvidence) {
    let quoted = invented_quote(asked, evidence);
    let signature = pair.sign(&SystemRandom::new(), &quoted).unwrap();
    let (r, s) = signature.as_ref().split_at(32);
    let scheme = TpmScheme::Ecdsa(HashAlg::Sha256);
    evidence.signature = TpmSignature::Ecdsa { scheme, r, s }.to_bytes().into();
    evidence.quoted = quoted.into();
}

#[test]
fn attack_03_keys_that_no_manufacturer_endorsed() {
    let bench = Bench::new();
    let (pair, ek_area, ak_area) = software_key();
    let software = ChallengeRequest {
        kubelet_key_sha256: None,
        rehearsal: false,
        pool: "worker".to_owned(),
        name: None,
        attester: Presented::from(TpmAttester {
            ek_public: ek_area.to_bytes().into(),
            ek_certificate: None,
            ek_certificate_unread: false,
            ek_intermediates: Vec::new(),
            ak_public: ak_area.to_bytes().into(),
        }),
    };
    bench.refuses_request(&software, "ek-not-endorsed");
    // Another TPM's certificate does not help.
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut borrowed = software;
    let attester = borrowed.attester.tpm.as_mut().unwrap();
    attester.ek_certificate = ek.certificate.clone().map(Into::into);
    bench.refuses_request(&borrowed, "ek-certificate-mismatch");

    // Another manufacturer, whose CA calls itself as the trusted one does; and none.
    let stranger = EkAuthority::new(&bench.folder.path().join("stranger")).unwrap();
    for (name, endorsement, code) in [
        ("foreign", TestEndorsement::By(&stranger), "ek-certificate-invalid"),
        ("unendorsed", TestEndorsement::None, "ek-not-endorsed"),
    ] {
        let server = TpmServer::start(&bench.folder.path().join(name), endorsement).unwrap();
        let mut tpm = TpmDevice::open(&server.tcti()).unwrap();
        let ek = endorsement_key(&mut tpm);
        assert_eq!(ek.certificate.is_some(), name == "foreign");
        let ak_public = tpm.attester(&ek, AkKind::EccP256).unwrap().ak_public().to_vec();
        bench.refuses_request(&request(&ek, &ak_public), code);
    }

    // An endorsed EK with an AK in software: the TPM gives the secret only for an AK of its own.
    let asked = bench.asked(&request(&ek, &ak_area.to_bytes()));
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let task = asked.task();
    attester
        .activate(task.credential_blob.as_ref(), task.encrypted_secret.as_ref())
        .unwrap_err();
    let mut guessed = TpmEvidence {
        secret_sha256: sha256(&[0; 32]).into(),
        quoted: Blob::default(),
        signature: Blob::default(),
        pcrs: task.pcrs.iter().map(|pcr| (*pcr, HexDigest::from([0; 32]))).collect(),
        event_log: None,
    };
    software_quote(&pair, &asked, &mut guessed);
    bench.refuses(&asked, guessed, "credential-mismatch");

    // An endorsed EK with the AK of another TPM, unendorsed, that quotes truly.
    let server = TpmServer::start(&bench.folder.path().join("elsewhere"), TestEndorsement::None).unwrap();
    let mut other_tpm = TpmDevice::open(&server.tcti()).unwrap();
    let other_ek = endorsement_key(&mut other_tpm);
    let mut other = other_tpm.attester(&other_ek, AkKind::EccP256).unwrap();
    let asked = bench.asked(&request(&ek, other.ak_public()));
    let task = asked.task();
    attester
        .activate(task.credential_blob.as_ref(), task.encrypted_secret.as_ref())
        .unwrap_err();
    let quote = other.quote(&asked.extra_data(), HashAlg::Sha256, &task.pcrs).unwrap();
    let elsewhere = TpmEvidence {
        secret_sha256: [0; 32].into(),
        quoted: quote.quoted.into(),
        signature: quote.signature.into(),
        pcrs: bench::hex_values(&quote.pcrs),
        event_log: None,
    };
    bench.refuses(&asked, elsewhere, "credential-mismatch");
}

/// In these hierarchies the TPM adds a secret number to resetCount, restartCount and firmwareVersion: resets would go unseen.
#[test]
fn attack_31_an_ak_of_another_hierarchy() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    for hierarchy in [Hierarchy::Owner, Hierarchy::Null, Hierarchy::Platform] {
        for kind in [AkKind::EccP256, AkKind::Rsa2048] {
            let mut attester = tpm.attester_of(&ek, kind, hierarchy).unwrap();
            let request = request(&ek, attester.ak_public());
            bench.refuses_altered(&mut attester, &request, "ak-hierarchy", |_, _, _| {});
        }
    }
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    bench.trusts(&mut attester, &request);
}
#[test]
fn every_ek_and_ak_algorithm_is_trusted() {
    // What the refusals above are worth depends on it.
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    for choice in [EkChoice::Rsa, EkChoice::Ecc] {
        let ek = tpm.endorsement_key(choice).unwrap();
        assert!(ek.certificate.is_some());
        for kind in [AkKind::EccP256, AkKind::EccP384, AkKind::Rsa2048] {
            let mut attester = tpm.attester(&ek, kind).unwrap();
            let request = request(&ek, attester.ak_public());
            let earned = bench.trusts(&mut attester, &request);
            bench.gives("full", Some(&earned.ticket));
        }
    }
}
