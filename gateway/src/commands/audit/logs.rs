//! The files that an auditor is given, and the order in which their lines were written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use attest_gateway::audit::{Report, SegmentName, Verifier, closed_segments, is_written};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;

/// What the name of a log's file begins with, also after it was rotated.
const NAME: &str = "attestation.jsonl";
/// Longest line that is read: much longer than any that a gateway writes.
const LINE_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// A file of a log.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    /// The one that may be written, open: it keeps no name for ever. One that was closed is opened when it is read.
    file: Option<File>,
}

/// A line, and where it stands.
pub struct Line {
    pub at: String,
    pub text: Vec<u8>,
}

/// The files of these paths; of a folder all that are a log's, and of a log that is written also its closed segments.
pub fn open(paths: &[PathBuf]) -> anyhow::Result<Vec<LogFile>> {
    let (mut files, mut known) = (Vec::new(), BTreeSet::new());
    for path in paths {
        let found = of_path(path).with_context(|| path.display().to_string())?;
        if found.is_empty() {
            bail!("{} holds no {NAME}, nor one that was rotated", path.display());
        }
        // A segment that was named by itself, too, is read once, however that is spelled.
        let new = found
            .into_iter()
            .filter(|new| new.identity().is_none_or(|identity| known.insert(identity)));
        files.extend(new.collect::<Vec<_>>());
    }
    Ok(files)
}

/// What one path stands for, at one moment: a segment may be closed, or compressed, while it is looked.
fn of_path(path: &Path) -> io::Result<Vec<LogFile>> {
    loop {
        let names = names(path)?;
        let files: io::Result<Vec<LogFile>> = names.iter().map(|name| LogFile::open(name)).collect();
        let is_as_it_was = |files: &[LogFile]| Ok::<_, io::Error>(self::names(path)? == names && files.iter().all(LogFile::has_its_name));
        match files {
            Ok(files) if is_as_it_was(&files)? => return Ok(files),
            Err(error) if error.kind() != io::ErrorKind::NotFound || self::names(path)? == names => return Err(error),
            _ => {}
        }
    }
}

fn names(path: &Path) -> io::Result<Vec<PathBuf>> {
    if path.is_dir() {
        return in_folder(path);
    }
    let mut names = closed_segments(path)?;
    names.push(path.to_owned());
    Ok(names)
}

fn in_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    // Of one that is being compressed only what was there first.
    let (log, mut found) = (folder.join(NAME), BTreeSet::new());
    let segments = closed_segments(&log)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let is_segment = rest.is_some_and(|rest| SegmentName::of_file(rest).is_some());
        if !is_segment && name.to_string_lossy().starts_with(NAME) && entry.path().is_file() {
            found.insert(entry.path());
        }
    }
    Ok(segments.into_iter().chain(found).collect())
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let closed = name.is_some_and(|name| name.strip_prefix(NAME).is_some_and(|rest| SegmentName::of_file(rest).is_some()));
        let file = if closed { None } else { Some(File::open(path)?) };
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    fn has_its_name(&self) -> bool {
        let same = |file: &File| {
            let (here, there) = (file.metadata()?, fs::metadata(&self.path)?);
            Ok::<_, io::Error>((here.dev(), here.ino()) == (there.dev(), there.ino()))
        };
        self.file.as_ref().is_none_or(|file| same(file).unwrap_or(false))
    }

    /// Which file it is; `None` if it has lost its name since.
    fn identity(&self) -> Option<(u64, u64)> {
        let opened = self.file.as_ref().map(File::metadata);
        let there = opened.unwrap_or_else(|| fs::metadata(&self.path)).ok()?;
        Some((there.dev(), there.ino()))
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The file, from its beginning; and whether it is compressed.
    fn read(&self) -> io::Result<(File, bool)> {
        let zipped = self.path.extension().is_some_and(|extension| extension == "gz");
        let Some(file) = &self.file else {
            return match File::open(&self.path) {
                // It was compressed since.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !zipped => {
                    Ok((File::open(self.path.with_added_extension("gz"))?, true))
                }
                opened => Ok((opened?, zipped)),
            };
        };
        let mut file = file.try_clone()?;
        file.rewind()?;
        Ok((file, zipped))
    }

    /// Its lines from the beginning; of the last, whether it has an end.
    fn lines(&self) -> anyhow::Result<Lines> {
        let (file, zipped) = self.read().with_context(|| self.name())?;
        let reader: Box<dyn Read> = if zipped {
            Box::new(MultiGzDecoder::new(file))
        } else {
            Box::new(file)
        };
        Ok(Lines {
            reader: BufReader::new(reader),
            written: is_written(&self.path),
        })
    }
}

struct Lines {
    reader: BufReader<Box<dyn Read>>,
    /// Whether somebody is writing: then a last line without an end is one that is being written.
    written: bool,
}

impl Lines {
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

/// Verifies all of them.
pub fn verify(files: &[LogFile], mut verifier: Verifier) -> anyhow::Result<Report> {
    for file in files {
        verifier.file(&file.name());
        let mut lines = file.lines()?;
        while let Some((line, whole)) = lines.next().with_context(|| file.name())? {
            if whole {
                verifier.line(&line);
            } else {
                verifier.torn();
            }
        }
    }
    Ok(verifier.finish())
}

/// Files whose lines follow one another: those of one gateway.
struct Stream<'f> {
    files: VecDeque<(&'f LogFile, u64)>,
    reading: Option<(&'f LogFile, u64, Lines, u64)>,
    /// The next line, and its time.
    next: Option<(u64, Line)>,
}

/// All lines, in the order in which they were written; of several gateways' by their time.
pub struct Ordered<'f>(Vec<Stream<'f>>);

/// When a line was written.
#[derive(Deserialize)]
struct When {
    at: u64,
}

impl<'f> Ordered<'f> {
    pub fn of(files: &'f [LogFile], report: &Report) -> anyhow::Result<Self> {
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
            stream.advance(0)?;
            streams.push(stream);
        }
        Ok(Self(streams))
    }

    /// Whether they are of several gateways.
    pub fn are_several(&self) -> bool {
        self.0.iter().filter(|stream| stream.next.is_some()).count() > 1
    }

    pub fn next(&mut self) -> anyhow::Result<Option<Line>> {
        let waiting = self.0.iter_mut().filter(|stream| stream.next.is_some());
        let Some(first) = waiting.min_by_key(|stream| stream.next.as_ref().map(|(at, _)| *at)) else {
            return Ok(None);
        };
        let Some((at, line)) = first.next.take() else { return Ok(None) };
        first.advance(at)?;
        Ok(Some(line))
    }
}

impl Stream<'_> {
    /// Reads the next line; one that cannot be read comes when the one before it came.
    fn advance(&mut self, before: u64) -> anyhow::Result<()> {
        loop {
            let Some((file, skipped, lines, number)) = &mut self.reading else {
                let Some((file, skipped)) = self.files.pop_front() else {
                    return Ok(());
                };
                self.reading = Some((file, skipped, file.lines()?, 0));
                continue;
            };
            let Some((text, _)) = lines.next().with_context(|| file.name())? else {
                self.reading = None;
                continue;
            };
            *number += 1;
            if *number > *skipped {
                let time = serde_json::from_slice::<When>(&text).map_or(before, |when| when.at);
                let at = format!("{} line {number}", file.name());
                self.next = Some((time, Line { at, text }));
                return Ok(());
            }
        }
    }
}
