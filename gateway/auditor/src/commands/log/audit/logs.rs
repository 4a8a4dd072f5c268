//! The files that an auditor is given, and the order in which their lines were written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::bail;
use attest_log::reading::{Bytes, LogFile, LogFiles, LogReadError, files_to_verify};
use attest_log::{KEPT_NAME, LogVerifier, NewerLog, VerificationReport, is_written, kept_file};
use serde::Deserialize;

/// Longest line that is read: much longer than any that a gateway writes.
const LINE_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// A line, and its position.
pub(crate) struct LocatedLine {
    pub at: String,
    pub text: Vec<u8>,
}

/// The files of these paths; of a folder all that are a log's, and of a log that is written also its closed segments.
pub(crate) fn open(paths: &[PathBuf]) -> anyhow::Result<LogFiles> {
    let (mut listed, mut known) = (LogFiles::default(), BTreeSet::new());
    // What was kept is no log.
    for path in paths.iter().filter(|path| !is_kept(path)) {
        let found = files_to_verify(path)?;
        if found.files.is_empty() && found.unreadable.is_empty() {
            bail!("{} has no attestation.jsonl and no rotated log", path.display());
        }
        // A segment that was named by itself, too, is read once, however that is spelled.
        let new = found
            .files
            .into_iter()
            .filter(|new| new.identity().map_or(true, |identity| known.insert(identity)));
        listed.files.extend(new.collect::<Vec<_>>());
        listed.unreadable.extend(found.unreadable);
    }
    Ok(listed)
}

/// Number of times that logs are read again if their segments are removed meanwhile. After a start many may be removed at once, and
/// findings about a log whose files go during the read are false alarms. If a gateway writes faster than this reads, that many reads are
/// made, and no more.
const AGAIN_LIMIT: u32 = 10;

/// Reads logs that may be written. Reads them again if segments were removed by the rule before all of them, and their blobs, were read.
pub(crate) fn settled<T>(paths: &[PathBuf], mut read: impl FnMut(&LogFiles) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let mut again = 0;
    loop {
        let listed = open(paths)?;
        let read = read(&listed);
        let unreadable = listed.unreadable.iter().map(|error| error.path.as_path());
        if again == AGAIN_LIMIT || listed.files.iter().map(LogFile::path).chain(unreadable).all(exists) {
            return read;
        }
        again += 1;
    }
}

/// Returns whether the file is there, under its name or the name after compression.
fn exists(path: &Path) -> bool {
    path.exists() || path.with_added_extension("gz").exists()
}

fn is_kept(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == KEPT_NAME)
}

/// Returns what was kept of segments that were removed, next to these.
fn kept_files(paths: &[PathBuf]) -> anyhow::Result<LogFiles> {
    let beside = |path: &PathBuf| match path {
        folder if folder.is_dir() => folder.join(KEPT_NAME),
        kept if is_kept(kept) => kept.clone(),
        log => kept_file(log),
    };
    let (mut listed, mut known) = (LogFiles::default(), BTreeSet::new());
    for path in paths.iter().map(beside).filter(|path| path.exists()) {
        let found = files_to_verify(&path)?;
        listed.unreadable.extend(found.unreadable);
        for file in found.files {
            if known.insert(file.identity()?) {
                listed.files.push(file);
            }
        }
    }
    Ok(listed)
}

fn name(file: &LogFile) -> String {
    file.path().display().to_string()
}

/// Its lines from the beginning; of the last, whether it has an end.
fn lines(file: &LogFile) -> io::Result<LogLines> {
    Ok(LogLines {
        reader: file.open()?,
        written: is_written(file.path()),
    })
}

struct LogLines {
    reader: BufReader<Bytes>,
    /// Set if a process is writing: then a last line without an end is being written.
    written: bool,
}

impl LogLines {
    /// The next line without its end, and whether it has one.
    fn next(&mut self) -> io::Result<Option<(Vec<u8>, bool)>> {
        let mut line = Vec::new();
        if self.reader.by_ref().take(LINE_LIMIT_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let whole = line.pop_if(|byte| *byte == b'\n').is_some();
        Ok((whole || !self.written).then_some((line, whole)))
    }
}

/// Verifies all files, with what was kept next to these paths. Reports files that cannot be read, and reads the others. Returns the first
/// line that says to be a newer release's, too.
pub(crate) fn verify(
    listed: &LogFiles,
    paths: &[PathBuf],
    mut verifier: LogVerifier,
) -> anyhow::Result<(VerificationReport, Option<NewerLog>)> {
    let mut newer = None;
    for file in &listed.files {
        verifier.file(&name(file));
        let read = each_line(file, |line, whole| {
            if whole {
                newer = newer.take().or_else(|| NewerLog::check_line(file.path(), line).err());
                verifier.line(line);
            } else {
                verifier.torn();
            }
        });
        if let Err(error) = read {
            verifier.unreadable(error.to_string());
        }
    }
    let kept = kept_files(paths)?;
    for file in &kept.files {
        verifier.kept_file(&name(file));
        // A last one without an end was cut off when its gateway was killed: it is written again before anything is removed.
        let read = each_line(file, |line, whole| {
            if whole {
                verifier.kept_line(line);
            }
        });
        if let Err(error) = read {
            verifier.unreadable_file(name(file), error.to_string());
        }
    }
    for LogReadError { path, source } in listed.unreadable.iter().chain(&kept.unreadable) {
        verifier.unreadable_file(path.display().to_string(), source.to_string());
    }
    Ok((verifier.finish(), newer))
}

fn each_line(file: &LogFile, mut with: impl FnMut(&[u8], bool)) -> io::Result<()> {
    let mut lines = lines(file)?;
    while let Some((line, whole)) = lines.next()? {
        with(&line, whole);
    }
    Ok(())
}

/// Files of one gateway, whose lines follow one another.
struct Stream<'f> {
    files: VecDeque<(&'f LogFile, u64)>,
    reading: Option<(&'f LogFile, u64, LogLines, u64)>,
    /// The next line, and its time.
    next: Option<(u64, LocatedLine)>,
}

/// All lines, in the order in which they were written; of several gateways' by their time.
pub(crate) struct Ordered<'f>(Vec<Stream<'f>>);

/// Time at which a line was written.
#[derive(Deserialize)]
struct LineTime {
    at: u64,
}

impl<'f> Ordered<'f> {
    pub(crate) fn new(files: &'f [LogFile], report: &VerificationReport) -> Self {
        let began: BTreeMap<&str, u64> = report.chains.iter().map(|chain| (chain.chain.as_str(), chain.first_at)).collect();
        let mut groups: Vec<(BTreeSet<&str>, Vec<usize>)> = vec![(BTreeSet::new(), Vec::new())];
        for (index, file) in report.files.iter().enumerate() {
            let mut chains: BTreeSet<&str> = file.chains.iter().map(String::as_str).collect();
            let mut indices = vec![index];
            groups.retain_mut(|(others, members)| {
                let apart = if file.chains.is_empty() {
                    !others.is_empty() || members.is_empty()
                } else {
                    others.is_disjoint(&chains)
                };
                if !apart {
                    chains.append(others);
                    indices.append(members);
                }
                apart
            });
            indices.sort_unstable();
            groups.push((chains, indices));
        }
        let key = |index: &usize| {
            let (chain, number) = report.files.get(*index)?.first.as_ref()?;
            Some((began.get(chain.as_str()).copied(), chain.as_str(), *number))
        };
        let mut streams = Vec::new();
        for (_, mut indices) in groups {
            indices.sort_by_key(key);
            let skipped = |index: usize| report.files.get(index).map_or(0, |file| file.skipped);
            let members = indices.into_iter().filter_map(|index| Some((files.get(index)?, skipped(index))));
            let mut stream = Stream {
                files: members.collect(),
                reading: None,
                next: None,
            };
            stream.advance(0);
            streams.push(stream);
        }
        Self(streams)
    }

    /// Returns whether they are of several gateways.
    pub(crate) fn are_several(&self) -> bool {
        self.0.iter().filter(|stream| stream.next.is_some()).count() > 1
    }

    pub(crate) fn next(&mut self) -> Option<LocatedLine> {
        let waiting = self.0.iter_mut().filter(|stream| stream.next.is_some());
        let first = waiting.min_by_key(|stream| stream.next.as_ref().map(|(at, _)| *at))?;
        let (at, line) = first.next.take()?;
        first.advance(at);
        Some(line)
    }
}

impl Stream<'_> {
    /// Reads the next line; one that cannot be read gets the time of the one before it. Skips the rest of a file after a part that cannot
    /// be read: the verification has reported it.
    fn advance(&mut self, before: u64) {
        loop {
            let Some((file, skipped, lines, number)) = &mut self.reading else {
                let Some((file, skipped)) = self.files.pop_front() else {
                    return;
                };
                self.reading = lines(file).ok().map(|lines| (file, skipped, lines, 0));
                continue;
            };
            let Ok(Some((text, _))) = lines.next() else {
                self.reading = None;
                continue;
            };
            *number += 1;
            if *number > *skipped {
                let time = serde_json::from_slice::<LineTime>(&text).map_or(before, |when| when.at);
                let at = format!("{} line {number}", name(file));
                self.next = Some((time, LocatedLine { at, text }));
                return;
            }
        }
    }
}
