//! The files of a log, also those that were rotated, in the order in which they were written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;

use super::ReadError;
use super::lines::{Found, Lines};
use crate::files::folder;

/// What the name of a log's file begins with, also after it was rotated.
const NAME: &str = "attestation.jsonl";
/// What the names of files end with that are being made.
const UNFINISHED: [&str; 2] = [".new", ".part"];

/// What gives the bytes of a file, as they were written.
pub(super) type Bytes = Box<dyn Read + Send>;

/// How a file begins: by its first line, which no other file of the log has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Begins {
    /// Of a file without a line 0.
    at: u64,
    id: String,
    /// Which line of which chain; of older releases none.
    chain: Option<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Place {
    id: String,
    number: u64,
}

impl Begins {
    /// Whether it comes after the other one: in a chain by its number, whatever the clock said.
    fn is_after(&self, other: &Self) -> bool {
        match (&self.chain, &other.chain) {
            (Some(here), Some(there)) if here.id == there.id => here.number > there.number,
            _ => self.at >= other.at && self != other,
        }
    }
}

/// A file of the log.
#[derive(Debug, Clone)]
pub struct LogFile {
    path: PathBuf,
    pub(super) begins: Begins,
}

/// Of a line, what orders files.
#[derive(Deserialize)]
struct First {
    at: u64,
    #[serde(default)]
    id: String,
    chain: Option<Place>,
}

/// The log's files: the one that is written, and those beside it that were rotated. A file that holds no line is none of them.
///
/// # Errors
/// [`ReadError`].
pub fn files_beside(log: &Path) -> Result<Vec<LogFile>, ReadError> {
    let mut found = in_folder(folder(log))?;
    // Of one that is there twice, because it is being copied or compressed, the whole one counts.
    found.sort_by_key(|file| (file.is_zipped(), file.path != log));
    order(&mut found);
    found.dedup_by(|later, earlier| later.begins == earlier.begins);
    // Whatever the clock said.
    found.sort_by_key(|file| file.path == log);
    Ok(found)
}

/// The one of these that was begun next after one that begins so; the one that is written comes after all others.
pub(super) fn next_of(mut files: Vec<LogFile>, begins: &Begins, log: &Path) -> Option<LogFile> {
    let place = files.iter().position(|file| file.begins == *begins);
    let next = match place {
        Some(place) => Some(place + 1),
        None => files.iter().position(|file| file.begins.is_after(begins) || file.path == log),
    };
    next.filter(|next| *next < files.len()).map(|next| files.swap_remove(next))
}

/// By their chains, which come by the time of the first file that there is of each; within one by their numbers.
fn order(files: &mut [LogFile]) {
    let mut began: BTreeMap<String, u64> = BTreeMap::new();
    for Begins { at, chain, .. } in files.iter().map(|file| &file.begins) {
        if let Some(Place { id, .. }) = chain {
            let first = began.entry(id.clone()).or_insert(*at);
            *first = (*at).min(*first);
        }
    }
    files.sort_by_key(|LogFile { begins, .. }| match &begins.chain {
        Some(Place { id, number }) => (began.get(id).copied().unwrap_or(begins.at), *number, id.clone()),
        None => (begins.at, 0, begins.id.clone()),
    });
}

/// The files of these paths; of a folder all that are a log's.
///
/// # Errors
/// [`ReadError`], also of a folder that holds none.
pub fn files_of(paths: &[PathBuf]) -> Result<Vec<LogFile>, ReadError> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(in_folder(path)?);
        } else {
            found.push(LogFile::of(path)?);
        }
    }
    order(&mut found);
    Ok(found)
}

fn in_folder(folder: &Path) -> Result<Vec<LogFile>, ReadError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(ReadError::at(folder))? {
        let entry = entry.map_err(ReadError::at(folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(NAME) || UNFINISHED.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        match LogFile::of(&entry.path()) {
            Ok(file) if file.holds_something() => found.push(file),
            Ok(_) => {}
            // Rotated or removed since it was listed.
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

impl LogFile {
    fn of(path: &Path) -> Result<Self, ReadError> {
        let file = Self {
            path: path.to_owned(),
            begins: Begins::default(),
        };
        let begins = file.first().map_err(ReadError::at(path))?;
        Ok(Self { begins, ..file })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_zipped(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "gz")
    }

    fn holds_something(&self) -> bool {
        self.begins.at > 0
    }

    /// By its first line; by the file's date where that is no record.
    fn first(&self) -> io::Result<Begins> {
        let mut lines = self.lines(0)?;
        let line = match lines.read() {
            Ok(Some(Found::Line(line))) => line,
            Ok(Some(Found::TooLong(_))) => b"",
            // Of a file that is being compressed there may be nothing yet.
            Err(error) if !self.is_zipped() => return Err(error),
            Err(_) | Ok(None | Some(Found::Cut)) => return Ok(Begins::default()),
        };
        if let Ok(First { at, id, chain }) = serde_json::from_slice(line) {
            return Ok(Begins { at: at.max(1), id, chain });
        }
        let modified = fs::metadata(&self.path)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Begins {
            at: modified.as_secs().max(1),
            ..Begins::default()
        })
    }

    /// Its lines from this byte on, of what it holds uncompressed.
    ///
    /// # Errors
    /// The file's.
    pub fn lines(&self, offset: u64) -> io::Result<Lines<Bytes>> {
        let file = File::open(&self.path)?;
        Ok(Lines::new(self.from(file, offset)?, offset))
    }

    /// What this file holds from that byte on; what is appended later, too.
    pub(super) fn from(&self, file: File, offset: u64) -> io::Result<Bytes> {
        if self.is_zipped() {
            let mut bytes = MultiGzDecoder::new(file);
            io::copy(&mut Read::by_ref(&mut bytes).take(offset), &mut io::sink())?;
            return Ok(Box::new(bytes));
        }
        Ok(Box::new(From { file, offset }))
    }
}

/// A file from one byte on, whoever else reads it.
struct From {
    file: File,
    offset: u64,
}

impl Read for From {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset = self.offset.saturating_add(u64::try_from(read).unwrap_or(0));
        Ok(read)
    }
}
