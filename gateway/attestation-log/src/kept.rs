//! Checkpoints in the store: the last one of each chain by each key. They reveal a log that has lost lines, or was signed again.

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use attest_store::{ChangeUnlessServed, Entry, EntryKind, Store, StoreError};
use serde::{Deserialize, Serialize};

use super::chain::{LineHash, Point, link_of};
use super::checkpoint::CheckpointLine;
use super::log_end::lines_from_end;
use super::log_key::LogPublicKey;
use super::reading::{Found, LogFile, rotated};

/// Chains of one gateway that are kept although another has taken their place: more than any has begun for a reason.
const SUPERSEDED_LIMIT: usize = 16;
/// The version of what is kept.
const VERSION: u32 = 1;

/// An entry of the store: the last checkpoint of a chain by one key.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    v: u32,
    /// The id under which its gateway serves, where several share the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    serves_as: Option<String>,
    /// The chains in whose place it has begun.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    after: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given_up: Option<GivenUp>,
    /// Its last checkpoint: the line, as the log has it.
    checkpoint: String,
}

/// The command by which a checkpoint was given up: no log has to hold it from then on, and `audit` shows it for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenUp {
    /// Time of the command, in seconds since 1970.
    pub at: u64,
    /// The user and host that ran the command.
    pub by: String,
}

/// The last checkpoint of a chain by one key.
#[derive(Debug, Clone)]
pub struct Kept {
    /// As the log has it.
    pub text: String,
    pub line: CheckpointLine,
    pub given_up: Option<GivenUp>,
    /// The id under which its gateway serves, where several share the store.
    pub serves_as: Option<String>,
    /// The entry's id in the store.
    id: String,
    after: BTreeSet<String>,
}

/// Returns the id of the entry for a chain and a key: a key that replaces another has an entry of its own.
fn entry_id(line: &CheckpointLine) -> String {
    format!("{}.{}", line.chain.id, line.checkpoint.key.hex())
}

/// Returns whether an entry with this id belongs to a chain that this key has signed.
pub(super) fn is_of_key(id: &str, key: LogPublicKey) -> bool {
    id.split_once('.').is_some_and(|(_, of)| of == key.hex())
}

impl Kept {
    fn read(entry: &Entry) -> Result<Self, serde_json::Error> {
        let Value {
            v,
            serves_as,
            after,
            given_up,
            checkpoint,
        } = serde_json::from_str(&entry.value)?;
        if v != VERSION {
            return Err(serde::de::Error::custom(format!(
                "it has version {v}, and this release knows {VERSION} only"
            )));
        }
        let line = serde_json::from_str(&checkpoint)?;
        Ok(Self {
            text: checkpoint,
            line,
            given_up,
            serves_as,
            id: entry.id.clone(),
            after,
        })
    }

    /// The line that it is.
    #[must_use]
    pub fn point(&self) -> Point {
        Point {
            chain: self.line.chain.id.clone(),
            number: self.line.chain.number,
            sha256: LineHash::of(self.text.as_bytes()),
        }
    }

    #[must_use]
    pub const fn key(&self) -> LogPublicKey {
        self.line.checkpoint.key
    }

    /// Returns whether this checkpoint was signed after another one of its chain. Of two of the same second the one on the later line is the later one.
    #[must_use]
    pub fn is_later_than(&self, other: &Self) -> bool {
        let moment = |kept: &Self| (kept.line.at, kept.line.chain.number);
        moment(self) > moment(other)
    }

    fn entry(&self) -> Result<Entry, StoreError> {
        let value = Value {
            v: VERSION,
            serves_as: self.serves_as.clone(),
            after: self.after.clone(),
            given_up: self.given_up.clone(),
            checkpoint: self.text.clone(),
        };
        let id = self.id.clone();
        match serde_json::to_string(&value) {
            Ok(value) => Ok(Entry { id, value }),
            Err(error) => Err(unreadable(id)(error)),
        }
    }
}

/// What became of a checkpoint that was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    Kept,
    /// The store has one that comes later, or another one in its place: somebody else writes this chain.
    Behind,
}

fn unreadable(id: String) -> impl FnOnce(serde_json::Error) -> StoreError {
    move |source| StoreError::Entry {
        kind: EntryKind::Checkpoint.as_str(),
        id,
        source,
    }
}

fn read(entry: &Entry) -> Result<Kept, StoreError> {
    Kept::read(entry).map_err(unreadable(entry.id.clone()))
}

/// The last checkpoints of all chains that the store knows, by each key.
///
/// # Errors
/// [`StoreError`].
pub async fn kept(store: &dyn Store) -> Result<Vec<Kept>, StoreError> {
    store.list(EntryKind::Checkpoint).await?.iter().map(read).collect()
}

/// Keeps a checkpoint, a line of the log, unless the store has a later one of its chain by its key. A chain that was given up and is signed on is
/// required again.
///
/// # Errors
/// [`StoreError`].
pub async fn keep(store: &dyn Store, text: &str) -> Result<Keeping, StoreError> {
    let line: CheckpointLine = serde_json::from_str(text).map_err(unreadable(String::new()))?;
    let id = entry_id(&line);
    let begins = line.chain.begins.iter().flat_map(|begins| &begins.after);
    let mut new = Kept {
        text: text.to_owned(),
        after: begins.map(|point| point.chain.clone()).collect(),
        line,
        given_up: None,
        serves_as: store.serves_as().map(str::to_owned),
        id: id.clone(),
    };
    loop {
        let Some(entry) = store.get(EntryKind::Checkpoint, &id).await? else {
            // Whether it holds those of before was looked at when it began.
            let before = own(store, new.key()).await?;
            new.after.extend(before.into_iter().map(|kept| kept.line.chain.id));
            if store.insert(EntryKind::Checkpoint, new.entry()?).await?.is_some() {
                continue;
            }
            forget_superseded(store, new.key()).await?;
            return Ok(Keeping::Kept);
        };
        let known = read(&entry)?;
        let is_same = known.text == new.text;
        if is_same && known.given_up.is_none() {
            return Ok(Keeping::Kept);
        }
        if !is_same && known.line.chain.number >= new.line.chain.number {
            return Ok(Keeping::Behind);
        }
        new.after.extend(known.after);
        let written = new.entry()?;
        if store.change(EntryKind::Checkpoint, vec![entry], vec![written]).await? {
            return Ok(Keeping::Kept);
        }
    }
}

/// Removes the superseded chains of this key, except the newest [`SUPERSEDED_LIMIT`] and those that were given up.
async fn forget_superseded(store: &dyn Store, key: LogPublicKey) -> Result<(), StoreError> {
    let all = own(store, key).await?;
    let mut old: Vec<&Kept> = all
        .iter()
        .filter(|kept| kept.given_up.is_none() && is_superseded(kept, &all))
        .collect();
    old.sort_by_key(|kept| std::cmp::Reverse(kept.line.at));
    for kept in old.into_iter().skip(SUPERSEDED_LIMIT) {
        store.remove(EntryKind::Checkpoint, &kept.id).await?;
    }
    Ok(())
}

async fn own(store: &dyn Store, key: LogPublicKey) -> Result<Vec<Kept>, StoreError> {
    let all = kept(store).await?.into_iter();
    Ok(all.filter(|kept| kept.key() == key).collect())
}

/// Returns whether a chain of the same key has begun in the place of this one. A chain of another gateway replaces none.
fn is_superseded(kept: &Kept, all: &[Kept]) -> bool {
    let chain = &kept.line.chain.id;
    all.iter()
        .any(|other| other.key() == kept.key() && other.line.chain.id != *chain && other.after.contains(chain))
}

/// The checkpoints that a log has to hold: of chains in whose place no other has begun, because one that has says itself what it misses of the one
/// before it, and that nobody has given up.
pub fn standing(all: &[Kept]) -> impl Iterator<Item = &Kept> {
    all.iter().filter(|kept| kept.given_up.is_none() && !is_superseded(kept, all))
}

/// The result of giving up a chain.
#[derive(Debug)]
pub enum GivingUp {
    /// These were given up.
    Done(Vec<Kept>),
    /// The gateway of this checkpoint serves.
    Serves(Box<Kept>),
    /// The store has changed meanwhile: another checkpoint, or another command.
    Changed,
}

/// Gives up chains that are lost for good, by the keys that `is_wanted` chooses, and those that they alone have taken the place of. Their checkpoints
/// stay in the store. At that moment no gateway may serve that has signed one of them, but `this` one, by its id.
///
/// # Errors
/// [`StoreError`].
pub async fn give_up(
    store: &dyn Store,
    is_wanted: impl Fn(&Kept) -> bool,
    this: Option<&str>,
    given_up: GivenUp,
) -> Result<GivingUp, StoreError> {
    let entries = store.list(EntryKind::Checkpoint).await?;
    let all: Vec<Kept> = entries.iter().map(read).collect::<Result<_, _>>()?;
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    loop {
        let takes_place = |kept: &Kept, other: &Kept| {
            other.key() == kept.key() && other.line.chain.id != kept.line.chain.id && other.after.contains(&kept.line.chain.id)
        };
        let is_left = |kept: &Kept| {
            let mut others = all.iter().filter(|other| takes_place(kept, other)).peekable();
            others.peek().is_some() && others.all(|other| gone.contains(other.id.as_str()))
        };
        let next = all
            .iter()
            .filter(|kept| kept.given_up.is_none() && !gone.contains(kept.id.as_str()))
            .find(|kept| is_wanted(kept) || is_left(kept));
        match next {
            Some(kept) => gone.insert(kept.id.as_str()),
            None => break,
        };
    }
    let (mut expected, mut written, mut done) = (Vec::new(), Vec::new(), Vec::new());
    for (entry, kept) in entries.iter().zip(&all).filter(|(_, kept)| gone.contains(kept.id.as_str())) {
        let kept = Kept {
            given_up: Some(given_up.clone()),
            ..kept.clone()
        };
        expected.push(entry.clone());
        written.push(kept.entry()?);
        done.push(kept);
    }
    let serving = done
        .iter()
        .filter_map(|kept| kept.serves_as.clone())
        .filter(|id| Some(id.as_str()) != this);
    let serving: BTreeSet<String> = serving.collect();
    let changed = store
        .change_unless_served(serving.into_iter().collect(), EntryKind::Checkpoint, expected, written)
        .await?;
    Ok(match changed {
        ChangeUnlessServed::Changed => GivingUp::Done(done),
        ChangeUnlessServed::Otherwise => GivingUp::Changed,
        ChangeUnlessServed::Serves(id) => match done.into_iter().find(|kept| kept.serves_as.as_ref() == Some(&id)) {
            Some(kept) => GivingUp::Serves(Box::new(kept)),
            None => GivingUp::Changed,
        },
    })
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
pub async fn of_other_keys(store: &dyn Store, replica: &str, own: Signs<'_>) -> Result<Vec<Kept>, StoreError> {
    let all = kept(store).await?;
    let is_own = |kept: &Kept| kept.line.checkpoint.replica == replica || kept.line.chain.id == own.chain;
    let others = standing(&all).filter(|kept| kept.key() != own.key && is_own(kept));
    Ok(others.cloned().collect())
}

/// The checkpoints that this gateway has signed, by what the store keeps, and that its log should hold and does not: lines were taken out, or altered.
/// With its own are those of its chain by a key before it: whoever replaces the key may have signed other lines with it. A chain of its own that was
/// given up and goes on has to be whole.
///
/// # Errors
/// [`StoreError`], also if the log cannot be read.
pub async fn missing(store: &dyn Store, log: &Path, own: Signs<'_>) -> Result<Vec<Point>, StoreError> {
    let all = kept(store).await?;
    let is_own = |kept: &Kept| kept.key() == own.key || kept.line.chain.id == own.chain && kept.given_up.is_none();
    let mut missing = Vec::new();
    for kept in all.iter().filter(|kept| is_own(kept) && !is_superseded(kept, &all)) {
        let holds = holds(log, kept).map_err(|source| StoreError::Io {
            path: log.to_owned(),
            source,
        })?;
        if !holds {
            missing.push(kept.point());
        }
    }
    Ok(missing)
}

/// The chain that the log ends with, if it ends with one.
///
/// # Errors
/// The log cannot be read.
pub fn last_chain(log: &Path) -> std::io::Result<Option<String>> {
    let last = lines_from_end(log)?.next().transpose()?;
    Ok(last.and_then(|line| link_of(&line).ok().flatten()).map(|link| link.id))
}

/// Whether the log holds this checkpoint, also in a file beside it, or begins after it.
fn holds(log: &Path, kept: &Kept) -> std::io::Result<bool> {
    let wanted = &kept.line.chain;
    let mut later = false;
    for line in lines_from_end(log)? {
        let line = line?;
        match link_of(&line) {
            Ok(Some(link)) if link.id == wanted.id => {
                if link.number <= wanted.number {
                    return Ok(line == kept.text.as_bytes());
                }
                later = true;
            }
            _ => {}
        }
    }
    let mut altered = false;
    // A copy that was made before a file was whole does not say what that holds.
    for file in rotated(log)?
        .iter()
        .rev()
        .filter(|file| file.begins_before(&wanted.id, wanted.number))
    {
        match held_by(file, kept) {
            Ok(Some(true)) => return Ok(true),
            Ok(held) => altered |= held.is_some(),
            Err(error) => file.warn(&error),
        }
    }
    if altered {
        return Ok(false);
    }
    // The file that held it was moved away.
    Ok(later)
}

/// Of a file that has a line of this number, whether it is the one that is kept.
fn held_by(file: &LogFile, kept: &Kept) -> std::io::Result<Option<bool>> {
    let wanted = &kept.line.chain;
    let mut lines = file.lines(0)?;
    while let Some(read) = lines.read()? {
        let Found::Line(line) = read else { continue };
        let link = link_of(line).ok().flatten().filter(|link| link.id == wanted.id);
        if link.is_some_and(|link| link.number == wanted.number) {
            return Ok(Some(line == kept.text.as_bytes()));
        }
    }
    Ok(None)
}
