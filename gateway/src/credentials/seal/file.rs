//! The seal's keys in a file: of the one gateway that there is.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use attest_system::newer_format::NewerFormat;
use zeroize::Zeroizing;

use super::key::{KeyBytes, random_id};
use super::{ROTATE_EVERY, SealError, SealKeys};

/// The first line of the key file: its format.
const HEAD: &str = "attestation-gateway seal 2";
/// Bytes of a key's id: enough to tell some keys apart; only the key itself shows that it is the right one.
const ID_BYTES: usize = 4;

struct FileKey {
    id: String,
    /// Creation time, in seconds since 1970.
    made: u64,
    secret: KeyBytes,
}

/// Keys of the file, the newest first.
struct FileKeys(Vec<FileKey>);

/// Reads the file, or makes it with a new key.
pub(super) fn open(file: &Path) -> Result<SealKeys, SealError> {
    if !file.exists() {
        match files::create(file, files::PRIVATE, &FileKeys::new(0)?.text()) {
            Err(error) if error.source.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            // Or another process was faster.
            _ => {}
        }
    }
    FileKeys::read(file)?.keys()
}

/// Puts one new key in the place of all others.
pub(super) fn replace(file: &Path) -> Result<(), SealError> {
    // One that cannot be read is replaced, too.
    if let Ok(text) = files::read_text(file, SMALL_FILE_LIMIT_BYTES).map(Zeroizing::new) {
        check_version(file, HEAD, &text)?;
    }
    Ok(files::replace(file, files::PRIVATE, &FileKeys::new(0)?.text())?)
}

/// Returns whether the file has a higher version.
pub(super) fn is_newer(file: &Path) -> bool {
    let text = files::read_text(file, SMALL_FILE_LIMIT_BYTES).map(Zeroizing::new);
    text.is_ok_and(|text| check_version(file, HEAD, &text).is_err())
}

/// Reads the file, and writes it if its keys have changed. Of two processes, one does so at a time.
pub(super) fn maintain(file: &Path, now: u64, keep: Duration, rotate: bool) -> Result<(SealKeys, bool), SealError> {
    let io = |source| SealError::Io {
        path: file.to_owned(),
        source,
    };
    let folder = File::open(files::folder(file)).map_err(io)?;
    folder.lock().map_err(io)?;
    let mut keys = FileKeys::read(file)?;
    let old = |key: &FileKey| now.saturating_sub(key.made) >= ROTATE_EVERY.as_secs();
    let rotate = rotate || keys.0.first().is_none_or(old);
    if rotate {
        keys.0.insert(0, FileKey::new(now)?);
    }
    let count = keys.0.len();
    keys.drop_over(now, keep);
    if rotate || keys.0.len() < count {
        files::replace(file, files::PRIVATE, &keys.text())?;
    }
    Ok((keys.keys()?, rotate))
}

/// Reads the text of a file that only its owner can read.
pub(super) fn read_private(file: &Path) -> Result<Zeroizing<String>, SealError> {
    read(file, |mode, _| is_owners(mode))
}

/// Like [`read_private`], but root may also have given the file to this user's group to read. Kubernetes gives a Secret so to a pod that is
/// not root.
pub(super) fn read_private_or_given(file: &Path) -> Result<Zeroizing<String>, SealError> {
    read(file, |mode, owner| is_owners(mode) || files::is_given(mode, owner))
}

fn read(file: &Path, is_private: impl Fn(u32, u32) -> bool) -> Result<Zeroizing<String>, SealError> {
    let io = |source| SealError::Io {
        path: file.to_owned(),
        source,
    };
    let text = Zeroizing::new(files::read_text(file, SMALL_FILE_LIMIT_BYTES).map_err(io)?);
    let found = fs::metadata(file).map_err(io)?;
    let mode = found.permissions().mode() & 0o777;
    if !is_private(mode, found.uid()) {
        return Err(SealError::Mode {
            path: file.to_owned(),
            mode,
        });
    }
    Ok(text)
}

/// Refuses a file whose first line is this one with a higher version.
pub(super) fn check_version(file: &Path, head: &str, text: &str) -> Result<(), SealError> {
    let path = || file.to_owned();
    NewerFormat::in_head("version", head, text).map_or(Ok(()), |newer| Err(SealError::NewerFile { path: path(), newer }))
}

const fn is_owners(mode: u32) -> bool {
    mode & 0o077 == 0
}

impl FileKeys {
    fn new(made: u64) -> Result<Self, SealError> {
        Ok(Self(vec![FileKey::new(made)?]))
    }

    fn read(file: &Path) -> Result<Self, SealError> {
        let text = read_private(file)?;
        check_version(file, HEAD, &text)?;
        Self::parse(&text).ok_or_else(|| SealError::NoKey(file.to_owned()))
    }

    /// Returns `None` if the text holds something else.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != HEAD {
            return None;
        }
        let keys: Option<Vec<FileKey>> = lines.map(FileKey::parse).collect();
        keys.filter(|keys| !keys.is_empty()).map(Self)
    }

    fn text(&self) -> Zeroizing<String> {
        let lines = self
            .0
            .iter()
            .map(|FileKey { id, made, secret }| Zeroizing::new(format!("{id} {made} {}\n", *secret.hex())));
        let mut text = Zeroizing::new(format!("{HEAD}\n"));
        for line in lines {
            text.push_str(&line);
        }
        text
    }

    /// Drops keys that have sealed nothing that is still valid: a newer one is older than that.
    fn drop_over(&mut self, now: u64, keep: Duration) {
        let newer: Vec<u64> = self.0.iter().map(|key| key.made).collect();
        let over = newer
            .iter()
            .position(|made| now.saturating_sub(*made) > keep.as_secs() && *made > 0);
        if let Some(over) = over {
            self.0.truncate(over + 1);
        }
    }

    fn keys(&self) -> Result<SealKeys, SealError> {
        let keys = self.0.iter().map(|FileKey { id, secret, .. }| secret.key(id));
        Ok(SealKeys(keys.collect::<Result<_, _>>()?))
    }
}

impl FileKey {
    fn new(made: u64) -> Result<Self, SealError> {
        Ok(Self {
            id: random_id::<ID_BYTES>()?,
            made,
            secret: KeyBytes::random()?,
        })
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split(' ');
        let (id, made, hex) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        if parts.next().is_some() || id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        Some(Self {
            id: id.to_owned(),
            made,
            secret: KeyBytes::from_hex(hex)?,
        })
    }
}
