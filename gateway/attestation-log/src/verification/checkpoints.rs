//! Verification of checkpoints: their keys, and their places.

use super::super::chain::{Link, UncoveredLines};
use super::super::checkpoint::Checkpoint;
use super::{FoundCheckpoint, LogVerifier, Note, VerificationFinding};

impl LogVerifier {
    pub(super) fn checkpoint(&mut self, link: &Link, checkpoint: &Checkpoint, at: u64) {
        let finding = self.judge(link, checkpoint, at);
        if let Some(UncoveredLines { first, last }) = checkpoint.found {
            self.notes.push(Note::Found {
                chain: link.id.clone(),
                from: first,
                to: last,
            });
        }
        let signed = FoundCheckpoint::new(link, checkpoint, at, finding.is_none());
        self.signed.entry(link.id.clone()).or_default().push(signed);
        self.add_finding(finding, link, checkpoint);
    }

    /// Returns the fault of a checkpoint. The unsigned lines that a good one names are noted.
    pub(super) fn judge(&mut self, link: &Link, checkpoint: &Checkpoint, at: u64) -> Option<VerificationFinding> {
        let (chain, number) = (link.id.clone(), link.number);
        let here = checkpoint.count.checked_add(1) == Some(number) && checkpoint.head == link.previous;
        let trusted = self.trust.keys.is_empty() || self.trust.keys.contains(&checkpoint.key);
        let signed = checkpoint.is_signed(&chain, at);
        let is_its = self
            .trust
            .names
            .get(&checkpoint.key)
            .is_none_or(|names| names.contains(&checkpoint.replica));
        match (signed, here, trusted) {
            (false, _, _) => Some(VerificationFinding::CheckpointFalse { chain, number }),
            (true, _, false) => Some(VerificationFinding::CheckpointUnknown {
                chain,
                number,
                key: checkpoint.key.to_string(),
            }),
            (true, false, true) => Some(VerificationFinding::CheckpointMoved {
                chain,
                number,
                count: checkpoint.count,
            }),
            (true, true, true) if !is_its => Some(VerificationFinding::CheckpointOfAnother {
                chain,
                number,
                replica: checkpoint.replica.clone(),
            }),
            (true, true, true) => {
                self.removed.found.entry(chain).or_default().extend(checkpoint.found);
                None
            }
        }
    }

    /// Adds the finding. An unknown key is reported once for each chain.
    pub(super) fn add_finding(&mut self, finding: Option<VerificationFinding>, link: &Link, checkpoint: &Checkpoint) {
        if let Some(VerificationFinding::CheckpointUnknown { .. }) = &finding
            && !self.unknown.insert((link.id.clone(), checkpoint.key))
        {
            return;
        }
        self.findings.extend(finding);
    }
}
