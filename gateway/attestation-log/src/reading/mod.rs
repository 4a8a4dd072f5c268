//! Reading of the log: line by line, over all of its files, in bounded memory, and further as it grows. A reader does not block the writer.

mod chain_start;
mod files;
mod follower;
mod last;
mod lines;
mod rotated;
mod shared_file;

pub use files::{LogFile, LogFiles, files_of, files_to_verify, log_files};
pub use follower::{FollowedLine, LogFollower, Position};
pub use last::last_of;
pub use lines::{FileLines, LINE_LIMIT_BYTES, LineContent};
pub(super) use rotated::{last_line, lines_of, rotated, try_rotated};
pub use shared_file::Bytes;

use std::io;
use std::path::{Path, PathBuf};

/// A file of the log cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}{}", hint(source))]
pub struct LogReadError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

impl LogReadError {
    /// Returns whether the file cannot be read, or not further, even if it is tried again: it is gone, or its contents are damaged.
    #[must_use]
    pub fn is_for_good(&self) -> bool {
        follower::is_for_good(&self.source)
    }

    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { path, source }
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; only the gateway's user may read the log: run the command as that user or as root",
        _ => "",
    }
}
