//! Parsed X.509 certificates, and their fingerprints.

use std::fmt;
use std::net::IpAddr;

use attest::{SpkiSha256, UnixTime};
use aws_lc_rs::digest;
use data_encoding::{BASE64, HEXLOWER};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::public_key::PublicKey;

/// SHA-256 of a certificate's DER.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

/// Hexadecimal digits of a fingerprint that are enough to tell an installation's few certificates apart.
const SHORT_DIGITS: usize = 16;
/// Length of a line in PEM (RFC 7468, section 2).
const PEM_LINE_CHARACTERS: usize = 64;

impl Fingerprint {
    #[must_use]
    pub fn of(der: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; 32];
        for (to, from) in bytes.iter_mut().zip(digest::digest(&digest::SHA256, der).as_ref()) {
            *to = *from;
        }
        Self(bytes)
    }

    /// Returns its first 16 hexadecimal digits: a name for display and for pointer configs, not a proof of anything.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(SHORT_DIGITS).collect()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// A parsed certificate. Parsing it says nothing about whether to trust it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate as DER.
    pub der: CertificateDer<'static>,
    /// SHA-256 of its DER.
    pub fingerprint: Fingerprint,
    /// SHA-256 of its public key.
    pub key: SpkiSha256,
    /// Type and size of its public key: `ECDSA P-256`, `RSA 2048`.
    pub key_kind: String,
    /// Its subject, as text.
    pub subject: String,
    /// Its issuer as it names it, not verified.
    pub issuer: String,
    /// DNS names and addresses.
    pub names: Vec<String>,
    /// Set if it may sign certificates: basic constraints say CA, and the key usage, if present, allows it.
    pub is_authority: bool,
    /// The first second at which it is valid, since 1970.
    pub not_before: u64,
    /// The last second at which it is valid, since 1970.
    pub not_after: u64,
}

impl Certificate {
    /// Returns the certificate's description in a record.
    #[must_use]
    pub fn description(&self) -> serde_json::Value {
        serde_json::json!({
            "subject": self.subject,
            "issuer": self.issuer,
            "names": self.names,
            "not_after": self.not_after,
            "key": self.key.to_string(),
        })
    }

    /// Parses a certificate in DER.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(der: CertificateDer<'static>) -> Result<Self, String> {
        let (rest, parsed) = X509Certificate::from_der(&der).map_err(|error| format!("not an X.509 certificate: {error}"))?;
        if !rest.is_empty() {
            return Err("not an X.509 certificate: bytes after its end".to_owned());
        }
        let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        let key = SpkiSha256::from_certificate(&der).ok_or("its public key cannot be read")?;
        let (subject, issuer) = (parsed.subject().to_string(), parsed.issuer().to_string());
        let (key_kind, names, is_authority) = (key_kind(&parsed), names(&parsed), is_authority(&parsed));
        let (not_before, not_after) = (seconds(parsed.validity().not_before), seconds(parsed.validity().not_after));
        Ok(Self {
            fingerprint: Fingerprint::of(&der),
            key,
            key_kind,
            subject,
            issuer,
            names,
            is_authority,
            not_before,
            not_after,
            der,
        })
    }

    #[must_use]
    pub fn pem(&self) -> String {
        pem(&self.der)
    }

    /// Returns whether it is valid at that time, by its dates alone.
    #[must_use]
    pub fn is_current(&self, now: UnixTime) -> bool {
        (self.not_before..=self.not_after).contains(&now.as_secs())
    }
}

fn key_kind(certificate: &X509Certificate<'_>) -> String {
    match certificate.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => format!("RSA {}", key.key_size()),
        Ok(PublicKey::EC(point)) => format!("ECDSA P-{}", point.key_size()),
        _ => "another".to_owned(),
    }
}

fn is_authority(certificate: &X509Certificate<'_>) -> bool {
    let constraints = matches!(certificate.basic_constraints(), Ok(Some(constraints)) if constraints.value.ca);
    let usage = match certificate.key_usage() {
        Ok(Some(usage)) => usage.value.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    };
    constraints && usage
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(*bytes)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from))
            .ok()
            .map(|address| address.to_string()),
        _ => None,
    };
    alternatives.value.general_names.iter().filter_map(name).collect()
}

/// Returns the PEM of a certificate, given its DER.
pub(super) fn pem(der: &[u8]) -> String {
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let encoded = BASE64.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at_checked(PEM_LINE_CHARACTERS).unwrap_or((rest, ""));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
