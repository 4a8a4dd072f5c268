//! The verification of AWS's identity document and of Azure's attested document, as a time and as a ratio to their own raw signature
//! verifications by aws-lc-rs, measured in the same run.
//!
//! `cargo bench -p attest --bench signed_documents`; it fails if a whole verification costs more than [`WHOLE_LIMIT_RATIO`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::panic,
    missing_docs,
    reason = "a benchmark may panic"
)]

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use attest::UnixTime;
use attest::aws::identity_document::{self, RegionCertificates};
use attest::azure::{self, AzureCloud, AzureTrust, ImdsNonce};
use attest::pkcs7::{SignedData, from_base64};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use cloud_fixtures::aws::region_certificate;
use cloud_fixtures::azure::metadata_params;
use cloud_fixtures::pkcs7::*;
use criterion::Criterion;
use rcgen::PublicKeyData;
use rustls_pki_types::CertificateDer;

/// Whole verification, in the raw signature verifications that it consists of.
const WHOLE_LIMIT_RATIO: f64 = 1.5;

/// 2026-07-28 13:25:00 UTC.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_785_245_100));

const ONE: &str = "RSA-2048 verify, aws-lc-rs alone";
const AWS: &str = "AWS identity document, whole";
const AZURE: &str = "Azure attested document, whole";

/// The documents, and of how many RSA-2048 verifications each consists: Azure's has the message, its signer's certificate and the
/// intermediate's.
const WHOLES: [(&str, f64); 2] = [(AWS, 1.0), (AZURE, 3.0)];

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
    let mut criterion = Criterion::default().configure_from_args();
    let names = measure(&mut criterion);
    criterion.final_summary();
    report(&names);
}

fn measure(criterion: &mut Criterion) -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut bench = |name: &'static str, body: &mut dyn FnMut()| {
        criterion.bench_function(name, |bencher| bencher.iter(&mut *body));
        names.push(name);
    };

    let region = region_certificate(&SIGNER, 0xbd9b_3a06_fe76_af6b);
    let aws = Message::aws(AWS_DOCUMENT.as_bytes(), &region);
    let (signed, signature) = (aws.to_be_signed(), SIGNER.sign(SHA256, &aws.to_be_signed()));
    let key = SIGNER.pair.der_bytes();
    bench(ONE, &mut || {
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, black_box(key));
        key.verify(&signed, &signature).unwrap();
    });

    let aws = in_lines(&aws.sign(&SIGNER));
    let regions = RegionCertificates::new([("ap-southeast-2".to_owned(), vec![region])].into()).unwrap();
    bench(AWS, &mut || {
        drop(black_box(identity_document::verify(&aws, &regions, NOW).unwrap()))
    });
    let message = from_base64(&aws).unwrap();
    bench("AWS: Base64", &mut || drop(black_box(from_base64(&aws).unwrap())));
    bench("AWS: parse PKCS#7", &mut || drop(black_box(SignedData::parse(&message).unwrap())));

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
    let azure = data_encoding::BASE64.encode(&Message::azure(document.as_bytes(), &leaf).sign(&SIGNER));
    let trust = AzureTrust::new(vec![AzureCloud::Public], &[root], vec![intermediate]).unwrap();
    bench(AZURE, &mut || {
        drop(black_box(azure::verify(azure.as_bytes(), &trust, &nonce, NOW).unwrap()));
    });
    let message = from_base64(azure.as_bytes()).unwrap();
    bench("Azure: parse PKCS#7", &mut || drop(black_box(SignedData::parse(&message).unwrap())));
    names
}

/// Prints the table and fails above the limit.
fn report(names: &[&str]) {
    let Some(one) = median_ns(ONE) else {
        return println!("no figures: this was no measuring run");
    };
    println!("\n{:<42} {:>12} {:>8}", "step", "median", "ratio");
    for name in names {
        let Some(median) = median_ns(name) else { continue };
        println!("{name:<42} {:>9.1} µs {:>7.2}x", median / 1000.0, median / one);
    }
    println!();
    let mut failed = false;
    for (name, signatures) in WHOLES {
        let Some(whole) = median_ns(name) else { continue };
        let ratio = whole / (one * signatures);
        println!("{name}: {ratio:.2}x its {signatures} RSA-2048 verifications, at most {WHOLE_LIMIT_RATIO}x is allowed");
        failed |= ratio > WHOLE_LIMIT_RATIO;
    }
    if failed {
        std::process::exit(1);
    }
}

/// The median that criterion has stored for a benchmark.
fn median_ns(name: &str) -> Option<f64> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), Into::into);
    let folder = name.replace(['?', '"', '/', '\\', '*', '<', '>', ':', '|', '^'], "_");
    let file = std::fs::read(target.join("criterion").join(folder).join("new/estimates.json")).ok()?;
    serde_json::from_slice::<serde_json::Value>(&file).ok()?["median"]["point_estimate"].as_f64()
}
