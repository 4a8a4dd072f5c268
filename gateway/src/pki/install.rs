//! Changes of the files that the gateway serves by: a certificate is renewed, a CA comes and goes. Each step leaves files that load, so
//! that neither a crash nor a reload in between does any harm, and a command that was interrupted can be given again.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest::{SpkiSha256, UnixTime};
use data_encoding::BASE64;
use rustls_pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

use super::files::{self, FileError, PRIVATE, PUBLIC};
use super::issue::{self, Algorithm, CreateError, Made, Names, SigningKey, Wanted};
use super::source::{self, SourceError};
use super::{Certificate, Serving, ServingError};
use crate::settings::TlsSettings;
use crate::store::make_private_folder;

/// Why the files stay as they are.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A certificate cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// What would be there could not be served.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// Somebody else writes the file.
    #[error("{0} is a manifest: it is not changed here; who put it there rotates it, and the gateway reads it again when it changes")]
    Manifest(PathBuf),
    /// Certificate and key are in one file.
    #[error("{0} holds certificate and key: they are replaced one after the other, which needs two files")]
    OneFile(PathBuf),
    /// The key that is needed is not here.
    #[error("the private key of the CA {subject} is in none of {}: bring it (--ca-key FILE), or a certificate that was signed elsewhere", .looked.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "))]
    NoAuthorityKey {
        /// The CA.
        subject: String,
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// There is nothing where a CA or a certificate should be.
    #[error("{path}: {problem}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Another command is changing the files.
    #[error("another command is changing the files in {0}")]
    Busy(PathBuf),
}

/// The files, for one command at a time.
#[derive(Debug)]
pub struct Installation<'a> {
    files: &'a TlsSettings,
    _lock: File,
}

/// What [`Installation::retire`] did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// The CAs that are gone from the bundle.
    pub dropped: Vec<Certificate>,
    /// Where the old CA's key is now.
    pub old_key: Option<PathBuf>,
    /// Where the key of the CA in use is now, if it was moved.
    pub key: Option<PathBuf>,
}

/// Where the key of the CA in use is kept, unless it is kept elsewhere: beside the CA.
#[must_use]
pub fn authority_key(files: &TlsSettings) -> PathBuf {
    files.ca.with_extension("key")
}

/// Where the key of the next CA is kept until the old one is retired.
#[must_use]
pub fn next_authority_key(files: &TlsSettings) -> PathBuf {
    beside(files, "next")
}

/// Where the key of a CA is kept that was retired.
fn old_authority_key(files: &TlsSettings) -> PathBuf {
    beside(files, "old")
}

fn beside(files: &TlsSettings, word: &str) -> PathBuf {
    let stem = files.ca.file_stem().unwrap_or_default().to_string_lossy();
    files.ca.with_file_name(format!("{stem}-{word}.key"))
}

/// The file beside the CA that holds its key, if there is one.
#[must_use]
pub fn kept_key(files: &TlsSettings, ca: &Certificate) -> Option<PathBuf> {
    [authority_key(files), next_authority_key(files), old_authority_key(files)]
        .into_iter()
        .find(|path| holds(path, ca.key))
}

fn holds(path: &Path, key: SpkiSha256) -> bool {
    signing_keys(path).is_ok_and(|keys| keys.iter().any(|found| found.public() == key))
}

fn signing_keys(path: &Path) -> Result<Vec<SigningKey>, SourceError> {
    let keys = source::keys(path)?;
    Ok(keys.iter().filter_map(|key| SigningKey::parse(key).ok()).collect())
}

/// The first of these files' keys that is the CA's.
///
/// # Errors
/// [`InstallError::NoAuthorityKey`], or what is wrong with the one file that was given.
pub fn find_authority_key(files: &TlsSettings, ca: &Certificate, given: Option<&Path>) -> Result<SigningKey, InstallError> {
    let looked = match given {
        Some(path) => vec![path.to_owned()],
        None => vec![authority_key(files), next_authority_key(files), old_authority_key(files)],
    };
    for path in &looked {
        match signing_keys(path) {
            Ok(keys) => {
                if let Some(key) = keys.into_iter().find(|key| key.public() == ca.key) {
                    return Ok(key);
                }
            }
            Err(error) if given.is_some() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Err(InstallError::NoAuthorityKey {
        subject: ca.subject.clone(),
        looked,
    })
}

/// Writes the first files of a gateway: a CA, and a certificate and key. Nothing is overwritten.
///
/// # Errors
/// [`InstallError`]; what would be there is checked before anything is written.
pub fn first(
    files: &TlsSettings,
    authorities: &[Certificate],
    chain: &[Certificate],
    key: &str,
    now: UnixTime,
) -> Result<(), InstallError> {
    let keys = pem_keys(key);
    Serving::of(files, authorities.to_vec(), chain.to_vec(), keys, now)?;
    let folder = files::folder(&files.certificate);
    make_private_folder(folder).map_err(|source| FileError {
        path: folder.to_owned(),
        source,
    })?;
    files::create(&files.ca, PUBLIC, &pem(authorities))?;
    files::create(&files.key, PRIVATE, key)?;
    files::create(&files.certificate, PUBLIC, &pem(chain))?;
    Ok(())
}

impl<'a> Installation<'a> {
    /// Takes the files, if they may be changed here and nobody else is at it.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn open(files: &'a TlsSettings) -> Result<Self, InstallError> {
        for path in [&files.ca, &files.certificate, &files.key] {
            if source::is_manifest(path)? {
                return Err(InstallError::Manifest(path.clone()));
            }
        }
        if files.certificate == files.key || files.ca == files.key {
            return Err(InstallError::OneFile(files.key.clone()));
        }
        let folder = files::folder(&files.ca);
        let io = |source| FileError {
            path: folder.to_owned(),
            source,
        };
        let lock = File::open(folder).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { files, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(InstallError::Busy(folder.to_owned())),
            Err(TryLockError::Error(source)) => Err(io(source).into()),
        }
    }

    /// What is there.
    ///
    /// # Errors
    /// [`InstallError::Serving`].
    pub fn serving(&self, now: UnixTime) -> Result<Serving, InstallError> {
        Ok(Serving::load(self.files, now)?)
    }

    /// Makes a new serving certificate by `ca`, and puts it in the place of today's.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn renew(
        &self,
        ca: &Certificate,
        ca_key: Option<&Path>,
        names: &Names,
        wanted: &Wanted,
        now: UnixTime,
    ) -> Result<Certificate, InstallError> {
        let ca_key = find_authority_key(self.files, ca, ca_key)?;
        let Made { certificate, key } = issue::serving(ca, &ca_key, names, wanted, now)?;
        self.replace(std::slice::from_ref(&certificate), &key.pem(), now)?;
        Ok(certificate)
    }

    /// Puts a certificate that `ca` has signed elsewhere in the place of today's.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn bring(&self, ca: &Certificate, certificate: &Path, key: &Path, now: UnixTime) -> Result<Certificate, InstallError> {
        let chain = source::certificates(certificate)?;
        let leaf = chain.first().cloned().ok_or_else(|| ServingError::NoName(certificate.to_owned()))?;
        let key = fitting_key(key, &leaf)?;
        // As errors name them, these are the files.
        let files = TlsSettings {
            certificate: certificate.to_owned(),
            ..self.files.clone()
        };
        Serving::of(&files, vec![ca.clone()], chain.clone(), pem_keys(&key), now)?;
        self.replace(&chain, &key, now)?;
        Ok(leaf)
    }

    fn replace(&self, chain: &[Certificate], key: &str, now: UnixTime) -> Result<(), InstallError> {
        for step in self.steps(chain, key, now)? {
            files::replace(&step.path, &step.text)?;
        }
        Ok(())
    }

    /// The writes that lead from today's pair to another: both keys, the certificate, its key alone. After each of them there is a pair.
    fn steps(&self, chain: &[Certificate], key: &str, now: UnixTime) -> Result<Vec<Step>, InstallError> {
        let authorities = source::authorities(&self.files.ca)?;
        Serving::of(self.files, authorities, chain.to_vec(), pem_keys(key), now)?;
        // Where today's pair is broken already there is nothing to keep up.
        let leaf = source::certificates(&self.files.certificate)
            .ok()
            .and_then(|chain| chain.first().cloned());
        let old = leaf.zip(source::keys(&self.files.key).ok());
        let old = old.and_then(|(leaf, keys)| fitting(&keys, leaf.key)).unwrap_or_default();
        let mut both = Zeroizing::new(String::with_capacity(key.len() + old.len()));
        both.push_str(key);
        both.push_str(&old);
        let step = |path: &Path, text: Zeroizing<String>| Step {
            path: path.to_owned(),
            text,
        };
        Ok(vec![
            step(&self.files.key, both),
            step(&self.files.certificate, Zeroizing::new(pem(chain))),
            step(&self.files.key, Zeroizing::new(key.to_owned())),
        ])
    }

    /// Makes a CA beside the one in use and adds it to the bundle. Its key goes to `key_out`, or beside the CA. A key that is there
    /// already and no CA's is what an interrupted command has left: it is used.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn introduce(
        &self,
        name: &str,
        wanted: &Wanted,
        key_out: Option<&Path>,
        now: UnixTime,
    ) -> Result<(Certificate, PathBuf), InstallError> {
        let authorities = source::authorities(&self.files.ca)?;
        let next = next_authority_key(self.files);
        let unfit = |problem: &str| InstallError::Unfit {
            path: next.clone(),
            problem: problem.to_owned(),
        };
        let (path, key) = match key_out {
            None if next.exists() => {
                let key = signing_keys(&next)?.into_iter().next().ok_or(CreateError::Key)?;
                if authorities.iter().any(|authority| authority.key == key.public()) {
                    return Err(unfit("is the key of a CA in use; it is not overwritten"));
                }
                (next.clone(), key)
            }
            out => {
                let path = out.map_or_else(|| next.clone(), Path::to_owned);
                let key = SigningKey::generate(wanted.algorithm)?;
                files::create(&path, PRIVATE, &key.pem())?;
                (path, key)
            }
        };
        let Made { certificate, .. } = issue::authority(name, key, wanted.days, now)?;
        if certificate.key_kind != wanted.algorithm.key_kind() {
            return Err(unfit(
                "was left behind by another command, and is of another kind; remove it if it is nobody's",
            ));
        }
        self.add(&certificate)?;
        Ok((certificate, path))
    }

    /// Adds a CA to the bundle.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn add(&self, ca: &Certificate) -> Result<(), InstallError> {
        if !ca.is_authority {
            return Err(CreateError::NoAuthority {
                subject: ca.subject.clone(),
            }
            .into());
        }
        let mut authorities = source::authorities(&self.files.ca)?;
        if authorities.iter().any(|other| other.fingerprint == ca.fingerprint) {
            return Err(InstallError::Unfit {
                path: self.files.ca.clone(),
                problem: format!("{} is in it already", ca.subject),
            });
        }
        authorities.push(ca.clone());
        Ok(files::replace(&self.files.ca, &pem(&authorities))?)
    }

    /// Drops every CA but the one in use from the bundle, and puts the keys beside it in order. Keys move before the bundle changes: until
    /// that is done, the command can be given again.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn retire(&self, discard_key: bool, now: UnixTime) -> Result<Retired, InstallError> {
        let serving = self.serving(now)?;
        let (kept, dropped): (Vec<Certificate>, Vec<Certificate>) = serving
            .authorities()
            .iter()
            .cloned()
            .partition(|authority| authority.fingerprint == serving.signed_by());
        let in_use = serving.authority();
        let (path, next) = (authority_key(self.files), next_authority_key(self.files));
        let mut retired = Retired {
            dropped,
            ..Retired::default()
        };
        if path.exists() && !holds(&path, in_use.key) {
            let mut old = old_authority_key(self.files);
            if old.exists() {
                // That of the rotation before.
                old = beside(self.files, &format!("old-{}", now.as_secs()));
            }
            files::rename(&path, &old)?;
            retired.old_key = Some(old);
        }
        if holds(&next, in_use.key) {
            if path.exists() {
                files::remove(&next)?;
            } else {
                files::rename(&next, &path)?;
            }
            retired.key = Some(path);
        }
        // A bundle that names its CA twice is tidied as well.
        let kept: Vec<Certificate> = kept.into_iter().take(1).collect();
        files::replace(&self.files.ca, &pem(&kept))?;
        if discard_key && let Some(old) = retired.old_key.take() {
            files::remove(&old)?;
        }
        Ok(retired)
    }
}

struct Step {
    path: PathBuf,
    text: Zeroizing<String>,
}

/// Certificates as PEM, one after the other.
#[must_use]
pub fn pem(certificates: &[Certificate]) -> String {
    certificates.iter().map(Certificate::pem).collect()
}

fn pem_keys(text: &str) -> Vec<PrivateKeyDer<'static>> {
    use rustls_pki_types::pem::PemObject;
    PrivateKeyDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok).collect()
}

/// The key of a file that is the certificate's, as PEM.
///
/// # Errors
/// [`InstallError::Unfit`], if there is none.
pub fn fitting_key(path: &Path, certificate: &Certificate) -> Result<Zeroizing<String>, InstallError> {
    fitting(&source::keys(path)?, certificate.key).ok_or_else(|| InstallError::Unfit {
        path: path.to_owned(),
        problem: format!("no key in it is that of {}", certificate.subject),
    })
}

/// The key of these that has this public half, as PEM.
fn fitting(keys: &[PrivateKeyDer<'static>], public: SpkiSha256) -> Option<Zeroizing<String>> {
    keys.iter()
        .filter_map(|key| Some((key, SigningKey::parse(key).ok()?)))
        .find(|(_, parsed)| parsed.public() == public)
        .map(|(key, _)| key_pem(key))
}

/// A key as it was read, as PEM.
fn key_pem(key: &PrivateKeyDer<'_>) -> Zeroizing<String> {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    let text = Zeroizing::new(BASE64.encode(key.secret_der()));
    Zeroizing::new(format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", *text))
}

/// The kind of key that an installation's certificate has, if it is one that can be made here.
#[must_use]
pub fn algorithm_of(certificate: &Certificate) -> Option<Algorithm> {
    Algorithm::ALL
        .into_iter()
        .find(|algorithm| algorithm.key_kind() == certificate.key_kind)
}

/// Today's serving certificate, whatever its dates are, and the CA that has signed it.
#[derive(Debug)]
pub struct Today {
    /// The certificate.
    pub certificate: Certificate,
    /// The CA.
    pub authority: Certificate,
    /// All CAs of the bundle.
    pub authorities: Vec<Certificate>,
}

/// Reads what is there. That a certificate has expired is no reason against its renewal.
///
/// # Errors
/// [`InstallError`].
pub fn today(files: &TlsSettings) -> Result<Today, InstallError> {
    let authorities = source::authorities(&files.ca)?;
    let chain = source::certificates(&files.certificate)?;
    let leaf = chain.first().ok_or_else(|| ServingError::NoName(files.certificate.clone()))?;
    let mut ends: Vec<u64> = chain.iter().chain(&authorities).map(|certificate| certificate.not_after).collect();
    ends.sort_unstable();
    let mut found = Err(ServingError::NoName(files.certificate.clone()));
    // If it was ever good, it was so when one of them ended.
    for end in ends.into_iter().rev() {
        found = Serving::load(files, UnixTime::since_unix_epoch(Duration::from_secs(end)));
        if found.is_ok() {
            break;
        }
    }
    let serving = found?;
    Ok(Today {
        certificate: leaf.clone(),
        authority: serving.authority().clone(),
        authorities,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;

    const NOW: u64 = 1_800_000_000;
    const DAY: u64 = 86_400;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    struct Folder {
        _folder: tempfile::TempDir,
        files: TlsSettings,
    }

    fn folder() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let files = TlsSettings {
            ca: folder.path().join("mcs-ca.crt"),
            certificate: folder.path().join("mcs.crt"),
            key: folder.path().join("mcs.key"),
            previous_keys: Vec::new(),
            client_ca: None,
        };
        let names = Names {
            hosts: vec!["localhost".to_owned()],
            addresses: Vec::new(),
        };
        super::super::create(&files, &names, at(NOW)).unwrap();
        Folder { _folder: folder, files }
    }

    impl Folder {
        fn path(&self, name: &str) -> PathBuf {
            self.files.ca.with_file_name(name)
        }

        fn today(&self) -> Today {
            today(&self.files).unwrap()
        }

        fn introduce(&self) -> Certificate {
            let installation = Installation::open(&self.files).unwrap();
            installation.introduce("next", &Wanted::default(), None, at(NOW)).unwrap().0
        }

        fn switch(&self) {
            let today = self.today();
            let newest = today.authorities.last().unwrap();
            let names = Names::of(&today.certificate);
            let installation = Installation::open(&self.files).unwrap();
            installation.renew(newest, None, &names, &Wanted::default(), at(NOW)).unwrap();
        }
    }

    fn copy(from: &Folder, to: &Folder) {
        for entry in fs::read_dir(from.files.ca.parent().unwrap()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.path(entry.file_name().to_str().unwrap())).unwrap();
        }
    }

    #[test]
    fn after_each_step_of_a_renewal_there_is_a_pair() {
        let folder = folder();
        let before = folder.today();
        let key = find_authority_key(&folder.files, &before.authority, None).unwrap();
        let made = issue::serving(
            &before.authority,
            &key,
            &Names::of(&before.certificate),
            &Wanted::default(),
            at(NOW),
        )
        .unwrap();
        let installation = Installation::open(&folder.files).unwrap();
        let chain = [made.certificate.clone()];
        let steps = installation.steps(&chain, &made.key.pem(), at(NOW)).unwrap();
        let served = |expected: &Certificate, keys: usize| {
            let serving = Serving::load(&folder.files, at(NOW)).unwrap();
            assert_eq!(serving.certificate(), Some(expected));
            assert_eq!(source::keys(&folder.files.key).unwrap().len(), keys);
        };
        let expected = [(&before.certificate, 2), (&made.certificate, 2), (&made.certificate, 1)];
        assert_eq!(steps.len(), expected.len());
        for (step, (certificate, keys)) in steps.iter().zip(expected) {
            files::replace(&step.path, &step.text).unwrap();
            served(certificate, keys);
            // Whoever is interrupted here may begin anew.
            let again = folder_with(&folder);
            let today = again.today();
            let installation = Installation::open(&again.files).unwrap();
            let names = Names::of(&today.certificate);
            installation
                .renew(&today.authority, None, &names, &Wanted::default(), at(NOW))
                .unwrap();
            assert_eq!(source::keys(&again.files.key).unwrap().len(), 1);
            Serving::load(&again.files, at(NOW)).unwrap();
        }
    }

    fn folder_with(other: &Folder) -> Folder {
        let new = folder();
        copy(other, &new);
        new
    }

    #[test]
    fn a_rotation_ends_with_one_ca_and_its_key_in_their_places() {
        let folder = folder();
        let old = folder.today().authority;
        let new = folder.introduce();
        assert_eq!(folder.today().authorities, [old.clone(), new.clone()]);
        assert_eq!(folder.today().authority, old);
        assert_eq!(kept_key(&folder.files, &new), Some(folder.path("mcs-ca-next.key")));
        folder.switch();
        assert_eq!(folder.today().authority, new);
        assert_eq!(folder.today().authorities.len(), 2);
        // A crash before the last step: the keys have moved, the bundle has not.
        let bundle = fs::read(&folder.files.ca).unwrap();
        let retire = |discard: bool| Installation::open(&folder.files).unwrap().retire(discard, at(NOW)).unwrap();
        let retired = retire(false);
        assert_eq!(retired.dropped, [old.clone()]);
        assert_eq!(retired.old_key, Some(folder.path("mcs-ca-old.key")));
        fs::write(&folder.files.ca, bundle).unwrap();
        let retired = retire(false);
        assert_eq!((retired.dropped, retired.old_key, retired.key), (vec![old.clone()], None, None));
        // A crash between the keys.
        fs::rename(folder.path("mcs-ca.key"), folder.path("mcs-ca-next.key")).unwrap();
        assert_eq!(retire(false).key, Some(folder.path("mcs-ca.key")));
        assert_eq!(folder.today().authorities, [new.clone()]);
        assert_eq!(kept_key(&folder.files, &new), Some(folder.path("mcs-ca.key")));
        assert_eq!(kept_key(&folder.files, &old), Some(folder.path("mcs-ca-old.key")));
        // The next rotation does not overwrite the key of the one before.
        folder.introduce();
        folder.switch();
        let retired = retire(false);
        assert_eq!(retired.old_key, Some(folder.path(&format!("mcs-ca-old-{NOW}.key"))));
        assert_eq!(kept_key(&folder.files, &old), Some(folder.path("mcs-ca-old.key")));
        folder.introduce();
        folder.switch();
        let discarded = Installation::open(&folder.files).unwrap().retire(true, at(NOW + 1)).unwrap();
        assert_eq!((discarded.dropped.len(), discarded.old_key), (1, None));
        assert!(!folder.path(&format!("mcs-ca-old-{}.key", NOW + 1)).exists());
        assert!(!folder.path("mcs-ca-next.key").exists());
        Serving::load(&folder.files, at(NOW)).unwrap();
    }

    #[test]
    fn a_key_that_an_interrupted_command_left_is_used_and_none_is_overwritten() {
        let folder = folder();
        let left = SigningKey::generate(Algorithm::EcdsaP256).unwrap();
        files::create(&folder.path("mcs-ca-next.key"), PRIVATE, &left.pem()).unwrap();
        let introduce = |wanted: &Wanted, out: Option<&Path>| {
            let installation = Installation::open(&folder.files).unwrap();
            installation.introduce("next", wanted, out, at(NOW))
        };
        let rsa = Wanted {
            algorithm: Algorithm::Rsa2048,
            ..Wanted::default()
        };
        assert!(introduce(&rsa, None).unwrap_err().to_string().contains("left behind"));
        let taken = folder.path("mcs-ca.key");
        assert!(
            introduce(&Wanted::default(), Some(&taken))
                .unwrap_err()
                .to_string()
                .contains("exists")
        );
        let (ca, _) = introduce(&Wanted::default(), None).unwrap();
        assert_eq!(ca.key, left.public());
        assert!(
            introduce(&Wanted::default(), None)
                .unwrap_err()
                .to_string()
                .contains("not overwritten")
        );
    }

    #[test]
    fn what_has_expired_can_be_renewed() {
        let folder = folder();
        let later = at(NOW + 3651 * DAY);
        assert!(Serving::load(&folder.files, later).is_err());
        let today = folder.today();
        let installation = Installation::open(&folder.files).unwrap();
        let names = Names::of(&today.certificate);
        // Not by a CA that has ended with it.
        let refused = installation.renew(&today.authority, None, &names, &Wanted::default(), later);
        assert!(refused.unwrap_err().to_string().contains("is valid from"));
        let (new, _) = installation.introduce("next", &Wanted::default(), None, later).unwrap();
        installation.renew(&new, None, &names, &Wanted::default(), later).unwrap();
        assert_eq!(Serving::load(&folder.files, later).unwrap().authority(), &new);
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let refused = |change: &dyn Fn(&mut Folder), expected: &str| {
            let mut folder = folder();
            change(&mut folder);
            let error = Installation::open(&folder.files).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let manifest = "apiVersion: v1\nkind: ConfigMap\ndata: {}\n";
        refused(&|folder| fs::write(&folder.files.ca, manifest).unwrap(), "mcs-ca.crt is a manifest");
        refused(
            &|folder| fs::write(&folder.files.certificate, manifest).unwrap(),
            "mcs.crt is a manifest",
        );
        refused(
            &|folder| folder.files.key.clone_from(&folder.files.certificate),
            "holds certificate and key",
        );
        refused(&|folder| fs::remove_file(&folder.files.key).unwrap(), "mcs.key");
        let folder = folder();
        let _one = Installation::open(&folder.files).unwrap();
        assert!(matches!(Installation::open(&folder.files), Err(InstallError::Busy(_))));
    }
}
