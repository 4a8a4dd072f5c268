//! What was kept of segments that were removed, read.

use super::removed::KeptLine;
use super::strict::{self, Placed};
use super::{Finding, LineHash, Place, Signed, Verifier};

impl Verifier {
    /// The lines that follow were kept of segments that were removed, in this file.
    pub fn kept_file(&mut self, name: &str) {
        self.keeping = Place {
            file: name.to_owned(),
            line: 0,
        };
    }

    /// The next of them, without its end.
    pub fn kept_line(&mut self, line: &[u8]) {
        self.keeping.line += 1;
        let place = self.keeping.clone();
        let unreadable = |why: String| Finding::KeptUnreadable { place: place.clone(), why };
        let Placed {
            link,
            at,
            checkpoint,
            removed: removal,
        } = match strict::read(line) {
            Ok(placed) => placed,
            Err(why) => return self.findings.push(unreadable(why)),
        };
        if let Some(checkpoint) = &checkpoint {
            let finding = self.judge(&link, checkpoint, at);
            let signed = Signed::of(&link, checkpoint, at, finding.is_none());
            self.signed_and_kept.entry(link.id.clone()).or_default().push(signed);
            self.say(finding, &link, checkpoint);
        } else if removal.is_none() {
            return self
                .findings
                .push(unreadable("neither a checkpoint, nor that something was removed".to_owned()));
        }
        let lines = self.removed.kept.entry((link.id, link.number)).or_default();
        lines.push(KeptLine {
            place,
            hash: LineHash::of(line),
            removal,
        });
    }
}
