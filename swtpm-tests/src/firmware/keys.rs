//! Keys for Secure Boot: PK, KEK, one in `db`, and one in no list.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_RSA_SHA256, RsaKeySize};

use super::variables::{GLOBAL, SECURITY_DATABASE, Variable, VariableGuid};
use crate::images::{DebianRelease, Images, run};

/// GUID of the signature type `EFI_CERT_X509_GUID`.
const X509: VariableGuid = [
    0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72,
];
/// `SignatureOwner`: measured, but not checked.
const OWNER: VariableGuid = *b"attest tests key";

/// Keys of a machine, and one that it does not accept.
#[derive(Debug)]
pub struct SecureBootKeys {
    folder: PathBuf,
    pk: SelfSignedKey,
    kek: SelfSignedKey,
    db: SelfSignedKey,
    other: SelfSignedKey,
}

/// Key with its self-signed certificate.
#[derive(Debug)]
pub struct SelfSignedKey {
    key: PathBuf,
    certificate: PathBuf,
    der: Vec<u8>,
}

impl SecureBootKeys {
    /// Creates new keys in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let keys = Self {
            folder: folder.to_path_buf(),
            pk: SelfSignedKey::new(folder, "PK")?,
            kek: SelfSignedKey::new(folder, "KEK")?,
            db: SelfSignedKey::new(folder, "db")?,
            other: SelfSignedKey::new(folder, "other")?,
        };
        for (name, list) in keys.signature_lists() {
            fs::write(keys.list_file(name), list)?;
        }
        Ok(keys)
    }

    fn list_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.esl"))
    }

    /// Returns the options of `reference-values predict` for these keys.
    #[must_use]
    pub fn arguments(&self) -> [(&'static str, PathBuf); 4] {
        [
            ("--pk", self.list_file("PK")),
            ("--kek", self.list_file("KEK")),
            ("--db", self.list_file("db")),
            ("--signed-by", self.db.certificate.clone()),
        ]
    }

    /// Returns the signer whose certificate is in `db`.
    #[must_use]
    pub const fn accepted(&self) -> &SelfSignedKey {
        &self.db
    }

    /// Returns a signer whose certificate is in no list.
    #[must_use]
    pub const fn other(&self) -> &SelfSignedKey {
        &self.other
    }

    /// Returns PK, KEK and `db` as the machine has them: signature lists.
    #[must_use]
    pub fn signature_lists(&self) -> [(&'static str, Vec<u8>); 3] {
        [("PK", self.pk.list()), ("KEK", self.kek.list()), ("db", self.db.list())]
    }

    pub(super) fn variables(&self) -> Vec<Variable> {
        let guid = |name| if name == "db" { SECURITY_DATABASE } else { GLOBAL };
        let lists = self.signature_lists().into_iter();
        lists.map(|(name, list)| (name, guid(name), list)).collect()
    }
}

impl SelfSignedKey {
    fn new(folder: &Path, name: &str) -> Result<Self> {
        // What each firmware can verify.
        let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, format!("Tests {name}"));
        let certificate = parameters.self_signed(&key)?;
        let (key_file, certificate_file) = (folder.join(format!("{name}.key")), folder.join(format!("{name}.pem")));
        fs::write(&key_file, key.serialize_pem())?;
        fs::write(&certificate_file, certificate.pem())?;
        Ok(Self {
            key: key_file,
            certificate: certificate_file,
            der: certificate.der().to_vec(),
        })
    }

    /// Returns the certificate as DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.der
    }

    /// Signs an image with sbsign.
    pub fn sign(&self, image: &Path, signed: &Path) -> Result<()> {
        let mut sbsign = Images::firmware(DebianRelease::Bookworm)?.firmware_program("usr/bin/sbsign");
        sbsign.arg("--key").arg(&self.key).arg("--cert").arg(&self.certificate);
        run(sbsign.arg("--output").arg(signed).arg(image)).map(|_| ())
    }

    /// Returns an `EFI_SIGNATURE_LIST` with this certificate.
    fn list(&self) -> Vec<u8> {
        let signature = OWNER.len() + self.der.len();
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
        let header = [X509.as_slice(), &size(28 + signature), &size(0), &size(signature)].concat();
        [header.as_slice(), &OWNER, &self.der].concat()
    }
}
