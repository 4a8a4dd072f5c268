//! `attest-node ek list`: prints an administrator's information about a node's TPM.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::deadline::Deadline;
use crate::failure::{Failure, printable};
use crate::tpm::{EkChoice, EndorsementKey, TpmDevice, device};

/// The time to wait for a TPM that is absent or busy: as long as an attestation has by default.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the TPM's endorsement keys; the first is the one that attests.
///
/// # Errors
/// The TPM's failure to answer.
pub fn keys(tcti: &str, choice: EkChoice) -> Result<Vec<EndorsementKey>, Failure> {
    let deadline = Deadline::after(PATIENCE);
    device::ready(tcti, deadline)?;
    let mut tpm = TpmDevice::open(tcti)?;
    tpm.retry_until(deadline);
    Ok(tpm.endorsement_keys(choice)?)
}

/// Returns a table of the keys, with the digests that `attest-gateway ek add` expects.
#[must_use]
pub fn table(keys: &[EndorsementKey]) -> String {
    let mut table = format!("  {:<16} {:<64} {}\n", "KIND", "SHA-256 OF THE PUBLIC KEY", "CERTIFICATE");
    for (index, key) in keys.iter().enumerate() {
        let mark = if index == 0 { '*' } else { ' ' };
        let certificate = match (&key.certificate, &key.unread) {
            (Some(certificate), None) => format!("issued by {}", issuer(certificate)),
            (Some(certificate), Some(unread)) => format!("issued by {}; {unread}", issuer(certificate)),
            (None, Some(unread)) => format!("none; {unread}"),
            (None, None) => "none".to_owned(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(table, "{mark} {:<16} {:<64} {certificate}", key.label, key.digest.to_string());
    }
    table.push_str("* is the key that attests. If no root of the gateway has issued its certificate, run `attest-gateway ek add <SHA-256>` on the gateway.\n");
    table
}

/// Returns the keys for programs.
#[must_use]
pub fn json(keys: &[EndorsementKey]) -> Value {
    let each = keys.iter().enumerate().map(|(index, key)| {
        json!({
            "kind": key.label,
            "sha256": key.digest.to_string(),
            "attests": index == 0,
            "issuer": key.certificate.as_ref().map(|certificate| issuer(certificate)),
            "unread": key.unread.as_ref().map(ToString::to_string),
        })
    });
    each.collect()
}

/// Returns the issuer of a certificate, for a person.
pub(crate) fn issuer(certificate: &[u8]) -> String {
    X509Certificate::from_der(certificate).map_or_else(
        |_| "an issuer that cannot be read".to_owned(),
        |(_, certificate)| printable(&certificate.issuer().to_string()),
    )
}
