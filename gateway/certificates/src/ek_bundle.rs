//! Bundles of the certificates of TPM manufacturers' CAs, as the public distributes them: a PEM or DER file, or a folder of such files with
//! subfolders.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use attest_system::files;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use rustls_pki_types::CertificateDer;

use super::folder;

/// Maximum size of a bundle in bytes, over all its files. As PEM, with comments, it fits into [`folder::FILE_LIMIT_BYTES`].
const BUNDLE_LIMIT_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum number of certificates in a bundle.
const CERTIFICATES_LIMIT: usize = 20_000;
/// Maximum number of files and folders in a bundle.
const ENTRIES_LIMIT: usize = 100_000;
/// Maximum depth of subfolders.
const DEPTH_LIMIT: usize = 8;
/// First bytes of a cabinet file.
const CABINET: &[u8] = b"MSCF";

/// A bundle that was read.
#[derive(Debug)]
pub struct EkBundle {
    /// Name of its file or folder, without control characters.
    pub name: String,
    /// SHA-256 of its file. Of a folder, the SHA-256 of the lines `SHA256  PATH` of its certificate files, sorted by path.
    pub sha256: String,
    /// Its certificates, not parsed yet.
    pub found: Vec<BundleCertificate>,
    /// Files, or parts of them, that hold no certificate.
    pub refused: Vec<BundleRefusal>,
}

/// A certificate of a bundle.
#[derive(Debug)]
pub struct BundleCertificate {
    /// Path of its file in the bundle.
    pub file: String,
    pub certificate: CertificateDer<'static>,
}

/// A file of a bundle, or a part of it, without a certificate.
#[derive(Debug)]
pub struct BundleRefusal {
    /// Path of the file in the bundle.
    pub file: String,
    pub reason: String,
}

/// Reason why a bundle is not read.
#[derive(Debug, thiserror::Error)]
pub enum EkBundleError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: the path has no last component; name the bundle's file or folder")]
    Unnamed { path: PathBuf },
    #[error(
        "{path}: it is a cabinet file, which is not read; extract it, and import the folder: `cabextract --directory EXTRACTED {path}`"
    )]
    Cabinet { path: PathBuf },
    #[error("{path}: the bundle has more than {BUNDLE_LIMIT_BYTES} bytes")]
    TooLarge { path: PathBuf },
    #[error("{path}: the bundle has more than {CERTIFICATES_LIMIT} certificates")]
    TooManyCertificates { path: PathBuf },
    #[error("{path}: the bundle has more than {ENTRIES_LIMIT} files and folders")]
    TooManyEntries { path: PathBuf },
    #[error("{path}: the bundle has more than {DEPTH_LIMIT} levels of folders")]
    TooDeep { path: PathBuf },
}

/// A certificate file of a folder.
struct FolderFile {
    path: PathBuf,
    /// Its path in the folder.
    relative: String,
}

/// Files of a folder, found before any is read.
#[derive(Default)]
struct FolderWalk {
    files: Vec<FolderFile>,
    refused: Vec<BundleRefusal>,
    entries: usize,
    bytes: u64,
}

/// Reads a bundle. In a folder, files named `*.pem`, `*.crt`, `*.cer` and `*.der` count, in upper or lower case. Links are not followed, and
/// names that begin with a dot are skipped.
///
/// # Errors
/// [`EkBundleError`].
pub fn read(path: &Path) -> Result<EkBundle, EkBundleError> {
    let io = |source| EkBundleError::Io {
        path: path.to_owned(),
        source,
    };
    let is_folder = fs::metadata(path).map_err(io)?.is_dir();
    let absolute = fs::canonicalize(path).map_err(io)?;
    // The name that was given, unless it is `.` or `..`.
    let name = path.file_name().or_else(|| absolute.file_name());
    let name = one_line(
        &name
            .ok_or_else(|| EkBundleError::Unnamed { path: path.to_owned() })?
            .to_string_lossy(),
    );
    let mut bundle = EkBundle {
        name,
        sha256: String::new(),
        found: Vec::new(),
        refused: Vec::new(),
    };
    if is_folder {
        bundle.read_folder(path)?;
    } else {
        let (bytes, file) = (read_file(path, BUNDLE_LIMIT_BYTES)?, bundle.name.clone());
        bundle.sha256 = HEXLOWER.encode(digest(&SHA256, &bytes).as_ref());
        bundle.add(path, &file, bytes)?;
    }
    Ok(bundle)
}

impl EkBundle {
    fn read_folder(&mut self, folder: &Path) -> Result<(), EkBundleError> {
        let mut walk = FolderWalk::default();
        walk.visit(folder, "", 0)?;
        let FolderWalk { mut files, refused, .. } = walk;
        self.refused = refused;
        files.sort_by(|a, b| a.relative.cmp(&b.relative));
        let (mut lines, mut left) = (String::new(), BUNDLE_LIMIT_BYTES);
        for file in files {
            let bytes = read_file(&file.path, left)?;
            left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            let sha256 = HEXLOWER.encode(digest(&SHA256, &bytes).as_ref());
            lines.push_str(&format!("{sha256}  {}\n", file.relative));
            self.add(&file.path, &one_line(&file.relative), bytes)?;
        }
        self.sha256 = HEXLOWER.encode(digest(&SHA256, lines.as_bytes()).as_ref());
        Ok(())
    }

    /// Adds the certificates of a file.
    fn add(&mut self, path: &Path, file: &str, bytes: Vec<u8>) -> Result<(), EkBundleError> {
        if bytes.starts_with(CABINET) {
            return Err(EkBundleError::Cabinet { path: path.to_owned() });
        }
        if !folder::is_pem(&bytes) && !folder::is_der(&bytes) {
            self.refuse(file, "neither PEM nor DER");
            return Ok(());
        }
        let found = folder::certificates(bytes);
        if found.is_empty() {
            self.refuse(file, "no certificate in it");
        }
        for certificate in found {
            match certificate {
                Ok(certificate) => self.found.push(BundleCertificate {
                    file: file.to_owned(),
                    certificate,
                }),
                Err(problem) => self.refuse(file, &format!("not PEM: {problem}")),
            }
            if self.found.len() > CERTIFICATES_LIMIT {
                return Err(EkBundleError::TooManyCertificates { path: path.to_owned() });
            }
        }
        Ok(())
    }

    fn refuse(&mut self, file: &str, reason: &str) {
        self.refused.push(BundleRefusal {
            file: file.to_owned(),
            reason: reason.to_owned(),
        });
    }
}

impl FolderWalk {
    fn visit(&mut self, folder: &Path, relative: &str, depth: usize) -> Result<(), EkBundleError> {
        let io = |source| EkBundleError::Io {
            path: folder.to_owned(),
            source,
        };
        if depth > DEPTH_LIMIT {
            return Err(EkBundleError::TooDeep { path: folder.to_owned() });
        }
        for entry in fs::read_dir(folder).map_err(io)? {
            let entry = entry.map_err(io)?;
            let (name, kind) = (entry.file_name(), entry.file_type().map_err(io)?);
            self.entries += 1;
            if self.entries > ENTRIES_LIMIT {
                return Err(EkBundleError::TooManyEntries { path: folder.to_owned() });
            }
            let name = name.to_string_lossy();
            if name.starts_with('.') {
                continue;
            }
            let relative = match relative {
                "" => name.into_owned(),
                above => format!("{above}/{name}"),
            };
            if kind.is_dir() {
                self.visit(&entry.path(), &relative, depth + 1)?;
            } else if kind.is_symlink() {
                self.refuse(&relative, "a symbolic link is not followed");
            } else if !has_certificate_name(&entry.path()) {
                // Scripts and descriptions.
            } else if kind.is_file() {
                let bytes = entry.metadata().map_err(io)?.len();
                self.bytes = self.bytes.saturating_add(bytes);
                if self.bytes > BUNDLE_LIMIT_BYTES {
                    return Err(EkBundleError::TooLarge { path: entry.path() });
                }
                self.files.push(FolderFile {
                    path: entry.path(),
                    relative,
                });
            } else {
                self.refuse(&relative, "not a regular file");
            }
        }
        Ok(())
    }

    fn refuse(&mut self, file: &str, reason: &str) {
        self.refused.push(BundleRefusal {
            file: one_line(file),
            reason: reason.to_owned(),
        });
    }
}

/// Returns whether a file has one of the names that count, whether in upper or lower case.
fn has_certificate_name(path: &Path) -> bool {
    folder::is_certificate_file(&path.with_extension(path.extension().unwrap_or_default().to_ascii_lowercase()))
}

/// Reads a file. A size above the limit is an error before anything is read.
fn read_file(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, EkBundleError> {
    let io = |source| EkBundleError::Io {
        path: path.to_owned(),
        source,
    };
    if fs::metadata(path).map_err(io)?.len() > limit_bytes {
        return Err(EkBundleError::TooLarge { path: path.to_owned() });
    }
    files::read(path, limit_bytes).map_err(io)
}

/// Returns a text for one line of a file: control characters are escaped.
pub(super) fn one_line(text: &str) -> String {
    let escaped = |c: char| {
        if c.is_control() {
            c.escape_unicode().collect()
        } else {
            String::from(c)
        }
    };
    text.chars().map(escaped).collect()
}
