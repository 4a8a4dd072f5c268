//! The files of a log, those also that were closed or rotated, in the order in which they were written: one list of them for all who read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::ReadError;
use super::begins::{Begins, Place};
use super::lines::Lines;
use super::opened::{Bytes, Opened, is_zipped};
use crate::audit::segments::SegmentName;
use crate::files::folder;

/// What the name of a log's file begins with, also after it was rotated.
const NAME: &str = "attestation.jsonl";
/// What the names of files end with that are being made.
const UNFINISHED: [&str; 2] = [".new", ".part"];
/// Closed segments that are held open at once. Others are found again by their names, also when they were compressed since.
const HELD_LIMIT: usize = 256;
/// How far a clock may have been set back within a log.
const CLOCKS_DIFFER_SECONDS: u64 = 24 * 3600;

/// A file of the log.
#[derive(Debug, Clone)]
pub struct LogFile {
    path: PathBuf,
    pub(super) begins: Begins,
    /// The file that was found: what has its name by now may be another.
    held: Option<Opened>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Listed {
    /// In the order of their lines.
    pub files: Vec<LogFile>,
    /// What cannot be read, and so has no place among them.
    pub unreadable: Vec<ReadError>,
}

/// The log's files: the one that is written, and those beside it that were rotated. A file that holds no line is none of them, nor is a copy of another.
///
/// # Errors
/// The folder's.
pub fn files_beside(log: &Path) -> Result<Listed, ReadError> {
    let mut listed = all_beside(log)?;
    listed.drop_copies(log);
    // Whatever the clock said.
    listed.files.sort_by_key(|file| file.path == log);
    Ok(listed)
}

/// The files of these paths; of a folder all that are a log's, and none that is a copy of another.
///
/// # Errors
/// A folder's.
pub fn files_of(paths: &[PathBuf]) -> Result<Listed, ReadError> {
    let mut listed = Listed::default();
    for path in paths {
        if path.is_dir() {
            let log = path.join(NAME);
            let mut beside = all_beside(&log)?;
            beside.drop_copies(&log);
            listed.files.append(&mut beside.files);
            listed.unreadable.append(&mut beside.unreadable);
        } else {
            match LogFile::of(path) {
                Ok(file) => listed.files.push(file),
                Err(source) => listed.unreadable.push(ReadError::at(path)(source)),
            }
        }
    }
    order(&mut listed.files);
    Ok(listed)
}

/// The log and all files beside it whose names begin with its own; what is there twice, as while it is compressed, as often.
pub(super) fn all_beside(log: &Path) -> Result<Listed, ReadError> {
    let mut listed = settled(|| names(log)).map_err(ReadError::at(folder(log)))?;
    order(&mut listed.files);
    Ok(listed)
}

/// What a path stands for to whoever verifies: of a folder all that is a log's, copies too, and of a log also its closed segments. Of a segment that
/// is there packed and unpacked only the latter.
///
/// # Errors
/// [`ReadError`], also of any of them.
pub fn files_to_verify(path: &Path) -> Result<Vec<LogFile>, ReadError> {
    let is_folder = fs::metadata(path).map_err(ReadError::at(path))?.is_dir();
    let log = if is_folder { path.join(NAME) } else { path.to_owned() };
    let Listed { mut files, unreadable } = all_beside(&log)?;
    let is_asked_for = |found: &Path| is_folder || found == log || log_of_segment(found).is_some_and(|of| of == log);
    if let Some(error) = unreadable.into_iter().find(|error| is_asked_for(&error.path)) {
        return Err(error);
    }
    files.retain(|file| is_asked_for(&file.path));
    if !is_folder && files.iter().all(|file| file.path != log) {
        // Whatever it is: it was named.
        files.push(LogFile::of(path).map_err(ReadError::at(path))?);
    }
    let unpacked: BTreeSet<PathBuf> = files.iter().map(|file| file.path.clone()).filter(|path| !is_zipped(path)).collect();
    files.retain(|file| !(file.is_segment() && is_zipped(&file.path) && unpacked.contains(&file.path.with_extension(""))));
    Ok(files)
}

/// The one of these that was begun next after one that begins so; the one that is written comes after all others.
pub(super) fn next_of(mut files: Vec<LogFile>, begins: &Begins, log: &Path) -> Option<LogFile> {
    let place = files.iter().position(|file| file.begins == *begins);
    let next = match place {
        Some(place) => Some(place + 1),
        None => files.iter().position(|file| file.begins.is_after(begins) || file.path == log),
    };
    next.filter(|next| *next < files.len()).map(|next| files.swap_remove(next))
}

/// What is there at one moment: a file may be closed, moved, compressed or removed while it is looked.
fn settled(mut names: impl FnMut() -> io::Result<Vec<PathBuf>>) -> io::Result<Listed> {
    loop {
        let found = names()?;
        let listed = Listed::of(&found);
        if names()? == found && listed.files.iter().all(LogFile::has_its_name) {
            return Ok(listed);
        }
    }
}

fn names(log: &Path) -> io::Result<Vec<PathBuf>> {
    let own = log.file_name().unwrap_or_default().as_encoded_bytes();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder(log))? {
        let name = entry?.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(own) && !UNFINISHED.iter().any(|end| bytes.ends_with(end.as_bytes())) {
            // As the log itself is named.
            names.push(log.with_file_name(name));
        }
    }
    names.sort();
    Ok(names)
}

/// By their chains, which come by the time of the first file that there is of each; within one by their numbers, whatever the clock said.
fn order(files: &mut [LogFile]) {
    let mut began: BTreeMap<String, u64> = BTreeMap::new();
    for Begins { at, chain, .. } in files.iter().map(|file| &file.begins) {
        if let Some(Place { id, .. }) = chain {
            let first = began.entry(id.clone()).or_insert(*at);
            *first = (*at).min(*first);
        }
    }
    files.sort_by_cached_key(|LogFile { path, begins, .. }| {
        let Begins { at, id, chain, .. } = begins.clone();
        let (chain, number) = chain.map_or((String::new(), 0), |place| (place.id, place.number));
        (began.get(&chain).copied().unwrap_or(at), chain, number, at, id, path.clone())
    });
}

impl Listed {
    /// Of files that begin with the same line, keeps the one that holds most, as the others were copied, packed or unpacked before it was whole; and
    /// none that holds nothing. The log itself stays, whatever it holds.
    fn drop_copies(&mut self, log: &Path) {
        let mut kept: Vec<LogFile> = Vec::new();
        for file in self.files.drain(..).filter(LogFile::holds_something) {
            match kept.last_mut().filter(|last| last.begins == file.begins) {
                Some(last) if last.path != log && (file.path == log || file.length() > last.length()) => *last = file,
                Some(_) => {}
                None => kept.push(file),
            }
        }
        self.files = kept;
    }

    fn of(paths: &[PathBuf]) -> Self {
        let (mut listed, mut held) = (Self::default(), 0);
        for path in paths {
            // What is beside the log and no file is none of its own.
            let found = fs::metadata(path).and_then(|metadata| metadata.is_file().then(|| LogFile::of(path)).transpose());
            match found {
                Ok(Some(mut file)) => {
                    held += usize::from(file.is_segment());
                    if file.is_segment() && held > HELD_LIMIT {
                        file.held = None;
                    }
                    listed.files.push(file);
                }
                Ok(None) => {}
                Err(source) => listed.unreadable.push(ReadError::at(path)(source)),
            }
        }
        listed
    }
}

impl LogFile {
    fn of(path: &Path) -> io::Result<Self> {
        let opened = Opened::open(path)?;
        let begins = match Begins::of(&opened) {
            // While it is being compressed there may be nothing yet.
            Err(_) if opened.is_zipped() && path.with_extension("").exists() => Begins::default(),
            begins => begins?,
        };
        Ok(Self {
            path: path.to_owned(),
            begins,
            held: Some(opened),
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether all that it holds was written before this second, as another one says that begins after it; nearly so, as clocks are set.
    #[must_use]
    pub fn is_over_before(&self, at: u64, next: &Self) -> bool {
        let chains = self.begins.chain.iter().zip(&next.begins.chain);
        let is_one_chain = chains
            .into_iter()
            .any(|(here, there)| here.id == there.id && here.number < there.number);
        is_one_chain && next.begins.at.saturating_add(CLOCKS_DIFFER_SECONDS) < at
    }

    /// The file itself, open.
    pub(super) fn opened(&self) -> io::Result<Opened> {
        self.held.clone().map_or_else(|| Opened::find(&self.path), Ok)
    }

    fn has_its_name(&self) -> bool {
        self.held.as_ref().is_none_or(|held| held.is_at(&self.path).unwrap_or(false))
    }

    fn is_segment(&self) -> bool {
        log_of_segment(&self.path).is_some()
    }

    /// Which file it is, whatever it is called.
    ///
    /// # Errors
    /// The file's.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let metadata = self.opened()?.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// What it holds, uncompressed.
    ///
    /// # Errors
    /// The file's.
    pub fn open(&self) -> io::Result<BufReader<Bytes>> {
        Ok(BufReader::new(self.opened()?.bytes(0)?))
    }

    fn holds_something(&self) -> bool {
        self.begins.at > 0
    }

    /// Bytes that can be read of it, uncompressed.
    fn length(&self) -> u64 {
        let measured = self.opened().and_then(|opened| match opened.is_zipped() {
            true => Ok(readable(opened.bytes(0)?)),
            false => Ok(opened.metadata()?.len()),
        });
        measured.unwrap_or(0)
    }

    /// Its lines from this byte on, of what it holds uncompressed.
    ///
    /// # Errors
    /// The file's.
    pub fn lines(&self, offset: u64) -> io::Result<Lines<Bytes>> {
        Ok(Lines::new(self.opened()?.bytes(offset)?, offset))
    }
}

/// Of a file that its gateway has closed, the log that it was.
fn log_of_segment(path: &Path) -> Option<PathBuf> {
    let unpacked = if is_zipped(path) {
        path.with_extension("")
    } else {
        path.to_owned()
    };
    let name = unpacked.extension()?.to_str()?;
    name.parse::<SegmentName>().ok()?;
    Some(unpacked.with_extension(""))
}

/// How much there is up to the end, or to what is damaged.
fn readable(bytes: Bytes) -> u64 {
    let (mut reader, mut length) = (BufReader::new(bytes), 0_u64);
    while let Ok(chunk) = reader.fill_buf()
        && !chunk.is_empty()
    {
        let read = chunk.len();
        length = length.saturating_add(u64::try_from(read).unwrap_or(0));
        reader.consume(read);
    }
    length
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::super::Found;
    use super::*;

    const SEGMENT: &str = "attestation.jsonl.19700101T000140Z-0a0a0a0a-00000000000";

    /// A log of three files, and what may become of them while they are read.
    struct Written {
        folder: tempfile::TempDir,
    }

    impl Written {
        fn new() -> Self {
            let written = Self {
                folder: tempfile::tempdir().unwrap(),
            };
            written.write(&format!("{SEGMENT}1"), 1..=2);
            written.write("attestation.jsonl-moved", 3..=3);
            written.write("attestation.jsonl", 4..=5);
            written
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn log(&self) -> PathBuf {
            self.path("attestation.jsonl")
        }

        fn write(&self, name: &str, numbers: std::ops::RangeInclusive<u64>) {
            let line = |number| format!("{{\"at\":100,\"id\":\"{number}\",\"chain\":{{\"id\":\"0a\",\"number\":{number}}}}}\n");
            fs::write(self.path(name), numbers.map(line).collect::<String>()).unwrap();
        }

        /// As a gateway does it.
        fn close(&self) {
            fs::rename(self.log(), self.path(&format!("{SEGMENT}4"))).unwrap();
            self.write("attestation.jsonl", 6..=6);
        }

        fn compress(&self, name: &str) {
            let file = File::create(self.path(&format!("{name}.gz"))).unwrap();
            let mut gz = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            gz.write_all(&fs::read(self.path(name)).unwrap()).unwrap();
            gz.finish().unwrap();
            fs::remove_file(self.path(name)).unwrap();
        }

        /// All that can become of them.
        fn go_on(&self) {
            self.close();
            self.compress(&format!("{SEGMENT}1"));
            self.compress(&format!("{SEGMENT}4"));
            fs::rename(self.path("attestation.jsonl-moved"), self.path("attestation.jsonl-elsewhere")).unwrap();
        }
    }

    fn listed(log: &Path) -> Vec<LogFile> {
        let Listed { files, unreadable } = files_beside(log).unwrap();
        assert!(unreadable.is_empty(), "{unreadable:?}");
        files
    }

    /// The numbers of all lines.
    fn numbers(files: &[LogFile]) -> Vec<u64> {
        let mut numbers = Vec::new();
        for file in files {
            let mut lines = file.lines(0).unwrap();
            while let Some(Found::Line(line)) = lines.read().unwrap() {
                let line: serde_json::Value = serde_json::from_slice(line).unwrap();
                numbers.push(line.pointer("/chain/number").unwrap().as_u64().unwrap());
            }
        }
        numbers
    }

    #[test]
    fn what_was_listed_is_read_whatever_becomes_of_it_meanwhile() {
        let log = Written::new();
        let files = listed(&log.log());
        log.go_on();
        assert_eq!(numbers(&files), [1, 2, 3, 4, 5]);
        let files = listed(&log.log());
        // A rule removes the oldest.
        fs::remove_file(log.path(&format!("{SEGMENT}1.gz"))).unwrap();
        fs::remove_file(log.path("attestation.jsonl-elsewhere")).unwrap();
        assert_eq!(numbers(&files), [1, 2, 3, 4, 5, 6]);
        // One that is not held open.
        let mut files = listed(&log.log());
        assert_eq!(numbers(&files), [4, 5, 6]);
        files.iter_mut().filter(|file| file.is_segment()).for_each(|file| file.held = None);
        assert_eq!(numbers(&files), [4, 5, 6]);
        log.close();
        assert!(files.iter().any(|file| file.held.is_none()));
        assert_eq!(numbers(&files), [4, 5, 6]);
    }

    #[test]
    fn what_becomes_of_files_while_they_are_listed_hides_none() {
        type Change = fn(&Written);
        let changes: [Change; 3] = [
            Written::close,
            |log| log.compress(&format!("{SEGMENT}1")),
            |log| fs::rename(log.path("attestation.jsonl-moved"), log.path("attestation.jsonl-elsewhere")).unwrap(),
        ];
        for change in changes {
            // Before the first look, between it and the next one, and so on.
            for at in 0..4 {
                let (log, mut looks) = (Written::new(), 0);
                let listed = settled(|| {
                    let before = names(&log.log());
                    if looks == at {
                        change(&log);
                    }
                    looks += 1;
                    before
                });
                let Listed { mut files, unreadable } = listed.unwrap();
                assert!(unreadable.is_empty(), "{unreadable:?}");
                order(&mut files);
                let found = numbers(&files);
                assert!(found == [1, 2, 3, 4, 5] || found == [1, 2, 3, 4, 5, 6], "{at}: {found:?}");
            }
        }
    }

    #[test]
    fn a_segment_that_is_not_held_is_found_when_it_was_compressed_since() {
        let log = Written::new();
        let mut files = listed(&log.log());
        files.iter_mut().filter(|file| file.is_segment()).for_each(|file| file.held = None);
        log.compress(&format!("{SEGMENT}1"));
        assert_eq!(numbers(&files), [1, 2, 3, 4, 5]);
        fs::remove_file(log.path(&format!("{SEGMENT}1.gz"))).unwrap();
        let error = files.first().unwrap().lines(0).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_no_file_is_none_of_the_logs() {
        let log = Written::new();
        fs::create_dir(log.path("attestation.jsonl.d")).unwrap();
        std::os::unix::net::UnixListener::bind(log.path("attestation.jsonl.socket")).unwrap();
        assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_copy_beside_a_file_hides_nothing_of_it() {
        for name in ["attestation.jsonl.bak", "attestation.jsonl.bak.gz"] {
            let log = Written::new();
            // A part of the log, of a segment, and of what was moved; each packed or not, and what it is a copy of likewise.
            log.write("attestation.jsonl.bak", 4..=4);
            log.write("attestation.jsonl.old", 1..=1);
            if name.ends_with("gz") {
                log.compress("attestation.jsonl.bak");
                log.compress("attestation.jsonl.old");
            }
            assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5], "{name}");
            assert_eq!(
                numbers(&files_of(&[log.folder.path().to_owned()]).unwrap().files),
                [1, 2, 3, 4, 5],
                "{name}"
            );
            log.compress(&format!("{SEGMENT}1"));
            log.close();
            log.compress(&format!("{SEGMENT}4"));
            assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5, 6], "{name}");
            // Somebody unpacks one, and has not come to its end.
            log.write(&format!("{SEGMENT}4"), 4..=4);
            assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5, 6], "{name}");
            // The log is what is written, also where a copy has more.
            log.write("attestation.jsonl.more", 6..=8);
            assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5, 6], "{name}");
        }
    }

    #[test]
    fn chains_that_began_in_one_second_stay_apart() {
        let log = Written::new();
        let other = |number| {
            fs::read_to_string(log.path("attestation.jsonl-moved"))
                .unwrap()
                .replace("\"0a\"", "\"0b\"")
                .replace('3', number)
        };
        fs::write(log.path("attestation.jsonl-a"), other("1")).unwrap();
        fs::write(log.path("attestation.jsonl-b"), other("2")).unwrap();
        fs::rename(log.log(), log.path("attestation.jsonl-c")).unwrap();
        assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5, 1, 2]);
    }

    #[test]
    fn what_cannot_be_read_is_named_and_hides_nothing_else() {
        let log = Written::new();
        log.compress("attestation.jsonl-moved");
        let path = log.path("attestation.jsonl-moved.gz");
        let whole = fs::read(&path).unwrap();
        for damaged in [&b"no gzip"[..], &[], &whole[..20]] {
            fs::write(&path, damaged).unwrap();
            let Listed { files, unreadable } = files_beside(&log.log()).unwrap();
            assert_eq!(numbers(&files), [1, 2, 4, 5]);
            assert_eq!(
                unreadable.iter().map(|error| &error.path).collect::<Vec<_>>(),
                [&path],
                "{damaged:?}"
            );
        }
        // Of what is just being packed there may be nothing yet.
        log.write("attestation.jsonl-moved", 3..=3);
        assert_eq!(numbers(&listed(&log.log())), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_file_is_over_before_a_time_if_the_next_of_its_chain_says_so() {
        let log = Written::new();
        let files = listed(&log.log());
        let [first, second, third] = &files[..] else { panic!() };
        let over = 100 + CLOCKS_DIFFER_SECONDS;
        assert!(first.is_over_before(over + 1, second) && second.is_over_before(over + 1, third));
        assert!(!first.is_over_before(over, second) && !second.is_over_before(over + 1, first));
        let text = fs::read_to_string(log.log()).unwrap();
        for other in [text.replace("0a", "0b"), "{\"at\":100,\"id\":\"4\"}\n".to_owned()] {
            fs::write(log.log(), other).unwrap();
            let files = listed(&log.log());
            let [.., second, third] = &files[..] else { panic!() };
            assert!(!second.is_over_before(over + 1, third));
        }
    }
}
