//! Azure attested documents by a metadata service that the test holds: what is accepted, and one refusal for each altered field.

mod certificates;
mod rules;

use std::sync::LazyLock;
use std::time::Duration;

use attest::azure::attested_document::{
    AttestedDocumentError, AttestedDocumentRules, AzureCaProblem, AzureCloud, AzureTrust, CLOCK_SKEW_LIMIT_SECONDS, ChainError,
    INTERMEDIATES_LIMIT, ImdsNonce, IssuerUrls, ROOTS_LIMIT, URLS_LIMIT, VerifiedAttestedDocument, appraise, imds_path, issuer_urls,
    verify,
};
use attest::{Reject, UnixTime, Withheld};
use cloud_fixtures::aws::region_certificate;
use cloud_fixtures::azure::attested_document::{access, metadata_params};
use cloud_fixtures::pkcs7::*;
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, date_time_ymd};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

/// 2026-07-28 13:24:00 UTC, six hours later, and a minute after the first.
const CREATED: u64 = 1_785_245_040;

const EXPIRES: u64 = CREATED + 6 * 3600;
const NOW: u64 = CREATED + 60;
const SUBSCRIPTION: &str = "8a205152-b25a-417f-a676-80465535a6c9";
const NAMES: [&str; 2] = ["eastus.metadata.azure.com", "metadata.azure.com"];
static NONCE: LazyLock<ImdsNonce> = LazyLock::new(|| ImdsNonce::derive(&[7; 32]));
static ROOT_CA: LazyLock<CertificateDer<'static>> = LazyLock::new(|| ca_params("Root", 1).self_signed(&ROOT.pair).unwrap().into());
static INTERMEDIATE_CA: LazyLock<CertificateDer<'static>> = LazyLock::new(|| intermediate(|_| {}));
static LEAF: LazyLock<CertificateDer<'static>> = LazyLock::new(|| leaf(|_| {}));
static TRUST: LazyLock<AzureTrust> = LazyLock::new(|| trust(vec![INTERMEDIATE_CA.clone()]));

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Issued by the root.
fn intermediate(alter: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let mut params = ca_params("Intermediate", 2);
    alter(&mut params);
    issued(&params, &INTERMEDIATE, &ca_params("Root", 1), &ROOT)
}

/// Issued by the intermediate.
fn leaf(alter: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let mut params = metadata_params(&NAMES);
    alter(&mut params);
    issued(&params, &SIGNER, &ca_params("Intermediate", 2), &INTERMEDIATE)
}

fn trust(intermediates: Vec<CertificateDer<'static>>) -> AzureTrust {
    AzureTrust::new(vec![AzureCloud::Public], std::slice::from_ref(&*ROOT_CA), intermediates).unwrap()
}

fn document() -> Value {
    json!({
        "licenseType": "",
        "nonce": NONCE.as_str(),
        "plan": { "name": "", "product": "", "publisher": "" },
        "sku": "20_04-lts-gen2",
        "subscriptionId": SUBSCRIPTION,
        "timeStamp": { "createdOn": "07/28/26 13:24:00 -0000", "expiresOn": "07/28/26 19:24:00 -0000" },
        "vmId": "b1310a36-d400-46f6-82cb-6217df846586",
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut document = document();
    document[field] = value;
    document
}

fn message(document: &Value) -> TestMessage {
    TestMessage::azure(document.to_string().as_bytes(), &LEAF)
}

fn verified_by(message: &TestMessage, key: &Pkcs7Key, trust: &AzureTrust) -> Result<VerifiedAttestedDocument, AttestedDocumentError> {
    verify(data_encoding::BASE64.encode(&message.sign(key)).as_bytes(), trust, &NONCE, at(NOW))
}

fn verified(document: &Value) -> Result<VerifiedAttestedDocument, AttestedDocumentError> {
    verified_by(&message(document), &SIGNER, &TRUST)
}

fn rules() -> AttestedDocumentRules {
    serde_json::from_value(json!({ "subscriptions": [SUBSCRIPTION] })).unwrap()
}

#[test]
fn attested_document_fields_are_parsed() {
    let document = verified(&document()).unwrap();
    assert_eq!(document.vm_id.as_str(), "b1310a36-d400-46f6-82cb-6217df846586");
    assert_eq!(document.subscription_id.as_str(), SUBSCRIPTION);
    assert_eq!(
        (document.sku.as_deref(), document.license_type.as_deref()),
        (Some("20_04-lts-gen2"), Some(""))
    );
    assert_eq!(document.nonce.as_str(), NONCE.as_str());
    assert_eq!(document.plan.as_ref().unwrap().publisher, "");
    assert_eq!((document.created_on, document.expires_on), (CREATED, EXPIRES));
    assert_eq!((document.cloud, document.location.as_deref()), (AzureCloud::Public, Some("eastus")));
    assert!(
        document.root_subject.as_str().contains("CN=Root"),
        "{}",
        document.root_subject.as_str()
    );
    assert_eq!(
        (document.root_sha256.as_str().len(), document.certificate_sha256.as_str().len()),
        (64, 64)
    );
    let identity = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
    assert_eq!(document.node_identity(), identity);
    let record = serde_json::to_value(&document).unwrap();
    assert_eq!((&record["cloud"], &record["location"]), (&json!("public"), &json!("eastus")));
    appraise(&document, &rules(), at(NOW)).unwrap();
    assert!(imds_path(&NONCE).ends_with(&format!("&nonce={}", NONCE.as_str())));
}

#[test]
fn node_identity_is_in_lower_case() {
    let upper = with("vmId", json!("B1310A36-D400-46F6-82CB-6217DF846586"));
    assert_eq!(
        verified(&upper).unwrap().node_identity(),
        verified(&document()).unwrap().node_identity()
    );
}

#[test]
fn optional_fields_may_be_absent_or_unknown() {
    assert!(verified(&with("new", json!([{}]))).is_ok());
    let mut document = document();
    for field in ["licenseType", "plan", "sku"] {
        document.as_object_mut().unwrap().remove(field);
    }
    let verified = verified(&document).unwrap();
    assert_eq!((verified.sku.as_deref(), verified.plan.as_ref()), (None, None));
    let skus = AttestedDocumentRules {
        skus: Some(vec![String::new()]),
        ..rules()
    };
    assert_eq!(appraise(&verified, &skus, at(NOW)).unwrap_err().code(), "azure-sku-not-accepted");
}

#[test]
fn attack_23_malformed_fields_are_refused() {
    let malformed = |document: &Value| {
        let error = verified(document).unwrap_err();
        assert_eq!(error.code(), "azure-document-malformed", "{error}");
    };
    for field in ["vmId", "subscriptionId", "nonce", "timeStamp"] {
        let mut document = document();
        document.as_object_mut().unwrap().remove(field);
        malformed(&document);
        for value in [json!(null), json!(7), json!("x\n"), json!("x".repeat(257)), json!([])] {
            malformed(&with(field, value));
        }
    }
    for field in ["sku", "licenseType"] {
        malformed(&with(field, json!("x\u{1b}[31m")));
        malformed(&with(field, json!({})));
    }
    for uuid in [
        "",
        "b1310a36d40046f682cb6217df846586",
        "b1310a36-d400-46f6-82cb-6217df84658",
        "b1310a36-d400-46f6-82cb-6217df84658g",
        "b1310a36-d400-46f6-82cb-6217df846586-",
        "/1310a36-d400-46f6-82cb-6217df846586",
    ] {
        malformed(&with("vmId", json!(uuid)));
        malformed(&with("subscriptionId", json!(uuid)));
    }
    for time in [
        "",
        "07/28/26 13:24:00",
        "07/28/26 13:24:00 -0700",
        "13/28/26 13:24:00 -0000",
        "02/30/26 13:24:00 -0000",
        "07/28/2026 13:24:00 -0000",
        "7/28/26 13:24:00 -0000",
        "07/28/26 13:24 -0000",
        "2026-07-28T13:24:00Z",
    ] {
        for field in ["createdOn", "expiresOn"] {
            let mut document = document();
            document["timeStamp"][field] = json!(time);
            malformed(&document);
        }
    }
}

#[test]
fn attack_11_only_the_signed_bytes_are_read() {
    for (field, _) in document().as_object().unwrap() {
        let altered = with(field, json!("b1310a36-d400-46f6-82cb-6217df846587")).to_string().into_bytes();
        let message = message(&document()).but(|message| message.shown = Some(altered));
        let error = verified_by(&message, &SIGNER, &TRUST).unwrap_err();
        assert_eq!(error.code(), "azure-document-signature", "{field}");
    }
    let twice = document()
        .to_string()
        .replacen('{', "{\"vmId\":\"b1310a36-d400-46f6-82cb-6217df846587\",", 1);
    let error = verified_by(&TestMessage::azure(twice.as_bytes(), &LEAF), &SIGNER, &TRUST).unwrap_err();
    assert_eq!(error.code(), "azure-document-malformed");
    let with_attributes = message(&document()).but(|message| message.attributes = Some(message.usual_attributes()));
    assert!(verified_by(&with_attributes, &SIGNER, &TRUST).is_ok());
    // Its attributes, presented as a content that was signed without any.
    let content = with_attributes.to_be_signed();
    let error = verified_by(&TestMessage::azure(&content, &LEAF), &SIGNER, &TRUST).unwrap_err();
    assert_eq!(error.code(), "azure-document-malformed");
}

#[test]
fn attack_07_document_for_another_challenge_is_refused() {
    for nonce in ["", "0000000000", "20260728-192400", ImdsNonce::derive(&[8; 32]).as_str()] {
        let error = verified(&with("nonce", json!(nonce))).unwrap_err();
        assert_eq!(error.code(), "azure-document-nonce");
        let expected = NONCE.to_string();
        assert_eq!(
            error,
            AttestedDocumentError::Nonce {
                document: nonce.to_owned(),
                expected
            }
        );
    }
}

#[test]
fn attack_07_expired_or_future_document_is_refused() {
    let document = verified(&document()).unwrap();
    let check = |rules: &AttestedDocumentRules, now: u64| appraise(&document, rules, at(now));
    for now in [CREATED - CLOCK_SKEW_LIMIT_SECONDS, CREATED, EXPIRES] {
        assert_eq!(check(&rules(), now), Ok(()));
    }
    let expired = AttestedDocumentError::Expired {
        expires_on: EXPIRES,
        now: EXPIRES + 1,
    };
    assert_eq!(check(&rules(), EXPIRES + 1), Err(expired));
    for now in [0, CREATED - CLOCK_SKEW_LIMIT_SECONDS - 1, u64::MAX] {
        assert_eq!(check(&rules(), now).unwrap_err().code(), "azure-document-expired");
    }
    let young = AttestedDocumentRules {
        max_age_seconds: Some(120),
        ..rules()
    };
    assert_eq!(check(&young, CREATED + 120), Ok(()));
    let too_old = AttestedDocumentError::TooOld {
        age_seconds: 121,
        accepted: Withheld::at_most_seconds(120),
    };
    assert_eq!(check(&young, CREATED + 121), Err(too_old));
}

#[test]
fn attack_23_every_truncation_and_flipped_byte_is_refused() {
    let message = message(&document()).sign(&SIGNER);
    let check = |message: &[u8]| verify(data_encoding::BASE64.encode(message).as_bytes(), &TRUST, &NONCE, at(NOW));
    assert!(check(&message).is_ok());
    for length in 0..message.len() {
        assert!(check(&message[..length]).is_err(), "{length} bytes");
    }
    for at_byte in 0..message.len() {
        let mut flipped = message.clone();
        flipped[at_byte] ^= 1 << (at_byte % 8);
        assert!(check(&flipped).is_err(), "byte {at_byte}");
    }
}

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(verify(&bytes, &TRUST, &NONCE, at(NOW)).is_err());
        prop_assert!(verify(&in_lines(&bytes), &TRUST, &NONCE, at(NOW)).is_err());
        prop_assert_eq!(IssuerUrls::from_certificate(&bytes), IssuerUrls::default());
    }

    /// Signed by the metadata service, and yet no document.
    #[test]
    fn attack_23_signed_garbage_never_panics(content in "\\PC{0,200}") {
        prop_assert!(verified_by(&TestMessage::azure(content.as_bytes(), &LEAF), &SIGNER, &TRUST).is_err());
    }
}
