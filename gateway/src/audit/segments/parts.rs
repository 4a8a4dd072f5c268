//! The files beside a log that hold what came before it: segments that were closed, and files that others have moved there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::super::chain::link_of;
use super::line::next_line;
use super::name::written_at;
use super::zipped;
use crate::files::folder;

/// One of them, by its first line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Part {
    /// When that was written, seconds since 1970.
    pub(in super::super) began: u64,
    /// Its place; of a line of an older release nothing.
    number: u64,
    chain: String,
    path: PathBuf,
}

/// All of them, the oldest first, and what is there twice, as while it is compressed, as often. What holds no line of a log is none.
pub(in super::super) fn parts(log: &Path) -> io::Result<Vec<Part>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder(log)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    let own = log.file_name().unwrap_or_default().as_encoded_bytes();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let rest = name.as_encoded_bytes().strip_prefix(own);
        if rest.is_some_and(|rest| !rest.is_empty()) && entry.file_type()?.is_file() {
            // What it holds is missed where it is needed.
            let part = Part::of(entry.path()).inspect_err(
                |error| tracing::warn!(%error, "{} cannot be read: what it holds of the log is taken for gone", entry.path().display()),
            );
            found.extend(part.ok().flatten());
        }
    }
    order(&mut found);
    Ok(found)
}

/// By their chains, which come by the time of the first part that there is of each; within one by their numbers, whatever the clock said.
fn order(parts: &mut [Part]) {
    let mut began: BTreeMap<String, u64> = BTreeMap::new();
    for part in parts.iter().filter(|part| !part.chain.is_empty()) {
        let first = began.entry(part.chain.clone()).or_insert(part.began);
        *first = (*first).min(part.began);
    }
    parts.sort_by_cached_key(|part| {
        let began = began.get(&part.chain).copied().unwrap_or(part.began);
        (began, part.chain.clone(), part.number, part.began, part.path.clone())
    });
}

/// The line with which they end; `None` also where that cannot be read.
pub(in super::super) fn last_line(parts: &[Part]) -> Option<Vec<u8>> {
    let newest = parts.last()?;
    // Of one that is there twice not each need be whole.
    let there = parts.iter().rev().take_while(|part| part.begins_as(newest));
    let ends: io::Result<Vec<Option<Vec<u8>>>> = there.map(|part| part.last_line().inspect_err(|error| part.warn(error))).collect();
    let number = |line: &Vec<u8>| link_of(line).ok().flatten().map(|link| link.number);
    ends.ok()?.into_iter().flatten().max_by_key(number)
}

impl Part {
    fn of(path: PathBuf) -> io::Result<Option<Self>> {
        let first = next_line(&mut read(&path)?)?;
        let place = first.as_ref().and_then(|first| Some((first, written_at(first)?)));
        Ok(place.map(|(first, began)| {
            let link = link_of(first).ok().flatten();
            let (number, chain) = link.map_or((0, String::new()), |link| (link.number, link.id));
            Self {
                began,
                number,
                chain,
                path,
            }
        }))
    }

    /// Whether it begins with this line of the chain, or with one before it.
    pub(in super::super) fn begins_before(&self, chain: &str, number: u64) -> bool {
        self.chain == chain && self.number <= number
    }

    fn begins_as(&self, other: &Self) -> bool {
        (self.began, &self.chain, self.number) == (other.began, &other.chain, other.number)
    }

    /// That it cannot be read: whoever needs what it holds takes that for gone.
    pub(in super::super) fn warn(&self, error: &io::Error) {
        warn(&self.path, error);
    }

    /// What it holds, uncompressed.
    pub(in super::super) fn open(&self) -> io::Result<Box<dyn BufRead>> {
        read(&self.path)
    }

    /// Its last whole line, without its end.
    pub(in super::super) fn last_line(&self) -> io::Result<Option<Vec<u8>>> {
        let (mut reader, mut last) = (self.open()?, None);
        while let Some(line) = next_line(&mut reader)? {
            last = Some(line);
        }
        Ok(last)
    }
}

fn warn(path: &Path, error: &io::Error) {
    tracing::warn!(%error, "{} cannot be read: what it holds of the log is taken for gone", path.display());
}

/// What was listed so, uncompressed.
fn read(path: &Path) -> io::Result<Box<dyn BufRead>> {
    match open(path) {
        // It was compressed since.
        Err(error) if error.kind() == ErrorKind::NotFound => open(&zipped(path)),
        opened => opened,
    }
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let file = File::open(path)?;
    let reader: Box<dyn Read> = if path.extension().is_some_and(|extension| extension == "gz") {
        Box::new(MultiGzDecoder::new(file))
    } else {
        Box::new(file)
    };
    Ok(Box::new(BufReader::new(reader)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn line(at: u64, number: u64) -> String {
        let (id, previous) = ("0a".repeat(16), "0".repeat(64));
        format!("{{\"at\":{at},\"chain\":{{\"id\":\"{id}\",\"number\":{number},\"previous\":\"{previous}\"}}}}\n")
    }

    fn compressed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn what_came_before_is_found_whoever_has_rotated_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("attestation.jsonl");
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        let segment = "attestation.jsonl.19700101T000005Z-0a0a0a0a-000000000003";
        write("attestation.jsonl", line(7, 9).as_bytes());
        write("attestation.jsonl-20261122", format!("{}torn", line(6, 7)).as_bytes());
        write(segment, format!("{}{}", line(5, 3), line(5, 4)).as_bytes());
        write(&format!("{segment}.gz"), &compressed(&line(5, 3)));
        write("attestation.jsonl.2.gz", &compressed(&format!("{}{}", line(5, 1), line(5, 2))));
        write("attestation.jsonl.empty", b"");
        write("attestation.jsonl.other", b"something else\n");
        write("attestation.jsonl.bad.gz", b"something else\n");
        write("attestation.lock", b"");
        let found = parts(&log).unwrap();
        let last = |part: &Part| String::from_utf8(part.last_line().unwrap().unwrap()).unwrap() + "\n";
        let found: Vec<(u64, String)> = found.iter().map(|part| (part.number, last(part))).collect();
        assert_eq!(found, [(1, line(5, 2)), (3, line(5, 4)), (3, line(5, 3)), (7, line(6, 7))]);
        // Listed before it was compressed, and read afterwards.
        let found = parts(&log).unwrap();
        fs::remove_file(folder.path().join(segment)).unwrap();
        assert_eq!(last(&found[1]), line(5, 3));
        assert_eq!(Part::of(folder.path().join(segment)).unwrap().unwrap(), found[1]);
        let chain = "0a".repeat(16);
        assert!(found[1].begins_before(&chain, 3) && !found[1].begins_before(&chain, 2) && !found[1].begins_before("0a", 3));
    }

    /// How files end of which these are the names and contents.
    fn end(files: &[(&str, &[u8])]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(format!("log.{name}")), bytes).unwrap();
        }
        last_line(&parts(&folder.path().join("log")).unwrap()).map(|line| String::from_utf8(line).unwrap() + "\n")
    }

    #[test]
    fn they_end_with_the_highest_number_whatever_the_clock_said() {
        let [first, second] = [line(9000, 1), line(5, 2)];
        assert_eq!(end(&[("1", first.as_bytes()), ("2", second.as_bytes())]).unwrap(), second);
        // Of two chains the one that begins later.
        let other = line(6, 1).replace("0a", "0b");
        assert_eq!(end(&[("1", second.as_bytes()), ("2", other.as_bytes())]).unwrap(), other);
        // A copy that was made before it was whole.
        let whole = format!("{second}{}", line(6, 3));
        for (copy, name) in [("1", "2"), ("2", "1")] {
            assert_eq!(end(&[(copy, second.as_bytes()), (name, whole.as_bytes())]).unwrap(), line(6, 3));
        }
        assert_eq!(end(&[]), None);
    }

    #[test]
    fn where_the_last_one_is_damaged_nobody_knows_how_they_end() {
        let (first, second) = (compressed(&line(5, 1)), compressed(&format!("{}{}", line(6, 2), line(6, 3))));
        assert_eq!(end(&[("1.gz", &first), ("2.gz", &second)]).unwrap(), line(6, 3));
        assert_eq!(end(&[("1.gz", &first), ("2.gz", &second[..second.len() - 4])]), None);
        assert_eq!(end(&[("1.gz", &first[..first.len() - 4]), ("2.gz", &second)]).unwrap(), line(6, 3));
    }
}
