//! PCR 7: whose signatures firmware accepts, and whose it has accepted.
//!
//! Firmware measures the variables SecureBoot, PK, KEK, db and dbx, a separator, and then each entry of db by which it accepted an image, once
//! (PC Client Platform Firmware Profile 1.06, 3.3.4.8). What is hashed is UEFI_VARIABLE_DATA: the variable's GUID, the lengths of its name and its
//! content, the name, the content; of an entry of db its owner and the certificate.

use super::boot::{SEPARATOR, SecureBoot};
use super::{BootPhase, DigestSubject, MeasuredBy, Prediction};
use crate::tpm::measured_boot::SignatureDatabase;
use crate::tpm::wire::HashAlg;
use crate::values::HexDigest;

/// The PCR of Secure Boot's state.
pub const SECURE_BOOT_PCR: u8 = 7;

/// Longest variable that is read: firmware has some 64 KiB for all of them, and dbx is the largest.
pub const VARIABLE_LIMIT_BYTES: usize = 256 * 1024;

/// EFI_GLOBAL_VARIABLE and EFI_IMAGE_SECURITY_DATABASE_GUID, as they are in memory.
const GLOBAL: OwnerGuid = [
    0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c,
];
const SECURITY_DATABASE: OwnerGuid = [
    0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f,
];
type OwnerGuid = [u8; 16];

/// SignatureOwner, which an entry begins with.
const OWNER_BYTES: usize = 16;

/// The variables of a machine, each as firmware has it: signature lists, and empty if it does not exist.
#[derive(Debug, Clone, Copy, Default)]
pub struct Variables<'a> {
    pub pk: &'a [u8],
    pub kek: &'a [u8],
    pub db: &'a [u8],
    pub dbx: &'a [u8],
}

/// Reason why PCR 7 cannot be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecureBootError {
    /// Longer than is read.
    #[error("{variable} has {bytes} bytes, more than {VARIABLE_LIMIT_BYTES}")]
    TooLarge { variable: &'static str, bytes: usize },
    /// Not what firmware has in these variables.
    #[error(
        "{variable} is not a signature list: pass the content of the variable, without its attributes and without an authentication header"
    )]
    NoSignatureLists { variable: &'static str },
    /// A certificate by which nothing is accepted.
    #[error("the certificate that signs the booted image is not in db")]
    NotInDb,
}

impl Variables<'_> {
    /// Predicts the measurements with these variables, when images are accepted by `authorities`: certificates in db, DER, in the order of
    /// their first use. Without Secure Boot no image is accepted by an authority.
    ///
    /// # Errors
    /// [`SecureBootError`].
    pub fn predict(&self, secure_boot: SecureBoot, authorities: &[&[u8]], prediction: &mut Prediction) -> Result<(), SecureBootError> {
        for (variable, content) in [("PK", self.pk), ("KEK", self.kek), ("dbx", self.dbx)] {
            read(variable, content)?;
        }
        let db = read("db", self.db)?;
        let mut entries: Vec<Vec<u8>> = Vec::new();
        if secure_boot == SecureBoot::On {
            for authority in authorities {
                let entry = entry(&db, authority).ok_or(SecureBootError::NotInDb)?;
                if !entries.contains(&entry) {
                    entries.push(entry);
                }
            }
        }

        let state = [u8::from(secure_boot == SecureBoot::On)];
        let measured = [
            (GLOBAL, "SecureBoot", state.as_slice()),
            (GLOBAL, "PK", self.pk),
            (GLOBAL, "KEK", self.kek),
            (SECURITY_DATABASE, "db", self.db),
            (SECURITY_DATABASE, "dbx", self.dbx),
        ];
        for (guid, name, content) in measured {
            measure(prediction, DigestSubject::Variable(name), guid, name, content);
        }
        prediction.measure(SECURE_BOOT_PCR, MeasuredBy::Firmware, DigestSubject::Separator, &[&SEPARATOR]);
        for entry in entries {
            let certificate = HashAlg::Sha256.digest(&[entry.get(OWNER_BYTES..).unwrap_or_default()]);
            // A digest of SHA-256 has a length that HexDigest takes.
            if let Some(certificate) = HexDigest::new(certificate.as_ref()) {
                measure(prediction, DigestSubject::Authority(certificate), SECURITY_DATABASE, "db", &entry);
            }
        }
        prediction.settle(SECURE_BOOT_PCR, BootPhase::AtKernel);
        Ok(())
    }
}

/// Adds a measurement of a `UEFI_VARIABLE_DATA`.
fn measure(prediction: &mut Prediction, what: DigestSubject, guid: OwnerGuid, name: &str, content: &[u8]) {
    let units: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let length = |count: usize| u64::try_from(count).unwrap_or(u64::MAX).to_le_bytes();
    let parts: [&[u8]; 5] = [&guid, &length(name.encode_utf16().count()), &length(content.len()), &units, content];
    prediction.measure(SECURE_BOOT_PCR, MeasuredBy::Firmware, what, &parts);
}

fn read(variable: &'static str, content: &[u8]) -> Result<SignatureDatabase, SecureBootError> {
    if content.len() > VARIABLE_LIMIT_BYTES {
        return Err(SecureBootError::TooLarge {
            variable,
            bytes: content.len(),
        });
    }
    SignatureDatabase::read(content).ok_or(SecureBootError::NoSignatureLists { variable })
}

/// EFI_SIGNATURE_DATA of a certificate: its owner and itself.
fn entry(db: &SignatureDatabase, certificate: &[u8]) -> Option<Vec<u8>> {
    let sha256 = HashAlg::Sha256.digest(&[certificate]);
    let found = db.certificates.iter().find(|entry| entry.sha256.0 == sha256.as_ref())?;
    Some([&found.owner?.0, certificate].concat())
}
