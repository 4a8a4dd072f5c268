//! Lines that a newer release has written: this one does not misread them.

use std::path::{Path, PathBuf};

use attest_system::newer_format::NewerFormat;

use super::record::VERSION;

/// Error for a log that only newer releases read.
#[derive(Debug, thiserror::Error)]
#[error("{path} has {newer}")]
pub struct NewerLog {
    pub path: PathBuf,
    #[source]
    pub newer: NewerFormat,
}

impl NewerLog {
    /// Checks a line of a log. Accepts text that is no line of a log: other code reports it.
    ///
    /// # Errors
    /// [`NewerLog`].
    pub fn check_line(path: &Path, line: &[u8]) -> Result<(), Self> {
        // Each line of this release begins like this, and need not be parsed for its version.
        if line.starts_with(b"{\"v\":1,") {
            return Ok(());
        }
        match NewerFormat::in_json("log entry version", VERSION.into(), line) {
            Some(newer) => Err(Self {
                path: path.to_owned(),
                newer,
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_release_begins_its_lines_with_the_version() {
        assert_eq!(VERSION, 1, "NewerLog::check_line names it, too");
        let newer = |line: &str| NewerLog::check_line(Path::new("log"), line.as_bytes()).is_err();
        assert!(newer(r#"{"at":1,"v":2}"#) && newer(r#"{"v":10,"at":1}"#));
        assert!(!newer(r#"{"v":1,"at":1}"#) && !newer(r#"{"at":1}"#) && !newer("torn"));
    }
}
