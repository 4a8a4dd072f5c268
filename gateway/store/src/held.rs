//! Entries, and decisions that have written one and are not recorded yet: whose an instance is, or a name. If the decision comes to nothing,
//! they are as they were before. Each function is a part of somebody's transaction.

use super::documents::{EntryDocument, Written, read, write, write_or_remove};
use super::engine::{Transaction, Unfinished};
use super::{Claim, Entry, EntryKind, Pending, Rewrite, keys, pending};

pub(super) fn get(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<Option<Entry>, Unfinished> {
    let value = document(transaction, &keys::entry(kind.as_str(), id))?.value;
    Ok(value.map(|value| Entry { id: id.to_owned(), value }))
}

/// Whether an entry has this value, or is not there.
pub(super) fn is_unchanged(
    transaction: &mut dyn Transaction,
    (kind, id): (EntryKind, &str),
    value: Option<&String>,
) -> Result<bool, Unfinished> {
    Ok(document(transaction, &keys::entry(kind.as_str(), id))?.value.as_ref() == value)
}

fn document(transaction: &mut dyn Transaction, key: &str) -> Result<EntryDocument, Unfinished> {
    Ok(read(transaction, key)?.unwrap_or_default())
}

/// Writes an entry, and not for a decision: that stays, whatever becomes of the decisions that stood on what was there.
pub(super) fn put(transaction: &mut dyn Transaction, kind: EntryKind, entry: &Entry) -> Result<(), Unfinished> {
    let document = EntryDocument {
        value: Some(entry.value.clone()),
        ..EntryDocument::default()
    };
    write(transaction, &keys::entry(kind.as_str(), &entry.id), &document)
}

/// Writes an entry if there is none; gives what is there.
pub(super) fn insert(transaction: &mut dyn Transaction, kind: EntryKind, entry: &Entry) -> Result<Option<Entry>, Unfinished> {
    let key = keys::entry(kind.as_str(), &entry.id);
    let mut document = document(transaction, &key)?;
    let Some(value) = &document.value else {
        document.value = Some(entry.value.clone());
        write(transaction, &key, &document)?;
        return Ok(None);
    };
    // Whoever writes the same has it written, too.
    if *value == entry.value && !document.decisions.is_empty() {
        put(transaction, kind, entry)?;
    }
    Ok(Some(Entry {
        id: entry.id.clone(),
        value: value.clone(),
    }))
}

/// Removes an entry; says whether there was one. The uses of a token are not looked at: whoever uses one without pause would hold up for as long as
/// that lasts who takes it away.
pub(super) fn remove(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<bool, Unfinished> {
    let key = keys::entry(kind.as_str(), id);
    let Some(EntryDocument { value, .. }) = read(transaction, &key)? else {
        return Ok(false);
    };
    transaction.delete(&key)?;
    Ok(value.is_some())
}

/// Writes entries, if others are as they are expected; says whether it did.
pub(super) fn change(transaction: &mut dyn Transaction, kind: EntryKind, expected: &[Entry], write: &[Entry]) -> Result<bool, Unfinished> {
    for entry in expected {
        if get(transaction, kind, &entry.id)?.as_ref() != Some(entry) {
            return Ok(false);
        }
    }
    for entry in write {
        put(transaction, kind, entry)?;
    }
    Ok(true)
}

/// Writes these, and removes those that have no value.
pub(super) fn rewrite(transaction: &mut dyn Transaction, rewrites: &[Rewrite]) -> Result<(), Unfinished> {
    for Rewrite { kind, id, value } in rewrites {
        let id = id.clone();
        match value.clone() {
            Some(value) => put(transaction, *kind, &Entry { id, value })?,
            None => drop(remove(transaction, *kind, &id)?),
        }
    }
    Ok(())
}

/// Writes an entry for a decision; gives what is there, if that stays.
pub(super) fn claim(
    transaction: &mut dyn Transaction,
    kind: EntryKind,
    claim: &Claim,
    decision: &Pending,
) -> Result<Option<Entry>, Unfinished> {
    let Claim { entry, instead_of } = claim;
    let key = keys::entry(kind.as_str(), &entry.id);
    let mut document = document(transaction, &key)?;
    if document.value.is_some() && document.value != *instead_of {
        return Ok(document.value.map(|value| Entry {
            id: entry.id.clone(),
            value,
        }));
    }
    if document.decisions.contains_key(&decision.decision) {
        return Err(pending::twice(&decision.decision, &key));
    }
    let written = Written {
        value: entry.value.clone(),
        before: document.value.replace(entry.value.clone()),
    };
    document.decisions.insert(decision.decision.clone(), written);
    write(transaction, &key, &document)?;
    pending::stand(transaction, decision, |stands| {
        stands.entries.insert(key);
    })?;
    Ok(None)
}

/// Lets an entry stand for one more decision, if it is not for good; says whether it is there.
pub(super) fn share(transaction: &mut dyn Transaction, kind: EntryKind, entry: &Entry, decision: &Pending) -> Result<bool, Unfinished> {
    let key = keys::entry(kind.as_str(), &entry.id);
    let mut document = document(transaction, &key)?;
    if document.value.as_ref() != Some(&entry.value) {
        return Ok(false);
    }
    let written = document.decisions.values().find(|written| written.value == entry.value).cloned();
    if let Some(written) = written
        && !document.decisions.contains_key(&decision.decision)
    {
        document.decisions.insert(decision.decision.clone(), written);
        write(transaction, &key, &document)?;
        pending::stand(transaction, decision, |stands| {
            stands.entries.insert(key);
        })?;
    }
    Ok(true)
}

/// Whether there is an entry with that id whatever becomes of the decisions that are not recorded.
pub(super) fn stays(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<bool, Unfinished> {
    let document = document(transaction, &keys::entry(kind.as_str(), id))?;
    Ok(document.value.is_some() && document.decisions.values().all(|written| written.before.is_some()))
}

/// Whether an entry is there, unchanged, and was not written by a decision that is not recorded.
pub(super) fn stands(transaction: &mut dyn Transaction, kind: EntryKind, entry: &Entry) -> Result<bool, Unfinished> {
    let document = document(transaction, &keys::entry(kind.as_str(), &entry.id))?;
    let written = document.decisions.values().any(|written| written.value == entry.value);
    Ok(document.value.as_ref() == Some(&entry.value) && !written)
}

/// Whether a decision stands on what is under this key.
pub(super) fn stood_on(transaction: &mut dyn Transaction, key: &str, decision: &str) -> Result<bool, Unfinished> {
    Ok(document(transaction, key)?.decisions.contains_key(decision))
}

/// The decision is recorded: what it stands on stays, whatever becomes of others that stand on it as well.
pub(super) fn settle(transaction: &mut dyn Transaction, key: &str, decision: &str) -> Result<(), Unfinished> {
    let mut document = document(transaction, key)?;
    let Some(Written { value, .. }) = document.decisions.remove(decision) else {
        return Ok(());
    };
    document.decisions.retain(|_, written| written.value != value);
    write_or_remove(transaction, key, &document)
}

/// The decision came to nothing: what it has written is gone, unless others stand on it, or it is something else by now. Says whether it has
/// written anything.
pub(super) fn give_back(transaction: &mut dyn Transaction, key: &str, decision: &str) -> Result<bool, Unfinished> {
    let mut document = document(transaction, key)?;
    let Some(gone) = document.decisions.remove(decision) else {
        return Ok(false);
    };
    let shared = document.decisions.values().any(|written| written.value == gone.value);
    if !shared {
        take_back(&mut document, gone);
    }
    write_or_remove(transaction, key, &document)?;
    Ok(true)
}

fn take_back(document: &mut EntryDocument, gone: Written) {
    // Whoever has taken its place gives back to what was there before both.
    for written in document.decisions.values_mut() {
        if written.before.as_ref() == Some(&gone.value) {
            written.before.clone_from(&gone.before);
        }
    }
    if document.value.as_ref() == Some(&gone.value) {
        document.value = gone.before;
    }
}
