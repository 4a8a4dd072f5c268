//! Kubelet's certificate directory, in the layout of its own store: `NewFileStore("kubelet-client", …)` in
//! `client-go/util/certificate/certificate_store.go` of kubernetes/kubernetes. Each certificate is a file with its key, and `-current.pem`
//! a link to one of them. The new link is made as `-updated.pem` and then renamed: a kubelet that finds that one alone goes on with it
//! (`recover` there).

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;
use time::macros::format_description;

use super::api::KubeletCertificate;
use super::key::KubeletKeyPair;
use super::validity::is_valid;
use crate::failure::Failure;
use crate::gateway::identity::{ClientIdentity, IdentityError};
use crate::pointer::write::remove;

/// Default directory of the kubelet's certificates, unless `--cert-dir` is set.
pub const FOLDER: &str = "/var/lib/kubelet/pki";
const CURRENT: &str = "kubelet-client-current.pem";
const UPDATED: &str = "kubelet-client-updated.pem";

/// Handle to the kubelet's certificate directory.
#[derive(Debug, Clone)]
pub struct KubeletStore {
    folder: PathBuf,
}

impl KubeletStore {
    /// Creates a store in this folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The link that the kubelet reads.
    #[must_use]
    pub fn current(&self) -> PathBuf {
        self.folder.join(CURRENT)
    }

    /// Returns whether the kubelet has a certificate, with its key, that is valid at this moment. A file that the kubelet cannot use counts
    /// as missing: it would request another certificate.
    ///
    /// # Errors
    /// `kubelet-store`: the existing file cannot be checked.
    pub fn has_valid(&self) -> Result<bool, Failure> {
        let path = self.current();
        match fs::metadata(&path) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(failure(&path, &error)),
        }
        match ClientIdentity::read(&path) {
            Ok(identity) => Ok(identity.certificate().is_some_and(|certificate| is_valid(certificate, now()))),
            Err(IdentityError::Content { .. }) => Ok(false),
            Err(error @ IdentityError::Unreadable { .. }) => Err(failure(&path, &error)),
        }
    }

    /// Writes a certificate, in place of an invalid one; returns the file's path.
    ///
    /// # Errors
    /// `kubelet-store`; existing files are unchanged.
    pub fn write(&self, certificate: &KubeletCertificate, key: &KubeletKeyPair) -> Result<PathBuf, Failure> {
        // Both with newlines at their ends.
        let content = zeroize::Zeroizing::new([certificate.pem(), key.pem().as_bytes()].concat());
        self.put(&content).map_err(|error| failure(&self.folder, &error))
    }

    fn put(&self, content: &[u8]) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.folder)?;
        let (current, updated) = (self.current(), self.folder.join(UPDATED));
        // The kubelet does not get by what is no link either.
        for path in [&current, &updated] {
            if let Some(there) = metadata_if_exists(path)?
                && !there.is_symlink()
            {
                return Err(io::Error::other(format!("{} is not a symbolic link", path.display())));
            }
        }
        let path = self
            .folder
            .join(format!("kubelet-client-{}.pem", timestamp(OffsetDateTime::now_utc())));
        let new = self.folder.join(".kubelet-client.attest-node");
        remove(&new)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        remove(&updated)?;
        // Absolute, as the kubelet's are.
        symlink(fs::canonicalize(&path)?, &updated)?;
        fs::rename(&updated, &current)?;
        fs::File::open(&self.folder)?.sync_all()?;
        Ok(path)
    }
}

/// Formats a time as in the kubelet's file names. The kubelet uses local time, but nothing depends on it.
fn timestamp(at: OffsetDateTime) -> String {
    at.format(format_description!("[year]-[month]-[day]-[hour]-[minute]-[second]"))
        .unwrap_or_else(|_| "1970-01-01-00-00-00".to_owned())
}

fn metadata_if_exists(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        there => there.map(Some),
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn failure(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        "kubelet-store",
        format!("the kubelet's certificate cannot be read or written: {}: {error}", path.display()),
        "make the kubelet's certificate directory writable, or name it with --certificates; then run `systemctl restart attest-node-kubelet-certificate.service`",
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn certificate(key: &KubeletKeyPair, days: i64) -> String {
        let pair = KeyPair::from_pem(&key.pem()).unwrap();
        let mut params = CertificateParams::new(["node".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (
            OffsetDateTime::now_utc() - time::Duration::days(30),
            OffsetDateTime::now_utc() + time::Duration::days(days),
        );
        params.self_signed(&pair).unwrap().pem()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn certificate_is_stored_in_the_kubelets_layout() {
        let root = tempfile::tempdir().unwrap();
        let store = KubeletStore::new(&root.path().join("kubelet/pki"));
        let key = KubeletKeyPair::generate().unwrap();
        assert!(!store.has_valid().unwrap());
        let content = certificate(&key, 1) + &key.pem();
        let path = store.put(content.as_bytes()).unwrap();
        assert_eq!(fs::read_link(store.current()).unwrap(), path);
        assert!(path.is_absolute());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(store.current()).unwrap(), content);
        assert!(store.has_valid().unwrap());
        let name = path.file_name().unwrap().to_str().unwrap();
        let digits = name
            .strip_prefix("kubelet-client-")
            .and_then(|rest| rest.strip_suffix(".pem"))
            .unwrap();
        let shape: String = digits
            .chars()
            .map(|letter| if letter.is_ascii_digit() { '0' } else { letter })
            .collect();
        assert_eq!(shape, "0000-00-00-00-00-00");
        assert_eq!(names(path.parent().unwrap()), [name, CURRENT]);
        ClientIdentity::read(&store.current()).unwrap();
    }

    #[test]
    fn unusable_certificate_is_replaced_and_valid_one_detected() {
        let check = |before: &dyn Fn(&Path), valid: bool| {
            let root = tempfile::tempdir().unwrap();
            let store = KubeletStore::new(root.path());
            before(root.path());
            assert_eq!(store.has_valid().unwrap(), valid);
            let key = KubeletKeyPair::generate().unwrap();
            store.put((certificate(&key, 1) + &key.pem()).as_bytes()).unwrap();
            assert!(store.has_valid().unwrap());
        };
        let link = |folder: &Path, content: &str| {
            fs::write(folder.join("kubelet-client-old.pem"), content).unwrap();
            symlink(folder.join("kubelet-client-old.pem"), folder.join(CURRENT)).unwrap();
        };
        let key = KubeletKeyPair::generate().unwrap();
        check(&|folder| link(folder, &(certificate(&key, 1) + &key.pem())), true);
        check(&|folder| link(folder, &(certificate(&key, -1) + &key.pem())), false);
        check(&|folder| link(folder, &certificate(&key, 1)), false);
        check(
            &|folder| link(folder, &(certificate(&key, 1) + &KubeletKeyPair::generate().unwrap().pem())),
            false,
        );
        check(&|folder| link(folder, ""), false);
        check(&|folder| symlink("nowhere", folder.join(CURRENT)).unwrap(), false);
        // Runs that were killed.
        check(&|folder| symlink("nowhere", folder.join(UPDATED)).unwrap(), false);
        check(&|folder| fs::write(folder.join(".kubelet-client.attest-node"), "x").unwrap(), false);
    }

    #[test]
    fn current_certificate_must_be_a_symbolic_link() {
        for name in [CURRENT, UPDATED] {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join(name), "x").unwrap();
            let error = KubeletStore::new(root.path()).put(b"y").unwrap_err();
            assert!(error.to_string().contains("is not a symbolic link"), "{error}");
            assert_eq!(names(root.path()), [name]);
        }
        KubeletStore::new(Path::new("/proc/self/pki")).put(b"y").unwrap_err();
    }
}
