//! A new MCS CA, and the certificate that it signs for this gateway.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use attest::UnixTime;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use time::{Duration, OffsetDateTime};

use crate::settings::TlsSettings;
use crate::store::make_private_folder;

/// How long both are valid: as long as those that OpenShift's operator makes.
const VALIDITY: Duration = Duration::days(3650);
/// How far before now validity begins: a booting machine's clock may be behind.
const BACKDATED: Duration = Duration::days(1);

/// What nodes call this gateway.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// DNS names.
    pub hosts: Vec<String>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
}

/// Why there is no new CA.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A file cannot be written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// A certificate cannot be made: a name that is none, or a broken random generator.
    #[error("cannot make the certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// No name at all.
    #[error("the certificate needs at least one name or address that nodes use")]
    NoName,
    /// The clock is off by centuries.
    #[error("the clock says {0} seconds after 1970")]
    Clock(u64),
}

/// Makes a CA and a certificate for `names`, and writes the four files. Nothing is overwritten.
///
/// # Errors
/// [`CreateError`].
pub fn create(files: &TlsSettings, names: &Names, now: UnixTime) -> Result<(), CreateError> {
    if names.hosts.is_empty() && names.addresses.is_empty() {
        return Err(CreateError::NoName);
    }
    let now = i64::try_from(now.as_secs())
        .ok()
        .and_then(|now| OffsetDateTime::from_unix_timestamp(now).ok())
        .ok_or(CreateError::Clock(now.as_secs()))?;

    let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut ca = params("attestation-gateway MCS CA", Vec::new(), now)?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_certificate = ca.self_signed(&ca_key)?;

    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let alternatives = names
        .hosts
        .iter()
        .cloned()
        .chain(names.addresses.iter().map(ToString::to_string))
        .collect();
    let mut leaf = params("system:machine-config-server", alternatives, now)?;
    leaf.is_ca = IsCa::ExplicitNoCa;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let certificate = leaf.signed_by(&key, &Issuer::from_params(&ca, &ca_key))?;

    let folder = files.certificate.parent().unwrap_or(Path::new(""));
    make_private_folder(folder).map_err(|source| CreateError::Io {
        path: folder.to_owned(),
        source,
    })?;
    write(&files.ca, 0o644, &ca_certificate.pem())?;
    write(&files.ca.with_extension("key"), 0o600, &ca_key.serialize_pem())?;
    write(&files.certificate, 0o644, &certificate.pem())?;
    write(&files.key, 0o600, &key.serialize_pem())
}

fn params(name: &str, alternatives: Vec<String>, now: OffsetDateTime) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(alternatives)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = now - BACKDATED;
    params.not_after = now + VALIDITY;
    Ok(params)
}

fn write(path: &Path, mode: u32, text: &str) -> Result<(), CreateError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .map_err(|source| CreateError::Io {
            path: path.to_owned(),
            source,
        })
}
