//! `attest-node ek`: prints an administrator's information about a node's TPM.

use std::fmt::Write as _;
use std::time::Duration;

use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::deadline::Deadline;
use crate::failure::{Failure, printable};
use crate::tpm::{EkChoice, EndorsementKey, TpmDevice, device};

/// The time to wait for a TPM that is absent or busy: as long as an attestation has by default.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a table of the TPM's endorsement keys, with the digests that `attest-gateway ek add` expects.
///
/// # Errors
/// The TPM's failure to answer.
pub fn ek_table(tcti: &str, choice: EkChoice) -> Result<String, Failure> {
    let deadline = Deadline::after(PATIENCE);
    device::ready(tcti, deadline)?;
    let mut tpm = TpmDevice::open(tcti)?;
    tpm.retry_until(deadline);
    Ok(table(&tpm.endorsement_keys(choice)?))
}

fn table(keys: &[EndorsementKey]) -> String {
    let mut table = format!("  {:<16} {:<64} {}\n", "KIND", "SHA-256 OF THE PUBLIC KEY", "CERTIFICATE");
    for (index, key) in keys.iter().enumerate() {
        let mark = if index == 0 { '*' } else { ' ' };
        let certificate = match (&key.certificate, &key.unread) {
            (Some(certificate), _) => format!("issued by {}", issuer(certificate)),
            (None, Some(unread)) => format!("none; {unread}"),
            (None, None) => "none".to_owned(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(table, "{mark} {:<16} {:<64} {certificate}", key.label, key.digest.to_string());
    }
    table.push_str("* attests. On the gateway: `attest-gateway ek add <SHA-256>` if no configured root has issued its certificate.\n");
    table
}

fn issuer(certificate: &[u8]) -> String {
    X509Certificate::from_der(certificate).map_or_else(
        |_| "an issuer that cannot be read".to_owned(),
        |(_, certificate)| printable(&certificate.issuer().to_string()),
    )
}
