//! Reading of lines, file by file: the chain of each, and its statements about those before it.

use std::collections::BTreeSet;

use aws_lc_rs::digest;

use super::super::chain::{LineHash, Link, Why};
use super::removed::RemovalStatement;
use super::strict::{self, Placed};
use super::{ChainedRange, FileReport, LineLocation, LogVerifier, Note, UnchainedLines, VerificationFinding};

/// Lines of a file without a place in a chain, since the last one that has one.
#[derive(Debug)]
struct Outside {
    first: u64,
    count: u64,
    why: String,
}

/// Most parts and faults of one file that are held. A gateway's file has one part, and an archive one for each file in it. Findings in a
/// file that is made to have more would take thousands of times its size.
const PARTS_LIMIT: usize = 4096;

/// State of reading a file.
pub(super) struct LineReader {
    name: String,
    /// Number of parts and faults that the verifier held when the file was begun.
    held: usize,
    /// Set if it has too many parts and faults: its rest is not looked at.
    is_over: bool,
    line: u64,
    bytes: u64,
    hash: digest::Context,
    outside: Option<Outside>,
    /// Chains of the lines before this one.
    chains: BTreeSet<String>,
    run: Option<ChainedRange>,
    /// Highest line number of the chain that the file is in.
    highest: u64,
    report: FileReport,
}

impl LogVerifier {
    /// Begins a file, to which the following lines belong.
    pub fn file(&mut self, name: &str) {
        self.end_of_file();
        self.reading = Some(LineReader {
            name: name.to_owned(),
            held: self.held(),
            is_over: false,
            line: 0,
            bytes: 0,
            hash: digest::Context::new(&digest::SHA256),
            outside: None,
            chains: BTreeSet::new(),
            run: None,
            highest: 0,
            report: FileReport {
                name: name.to_owned(),
                ..FileReport::default()
            },
        });
    }

    /// Reports that the rest of the file cannot be read.
    pub fn unreadable(&mut self, why: String) {
        if let Some(LineReader { name, line, .. }) = &self.reading {
            let (file, line) = (name.clone(), *line);
            let after = LineLocation { file, line };
            self.findings.push(VerificationFinding::Unreadable { after, why });
        }
    }

    /// Reports a file of which nothing can be read.
    pub fn unreadable_file(&mut self, file: String, why: String) {
        let after = LineLocation { file, line: 0 };
        self.findings.push(VerificationFinding::Unreadable { after, why });
    }

    /// Returns the number of parts and faults that are held.
    fn held(&self) -> usize {
        let Self {
            runs,
            findings,
            notes,
            lost,
            covered,
            before,
            removed,
            ..
        } = self;
        runs.len() + findings.len() + notes.len() + lost.len() + covered.len() + before.len() + removed.statements.len()
    }

    /// Reads the file's next line, without its end.
    pub fn line(&mut self, line: &[u8]) {
        let Some(mut reading) = self.reading.take_if(|reading| !reading.is_over) else {
            return;
        };
        if self.held().saturating_sub(reading.held) > PARTS_LIMIT {
            let (file, line) = (reading.name.clone(), reading.line);
            self.findings.push(VerificationFinding::Unreadable {
                after: LineLocation { file, line },
                why: format!("it has more than {PARTS_LIMIT} parts and faults, which no gateway writes"),
            });
            reading.is_over = true;
            self.reading = Some(reading);
            return;
        }
        reading.line += 1;
        match strict::read(line) {
            Ok(placed) => self.placed(&mut reading, placed, LineHash::of(line)),
            Err(why) => {
                let (first, count) = (reading.line, 0);
                let outside = reading.outside.get_or_insert(Outside { first, count, why });
                outside.count += 1;
            }
        }
        reading.hash.update(line);
        reading.hash.update(b"\n");
        reading.bytes += u64::try_from(line.len()).unwrap_or(0).saturating_add(1);
        self.reading = Some(reading);
    }

    /// Reports bytes after the file's last line, without an end.
    pub fn torn(&mut self) {
        if let Some(LineReader { name, line, .. }) = &self.reading {
            let place = LineLocation {
                file: name.clone(),
                line: line + 1,
            };
            self.findings.push(VerificationFinding::Torn { place });
        }
    }

    fn placed(&mut self, reading: &mut LineReader, placed: Placed, hash: LineHash) {
        let Placed {
            link,
            at,
            checkpoint,
            removed,
        } = placed;
        let place = LineLocation {
            file: reading.name.clone(),
            line: reading.line,
        };
        let report = &mut reading.report;
        report.first.get_or_insert_with(|| (link.id.clone(), link.number));
        report.chains.insert(link.id.clone());
        let from = self.trust.from.get(&link.id).filter(|from| link.number <= from.number);
        // What verification begins after stands before the rest of its chain, and nowhere else.
        if let Some(from) = from.filter(|_| !reading.chains.contains(&link.id)) {
            // A cut archive may begin with it.
            if link.number == from.number {
                self.begun.insert(link.id.clone());
                if hash != from.sha256 {
                    self.findings.push(VerificationFinding::Replaced {
                        chain: link.id,
                        number: link.number,
                    });
                }
            }
            reading.report.skipped = reading.line;
            reading.outside = None;
            return;
        }
        let follows = reading.run.as_ref().is_some_and(|run| run.chain == link.id);
        match &link.begins {
            Some(begins) => {
                self.beginning(reading, begins.before.map(|before| (before.bytes, before.sha256)), &place, &link);
                self.lost.extend(begins.after.iter().cloned());
            }
            None => self.outside(reading, follows.then_some(link.number)),
        }
        if !follows && link.begins.is_none() && !reading.chains.is_empty() {
            self.spliced(reading, &link.id, link.number, &place);
        }
        if follows && link.number <= reading.highest {
            self.findings.push(VerificationFinding::OutOfOrder {
                chain: link.id.clone(),
                number: link.number,
                place: place.clone(),
            });
        }
        if let Some(checkpoint) = &checkpoint {
            self.checkpoint(&link, checkpoint, at);
        }
        if let Some(removal) = removed {
            let (chain, number) = (link.id.clone(), link.number);
            self.removed.statements.push(RemovalStatement { chain, number, removal });
        }
        reading.highest = if follows { reading.highest.max(link.number) } else { link.number };
        match &mut reading.run {
            Some(run) if follows && link.number == run.last().saturating_add(1) => {
                if run.hashes.last() != Some(&link.previous) {
                    run.breaks.push(link.number);
                }
                run.hashes.push(hash);
                run.last_at = at;
            }
            run => {
                reading.chains.insert(link.id.clone());
                let new = ChainedRange {
                    begins: link.begins.is_some(),
                    chain: link.id,
                    first: link.number,
                    previous: link.previous,
                    place,
                    hashes: vec![hash],
                    breaks: Vec::new(),
                    first_at: at,
                    last_at: at,
                };
                self.runs.extend(run.replace(new));
            }
        }
    }

    /// Checks a chain's first line against the contents before it in its file.
    fn beginning(&mut self, reading: &mut LineReader, before: Option<(u64, LineHash)>, place: &LineLocation, link: &Link) {
        let found = (reading.bytes > 0).then(|| (reading.bytes, LineHash::from_digest(reading.hash.clone().finish())));
        let outside = reading.outside.take();
        let odd = link.begins.as_ref().is_some_and(|begins| match begins.why {
            // No gateway begins a new log after something, or misses nothing in one that it says is incomplete.
            Why::New => begins.before.is_some(),
            Why::Incomplete => begins.after.is_empty(),
            Why::Unchained => false,
        });
        if odd {
            self.spliced(reading, &link.id, link.number, place);
        } else if found == before {
            let covered = reading.chains.iter().map(|chain| (chain.clone(), link.id.clone()));
            self.covered.extend(covered);
            self.before.extend(outside.map(|outside| UnchainedLines {
                place: LineLocation {
                    file: place.file.clone(),
                    line: outside.first,
                },
                lines: outside.count,
                chain: link.id.clone(),
            }));
        } else if before.is_none() && !reading.chains.is_empty() {
            self.spliced(reading, &link.id, link.number, place);
        } else {
            self.findings.push(VerificationFinding::BeforeAltered {
                place: place.clone(),
                lines: reading.line.saturating_sub(1),
            });
        }
    }

    fn spliced(&mut self, reading: &LineReader, chain: &str, number: u64, place: &LineLocation) {
        let into = reading.run.as_ref().map_or_else(|| chain.to_owned(), |run| run.chain.clone());
        self.findings.push(VerificationFinding::Spliced {
            chain: chain.to_owned(),
            number,
            into,
            place: place.clone(),
        });
    }

    /// Reports lines without a chain before a line, which may be the next of the same chain.
    fn outside(&mut self, reading: &mut LineReader, next: Option<u64>) {
        let Some(Outside { first, count, why }) = reading.outside.take() else {
            return;
        };
        let after = reading.run.as_ref().map(|run| (run.chain.clone(), run.last()));
        let span = |last: u64| Some((last.checked_add(1)?, last.checked_add(count)?));
        let span = after.and_then(|(chain, last)| span(last).map(|(from, to)| (chain, from, to)));
        match (span, next) {
            (Some((chain, from, to)), Some(next)) if to.checked_add(1) == Some(next) => {
                self.unreadable.entry(chain.clone()).or_default().push(from..=to);
                let why = Some(why);
                self.findings.push(VerificationFinding::Altered { chain, from, to, why });
            }
            _ => {
                let place = LineLocation {
                    file: reading.name.clone(),
                    line: first,
                };
                self.findings.push(VerificationFinding::PutIn { place, lines: count, why });
            }
        }
    }

    pub(super) fn end_of_file(&mut self) {
        let Some(mut reading) = self.reading.take() else { return };
        if reading.report.chains.is_empty()
            && let Some(outside) = reading.outside.take()
        {
            let (file, lines) = (reading.name.clone(), outside.count);
            if self.trust.unchained {
                let (to, held) = (lines, false);
                self.notes.push(Note::Unchained { file, to, held });
            } else {
                self.findings.push(VerificationFinding::Unchained { file, lines });
            }
        }
        self.outside(&mut reading, None);
        // All of them are held until the end.
        self.runs.extend(reading.run.map(|mut run| {
            run.hashes.shrink_to_fit();
            run
        }));
        self.files.push(reading.report);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::VerificationContext;
    use super::*;

    fn line(chain: usize, number: u64) -> String {
        let previous = "0".repeat(64);
        format!(r#"{{"at":7,"chain":{{"id":"{chain}","number":{number},"previous":"{previous}"}}}}"#)
    }

    fn is_over(finding: &VerificationFinding) -> bool {
        matches!(finding, VerificationFinding::Unreadable { why, .. } if why.contains("parts and faults"))
    }

    #[test]
    fn skips_a_file_with_too_many_chain_parts() {
        let mut verifier = LogVerifier::new(VerificationContext::default());
        for file in ["a", "b"] {
            verifier.file(file);
            for number in 0..4 * PARTS_LIMIT {
                verifier.line(line(number, 5).as_bytes());
                verifier.line(b"x");
            }
        }
        verifier.end_of_file();
        assert!(verifier.held() < 3 * PARTS_LIMIT, "{}", verifier.held());
        assert_eq!(verifier.findings.iter().filter(|finding| is_over(finding)).count(), 2);
    }

    #[test]
    fn many_unreadable_lines_are_one_finding() {
        let mut verifier = LogVerifier::new(VerificationContext::default());
        verifier.file("a");
        verifier.line(line(0, 1).as_bytes());
        for _ in 0..10 * PARTS_LIMIT {
            verifier.line(b"");
        }
        let next = u64::try_from(10 * PARTS_LIMIT).unwrap() + 2;
        verifier.line(line(0, next).as_bytes());
        let report = verifier.finish();
        let missing = report
            .findings
            .iter()
            .filter(|finding| matches!(finding, VerificationFinding::Missing { .. }))
            .count();
        // Besides, the last line names no line before it that was read.
        let altered = report
            .findings
            .iter()
            .filter(|finding| matches!(finding, VerificationFinding::Altered { why: Some(_), .. }))
            .count();
        assert_eq!((missing, altered), (0, 1), "{:?}", report.findings);
        assert_eq!(report.findings.len(), 2, "{:?}", report.findings);
    }
}
