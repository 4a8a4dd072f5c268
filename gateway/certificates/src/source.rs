//! Certificates and keys from files: with PEM, or with the manifest of a Secret or ConfigMap that holds PEM.

use std::fmt;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use attest_system::files;
use aws_lc_rs::digest::{Context, SHA256};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::Certificate;
use super::secret_manifest::reading;

/// Largest file that is read: a bundle of a few dozen certificates.
const FILE_LIMIT_BYTES: u64 = 1024 * 1024;

/// Reason why a file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFileError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// It is larger than anything of its kind.
    #[error("{path}: {found} bytes, at most {FILE_LIMIT_BYTES} are read")]
    TooLarge {
        path: PathBuf,
        /// Its size in bytes.
        found: u64,
    },
    /// It does not hold what it should.
    #[error("{path}: {problem}")]
    Content {
        path: PathBuf,
        /// Description of the problem, without the file's content.
        problem: String,
    },
}

/// Keys of a manifest for a serving certificate; there may also be a separate CA.
const CERTIFICATE_KEYS: [&str; 3] = ["tls.crt", "ca.crt", "ca-bundle.crt"];
/// Keys of a manifest for a CA: `ca.crt` first, because a Secret with a certificate may also contain its CA.
const AUTHORITY_KEYS: [&str; 3] = ["ca.crt", "ca-bundle.crt", "tls.crt"];
/// Keys of a manifest for a private key.
const PRIVATE_KEY_KEYS: [&str; 1] = ["tls.key"];

/// Reads a serving certificate with its chain: all certificates of a file, in its order; at least one.
///
/// # Errors
/// [`CertificateFileError`].
pub fn certificates(path: &Path) -> Result<Vec<Certificate>, CertificateFileError> {
    parse(path, &CERTIFICATE_KEYS)
}

/// Reads CAs: all certificates of a file, in its order; at least one.
///
/// # Errors
/// [`CertificateFileError`].
pub fn authorities(path: &Path) -> Result<Vec<Certificate>, CertificateFileError> {
    parse(path, &AUTHORITY_KEYS)
}

fn parse(path: &Path, keys: &[&str]) -> Result<Vec<Certificate>, CertificateFileError> {
    let text = pem(path, keys)?;
    certificates_in(&text).map_err(|problem| CertificateFileError::Content {
        path: path.to_owned(),
        problem,
    })
}

/// Parses all certificates of a PEM text, in its order; at least one.
///
/// # Errors
/// What is wrong with it.
pub fn certificates_in(pem: &str) -> Result<Vec<Certificate>, String> {
    let mut all = Vec::new();
    for der in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let der = der.map_err(|error| error.to_string())?;
        all.push(Certificate::parse(der)?);
    }
    if all.is_empty() {
        return Err("holds no certificate".to_owned());
    }
    Ok(all)
}

/// Reads all private keys of a file, in its order; at least one. There are two while a certificate is replaced. The new key comes before
/// the new certificate, and the old one goes after it, so that a crash leaves a matching pair.
///
/// # Errors
/// [`CertificateFileError`].
pub fn keys(path: &Path) -> Result<Vec<PrivateKeyDer<'static>>, CertificateFileError> {
    let text = pem(path, &PRIVATE_KEY_KEYS)?;
    keys_in(&text).map_err(|problem| CertificateFileError::Content {
        path: path.to_owned(),
        problem,
    })
}

/// Parses keys like [`keys`], from PEM text.
///
/// # Errors
/// What is wrong with it; never what is in it.
pub fn keys_in(pem: &str) -> Result<Vec<PrivateKeyDer<'static>>, String> {
    let all: Result<Vec<_>, _> = PrivateKeyDer::pem_slice_iter(pem.as_bytes()).collect();
    match all {
        Ok(all) if all.is_empty() && pem.contains("ENCRYPTED") => {
            Err("the private key is encrypted with a passphrase, which cannot be entered: decrypt it".to_owned())
        }
        Ok(all) if all.is_empty() => Err("holds no private key".to_owned()),
        Ok(all) => Ok(all),
        // What the parser says may quote the text.
        Err(_) => Err("is not valid PEM".to_owned()),
    }
}

/// Returns whether a file is a manifest. Then the process that wrote it must replace its contents.
///
/// # Errors
/// [`CertificateFileError`], if it cannot be read.
pub fn is_manifest(path: &Path) -> Result<bool, CertificateFileError> {
    Ok(reading::is_manifest(&read(path)?))
}

/// Returns a digest over the contents of these files, to detect changes. A file that cannot be read counts as empty.
#[must_use]
pub fn digest<'p>(paths: impl IntoIterator<Item = &'p Path>) -> [u8; 32] {
    let mut all = Context::new(&SHA256);
    for path in paths {
        let text = read(path).unwrap_or_default();
        all.update(&u64::try_from(text.len()).unwrap_or(0).to_be_bytes());
        all.update(text.as_bytes());
    }
    let mut bytes = [0; 32];
    for (to, from) in bytes.iter_mut().zip(all.finish().as_ref()) {
        *to = *from;
    }
    bytes
}

/// A private key's file that others than its owner can access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exposed {
    /// Set if all users can access it, not only the file's group. Access by the group may be intended: Kubernetes gives a volume to one.
    pub to_everybody: bool,
    mode: u32,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.to_everybody { "all users" } else { "its group" };
        write!(
            f,
            "mode {:04o} gives {who} access to a private key: run `chmod 0600`, or set defaultMode: 0400 in a volume of Kubernetes",
            self.mode
        )
    }
}

/// Returns the exposure of a private key's file: others than its owner can access it, and root has not given it to one group.
#[must_use]
pub fn exposed(path: &Path) -> Option<Exposed> {
    let found = fs::metadata(path).ok()?;
    let mode = found.permissions().mode() & 0o777;
    (mode & 0o077 != 0 && !files::is_given(mode, found.uid())).then_some(Exposed {
        to_everybody: mode & 0o007 != 0,
        mode,
    })
}

/// Reads a file's PEM, also from a manifest.
fn pem(path: &Path, keys: &[&str]) -> Result<Zeroizing<String>, CertificateFileError> {
    let text = read(path)?;
    if reading::is_pem(&text) {
        return Ok(text);
    }
    reading::value(&text, keys).map_err(|problem| CertificateFileError::Content {
        path: path.to_owned(),
        problem,
    })
}

fn read(path: &Path) -> Result<Zeroizing<String>, CertificateFileError> {
    let io = |source| CertificateFileError::Io {
        path: path.to_owned(),
        source,
    };
    let file = files::open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?.len();
    if found > FILE_LIMIT_BYTES {
        return Err(CertificateFileError::TooLarge {
            path: path.to_owned(),
            found,
        });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_LIMIT_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidData => CertificateFileError::Content {
                path: path.to_owned(),
                problem: "is not PEM (convert DER with `openssl x509 -inform der` or `openssl pkey -inform der`)".to_owned(),
            },
            _ => io(error),
        })?;
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use data_encoding::BASE64;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};

    use super::*;

    fn ca(name: &str) -> Certificate {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Certificate::parse(certificate.der().clone()).unwrap()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn reads_certificate_and_ca_from_one_secret() {
        let (one, two) = (ca("one"), ca("two"));
        let secret = |keys: &[(&str, &Certificate)]| {
            let data: Vec<String> = keys
                .iter()
                .map(|(key, certificate)| format!("  {key}: {}", BASE64.encode(certificate.pem().as_bytes())))
                .collect();
            file(&format!("apiVersion: v1\nkind: Secret\ndata:\n{}\n", data.join("\n")))
        };
        let both = secret(&[("tls.crt", &one), ("ca.crt", &two)]);
        assert_eq!(certificates(both.path()).unwrap(), std::slice::from_ref(&one));
        assert_eq!(authorities(both.path()).unwrap(), std::slice::from_ref(&two));
        let single = secret(&[("tls.crt", &one)]);
        assert_eq!(authorities(single.path()).unwrap(), std::slice::from_ref(&one));
        let config_map = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca-bundle.crt": one.pem() + &two.pem()}});
        assert_eq!(authorities(file(&config_map.to_string()).path()).unwrap(), [one, two]);
        assert!(is_manifest(both.path()).unwrap());
    }

    #[test]
    fn reads_each_pem_key_format_of_openssl() {
        let check = |text: &str, expected: &str| match keys(file(text).path()) {
            Ok(keys) => assert_eq!(expected, format!("{} key", keys.len())),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(expected) && !error.contains("c2VjcmV0"), "{error}");
            }
        };
        let pem = |label: &str| format!("-----BEGIN {label}-----\nc2VjcmV0\n-----END {label}-----\n");
        check(&pem("PRIVATE KEY"), "1 key");
        check(&pem("EC PRIVATE KEY"), "1 key");
        check(&pem("RSA PRIVATE KEY"), "1 key");
        check(&(pem("PRIVATE KEY") + &pem("EC PRIVATE KEY")), "2 key");
        check(&pem("ENCRYPTED PRIVATE KEY"), "passphrase");
        check(&pem("CERTIFICATE"), "no private key");
        check("-----BEGIN PRIVATE KEY-----\nc2VjcmV0", "not valid PEM");
        check("", "is empty");
        check("c2VjcmV0", "neither PEM nor a manifest");
        check("apiVersion: v1\nkind: Secret\ndata: {tls.crt: c2VjcmV0}\n", "no tls.key");
        check("apiVersion: v1\nkind: Secret\ndata: {tls.key: c2VjcmV0}\n", "no private key");
    }

    #[test]
    fn error_names_the_unreadable_certificate_file() {
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none.crt");
        for path in [none.as_path(), folder.path()] {
            let error = certificates(path).unwrap_err().to_string();
            assert!(error.starts_with(&path.display().to_string()), "{error}");
        }
        let large = file(&"x".repeat(2 << 20));
        assert!(matches!(certificates(large.path()), Err(CertificateFileError::TooLarge { .. })));
        let broken = file("-----BEGIN CERTIFICATE-----\nc2VjcmV0\n-----END CERTIFICATE-----\n");
        assert!(
            certificates(broken.path())
                .unwrap_err()
                .to_string()
                .contains("not an X.509 certificate")
        );
    }
}
