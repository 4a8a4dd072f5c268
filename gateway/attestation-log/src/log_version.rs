//! Version of a log, by its last line.

use std::fs;
use std::io;
use std::path::Path;

use super::log_end::lines_from_end;
use super::newer_log::NewerLog;
use super::reading;

/// Returns the error of a log whose last whole line is a newer release's: no release writes after such lines.
///
/// # Errors
/// The files'. A log that does not exist is no error, and neither is anything but a file in its place: who opens it reports that.
pub fn newer_log(log: &Path) -> io::Result<Option<NewerLog>> {
    let last = match fs::metadata(log) {
        Ok(found) if found.is_file() => lines_from_end(log)?.next().transpose()?,
        _ => None,
    };
    // An empty one goes on where the file ends that was closed before it.
    let last = match last {
        None => reading::last_line(&reading::rotated(log)?),
        last => last,
    };
    Ok(last.and_then(|line| NewerLog::check_line(log, &line).err()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_newer_last_line_is_found_in_the_log_or_in_the_segment_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        let known = r#"{"v":1,"at":7}"#;
        let newer = r#"{"v":2,"at":8,"release":"0.2.0"}"#;
        let found = || newer_log(&log).unwrap().map(|error| error.to_string());
        assert_eq!(found(), None);
        for text in [
            String::new(),
            format!("{known}\n"),
            format!("{newer}\n{known}\n"),
            format!("{known}\n{newer}"),
        ] {
            fs::write(&log, &text).unwrap();
            assert_eq!(found(), None, "{text}");
        }
        let said = format!(
            "{} has log entry version 2, and release {} reads 1: run release 0.2.0 or a newer one",
            log.display(),
            env!("CARGO_PKG_VERSION")
        );
        fs::write(&log, format!("{known}\n{newer}\ntorn")).unwrap();
        assert_eq!(found(), Some(said.clone()));
        fs::write(&log, "").unwrap();
        let segment = log.with_extension("jsonl.1");
        fs::write(&segment, format!("{known}\n{newer}\n")).unwrap();
        assert_eq!(found(), Some(said));
    }
}
