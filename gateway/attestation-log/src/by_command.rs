//! Lines that are written by a command and not by a gateway.

use std::path::{Path, PathBuf};

use super::act::{Act, By, ValueChange, Verb};
use super::chain::ChainProgress;
use super::entry::{EventKind, LogEvent};
use super::journal_error::JournalError;
use super::log_file::LockedLog;
use super::record::{ChainedLine, decision_id};
use super::signer::CheckpointSigner;
use super::store_position::{StorePosition, StoreReplacement};
use super::unsigned::with_unsigned;
use super::writer_lock::WriterLock;

/// Attestation log that a command writes to: no gateway does so meanwhile.
#[derive(Debug)]
pub struct CommandLog {
    path: PathBuf,
    file: LockedLog,
    chain: ChainProgress,
    _lock: WriterLock,
}

impl CommandLog {
    /// Locks the log, and makes it if it does not exist.
    ///
    /// # Errors
    /// [`JournalError::InUse`] while a gateway serves, and [`JournalError::Io`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let lock = WriterLock::take(path)?;
        let (mut file, _) = LockedLog::open(path)?;
        let chain = file.chain()?;
        Ok(Self {
            path: path.to_owned(),
            file,
            chain,
            _lock: lock,
        })
    }

    /// Records durably that an administrator accepts a store that is not the known one: by which command, and which store it is. The line
    /// is signed with the gateway's key; unsigned lines before it are named as at a start. Returns the checkpoint, to be kept in the store.
    ///
    /// # Errors
    /// [`JournalError`]: then the store must not be accepted.
    pub fn store_accepted(
        &mut self,
        replacement: &StoreReplacement,
        (verb, by): (Verb, By),
        store: ValueChange,
        at: u64,
        signer: &CheckpointSigner,
    ) -> Result<String, JournalError> {
        let io = |source| JournalError::Io {
            path: self.path.clone(),
            source,
        };
        let mut chain = with_unsigned(&self.path, signer.key(), self.chain.clone()).map_err(io)?;
        let id = decision_id().ok_or(JournalError::Failed)?;
        let what = EventKind::StoreAccepted {
            accepted_store: replacement.clone(),
            admin: Act::done(verb, at, by, vec![store]),
        };
        let event = LogEvent::new(id, at, what, reason(replacement));
        // Which store it is from now on is not known before it is one: the next line says it.
        let line = serde_json::to_vec(&ChainedLine {
            record: &event,
            store: None,
        })?;
        let mut lines = chain.link(&line)?;
        let (id, count, head) = chain.head();
        let record = signer.sign(id, count, head, at, chain.found())?;
        let checkpoint = serde_json::to_vec(&ChainedLine {
            record: &record,
            store: None,
        })?;
        let checkpoint = chain.link_checkpoint(&checkpoint)?;
        lines.extend_from_slice(&checkpoint);
        self.file.append(&lines).map_err(io)?;
        self.chain = chain;
        Ok(String::from_utf8_lossy(&checkpoint).trim_end().to_owned())
    }
}

fn reason(StoreReplacement { known, found }: &StoreReplacement) -> String {
    let named = |mark: &Option<StorePosition>, otherwise: &str| mark.as_ref().map_or_else(|| otherwise.to_owned(), ToString::to_string);
    format!(
        "an administrator accepted the current store: expected was {}, found was {}; the gateway has forgotten the revocations, names and \
         uses that the found store lacks",
        named(known, "an unknown store"),
        named(found, "none")
    )
}
