//! MCS CA and MCS certificate: how they are made, checked and replaced, and the TLS configuration in use.

pub mod authority_keys;
mod error;
mod expiry;
pub mod install;
pub mod issue;
pub mod live;
pub mod rotation;
mod serving;
pub mod watch;

use attest::UnixTime;
use attest_system::files;
pub use error::InstallError;
pub use expiry::EXPIRY_WARNING_SECONDS;
pub use install::Installation;
pub use issue::{Algorithm, CertificateRequest, CreateError, GatewayNames};
pub use live::{Current, LiveTls, TlsError};
pub use serving::{ServingCertificate, ServingError};

use crate::settings::TlsSettings;

/// Makes a CA and a certificate for `names` with every default, and writes the four files. Nothing is overwritten.
///
/// # Errors
/// [`InstallError`].
pub fn create(files: &TlsSettings, names: &GatewayNames, now: UnixTime) -> Result<(), InstallError> {
    let key = issue::SigningKey::generate(Algorithm::default())?;
    let ca = issue::authority(&issue::authority_name(now), key, issue::VALIDITY_DAYS, now)?;
    let made = issue::serving(&ca.certificate, &ca.key, names, &CertificateRequest::default(), now)?;
    install::first(files, &[ca.certificate], &[made.certificate], &made.key.pem(), now)?;
    files::create(&authority_keys::authority_key(files), files::PRIVATE, &ca.key.pem())?;
    Ok(())
}
