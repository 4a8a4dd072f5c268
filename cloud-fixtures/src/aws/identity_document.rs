//! Instance identity documents, and the certificates of regions that sign them.

use rcgen::RsaKeySize;
use rustls_pki_types::CertificateDer;
use serde_json::Value;

use crate::pem;
use crate::pkcs7::{Pkcs7Key, TestMessage, ca_params, in_lines};

/// Returns a certificate like those of AWS's regions: self-signed, a CA by its extensions.
#[must_use]
pub fn region_certificate(key: &Pkcs7Key, serial: u64) -> CertificateDer<'static> {
    ca_params("Amazon Web Services LLC", serial).self_signed(&key.pair).unwrap().into()
}

/// A region's key for the `rsa2048` form of identity documents, and its certificate of 2024 to 2040.
pub struct RegionAuthority {
    key: Pkcs7Key,
    certificate: CertificateDer<'static>,
}

impl RegionAuthority {
    /// Generates its key. Regions differ by their certificates' serial numbers.
    #[must_use]
    pub fn new(serial: u64) -> Self {
        let key = Pkcs7Key::new(RsaKeySize::_2048);
        let certificate = region_certificate(&key, serial);
        Self { key, certificate }
    }

    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the region's certificate, for a gateway's directory of region certificates.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        pem(&self.certificate)
    }

    #[must_use]
    pub const fn key(&self) -> &Pkcs7Key {
        &self.key
    }

    /// Returns the text that is signed.
    #[must_use]
    pub fn text(document: &Value) -> String {
        serde_json::to_string_pretty(document).unwrap()
    }

    /// Returns IMDS's response at `…/instance-identity/rsa2048`: a PKCS#7 message in BER, in Base64 with line breaks.
    #[must_use]
    pub fn sign(&self, document: &Value) -> String {
        self.sign_text(&Self::text(document))
    }

    /// Signs any content in the same way.
    #[must_use]
    pub fn sign_text(&self, content: &str) -> String {
        let message = self.message(content.as_bytes()).sign(&self.key);
        String::from_utf8(in_lines(&message)).unwrap()
    }

    /// Returns the message before it is signed; everything in it can be changed.
    #[must_use]
    pub fn message(&self, content: &[u8]) -> TestMessage {
        TestMessage::aws(content, &self.certificate)
    }
}
