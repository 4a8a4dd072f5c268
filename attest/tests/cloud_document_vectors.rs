//! Documents that AWS and Azure have really signed, from the test vectors (`ATTEST_VECTORS`).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::vectors::{files_under, vectors};
use attest::UnixTime;
use attest::aws::identity_document::{
    self, AwsPartition, IdentityDocumentError, IdentityDocumentRules, RegionCertificateProblem, RegionCertificates,
};
use attest::aws::sts::StsRules;
use attest::azure::attested_document::{self, AttestedDocumentRules, AzureCloud, AzureTrust, ImdsNonce, IssuerUrls};
use attest::pkcs7::{Pkcs7Error, SignedContent, SignedData, SigningCertificate};
use cloud_fixtures::der::{OCTETS, der};
use cloud_fixtures::pkcs7::{self, TestMessage};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Start of the AWS instance: 2026-02-16T00:38:27Z.
const STARTED: u64 = 1_771_202_307;
/// Date of verification: 2026-08-15, UTC.
const AUGUST: u64 = 1_786_752_000;
/// Creation of the Azure document: 2026-07-28 13:24:00 UTC.
const CREATED: u64 = 1_785_245_040;

fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    let bytes = std::fs::read(file).unwrap();
    CertificateDer::pem_slice_iter(&bytes)
        .map(|certificate| certificate.unwrap())
        .collect()
}

fn regions(folder: &Path) -> BTreeMap<String, Vec<CertificateDer<'static>>> {
    let name = |file: &Path| file.file_stem().unwrap().to_str().unwrap().to_owned();
    let regions: BTreeMap<_, _> = files_under(folder, ".pem")
        .iter()
        .map(|file| (name(file), certificates(file)))
        .collect();
    assert!(regions.len() > 30);
    regions
}

/// AWS's regions of 2026, by the files of their certificates.
#[test]
fn every_aws_region_has_a_partition() {
    let Some(vectors) = vectors() else { return };
    let all = regions(&vectors.join("aws/region-certs/rsa2048"));
    RegionCertificates::new(all.clone()).unwrap();
    for region in all.keys() {
        let partition = AwsPartition::from_region(region);
        let expected = match region.split('-').next().unwrap() {
            "cn" => AwsPartition::AwsCn,
            "eusc" => AwsPartition::AwsEusc,
            _ if region.starts_with("us-gov-") => AwsPartition::AwsUsGov,
            _ => AwsPartition::Aws,
        };
        assert_eq!(partition, Some(expected), "{region}");
        let rules = serde_json::json!({"accounts": ["123456789012"], "roles": ["worker"], "regions": [region]});
        serde_json::from_value::<StsRules>(rules).unwrap();
    }
}

#[test]
fn an_aws_document_verifies_with_its_regions_certificate() {
    let Some(vectors) = vectors() else { return };
    let all = regions(&vectors.join("aws/region-certs/rsa2048"));
    let message = std::fs::read(vectors.join("aws/iid/apse2-2026.rsa2048.p7.b64")).unwrap();
    let trusted = RegionCertificates::new(all.clone()).unwrap();
    let verified = identity_document::verify(&message, &trusted, at(STARTED + 60)).unwrap();
    let document = verified.replayable();
    assert_eq!(document.node_identity(), "aws:189292791360/i-0c5541936caf78c12");
    assert_eq!(
        (document.region.as_str(), document.architecture.as_str()),
        ("ap-southeast-2", "arm64")
    );
    assert_eq!(document.pending_time, STARTED);
    let rules: IdentityDocumentRules = serde_json::from_value(json!({
        "accept_replayable": true, "accounts": ["189292791360"], "regions": ["ap-southeast-2"], "image_ids": ["ami-0cbde744623b7506b"],
        "instance_types": ["t4g.small"], "availability_zones": ["ap-southeast-2a"], "max_age_seconds": 3600,
    }))
    .unwrap();
    identity_document::appraise(&verified, &rules, at(STARTED + 60)).unwrap();

    // The very bytes that IMDS gives as the document.
    let signed = attest::pkcs7::from_base64(&message).unwrap();
    let signed = SignedData::parse(&signed).unwrap();
    let certificate = SigningCertificate::parse(&all["ap-southeast-2"][0]).unwrap();
    let content = std::fs::read(vectors.join("aws/iid/apse2-2026.document.json")).unwrap();
    assert_eq!(signed.verify(&certificate, SignedContent::Attached), Ok(content.as_slice()));
    assert!(matches!(
        signed.signer_certificate(),
        Err(Pkcs7Error::SignerCertificate { all: 0, .. })
    ));
}

#[test]
fn attack_14_aws_document_is_refused_for_other_regions() {
    let Some(vectors) = vectors() else { return };
    let all = regions(&vectors.join("aws/region-certs/rsa2048"));
    let message = std::fs::read(vectors.join("aws/iid/apse2-2026.rsa2048.p7.b64")).unwrap();
    let bytes = attest::pkcs7::from_base64(&message).unwrap();
    let signed = SignedData::parse(&bytes).unwrap();
    for (region, certificates) in &all {
        let others: BTreeMap<_, _> = [(region.clone(), certificates.clone())].into();
        let result = identity_document::verify(&message, &RegionCertificates::new(others).unwrap(), at(STARTED));
        let certificate = SigningCertificate::parse(&certificates[0]).unwrap();
        assert_eq!(signed.names(&certificate), region == "ap-southeast-2", "{region}");
        match result {
            Ok(_) => assert_eq!(region, "ap-southeast-2"),
            Err(error) => assert_eq!(error.code(), "aws-document-signer", "{region}"),
        }
        // Its certificate in another region's file.
        if region != "ap-southeast-2" {
            let mixed: BTreeMap<_, _> = [(region.clone(), all["ap-southeast-2"].clone())].into();
            let error = identity_document::verify(&message, &RegionCertificates::new(mixed).unwrap(), at(STARTED)).unwrap_err();
            assert_eq!(error.code(), "aws-document-region");
        }
    }
}

#[test]
fn attack_11_altered_aws_document_is_refused() {
    let Some(vectors) = vectors() else { return };
    let trusted = RegionCertificates::new(regions(&vectors.join("aws/region-certs/rsa2048"))).unwrap();
    let text = std::fs::read(vectors.join("aws/iid/apse2-2026.rsa2048.p7.b64")).unwrap();
    let message = attest::pkcs7::from_base64(&text).unwrap();
    let check = |message: &[u8]| identity_document::verify(&pkcs7::in_lines(message), &trusted, at(STARTED));
    assert!(check(&message).is_ok());
    for at_byte in 0..message.len() {
        let mut flipped = message.clone();
        flipped[at_byte] ^= 1 << (at_byte % 8);
        assert!(check(&flipped).is_err(), "byte {at_byte}");
        assert!(check(&message[..at_byte]).is_err());
    }
}

#[test]
fn attack_14_rsa_1024_and_dsa_are_refused() {
    let Some(vectors) = vectors() else { return };
    for (folder, found, least) in [("rsa", "RSA-1024", 36), ("dsa", "of algorithm 1.2.840.10040.4.1", 30)] {
        let mut refused = 0;
        for (region, certificates) in regions(&vectors.join("aws/region-certs").join(folder)) {
            // AWS publishes RSA-2048 where other regions have DSA.
            let Err(error) = RegionCertificates::new([(region.clone(), certificates)].into()) else {
                assert!(folder == "dsa" && region.starts_with("cn-"), "{folder}: {region}");
                continue;
            };
            let RegionCertificateProblem::Certificate { problem, .. } = error.problem else {
                panic!("{error}")
            };
            assert_eq!(problem, Pkcs7Error::Key { found: found.to_owned() });
            refused += 1;
        }
        assert!(refused >= least, "{folder}: {refused}");
    }
    let trusted = RegionCertificates::new(regions(&vectors.join("aws/region-certs/rsa2048"))).unwrap();
    let weak = &certificates(&vectors.join("aws/region-certs/rsa/us-east-1.pem"))[0];
    for name in ["iid0", "iid1"] {
        let folder = vectors.join("aws/iid/rspamd");
        let signature = std::fs::read(folder.join(format!("{name}.sig"))).unwrap();
        // The bare signature is no message.
        let error = identity_document::verify(&signature, &trusted, at(STARTED)).unwrap_err();
        assert_eq!(error.code(), "aws-document-malformed");
        // In a message that names the RSA-1024 certificate as its signer's, there is no candidate.
        let content = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let signature = attest::pkcs7::from_base64(&signature).unwrap();
        let message = TestMessage::azure(&content, weak).but(|message| message.certificates.clear());
        let stand_in = message.sign(&pkcs7::SIGNER);
        let template = der(OCTETS, &[&[0; 256]]);
        let end = stand_in.len() - template.len();
        let real = rewrap(&stand_in[..end], &der(OCTETS, &[&signature]));
        let parsed = SignedData::parse(&real).unwrap();
        assert!(parsed.signer().contains("Amazon Web Services"), "{}", parsed.signer());
        let error = identity_document::verify(&pkcs7::in_lines(&real), &trusted, at(STARTED)).unwrap_err();
        assert!(matches!(error, IdentityDocumentError::SignerUnknown { .. }), "{error}");
    }
}

/// The message that `start` is the beginning of, with `signature` as its end and all lengths set right.
fn rewrap(start: &[u8], signature: &[u8]) -> Vec<u8> {
    // All elements that are open at the end are in the chain ContentInfo, [0], SignedData, SET, SignerInfo, with long lengths.
    let (header, tag) = (4, start[0]);
    let inside = &start[header..];
    let mut content = Vec::new();
    let mut rest = inside;
    while !rest.is_empty() {
        let (length_bytes, length) = match rest[1] {
            0x81 => (2, usize::from(rest[2])),
            0x82.. => (3, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
            short => (1, usize::from(short)),
        };
        let end = 1 + length_bytes + length;
        if end > rest.len() {
            content.extend(rewrap(rest, signature));
            return der(tag, &[&content]);
        }
        content.extend_from_slice(&rest[..end]);
        rest = &rest[end..];
    }
    content.extend_from_slice(signature);
    der(tag, &[&content])
}

fn azure_document(vectors: &Path) -> (Vec<u8>, String) {
    let file = vectors.join("azure/attested-doc/taskcluster/azure_signature_good.json");
    let file: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let text = |field: &str| file[0][field].as_str().unwrap().to_owned();
    (text("document").into_bytes(), text("vmId"))
}

fn azure_ca(vectors: &Path, name: &str) -> CertificateDer<'static> {
    certificates(&vectors.join("azure/ca").join(name)).remove(0)
}

fn azure_trust(vectors: &Path, clouds: Vec<AzureCloud>) -> AzureTrust {
    let ca = |name: &str| azure_ca(vectors, name);
    let roots = [
        ca("microsoft_tls_rsa_root_g2.pem"),
        ca("microsoft_rsa_root_certificate_authority_2017.pem"),
    ];
    let intermediates = files_under(&vectors.join("azure/ca"), ".pem")
        .iter()
        .map(|file| certificates(file).remove(0))
        .collect();
    AzureTrust::new(clouds, &roots, intermediates).unwrap()
}

#[test]
fn an_azure_document_verifies() {
    let Some(vectors) = vectors() else { return };
    let (message, vm_id) = azure_document(&vectors);
    // Nobody had given a nonce: IMDS then writes a time.
    let nonce = ImdsNonce::recorded("20260728-192400").unwrap();
    let trust = azure_trust(&vectors, vec![AzureCloud::Public]);
    let document = attested_document::verify(&message, &trust, &nonce, at(AUGUST)).unwrap();
    assert_eq!(document.vm_id.as_str(), vm_id);
    assert_eq!(
        document.node_identity(),
        format!("azure:8a205152-b25a-417f-a676-80465535a6c9/{vm_id}")
    );
    assert_eq!((document.created_on, document.expires_on), (CREATED, CREATED + 6 * 3600));
    assert_eq!((document.sku.as_deref(), document.location.as_deref()), (Some(""), Some("eastus")));
    assert!(
        document.root_subject.as_str().contains("CN=Microsoft TLS RSA Root G2"),
        "{}",
        document.root_subject.as_str()
    );

    let rules: AttestedDocumentRules = serde_json::from_value(json!({
        "subscriptions": ["8A205152-B25A-417F-A676-80465535A6C9"], "vm_ids": [vm_id], "skus": [""], "locations": ["eastus"],
    }))
    .unwrap();
    assert_eq!(attested_document::appraise(&document, &rules, at(CREATED + 60)), Ok(()));
    let late = attested_document::appraise(&document, &rules, at(AUGUST)).unwrap_err();
    assert_eq!(late.code(), "azure-document-expired", "it held for six hours");
}

#[test]
fn azure_document_is_refused_for_other_parameters() {
    let Some(vectors) = vectors() else { return };
    let (message, _) = azure_document(&vectors);
    let nonce = ImdsNonce::recorded("20260728-192400").unwrap();
    let check = |trust: &AzureTrust, nonce: &ImdsNonce, now: u64| {
        attested_document::verify(&message, trust, nonce, at(now)).map_err(|error| error.code())
    };
    let trust = azure_trust(&vectors, vec![AzureCloud::Public]);
    assert!(check(&trust, &nonce, AUGUST).is_ok());
    assert_eq!(
        check(&trust, &ImdsNonce::derive(&[1; 32]), AUGUST).unwrap_err(),
        "azure-document-nonce"
    );
    let government = azure_trust(&vectors, vec![AzureCloud::UsGovernment]);
    assert_eq!(check(&government, &nonce, AUGUST).unwrap_err(), "azure-document-certificate");
    // The signer's certificate is from 2026-05-15 to 2026-11-11.
    for now in [1_778_800_000, 1_794_400_000] {
        assert_eq!(check(&trust, &nonce, now).unwrap_err(), "azure-document-certificate");
    }
    let root = |name: &str| [azure_ca(&vectors, name)];
    let g2 = root("microsoft_tls_rsa_root_g2.pem");
    let only_root = AzureTrust::new(vec![AzureCloud::Public], &g2, vec![]).unwrap();
    assert_eq!(check(&only_root, &nonce, AUGUST).unwrap_err(), "azure-document-issuer");
    let other = root("microsoft_rsa_root_certificate_authority_2017.pem");
    let issuer = azure_ca(&vectors, "microsoft_tls_g2_rsa_ca_ocsp_02.pem");
    let other_root = AzureTrust::new(vec![AzureCloud::Public], &other, vec![issuer.clone()]).unwrap();
    assert_eq!(check(&other_root, &nonce, AUGUST).unwrap_err(), "azure-document-issuer");

    // What is missing is where Microsoft publishes it.
    let urls: Vec<String> = attested_document::issuer_urls(&message)
        .unwrap()
        .allowed
        .iter()
        .map(|url| url.as_str().to_owned())
        .collect();
    assert_eq!(
        urls,
        [
            "http://www.microsoft.com/pkiops/certs/Microsoft%20TLS%20G2%20RSA%20CA%20OCSP%2002.crt",
            "http://caissuers.microsoft.com/pkiops/certs/Microsoft%20TLS%20G2%20RSA%20CA%20OCSP%2002.crt",
        ]
    );
    let completed = only_root.with_intermediates(vec![issuer]).unwrap();
    assert!(check(&completed, &nonce, AUGUST).is_ok());
}

#[test]
fn the_issuers_of_all_azure_cas_are_on_the_allowlist() {
    let Some(vectors) = vectors() else { return };
    for file in files_under(&vectors.join("azure/ca"), ".pem") {
        let urls = IssuerUrls::from_certificate(&certificates(&file)[0]);
        assert!(urls.refused.is_empty(), "{}: {:?}", file.display(), urls.refused);
    }
}

#[test]
fn attack_11_altered_azure_document_is_refused() {
    let Some(vectors) = vectors() else { return };
    let (text, _) = azure_document(&vectors);
    let nonce = ImdsNonce::recorded("20260728-192400").unwrap();
    let trust = azure_trust(&vectors, vec![AzureCloud::Public]);
    let message = attest::pkcs7::from_base64(&text).unwrap();
    for at_byte in 0..message.len() {
        let mut flipped = message.clone();
        flipped[at_byte] ^= 1 << (at_byte % 8);
        let flipped = data_encoding::BASE64.encode(&flipped);
        assert!(
            attested_document::verify(flipped.as_bytes(), &trust, &nonce, at(AUGUST)).is_err(),
            "byte {at_byte}"
        );
    }
}
