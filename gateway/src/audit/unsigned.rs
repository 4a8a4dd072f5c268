//! What stands at a log's end when its gateway starts, and no checkpoint of that gateway after it: in the log, and in the files beside it. The gateway was
//! killed after it had written it, or somebody else has.

use std::io;
use std::path::Path;

use super::chain::{Chain, Found, link_of};
use super::checkpoint::CheckpointLine;
use super::log_end::lines_from_end;
use super::log_key::LogPublicKey;
use super::reading::{Found as Read, LogFile, rotated};

/// The chain that the next line is of, with the lines after its last checkpoint by this key. One that begins has none: what ends there is warned of.
pub(super) fn with_unsigned(log: &Path, key: LogPublicKey, chain: Chain) -> io::Result<Chain> {
    let (id, last, _) = chain.head();
    if last == 0 {
        warn_of_chain_before(log, key)?;
        return Ok(chain);
    }
    let found = Unsigned::of(key, id, last).look(lines_from_end(log)?, log)?;
    Ok(chain.with_found(found))
}

/// Warns where the log ends with lines of no chain, and lines of one stand before them: in the log, or beside it.
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
    let lines = std::iter::once(Ok(last)).chain(lines);
    let unsigned = match Unsigned::of(key, &link.id, link.number).look(lines, log)? {
        Some(Found { first, last }) => format!("; lines {first} to {last} of it no checkpoint holds"),
        None => String::new(),
    };
    tracing::warn!(
        "the attestation log ends with lines of no chain, and before them there was chain {}, up to line {}{unsigned}: an older release has written them, or somebody else; another chain begins after them",
        link.id,
        link.number
    );
    Ok(())
}

fn has_place(line: &[u8]) -> bool {
    link_of(line).is_ok_and(|link| link.is_some())
}

/// The last line of a chain in the newest file beside the log, unless that cannot be read.
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

/// Looks for the lines of a chain that no checkpoint holds, from its end on.
struct Unsigned<'c> {
    key: LogPublicKey,
    chain: &'c str,
    /// Those from here on are known.
    first: u64,
    end: u64,
}

/// What a line is to whoever looks for them. Those of other chains, and of none, are nothing to it: whoever has put one in has signed none by that.
enum Is {
    /// One of them, by its number.
    Unsigned(u64),
    /// What comes before it is none of them.
    Signed,
    Nothing,
}

impl<'c> Unsigned<'c> {
    const fn of(key: LogPublicKey, chain: &'c str, last: u64) -> Self {
        let end = last.saturating_add(1);
        Self {
            key,
            chain,
            first: end,
            end,
        }
    }

    fn look(mut self, from_end: impl Iterator<Item = io::Result<Vec<u8>>>, log: &Path) -> io::Result<Option<Found>> {
        if self.looks_on_before(from_end)? {
            for file in rotated(log)?.iter().rev() {
                // A copy of what cannot be read may be whole.
                let looks_on = self.looks_on_before_file(file).inspect_err(|error| file.warn(error));
                if !looks_on.unwrap_or(true) {
                    break;
                }
            }
        }
        let (first, last) = (self.first, self.end.saturating_sub(1));
        Ok((first <= last).then_some(Found { first, last }))
    }

    /// Whether there may be more of them before these lines, the last of which comes first.
    fn looks_on_before(&mut self, from_end: impl Iterator<Item = io::Result<Vec<u8>>>) -> io::Result<bool> {
        for line in from_end {
            match self.is(&line?) {
                Is::Unsigned(number) => self.first = number,
                Is::Signed => return Ok(false),
                Is::Nothing => {}
            }
        }
        Ok(self.first > 1)
    }

    /// Whether there may be more of them before those in this file.
    fn looks_on_before_file(&mut self, file: &LogFile) -> io::Result<bool> {
        let (mut first, mut is_signed) = (None, false);
        each_line(file, |line| match self.is(line) {
            Is::Unsigned(number) if number < self.first => first = first.or(Some(number)),
            Is::Signed => (first, is_signed) = (None, true),
            _ => {}
        })?;
        self.first = first.unwrap_or(self.first);
        Ok(!is_signed && self.first > 1)
    }

    fn is(&self, line: &[u8]) -> Is {
        match link_of(line) {
            Ok(Some(link)) if link.id == self.chain => match CheckpointLine::signed_by(self.key, line) {
                Some(_) => Is::Signed,
                None => Is::Unsigned(link.number),
            },
            _ => Is::Nothing,
        }
    }
}
