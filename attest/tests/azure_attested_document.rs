//! Azure attested documents by a metadata service that the test holds: what is accepted, and one refusal for each altered field.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use attest::azure::attested_document::{
    ADVICE, AttestedDocumentError, AttestedDocumentRules, AzureCloud, AzureTrust, CLOCK_SKEW_LIMIT_SECONDS, CaProblem, ChainError,
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

fn message(document: &Value) -> Message {
    Message::azure(document.to_string().as_bytes(), &LEAF)
}

fn verified_by(message: &Message, key: &Key, trust: &AzureTrust) -> Result<VerifiedAttestedDocument, AttestedDocumentError> {
    verify(data_encoding::BASE64.encode(&message.sign(key)).as_bytes(), trust, &NONCE, at(NOW))
}

fn verified(document: &Value) -> Result<VerifiedAttestedDocument, AttestedDocumentError> {
    verified_by(&message(document), &SIGNER, &TRUST)
}

/// Why a signer with this certificate is refused.
fn certificate_refused(certificate: &CertificateDer<'static>, trust: &AzureTrust) -> ChainError {
    let message = Message::azure(document().to_string().as_bytes(), certificate);
    match verified_by(&message, &SIGNER, trust).unwrap_err() {
        AttestedDocumentError::Chain { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

fn rules() -> AttestedDocumentRules {
    serde_json::from_value(json!({ "subscriptions": [SUBSCRIPTION] })).unwrap()
}

#[test]
fn every_field_is_read() {
    let document = verified(&document()).unwrap();
    assert_eq!(document.vm_id(), "b1310a36-d400-46f6-82cb-6217df846586");
    assert_eq!(document.subscription_id(), SUBSCRIPTION);
    assert_eq!((document.sku(), document.license_type()), (Some("20_04-lts-gen2"), Some("")));
    assert_eq!(document.nonce(), NONCE.as_str());
    assert_eq!(document.plan().unwrap().publisher, "");
    assert_eq!((document.created_on(), document.expires_on()), (CREATED, EXPIRES));
    assert_eq!((document.cloud(), document.location()), (AzureCloud::Public, Some("eastus")));
    assert!(document.root_subject().contains("CN=Root"), "{}", document.root_subject());
    assert_eq!((document.root_sha256().len(), document.certificate_sha256().len()), (64, 64));
    let identity = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
    assert_eq!(document.node_identity(), identity);
    let record = serde_json::to_value(&document).unwrap();
    assert_eq!((&record["cloud"], &record["location"]), (&json!("public"), &json!("eastus")));
    appraise(&document, &rules(), at(NOW)).unwrap();
    assert!(imds_path(&NONCE).ends_with(&format!("&nonce={}", NONCE.as_str())));
}

#[test]
fn identities_are_in_lower_case() {
    let upper = with("vmId", json!("B1310A36-D400-46F6-82CB-6217DF846586"));
    assert_eq!(
        verified(&upper).unwrap().node_identity(),
        verified(&document()).unwrap().node_identity()
    );
}

#[test]
fn fields_may_come_and_go() {
    assert!(verified(&with("new", json!([{}]))).is_ok());
    let mut document = document();
    for field in ["licenseType", "plan", "sku"] {
        document.as_object_mut().unwrap().remove(field);
    }
    let verified = verified(&document).unwrap();
    assert_eq!((verified.sku(), verified.plan()), (None, None));
    let skus = AttestedDocumentRules {
        skus: Some(vec![String::new()]),
        ..rules()
    };
    assert_eq!(appraise(&verified, &skus, at(NOW)).unwrap_err().code(), "azure-sku-not-accepted");
}

#[test]
fn attack_23_fields_of_another_form() {
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
    let error = verified_by(&Message::azure(twice.as_bytes(), &LEAF), &SIGNER, &TRUST).unwrap_err();
    assert_eq!(error.code(), "azure-document-malformed");
    let with_attributes = message(&document()).but(|message| message.attributes = Some(message.usual_attributes()));
    assert!(verified_by(&with_attributes, &SIGNER, &TRUST).is_ok());
    // Its attributes, presented as a content that was signed without any.
    let content = with_attributes.to_be_signed();
    let error = verified_by(&Message::azure(&content, &LEAF), &SIGNER, &TRUST).unwrap_err();
    assert_eq!(error.code(), "azure-document-malformed");
}

#[test]
fn attack_12_the_bag_is_not_searched() {
    let content = document().to_string();
    // Somebody signs, and puts a real certificate of Azure's into the bag beside their own.
    let theirs = region_certificate(&OTHER, 9);
    let both = vec![LEAF.to_vec(), theirs.to_vec()];
    let message = |signer: &CertificateDer<'static>, bag: Vec<Vec<u8>>| {
        Message::azure(content.as_bytes(), signer).but(|message| message.certificates = bag)
    };
    let code = |message: &Message| verified_by(message, &OTHER, &TRUST).unwrap_err().code();
    assert_eq!(
        code(&message(&theirs, both.clone())),
        "azure-document-certificate",
        "their own is chained"
    );
    assert_eq!(code(&message(&LEAF, both)), "azure-document-signature", "the key is not theirs");
    assert_eq!(code(&message(&theirs, vec![LEAF.to_vec()])), "azure-document-signer");
    assert_eq!(code(&message(&LEAF, vec![])), "azure-document-signer");
    // Theirs has the real one's issuer and serial number.
    let namesake = issued(&metadata_params(&NAMES), &OTHER, &ca_params("Intermediate", 2), &OTHER);
    assert_eq!(
        code(&message(&LEAF, vec![LEAF.to_vec(), namesake.to_vec()])),
        "azure-document-signer"
    );
    assert_eq!(code(&message(&LEAF, vec![namesake.to_vec()])), "azure-document-certificate");
    // Two signers.
    let second = message(&theirs, vec![]).signer_info(&OTHER);
    let two = message(&LEAF, vec![LEAF.to_vec(), theirs.to_vec()]).but(|message| message.extra_signers = vec![second]);
    assert_eq!(verified_by(&two, &SIGNER, &TRUST).unwrap_err().code(), "azure-document-signer");
    // An intermediate in the bag completes no chain.
    let message = message(&LEAF, vec![LEAF.to_vec(), INTERMEDIATE_CA.to_vec()]);
    let error = verified_by(&message, &SIGNER, &trust(vec![])).unwrap_err();
    assert!(error.is_unknown_issuer() && error.code() == "azure-document-issuer", "{error}");
    assert!(verified_by(&message, &SIGNER, &TRUST).is_ok());
}

#[test]
fn attack_12_certificates_that_are_not_the_metadata_services() {
    let refused = |alter: fn(&mut CertificateParams)| certificate_refused(&leaf(alter), &TRUST);
    let names = |names: &'static [&'static str]| {
        let mut params = metadata_params(names);
        params.serial_number = None;
        certificate_refused(&issued(&params, &SIGNER, &ca_params("Intermediate", 2), &INTERMEDIATE), &TRUST)
    };
    for other in [
        &[][..],
        &["www.example.com"],
        &["evilmetadata.azure.com"],
        &["metadata.azure.com.example.com"],
        &["metadata.azure.us"],
        &["azure.com"],
    ] {
        assert!(matches!(names(other), ChainError::Names { .. }), "{other:?}");
    }
    // The common name is not a name.
    assert!(matches!(
        refused(|params| params.subject_alt_names.clear()),
        ChainError::Names { .. }
    ));
    assert_eq!(refused(|params| params.extended_key_usages.clear()), ChainError::ServerAuth);
    assert_eq!(
        refused(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
        ChainError::ServerAuth
    );
    assert!(matches!(
        refused(|params| params.key_usages = vec![KeyUsagePurpose::KeyEncipherment]),
        ChainError::KeyUsage { .. }
    ));
    assert!(matches!(
        refused(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
        ChainError::Path(_)
    ));
    let critical = |params: &mut CertificateParams| {
        let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        unknown.set_criticality(true);
        params.custom_extensions.push(unknown);
    };
    assert!(matches!(refused(critical), ChainError::Path(_)));
    // Signed by itself, and by somebody of the intermediate's name.
    let alone: CertificateDer<'static> = metadata_params(&NAMES).self_signed(&SIGNER.pair).unwrap().into();
    assert!(matches!(certificate_refused(&alone, &TRUST), ChainError::UnknownIssuer { .. }));
    let forged = issued(&metadata_params(&NAMES), &SIGNER, &ca_params("Intermediate", 2), &OTHER);
    assert!(matches!(certificate_refused(&forged, &TRUST), ChainError::Path(_)));
}

#[test]
fn dates_of_the_whole_chain_are_those_of_now() {
    let check = |message: &Message, trust: &AzureTrust, now: u64| {
        verify(
            data_encoding::BASE64.encode(&message.sign(&SIGNER)).as_bytes(),
            trust,
            &NONCE,
            at(now),
        )
    };
    let year =
        |params: &mut CertificateParams| (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 12, 31));
    let (first, last) = (20_454 * 86_400, 20_818 * 86_400);
    let short_root: CertificateDer<'static> = {
        let mut params = ca_params("Root", 1);
        year(&mut params);
        params.self_signed(&ROOT.pair).unwrap().into()
    };
    let of_leaf = (
        Message::azure(document().to_string().as_bytes(), &leaf(year)),
        trust(vec![INTERMEDIATE_CA.clone()]),
    );
    let of_intermediate = (message(&document()), trust(vec![intermediate(year)]));
    let short = AzureTrust::new(vec![AzureCloud::Public], &[short_root], vec![INTERMEDIATE_CA.clone()]).unwrap();
    for (message, trust) in [of_leaf, of_intermediate, (message(&document()), short)] {
        assert!(check(&message, &trust, first).is_ok() && check(&message, &trust, last).is_ok());
        for now in [first - 1, last + 1] {
            assert_eq!(check(&message, &trust, now).unwrap_err().code(), "azure-document-certificate");
        }
    }
}

#[test]
fn clouds_are_those_configured() {
    let clouds = [
        (AzureCloud::Public, "metadata.azure.com"),
        (AzureCloud::UsGovernment, "metadata.azure.us"),
        (AzureCloud::China, "metadata.azure.cn"),
    ];
    for (cloud, domain) in clouds {
        assert_eq!(cloud.domain(), domain);
        let regional = format!("Region1.{domain}");
        let certificate = issued(
            &metadata_params(&[&regional, domain]),
            &SIGNER,
            &ca_params("Intermediate", 2),
            &INTERMEDIATE,
        );
        let message = Message::azure(document().to_string().as_bytes(), &certificate);
        for (configured, _) in clouds {
            let trust = AzureTrust::new(vec![configured], std::slice::from_ref(&*ROOT_CA), vec![INTERMEDIATE_CA.clone()]).unwrap();
            let verified = verified_by(&message, &SIGNER, &trust);
            assert_eq!(verified.is_ok(), configured == cloud);
            if let Ok(verified) = verified {
                assert_eq!((verified.cloud(), verified.location()), (cloud, Some("region1")));
            }
        }
    }
    let none = AzureTrust::new(vec![], std::slice::from_ref(&*ROOT_CA), vec![INTERMEDIATE_CA.clone()]).unwrap();
    assert!(none.clouds().is_empty() && matches!(certificate_refused(&LEAF, &none), ChainError::Names { .. }));
}

#[test]
fn location_is_told_by_exactly_one_name() {
    let location = |names: &[&str]| {
        let certificate = issued(&metadata_params(names), &SIGNER, &ca_params("Intermediate", 2), &INTERMEDIATE);
        let message = Message::azure(document().to_string().as_bytes(), &certificate);
        verified_by(&message, &SIGNER, &TRUST).unwrap().location().map(str::to_owned)
    };
    assert_eq!(location(&["metadata.azure.com"]), None);
    assert_eq!(location(&["*.metadata.azure.com"]), None);
    assert_eq!(location(&["a.b.metadata.azure.com"]), None);
    assert_eq!(location(&["eastus.metadata.azure.com", "westus.metadata.azure.com"]), None);
    assert_eq!(location(&["EastUS.metadata.azure.com", "other.example"]).as_deref(), Some("eastus"));
}

#[test]
fn attack_07_a_document_for_another_challenge() {
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
fn attack_07_a_document_of_another_time() {
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
fn rules_for_each_field() {
    type Alter = fn(&mut AttestedDocumentRules, Vec<String>);
    let document = verified(&document()).unwrap();
    let check = |alter: Alter, accepted: &str, code: &str| {
        let appraise_with = |values: &[&str]| {
            let mut rules = rules();
            alter(&mut rules, values.iter().map(|&value| value.to_owned()).collect());
            appraise(&document, &rules, at(NOW))
        };
        assert_eq!(appraise_with(&["other", accepted]), Ok(()));
        assert_eq!(appraise_with(&[&accepted.to_uppercase()]), Ok(()));
        for values in [&["other"][..], &[], &[""], &[&accepted[1..]]] {
            assert_eq!(appraise_with(values).unwrap_err().code(), code, "{values:?}");
        }
    };
    check(
        |rules, values| rules.subscriptions = values,
        SUBSCRIPTION,
        "azure-subscription-not-accepted",
    );
    let vm = "b1310a36-d400-46f6-82cb-6217df846586";
    check(|rules, values| rules.vm_ids = Some(values), vm, "azure-vm-not-accepted");
    check(
        |rules, values| rules.skus = Some(values),
        "20_04-lts-gen2",
        "azure-sku-not-accepted",
    );
    check(
        |rules, values| rules.locations = Some(values),
        "eastus",
        "azure-location-not-accepted",
    );
    let nothing = AttestedDocumentRules {
        subscriptions: vec![],
        ..rules()
    };
    let error = appraise(&document, &nothing, at(NOW)).unwrap_err();
    assert_eq!(
        Reject::from(error).detail(),
        format!("the subscription is {SUBSCRIPTION:?}; the pool accepts none")
    );
}

#[test]
fn rules_are_read_strictly() {
    let read = |rules: Value| serde_json::from_value::<AttestedDocumentRules>(rules);
    assert!(read(json!({})).is_err(), "subscriptions must be given");
    assert!(read(json!({ "subscriptions": [], "vmIds": [] })).is_err());
    let all = json!({ "subscriptions": ["x"], "vm_ids": ["x"], "skus": [""], "locations": ["eastus"], "max_age_seconds": 60 });
    assert_eq!(serde_json::to_value(read(all.clone()).unwrap()).unwrap(), all);
    let clouds: Vec<AzureCloud> = serde_json::from_value(json!(["public", "us-government", "china"])).unwrap();
    assert_eq!(
        clouds.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["public", "us-government", "china"]
    );
}

#[test]
fn attack_19_cas_are_bounded_and_checked_when_loaded() {
    let problem = |roots: &[CertificateDer<'static>], intermediates: Vec<CertificateDer<'static>>| {
        let error = AzureTrust::new(vec![AzureCloud::Public], roots, intermediates).unwrap_err();
        (error.role, error.problem)
    };
    let root = || vec![ROOT_CA.clone()];
    assert_eq!(problem(std::slice::from_ref(&*LEAF), vec![]), ("root", CaProblem::NotCa));
    assert_eq!(problem(&root(), vec![LEAF.clone()]), ("intermediate", CaProblem::NotCa));
    assert!(matches!(problem(&root(), vec![vec![0x30, 0x00].into()]).1, CaProblem::Malformed(_)));
    let behind = [&INTERMEDIATE_CA, &[0][..]].concat();
    assert!(matches!(problem(&root(), vec![behind.into()]).1, CaProblem::Malformed(_)));
    assert!(matches!(problem(&root(), vec![vec![0x30; 9000].into()]).1, CaProblem::Malformed(_)));
    assert_eq!(
        problem(&vec![ROOT_CA.clone(); ROOTS_LIMIT + 1], vec![]),
        ("root", CaProblem::TooMany(ROOTS_LIMIT))
    );
    // The same one is counted once.
    assert!(
        TRUST
            .clone()
            .with_intermediates(vec![INTERMEDIATE_CA.clone(); 2 * INTERMEDIATES_LIMIT])
            .is_ok()
    );
    let many: Vec<_> = (0..=INTERMEDIATES_LIMIT)
        .map(|n| {
            let mut altered = INTERMEDIATE_CA.to_vec();
            *altered.last_mut().unwrap() = u8::try_from(n).unwrap();
            CertificateDer::from(altered)
        })
        .collect();
    assert_eq!(problem(&root(), many), ("intermediate", CaProblem::TooMany(INTERMEDIATES_LIMIT)));
}

/// Chains as long and as branched as an adversary can make them of what is configured.
#[test]
fn attack_19_long_chains_end() {
    let cas: Vec<CertificateParams> = (0..30).map(|n| ca_params(&format!("CA {n}"), n)).collect();
    let key = &*INTERMEDIATE;
    let mut intermediates = Vec::new();
    for (n, ca) in cas.iter().enumerate() {
        let above = if n == 0 { ca_params("Root", 1) } else { cas[n - 1].clone() };
        intermediates.push(issued(ca, key, &above, if n == 0 { &ROOT } else { key }));
    }
    let trust = trust(intermediates);
    for (n, fits) in [(0, true), (2, true), (20, false), (29, false)] {
        let certificate = issued(&metadata_params(&NAMES), &SIGNER, &cas[n], key);
        let message = Message::azure(document().to_string().as_bytes(), &certificate);
        assert_eq!(verified_by(&message, &SIGNER, &trust).is_ok(), fits, "{n}");
    }
    // Everybody has issued everybody: all have one name and one key.
    let same = ca_params("Same", 0);
    let branched: Vec<_> = (0..60)
        .map(|n| {
            let mut params = ca_params("Same", n);
            params.not_after = date_time_ymd(2041, 1, 1);
            issued(&params, key, &same, key)
        })
        .collect();
    let trust = self::trust(branched);
    let certificate = issued(&metadata_params(&NAMES), &SIGNER, &same, key);
    let message = Message::azure(document().to_string().as_bytes(), &certificate);
    assert!(verified_by(&message, &SIGNER, &trust).is_err());
}

#[test]
fn a_roots_path_length_counts() {
    let mut params = ca_params("Root", 1);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let root: CertificateDer<'static> = params.self_signed(&ROOT.pair).unwrap().into();
    let trust = AzureTrust::new(vec![AzureCloud::Public], &[root], vec![INTERMEDIATE_CA.clone()]).unwrap();
    assert!(matches!(certificate_refused(&LEAF, &trust), ChainError::Path(_)));
}

#[test]
fn attack_19_the_sender_chooses_no_url() {
    let urls_of = |urls: &[&str]| {
        let certificate = leaf(|params| params.custom_extensions = vec![access(urls)]);
        let message = Message::azure(document().to_string().as_bytes(), &certificate).sign(&SIGNER);
        let urls = issuer_urls(data_encoding::BASE64.encode(&message).as_bytes()).unwrap();
        assert_eq!(urls, IssuerUrls::of_certificate(&certificate));
        let allowed: Vec<String> = urls.allowed.iter().map(|url| url.as_str().to_owned()).collect();
        (allowed, urls.refused)
    };
    let real = "http://www.microsoft.com/pkiops/certs/Microsoft%20TLS%20G2%20RSA%20CA%20OCSP%2002.crt";
    let evil = "http://169.254.169.254/latest/meta-data";
    assert_eq!(urls_of(&[real]), (vec![real.to_owned()], vec![]));
    assert_eq!(urls_of(&[evil, real]), (vec![real.to_owned()], vec![evil.to_owned()]));
    assert_eq!(urls_of(&["http://evil.example/\u{1b}[31m"]).1, ["http://evil.example/\\u{1b}[31m"]);
    let (allowed, refused) = urls_of(&[real; 20]);
    assert_eq!((allowed.len(), refused.len()), (URLS_LIMIT, 0));
    assert_eq!(urls_of(&[]), (vec![], vec![]));
    assert_eq!(IssuerUrls::of_certificate(b"nothing"), IssuerUrls::default());
    assert!(issuer_urls(b"nothing").is_err());
}

#[test]
fn fetched_intermediates_complete_a_chain() {
    let without = trust(vec![]);
    assert!(
        verified_by(&message(&document()), &SIGNER, &without)
            .unwrap_err()
            .is_unknown_issuer()
    );
    let fetched = without.with_intermediates(vec![INTERMEDIATE_CA.clone()]).unwrap();
    assert!(verified_by(&message(&document()), &SIGNER, &fetched).is_ok());
    // But they are not trusted: a root that was fetched is none.
    let theirs: CertificateDer<'static> = ca_params("Their Root", 1).self_signed(&OTHER.pair).unwrap().into();
    let trust = trust(vec![theirs]);
    let certificate = issued(&metadata_params(&NAMES), &SIGNER, &ca_params("Their Root", 1), &OTHER);
    assert!(matches!(
        certificate_refused(&certificate, &trust),
        ChainError::UnknownIssuer { .. }
    ));
}

#[test]
fn attack_06_weak_algorithms() {
    let weak = message(&document()).but(|message| {
        message.digest_algorithm = algorithm(SHA1, NULL);
        message.digest_algorithms = vec![algorithm(SHA1, NULL)];
    });
    assert_eq!(verified_by(&weak, &SIGNER, &TRUST).unwrap_err().code(), "azure-document-algorithm");
}

#[test]
fn attack_23_every_truncation_and_every_byte() {
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

#[test]
fn codes_are_stable_and_documented() {
    let page = include_str!("../../docs/evidence/azure-attested-document.md");
    let codes: BTreeSet<&str> = ADVICE.iter().map(|advice| advice.code).collect();
    assert_eq!(codes.len(), ADVICE.len());
    for advice in ADVICE {
        let row = format!("| `{}` | {} | {} |", advice.code, advice.title, advice.next_step);
        assert!(page.contains(&row), "{row}");
    }
}

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(verify(&bytes, &TRUST, &NONCE, at(NOW)).is_err());
        prop_assert!(verify(&in_lines(&bytes), &TRUST, &NONCE, at(NOW)).is_err());
        prop_assert_eq!(IssuerUrls::of_certificate(&bytes), IssuerUrls::default());
    }

    /// Signed by the metadata service, and yet no document.
    #[test]
    fn attack_23_signed_garbage_never_panics(content in "\\PC{0,200}") {
        prop_assert!(verified_by(&Message::azure(content.as_bytes(), &LEAF), &SIGNER, &TRUST).is_err());
    }
}
