//! A token that rotates by itself, in the folder where the administrator's tools find it: `NAME.token`, `NAME.secret.yaml`, and
//! `NAME-POOL.ign` for each pool.
//!
//! Two things have to change together, the store and the folder, and nothing makes that one step. So the files are written whole under
//! other names first. Then the store changes; then the files get their names, `NAME.token` last. The other files always have the same token
//! as that one. If it is not the one in the store, a crash came between, and the token is rotated again.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use attest::UnixTime;
use attest_certificates::secret_manifest;
use attest_certificates::source::{self, CertificateFileError};
use zeroize::Zeroizing;

use super::record::{Rotation, TokenRecord};
use attest_pointers::{PointerBuildError, PointerOptions};

/// Mode for the gateway's user only; the administrator gives the token to other users that are to read it.
const MODE: u32 = 0o600;
/// Length of a temporary file's random part, in bytes.
const TEMPORARY_BYTES: usize = 8;
/// Age of a temporary file that will not be renamed, because a gateway crashed. A rotation under way takes seconds.
const LEFTOVER_SECONDS: u64 = 3600;
/// Largest `NAME.token` that is read: a token has 43 characters.
const TOKEN_FILE_LIMIT_BYTES: u64 = 1024;
/// Largest other file that is compared with what it should be: a pointer with a large CA bundle.
const FILE_LIMIT_BYTES: u64 = 1024 * 1024;

/// A text that holds a token.
pub type Secret = Zeroizing<String>;

/// Reason why a token is not in its folder.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The folder, or a file in it.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The CA that is written into pointers.
    #[error(transparent)]
    Authority(#[from] CertificateFileError),
    /// The URL that is written into pointers.
    #[error(transparent)]
    Pointer(#[from] PointerBuildError),
    /// The system's random generator fails.
    #[error("the system's random generator failed")]
    Random,
    /// The task that writes was stopped.
    #[error("writing was interrupted")]
    Interrupted,
}

/// Returns the Secret that a cluster's operator reads the token from.
#[must_use]
pub fn auth_secret(text: &str) -> Secret {
    secret_manifest::secret("openshift-config", "machineconfig-auth", &[("token", text.as_bytes())])
}

/// Returns the names of a token's files; that of the token itself is the last.
pub(super) fn files(record: &TokenRecord) -> Vec<String> {
    let name = &record.name;
    let pointers = record.pools.iter().map(|pool| format!("{name}-{pool}.ign"));
    let mut files = vec![format!("{name}.secret.yaml")];
    files.extend(pointers);
    files.push(token_file(name));
    files
}

fn token_file(name: &str) -> String {
    format!("{name}.token")
}

/// Files that are written, and have not their names yet; those that never get them are removed.
pub(super) struct PreparedFiles {
    folder: PathBuf,
    /// Under which name each is written, and which it is to get.
    moves: Vec<(PathBuf, PathBuf)>,
}

impl Drop for PreparedFiles {
    fn drop(&mut self) {
        for (temporary, _) in &self.moves {
            // It may be gone with its folder.
            drop(fs::remove_file(temporary));
        }
    }
}

impl PreparedFiles {
    const fn none(folder: PathBuf) -> Self {
        Self { folder, moves: Vec::new() }
    }

    fn add(&mut self, name: &str, text: &str) -> Result<(), PublishError> {
        let mut random = [0; TEMPORARY_BYTES];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| PublishError::Random)?;
        let temporary = self.folder.join(format!(".{name}.{}.tmp", data_encoding::HEXLOWER.encode(&random)));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(&temporary)
            .map_err(|source| io(&temporary, source))?;
        // From here on it is removed, whatever happens.
        let target = self.folder.join(name);
        self.moves.push((temporary.clone(), target.clone()));
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|source| io(&temporary, source))?;
        can_replace(&self.folder, &file, &target).map_err(|source| io(&target, source))
    }

    /// Gives the files their names, in their order, the last only when the others have theirs for good.
    pub(super) fn publish(mut self) -> Result<(), PublishError> {
        while !self.moves.is_empty() {
            if self.moves.len() == 1 {
                sync(&self.folder)?;
            }
            let (temporary, name) = self.moves.remove(0);
            if let Err(source) = fs::rename(&temporary, &name) {
                drop(fs::remove_file(&temporary));
                return Err(io(&name, source));
            }
        }
        sync(&self.folder)
    }
}

/// Writes the files of a token that rotates by itself, under temporary names. They need nothing more then than their names.
pub(super) fn prepare(
    record: &TokenRecord,
    rotation: &Rotation,
    text: &str,
    ca: &Path,
    now: UnixTime,
) -> Result<PreparedFiles, PublishError> {
    let mut prepared = PreparedFiles::none(rotation.into.clone());
    keep_strangers_out(&rotation.into).map_err(|source| io(&rotation.into, source))?;
    remove_leftovers(record, &rotation.into, now)?;
    for (name, text) in contents(record, rotation, text, ca)? {
        prepared.add(&name, &text)?;
    }
    Ok(prepared)
}

/// Returns the token in the folder, if there is one. A file that exists and cannot be read is an error: its users may be able to read it.
pub(super) fn published(record: &TokenRecord, rotation: &Rotation) -> Result<Option<Secret>, PublishError> {
    let path = rotation.into.join(token_file(&record.name));
    let text = read(&path, TOKEN_FILE_LIMIT_BYTES).map_err(|source| io(&path, source))?;
    Ok(text.map(|text| Zeroizing::new(text.trim_end().to_owned())))
}

/// Writes again the published token's other files that are missing or differ: the MCS CA in the pointers may have changed. Returns how many
/// those were.
pub(super) fn refresh(record: &TokenRecord, rotation: &Rotation, text: &str, ca: &Path) -> Result<usize, PublishError> {
    let mut prepared = PreparedFiles::none(rotation.into.clone());
    for (name, text) in contents(record, rotation, text, ca)? {
        let path = rotation.into.join(&name);
        let found = read(&path, FILE_LIMIT_BYTES).map_err(|source| io(&path, source))?;
        if found.is_none_or(|found| *found != *text) {
            prepared.add(&name, &text)?;
        }
    }
    let count = prepared.moves.len();
    if count > 0 {
        prepared.publish()?;
    }
    Ok(count)
}

/// Returns the contents of the files, in the order of [`files`].
fn contents(record: &TokenRecord, rotation: &Rotation, text: &str, ca: &Path) -> Result<Vec<(String, Secret)>, PublishError> {
    let authorities = source::authorities(ca)?;
    let mut texts = vec![auth_secret(text)];
    for pool in &record.pools {
        let pointer = PointerOptions {
            base: &rotation.url,
            pool,
            authorities: &authorities,
            token: Some(text),
        };
        texts.push(Zeroizing::new(format!("{:#}\n", pointer.render()?)));
    }
    texts.push(Zeroizing::new(format!("{text}\n")));
    Ok(files(record).into_iter().zip(texts).collect())
}

/// Reads a small file, or the beginning of a large one. Returns `None` if it does not exist, or holds no text.
fn read(path: &Path, limit: u64) -> std::io::Result<Option<Secret>> {
    let mut text = Zeroizing::new(String::new());
    let read = fs::metadata(path).and_then(|metadata| {
        // A pipe or a device would keep the reader waiting.
        if !metadata.is_file() {
            return Err(std::io::Error::other("this is no file"));
        }
        File::open(path)?.take(limit).read_to_string(&mut text)
    });
    match read {
        Ok(_) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidData) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Mode bit of folders in which files belong to the users that made them.
const STICKY: u32 = 0o1000;

/// Fails if every user can replace our files: a tool that fetches the token from there would hand out another.
fn keep_strangers_out(folder: &Path) -> std::io::Result<()> {
    const BY_EVERYBODY: u32 = 0o002;
    let mode = fs::metadata(folder)?.mode();
    if mode & BY_EVERYBODY != 0 && mode & STICKY == 0 {
        return Err(std::io::Error::other("all users can write to the folder: run chmod 0700"));
    }
    Ok(())
}

/// Fails if a file that is written could not get its name. That is found out before the store changes: a rotated token that never gets into
/// the folder would die with the grace period. Gives the file to the folder's owner, if the administrator is another user.
fn can_replace(folder: &Path, file: &File, target: &Path) -> std::io::Result<()> {
    let folder = fs::metadata(folder)?;
    if file.metadata()?.uid() != folder.uid() {
        // Only root may do so, and only root needs to.
        drop(fchown(file, Some(folder.uid()), Some(folder.gid())));
    }
    let existing = match fs::symlink_metadata(target) {
        Ok(existing) => existing,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if existing.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let owner = file.metadata()?.uid();
    if folder.mode() & STICKY != 0 && ![existing.uid(), folder.uid()].contains(&owner) {
        return Err(std::io::Error::other(format!(
            "the file belongs to user {}, and only that user may replace it in this folder: remove it, or use another folder",
            existing.uid()
        )));
    }
    Ok(())
}

/// Removes what a crash has left of earlier attempts to write this token.
fn remove_leftovers(record: &TokenRecord, folder: &Path, now: UnixTime) -> Result<(), PublishError> {
    let files = files(record);
    for entry in fs::read_dir(folder).map_err(|source| io(folder, source))? {
        let entry = entry.map_err(|source| io(folder, source))?;
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| files.iter().any(|file| is_temporary(name, file))) {
            continue;
        }
        let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let modified = modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        if modified.is_some_and(|modified| now.as_secs() > modified.as_secs().saturating_add(LEFTOVER_SECONDS)) {
            drop(fs::remove_file(entry.path()));
        }
    }
    Ok(())
}

/// Returns whether a name is a temporary one of `file`.
fn is_temporary(name: &str, file: &str) -> bool {
    let random = name
        .strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(file))
        .and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".tmp"));
    random.is_some_and(|random| random.len() == TEMPORARY_BYTES * 2 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> Result<(), PublishError> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Some network file systems know nothing of it.
        Err(source) if source.kind() != ErrorKind::InvalidInput => Err(io(folder, source)),
        _ => Ok(()),
    }
}

fn io(path: &Path, source: std::io::Error) -> PublishError {
    PublishError::Io {
        path: path.to_owned(),
        source,
    }
}
