//! Secure Boot's databases: lists of EFI_SIGNATURE_DATA (UEFI 2.10, 32.4.1), and the single one that authorised an image.

use std::fmt;

use attest_wire::der::lengths;
use aws_lc_rs::digest;
use serde::{Serialize, Serializer};

use super::guid::Guid;
use super::reader::FieldReader;
use super::subject::subject;
use crate::values::HexDigest;

/// Maximum number of certificates that are stored of one database. A db has two to ten of them. The number of further ones is stored, and
/// these satisfy no rule.
pub const CERTIFICATES_LIMIT: usize = 64;

/// Maximum number of hashes that are stored of one database. Microsoft's dbx has some 400, and a variable can hold fewer than this.
pub const HASHES_LIMIT: usize = 4096;

/// GUID of certificates in a database, `EFI_CERT_X509_GUID`: a5c059a1-94e4-4aa7-87b5-ab155c2bf072.
const CERT_X509: Guid = Guid([
    0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72,
]);

/// GUID of hashes in a database, `EFI_CERT_SHA256_GUID`: c1c41626-504c-4092-aca9-41f936934328.
const CERT_SHA256: Guid = Guid([
    0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28,
]);

/// The owner of entries that are versions and not hashes, 9d132b6c-59d5-4388-ab1c-185cfcb2eb92 (Microsoft's secureboot_objects).
const SECURITY_VERSIONS: Guid = Guid([
    0x6c, 0x2b, 0x13, 0x9d, 0xd5, 0x59, 0x88, 0x43, 0xab, 0x1c, 0x18, 0x5c, 0xfc, 0xb2, 0xeb, 0x92,
]);

/// Maximum number of versions that are stored of one database: Microsoft has one for each of four programs.
pub const SECURITY_VERSIONS_LIMIT: usize = 64;

/// Owner (SignatureOwner) of an entry.
const OWNER_BYTES: usize = 16;

/// An SHA-256 of a database, of an image by Authenticode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256(pub [u8; 32]);

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl From<Sha256> for HexDigest {
    fn from(hash: Sha256) -> Self {
        Self::from(hash.0)
    }
}

/// A certificate of a database. Nothing of it was verified: it is there because who controls the firmware's variables has put it there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootCertificate {
    /// SHA-256 of its DER.
    pub sha256: Sha256,
    /// Subject of the certificate, printable and bounded; for people, since a certificate can be made with any subject. `None` if the bytes
    /// are not a certificate.
    pub subject: Option<String>,
    /// `SignatureOwner`: the party that has added the certificate, by its own claim. shim before 15.3 measures certificates without one.
    pub owner: Option<Guid>,
}

impl BootCertificate {
    fn new(owner: Option<Guid>, der: &[u8]) -> Self {
        Self {
            sha256: sha256(der),
            subject: subject(der),
            owner,
        }
    }
}

fn sha256(bytes: &[u8]) -> Sha256 {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    Sha256(hash)
}

/// The least version (SVN) of a boot program that may be started: an entry of dbx in the form of a hash, without being one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SecurityVersion {
    /// GUID of the boot program.
    pub application: Guid,
    pub major: u16,
    pub minor: u16,
}

impl SecurityVersion {
    /// Reads the 32 bytes: a version of the form, GUID, minor, major, and eleven that are reserved.
    fn read(mut entry: &[u8]) -> Option<Self> {
        let [1] = entry.array()? else { return None };
        let application = Guid(entry.array()?);
        let minor = entry.u16()?;
        Some(Self {
            application,
            major: entry.u16()?,
            minor,
        })
    }
}

/// PK, KEK, db or dbx.
///
/// Such a list has no revision number. Two dbx differ by their content: the hashes, of which an update adds some, and the versions that
/// Microsoft has added since 2024. They also differ by the digest of the event. The digest is the same for the same updates in the same
/// order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SignatureDatabase {
    /// At most [`CERTIFICATES_LIMIT`], in the order of the variable.
    pub certificates: Vec<BootCertificate>,
    /// SHA-256 of images (EFI_CERT_SHA256), at most [`HASHES_LIMIT`], in the order of the variable.
    pub hashes: Vec<Sha256>,
    /// The versions below which Microsoft's boot programs are not to be started; at most [`SECURITY_VERSIONS_LIMIT`].
    pub security_versions: Vec<SecurityVersion>,
    /// Entries of other kinds: hashes of other lengths, hashes of certificates, bare keys.
    pub others: usize,
    /// Certificates and hashes over the limits, which are not kept.
    pub left_out: usize,
}

impl SignatureDatabase {
    /// Reads EFI_SIGNATURE_LISTs; `None` if the bytes are anything else.
    pub(in crate::tpm) fn read(value: &[u8]) -> Option<Self> {
        let mut database = Self {
            certificates: Vec::new(),
            hashes: Vec::new(),
            security_versions: Vec::new(),
            others: 0,
            left_out: 0,
        };
        let mut rest = value;
        while !rest.is_empty() {
            let kind = Guid(rest.array()?);
            let list_bytes = rest.length32()?;
            let header_bytes = rest.length32()?;
            let entry_bytes = rest.length32()?;
            // SignatureListSize counts these 28 bytes, SignatureHeaderSize those before the entries.
            let mut entries = rest.take_bytes(list_bytes.checked_sub(28)?)?;
            entries.take_bytes(header_bytes)?;
            if entry_bytes < OWNER_BYTES || entries.len() % entry_bytes != 0 {
                return None;
            }
            if kind == CERT_SHA256 && entry_bytes != OWNER_BYTES + 32 {
                return None;
            }
            database.list(kind, entries, entry_bytes)?;
        }
        Some(database)
    }

    fn list(&mut self, kind: Guid, entries: &[u8], entry_bytes: usize) -> Option<()> {
        let count = entries.len() / entry_bytes;
        match kind {
            CERT_SHA256 => {
                self.hashes.reserve(count.min(HASHES_LIMIT.saturating_sub(self.hashes.len())));
                for entry in entries.chunks_exact(entry_bytes) {
                    let (owner, hash) = entry.split_first_chunk()?;
                    self.hash(Guid(*owner), hash.first_chunk()?);
                }
            }
            CERT_X509 => {
                let kept = count.min(CERTIFICATES_LIMIT.saturating_sub(self.certificates.len()));
                self.left_out += count - kept;
                for entry in entries.chunks_exact(entry_bytes).take(kept) {
                    let (owner, der) = entry.split_first_chunk()?;
                    self.certificates.push(BootCertificate::new(Some(Guid(*owner)), der));
                }
            }
            _ => self.others += count,
        }
        Some(())
    }

    fn hash(&mut self, owner: Guid, hash: &[u8; 32]) {
        if owner == SECURITY_VERSIONS
            && let Some(version) = SecurityVersion::read(hash)
        {
            if self.security_versions.len() < SECURITY_VERSIONS_LIMIT {
                return self.security_versions.push(version);
            }
        } else if self.hashes.len() < HASHES_LIMIT {
            return self.hashes.push(Sha256(*hash));
        }
        self.left_out += 1;
    }

    /// Returns whether all of the database was stored and understood: what is not in the lists is not in the database.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.left_out == 0 && self.others == 0
    }

    /// Returns whether the database has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty() && self.hashes.is_empty() && self.security_versions.is_empty() && self.is_complete()
    }

    /// Returns the highest version that is required of a program; `None` without a requirement.
    #[must_use]
    pub fn security_version(&self, application: Guid) -> Option<(u16, u16)> {
        let of_it = self.security_versions.iter().filter(|version| version.application == application);
        of_it.map(|version| (version.major, version.minor)).max()
    }

    /// Returns the hashes of `wanted` that are not in the database. Hashes that were left out count as missing.
    #[must_use]
    pub fn missing<'w>(&self, wanted: impl IntoIterator<Item = &'w Sha256>) -> Vec<Sha256> {
        let has: std::collections::BTreeSet<&Sha256> = self.hashes.iter().collect();
        wanted.into_iter().filter(|hash| !has.contains(hash)).copied().collect()
    }
}

/// Authority by which the firmware or shim accepted an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageAuthority {
    /// The variable in which it was: `db`; `Shim` and `Vendor` for the certificate within shim, `MokList…` for an owner's own.
    pub variable: super::text::LogText,
    /// The GUID of that variable.
    pub vendor: Guid,
    pub by: AuthorisedBy,
}

/// Entry of a database that authorised an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorisedBy {
    Certificate(BootCertificate),
    /// The image's own hash.
    Hash {
        sha256: Sha256,
        owner: Guid,
    },
}

impl AuthorisedBy {
    /// Reads one EFI_SIGNATURE_DATA, or a certificate by itself; `None` if it is neither a certificate nor an SHA-256.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        if is_sequence(value) {
            return Some(Self::Certificate(BootCertificate::new(None, value)));
        }
        let (owner, data) = value.split_first_chunk::<OWNER_BYTES>()?;
        let owner = Guid(*owner);
        if let Ok(hash) = <[u8; 32]>::try_from(data) {
            return Some(Self::Hash {
                sha256: Sha256(hash),
                owner,
            });
        }
        is_sequence(data).then(|| Self::Certificate(BootCertificate::new(Some(owner), data)))
    }
}

/// Returns whether this is exactly one DER SEQUENCE, as a certificate is. Its content does not matter to the fingerprint.
fn is_sequence(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0x30) && lengths(bytes).is_some_and(|(header, length)| header + length == bytes.len())
}
