//! Contents of a closed segment, read once: the data for the record of its removal, the lines to keep, and the blobs that its records name.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use aws_lc_rs::digest::{self, SHA256};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::chain::{LineHash, Link};
use super::super::reading::{LineContent, lines_of};
use super::super::removal::{KeptLines, Removal, RetentionCause, Span};
use super::RetentionError;
use super::name_finder::NameFinder;

/// Summary of a segment's contents.
#[derive(Debug, Default)]
pub(super) struct SegmentContent {
    lines: u64,
    bytes: u64,
    sha256: Option<LineHash>,
    chains: Vec<Span>,
    /// Hashes of the lines that are kept.
    hashes: Vec<LineHash>,
    /// Time of the youngest line, by the clock of then, in seconds since 1970.
    pub(super) latest: u64,
    /// Possible names of blobs, as far as they were asked for.
    pub(super) names: BTreeSet<String>,
}

/// Members of a line that give its time, its place, and whether it is kept.
#[derive(Deserialize)]
struct TimedHead {
    at: Option<u64>,
    chain: Option<Link>,
    checkpoint: Option<IgnoredAny>,
    removed: Option<IgnoredAny>,
}

impl TimedHead {
    const fn is_kept(&self) -> bool {
        self.checkpoint.is_some() || self.removed.is_some()
    }
}

/// Returns whether a line stays when its segment is removed: a checkpoint, or the record of an earlier segment's removal.
pub(super) fn is_kept(line: &[u8]) -> bool {
    serde_json::from_slice::<TimedHead>(line).is_ok_and(|head| head.is_kept())
}

impl SegmentContent {
    /// Reads a segment, and collects the names in it that are asked for. Each of its lines has to follow the one before it.
    pub(super) fn read(path: &Path, is_asked: impl Fn(&str) -> bool) -> Result<Self, RetentionError> {
        let mut content = Self::default();
        let (mut digest, mut found) = (digest::Context::new(&SHA256), NameFinder::default());
        let mut lines = lines_of(path).map_err(RetentionError::at(path))?;
        while let Some(line) = lines.read().map_err(RetentionError::at(path))? {
            let LineContent::Line(line) = line else {
                return Err(altered(path, format!("line {} has no end", content.lines + 1)));
            };
            digest.update(line);
            digest.update(b"\n");
            found.read(line, |name| content.name(name, &is_asked));
            found.end(|name| content.name(name, &is_asked));
            content.line(line).map_err(|problem| altered(path, problem))?;
        }
        if content.chains.is_empty() {
            return Err(altered(path, "it holds no line of a chain".to_owned()));
        }
        content.sha256 = Some(LineHash::from_digest(digest.finish()));
        Ok(content)
    }

    fn name(&mut self, name: &str, is_asked: impl Fn(&str) -> bool) {
        if !self.names.contains(name) && is_asked(name) {
            self.names.insert(name.to_owned());
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        self.lines += 1;
        self.bytes += u64::try_from(line.len()).unwrap_or(0).saturating_add(1);
        let hash = LineHash::of(line);
        let problem = |what: &str| format!("line {} {what}", self.lines);
        let head: TimedHead = serde_json::from_slice(line).map_err(|error| problem(&format!("is no record: {error}")))?;
        let (at, is_kept) = (head.at.unwrap_or(0), head.is_kept());
        self.latest = self.latest.max(at);
        match (head.chain, self.chains.last_mut()) {
            (None, None) => {}
            (None, Some(_)) => return Err(problem("has no place in the chain")),
            (Some(link), Some(span)) if follows(span, &link) => (span.last, span.head) = (link.number, hash),
            (Some(link), before) if before.is_none() || link.begins.is_some() => self.chains.push(Span {
                id: link.id,
                first: link.number,
                last: link.number,
                head: hash,
            }),
            (Some(_), Some(_) | None) => return Err(problem("does not follow the one before it")),
        }
        if is_kept {
            self.hashes.push(hash);
        }
        Ok(())
    }

    /// Returns the hashes of the lines that are kept, in their order.
    pub(super) fn kept_hashes(&self) -> &[LineHash] {
        &self.hashes
    }

    /// Returns the record of its removal.
    pub(super) fn removal(&self, segment: String, rule: RetentionCause) -> Removal {
        Removal {
            segment,
            rule,
            lines: self.lines,
            bytes: self.bytes,
            sha256: self.sha256.unwrap_or(LineHash::NONE),
            chains: self.chains.clone(),
            kept: KeptLines::from_hashes(self.hashes.iter().copied()),
        }
    }
}

fn follows(span: &Span, link: &Link) -> bool {
    span.id == link.id && span.last.checked_add(1) == Some(link.number) && span.head == link.previous
}

fn altered(path: &Path, problem: String) -> RetentionError {
    RetentionError::Altered {
        path: path.to_owned(),
        problem,
    }
}
