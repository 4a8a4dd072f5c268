//! The verification of AWS's identity document and of Azure's attested document, as a time and as a ratio to their own raw signature
//! verifications by aws-lc-rs, measured in the same run: the hash over the very bytes that are signed, and RSA. The key of a
//! certificate that is configured is ready, that of one from a message is not.
//!
//! `cargo bench -p attest --bench signed_documents`; it fails if a whole verification costs more than [`WHOLE_LIMIT_RATIO`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark may panic"
)]

mod interleaved;

use std::hint::black_box;
use std::time::Duration;

use attest::UnixTime;
use attest::aws::identity_document::{self, RegionCertificates};
use attest::azure::attested_document::{self, AzureCloud, AzureTrust, ImdsNonce};
use attest::pkcs7::{SignedData, from_base64};
use aws_lc_rs::digest;
use aws_lc_rs::signature::{ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use cloud_fixtures::aws::region_certificate;
use cloud_fixtures::azure::metadata_params;
use cloud_fixtures::pkcs7::*;
use interleaved::{Interleaved, Limit};
use rcgen::PublicKeyData;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Whole verification, in the raw signature verifications that it consists of.
const WHOLE_LIMIT_RATIO: f64 = 1.5;

/// Time of verification: 2026-07-28 13:25:00 UTC.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_785_245_100));

const AWS_FLOOR: &str = "AWS: its hashes and its RSA-2048 signature";
const AWS: &str = "AWS identity document, whole";
const AZURE_FLOOR: &str = "Azure: its 3 RSA-2048 signatures";
const AZURE: &str = "Azure attested document, whole";

const AWS_DOCUMENT: &str = r#"{
  "accountId" : "123456789012",
  "architecture" : "arm64",
  "availabilityZone" : "ap-southeast-2a",
  "billingProducts" : null,
  "devpayProductCodes" : null,
  "marketplaceProductCodes" : null,
  "imageId" : "ami-0b76fe9a9986f66a7",
  "instanceId" : "i-0ce4441c840a0a941",
  "instanceType" : "t4g.small",
  "kernelId" : null,
  "pendingTime" : "2026-07-28T13:24:00Z",
  "privateIp" : "10.0.1.242",
  "ramdiskId" : null,
  "region" : "ap-southeast-2",
  "version" : "2017-09-30"
}"#;

fn main() {
    let limit = |whole, floor| Limit {
        whole,
        floor,
        ratio: WHOLE_LIMIT_RATIO,
    };
    let mut steps = Interleaved::default();
    aws(&mut steps);
    steps.run(&[limit(AWS, AWS_FLOOR)]);
    let mut steps = Interleaved::default();
    azure(&mut steps);
    steps.run(&[limit(AZURE, AZURE_FLOOR)]);
}

fn aws(steps: &mut Interleaved<'_>) {
    let certificate = region_certificate(&SIGNER, 0xbd9b_3a06_fe76_af6b);
    let message = TestMessage::aws(AWS_DOCUMENT.as_bytes(), &certificate);
    let (signed, signature) = (message.to_be_signed(), SIGNER.sign(SHA256, &message.to_be_signed()));
    let key = ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, SIGNER.pair.der_bytes()).unwrap();
    steps.step(AWS_FLOOR, move || {
        black_box(digest::digest(&digest::SHA256, black_box(AWS_DOCUMENT.as_bytes())));
        key.verify_sig(black_box(&signed), &signature).unwrap();
    });

    let message = message.sign(&SIGNER);
    let text = in_lines(&message);
    let regions = RegionCertificates::new([("ap-southeast-2".to_owned(), vec![certificate])].into()).unwrap();
    let base64 = text.clone();
    steps.step(AWS, move || {
        drop(black_box(identity_document::verify(black_box(&text), &regions, NOW).unwrap()));
    });
    steps.step("AWS: Base64", move || drop(black_box(from_base64(black_box(&base64)).unwrap())));
    steps.step("AWS: parse PKCS#7", move || {
        drop(black_box(SignedData::parse(black_box(&message)).unwrap()));
    });
}

fn azure(steps: &mut Interleaved<'_>) {
    let nonce = ImdsNonce::derive(&[7; 32]);
    let root: CertificateDer<'static> = ca_params("Root", 1).self_signed(&ROOT.pair).unwrap().into();
    let intermediate = issued(&ca_params("Intermediate", 2), &INTERMEDIATE, &ca_params("Root", 1), &ROOT);
    let names_of_signer = ["eastus.metadata.azure.com", "metadata.azure.com"];
    let leaf = issued(
        &metadata_params(&names_of_signer),
        &SIGNER,
        &ca_params("Intermediate", 2),
        &INTERMEDIATE,
    );
    let document = format!(
        r#"{{"licenseType":"","nonce":"{nonce}","plan":{{"name":"","product":"","publisher":""}},"sku":"","subscriptionId":"8a205152-b25a-417f-a676-80465535a6c9","timeStamp":{{"createdOn":"07/28/26 13:24:00 -0000","expiresOn":"07/28/26 19:24:00 -0000"}},"vmId":"b1310a36-d400-46f6-82cb-6217df846586"}}"#
    );
    let message = TestMessage::azure(document.as_bytes(), &leaf).sign(&SIGNER);

    let signature = SIGNER.sign(SHA256, document.as_bytes());
    let signatures = [
        (&*SIGNER, document.into_bytes(), signature),
        signed_certificate(&INTERMEDIATE, &leaf),
        signed_certificate(&ROOT, &intermediate),
    ];
    steps.step(AZURE_FLOOR, move || {
        for (key, signed, signature) in &signatures {
            let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, black_box(key.pair.der_bytes()));
            key.verify(signed, signature).unwrap();
        }
    });

    let text = data_encoding::BASE64.encode(&message);
    let trust = AzureTrust::new(vec![AzureCloud::Public], &[root], vec![intermediate]).unwrap();
    let base64 = text.clone();
    steps.step(AZURE, move || {
        drop(black_box(
            attested_document::verify(black_box(text.as_bytes()), &trust, &nonce, NOW).unwrap(),
        ));
    });
    steps.step("Azure: Base64", move || {
        drop(black_box(from_base64(black_box(base64.as_bytes())).unwrap()));
    });
    let parsed = SignedData::parse(&message).unwrap();
    steps.step("Azure: parse PKCS#7", move || {
        drop(black_box(SignedData::parse(black_box(&message)).unwrap()));
    });
    steps.step("Azure: parse the signer's certificate", move || {
        drop(black_box(parsed.signer_certificate().unwrap()));
    });
}

/// Returns a key, and the data that it has signed in a certificate, with the signature.
fn signed_certificate<'a>(key: &'a Pkcs7Key, certificate: &[u8]) -> (&'a Pkcs7Key, Vec<u8>, Vec<u8>) {
    let (_, parsed) = X509Certificate::from_der(certificate).unwrap();
    (key, parsed.tbs_certificate.as_ref().to_vec(), parsed.signature_value.data.to_vec())
}
