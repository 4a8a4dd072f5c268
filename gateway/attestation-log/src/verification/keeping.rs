//! Reading of the lines that were kept of removed segments.

use super::removed::KeptLine;
use super::strict::{self, Placed};
use super::{FoundCheckpoint, LineHash, LineLocation, LogVerifier, VerificationFinding};

/// Most malformed lines in all files of kept lines: each further one would take a hundred times its size in memory.
const UNREADABLE_LIMIT: usize = 4096;

impl LogVerifier {
    /// Begins a file whose lines were kept of removed segments.
    pub fn kept_file(&mut self, name: &str) {
        self.keeping = LineLocation {
            file: name.to_owned(),
            line: 0,
        };
    }

    /// Reads the next kept line, without its end.
    pub fn kept_line(&mut self, line: &[u8]) {
        if self.kept_unreadable > UNREADABLE_LIMIT {
            return;
        }
        self.keeping.line += 1;
        let place = self.keeping.clone();
        let unreadable = |why: String| VerificationFinding::KeptUnreadable { place: place.clone(), why };
        let Placed {
            link,
            at,
            checkpoint,
            removed: removal,
        } = match strict::read(line) {
            Ok(placed) => placed,
            Err(why) => return self.unreadable_kept(unreadable(why)),
        };
        if let Some(checkpoint) = &checkpoint {
            let finding = self.judge(&link, checkpoint, at);
            let signed = FoundCheckpoint::new(&link, checkpoint, at, finding.is_none());
            self.signed_and_kept.entry(link.id.clone()).or_default().push(signed);
            self.add_finding(finding, &link, checkpoint);
        } else if removal.is_none() {
            return self.unreadable_kept(unreadable("neither a checkpoint, nor that something was removed".to_owned()));
        }
        let lines = self.removed.kept_lines.entry((link.id, link.number)).or_default();
        lines.push(KeptLine {
            place,
            hash: LineHash::of(line),
            removal,
        });
    }

    fn unreadable_kept(&mut self, finding: VerificationFinding) {
        self.kept_unreadable += 1;
        if self.kept_unreadable > UNREADABLE_LIMIT {
            return self.findings.push(VerificationFinding::Unreadable {
                after: self.keeping.clone(),
                why: format!("more than {UNREADABLE_LIMIT} lines are not kept lines"),
            });
        }
        self.findings.push(finding);
    }
}
