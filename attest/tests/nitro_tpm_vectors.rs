//! Attestation documents that AWS has signed, from the test vectors (`ATTEST_VECTORS`).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::vectors;
use crate::vectors::vector;
use attest::aws::nitro_tpm::{self, NitroRoots, NitroTpmError};
use attest::nonce::{EvidenceBinding, PURPOSE_CONFIG};
use attest::{SpkiSha256, UnixTime};
use ciborium::Value;
use rustls_pki_types::CertificateDer;

/// SHA-256 of AWS's root of the commercial partition, as AWS publishes it.
const ROOT_SHA256: &str = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b";

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// A document in base64, broken into lines or not.
fn document(path: &str) -> Option<Vec<u8>> {
    let text = vector(path)?;
    let text: Vec<u8> = text.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
    Some(data_encoding::BASE64.decode(&text).unwrap())
}

/// The payload's fields, read without verifying anything.
fn fields(document: &[u8]) -> BTreeMap<String, Value> {
    let sign1: Value = ciborium::from_reader(document).unwrap();
    let payload = sign1.as_array().unwrap()[2].as_bytes().unwrap().clone();
    let map: Value = ciborium::from_reader(payload.as_slice()).unwrap();
    let entries = map.into_map().unwrap().into_iter();
    entries.map(|(name, value)| (name.into_text().unwrap(), value)).collect()
}

/// The root, which documents have with them. It is trusted for its digest.
fn root(document: &[u8]) -> CertificateDer<'static> {
    let root = fields(document)["cabundle"].as_array().unwrap()[0].as_bytes().unwrap().clone();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &root);
    assert_eq!(data_encoding::HEXLOWER.encode(digest.as_ref()), ROOT_SHA256);
    root.into()
}

#[test]
fn rejects_an_authentic_enclave_document() {
    let Some(document) = document("aws/nitro/valid-attestation-doc-base64") else {
        return;
    };
    let roots = NitroRoots::new(&[root(&document)]).unwrap();
    let verify = |roots, now| nitro_tpm::authenticate(&document, roots, at(now));
    // 2023-09-18, 15:03:30. It is read once its chain and its signature are verified, and then it is an enclave's.
    let made = 1_695_049_410;
    assert!(matches!(verify(&roots, made), Err(NitroTpmError::Shape { found: "pcrs", .. })));
    assert!(matches!(verify(&roots, 1_800_000_000), Err(NitroTpmError::Expired { .. })));
    assert!(matches!(verify(&roots, made - 86_400), Err(NitroTpmError::NotYetValid { .. })));
    let nobody = verify(&NitroRoots::default(), made);
    assert!(matches!(nobody, Err(NitroTpmError::UnknownIssuer { .. })));
}

#[test]
fn attack_11_rejects_an_altered_real_document() {
    let Some(document) = document("aws/nitro/valid-attestation-doc-base64") else {
        return;
    };
    let roots = NitroRoots::new(&[root(&document)]).unwrap();
    // Every 61st byte: each is in the payload or the signature, and each costs a chain.
    for position in (0..document.len()).step_by(61) {
        let mut altered = document.clone();
        altered[position] ^= 1;
        let refused = nitro_tpm::authenticate(&altered, &roots, at(1_695_049_410)).unwrap_err();
        // Not even read.
        assert!(!matches!(refused, NitroTpmError::Shape { .. }), "byte {position}");
    }
}

/// A document of an instance's NitroTPM and the PCRs that were read on the same machine, where the vectors have one.
#[test]
fn verifies_a_real_nitro_tpm_document_with_clock() {
    let Some(folder) = vectors::vectors() else { return };
    let file = "aws/nitro/nitrotpm-fixture.json";
    if !folder.join(file).is_file() {
        eprintln!("SKIPPED: the test vectors have no {file}");
        return;
    }
    let fixture: serde_json::Value = serde_json::from_slice(&vector(file).unwrap()).unwrap();
    let hex = |value: &serde_json::Value| data_encoding::HEXLOWER.decode(value.as_str().unwrap().as_bytes()).unwrap();
    let document = hex(&fixture["attestation"]["nitro"]["document"]);
    let roots = NitroRoots::new(&[root(&document)]).unwrap();
    // 2026-02-03, 10:12:02.
    let made = 1_770_113_522;
    let authentic = nitro_tpm::authenticate(&document, &roots, at(made)).unwrap();
    assert_eq!(authentic.module_id.as_str(), "i-01cfb383223e42522-tpm0000000000000000");
    assert_eq!(authentic.timestamp_ms, 1_770_113_522_437);
    assert_eq!(authentic.nonce.as_ref().unwrap().0, hex(&fixture["nonce"]));
    assert!(authentic.pcrs.keys().copied().eq(0..24));
    for (index, value) in fixture["pcrs"]["sha384"].as_object().unwrap() {
        let index: u8 = index.parse().unwrap();
        assert_eq!(authentic.pcrs[&index].as_bytes(), hex(value), "PCR {index}");
    }
    // It answers a challenge of its maker's: another nonce is refused and, with its own, what it is bound to.
    let own = hex(&fixture["nonce"]);
    let mut other = own.clone();
    other[0] ^= 1;
    let verified = |nonce: &[u8]| {
        let binding = EvidenceBinding {
            nonce,
            purpose: PURPOSE_CONFIG,
            pool: "worker",
            server_keys: &[SpkiSha256([0x5a; 32])],
        };
        nitro_tpm::verify(&document, &roots, &binding, at(made)).map(drop)
    };
    assert!(matches!(verified(&other), Err(NitroTpmError::Nonce { .. })));
    assert!(matches!(verified(&own), Err(NitroTpmError::UserData { .. })));
    let late = nitro_tpm::authenticate(&document, &roots, at(made + 3 * 3600 + 60));
    assert!(matches!(late, Err(NitroTpmError::Expired { .. })));
}
