//! EC2 instance identity documents by regions that the test holds: what is accepted, and one refusal for each altered field.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use attest::aws::identity_document::{
    AwsPartition, CERTIFICATES_PER_REGION_LIMIT, CLOCK_SKEW_LIMIT_SECONDS, IdentityDocumentError, IdentityDocumentRules, REGIONS_LIMIT,
    RegionCertificateProblem, RegionCertificates, Replayable, VerifiedIdentityDocument, appraise, verify,
};
use attest::pkcs7::Pkcs7Error;
use attest::{Reject, UnixTime, Withheld};
use cloud_fixtures::aws::region_certificate;
use cloud_fixtures::pkcs7::*;
use proptest::prelude::*;
use rcgen::date_time_ymd;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

/// 2026-02-16T00:38:27Z, and a minute later.
const STARTED: u64 = 1_771_202_307;
const NOW: u64 = STARTED + 60;

static FRANKFURT: LazyLock<CertificateDer<'static>> = LazyLock::new(|| region_certificate(&SIGNER, 1));
static BEIJING: LazyLock<CertificateDer<'static>> = LazyLock::new(|| region_certificate(&OTHER, 2));

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn regions(all: &[(&str, &[&CertificateDer<'static>])]) -> RegionCertificates {
    let owned = |certificates: &[&CertificateDer<'static>]| certificates.iter().map(|certificate| (*certificate).clone()).collect();
    let map: BTreeMap<String, Vec<_>> = all
        .iter()
        .map(|(region, certificates)| ((*region).to_owned(), owned(certificates)))
        .collect();
    RegionCertificates::new(map).unwrap()
}

fn both() -> RegionCertificates {
    regions(&[("eu-central-1", &[&FRANKFURT]), ("cn-north-1", &[&BEIJING])])
}

fn document() -> Value {
    json!({
        "accountId": "123456789012",
        "architecture": "x86_64",
        "availabilityZone": "eu-central-1a",
        "billingProducts": ["bp-6ba54002"],
        "devpayProductCodes": null,
        "marketplaceProductCodes": null,
        "imageId": "ami-0b76fe9a9986f66a7",
        "instanceId": "i-0ce4441c840a0a941",
        "instanceType": "m7i.large",
        "kernelId": null,
        "pendingTime": "2026-02-16T00:38:27Z",
        "privateIp": "10.0.1.242",
        "ramdiskId": null,
        "region": "eu-central-1",
        "version": "2017-09-30",
    })
}

/// Signs a document like the region Frankfurt.
fn signed(document: &Value) -> Vec<u8> {
    in_lines(&TestMessage::aws(document.to_string().as_bytes(), &FRANKFURT).sign(&SIGNER))
}

fn with(field: &str, value: Value) -> Value {
    let mut document = document();
    document[field] = value;
    document
}

fn verified(document: &Value) -> Result<Replayable<VerifiedIdentityDocument>, IdentityDocumentError> {
    verify(&signed(document), &both(), at(NOW))
}

fn rules() -> IdentityDocumentRules {
    serde_json::from_value(json!({ "accept_replayable": true, "accounts": ["123456789012"] })).unwrap()
}

#[test]
fn identity_document_fields_are_parsed() {
    let verified = verified(&document()).unwrap();
    let document = verified.replayable();
    assert_eq!(document.account_id.as_str(), "123456789012");
    assert_eq!(
        (document.region.as_str(), document.partition),
        ("eu-central-1", Some(AwsPartition::Aws))
    );
    assert_eq!(document.availability_zone.as_str(), "eu-central-1a");
    assert_eq!(document.instance_id.as_str(), "i-0ce4441c840a0a941");
    assert_eq!(document.image_id.as_str(), "ami-0b76fe9a9986f66a7");
    assert_eq!(document.instance_type.as_str(), "m7i.large");
    assert_eq!(document.architecture.as_str(), "x86_64");
    assert_eq!(document.pending_time, STARTED);
    assert_eq!(document.private_ip.as_deref(), Some("10.0.1.242"));
    assert_eq!(document.version.as_deref(), Some("2017-09-30"));
    assert_eq!(document.billing_products, ["bp-6ba54002"]);
    assert!(document.marketplace_product_codes.is_empty());
    assert_eq!(document.node_identity(), "aws:123456789012/i-0ce4441c840a0a941");
    let record = serde_json::to_value(&verified).unwrap();
    assert_eq!((&record["partition"], &record["pending_time"]), (&json!("aws"), &json!(STARTED)));
    assert_eq!(record["certificate_sha256"].as_str().unwrap().len(), 64);
    appraise(&verified, &rules(), at(NOW)).unwrap();
    assert_eq!(verified.clone().accept_replay(), *verified.replayable());
}

#[test]
fn optional_fields_may_be_absent_or_unknown() {
    assert!(verified(&with("soMuchNewer", json!({ "a": [1, 2] }))).is_ok());
    let mut document = document();
    for field in [
        "billingProducts",
        "devpayProductCodes",
        "marketplaceProductCodes",
        "kernelId",
        "ramdiskId",
        "privateIp",
        "version",
    ] {
        document.as_object_mut().unwrap().remove(field);
    }
    assert!(verified(&document).is_ok());
    let codes = verified(&with("marketplaceProductCodes", json!(["4i20ezfza3p7xx2kt2g8weu2u"]))).unwrap();
    assert_eq!(codes.replayable().marketplace_product_codes, ["4i20ezfza3p7xx2kt2g8weu2u"]);
}

#[test]
fn attack_23_malformed_fields_are_refused() {
    let malformed = |document: &Value, field: &str| match verified(document).unwrap_err() {
        error @ (IdentityDocumentError::Field { .. } | IdentityDocumentError::Json { .. }) => {
            assert_eq!(error.code(), "aws-document-malformed");
        }
        other => panic!("{field}: {other}"),
    };
    for field in [
        "accountId",
        "region",
        "availabilityZone",
        "instanceId",
        "imageId",
        "instanceType",
        "architecture",
        "pendingTime",
    ] {
        for value in [
            json!(null),
            json!(""),
            json!(7),
            json!("a b"),
            json!("a/b\n"),
            json!(["x"]),
            json!("x".repeat(129)),
        ] {
            malformed(&with(field, value), field);
        }
        let mut document = document();
        document.as_object_mut().unwrap().remove(field);
        malformed(&document, field);
    }
    for (field, value) in [
        ("accountId", "12345678901"),
        ("accountId", "12345678901a"),
        ("region", "eu"),
        ("region", "EU-central-1"),
        ("region", "eu-central-1/"),
        ("instanceId", "0ce4441c840a0a941"),
        ("instanceId", "i-0ce4441C"),
        ("instanceId", "i-123"),
        ("instanceId", "i-0ce4441c840a0a9411"),
        ("pendingTime", "2026-02-16 00:38:27"),
        ("pendingTime", "2026-02-30T00:38:27Z"),
        ("pendingTime", "2026-02-16T00:38:27+01:00"),
        ("privateIp", ""),
    ] {
        malformed(&with(field, json!(value)), field);
    }
    malformed(&with("billingProducts", json!(vec!["x"; 33])), "billingProducts");
    malformed(&with("billingProducts", json!("x")), "billingProducts");
    malformed(&json!([]), "all");
}

#[test]
fn attack_11_only_the_signed_bytes_are_read() {
    let code = |message: Vec<u8>| verify(&in_lines(&message), &both(), at(NOW)).unwrap_err().code();
    // For each field: the altered document is shown, the other one was signed.
    for (field, _) in document().as_object().unwrap() {
        let altered = with(field, json!("i-0123456789abcdef0")).to_string().into_bytes();
        let message = TestMessage::aws(document().to_string().as_bytes(), &FRANKFURT).but(|message| message.shown = Some(altered));
        assert_eq!(code(message.sign(&SIGNER)), "aws-document-signature", "{field}");
    }
    // The same field twice: readers differ in which one they take.
    let twice = document().to_string().replacen('{', "{\"accountId\":\"000000000000\",", 1);
    assert_eq!(
        code(TestMessage::aws(twice.as_bytes(), &FRANKFURT).sign(&SIGNER)),
        "aws-document-malformed"
    );
    let and_more = format!("{} {}", document(), document());
    assert_eq!(
        code(TestMessage::aws(and_more.as_bytes(), &FRANKFURT).sign(&SIGNER)),
        "aws-document-malformed"
    );
    // The attributes of a real message as a document of their own.
    let attributes = TestMessage::aws(document().to_string().as_bytes(), &FRANKFURT).to_be_signed();
    let message = TestMessage::aws(&attributes, &FRANKFURT).but(|message| message.attributes = None);
    assert_eq!(code(message.sign(&SIGNER)), "aws-document-malformed");
}

#[test]
fn attack_12_embedded_certificates_are_ignored() {
    let theirs = region_certificate(&OTHER, 9);
    let content = document().to_string();
    let code = |message: TestMessage, key: &Pkcs7Key| verify(&in_lines(&message.sign(key)), &both(), at(NOW)).unwrap_err().code();
    let own = TestMessage::aws(content.as_bytes(), &theirs).but(|message| message.certificates = vec![theirs.to_vec()]);
    assert_eq!(code(own, &OTHER), "aws-document-signer");
    // Of the same name and number as the region's.
    let namesake = region_certificate(&OTHER, 1);
    let message = TestMessage::aws(content.as_bytes(), &namesake).but(|message| message.certificates = vec![namesake.to_vec()]);
    assert_eq!(code(message, &OTHER), "aws-document-signature");
    let with_bag = TestMessage::aws(content.as_bytes(), &FRANKFURT).but(|message| message.certificates = vec![theirs.to_vec()]);
    assert!(verify(&in_lines(&with_bag.sign(&SIGNER)), &both(), at(NOW)).is_ok());
}

#[test]
fn attack_13_replayed_document_is_refused() {
    let verified = verified(&document()).unwrap();
    let rules_with = |alter: fn(&mut IdentityDocumentRules)| {
        let mut rules = rules();
        alter(&mut rules);
        rules
    };
    let code = |rules: &IdentityDocumentRules, now: u64| appraise(&verified, rules, at(now)).unwrap_err().code();
    assert_eq!(
        code(&rules_with(|rules| rules.accept_replayable = false), NOW),
        "aws-document-replayable"
    );
    let without: IdentityDocumentRules = serde_json::from_value(json!({ "accounts": ["123456789012"] })).unwrap();
    assert_eq!(code(&without, NOW), "aws-document-replayable");

    let young = rules_with(|rules| rules.max_age_seconds = Some(600));
    for now in [STARTED - CLOCK_SKEW_LIMIT_SECONDS, STARTED, STARTED + 600] {
        assert_eq!(appraise(&verified, &young, at(now)), Ok(()));
    }
    let too_old = IdentityDocumentError::TooOld {
        age_seconds: 601,
        accepted: Withheld::at_most_seconds(600),
    };
    assert_eq!(appraise(&verified, &young, at(STARTED + 601)), Err(too_old));
    assert_eq!(code(&young, u64::MAX), "aws-document-age");
    assert_eq!(code(&rules(), STARTED - CLOCK_SKEW_LIMIT_SECONDS - 1), "aws-document-age");
    assert_eq!(appraise(&verified, &rules(), at(STARTED + 100_000_000)), Ok(()), "no limit");
}

#[test]
fn attack_14_key_of_another_region_is_refused() {
    // Beijing's file holds Frankfurt's certificate: a document of Frankfurt is not Beijing's.
    let mixed = regions(&[("cn-north-1", &[&FRANKFURT])]);
    let error = verify(&signed(&document()), &mixed, at(NOW)).unwrap_err();
    let mismatch = IdentityDocumentError::RegionMismatch {
        document: "eu-central-1".to_owned(),
        certificate: "cn-north-1".to_owned(),
    };
    assert_eq!(error, mismatch);
    assert_eq!(error.code(), "aws-document-region");
    // A document that says Beijing, by Frankfurt's key.
    let error = verified(&with("region", json!("cn-north-1"))).unwrap_err();
    assert_eq!(error.code(), "aws-document-region");
    // Only Beijing is configured.
    let error = verify(&signed(&document()), &regions(&[("cn-north-1", &[&BEIJING])]), at(NOW)).unwrap_err();
    assert_eq!(error.code(), "aws-document-signer");
    assert!(matches!(error, IdentityDocumentError::SignerUnknown { certificates: 1, .. }));
    let nobody = verify(&signed(&document()), &RegionCertificates::default(), at(NOW)).unwrap_err();
    assert_eq!(nobody.code(), "aws-document-signer");
    // One certificate for two regions stands for both, and for no third one.
    let two = regions(&[("eu-central-1", &[&FRANKFURT]), ("eu-west-1", &[&FRANKFURT])]);
    assert!(verify(&signed(&document()), &two, at(NOW)).is_ok());
    assert!(verify(&signed(&with("region", json!("eu-west-1"))), &two, at(NOW)).is_ok());
    assert!(verify(&signed(&with("region", json!("eu-west-2"))), &two, at(NOW)).is_err());
}

#[test]
fn attack_14_document_of_another_partition_is_refused() {
    let content = with("region", json!("cn-north-1")).to_string();
    let message = in_lines(&TestMessage::aws(content.as_bytes(), &BEIJING).sign(&OTHER));
    let beijing = verify(&message, &both(), at(NOW)).unwrap();
    let error = appraise(&beijing, &rules(), at(NOW)).unwrap_err();
    assert_eq!(error.code(), "aws-partition-not-accepted");
    assert_eq!(error.to_string(), "the partition is aws-cn");
    assert_eq!(Reject::from(error).detail(), "the partition is aws-cn; the pool accepts aws");
    let chinese = IdentityDocumentRules {
        partitions: vec![AwsPartition::AwsCn],
        ..rules()
    };
    assert_eq!(appraise(&beijing, &chinese, at(NOW)), Ok(()));
    // A partition that is not known here is never accepted.
    let isolated = regions(&[("us-iso-east-1", &[&FRANKFURT])]);
    let isolated = verify(&signed(&with("region", json!("us-iso-east-1"))), &isolated, at(NOW)).unwrap();
    let all = IdentityDocumentRules {
        partitions: vec![AwsPartition::Aws, AwsPartition::AwsCn, AwsPartition::AwsUsGov],
        ..rules()
    };
    assert_eq!(appraise(&isolated, &all, at(NOW)).unwrap_err().code(), "aws-partition-not-accepted");
}

#[test]
fn each_identity_document_rule_is_enforced() {
    type Alter = fn(&mut IdentityDocumentRules, Vec<String>);
    let verified = verified(&document()).unwrap();
    let check = |alter: Alter, accepted: &str, code: &str| {
        let appraise_with = |values: &[&str]| {
            let mut rules = rules();
            alter(&mut rules, values.iter().map(|&value| value.to_owned()).collect());
            appraise(&verified, &rules, at(NOW))
        };
        assert_eq!(appraise_with(&["other", accepted]), Ok(()));
        for values in [
            &["other"][..],
            &[],
            &[&accepted[1..]],
            &[&accepted.to_uppercase().replace(|c: char| c.is_ascii_digit(), "0")],
        ] {
            assert_eq!(appraise_with(values).unwrap_err().code(), code, "{values:?}");
        }
    };
    check(|rules, values| rules.accounts = values, "123456789012", "aws-account-not-accepted");
    check(
        |rules, values| rules.regions = Some(values),
        "eu-central-1",
        "aws-region-not-accepted",
    );
    let zone = "aws-availability-zone-not-accepted";
    check(|rules, values| rules.availability_zones = Some(values), "eu-central-1a", zone);
    check(
        |rules, values| rules.image_ids = Some(values),
        "ami-0b76fe9a9986f66a7",
        "aws-image-not-accepted",
    );
    let instance_type = "aws-instance-type-not-accepted";
    check(|rules, values| rules.instance_types = Some(values), "m7i.large", instance_type);
    let nothing = IdentityDocumentRules {
        accounts: vec![],
        ..rules()
    };
    let error = appraise(&verified, &nothing, at(NOW)).unwrap_err();
    assert_eq!(Reject::from(error).detail(), "the account is 123456789012; the pool accepts none");
}

#[test]
fn rules_reject_unknown_and_missing_fields() {
    let read = |rules: Value| serde_json::from_value::<IdentityDocumentRules>(rules);
    assert!(read(json!({})).is_err(), "accounts must be given");
    assert!(read(json!({ "accounts": [], "acounts": [] })).is_err());
    assert!(read(json!({ "accounts": [], "partitions": ["aws-iso"] })).is_err());
    let all = json!({
        "accept_replayable": true, "accounts": ["123456789012"], "partitions": ["aws", "aws-cn", "aws-us-gov"],
        "regions": ["eu-central-1"], "availability_zones": ["eu-central-1a"], "image_ids": ["ami-1"], "instance_types": ["m7i.large"],
        "max_age_seconds": 600,
    });
    assert_eq!(serde_json::to_value(read(all.clone()).unwrap()).unwrap(), all);
}

#[test]
fn region_certificates_are_checked_when_loaded() {
    let load = |all: Vec<(String, Vec<CertificateDer<'static>>)>| RegionCertificates::new(all.into_iter().collect());
    let problem =
        |region: &str, certificates: Vec<CertificateDer<'static>>| load(vec![(region.to_owned(), certificates)]).unwrap_err().problem;
    for name in ["", "eu", "eu central", "../eu-central-1", "EU-central-1", "eu--1"] {
        assert_eq!(problem(name, vec![FRANKFURT.clone()]), RegionCertificateProblem::Name, "{name}");
    }
    assert_eq!(problem("eu-central-1", vec![]), RegionCertificateProblem::Count { found: 0 });
    let found = CERTIFICATES_PER_REGION_LIMIT + 1;
    assert_eq!(
        problem("eu-central-1", vec![FRANKFURT.clone(); found]),
        RegionCertificateProblem::Count { found }
    );
    let unreadable = problem("eu-central-1", vec![FRANKFURT.clone(), vec![0x30, 0x00].into()]);
    assert!(matches!(unreadable, RegionCertificateProblem::Certificate { position: 2, .. }));
    let found = REGIONS_LIMIT + 1;
    let many = (0..found).map(|n| (format!("eu-central-{n}"), vec![FRANKFURT.clone()])).collect();
    assert_eq!(load(many).unwrap_err().problem, RegionCertificateProblem::Regions { found });
    assert_eq!(both().regions().collect::<Vec<_>>(), ["cn-north-1", "eu-central-1"]);
}

#[test]
fn region_may_have_several_certificates_during_rotation() {
    let next = region_certificate(&OTHER, 3);
    let namesake = region_certificate(&OTHER, 1);
    for certificates in [[&*FRANKFURT, &next], [&next, &FRANKFURT], [&namesake, &FRANKFURT]] {
        assert!(verify(&signed(&document()), &regions(&[("eu-central-1", &certificates)]), at(NOW)).is_ok());
    }
}

#[test]
fn document_requires_a_valid_region_certificate() {
    let mut params = ca_params("Amazon", 4);
    (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2026, 12, 31));
    let certificate: CertificateDer<'static> = params.self_signed(&SIGNER.pair).unwrap().into();
    let message = in_lines(&TestMessage::aws(document().to_string().as_bytes(), &certificate).sign(&SIGNER));
    let check = |now: u64| verify(&message, &regions(&[("eu-central-1", &[&certificate])]), at(now));
    let (first, last) = (20_454 * 86_400, 20_818 * 86_400);
    assert!(check(first).is_ok() && check(last).is_ok());
    for now in [first - 1, last + 1] {
        assert_eq!(check(now).unwrap_err().code(), "aws-document-certificate");
    }
}

#[test]
fn attack_23_every_truncation_and_bit_flip_is_refused() {
    let message = signed(&document());
    let certificates = both();
    for length in 0..message.len() {
        assert!(verify(&message[..length], &certificates, at(NOW)).is_err(), "{length} bytes");
    }
    for at_byte in 0..message.len() {
        for bit in 0..8 {
            let mut flipped = message.clone();
            flipped[at_byte] ^= 1 << bit;
            assert!(verify(&flipped, &certificates, at(NOW)).is_err(), "byte {at_byte}, bit {bit}");
        }
    }
}

#[test]
fn weak_algorithms_have_their_own_code() {
    let message = TestMessage::aws(document().to_string().as_bytes(), &FRANKFURT).but(|message| {
        message.digest_algorithm = algorithm(SHA1, &[]);
        message.digest_algorithms = vec![algorithm(SHA1, &[])];
    });
    let error = verify(&in_lines(&message.sign(&SIGNER)), &both(), at(NOW)).unwrap_err();
    assert!(matches!(&error, IdentityDocumentError::Pkcs7(Pkcs7Error::Digest { .. })));
    assert_eq!(error.code(), "aws-document-algorithm");
}

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(verify(&bytes, &both(), at(NOW)).is_err());
        prop_assert!(verify(&in_lines(&bytes), &both(), at(NOW)).is_err());
    }

    /// Signed by the region, and yet no document.
    #[test]
    fn attack_23_signed_garbage_never_panics(content in "\\PC{0,200}") {
        let message = in_lines(&TestMessage::aws(content.as_bytes(), &FRANKFURT).sign(&SIGNER));
        prop_assert!(verify(&message, &both(), at(NOW)).is_err());
    }
}
