//! Certificates in folders: those that are used, and those that are skipped.

use attest::Kind;
use attest::aws::identity_document;
use attest::azure::attested_document::{ImdsNonce, verify};
use attest_certificates::cloud_roots::{azure_trust_of, vtpm_roots_of};
use attest_gateway::cloud::{CloudSettingsError, Clouds, Role};
use attest_gateway::inspection::{self, InspectionFinding, RequiredEvidence};
use cloud_fixtures::aws::{self, NitroAuthority, RegionAuthority};
use cloud_fixtures::azure::{AzureAuthority, AzureMachine};
use cloud_fixtures::google::vtpm::VtpmCa;
use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384};
use serde_json::json;

use super::setup::{NOW, Setup, at};

fn roles(clouds: &Clouds) -> Vec<&Role> {
    clouds.record_certificates().iter().map(|(role, _)| role).collect()
}

/// Verifies the skipped files: the beginnings of their paths, and a part of each message.
fn refused(setup: &Setup, clouds: &Clouds, expected: &[(&str, &str)]) {
    let said = clouds.refused();
    assert_eq!(said.len(), expected.len(), "{said:?}");
    for (file, problem) in expected {
        let file = setup.path(file).display().to_string();
        assert!(
            said.iter().any(|line| line.contains(&file) && line.contains(problem)),
            "{file}: {problem} is not in {said:#?}"
        );
    }
}

#[test]
fn missing_anchor_folders_count_as_empty() {
    let setup = Setup::new();
    let clouds = setup.open();
    assert!(clouds.record_certificates().is_empty() && clouds.refused().is_empty());
    assert!(clouds.nitro_roots().is_empty());
    assert_eq!(clouds.region_certificates().regions().count(), 0);
    assert!(clouds.azure_trust().certificates.is_empty());
    for kind in [Kind::AwsIdentityDocument, Kind::AwsNitroTpm, Kind::Azure] {
        let missing = clouds.missing(kind).unwrap();
        assert!(missing.contains("no ") && missing.contains("docs/"), "{kind}: {missing}");
    }
    for kind in [Kind::Tpm, Kind::Token] {
        assert_eq!(clouds.missing(kind), None);
    }
}

#[test]
fn reads_region_certificates_from_files_and_folders() {
    let setup = Setup::new();
    let [first, second, third] = [1, 2, 3].map(RegionAuthority::new);
    setup.write("aws-region-certificates/eu-central-1.pem", first.certificate_pem());
    setup.write("aws-region-certificates/eu-central-1/next.der", second.certificate());
    setup.write(
        "aws-region-certificates/us-gov-west-1/a.pem",
        [third.certificate_pem(), third.certificate_pem()].concat(),
    );
    setup.write("aws-region-certificates/README", "what is here");
    setup.write("aws-region-certificates/..data/eu-west-1.pem", first.certificate_pem());
    let clouds = setup.open();
    refused(&setup, &clouds, &[]);
    let region = |region: &str| Role::AwsRegion(region.to_owned());
    assert_eq!(
        roles(&clouds),
        [&region("eu-central-1"), &region("eu-central-1"), &region("us-gov-west-1")]
    );
    let instance = aws::AwsInstance::example(NOW - 60);
    for authority in [&first, &second] {
        let signed = authority.sign(&instance.identity_document());
        identity_document::verify(signed.as_bytes(), clouds.region_certificates(), at(NOW)).unwrap();
    }
    let elsewhere = third.sign(&instance.identity_document());
    let error = identity_document::verify(elsewhere.as_bytes(), clouds.region_certificates(), at(NOW)).unwrap_err();
    assert!(error.to_string().contains("us-gov-west-1"), "{error}");
    assert_eq!(clouds.missing(Kind::AwsIdentityDocument), None);
}

#[test]
fn skips_files_that_are_no_region_certificate() {
    let setup = Setup::new();
    let good = RegionAuthority::new(1);
    setup.write("aws-region-certificates/eu-central-1.pem", good.certificate_pem());
    setup.write("aws-region-certificates/eu-central-1/broken.pem", "-----BEGIN CERTIFICATE-----\nAA");
    setup.write("aws-region-certificates/eu-central-1/weak.der", NitroAuthority::new().root());
    setup.write("aws-region-certificates/nowhere.pem", good.certificate_pem());
    setup.write("aws-region-certificates/eu-west-1.der", "text");
    let clouds = setup.open();
    assert_eq!(clouds.region_certificates().regions().collect::<Vec<_>>(), ["eu-central-1"]);
    assert_eq!(clouds.record_certificates().len(), 1);
    let folder = "aws-region-certificates";
    refused(
        &setup,
        &clouds,
        &[
            (&format!("{folder}/eu-central-1/broken.pem"), ""),
            (&format!("{folder}/eu-central-1/weak.der"), "RSA-2048"),
            (&format!("{folder}/nowhere.pem"), "name of a region"),
            (&format!("{folder}/eu-west-1.der"), "RSA-2048"),
        ],
    );
}

#[test]
fn attack_14_number_of_certificates_per_region_is_limited() {
    let setup = Setup::new();
    let authority = RegionAuthority::new(1);
    let many: Vec<String> = (0..10)
        .map(|serial| cloud_fixtures::pem(&aws::region_certificate(authority.key(), serial)))
        .collect();
    setup.write("aws-region-certificates/eu-central-1.pem", many.concat());
    let clouds = setup.open();
    assert_eq!(clouds.record_certificates().len(), 8);
    let file = "aws-region-certificates/eu-central-1.pem";
    let ignored = "ignored, because a region may have at most 8 certificates";
    refused(&setup, &clouds, &[(file, ignored), (file, ignored)]);
}

#[test]
fn loads_nitro_and_vtpm_roots() {
    let setup = Setup::new();
    let (nitro, other) = (NitroAuthority::new(), RegionAuthority::new(1));
    // ECDSA: each signature makes another certificate.
    let root = nitro.root_pem();
    setup.write("aws-nitro-roots/root.pem", &root);
    setup.write("aws-nitro-roots/again.pem", &root);
    setup.write("aws-nitro-roots/other.pem", other.certificate_pem());
    let vtpm = VtpmCa::new(KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap());
    setup.write("gcp-vtpm-roots/root.crt", vtpm.certificate());
    setup.write("gcp-vtpm-roots/odd.crt", "odd");
    let clouds = setup.open();
    assert!(!clouds.nitro_roots().is_empty());
    assert!(roles(&clouds).contains(&&Role::AwsNitroRoot));
    refused(&setup, &clouds, &[("aws-nitro-roots/other.pem", "P-384"), ("gcp-vtpm-roots", "")]);
    let (_, problems) = vtpm_roots_of([vtpm.certificate()]);
    assert!(problems.is_empty(), "{problems:?}");
    let found = inspection::clouds::findings(&clouds, &[]);
    assert!(
        found.contains(&InspectionFinding::Good("aws-nitro-tpm: 1 certificate".to_owned())),
        "{found:?}"
    );
    let warnings = found
        .iter()
        .filter(|finding| matches!(finding, InspectionFinding::Warning(_)))
        .count();
    assert_eq!(warnings, 2);
}

#[test]
fn azure_intermediates_are_never_trusted_as_roots() {
    let mut setup = Setup::new();
    let authority = AzureAuthority::new("eastus");
    let check = |setup: &Setup, holds: bool| {
        let clouds = setup.open();
        let trust = clouds.azure_trust();
        let document = AzureMachine::default().document(Some("1234567890"), NOW);
        let signature = authority.sign(&document);
        let nonce = ImdsNonce::recorded("1234567890").unwrap();
        assert_eq!(verify(signature.as_bytes(), &trust.trust, &nonce, at(NOW)).is_ok(), holds);
        // The record's certificates make the same trust again.
        let again = azure_trust_of(&setup.settings.azure.clouds, trust.certificates.iter().cloned()).unwrap();
        assert_eq!(verify(signature.as_bytes(), &again, &nonce, at(NOW)).is_ok(), holds);
        clouds
    };
    setup.write("azure-roots/intermediate.pem", authority.intermediate_pem());
    setup.write("azure-intermediates/root.pem", authority.root_pem());
    let clouds = check(&setup, false);
    refused(
        &setup,
        &clouds,
        &[
            ("azure-roots/intermediate.pem", "azure.intermediates"),
            ("azure-intermediates/root.pem", "azure.roots"),
        ],
    );
    assert!(clouds.missing(Kind::Azure).is_some());
    setup.write("azure-roots/root.pem", authority.root_pem());
    setup.write("azure-intermediates/intermediate.pem", authority.intermediate_pem());
    let clouds = check(&setup, true);
    assert_eq!(roles(&clouds), [&Role::AzureRoot, &Role::AzureIntermediate]);
    assert_eq!(clouds.missing(Kind::Azure), None);
    setup.settings.azure.clouds = Vec::new();
    assert_eq!(setup.open().missing(Kind::Azure).unwrap(), "azure.clouds is empty");
}

#[test]
fn unreadable_configured_file_is_an_error() {
    let error = |change: &dyn Fn(&mut Setup), expected: &str| {
        let mut setup = Setup::new();
        change(&mut setup);
        let error = setup.try_open().unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} is not in {error}");
    };
    error(&|setup| setup.settings.gcp.jwks = Some(setup.path("keys.json")), "gcp.jwks");
    error(
        &|setup| {
            setup.write("keys.json", json!({ "keys": [] }).to_string());
            setup.settings.gcp.jwks = Some(setup.path("keys.json"));
        },
        "none of the JWK set's 0 keys",
    );
    error(&|setup| setup.settings.outgoing.ca = Some(setup.path("ca.pem")), "outgoing.ca");
    error(
        &|setup| {
            setup.write("ca.pem", "nothing");
            setup.settings.outgoing.ca = Some(setup.path("ca.pem"));
        },
        "holds no certificate",
    );
    error(&|setup| setup.write("azure-roots", "a file"), "azure-roots");
}

#[test]
fn gateway_name_comes_from_settings_or_certificate() {
    let mut setup = Setup::new();
    assert_eq!(setup.open().gateway_name(), "api-int.example.com");
    let nameless = Clouds::open(&setup.settings, None).unwrap();
    assert!(nameless.missing(Kind::Gcp).unwrap().contains("gcp.name"));
    setup.settings.gcp.name = Some("gateway-of-mine".to_owned());
    assert_eq!(setup.open().gateway_name(), "gateway-of-mine");
    assert!(matches!(Clouds::open(&setup.settings, None), Ok(clouds) if clouds.gateway_name() == "gateway-of-mine"));
    assert!(!matches!(setup.try_open(), Err(CloudSettingsError::Client(_))));
}

#[test]
fn warns_about_evidence_kinds_without_trust_anchors() {
    let setup = Setup::new();
    let rules = r#"
[grants]
[attestation]
accepts = [["tpm", "gcp"], ["azure"]]
[tpm]
endorsement = "gcp-instance"
pcrs = { "0-7" = "not checked" }
[gcp]
projects = [{ id = "example-project", number = 739419398126 }]
[azure]
subscriptions = ["8a205152-b25a-417f-a676-80465535a6c9"]
"#;
    setup.write("pools/worker/pool.toml", rules);
    let pool = RequiredEvidence::new("worker", &attest_pool::pool_file(&setup.path("pools/worker")).unwrap());
    let warnings = inspection::clouds::warnings(&setup.open(), &pool);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("pool worker accepts azure, which cannot be verified: ") && warnings[0].contains(" holds no root"));
    assert!(warnings[1].contains("gcp-vtpm-roots"), "{}", warnings[1]);
    // What the pool accepts is needed.
    for (pools, is_listed) in [(vec![], true), (vec![pool.clone()], false)] {
        let found = format!("{:?}", inspection::clouds::findings(&setup.open(), &pools));
        let (_, needless) = found.split_once("not needed unless a pool accepts it: ").unwrap();
        assert!(needless.contains("aws-nitro-tpm ("), "{found}");
        assert_eq!(needless.contains("azure ("), is_listed, "{found}");
    }
    let vtpm = VtpmCa::new(KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap());
    setup.write("gcp-vtpm-roots/root.crt", vtpm.certificate());
    setup.write("azure-roots/root.pem", AzureAuthority::new("eastus").root_pem());
    assert_eq!(inspection::clouds::warnings(&setup.open(), &pool), Vec::<String>::new());
}
