//! Files of a log, with the closed and the rotated ones, in the order in which they were written: all readers use this list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use attest_system::files::folder;

use super::LogReadError;
use super::chain_start::{ChainStart, FileBeginning};
use super::lines::{FileLines, LineContent};
use super::shared_file::{Bytes, SharedFile, is_zipped};
use crate::segment_name::SegmentName;

/// First part of the names of a log's files, also of rotated ones.
const NAME: &str = "attestation.jsonl";
/// Endings of the names of files that are being made.
const UNFINISHED: [&str; 2] = [".new", ".part"];
/// Most closed segments that are held open at once. Others are found again by their names, even if they were compressed since.
const HELD_LIMIT: usize = 256;
/// Time by which a clock may have been set back within a log, in seconds.
const CLOCKS_DIFFER_SECONDS: u64 = 24 * 3600;

/// A file of the log.
#[derive(Debug, Clone)]
pub struct LogFile {
    path: PathBuf,
    pub(super) begins: FileBeginning,
    /// The file that was found: by now another file may have its name.
    held: Option<SharedFile>,
}

/// Files of a log that were found.
#[derive(Debug, Default)]
pub struct LogFiles {
    /// Readable files in the order of their lines.
    pub files: Vec<LogFile>,
    /// Errors of files that cannot be read, and so have no place in the order.
    pub unreadable: Vec<LogReadError>,
}

/// Returns the log's files: the one that is written, and the rotated ones next to it. Files without a line, and copies of others, are left
/// out.
///
/// # Errors
/// The folder's.
pub fn log_files(log: &Path) -> Result<LogFiles, LogReadError> {
    let mut listed = all_log_files(log)?;
    listed.drop_copies(log);
    // Whatever the clock said.
    listed.files.sort_by_key(|file| file.path == log);
    Ok(listed)
}

/// Returns the files of these paths; of a folder all files of its log, without copies of others.
///
/// # Errors
/// A folder's.
pub fn files_of(paths: &[PathBuf]) -> Result<LogFiles, LogReadError> {
    let mut listed = LogFiles::default();
    for path in paths {
        if path.is_dir() {
            let log = path.join(NAME);
            let mut beside = all_log_files(&log)?;
            beside.drop_copies(&log);
            listed.files.append(&mut beside.files);
            listed.unreadable.append(&mut beside.unreadable);
        } else {
            match LogFile::from_path(path) {
                Ok(file) => listed.files.push(file),
                Err(source) => listed.unreadable.push(LogReadError::at(path)(source)),
            }
        }
    }
    order(&mut listed.files);
    Ok(listed)
}

/// Returns the log and all files next to it whose names begin with its own. A file that exists twice, for example while it is compressed,
/// is listed twice.
pub(super) fn all_log_files(log: &Path) -> Result<LogFiles, LogReadError> {
    let mut listed = settled(|| names(log)).map_err(LogReadError::at(folder(log)))?;
    order(&mut listed.files);
    Ok(listed)
}

/// Returns the files to verify for a path: for a folder all files of its log, also copies; for a log also its closed segments. If a segment
/// exists packed and unpacked, only the unpacked file is returned.
///
/// # Errors
/// [`LogReadError`], of the path and of the folder; of files in it, they are listed.
pub fn files_to_verify(path: &Path) -> Result<LogFiles, LogReadError> {
    let is_folder = fs::metadata(path).map_err(LogReadError::at(path))?.is_dir();
    let log = if is_folder { path.join(NAME) } else { path.to_owned() };
    let LogFiles { mut files, mut unreadable } = all_log_files(&log)?;
    let is_asked_for = |found: &Path| is_folder || found == log || log_of_segment(found).is_some_and(|of| of == log);
    unreadable.retain(|error| is_asked_for(&error.path));
    files.retain(|file| is_asked_for(&file.path));
    let is_listed = files.iter().any(|file| file.path == log) || unreadable.iter().any(|error| error.path == log);
    if !is_folder && !is_listed {
        // Whatever it is: it was named.
        files.push(LogFile::from_path(path).map_err(LogReadError::at(path))?);
    }
    let unpacked: BTreeSet<PathBuf> = files.iter().map(|file| file.path.clone()).filter(|path| !is_zipped(path)).collect();
    files.retain(|file| !(file.is_segment() && is_zipped(&file.path) && unpacked.contains(&file.path.with_extension(""))));
    Ok(LogFiles { files, unreadable })
}

/// Returns the file that was begun next after one with this beginning; the one that is written comes after all others.
pub(super) fn next_of(mut files: Vec<LogFile>, begins: &FileBeginning, log: &Path) -> Option<LogFile> {
    let place = files.iter().position(|file| file.begins == *begins);
    let next = match place {
        Some(place) => Some(place + 1),
        None => files.iter().position(|file| file.begins.is_after(begins) || file.path == log),
    };
    next.filter(|next| *next < files.len()).map(|next| files.swap_remove(next))
}

/// Lists the files of one moment: a file may be closed, moved, compressed or removed meanwhile, and then they are listed again.
fn settled(mut names: impl FnMut() -> io::Result<Vec<PathBuf>>) -> io::Result<LogFiles> {
    loop {
        let found = names()?;
        let listed = LogFiles::from_paths(&found);
        if names()? == found && listed.has_its_names() {
            return Ok(listed);
        }
    }
}

fn names(log: &Path) -> io::Result<Vec<PathBuf>> {
    let own = log.file_name().unwrap_or_default().as_encoded_bytes();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder(log))? {
        let name = entry?.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(own) && !UNFINISHED.iter().any(|end| bytes.ends_with(end.as_bytes())) {
            // As the log itself is named.
            names.push(log.with_file_name(name));
        }
    }
    names.sort();
    Ok(names)
}

/// Orders files by their chains, and chains by the time of their first file. Files of a chain are ordered by their numbers, whatever the
/// clock said.
fn order(files: &mut [LogFile]) {
    let mut began: BTreeMap<String, u64> = BTreeMap::new();
    for FileBeginning { at, chain, .. } in files.iter().map(|file| &file.begins) {
        if let Some(ChainStart { id, .. }) = chain {
            let first = began.entry(id.clone()).or_insert(*at);
            *first = (*at).min(*first);
        }
    }
    files.sort_by_cached_key(|LogFile { path, begins, .. }| {
        let FileBeginning { at, id, chain, .. } = begins.clone();
        let (chain, number) = chain.map_or((String::new(), 0), |place| (place.id, place.number));
        (began.get(&chain).copied().unwrap_or(at), chain, number, at, id, path.clone())
    });
}

impl LogFiles {
    /// Returns whether none of them was moved since it was opened. Programs that rotate by numbers give each file the name of another.
    fn has_its_names(&self) -> bool {
        self.files.iter().all(LogFile::has_its_name)
    }

    /// Keeps the longest of files that begin with the same line, because the others were copied, packed or unpacked before it was complete.
    /// Empty files are dropped. The log itself stays in any case.
    fn drop_copies(&mut self, log: &Path) {
        let mut kept: Vec<LogFile> = Vec::new();
        for file in self.files.drain(..).filter(LogFile::holds_something) {
            match kept.last_mut().filter(|last| last.begins == file.begins) {
                Some(last) if last.path != log && (file.path == log || file.length() > last.length()) => *last = file,
                Some(_) => {}
                None => kept.push(file),
            }
        }
        self.files = kept;
    }

    fn from_paths(paths: &[PathBuf]) -> Self {
        let (mut listed, mut held) = (Self::default(), 0);
        for path in paths {
            // What is beside the log and no file is none of its own.
            let found = fs::metadata(path).and_then(|metadata| metadata.is_file().then(|| LogFile::from_path(path)).transpose());
            match found {
                Ok(Some(mut file)) => {
                    held += usize::from(file.is_segment());
                    if file.is_segment() && held > HELD_LIMIT {
                        file.held = None;
                    }
                    listed.files.push(file);
                }
                Ok(None) => {}
                Err(source) => listed.unreadable.push(LogReadError::at(path)(source)),
            }
        }
        listed
    }
}

impl LogFile {
    fn from_path(path: &Path) -> io::Result<Self> {
        let opened = SharedFile::open(path)?;
        let begins = match FileBeginning::read(&opened) {
            // While it is being compressed there may be nothing yet.
            Err(_) if opened.is_zipped() && path.with_extension("").exists() => FileBeginning::default(),
            begins => begins?,
        };
        Ok(Self {
            path: path.to_owned(),
            begins,
            held: Some(opened),
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether all of its contents were written before this second, according to the file that begins after it. A day of tolerance
    /// is added, because clocks are set.
    #[must_use]
    pub fn is_over_before(&self, at: u64, next: &Self) -> bool {
        let chains = self.begins.chain.iter().zip(&next.begins.chain);
        let is_one_chain = chains
            .into_iter()
            .any(|(here, there)| here.id == there.id && here.number < there.number);
        is_one_chain && next.begins.at.saturating_add(CLOCKS_DIFFER_SECONDS) < at
    }

    /// Returns the open file, or opens it by its name.
    pub(super) fn opened(&self) -> io::Result<SharedFile> {
        self.held.clone().map_or_else(|| SharedFile::find(&self.path), Ok)
    }

    fn has_its_name(&self) -> bool {
        self.held.as_ref().is_none_or(|held| held.is_at(&self.path).unwrap_or(false))
    }

    fn is_segment(&self) -> bool {
        log_of_segment(&self.path).is_some()
    }

    /// Returns device and inode of the file, whatever its name is.
    ///
    /// # Errors
    /// The file's.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let metadata = self.opened()?.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Returns a reader of its contents, uncompressed.
    ///
    /// # Errors
    /// The file's.
    pub fn open(&self) -> io::Result<BufReader<Bytes>> {
        Ok(BufReader::new(self.opened()?.bytes(0)?))
    }

    fn holds_something(&self) -> bool {
        self.begins.at > 0
    }

    /// Returns the number of bytes that can be read of it, uncompressed.
    fn length(&self) -> u64 {
        let measured = self.opened().and_then(|opened| match opened.is_zipped() {
            true => Ok(readable(opened.bytes(0)?)),
            false => Ok(opened.metadata()?.len()),
        });
        measured.unwrap_or(0)
    }

    /// Returns its lines from this byte of its uncompressed contents on.
    ///
    /// # Errors
    /// The file's.
    pub fn lines(&self, offset: u64) -> io::Result<FileLines<Bytes>> {
        Ok(FileLines::new(self.opened()?.bytes(offset)?, offset))
    }

    /// Calls `each` with each of its lines.
    ///
    /// # Errors
    /// [`LogReadError`].
    pub fn each_line(&self, mut each: impl FnMut(&[u8])) -> Result<(), LogReadError> {
        let mut read = || {
            let mut lines = self.lines(0)?;
            while let Some(found) = lines.read()? {
                if let LineContent::Line(line) = found {
                    each(line);
                }
            }
            Ok(())
        };
        read().map_err(LogReadError::at(&self.path))
    }
}

/// Returns the path of the log that a closed segment belongs to.
fn log_of_segment(path: &Path) -> Option<PathBuf> {
    let unpacked = if is_zipped(path) {
        path.with_extension("")
    } else {
        path.to_owned()
    };
    let name = unpacked.extension()?.to_str()?;
    name.parse::<SegmentName>().ok()?;
    Some(unpacked.with_extension(""))
}

/// Returns the number of bytes up to the end, or to damage.
fn readable(bytes: Bytes) -> u64 {
    let (mut reader, mut length) = (BufReader::new(bytes), 0_u64);
    while let Ok(chunk) = reader.fill_buf()
        && !chunk.is_empty()
    {
        let read = chunk.len();
        length = length.saturating_add(u64::try_from(read).unwrap_or(0));
        reader.consume(read);
    }
    length
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests;
