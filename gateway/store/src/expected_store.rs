//! Records of the store's identity and mark outside of it, so that another one, or an older one, in its place is detected.
//!
//! Only the store has what is revoked and spent. A store that was lost, emptied or restored from a backup would silently trust them again.
//! So each line of the attestation log has the store's mark. `store.mark` next to the store has it too, for the case that the log was
//! started again.

use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use serde::Deserialize;

#[cfg(any(feature = "kubernetes", feature = "etcd"))]
use super::Wrote;
use super::moved::Moved;
use super::{StoreError, StoreMark};

/// Name of the file next to the store with its id, and the mark when that was last written.
const MARK_FILE: &str = "store.mark";
/// Also next to the store. If one of them exists, there was a store, even if they do not name it.
const SEAL_KEY: &str = "seal.key";
const ATTESTATION_LOG: &str = "attestation.jsonl";
/// Bytes that are read from the log's end: more than its longest lines have.
const LOG_TAIL_BYTES: u64 = 4 * 1024 * 1024;
/// Number of the log's last lines that are read: those that were written together are in no order.
const LOG_TAIL_LINES: usize = 256;

/// Returns the path of the file that records a store's id and mark.
#[must_use]
pub fn mark_file(store: &Path) -> PathBuf {
    files::folder(store).join(MARK_FILE)
}

/// Content of a store's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreFile {
    /// The file is missing or empty.
    Nothing,
    Store(StoreMark),
    /// Its former id and mark, and the place that it was moved to.
    Moved(StoreMark, Moved),
}

/// Records of the store that should be there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedStore {
    pub file: Option<StoreMark>,
    /// Id and mark in the last lines of the attestation log.
    pub log: Option<StoreMark>,
    /// Files that are not there before there was a store.
    pub traces: Vec<PathBuf>,
    /// Where all this is.
    folder: PathBuf,
}

impl ExpectedStore {
    /// Reads the records next to a store.
    ///
    /// # Errors
    /// [`StoreError::Io`], and [`StoreError::Mark`] if `store.mark` holds something else.
    pub fn load(store: &Path) -> Result<Self, StoreError> {
        let file = read_mark(&mark_file(store))?;
        Ok(Self {
            file,
            ..Self::but_for_file(store)?
        })
    }

    /// Like [`ExpectedStore::load`], but ignores `store.mark`.
    pub(super) fn but_for_file(store: &Path) -> Result<Self, StoreError> {
        let folder = files::folder(store);
        let log = folder.join(ATTESTATION_LOG);
        let is_there = |path: &PathBuf| fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0);
        Ok(Self {
            file: None,
            log: last_of_log(&log).map_err(|source| StoreError::Io { path: log.clone(), source })?,
            traces: [folder.join(SEAL_KEY), log].into_iter().filter(is_there).collect(),
            folder: folder.to_owned(),
        })
    }

    /// Checks that the store that was found in this place is the known one.
    ///
    /// # Errors
    /// [`StoreError::Lost`], [`StoreError::Other`] and [`StoreError::Older`].
    pub(super) fn check(&self, place: &Path, found: &StoreFile) -> Result<(), StoreError> {
        // After `store accept` the log knows another store; what it says counts where nothing newer does.
        let expected = self.file.as_ref().or(self.log.as_ref());
        let found = match (found, expected) {
            (StoreFile::Moved(_, moved), _) => return Err(moved.error(place)),
            (StoreFile::Store(found), Some(known)) if found.id == known.id => found,
            (StoreFile::Nothing, None) => {
                return match self.traces.first() {
                    None => Ok(()),
                    Some(trace) => Err(StoreError::Lost {
                        path: place.to_owned(),
                        known: format!("{} exists", trace.display()),
                    }),
                };
            }
            // Put here with everything that belongs to it.
            (StoreFile::Store(_), None) => return Ok(()),
            (StoreFile::Nothing, Some(known)) => {
                return Err(StoreError::Lost {
                    path: place.to_owned(),
                    known: format!("{} names store {known}", self.source()),
                });
            }
            (StoreFile::Store(found), Some(known)) => {
                return Err(StoreError::Other {
                    path: place.to_owned(),
                    found: format!("store {found}"),
                    known: Box::new(known.clone()),
                    by: self.source(),
                });
            }
        };
        let by_log = self.log.as_ref().filter(|log| log.id == found.id);
        let furthest = self.file.iter().chain(by_log).max_by_key(|known| known.mark);
        match furthest {
            Some(known) if known.mark > found.mark => Err(StoreError::Older {
                path: place.to_owned(),
                found: found.mark,
                known: known.mark,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the numbers of commits that gateways with this state have made to a store, as far as is known. No other gateway raises these
    /// counters.
    #[cfg(any(feature = "kubernetes", feature = "etcd"))]
    pub(super) fn wrote(&self, id: &str) -> impl Iterator<Item = &Wrote> {
        let known = self.file.iter().chain(&self.log).filter(move |known| known.id == id);
        known.filter_map(|known| known.wrote.as_ref())
    }

    /// Like [`ExpectedStore::check`], to move the store to another place. A store that was moved already is checked by its former id; it also
    /// passes if its new id is the known one.
    pub(super) fn check_to_move(&self, place: &Path, found: &StoreFile) -> Result<(), StoreError> {
        match found {
            StoreFile::Moved(_, moved) if self.expected().is_some_and(|known| known.id == moved.id) => Ok(()),
            StoreFile::Moved(was, _) => self.check(place, &StoreFile::Store(was.clone())),
            other => self.check(place, other),
        }
    }

    /// The store that should be there, as far as it is known to have come.
    pub(super) fn expected(&self) -> Option<&StoreMark> {
        let expected = self.file.as_ref().or(self.log.as_ref())?;
        let by_log = self.log.as_ref().filter(|log| log.id == expected.id && log.mark > expected.mark);
        Some(by_log.unwrap_or(expected))
    }

    /// The highest mark that is known of any store.
    pub(super) fn furthest(&self) -> u64 {
        self.file.iter().chain(&self.log).map(|known| known.mark).max().unwrap_or(0)
    }

    /// The highest mark that is known of this store.
    #[cfg(any(feature = "kubernetes", feature = "etcd"))]
    pub(super) fn furthest_of(&self, id: &str) -> Option<u64> {
        let known = self.file.iter().chain(&self.log).filter(|known| known.id == id);
        known.map(|known| known.mark).max()
    }

    /// Returns the file that names the expected store.
    fn source(&self) -> String {
        let name = if self.file.is_some() { MARK_FILE } else { ATTESTATION_LOG };
        self.folder.join(name).display().to_string()
    }
}

fn read_mark(path: &Path) -> Result<Option<StoreMark>, StoreError> {
    let text = match files::read_text(path, SMALL_FILE_LIMIT_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(StoreError::Io {
                path: path.to_owned(),
                source,
            });
        }
    };
    serde_json::from_str(&text).map(Some).map_err(|source| StoreError::Mark {
        path: path.to_owned(),
        source,
    })
}

/// Writes the id and mark of the store from here on. The caller keeps others from doing so at the same time.
pub(super) fn replace_mark(store: &Path, mark: &StoreMark) -> Result<(), StoreError> {
    let path = mark_file(store);
    let text = serde_json::to_string(mark).map_err(|source| StoreError::Mark {
        path: path.clone(),
        source,
    })?;
    files::replace(&path, files::PRIVATE, &format!("{text}\n")).map_err(|error| StoreError::Io {
        path: error.path,
        source: error.source,
    })
}

/// Writes the mark of a store, unless the file has one that is at least as high. The caller keeps others from doing so at the same time.
pub(super) fn write_mark(store: &Path, mark: &StoreMark) -> Result<(), StoreError> {
    let path = mark_file(store);
    let known = read_mark(&path)?.filter(|known| known.id == mark.id);
    match known {
        Some(known) if known.says_as_much_as(mark) => Ok(()),
        // Somebody else's count, or none, beside a higher mark.
        Some(known) if known.mark > mark.mark => replace_mark(
            store,
            &StoreMark {
                mark: known.mark,
                ..mark.clone()
            },
        ),
        _ => replace_mark(store, mark),
    }
}

/// The store's mark in a line of the log.
#[derive(Deserialize)]
struct StoreStatement {
    store: Option<StoreMark>,
}

/// Returns the store's mark by the log's last lines. Skips a line that cannot be read: the auditor reports it.
fn last_of_log(path: &Path) -> std::io::Result<Option<StoreMark>> {
    let mut file = match files::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut tail = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut tail)?;
    let lines = tail.rsplit(|byte| *byte == b'\n').take(LOG_TAIL_LINES);
    let mut marks = lines.filter_map(|line| serde_json::from_slice::<StoreStatement>(line).ok()?.store);
    let Some(last) = marks.next() else { return Ok(None) };
    let same = marks.filter(|mark| mark.id == last.id).max_by_key(|mark| mark.mark);
    Ok(Some(match same {
        Some(higher) if higher.mark > last.mark => higher,
        _ => last,
    }))
}
