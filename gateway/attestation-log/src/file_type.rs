//! The file type of a folder's entry.

use std::fs::FileType;
use std::io::Result;

/// Returns whether this is a file: other types are never made under such a name.
pub(super) fn is_file(kind: Result<FileType>) -> bool {
    kind.is_ok_and(|kind| kind.is_file())
}
