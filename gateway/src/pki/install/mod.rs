//! Changes of the CA's and certificate's files: a certificate is renewed, a CA comes and goes. Each step leaves files that load, so that
//! neither a crash nor a reload in between does any harm. An interrupted command can be repeated.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest::{SpkiSha256, UnixTime};
use attest_certificates::Certificate;
use attest_certificates::source;
use attest_system::files::{self, PRIVATE, PUBLIC, WriteError, make_private_folder};
use data_encoding::BASE64;
use rustls_pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

use super::authority_keys::{authority_key, find_authority_key, holds, next_authority_key, old_authority_key, sibling_path, signing_keys};
use super::error::InstallError;
use super::issue::{self, Algorithm, CertificateRequest, CreateError, GatewayNames, IssuedCertificate, SigningKey};
use super::{ServingCertificate, ServingError};
use crate::settings::TlsSettings;

/// The files, for one command at a time.
#[derive(Debug)]
pub struct Installation<'a> {
    files: &'a TlsSettings,
    _lock: File,
}

/// Effects of [`Installation::retire`] on the bundle and the keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// The CAs that are gone from the bundle.
    pub dropped: Vec<Certificate>,
    /// Path of the old CA's key.
    pub old_key: Option<PathBuf>,
    /// Path of the key of the CA in use, if it was moved.
    pub key: Option<PathBuf>,
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
    ServingCertificate::from_contents(files, authorities.to_vec(), chain.to_vec(), keys, now)?;
    let folder = files::folder(&files.certificate);
    make_private_folder(folder).map_err(|source| WriteError {
        path: folder.to_owned(),
        source,
    })?;
    files::create(&files.ca, PUBLIC, &pem(authorities))?;
    files::create(&files.key, PRIVATE, key)?;
    files::create(&files.certificate, PUBLIC, &pem(chain))?;
    Ok(())
}

impl<'a> Installation<'a> {
    /// Locks the files, if they may be changed here and no other command is changing them.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn open(files: &'a TlsSettings) -> Result<Self, InstallError> {
        if files.serving_of_cluster {
            return Err(InstallError::OfCluster);
        }
        for path in [&files.ca, &files.certificate, &files.key] {
            if (path != &files.key || path.exists()) && source::is_manifest(path)? {
                return Err(InstallError::Manifest(path.clone()));
            }
        }
        if files.certificate == files.key || files.ca == files.key {
            return Err(InstallError::OneFile(files.key.clone()));
        }
        let folder = files::folder(&files.ca);
        let io = |source| WriteError {
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

    /// Loads the files as they are.
    ///
    /// # Errors
    /// [`InstallError::Serving`].
    pub fn serving(&self, now: UnixTime) -> Result<ServingCertificate, InstallError> {
        Ok(ServingCertificate::load(self.files, now)?)
    }

    /// Makes a new serving certificate by `ca`, and puts it in the place of today's.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn renew(
        &self,
        ca: &Certificate,
        ca_key: Option<&Path>,
        names: &GatewayNames,
        wanted: &CertificateRequest,
        now: UnixTime,
    ) -> Result<Certificate, InstallError> {
        let ca_key = find_authority_key(self.files, ca, ca_key)?;
        let IssuedCertificate { certificate, key } = issue::serving(ca, &ca_key, names, wanted, now)?;
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
        ServingCertificate::from_contents(&files, vec![ca.clone()], chain.clone(), pem_keys(&key), now)?;
        self.replace(&chain, &key, now)?;
        Ok(leaf)
    }

    fn replace(&self, chain: &[Certificate], key: &str, now: UnixTime) -> Result<(), InstallError> {
        for step in self.steps(chain, key, now)? {
            files::replace(&step.path, step.mode, &step.text)?;
        }
        Ok(())
    }

    /// Returns the writes that lead from today's pair to another: both keys, the certificate, its key alone. After each of them there is a
    /// pair.
    fn steps(&self, chain: &[Certificate], key: &str, now: UnixTime) -> Result<Vec<InstallStep>, InstallError> {
        let authorities = source::authorities(&self.files.ca)?;
        ServingCertificate::from_contents(self.files, authorities, chain.to_vec(), pem_keys(key), now)?;
        // Where today's pair is broken already there is nothing to keep up.
        let leaf = source::certificates(&self.files.certificate)
            .ok()
            .and_then(|chain| chain.first().cloned());
        let old = leaf.zip(source::keys(&self.files.key).ok());
        let old = old.and_then(|(leaf, keys)| fitting(&keys, leaf.key)).unwrap_or_default();
        let mut both = Zeroizing::new(String::with_capacity(key.len() + old.len()));
        both.push_str(key);
        both.push_str(&old);
        let step = |path: &Path, mode, text: Zeroizing<String>| InstallStep {
            path: path.to_owned(),
            mode,
            text,
        };
        Ok(vec![
            step(&self.files.key, PRIVATE, both),
            step(&self.files.certificate, PUBLIC, Zeroizing::new(pem(chain))),
            step(&self.files.key, PRIVATE, Zeroizing::new(key.to_owned())),
        ])
    }

    /// Makes a second CA and adds it to the bundle. Its key goes to `key_out`, or next to the CA. An existing key that is not the key of
    /// any CA was left by an interrupted command: it is used.
    ///
    /// # Errors
    /// [`InstallError`].
    pub fn introduce(
        &self,
        name: &str,
        wanted: &CertificateRequest,
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
                    return Err(unfit(
                        "this file holds the key of a CA in use, and was not changed: name another file",
                    ));
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
        let IssuedCertificate { certificate, .. } = issue::authority(name, key, wanted.days, now)?;
        if certificate.key_kind != wanted.algorithm.key_kind() {
            return Err(unfit(
                "another command left this file, which has another kind of key; remove it if nothing uses it",
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
        Ok(files::replace(&self.files.ca, PUBLIC, &pem(&authorities))?)
    }

    /// Drops every CA but the one in use from the bundle, and puts the keys next to it in order. Keys move before the bundle changes: until
    /// that is done, the command can be repeated.
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
                old = sibling_path(self.files, &format!("old-{}", now.as_secs()));
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
        files::replace(&self.files.ca, PUBLIC, &pem(&kept))?;
        if discard_key && let Some(old) = retired.old_key.take() {
            files::remove(&old)?;
        }
        Ok(retired)
    }
}

struct InstallStep {
    path: PathBuf,
    /// Mode for a file that was lost.
    mode: u32,
    text: Zeroizing<String>,
}

/// Returns certificates as PEM, one after the other.
#[must_use]
pub fn pem(certificates: &[Certificate]) -> String {
    certificates.iter().map(Certificate::pem).collect()
}

fn pem_keys(text: &str) -> Vec<PrivateKeyDer<'static>> {
    use rustls_pki_types::pem::PemObject;
    PrivateKeyDer::pem_slice_iter(text.as_bytes()).filter_map(Result::ok).collect()
}

/// Returns the certificate's key from a file, as PEM.
///
/// # Errors
/// [`InstallError::Unfit`], if the file does not hold that key.
pub fn fitting_key(path: &Path, certificate: &Certificate) -> Result<Zeroizing<String>, InstallError> {
    fitting(&source::keys(path)?, certificate.key).ok_or_else(|| InstallError::Unfit {
        path: path.to_owned(),
        problem: format!("no key in it is that of {}", certificate.subject),
    })
}

/// Returns the key among these that has this public half, as PEM.
fn fitting(keys: &[PrivateKeyDer<'static>], public: SpkiSha256) -> Option<Zeroizing<String>> {
    keys.iter()
        .filter_map(|key| Some((key, SigningKey::parse(key).ok()?)))
        .find(|(_, parsed)| parsed.public() == public)
        .map(|(key, _)| key_pem(key))
}

/// Returns a key as PEM, in the form in which it was read.
fn key_pem(key: &PrivateKeyDer<'_>) -> Zeroizing<String> {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        _ => "PRIVATE KEY",
    };
    let text = Zeroizing::new(BASE64.encode(key.secret_der()));
    Zeroizing::new(format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", *text))
}

/// Returns the algorithm of a certificate's key, if it is one that can be made here.
#[must_use]
pub fn algorithm_of(certificate: &Certificate) -> Option<Algorithm> {
    Algorithm::ALL
        .into_iter()
        .find(|algorithm| algorithm.key_kind() == certificate.key_kind)
}

/// The current serving certificate, whether it is valid or not, and the CA that has signed it.
#[derive(Debug)]
pub struct Today {
    pub certificate: Certificate,
    /// CA that has signed the certificate.
    pub authority: Certificate,
    /// All CAs of the bundle.
    pub authorities: Vec<Certificate>,
}

/// Reads the files. An expired certificate or a lost key does not keep it from being renewed.
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
        let then = UnixTime::since_unix_epoch(Duration::from_secs(end));
        found = ServingCertificate::signer(files, &authorities, &chain, then);
        if found.is_ok() {
            break;
        }
    }
    Ok(Today {
        certificate: leaf.clone(),
        authority: found?,
        authorities,
    })
}

#[cfg(test)]
mod tests;
