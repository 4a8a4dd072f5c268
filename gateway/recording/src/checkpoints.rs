//! Checkpoints in the store: the last one of each chain by each key. They reveal a log that has lost lines, or was signed again.

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use attest_log::{Abandoned, Journal, LastCheckpoint, LastCheckpointError, LogPublicKey, Point, required_checkpoints};
use attest_store::{EntryKind, Store, StoreEntry, StoreError, Transact};

/// Chains of one gateway that are kept although another has taken their place: more than any has begun for a reason.
const SUPERSEDED_LIMIT: usize = 16;

/// Returns whether an entry with this id belongs to a chain that this key has signed.
pub(super) fn is_of_key(id: &str, key: LogPublicKey) -> bool {
    id.split_once('.').is_some_and(|(_, of)| of == key.hex())
}

/// Outcome of an attempt to keep a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointUpdate {
    Kept,
    /// The store has a later one, or another one in its place: another process writes this chain.
    Behind,
}

fn unreadable(id: String) -> impl FnOnce(serde_json::Error) -> StoreError {
    move |source| StoreError::Entry {
        kind: EntryKind::Checkpoint.as_str(),
        id,
        source,
    }
}

fn read(entry: &StoreEntry) -> Result<LastCheckpoint, StoreError> {
    LastCheckpoint::read(&entry.value).map_err(|error| match error {
        LastCheckpointError::Json(source) => unreadable(entry.id.clone())(source),
        LastCheckpointError::Newer(newer) => StoreError::Newer {
            key: format!("entry/{}/{}", EntryKind::Checkpoint.as_str(), entry.id),
            newer,
        },
    })
}

fn entry(kept: &LastCheckpoint) -> Result<StoreEntry, StoreError> {
    let id = kept.id();
    match kept.to_json() {
        Ok(value) => Ok(StoreEntry { id, value }),
        Err(error) => Err(unreadable(id)(error)),
    }
}

/// The last checkpoints of all chains that the store knows, by each key.
///
/// # Errors
/// [`StoreError`].
pub async fn last_checkpoints(store: &dyn Store) -> Result<Vec<LastCheckpoint>, StoreError> {
    store.list(EntryKind::Checkpoint).await?.iter().map(read).collect()
}

/// Keeps a checkpoint, a line of the log, unless the store has a later one of its chain by its key. A chain that was abandoned is required
/// again if it is signed on.
///
/// # Errors
/// [`StoreError`].
pub async fn keep(store: &dyn Store, text: &str) -> Result<CheckpointUpdate, StoreError> {
    let serves_as = store.serves_as().map(str::to_owned);
    let mut new = LastCheckpoint::new(text, serves_as).map_err(unreadable(String::new()))?;
    let id = new.id();
    loop {
        let Some(there) = store.get(EntryKind::Checkpoint, &id).await? else {
            // Whether it holds those of before was looked at when it began.
            let before = own(store, new.key()).await?;
            new.after.extend(before.into_iter().map(|kept| kept.line.chain.id));
            if store.insert(EntryKind::Checkpoint, entry(&new)?).await?.is_some() {
                continue;
            }
            forget_superseded(store, new.key()).await?;
            return Ok(CheckpointUpdate::Kept);
        };
        let known = read(&there)?;
        let is_same = known.text == new.text;
        if is_same && known.abandoned.is_none() {
            return Ok(CheckpointUpdate::Kept);
        }
        if !is_same && known.line.chain.number >= new.line.chain.number {
            return Ok(CheckpointUpdate::Behind);
        }
        new.after.extend(known.after);
        let written = entry(&new)?;
        if store.change(EntryKind::Checkpoint, vec![there], vec![written]).await? {
            return Ok(CheckpointUpdate::Kept);
        }
    }
}

/// Has the store keep the journal's last checkpoint, if it has not got it: one after the other, so that none comes after a later one.
///
/// # Errors
/// [`StoreError`]: it has to be asked again.
pub async fn keep_checkpoint(journal: &Journal, store: &dyn Store) -> Result<CheckpointUpdate, StoreError> {
    let keeping = journal.pass_on_checkpoint(|text| async move { keep(store, &text).await }).await?;
    Ok(keeping.unwrap_or(CheckpointUpdate::Kept))
}

/// Removes the superseded chains of this key, except the newest [`SUPERSEDED_LIMIT`] and those that were abandoned.
async fn forget_superseded(store: &dyn Store, key: LogPublicKey) -> Result<(), StoreError> {
    let all = own(store, key).await?;
    let mut old: Vec<&LastCheckpoint> = all
        .iter()
        .filter(|kept| kept.abandoned.is_none() && kept.is_superseded(&all))
        .collect();
    old.sort_by_key(|kept| std::cmp::Reverse(kept.line.at));
    for kept in old.into_iter().skip(SUPERSEDED_LIMIT) {
        store.remove(EntryKind::Checkpoint, &kept.id()).await?;
    }
    Ok(())
}

async fn own(store: &dyn Store, key: LogPublicKey) -> Result<Vec<LastCheckpoint>, StoreError> {
    let all = last_checkpoints(store).await?.into_iter();
    Ok(all.filter(|kept| kept.key() == key).collect())
}

/// The result of giving up a chain.
#[derive(Debug)]
pub enum AbandonOutcome {
    /// The checkpoints that were abandoned.
    Done(Vec<LastCheckpoint>),
    /// The gateway of this checkpoint serves.
    Serves(Box<LastCheckpoint>),
    /// The store has changed meanwhile: another checkpoint, or another command.
    Changed,
}

/// Gives up chains that are lost for good, by the keys that `is_wanted` chooses, and chains that only these have replaced. Their
/// checkpoints stay in the store. At that moment no gateway may serve that has signed one of them, except `this` one, by its id.
///
/// # Errors
/// [`StoreError`].
pub async fn abandon(
    store: &dyn Store,
    is_wanted: impl Fn(&LastCheckpoint) -> bool,
    this: Option<&str>,
    abandoned: Abandoned,
) -> Result<AbandonOutcome, StoreError> {
    let entries = store.list(EntryKind::Checkpoint).await?;
    let all: Vec<LastCheckpoint> = entries.iter().map(read).collect::<Result<_, _>>()?;
    let mut gone: BTreeSet<String> = BTreeSet::new();
    loop {
        let is_left = |kept: &LastCheckpoint| {
            let mut others = all.iter().filter(|other| other.supersedes(kept)).peekable();
            others.peek().is_some() && others.all(|other| gone.contains(&other.id()))
        };
        let next = all
            .iter()
            .filter(|kept| kept.abandoned.is_none() && !gone.contains(&kept.id()))
            .find(|kept| is_wanted(kept) || is_left(kept));
        match next {
            Some(kept) => gone.insert(kept.id()),
            None => break,
        };
    }
    let (mut expected, mut written, mut done) = (Vec::new(), Vec::new(), Vec::new());
    for (there, kept) in entries.iter().zip(&all).filter(|(_, kept)| gone.contains(&kept.id())) {
        let kept = LastCheckpoint {
            abandoned: Some(abandoned.clone()),
            ..kept.clone()
        };
        expected.push(there.clone());
        written.push(entry(&kept)?);
        done.push(kept);
    }
    let serving = done
        .iter()
        .filter_map(|kept| kept.serves_as.clone())
        .filter(|id| Some(id.as_str()) != this);
    let serving: BTreeSet<String> = serving.collect();
    let given = store.transact(move |transaction| {
        for id in &serving {
            if transaction.is_served_by(id)? {
                return Ok(GiveUpResult::Serves(id.clone()));
            }
        }
        for entry in &expected {
            if transaction.get(EntryKind::Checkpoint, &entry.id)?.as_ref() != Some(entry) {
                return Ok(GiveUpResult::Changed);
            }
        }
        for entry in &written {
            transaction.put(EntryKind::Checkpoint, entry.clone())?;
        }
        Ok::<_, StoreError>(GiveUpResult::Done)
    });
    Ok(match given.await? {
        GiveUpResult::Done => AbandonOutcome::Done(done),
        GiveUpResult::Changed => AbandonOutcome::Changed,
        GiveUpResult::Serves(id) => match done.into_iter().find(|kept| kept.serves_as.as_ref() == Some(&id)) {
            Some(kept) => AbandonOutcome::Serves(Box::new(kept)),
            None => AbandonOutcome::Changed,
        },
    })
}

/// Result of a transaction that abandons chains.
enum GiveUpResult {
    Done,
    Changed,
    /// The gateway with this id serves.
    Serves(String),
}

/// The chain and the key by which a gateway signs.
#[derive(Debug, Clone, Copy)]
pub struct Signs<'g> {
    pub chain: &'g str,
    pub key: LogPublicKey,
}

/// The checkpoints by another key, of chains of gateways with this name, or of this gateway's own chain, that a log has to hold.
///
/// # Errors
/// [`StoreError`].
pub async fn checkpoints_by_other_keys(store: &dyn Store, replica: &str, own: Signs<'_>) -> Result<Vec<LastCheckpoint>, StoreError> {
    let all = last_checkpoints(store).await?;
    let is_own = |kept: &LastCheckpoint| kept.line.checkpoint.replica == replica || kept.line.chain.id == own.chain;
    let others = required_checkpoints(&all).filter(|kept| kept.key() != own.key && is_own(kept));
    Ok(others.cloned().collect())
}

/// Returns the checkpoints that the store keeps for this gateway's key, and that its log lacks: lines were removed or altered. They include
/// those of its chain by an earlier key, because the process that replaces a key may sign other lines with it. A chain of its own that was
/// given up and goes on has to be complete.
///
/// # Errors
/// [`StoreError`], also if the log cannot be read.
pub async fn missing(store: &dyn Store, log: &Path, own: Signs<'_>) -> Result<Vec<Point>, StoreError> {
    let all = last_checkpoints(store).await?;
    let is_own = |kept: &LastCheckpoint| kept.key() == own.key || kept.line.chain.id == own.chain && kept.abandoned.is_none();
    let mut missing = Vec::new();
    for kept in all.iter().filter(|kept| is_own(kept) && !kept.is_superseded(&all)) {
        let holds = kept.is_in(log).map_err(|source| StoreError::Io {
            path: log.to_owned(),
            source,
        })?;
        if !holds {
            missing.push(kept.point());
        }
    }
    Ok(missing)
}
