//! Time since which a log was read without a gap.

use super::chain::{Link, Why};

/// Detector of gaps in the lines read. They are read in the order in which they were written, as far as their files exist.
#[derive(Debug, Default)]
pub(super) struct Reach {
    began: Option<u64>,
    run: Option<ReadRange>,
    /// Set if a line of the current file was read.
    in_file: bool,
}

/// Lines of a chain that were read, all of them from one number to another.
#[derive(Debug)]
struct ReadRange {
    chain: String,
    first: u64,
    last: u64,
}

impl Reach {
    /// Notes that the next line is from another file.
    pub(super) const fn another_file(&mut self) {
        self.in_file = false;
    }

    /// Notes the next line, written at this second, with its place in its chain if it has one.
    pub(super) fn line(&mut self, at: u64, link: Option<&Link>) {
        if !self.follows(link) || self.began.is_none() {
            self.began = Some(at);
        }
        self.in_file = true;
        match (link, &mut self.run) {
            (Some(link), Some(run)) if run.is_followed_by(link) => run.last = run.last.max(link.number),
            (link, run) => *run = link.map(ReadRange::from_link),
        }
    }

    /// Returns whether no line can be missing between the last line and this one. For lines without a place in a chain only their file
    /// shows that.
    fn follows(&self, link: Option<&Link>) -> bool {
        match (&self.run, link) {
            (Some(run), Some(link)) => run.is_followed_by(link),
            (Some(_), None) => false,
            (None, Some(link)) => self.in_file && link.begins.as_ref().is_some_and(|begins| begins.why == Why::Unchained),
            (None, None) => self.in_file,
        }
    }

    /// Returns the time since which nothing is missing up to the end. The last file that was read is the one that is written: if it is
    /// empty, the position of the end is not known.
    pub(super) fn began(&self) -> Option<u64> {
        self.began.filter(|_| self.in_file)
    }
}

impl ReadRange {
    fn from_link(link: &Link) -> Self {
        Self {
            chain: link.id.clone(),
            first: link.number,
            last: link.number,
        }
    }

    /// Returns whether a line follows without a gap. A line that was read already, from a copy, does too.
    fn is_followed_by(&self, link: &Link) -> bool {
        self.chain == link.id && (self.first..=self.last.saturating_add(1)).contains(&link.number)
    }
}
