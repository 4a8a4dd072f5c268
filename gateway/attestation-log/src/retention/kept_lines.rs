//! Lines that stay when their segment is removed, in a file next to the log. They are appended before the removal, and only once, even
//! after a kill.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use attest_system::files::folder;

use super::super::chain::LineHash;
use super::super::log_end::{end_of_last_line, last_line};
use super::super::reading::{LineContent, lines_of};
use super::content::is_kept;
use super::{RetentionError, kept_file};

/// Appends, durably, the lines of this segment that are kept, which have these hashes, and that the file does not have yet.
pub(super) fn keep(log: &Path, segment: &Path, hashes: &[LineHash]) -> Result<(), RetentionError> {
    let path = kept_file(log);
    let at = RetentionError::at(&path);
    let (file, there) = open(&path, hashes).map_err(at)?;
    let mut lines = lines_of(segment).map_err(RetentionError::at(segment))?;
    let (mut to, mut number) = (BufWriter::new(&file), 0);
    while let Some(LineContent::Line(line)) = lines.read().map_err(RetentionError::at(segment))? {
        if !is_kept(line) {
            continue;
        }
        number += 1;
        if number > there {
            let written = to.write_all(line).and_then(|()| to.write_all(b"\n"));
            written.map_err(RetentionError::at(&path))?;
        }
    }
    let synced = to.flush().and_then(|()| file.sync_all());
    let synced = synced.and_then(|()| File::open(folder(&path))?.sync_all());
    drop(to);
    synced.map_err(RetentionError::at(&path))
}

/// Opens the file, without a line that a kill has left incomplete. Returns it with the number of these lines that it ends with.
fn open(path: &Path, hashes: &[LineHash]) -> io::Result<(File, usize)> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let length = file.metadata()?.len();
    let whole = end_of_last_line(&mut file, length)?;
    if whole < length {
        file.set_len(whole)?;
    }
    let last = last_line(&mut file)?.map(|last| LineHash::of(&last));
    let there = last.and_then(|last| hashes.iter().rposition(|hash| *hash == last));
    Ok((file, there.map_or(0, |index| index + 1)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn kept_lines_are_stored_once_despite_a_kill() {
        let folder = tempfile::tempdir().unwrap();
        let (log, segment) = (folder.path().join("attestation.jsonl"), folder.path().join("segment"));
        let lines = [
            r#"{"checkpoint":{"a":1}}"#,
            r#"{"decision":"config"}"#,
            r#"{"removed":{"a":2}}"#,
            r#"{"checkpoint":{"a":3}}"#,
        ];
        let text = |lines: &[&str]| lines.iter().flat_map(|line| [*line, "\n"]).collect::<String>();
        fs::write(&segment, text(&lines)).unwrap();
        let kept = text(&[lines[0], lines[2], lines[3]]);
        let hashes = [lines[0], lines[2], lines[3]].map(|line| LineHash::of(line.as_bytes()));
        let before = "{\"checkpoint\":{\"a\":0}}\n";
        for length in 0..=kept.len() {
            fs::write(kept_file(&log), format!("{before}{}", &kept[..length])).unwrap();
            keep(&log, &segment, &hashes).unwrap();
            assert_eq!(fs::read_to_string(kept_file(&log)).unwrap(), format!("{before}{kept}"), "{length}");
        }
        fs::remove_file(kept_file(&log)).unwrap();
        keep(&log, &segment, &hashes).unwrap();
        assert_eq!(fs::read_to_string(kept_file(&log)).unwrap(), kept);
        let mode = fs::metadata(kept_file(&log)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "as the log is");
    }
}
