//! Names of blobs in the log: any 64 hexadecimal digits in any line, whatever the line is, and whichever release has written it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use attest_system::files::folder;
use flate2::read::MultiGzDecoder;

use super::RetentionError;

/// Number of characters of a name: those of a SHA-256.
const NAME_CHARACTERS: usize = 64;
/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Finds names in bytes that come in parts of any size.
#[derive(Debug, Default)]
pub(super) struct NameFinder {
    /// Digits that were read last, and one more if they are too many.
    digits: Vec<u8>,
}

impl NameFinder {
    /// Calls `each` with each name that ends in these bytes, or before them.
    pub(super) fn read(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for byte in bytes {
            if matches!(byte, b'0'..=b'9' | b'a'..=b'f') {
                if self.digits.len() <= NAME_CHARACTERS {
                    self.digits.push(*byte);
                }
                continue;
            }
            self.end(&mut each);
        }
    }

    /// Notes the end of the input.
    pub(super) fn end(&mut self, mut each: impl FnMut(&str)) {
        if self.digits.len() == NAME_CHARACTERS
            && let Ok(name) = std::str::from_utf8(&self.digits)
        {
            each(name);
        }
        self.digits.clear();
    }
}

/// Returns those of the names that are in no file of this log, nor in any file next to it. A file that cannot be read may name all of them.
pub(super) fn unnamed(log: &Path, mut names: BTreeSet<String>) -> Result<BTreeSet<String>, RetentionError> {
    // The one that is written is opened first: closed after that, it is read all the same.
    match File::open(log) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        opened => read(log, opened.map_err(RetentionError::at(log))?, &mut names)?,
    }
    for path in sibling_files(log)? {
        if names.is_empty() {
            break;
        }
        let file = File::open(&path).map_err(RetentionError::at(&path))?;
        read(&path, file, &mut names)?;
    }
    Ok(names)
}

/// Returns the files next to the log whose names begin with its name. Other entries, such as pipes, name nothing and are not opened: that
/// might block.
fn sibling_files(log: &Path) -> Result<Vec<PathBuf>, RetentionError> {
    let (folder, own) = (folder(log), log.file_name().unwrap_or_default().as_encoded_bytes());
    let is_beside = |name: &OsStr| name.as_encoded_bytes().starts_with(own) && name.len() > own.len();
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(RetentionError::at(folder))? {
        let entry = entry.map_err(RetentionError::at(folder))?;
        let path = entry.path();
        if is_beside(&entry.file_name()) && is_file(&path).map_err(RetentionError::at(&path))? {
            found.push(path);
        }
    }
    Ok(found)
}

fn is_file(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        metadata => Ok(metadata?.is_file()),
    }
}

/// Removes the names from the set that are in this file.
fn read(path: &Path, file: File, names: &mut BTreeSet<String>) -> Result<(), RetentionError> {
    let is_zipped = path.extension().is_some_and(|extension| extension == "gz");
    let reader: Box<dyn Read> = if is_zipped {
        Box::new(MultiGzDecoder::new(file))
    } else {
        Box::new(file)
    };
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, reader);
    let mut found = NameFinder::default();
    loop {
        let chunk = reader.fill_buf().map_err(RetentionError::at(path))?;
        let length = chunk.len();
        if length == 0 {
            found.end(|name| {
                names.remove(name);
            });
            return Ok(());
        }
        found.read(chunk, |name| {
            names.remove(name);
        });
        reader.consume(length);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;

    fn found(parts: &[&str]) -> Vec<String> {
        let (mut names, mut found) = (NameFinder::default(), Vec::new());
        for part in parts {
            names.read(part.as_bytes(), |name| found.push(name.to_owned()));
        }
        names.end(|name| found.push(name.to_owned()));
        found
    }

    #[test]
    fn finds_blob_names_at_any_chunk_boundary() {
        let [a, b] = ["0a".repeat(32), "0123456789abcdef".repeat(4)];
        assert_eq!(found(&[&format!("{{\"x\":[\"{a}\",\"{b}\"],\"y\":\"{a}\"}}\n")]), [&a[..], &b, &a]);
        assert_eq!(found(&[&a]), [&a[..]]);
        assert_eq!(found(&["x", &a[..1], &a[1..40], &a[40..], "x", &b]), [&a[..], &b]);
        for other in [
            &a[1..],
            &format!("{a}0"),
            &format!("{a}{a}"),
            &a.to_uppercase(),
            &format!("{}g", &a[1..]),
            "",
        ] {
            assert_eq!(found(&["\"", other, "\""]), Vec::<String>::new(), "{other}");
        }
    }

    #[test]
    fn buffers_at_most_one_name_of_hex_digits() {
        let mut names = NameFinder::default();
        for _ in 0..100 {
            names.read(&[b'a'; 100], |name| panic!("{name}"));
        }
        assert_eq!(names.digits.len(), NAME_CHARACTERS + 1);
    }

    #[test]
    fn unreadable_file_may_reference_every_blob() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let names = ["0a", "0b", "0c", "0d"].map(|name| name.repeat(32));
        let unnamed = || unnamed(&log, names.iter().cloned().collect());
        assert_eq!(unnamed().unwrap().len(), 4);
        fs::write(&log, &names[0]).unwrap();
        fs::write(folder.path().join("log.20261122"), format!("x{}", names[1])).unwrap();
        fs::write(folder.path().join("other"), &names[3]).unwrap();
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut zipped, names[2].as_bytes()).unwrap();
        let zipped = zipped.finish().unwrap();
        let file = folder.path().join("log-1.gz");
        fs::write(&file, &zipped).unwrap();
        assert_eq!(unnamed().unwrap().into_iter().collect::<Vec<_>>(), [names[3].clone()]);
        for damaged in [&zipped[..zipped.len() - 1], b"no gzip"] {
            fs::write(&file, damaged).unwrap();
            assert!(unnamed().unwrap_err().to_string().contains("log-1.gz"));
        }
        // Nobody asks it where all are named.
        fs::write(&log, names.join(" ")).unwrap();
        assert_eq!(unnamed().unwrap(), BTreeSet::new());
    }
}
