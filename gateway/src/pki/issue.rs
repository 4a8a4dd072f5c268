//! New certificates: an MCS CA, and what a CA signs for this gateway. Nothing here touches a file.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use attest::{SpkiSha256, UnixTime};
use attest_certificates::Certificate;
use aws_lc_rs::rand;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PKCS_RSA_SHA256, PublicKeyData, RsaKeySize,
};
use rustls_pki_types::PrivateKeyDer;
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

/// Default validity of certificates: as long as those that OpenShift's operator makes.
pub const VALIDITY_DAYS: u32 = 3650;
/// Longest validity that can be asked for: a century. A longer one is taken to be a typing error.
pub const VALIDITY_LIMIT_DAYS: u32 = 36_500;
/// Time before now at which validity begins: a booting machine's clock may be behind.
const BACKDATED: Duration = Duration::days(1);
/// Length of a serial number: 128 random bits; X.509 allows 20 bytes.
const SERIAL_BYTES: usize = 16;
/// The serving certificate's name, as OpenShift's operator calls it.
const SERVING_NAME: &str = "system:machine-config-server";
/// Name of a CA, to which the time of its making is appended. Two CAs in one bundle must not have the same name, or verifiers may confuse
/// them.
const AUTHORITY_NAME: &str = "machine-config-server-ca";

/// Names and addresses that nodes use for this gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayNames {
    /// DNS names of the gateway.
    pub hosts: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl GatewayNames {
    /// Returns the names of a certificate.
    #[must_use]
    pub fn from_certificate(certificate: &Certificate) -> Self {
        let mut names = Self::default();
        for name in &certificate.names {
            match name.parse() {
                Ok(address) => names.addresses.push(address),
                Err(_) => names.hosts.push(name.clone()),
            }
        }
        names
    }

    /// Returns whether there is neither a name nor an address.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.addresses.is_empty()
    }

    fn all(&self) -> Vec<String> {
        let addresses = self.addresses.iter().map(ToString::to_string);
        self.hosts.iter().cloned().chain(addresses).collect()
    }
}

impl fmt::Display for GatewayNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.all().join(", "))
    }
}

/// Algorithm of a new key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA on P-256: small, and a quarter of an RSA handshake's cost.
    #[default]
    EcdsaP256,
    /// RSA with 2048 bits, for clients that know nothing else.
    Rsa2048,
    /// RSA with 3072 bits.
    Rsa3072,
    /// RSA with 4096 bits.
    Rsa4096,
}

impl Algorithm {
    pub const ALL: [Self; 4] = [Self::EcdsaP256, Self::Rsa2048, Self::Rsa3072, Self::Rsa4096];

    /// Returns the name of the algorithm on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EcdsaP256 => "ecdsa-p256",
            Self::Rsa2048 => "rsa-2048",
            Self::Rsa3072 => "rsa-3072",
            Self::Rsa4096 => "rsa-4096",
        }
    }

    /// Returns the name that [`Certificate::key_kind`] gives it.
    #[must_use]
    pub const fn key_kind(self) -> &'static str {
        match self {
            Self::EcdsaP256 => "ECDSA P-256",
            Self::Rsa2048 => "RSA 2048",
            Self::Rsa3072 => "RSA 3072",
            Self::Rsa4096 => "RSA 4096",
        }
    }

    fn generate(self) -> Result<KeyPair, rcgen::Error> {
        let rsa = |size| KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, size);
        match self {
            Self::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Self::Rsa2048 => rsa(RsaKeySize::_2048),
            Self::Rsa3072 => rsa(RsaKeySize::_3072),
            Self::Rsa4096 => rsa(RsaKeySize::_4096),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::as_str);
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == text);
        found.ok_or_else(|| format!("one of {}", known.join(", ")))
    }
}

/// Requested properties of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// Algorithm of its key.
    pub algorithm: Algorithm,
    /// Validity, in days from now.
    pub days: u32,
}

impl Default for CertificateRequest {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::default(),
            days: VALIDITY_DAYS,
        }
    }
}

/// Error in making a certificate.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A certificate cannot be made: a name is invalid, or the random generator is broken.
    #[error("cannot create the certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The new certificate cannot be parsed.
    #[error("the new certificate does not verify: {0}")]
    Unreadable(String),
    /// No name at all.
    #[error("the certificate needs at least one name or address: use --host or --ip")]
    NoName,
    /// The clock is off by centuries.
    #[error("the clock says {0} seconds after 1970")]
    Clock(u64),
    /// Not a key that certificates can be signed with.
    #[error("not a private key that can sign certificates (ECDSA P-256, P-384, P-521, Ed25519 or RSA)")]
    Key,
    /// The key is another CA's.
    #[error("the private key does not belong to the CA {subject}")]
    OtherKey {
        /// Subject of the CA.
        subject: String,
    },
    /// The issuer's certificate does not allow it to sign certificates.
    #[error("{subject} is not a CA: it may not sign certificates (basic constraints, key usage)")]
    NoAuthority {
        /// Subject of the certificate.
        subject: String,
    },
    /// The random number generator failed.
    #[error("the random number generator failed")]
    Random,
}

/// A private key that can sign.
pub struct SigningKey(KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

impl SigningKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// [`CreateError::Certificate`].
    pub fn generate(algorithm: Algorithm) -> Result<Self, CreateError> {
        Ok(Self(algorithm.generate()?))
    }

    /// Parses a key: PKCS #8, SEC 1 or PKCS #1.
    ///
    /// # Errors
    /// [`CreateError::Key`].
    pub fn parse(key: &PrivateKeyDer<'_>) -> Result<Self, CreateError> {
        KeyPair::try_from(key).map(Self).map_err(|_| CreateError::Key)
    }

    /// Returns the SHA-256 of its public half.
    #[must_use]
    pub fn public(&self) -> SpkiSha256 {
        SpkiSha256::from_spki(&self.0.subject_public_key_info())
    }

    /// Returns the key as PEM, in PKCS #8 if it was generated here.
    #[must_use]
    pub fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.serialize_pem())
    }

    /// Returns whether it is an RSA key.
    fn is_rsa(&self) -> bool {
        self.0.algorithm() == &PKCS_RSA_SHA256
    }
}

/// A certificate and its key.
#[derive(Debug)]
pub struct IssuedCertificate {
    pub certificate: Certificate,
    pub key: SigningKey,
}

/// Returns the default name of a CA that is made at `now`.
#[must_use]
pub fn authority_name(now: UnixTime) -> String {
    format!("{AUTHORITY_NAME}@{}", now.as_secs())
}

/// Makes a CA, signed by itself, of a key that is there.
///
/// # Errors
/// [`CreateError`].
pub fn authority(name: &str, key: SigningKey, days: u32, now: UnixTime) -> Result<IssuedCertificate, CreateError> {
    let mut ca = params(name, Vec::new())?;
    (ca.not_before, ca.not_after) = validity(days, now)?;
    // It signs serving certificates, and no further CAs.
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    ca.use_authority_key_identifier_extension = true;
    let certificate = read(&ca.self_signed(&key.0)?)?;
    Ok(IssuedCertificate { certificate, key })
}

/// Makes a serving certificate with a key of its own, signed by a CA. It is not valid longer than the CA.
///
/// # Errors
/// [`CreateError`].
pub fn serving(
    ca: &Certificate,
    ca_key: &SigningKey,
    names: &GatewayNames,
    wanted: &CertificateRequest,
    now: UnixTime,
) -> Result<IssuedCertificate, CreateError> {
    if names.is_empty() {
        return Err(CreateError::NoName);
    }
    if !ca.is_authority {
        return Err(CreateError::NoAuthority {
            subject: ca.subject.clone(),
        });
    }
    if ca.key != ca_key.public() {
        return Err(CreateError::OtherKey {
            subject: ca.subject.clone(),
        });
    }
    let key = SigningKey::generate(wanted.algorithm)?;
    let mut leaf = params(SERVING_NAME, names.all())?;
    let (not_before, not_after) = validity(wanted.days, now)?;
    leaf.not_before = not_before.max(time(ca.not_before)?);
    leaf.not_after = not_after.min(time(ca.not_after)?);
    leaf.is_ca = IsCa::ExplicitNoCa;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    if key.is_rsa() {
        leaf.key_usages.push(KeyUsagePurpose::KeyEncipherment);
    }
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let issuer = Issuer::from_ca_cert_der(&ca.der, &ca_key.0)?;
    let certificate = read(&leaf.signed_by(&key.0, &issuer)?)?;
    Ok(IssuedCertificate { certificate, key })
}

fn params(name: &str, alternatives: Vec<String>) -> Result<CertificateParams, CreateError> {
    let mut params = CertificateParams::new(alternatives)?;
    params.distinguished_name.push(DnType::CommonName, name);
    let mut serial = [0; SERIAL_BYTES];
    rand::fill(&mut serial).map_err(|_| CreateError::Random)?;
    params.serial_number = Some(serial.to_vec().into());
    Ok(params)
}

fn validity(days: u32, now: UnixTime) -> Result<(OffsetDateTime, OffsetDateTime), CreateError> {
    let clock = CreateError::Clock(now.as_secs());
    let now = time(now.as_secs())?;
    let until = now.checked_add(Duration::days(i64::from(days.min(VALIDITY_LIMIT_DAYS))));
    now.checked_sub(BACKDATED).zip(until).ok_or(clock)
}

fn time(seconds: u64) -> Result<OffsetDateTime, CreateError> {
    i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or(CreateError::Clock(seconds))
}

fn read(made: &rcgen::Certificate) -> Result<Certificate, CreateError> {
    Certificate::parse(made.der().clone()).map_err(CreateError::Unreadable)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
    }

    fn ca(name: &str, days: u32) -> IssuedCertificate {
        authority(name, SigningKey::generate(Algorithm::EcdsaP256).unwrap(), days, at(NOW)).unwrap()
    }

    fn names(host: &str) -> GatewayNames {
        GatewayNames {
            hosts: vec![host.to_owned()],
            addresses: vec!["192.0.2.5".parse().unwrap(), "2001:db8::5".parse().unwrap()],
        }
    }

    #[test]
    fn issued_certificate_has_the_requested_fields() {
        let ca = ca(&authority_name(at(NOW)), 100);
        assert_eq!(ca.certificate.subject, "CN=machine-config-server-ca@1800000000");
        assert!(ca.certificate.is_authority);
        let wanted = CertificateRequest {
            algorithm: Algorithm::EcdsaP256,
            days: 10,
        };
        let made = serving(&ca.certificate, &ca.key, &names("a.example.com"), &wanted, at(NOW)).unwrap();
        let certificate = made.certificate;
        assert_eq!(certificate.subject, "CN=system:machine-config-server");
        assert_eq!(certificate.issuer, ca.certificate.subject);
        assert!(!certificate.is_authority);
        assert_eq!(certificate.names, ["a.example.com", "192.0.2.5", "2001:db8::5"]);
        assert_eq!((certificate.not_before, certificate.not_after), (NOW - 86_400, NOW + 10 * 86_400));
        assert_eq!(certificate.key, made.key.public());
        assert_eq!(certificate.key_kind, Algorithm::EcdsaP256.key_kind());
        assert_eq!(GatewayNames::from_certificate(&certificate), names("a.example.com"));
    }

    #[test]
    fn issued_certificate_expires_with_its_ca() {
        let ca = ca("short", 5);
        let made = serving(&ca.certificate, &ca.key, &names("a"), &CertificateRequest::default(), at(NOW)).unwrap();
        assert_eq!(made.certificate.not_after, ca.certificate.not_after);
    }

    #[test]
    fn each_issued_certificate_and_key_is_new() {
        let ca = ca("ca", 100);
        let make = || serving(&ca.certificate, &ca.key, &names("a"), &CertificateRequest::default(), at(NOW)).unwrap();
        let (one, two) = (make(), make());
        assert_ne!(one.certificate.fingerprint, two.certificate.fingerprint);
        assert_ne!(one.key.public(), two.key.public());
        assert_ne!(authority_name(at(NOW)), authority_name(at(NOW + 1)));
    }

    #[test]
    fn refuses_a_wrong_ca_key_or_name() {
        let (one, other) = (ca("one", 100), ca("other", 100));
        let check = |ca: &Certificate, key: &SigningKey, names: &GatewayNames, expected: &str| {
            let error = serving(ca, key, names, &CertificateRequest::default(), at(NOW))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&one.certificate, &other.key, &names("a"), "not belong to the CA CN=one");
        check(&one.certificate, &one.key, &GatewayNames::default(), "at least one name");
        check(&one.certificate, &one.key, &names("ä"), "cannot create");
        let leaf = serving(&one.certificate, &one.key, &names("a"), &CertificateRequest::default(), at(NOW)).unwrap();
        check(&leaf.certificate, &leaf.key, &names("a"), "is not a CA");
        assert!(matches!(
            authority("late", SigningKey::generate(Algorithm::EcdsaP256).unwrap(), 1, at(u64::MAX)),
            Err(CreateError::Clock(_))
        ));
        assert!("rsa-1024".parse::<Algorithm>().unwrap_err().contains("rsa-2048"));
        assert_eq!("rsa-4096".parse(), Ok(Algorithm::Rsa4096));
    }
}
