//! Closing of a segment, and the beginning of the next: after a kill at any step, the log continues where it was.
//!
//! The next file is written first, next to the log: a checkpoint of the same chain. Then the log gets the name of a segment, and the next
//! file that of the log. A next file that has not come so far is not part of the log.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use attest_system::files::folder;

use super::super::chain::{LineHash, link_of};
use super::super::reading::{FileLines, LineContent, rotated};
use super::super::segment_name::SegmentName;

/// Returns the path at which the next file is written.
#[must_use]
pub fn next_file(log: &Path) -> PathBuf {
    log.with_extension("next")
}

/// Returns the first line of a log, without its end; `None` if it has no whole line.
pub(in super::super) fn beginning(log: &Path) -> Result<Option<Vec<u8>>> {
    Ok(match FileLines::new(File::open(log)?, 0).read()? {
        Some(LineContent::Line(line)) => Some(line.to_owned()),
        _ => None,
    })
}

/// Writes the first lines of the next file, durably, at a path that readers ignore.
///
/// # Errors
/// The next file does not exist then.
pub(in super::super) fn begin_next(log: &Path, lines: &[u8]) -> Result<File> {
    discard_next(log)?;
    let begun = OpenOptions::new()
        .read(true)
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(next_file(log));
    let written = begun.and_then(|mut file| file.write_all(lines).and_then(|()| file.sync_all()).map(|()| file));
    written.inspect_err(|_| abandon(log))
}

/// Removes the next file, if it exists: otherwise its lines could be found twice.
pub(in super::super) fn discard_next(log: &Path) -> Result<()> {
    match fs::remove_file(next_file(log)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn abandon(log: &Path) {
    if let Err(error) = discard_next(log) {
        tracing::warn!(%error, "cannot remove temporary file {}; it is not part of the log and can be deleted", next_file(log).display());
    }
}

/// Closes the log, whose first line is given, and puts the next file in its place. Returns their folder: the names are durable when it is
/// synced.
///
/// # Errors
/// The log is unchanged, unless it could not be renamed back: then it counts as moved. The next file is removed.
pub(in super::super) fn close(log: &Path, first: &[u8]) -> Result<File> {
    // Once both have their names nothing is left that could fail.
    let closed = File::open(folder(log)).and_then(|folder| give_names(log, first).map(|()| folder));
    closed.inspect_err(|_| abandon(log))
}

fn give_names(log: &Path, first: &[u8]) -> Result<()> {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".{}", SegmentName::from_first_line(first)));
    let segment = PathBuf::from(name);
    for there in [&segment, &super::zipped(&segment)] {
        if fs::symlink_metadata(there).is_ok() {
            return Err(std::io::Error::new(ErrorKind::AlreadyExists, there.display().to_string()));
        }
    }
    fs::rename(log, &segment)?;
    fs::rename(next_file(log), log).inspect_err(|_| drop(fs::rename(&segment, log)))
}

/// Completes or undoes a closing during which the gateway was killed, before the log is opened.
pub(in super::super) fn finish_closing(log: &Path) -> Result<()> {
    let next = next_file(log);
    let first = match beginning(&next) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        first => first?,
    };
    let is_closed = fs::symlink_metadata(log).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    if is_closed && first.map_or(Ok(false), |first| is_next(log, &first))? {
        fs::rename(&next, log)?;
    } else {
        fs::remove_file(&next)?;
    }
    sync(log)
}

/// Returns whether a file next to the log ends with the line before this one. It does not if the closing had failed, and the log was
/// written on.
fn is_next(log: &Path, first: &[u8]) -> Result<bool> {
    let Ok(Some(link)) = link_of(first) else {
        return Ok(false);
    };
    let files = rotated(log)?;
    let mut before = files.iter().rev().filter(|file| file.begins_before(&link.id, link.number));
    // One that cannot be read to its end was not closed just now.
    Ok(before.any(|file| {
        file.last_line()
            .is_ok_and(|last| last.is_some_and(|last| LineHash::of(&last) == link.previous))
    }))
}

fn sync(log: &Path) -> Result<()> {
    File::open(folder(log))?.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::super::chain::{ChainBeginning, ChainProgress, Why};
    use super::*;

    const NAME: &str = "19700101T000000Z-00000000-000000000000";

    struct Site {
        folder: tempfile::TempDir,
        log: PathBuf,
    }

    impl Site {
        fn new(text: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("attestation.jsonl");
            fs::write(&log, text).unwrap();
            Self { folder, log }
        }

        /// Creates a log that was moved or closed, with this next file.
        fn moved(log: &str, next: &str) -> Self {
            let site = Self::new(log);
            fs::rename(&site.log, site.folder.path().join(format!("attestation.jsonl.{NAME}"))).unwrap();
            fs::write(next_file(&site.log), next).unwrap();
            site
        }

        /// Returns the files and their contents, by name.
        fn files(&self) -> Vec<(String, String)> {
            let entries = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap());
            let read = entries.map(|entry| {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                (entry.file_name().into_string().unwrap(), text)
            });
            let mut files: Vec<_> = read.collect();
            files.sort();
            files
        }
    }

    /// Returns lines of a log, and the line that comes next.
    fn lines() -> (String, String) {
        let (why, before, after) = (Why::New, None, Vec::new());
        let mut chain = ChainProgress::begin(ChainBeginning { why, before, after }).unwrap();
        let mut line = || String::from_utf8(chain.link(b"{\"at\":1}").unwrap()).unwrap();
        (line() + &line(), line())
    }

    fn close_with(log: &Path, lines: &[u8]) -> Result<File> {
        begin_next(log, lines)?;
        close(log, b"a")
    }

    fn files(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn closing_renames_the_log_and_starts_the_next() {
        let site = Site::new("a\nb\n");
        let close = |lines: &[u8]| close_with(&site.log, lines);
        close(b"c\n").unwrap();
        let name = format!("attestation.jsonl.{NAME}");
        let segment = site.folder.path().join(&name);
        assert_eq!(site.files(), files(&[("attestation.jsonl", "c\n"), (&name, "a\nb\n")]));
        finish_closing(&site.log).unwrap();
        assert_eq!(site.files().len(), 2);
        // Nothing is written over.
        assert_eq!(close(b"d\n").unwrap_err().kind(), ErrorKind::AlreadyExists);
        fs::rename(&segment, crate::segments::zipped(&segment)).unwrap();
        assert_eq!(close(b"d\n").unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&site.log).unwrap(), "c\n");
    }

    #[test]
    fn closing_killed_at_any_step_is_atomic() {
        // The next one is written, or a part of it.
        for part in ["", "c", "c\n"] {
            let site = Site::new("a\nb\n");
            fs::write(next_file(&site.log), part).unwrap();
            finish_closing(&site.log).unwrap();
            assert_eq!(site.files(), files(&[("attestation.jsonl", "a\nb\n")]), "{part:?}");
        }
        // And the log has its other name.
        let (closed, next) = lines();
        let site = Site::moved(&closed, &next);
        finish_closing(&site.log).unwrap();
        assert_eq!(
            site.files(),
            files(&[("attestation.jsonl", &next), (&format!("attestation.jsonl.{NAME}"), &closed)])
        );
    }

    #[test]
    fn discards_a_next_file_that_does_not_follow() {
        let (closed, next) = lines();
        let (other, _) = lines();
        let shorter = &closed[..=closed.find('\n').unwrap()];
        for (closed, next) in [
            // The closing had failed, and the log was written on, and moved.
            (format!("{closed}{next}"), next.as_str()),
            (shorter.to_owned(), &next),
            (other, &next),
            ("a\n".to_owned(), &next),
            (closed.clone(), &next[..next.len() - 1]),
            (closed, "c\n"),
        ] {
            let site = Site::moved(&closed, next);
            finish_closing(&site.log).unwrap();
            assert_eq!(site.files(), files(&[(&format!("attestation.jsonl.{NAME}"), &closed)]));
        }
    }

    #[test]
    fn failed_close_leaves_the_log_unchanged() {
        // In the place of the next one there is a folder.
        let site = Site::new("a\nb\n");
        fs::create_dir(next_file(&site.log)).unwrap();
        close_with(&site.log, b"c\n").unwrap_err();
        assert_eq!(fs::read_to_string(&site.log).unwrap(), "a\nb\n");
        // The log is gone: nothing can be renamed, and nothing of the next one stays.
        let site = Site::new("a\nb\n");
        fs::remove_file(&site.log).unwrap();
        close_with(&site.log, b"c\n").unwrap_err();
        assert_eq!(site.files(), []);
    }

    #[test]
    fn first_line_must_be_complete() {
        assert_eq!(beginning(&Site::new("a\nb\n").log).unwrap().unwrap(), b"a");
        assert_eq!(beginning(&Site::new("a").log).unwrap(), None);
        assert_eq!(beginning(&Site::new("").log).unwrap(), None);
    }
}
