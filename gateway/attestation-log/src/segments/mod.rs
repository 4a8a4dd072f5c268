//! Segments: closed files of the log. The file that is written has the log's name.

mod closing;
mod compression;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use closing::next_file;
pub(super) use closing::{begin_next, beginning, close, discard_next, finish_closing};
pub(super) use compression::{Aside, Compression, unfinished};

use super::segment_name::SegmentName;

/// Limits at which a segment is closed, and its age when it is compressed. They are checked whenever a checkpoint is due, so a segment may
/// become larger, and older.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentLimits {
    /// Size in bytes at which it is closed.
    pub bytes: u64,
    /// Age of its first line at which it is closed.
    pub age: Duration,
    /// Time for which a closed segment stays uncompressed: programs that follow the log's files do not read compressed ones.
    pub compress_after: Duration,
}

impl SegmentLimits {
    /// Limits that are never reached.
    pub const NEVER: Self = Self {
        bytes: u64::MAX,
        age: Duration::MAX,
        compress_after: Duration::ZERO,
    };

    /// Returns whether a log of so many bytes, which began at one second and has come to another, is to be closed.
    pub(super) const fn are_reached(&self, bytes: u64, began: u64, now: u64) -> bool {
        bytes >= self.bytes || now.saturating_sub(began) >= self.age.as_secs()
    }
}

/// A closed segment of a log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Segment {
    pub(super) name: SegmentName,
    pub(super) path: PathBuf,
    /// Set if it is compressed.
    pub(super) zipped: bool,
}

/// Returns the closed segments of a log, by their names. A segment that exists twice, because it is being compressed, is returned once.
/// Entries with such a name that are not files are left out.
pub(super) fn closed(log: &Path) -> io::Result<Vec<Segment>> {
    let mut found = named(log)?;
    found.retain(|segment| segment.path.is_file());
    // The one that was there first is whole.
    found.dedup_by(|later, earlier| later.name == earlier.name);
    Ok(found)
}

/// Returns everything with the name of a closed segment of a log.
pub(super) fn named(log: &Path) -> io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(attest_system::files::folder(log)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        // As the log itself is named.
        let path = log.with_file_name(entry?.file_name());
        found.extend(Segment::from_path(log, path));
    }
    found.sort();
    Ok(found)
}

/// Returns the files of a log's closed segments, in the order in which they were written.
///
/// # Errors
/// Their folder's.
pub fn closed_segments(log: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(closed(log)?.into_iter().map(|segment| segment.path).collect())
}

impl Segment {
    fn from_path(log: &Path, path: PathBuf) -> Option<Self> {
        let rest = path.file_name()?.to_str()?.strip_prefix(log.file_name()?.to_str()?)?;
        let name = SegmentName::parse(rest)?;
        let zipped = rest.ends_with(".gz");
        Some(Self { name, path, zipped })
    }
}

/// Returns the path of a segment when it is compressed.
fn zipped(segment: &Path) -> PathBuf {
    let mut name = segment.as_os_str().to_owned();
    name.push(".gz");
    name.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn segment_closes_at_its_size_or_age_limit() {
        let limits = SegmentLimits {
            bytes: 100,
            age: Duration::from_secs(10),
            compress_after: Duration::ZERO,
        };
        for (bytes, began, now, reached) in [
            (99, 50, 59, false),
            (100, 50, 50, true),
            (1, 50, 60, true),
            // The clock was set back.
            (1, 50, 40, false),
        ] {
            assert_eq!(limits.are_reached(bytes, began, now), reached, "{bytes} {began} {now}");
        }
    }

    fn fifo(path: &Path) {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    }

    #[test]
    fn lists_each_segment_once_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        let names = [
            "attestation.jsonl",
            "attestation.jsonl.1",
            "attestation.jsonl-20261122",
            "attestation.jsonl.20261122T000000Z-0a0a0a0a-000000000008.gz",
            "attestation.jsonl.20261122T000000Z-0a0a0a0a-000000000008",
            "attestation.jsonl.20261121T000000Z-0a0a0a0a-000000000001.gz",
            "attestation.jsonl.20261122T000000Z-0a0a0a0a-000000000008.gz.new",
            "other.jsonl.20261122T000000Z-0a0a0a0a-000000000009",
        ];
        for name in names {
            fs::write(folder.path().join(name), "").unwrap();
        }
        // What would have to be compressed, and is no file.
        let odd = "attestation.jsonl.20261122T000000Z-0a0a0a0a-00000000000";
        fs::create_dir(folder.path().join(format!("{odd}1"))).unwrap();
        fifo(&folder.path().join(format!("{odd}2")));
        let found: Vec<PathBuf> = closed(&log).unwrap().into_iter().map(|segment| segment.path).collect();
        assert_eq!(found, [names[5], names[4]].map(|name| folder.path().join(name)));
        assert!(closed(Path::new("/nowhere/attestation.jsonl")).unwrap().is_empty());
        let spelled = folder
            .path()
            .join(".")
            .join("../")
            .join(folder.path().file_name().unwrap())
            .join("attestation.jsonl");
        assert!(
            closed_segments(&spelled)
                .unwrap()
                .iter()
                .all(|segment| segment.parent() == spelled.parent())
        );
    }
}
