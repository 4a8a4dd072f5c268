//! Lines at a log's end when its gateway starts that no checkpoint of that gateway covers: in the log, and in the files next to it. The
//! gateway was killed after it had written them, or another program wrote them.

use std::io;
use std::path::Path;

use super::chain::{ChainProgress, LineHash, Link, UncoveredLines, link_of};
use super::checkpoint::CheckpointLine;
use super::log_end::lines_from_end;
use super::log_key::LogPublicKey;
use super::reading::{LineContent as Read, LogFile, rotated};

/// Returns the chain that the next line belongs to, with the lines after its last checkpoint by this key. A chain that begins has no such
/// lines; a warning is logged about a chain that ends there.
pub(super) fn with_unsigned(log: &Path, key: LogPublicKey, chain: ChainProgress) -> io::Result<ChainProgress> {
    let (id, last, head) = chain.head();
    if last == 0 {
        warn_of_chain_before(log, key)?;
        return Ok(chain);
    }
    let found = UnsignedSearch::new(key, id, last, head).search(lines_from_end(log)?, log)?;
    Ok(chain.with_found(found))
}

/// Warns if the log ends with lines without a chain, and lines of a chain are before them: in the log, or next to it.
fn warn_of_chain_before(log: &Path, key: LogPublicKey) -> io::Result<()> {
    let mut lines = lines_from_end(log)?;
    let last = loop {
        match lines.next().transpose()? {
            Some(line) if has_place(&line) => break Some(line),
            Some(_) => {}
            None => break last_with_place(log)?,
        }
    };
    let Some((last, link)) = last.and_then(|last| link_of(&last).ok().flatten().map(|link| (last, link))) else {
        return Ok(());
    };
    let head = LineHash::of(&last);
    let lines = std::iter::once(Ok(last)).chain(lines);
    let unsigned = match UnsignedSearch::new(key, &link.id, link.number, head).search(lines, log)? {
        Some(UncoveredLines { first, last }) => format!(" (lines {first} to {last} without a checkpoint)"),
        None => String::new(),
    };
    tracing::warn!(
        "the attestation log ends with lines outside any chain, after chain {}, line {}{unsigned}: an older release or another program wrote them; starting a new chain",
        link.id,
        link.number
    );
    Ok(())
}

fn has_place(line: &[u8]) -> bool {
    link_of(line).is_ok_and(|link| link.is_some())
}

/// Returns the last line of a chain in the newest file next to the log, unless that cannot be read.
fn last_with_place(log: &Path) -> io::Result<Option<Vec<u8>>> {
    let files = rotated(log)?;
    let Some(newest) = files.last() else { return Ok(None) };
    let mut last = None;
    let read = each_line(newest, |line| {
        if has_place(line) {
            last = Some(line.to_owned());
        }
    });
    Ok(read.map(|()| last).inspect_err(|error| newest.warn(error)).unwrap_or_default())
}

fn each_line(file: &LogFile, mut with: impl FnMut(&[u8])) -> io::Result<()> {
    let mut lines = file.lines(0)?;
    while let Some(found) = lines.read()? {
        if let Read::Line(line) = found {
            with(line);
        }
    }
    Ok(())
}

/// Most passes over the files next to the log: a single one is enough if they are in order.
const PASSES_LIMIT: usize = 16;

/// Search for the lines of a chain that no checkpoint covers, from its end on. The line before a line is the one with the hash that it
/// names, and no other: a checkpoint elsewhere, however genuine, does not cover it.
struct UnsignedSearch<'c> {
    key: LogPublicKey,
    chain: &'c str,
    /// Number of the first line that is known.
    first: u64,
    /// Hash of the line before that.
    before: LineHash,
    /// Set if that line is a checkpoint.
    is_signed: bool,
    end: u64,
}

/// Lines of one file, each of which names the one before it, since the last checkpoint among them.
#[derive(Clone, Copy)]
struct UnsignedRange {
    first: u64,
    before: LineHash,
    is_signed: bool,
    /// Number and hash of the last of them.
    last: (u64, LineHash),
}

impl<'c> UnsignedSearch<'c> {
    const fn new(key: LogPublicKey, chain: &'c str, last: u64, head: LineHash) -> Self {
        let end = last.saturating_add(1);
        Self {
            key,
            chain,
            first: end,
            before: head,
            is_signed: false,
            end,
        }
    }

    fn search(mut self, from_end: impl Iterator<Item = io::Result<Vec<u8>>>, log: &Path) -> io::Result<Option<UncoveredLines>> {
        for line in from_end {
            self.examine_line(&line?);
            if self.is_over() {
                break;
            }
        }
        if !self.is_over() {
            self.search_siblings(log)?;
        }
        if !self.is_over() {
            tracing::warn!(
                "line {} of chain {}, to which line {} refers, is in neither the attestation log nor its rotated files: cannot determine which lines before it this gateway signed",
                self.first.saturating_sub(1),
                self.chain,
                self.first
            );
            self.first = 1;
        }
        let (first, last) = (self.first, self.end.saturating_sub(1));
        Ok((first <= last).then_some(UncoveredLines { first, last }))
    }

    /// Returns whether the search is over: the line before is signed, or does not exist.
    const fn is_over(&self) -> bool {
        self.is_signed || self.first <= 1
    }

    /// Examines a line that may be the one before the known ones.
    fn examine_line(&mut self, line: &[u8]) {
        if LineHash::of(line) != self.before {
            return;
        }
        let link = link_of(line).ok().flatten();
        let Some(link) = link.filter(|link| self.comes_before(link)) else {
            return;
        };
        if CheckpointLine::signed_by(self.key, line).is_some() {
            self.is_signed = true;
        } else {
            (self.first, self.before) = (link.number, link.previous);
        }
    }

    fn comes_before(&self, link: &Link) -> bool {
        link.id == self.chain && link.number.checked_add(1) == Some(self.first)
    }

    /// Searches the files next to the log, in any order of their lines.
    fn search_siblings(&mut self, log: &Path) -> io::Result<()> {
        let files = rotated(log)?;
        for _ in 0..PASSES_LIMIT {
            let known = self.first;
            for file in files.iter().rev() {
                // A copy of what cannot be read may be whole.
                let _ = self.search_file(file).inspect_err(|error| file.warn(error));
                if self.is_over() {
                    return Ok(());
                }
            }
            if self.first == known {
                break;
            }
        }
        Ok(())
    }

    /// Searches a file, which is read from its beginning.
    fn search_file(&mut self, file: &LogFile) -> io::Result<()> {
        let (mut run, mut found) = (None, None);
        each_line(file, |line| {
            let link = link_of(line).ok().flatten();
            let Some(link) = link.filter(|link| link.id == self.chain && link.number < self.first) else {
                return;
            };
            let next = self.next(run, line, &link);
            if next.last.1 == self.before && self.comes_before(&link) {
                found = Some(next);
            }
            run = Some(next);
        })?;
        if let Some(UnsignedRange {
            first, before, is_signed, ..
        }) = found
        {
            (self.first, self.before, self.is_signed) = (first, before, is_signed);
        }
        Ok(())
    }

    /// Returns the run that ends with a line.
    fn next(&self, run: Option<UnsignedRange>, line: &[u8], link: &Link) -> UnsignedRange {
        let last = (link.number, LineHash::of(line));
        if CheckpointLine::signed_by(self.key, line).is_some() {
            return UnsignedRange {
                first: link.number.saturating_add(1),
                before: last.1,
                is_signed: true,
                last,
            };
        }
        let goes_on = |run: &UnsignedRange| run.last.0.checked_add(1) == Some(link.number) && run.last.1 == link.previous;
        match run.filter(goes_on) {
            Some(run) => UnsignedRange { last, ..run },
            None => UnsignedRange {
                first: link.number,
                before: link.previous,
                is_signed: false,
                last,
            },
        }
    }
}
