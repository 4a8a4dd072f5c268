//! The key that the kubelet will have: made in the initramfs, in memory until the booted system has a disk, and gone when it has its certificate.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use attest_wire::SpkiSha256;
use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;
use zeroize::Zeroizing;

use super::pem::pem;
use crate::failure::Failure;
use crate::pointer::write;

/// Its file, in each of its places.
pub const FILE: &str = "kubelet-key.pem";
/// Folder on disk, which survives a reboot of the booted system.
pub const FOLDER: &str = "/var/lib/attest-node";
/// Largest file read, in bytes: a P-256 key has 241 in PEM.
const FILE_LIMIT_BYTES: u64 = 4096;

/// A P-256 key, as the kubelet would make one. A secret, so there is no `Debug`.
pub struct KubeletKeyPair {
    pair: EcdsaKeyPair,
    pkcs8: Zeroizing<Vec<u8>>,
}

impl KubeletKeyPair {
    /// A new one; `None` if the system has no randomness.
    #[must_use]
    pub fn generate() -> Option<Self> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).ok()?;
        Self::from_pkcs8(document.as_ref())
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Option<Self> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8).ok()?;
        let pkcs8 = Zeroizing::new(pkcs8.to_vec());
        Some(Self { pair, pkcs8 })
    }

    /// Its SubjectPublicKeyInfo, DER; `None` does not happen.
    #[must_use]
    pub fn public(&self) -> Option<Vec<u8>> {
        let der: PublicKeyX509Der<'_> = self.pair.public_key().as_der().ok()?;
        Some(der.as_ref().to_vec())
    }

    /// Returns the digest that is attested.
    #[must_use]
    pub fn digest(&self) -> Option<SpkiSha256> {
        self.public().map(|public| SpkiSha256::from_spki(&public))
    }

    /// The public key as a point, uncompressed.
    pub(super) fn point(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    /// Signed with SHA-256; ASN.1.
    pub(super) fn signed(&self, message: &[u8]) -> Option<Vec<u8>> {
        let signature = self.pair.sign(&SystemRandom::new(), message).ok()?;
        Some(signature.as_ref().to_vec())
    }

    /// Returns the key in the format of the kubelet's file: PKCS#8, PEM.
    #[must_use]
    pub fn pem(&self) -> Zeroizing<String> {
        Zeroizing::new(pem("PRIVATE KEY", &self.pkcs8))
    }

    /// Reads the key in a file, if it is this program's: its own file, for its user only, and a whole key. No link is followed.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        let there = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            there => there?,
        };
        // The owner of this entry is the process's user.
        let is_own = there.is_file() && there.uid() == fs::metadata("/proc/self")?.uid() && there.mode() & 0o077 == 0;
        if !is_own {
            return Ok(None);
        }
        let mut bytes = Zeroizing::new(Vec::new());
        File::open(path)?.take(FILE_LIMIT_BYTES).read_to_end(&mut bytes)?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(&bytes).ok();
        Ok(key.and_then(|key| Self::from_pkcs8(key.secret_pkcs8_der())))
    }
}

/// Locations of the key: in memory, left by the initramfs, and on disk.
#[derive(Debug, Clone)]
pub struct KeyPaths {
    memory: PathBuf,
    disk: PathBuf,
}

impl KeyPaths {
    /// Creates the locations from two folders.
    #[must_use]
    pub fn new(memory: &Path, disk: &Path) -> Self {
        Self {
            memory: memory.to_owned(),
            disk: disk.to_owned(),
        }
    }

    /// Returns the key of this boot and whether this call has made it: in memory, readable by root only. `None` if its folder does not
    /// exist: the booted system would not find the key.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn load_or_create(&self) -> io::Result<Option<(KubeletKeyPair, bool)>> {
        if !self.memory.is_dir() {
            return Ok(None);
        }
        let path = self.memory.join(FILE);
        if let Some(key) = KubeletKeyPair::read(&path)? {
            return Ok(Some((key, false)));
        }
        let key = KubeletKeyPair::generate().ok_or_else(|| io::Error::other("the system has no randomness"))?;
        write::replace(&path, key.pem().as_bytes())?;
        Ok(Some((key, true)))
    }

    /// Removes the key of this boot, which was not attested.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn forget_of_this_boot(&self) -> io::Result<()> {
        fs::remove_file(self.memory.join(FILE))
    }

    /// Returns the attested key: the one of this boot, which is copied to disk, or the one of an earlier boot on disk.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn settle(&self) -> io::Result<Option<KubeletKeyPair>> {
        let (memory, disk) = (self.memory.join(FILE), self.disk.join(FILE));
        let Some(key) = KubeletKeyPair::read(&memory)? else {
            return KubeletKeyPair::read(&disk);
        };
        match DirBuilder::new().mode(0o700).create(&self.disk) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        write::replace(&disk, key.pem().as_bytes())?;
        Ok(Some(key))
    }

    /// Removes it from both.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn forget(&self) -> io::Result<()> {
        write::remove(&self.memory.join(FILE))?;
        write::remove(&self.disk.join(FILE))?;
        // Somebody else's file in it stays, and with it the folder.
        let _ = fs::remove_dir(&self.disk);
        File::open(self.disk.parent().unwrap_or(&self.disk)).map_or(Ok(()), |folder| folder.sync_all())
    }
}

/// Builds the failure for a key that cannot be kept or read.
#[expect(clippy::needless_pass_by_value, reason = "it is what map_err gives")]
pub(super) fn unreadable(error: io::Error) -> Failure {
    Failure::new(
        "kubelet-key",
        format!("the attested key of the kubelet cannot be read or stored: {error}"),
        format!("make {FOLDER} writable, then run `systemctl restart attest-node-kubelet-certificate.service`"),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    struct Site {
        root: tempfile::TempDir,
        places: KeyPaths,
    }

    impl Site {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("memory")).unwrap();
            let places = KeyPaths::new(&root.path().join("memory"), &root.path().join("disk"));
            Self { root, places }
        }

        fn path(&self, path: &str) -> PathBuf {
            self.root.path().join(path)
        }
    }

    #[test]
    fn kubelet_key_is_stable_across_reboots() {
        let site = Site::new();
        let digest = |key: Option<KubeletKeyPair>| key.and_then(|key| key.digest());
        let first = digest(site.places.load_or_create().unwrap().map(|(key, _)| key)).unwrap();
        let memory = site.path("memory/kubelet-key.pem");
        assert_eq!(mode(&memory), 0o600);
        assert_eq!(digest(site.places.load_or_create().unwrap().map(|(key, _)| key)), Some(first));
        assert!(!site.path("disk").exists());
        assert_eq!(digest(site.places.settle().unwrap()), Some(first));
        let disk = site.path("disk/kubelet-key.pem");
        assert_eq!((mode(&site.path("disk")), mode(&disk)), (0o700, 0o600));
        // A reboot.
        fs::remove_file(&memory).unwrap();
        assert_eq!(digest(site.places.settle().unwrap()), Some(first));
        // What was attested last counts.
        let second = digest(site.places.load_or_create().unwrap().map(|(key, _)| key)).unwrap();
        assert_ne!(first, second);
        assert_eq!(digest(site.places.settle().unwrap()), Some(second));
        site.places.forget().unwrap();
        assert!(!memory.exists() && !site.path("disk").exists());
        assert!(site.places.settle().unwrap().is_none());
        site.places.forget().unwrap();
        let nowhere = KeyPaths::new(&site.path("none"), &site.path("disk"));
        assert!(nowhere.load_or_create().unwrap().is_none());
    }

    #[test]
    fn invalid_kubelet_key_files_are_rejected() {
        let key = KubeletKeyPair::generate().unwrap().pem();
        let check = |prepare: &dyn Fn(&Path)| {
            let site = Site::new();
            let path = site.path("memory/kubelet-key.pem");
            prepare(&path);
            assert!(site.places.settle().is_err() || site.places.settle().unwrap().is_none());
        };
        let put = |path: &Path, content: &str, mode: u32| {
            fs::write(path, content).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        check(&|path| put(path, &key, 0o644));
        check(&|path| put(path, "", 0o600));
        check(&|path| put(path, &key[..100], 0o600));
        check(&|path| put(path, &key.replace("PRIVATE", "PUBLIC"), 0o600));
        check(&|path| put(path, &"x".repeat(10_000), 0o600));
        check(&|path| {
            let elsewhere = path.with_file_name("elsewhere");
            put(&elsewhere, &key, 0o600);
            symlink(&elsewhere, path).unwrap();
        });
        check(&|path| fs::create_dir(path).unwrap());
        let rsa = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384)
            .unwrap()
            .serialize_pem();
        check(&|path| put(path, &rsa, 0o600));
    }

    #[test]
    fn public_key_matches_rcgen() {
        let key = KubeletKeyPair::generate().unwrap();
        let others = rcgen::KeyPair::from_pem(&key.pem()).unwrap();
        assert_eq!(rcgen::PublicKeyData::subject_public_key_info(&others), key.public().unwrap());
        assert_ne!(KubeletKeyPair::generate().unwrap().digest(), key.digest());
    }
}
