//! The signer of a gateway's checkpoints.

use super::chain::{LineHash, UncoveredLines};
use super::checkpoint::{Checkpoint, CheckpointSignature, text};
use super::entry::LogEvent;
use super::journal_error::JournalError;
use super::log_key::{LogKey, LogPublicKey};
use super::record::decision_id;
use super::replica_name::replica_name;

/// A gateway as the signer of its log's checkpoints.
#[derive(Debug)]
pub struct CheckpointSigner {
    key: LogKey,
    replica: String,
    /// The number of lines after a checkpoint at which another is due.
    every: u64,
}

impl CheckpointSigner {
    /// Creates the signer of a gateway of this name, or of the host's.
    #[must_use]
    pub fn new(key: LogKey, replica: Option<&str>, every: u64) -> Self {
        let replica = replica_name(replica);
        Self { key, replica, every }
    }

    pub(super) const fn every(&self) -> u64 {
        self.every
    }

    /// Returns the name of the gateway.
    pub(super) fn replica(&self) -> &str {
        &self.replica
    }

    #[must_use]
    pub const fn key(&self) -> LogPublicKey {
        self.key.public()
    }

    /// Returns the event with a checkpoint of a chain at this time, in seconds since 1970.
    ///
    /// # Errors
    /// [`JournalError::Failed`] without random bytes.
    pub fn sign(&self, chain: &str, count: u64, head: LineHash, at: u64, found: Option<UncoveredLines>) -> Result<LogEvent, JournalError> {
        let id = decision_id().ok_or(JournalError::Failed)?;
        let checkpoint = Checkpoint {
            replica: self.replica.clone(),
            count,
            head,
            found,
            key: self.key.public(),
            signature: CheckpointSignature(self.key.sign(text(&self.replica, chain, count, head, at, found).as_bytes())),
        };
        Ok(checkpoint.event(id, at))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::entry::EventKind;
    use super::*;

    #[test]
    fn checkpoint_signature_covers_each_field() {
        let folder = tempfile::tempdir().unwrap();
        let key = |name: &str| LogKey::open(&folder.path().join(name)).unwrap();
        let signer = CheckpointSigner::new(key("a"), Some("gw-1"), 1);
        let (chain, head) = ("0".repeat(32), LineHash::of(b"line"));
        let signed = signer
            .sign(&chain, 7, head, 1000, Some(UncoveredLines { first: 3, last: 7 }))
            .unwrap();
        let EventKind::Checkpoint { checkpoint: good } = signed.what else {
            unreachable!("{signed:?}")
        };
        assert!(good.is_signed(&chain, 1000));
        let altered = |alter: fn(&mut Checkpoint)| {
            let mut altered = good.clone();
            alter(&mut altered);
            altered.is_signed(&chain, 1000)
        };
        assert!(!altered(|it| it.replica = "gw-2".to_owned()));
        assert!(!altered(|it| it.count = 8));
        assert!(!altered(|it| it.head = LineHash::NONE));
        assert!(!altered(|it| it.found = None));
        assert!(!altered(|it| it.found = Some(UncoveredLines { first: 4, last: 7 })));
        assert!(!altered(|it| it.signature.0[0] ^= 1));
        assert!(!good.is_signed(&"1".repeat(32), 1000));
        assert!(!good.is_signed(&chain, 1001));
        let mut by_another = good.clone();
        by_another.key = key("b").public();
        assert!(!by_another.is_signed(&chain, 1000));
        // What it says reads as the next sentence, not as the one of another field.
        assert_eq!(text("r", "c", 1, LineHash::NONE, 2, None).lines().count(), 6);
    }
}
