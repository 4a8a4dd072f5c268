//! The attacks on TPM evidence, carried out with a live TPM against a running gateway: each is refused with its own code, leaves its
//! record in the attestation log, and earns nothing.

use crate::bench;
use crate::bench::{Bench, SHA1_BANK, SHA256_BANK, endorsement_key, extend, honest, quote_instead, request, sha256, with_password};
use crate::log_builder;
use crate::log_builder::{BuiltEvent, EV_SEPARATOR, LogBuilder};
use attest::HashAlg;
use attest::protocol::{Attester as Presented, Blob, ChallengeRequest, HexDigest, TpmAttester, TpmEvidence};
use attest::tpm::wire::{Attributes, ClockInfo, Curve, KeyParameters, Public, Quoted, Scheme, SelectedBank, Signature, SymmetricCipher};
use attest_node::tpm::{AkKind, EkChoice, Tpm};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use swtpm_tests::{Asked, EkAuthority, Endorsement, TpmServer};
use tss_esapi::attributes::ObjectAttributesBuilder;
use tss_esapi::constants::StartupType;
use tss_esapi::handles::{AuthHandle, KeyHandle};
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, PublicAlgorithm};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    Data, Digest, EccPoint, EccScheme, HashScheme, HashcheckTicket, KeyDerivationFunctionScheme, MaxBuffer, PublicBuilder,
    PublicEccParametersBuilder, SignatureScheme, SymmetricDefinitionObject,
};
use tss_esapi::traits::Marshall as _;

/// What a machine that the pool accepts has measured into PCR 7.
const GOLDEN_DIGEST: [u8; 32] = [0x60; 32];

#[test]
fn attack_01_other_pcrs_than_asked_for() {
    let golden = sha256(&[[0; 32], GOLDEN_DIGEST].concat());
    let accepted = format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", HexDigest::from(golden));
    let bench = Bench::with(|gateway| {
        gateway.edit_pool("\"0-7\" = \"not checked\"", &accepted).unwrap();
        // 7 is the last that is asked for: then 16 in its place has the same digest.
        gateway
            .edit_pool("only_while_booting = true", "only_while_booting = false")
            .unwrap();
    });
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    // The machine booted something else; but 16 and 23 are for everybody to fill.
    extend(&mut tpm, 7, [0xbd; 32]);
    extend(&mut tpm, 16, GOLDEN_DIGEST);
    extend(&mut tpm, 23, GOLDEN_DIGEST);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    bench.refuses_altered(&mut attester, &request, "pcr-mismatch", |_, _, _| {});

    let mut substituted = |banks: &[(u16, &[u8])], code: &str| {
        bench.refuses_altered(&mut attester, &request, code, |evidence, attester, asked| {
            // With the golden value in the place of 7 the digest over the values is the one that is signed.
            evidence.pcrs.insert(7, HexDigest::from(golden));
            quote_instead(evidence, attester, &asked.extra_data(), banks);
        });
    };
    substituted(&[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 16])], "quote-selection");
    substituted(&[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 23])], "quote-selection");
    // The same bank twice, whose union looks like what was asked for or like more.
    substituted(&[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6]), (SHA256_BANK, &[16])], "quote-selection");
    substituted(
        &[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 7]), (SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 7])],
        "quote-selection",
    );
    substituted(&[(SHA1_BANK, &[7]), (SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 7])], "quote-selection");
    substituted(&[(SHA256_BANK, &[])], "quote-selection");
    substituted(&[], "quote-selection");
    // What was asked for, with another value claimed.
    substituted(&[(SHA256_BANK, &[0, 1, 2, 3, 4, 5, 6, 7])], "quote-pcr-digest");
}

/// A primary key for ECDSA with P-256 that lives in the TPM, and its TPMT_PUBLIC.
fn signing_key(tpm: &mut Tpm, restricted: bool, hash: HashingAlgorithm) -> (KeyHandle, Vec<u8>) {
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

/// A quote that says all the right things, made in software.
fn invented_quote(asked: &Asked, evidence: &TpmEvidence) -> Vec<u8> {
    let values: Vec<&[u8]> = evidence.pcrs.values().map(HexDigest::as_bytes).collect();
    Quoted {
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

/// Has the TPM sign any bytes.
fn sign(tpm: &mut Tpm, key: KeyHandle, message: &[u8]) -> Result<Vec<u8>, tss_esapi::Error> {
    let buffer = MaxBuffer::try_from(message.to_vec()).unwrap();
    let hashed = |context: &mut tss_esapi::Context| context.hash(buffer, HashingAlgorithm::Sha256, Hierarchy::Endorsement);
    let (digest, ticket): (Digest, HashcheckTicket) = tpm.context().execute_without_session(hashed)?;
    with_password(tpm, |context| context.sign(key, digest, SignatureScheme::Null, ticket))?.marshall()
}

#[test]
fn attack_02_an_unrestricted_ak_signs_what_no_tpm_made() {
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

/// A key outside any TPM, with the public area of an EK and of an AK.
fn software_key() -> (EcdsaKeyPair, Public, Public) {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let ak = Public {
        name_alg: HashAlg::Sha256,
        attributes: Attributes(0x0005_0072),
        auth_policy: Vec::new(),
        symmetric: SymmetricCipher::Null,
        scheme: Scheme::Ecdsa(HashAlg::Sha256),
        key: KeyParameters::Ecc {
            curve: Curve::P256,
            x: x.to_vec(),
            y: y.to_vec(),
        },
    };
    let ek = Public {
        attributes: Attributes(0x0003_00b2),
        symmetric: SymmetricCipher::Aes128Cfb,
        scheme: Scheme::Null,
        ..ak.clone()
    };
    (pair, ek, ak)
}

fn software_quote(pair: &EcdsaKeyPair, asked: &Asked, evidence: &mut TpmEvidence) {
    let quoted = invented_quote(asked, evidence);
    let signature = pair.sign(&SystemRandom::new(), &quoted).unwrap();
    let (r, s) = signature.as_ref().split_at(32);
    let scheme = Scheme::Ecdsa(HashAlg::Sha256);
    evidence.signature = Signature::Ecdsa { scheme, r, s }.to_bytes().into();
    evidence.quoted = quoted.into();
}

#[test]
fn attack_03_keys_that_no_manufacturer_endorsed() {
    let bench = Bench::new();
    let (pair, ek_area, ak_area) = software_key();
    let software = ChallengeRequest {
        kubelet_key_sha256: None,
        pool: "worker".to_owned(),
        name: None,
        attester: Presented::from(TpmAttester {
            ek_public: ek_area.to_bytes().into(),
            ek_certificate: None,
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
        ("foreign", Endorsement::By(&stranger), "ek-certificate-invalid"),
        ("unendorsed", Endorsement::None, "ek-not-endorsed"),
    ] {
        let server = TpmServer::start(&bench.folder.path().join(name), endorsement).unwrap();
        let mut tpm = Tpm::open(&server.tcti()).unwrap();
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
    let server = TpmServer::start(&bench.folder.path().join("elsewhere"), Endorsement::None).unwrap();
    let mut other_tpm = Tpm::open(&server.tcti()).unwrap();
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
fn attack_04_magic_and_type_confusion() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    let data = |asked: &Asked| Data::try_from(asked.extra_data().to_vec()).unwrap();
    // The AK may sign these, for this very challenge; but they are no quotes.
    let both = (Some(AuthSession::Password), Some(AuthSession::Password), None);
    bench.refuses_altered(&mut attester, &request, "quote-type", |evidence, attester, asked| {
        let ak = attester.ak_handle();
        let certify = |context: &mut tss_esapi::Context| context.certify(ak.into(), ak, data(asked), SignatureScheme::Null);
        let (attest, signature) = attester.tpm().context().execute_with_sessions(both, certify).unwrap();
        evidence.quoted = attest.marshall().unwrap().into();
        evidence.signature = signature.marshall().unwrap().into();
    });
    bench.refuses_altered(&mut attester, &request, "quote-type", |evidence, attester, asked| {
        let ak = attester.ak_handle();
        let time = |context: &mut tss_esapi::Context| context.get_time(ak, data(asked), SignatureScheme::Null);
        let (attest, signature) = attester.tpm().context().execute_with_sessions(both, time).unwrap();
        evidence.quoted = attest.marshall().unwrap().into();
        evidence.signature = signature.marshall().unwrap().into();
    });
    // The AK also signs any bytes that do not begin with the magic: then everything else in them can be invented.
    for magic in [[0xff, 0x54, 0x43, 0x48], [0; 4], [0x47, 0x43, 0x54, 0xff]] {
        bench.refuses_altered(&mut attester, &request, "quote-magic", |evidence, attester, asked| {
            let mut invented = invented_quote(asked, evidence);
            invented[..4].copy_from_slice(&magic);
            let ak = attester.ak_handle();
            evidence.signature = sign(attester.tpm(), ak, &invented).unwrap().into();
            evidence.quoted = invented.into();
        });
    }
    // A true quote whose magic or type is altered afterwards is no longer what was signed.
    for at in 0..6 {
        bench.refuses_altered(&mut attester, &request, "quote-signature", |evidence, _, _| {
            evidence.quoted.0[at] ^= 1
        });
    }
}

#[test]
fn attack_05_pcr_values_that_the_quote_does_not_cover() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());
    let mut with = |code: &str, alter: fn(&mut TpmEvidence)| {
        bench.refuses_altered(&mut attester, &request, code, |evidence, _, _| alter(evidence));
    };
    fn value(byte: u8) -> HexDigest {
        HexDigest::from([byte; 32])
    }
    with("pcr-not-quoted", |evidence| drop(evidence.pcrs.insert(14, value(1))));
    with("pcr-not-quoted", |evidence| drop(evidence.pcrs.insert(16, value(0))));
    with("pcr-not-quoted", |evidence| drop(evidence.pcrs.insert(255, value(0))));
    with("pcr-missing", |evidence| drop(evidence.pcrs.remove(&3)));
    with("pcr-missing", |evidence| evidence.pcrs.clear());
    with("pcr-missing", |evidence| {
        drop(evidence.pcrs.insert(3, HexDigest::new(&[0; 48]).unwrap()))
    });
    with("quote-pcr-digest", |evidence| drop(evidence.pcrs.insert(0, value(1))));
    with("quote-pcr-digest", |evidence| drop(evidence.pcrs.insert(7, value(1))));
}

#[test]
fn attack_06_sha1() {
    let bench = Bench::new();
    // Both banks, as on many machines.
    let tool = std::process::Command::new("tpm2_pcrallocate")
        .arg("sha1:all+sha256:all")
        .env("TPM2TOOLS_TCTI", bench.server.tcti())
        .output()
        .unwrap();
    assert!(tool.status.success(), "{}", String::from_utf8_lossy(&tool.stderr));
    bench.server.reset().unwrap();
    let mut tpm = bench.tpm();
    tpm.context().startup(StartupType::Clear).unwrap();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = |ak: &[u8]| bench::request(&ek, ak);
    let good = request(attester.ak_public());
    bench.trusts(&mut attester, &good);
    bench.refuses_altered(&mut attester, &good, "quote-selection", |evidence, attester, asked| {
        quote_instead(evidence, attester, &asked.extra_data(), &[(SHA1_BANK, &asked.task().pcrs)]);
    });
    drop(attester);
    let (key, ak) = signing_key(&mut tpm, true, HashingAlgorithm::Sha1);
    bench.refuses_request(&request(&ak), "algorithm-refused");
    // A SHA-1 signature by a key whose public area is presented as a better one's.
    let mut claimed = ak;
    let hash = claimed.windows(4).position(|bytes| bytes == [0x00, 0x18, 0x00, 0x04]).unwrap() + 3;
    claimed[hash] = 0x0b;
    let asked = bench.asked(&request(&claimed));
    let quoted = |context: &mut tss_esapi::Context| {
        let selection = tss_esapi::structures::PcrSelectionList::default();
        context.quote(key, Data::default(), SignatureScheme::Null, selection)
    };
    let (quoted, signature) = with_password(&mut tpm, quoted).unwrap();
    let evidence = TpmEvidence {
        secret_sha256: [0; 32].into(),
        quoted: quoted.marshall().unwrap().into(),
        signature: signature.marshall().unwrap().into(),
        pcrs: Default::default(),
        event_log: None,
    };
    bench.refuses(&asked, evidence, "credential-mismatch");
    tpm.context()
        .execute_without_session(|context| context.flush_context(key.into()))
        .unwrap();
    // The true AK, with the signature relabelled as SHA-1.
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    bench.refuses_altered(&mut attester, &good, "algorithm-refused", |evidence, _, _| {
        assert_eq!(evidence.signature.0[..4], [0x00, 0x18, 0x00, 0x0b]);
        evidence.signature.0[3] = 0x04;
    });
}

#[test]
fn attack_07_replay() {
    let bench = Bench::new();
    let mut tpm = bench.tpm();
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());

    // The same evidence again; and other evidence, even right, for a challenge that was answered.
    let first = bench.asked(&request);
    let evidence = honest(&mut attester, &first);
    assert_eq!(bench.client.evidence(&first.answered(evidence.clone())).unwrap().status, 200);
    bench.refuses(&first, evidence.clone(), "challenge-spent");
    let again = honest(&mut attester, &first);
    bench.refuses(&first, again, "challenge-spent");
    // A refused answer has spent its challenge, too.
    let asked = bench.asked(&request);
    let mut wrong = honest(&mut attester, &asked);
    let right = wrong.clone();
    wrong.pcrs.clear();
    bench.refuses(&asked, wrong, "pcr-missing");
    bench.refuses(&asked, right, "challenge-spent");

    // Evidence of one challenge for another.
    let second = bench.asked(&request);
    bench.refuses(&second, evidence.clone(), "credential-mismatch");
    bench.refuses_altered(&mut attester, &request, "quote-extra-data", |fresh, _, _| {
        fresh.quoted = evidence.quoted.clone();
        fresh.signature = evidence.signature.clone();
    });
    // The nonce, for another pool, purpose or server; no nonce at all.
    let mut bound_otherwise = |alter: fn(&mut Asked)| {
        bench.refuses_altered(&mut attester, &request, "quote-extra-data", |evidence, attester, asked| {
            let mut other = asked.clone();
            alter(&mut other);
            let quote = attester.quote(&other.extra_data(), HashAlg::Sha256, &asked.task().pcrs).unwrap();
            evidence.quoted = quote.quoted.into();
            evidence.signature = quote.signature.into();
        });
    };
    bound_otherwise(|asked| asked.pool = "master".to_owned());
    bound_otherwise(|asked| asked.response.purpose = "other".to_owned());
    bound_otherwise(|asked| asked.server_key.0[0] ^= 1);
    bound_otherwise(|asked| asked.response.nonce.0.clear());
    let pcrs = first.task().pcrs.clone();
    bench.refuses_altered(&mut attester, &request, "quote-extra-data", |evidence, attester, asked| {
        quote_instead(evidence, attester, asked.response.nonce.as_ref(), &[(SHA256_BANK, &pcrs)]);
    });
    bench.refuses_altered(&mut attester, &request, "quote-extra-data", |evidence, attester, _| {
        quote_instead(evidence, attester, &[], &[(SHA256_BANK, &pcrs)]);
    });

    // A challenge that this gateway did not make.
    let evidence = honest(&mut attester, &second);
    for at in [0, 20, second.response.challenge.len() - 1] {
        let mut forged = second.clone();
        let other = if forged.response.challenge.as_bytes()[at] == b'A' {
            "B"
        } else {
            "A"
        };
        forged.response.challenge.replace_range(at..=at, other);
        bench.refuses(&forged, evidence.clone(), "challenge-invalid");
    }
}

#[test]
fn attack_07_counters_that_run_backwards_are_noticed() {
    let bench = Bench::new();
    let attest = || {
        let mut tpm = bench.tpm();
        let ek = endorsement_key(&mut tpm);
        let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
        let request = request(&ek, attester.ak_public());
        bench.trusts(&mut attester, &request);
        let record = bench.last_record();
        let resets = record.json().pointer("/claims/tpm/reset_count").unwrap().as_u64().unwrap();
        (resets, record.text("/alerts/0").map(str::to_owned))
    };
    let (first, alert) = attest();
    assert_eq!(alert, None);
    // A reboot between two attestations is an everyday thing, and is in the record.
    bench.server.reset().unwrap();
    bench.tpm().context().startup(StartupType::Clear).unwrap();
    assert_eq!(attest(), (first + 1, None));
    // The same EK, a younger TPM.
    with_password(&mut bench.tpm(), |context| context.clear(AuthHandle::Lockout)).unwrap();
    let (resets, alert) = attest();
    assert!(resets <= first, "{resets}");
    let alert = alert.unwrap();
    assert!(
        alert.contains(&format!("ran backwards: resets {} to {resets}", first + 1)),
        "{alert}"
    );
}

/// What the firmware has measured, really extended into the TPM.
fn measured_boot(tpm: &mut Tpm) -> LogBuilder {
    let log = LogBuilder::typical(&[log_builder::SHA256]);
    for event in &log.events {
        let [(_, digest)] = event.digests.as_slice() else {
            panic!("one bank")
        };
        extend(tpm, event.pcr.try_into().unwrap(), digest.as_slice().try_into().unwrap());
    }
    log
}

#[test]
fn attack_24_event_logs_that_do_not_tell_what_happened() {
    // PCRs 8 to 11 are quoted too, and 13, which is empty while a machine boots; 14, which the log speaks of, is not.
    let bench = Bench::with(|gateway| gateway.edit_pool("\"0-7\" = ", "\"0-11\" = ").unwrap());
    let mut tpm = bench.tpm();
    let log = measured_boot(&mut tpm);
    let ek = endorsement_key(&mut tpm);
    let mut attester = tpm.attester(&ek, AkKind::EccP256).unwrap();
    let request = request(&ek, attester.ak_public());

    let asked = bench.asked(&request);
    let evidence = TpmEvidence {
        event_log: Some(log.build().into()),
        ..honest(&mut attester, &asked)
    };
    assert_eq!(bench.client.evidence(&asked.answered(evidence)).unwrap().status, 200);
    let record = bench.last_record();
    let explained = record.json().pointer("/claims/tpm/event_log/explained_pcrs").unwrap();
    // All that were quoted, and not 14, whatever the log says of it.
    assert_eq!(*explained, serde_json::json!((0..12).chain([13]).collect::<Vec<u8>>()));

    let mut sends = |code: &str, bytes: Vec<u8>| {
        bench.refuses_altered(&mut attester, &request, code, |evidence, _, _| {
            evidence.event_log = Some(bytes.into())
        });
    };
    let mut altered = |alter: fn(&mut Vec<BuiltEvent>)| {
        let mut log = log.clone();
        alter(&mut log.events);
        sends("event-log-mismatch", log.build());
    };
    altered(|events| events.swap(0, 1));
    altered(|events| events.reverse());
    altered(|events| events.truncate(10));
    altered(|events| events.clear());
    altered(|events| drop(events.remove(4)));
    altered(|events| events.insert(0, events[0].clone()));
    altered(|events| {
        let added = LogBuilder::new(&[log_builder::SHA256]).event(7, EV_SEPARATOR, b"added");
        events.extend(added.events);
    });
    altered(|events| events[0].digests[0].1[0] ^= 1);
    altered(|events| events[0].pcr = 1);
    altered(|events| events[0].event_type = log_builder::EV_NO_ACTION);

    let whole = log.build();
    for cut in [1, 17, whole.len() / 2, whole.len() - 1] {
        sends("event-log-malformed", whole[..whole.len() - cut].to_vec());
    }
    sends("event-log-malformed", [whole.as_slice(), &[0]].concat());
    sends("event-log-malformed", [whole.as_slice(), &[0xff; 64]].concat());
    sends("event-log-malformed", Vec::new());
    sends("event-log-malformed", vec![0; 100]);
    let mut sha1_only = LogBuilder::new(&[log_builder::SHA1]);
    sha1_only.events = LogBuilder::typical(&[log_builder::SHA1]).events;
    sends("event-log-mismatch", sha1_only.build());
}

#[test]
fn every_kind_of_key_is_trusted_when_nothing_is_wrong() {
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
