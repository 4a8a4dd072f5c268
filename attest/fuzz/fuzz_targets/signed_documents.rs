//! `RUSTC_BOOTSTRAP=1 cargo fuzz run signed_documents` in `attest/`: no PKCS#7 message makes a verifier panic, and none is trusted by itself.
#![no_main]

use std::time::Duration;

use attest::UnixTime;
use attest::aws::identity_document::{self, RegionCertificates};
use attest::azure::attested_document::{self, AzureCloud, AzureTrust, ImdsNonce, IssuerUrls};
use attest::pkcs7::{self, SignedContent, SignedData, SigningCertificate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let now = UnixTime::since_unix_epoch(Duration::from_secs(1_785_245_100));
    // The input is a message and its Base64 at once.
    let decoded = pkcs7::from_base64(bytes);
    for message in [bytes, decoded.as_deref().unwrap_or_default()] {
        let _ = IssuerUrls::of_certificate(message);
        let _ = SigningCertificate::parse(message);
        let Ok(message) = SignedData::parse(message) else { continue };
        let _ = message.signer();
        if let Ok(certificate) = message.signer_certificate() {
            let _ = message.verify(&certificate, SignedContent::Attached);
            let _ = message.verify(&certificate, SignedContent::Detached(bytes));
        }
    }
    assert!(identity_document::verify(bytes, &RegionCertificates::default(), now).is_err());
    let Ok(trust) = AzureTrust::new(vec![AzureCloud::Public], &[], vec![]) else { return };
    assert!(attested_document::verify(bytes, &trust, &ImdsNonce::derive(&[7; 32]), now).is_err());
    let _ = attested_document::issuer_urls(bytes);
});
