//! Folders of certificates that the administrator trusts: `*.pem`, `*.crt`, `*.cer`, `*.der`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use attest_system::files;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::Fingerprint;

/// Largest certificate file that is read: an imported bundle of thousands of certificates ([`super::ek_bundle`]).
pub const FILE_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// A certificate, and the file it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderCertificate {
    pub path: PathBuf,
    /// The certificate, not parsed yet.
    pub certificate: CertificateDer<'static>,
}

/// Contents of a folder.
#[derive(Debug, Default)]
pub struct CertificateFolder {
    /// Contents of all files with a name for certificates.
    pub found: Vec<FolderCertificate>,
    /// Files and certificates that were left out, with reasons. One bad file must not stop a gateway.
    pub refused: Vec<String>,
}

/// Returns the file of a certificate, given its SHA-256 in hexadecimal.
#[must_use]
pub fn file_of<'a>(found: &'a [FolderCertificate], sha256: &str) -> Option<&'a Path> {
    let of = found.iter().find(|found| Fingerprint::of(&found.certificate).to_string() == sha256);
    of.map(|found| found.path.as_path())
}

/// The folder cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct CertificateFolderError {
    path: PathBuf,
    source: std::io::Error,
}

/// Reads every certificate in the files of a folder. A missing folder counts as empty.
///
/// # Errors
/// [`CertificateFolderError`].
pub fn read(folder: &Path) -> Result<CertificateFolder, CertificateFolderError> {
    let mut read = CertificateFolder::default();
    for path in entries(folder)?.into_iter().filter(|path| is_certificate_file(path)) {
        read.add(path)?;
    }
    Ok(read)
}

/// Returns the entries of a folder, sorted; none if the folder does not exist. Skips names that begin with a dot, which Kubernetes uses for
/// its own files in a volume.
///
/// # Errors
/// [`CertificateFolderError`].
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>, CertificateFolderError> {
    let mut paths = Vec::new();
    match fs::read_dir(folder) {
        Ok(entries) => {
            for entry in entries {
                paths.push(entry.map_err(io(folder))?.path());
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(folder)(error)),
    }
    paths.retain(|path| !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")));
    paths.sort();
    Ok(paths)
}

/// Returns whether a file's name is one for certificates.
#[must_use]
pub fn is_certificate_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("pem" | "crt" | "cer" | "der"))
}

/// Returns whether a file's name, `NAME.root.pem`, declares its certificates to be roots, regardless of their issuers.
#[must_use]
pub fn is_named_root(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem.as_encoded_bytes().ends_with(b".root"))
}

impl CertificateFolder {
    /// Adds the certificates of a file: one in DER, or any number in PEM.
    ///
    /// # Errors
    /// [`CertificateFolderError`].
    pub fn add(&mut self, path: PathBuf) -> Result<(), CertificateFolderError> {
        let bytes = match files::read(&path, FILE_LIMIT_BYTES) {
            Ok(bytes) => bytes,
            // Not a file of certificates, whoever may read it.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::FileTooLarge | ErrorKind::InvalidInput | ErrorKind::IsADirectory
                ) =>
            {
                self.refused.push(format!("{}: {error}", path.display()));
                return Ok(());
            }
            Err(error) => return Err(io(&path)(error)),
        };
        for certificate in certificates(bytes) {
            match certificate {
                Ok(certificate) => self.found.push(FolderCertificate {
                    path: path.clone(),
                    certificate,
                }),
                Err(problem) => self.refused.push(format!("{}: {problem}", path.display())),
            }
        }
        Ok(())
    }
}

/// Returns the certificates in PEM; or else the bytes themselves, as one in DER.
#[must_use]
pub fn certificates(bytes: Vec<u8>) -> Vec<Result<CertificateDer<'static>, String>> {
    if !is_pem(&bytes) {
        return vec![Ok(CertificateDer::from(without_line_end(bytes)))];
    }
    CertificateDer::pem_slice_iter(&bytes)
        .map(|found| found.map(CertificateDer::into_owned).map_err(|error| error.to_string()))
        .collect()
}

/// Returns whether a file may hold certificates in PEM.
pub(super) fn is_pem(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"-----") || bytes.windows(11).any(|window| window == b"-----BEGIN ")
}

/// Returns whether bytes begin as a certificate in DER does: a sequence of more than 127 bytes.
#[must_use]
pub const fn is_der(bytes: &[u8]) -> bool {
    matches!(bytes, [0x30, 0x80..=0xff, ..])
}

/// Removes a trailing line break: AMD publishes the CAs of its TPMs in DER with one.
fn without_line_end(mut bytes: Vec<u8>) -> Vec<u8> {
    let line_end = match X509Certificate::from_der(&bytes) {
        Ok((rest @ (b"\n" | b"\r\n"), _)) => rest.len(),
        _ => 0,
    };
    bytes.truncate(bytes.len() - line_end);
    bytes
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> CertificateFolderError + use<> {
    let path = path.to_owned();
    move |source| CertificateFolderError { path, source }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn root_file_is_recognized_by_its_suffix() {
        for (file, expected) in [
            ("pluton.root.pem", true),
            ("a.b.root.der", true),
            ("root.pem", false),
            ("pluton-root.pem", false),
            ("pluton.root.intermediate.pem", false),
            ("folder.root/pluton.pem", false),
        ] {
            assert_eq!(is_named_root(Path::new(file)), expected, "{file}");
        }
    }

    #[test]
    fn strips_one_line_end_after_der() {
        let certificate = || rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap().cert.der().to_vec();
        let read = |bytes: &[u8]| certificates(bytes.to_vec()).remove(0).unwrap().to_vec();
        // One whose signature ends as a line does.
        let like_a_line = std::iter::repeat_with(certificate).find(|der| der.last() == Some(&b'\n')).unwrap();
        for der in [certificate(), like_a_line] {
            assert_eq!(read(&der), der);
            assert_eq!(read(&[&der, b"\n".as_slice()].concat()), der);
            assert_eq!(read(&[&der, b"\r\n".as_slice()].concat()), der);
            // Anything else stays, and is refused by who reads the certificate.
            for more in ["\n\n", " ", "\0", "\nx", "\n-----"] {
                let bytes = [&der, more.as_bytes()].concat();
                assert_eq!(read(&bytes), bytes, "{more:?}");
            }
        }
        assert_eq!(read(b"no certificate\n"), b"no certificate\n");
    }
}
