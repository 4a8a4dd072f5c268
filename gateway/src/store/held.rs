//! Entries that a decision has written and that is not recorded yet: whose an instance is, or a name. If the decision comes to nothing, they
//! are as they were before. Each function is a part of somebody's transaction.

use rusqlite::{Connection, OptionalExtension, params};

use super::{Claim, Entry, EntryKind, Pending};

/// Writes an entry for a decision; gives what is there, if that stays.
pub(super) fn claim(connection: &Connection, kind: EntryKind, claim: &Claim, pending: &Pending) -> Result<Option<Entry>, rusqlite::Error> {
    let Claim { entry, instead_of } = claim;
    let found = value(connection, kind.as_str(), &entry.id)?;
    if let Some(found) = &found
        && instead_of.as_ref() != Some(found)
    {
        return Ok(Some(Entry {
            id: entry.id.clone(),
            value: found.clone(),
        }));
    }
    put(connection, kind.as_str(), &entry.id, &entry.value)?;
    connection
        .prepare_cached("INSERT INTO pending_entries (decision, kind, id, value, before, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            pending.decision,
            kind.as_str(),
            entry.id,
            entry.value,
            found,
            i64::try_from(pending.at).unwrap_or(i64::MAX)
        ])?;
    Ok(None)
}

/// Lets an entry stand for one more decision, if it is not for good; says whether it is there.
pub(super) fn share(connection: &Connection, kind: EntryKind, entry: &Entry, pending: &Pending) -> Result<bool, rusqlite::Error> {
    if value(connection, kind.as_str(), &entry.id)?.as_ref() != Some(&entry.value) {
        return Ok(false);
    }
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO pending_entries (decision, kind, id, value, before, at)
             SELECT ?1, kind, id, value, before, ?2 FROM pending_entries WHERE kind = ?3 AND id = ?4 AND value = ?5 LIMIT 1",
        )?
        .execute(params![
            pending.decision,
            i64::try_from(pending.at).unwrap_or(i64::MAX),
            kind.as_str(),
            entry.id,
            entry.value
        ])?;
    Ok(true)
}

/// Whether there is an entry with that id whatever becomes of the decisions that are not recorded.
pub(super) fn stays(connection: &Connection, kind: EntryKind, id: &str) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT count(*) > 0 FROM entries WHERE kind = ?1 AND id = ?2
             AND NOT EXISTS (SELECT 1 FROM pending_entries WHERE kind = ?1 AND id = ?2 AND before IS NULL)",
        )?
        .query_row(params![kind.as_str(), id], |row| row.get(0))
}

/// Whether an entry is there, unchanged, and was not written by a decision that is not recorded.
pub(super) fn stands(connection: &Connection, kind: EntryKind, entry: &Entry) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT count(*) > 0 FROM entries WHERE kind = ?1 AND id = ?2 AND value = ?3
             AND NOT EXISTS (SELECT 1 FROM pending_entries WHERE kind = ?1 AND id = ?2 AND value = ?3)",
        )?
        .query_row(params![kind.as_str(), entry.id, entry.value], |row| row.get(0))
}

/// An entry that a decision stands on.
struct Held {
    kind: String,
    id: String,
    value: String,
    before: Option<String>,
}

fn held(connection: &Connection, decision: &str) -> Result<Vec<Held>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT kind, id, value, before FROM pending_entries WHERE decision = ?1")?
        .query_map([decision], |row| {
            Ok(Held {
                kind: row.get(0)?,
                id: row.get(1)?,
                value: row.get(2)?,
                before: row.get(3)?,
            })
        })?
        .collect()
}

/// The decision is recorded: what it stands on stays, whatever becomes of others that stand on it as well.
pub(super) fn settle(connection: &Connection, decision: &str) -> Result<(), rusqlite::Error> {
    for Held { kind, id, value, .. } in held(connection, decision)? {
        connection
            .prepare_cached("DELETE FROM pending_entries WHERE kind = ?1 AND id = ?2 AND value = ?3")?
            .execute(params![kind, id, value])?;
    }
    Ok(())
}

/// Somebody has written the entry, or removed it, and not for a decision: that stays, whatever becomes of the decisions that stood on it.
pub(super) fn overwritten(connection: &Connection, kind: EntryKind, id: &str) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("DELETE FROM pending_entries WHERE kind = ?1 AND id = ?2")?
        .execute(params![kind.as_str(), id])
        .map(drop)
}

/// The decision came to nothing: what it has written is gone, unless others stand on it, or it is something else by now. Says whether it has
/// written anything.
pub(super) fn give_back(connection: &Connection, decision: &str) -> Result<bool, rusqlite::Error> {
    let held = held(connection, decision)?;
    connection
        .prepare_cached("DELETE FROM pending_entries WHERE decision = ?1")?
        .execute([decision])?;
    for entry in &held {
        take_back(connection, entry)?;
    }
    Ok(!held.is_empty())
}

fn take_back(connection: &Connection, entry: &Held) -> Result<(), rusqlite::Error> {
    let Held { kind, id, value, before } = entry;
    let shared: bool = connection
        .prepare_cached("SELECT count(*) > 0 FROM pending_entries WHERE kind = ?1 AND id = ?2 AND value = ?3")?
        .query_row(params![kind, id, value], |row| row.get(0))?;
    if shared {
        return Ok(());
    }
    // Whoever has taken its place gives back to what was there before both.
    connection
        .prepare_cached("UPDATE pending_entries SET before = ?4 WHERE kind = ?1 AND id = ?2 AND before = ?3")?
        .execute(params![kind, id, value, before])?;
    if self::value(connection, kind, id)?.as_ref() != Some(value) {
        return Ok(());
    }
    match before {
        Some(before) => put(connection, kind, id, before),
        None => connection
            .prepare_cached("DELETE FROM entries WHERE kind = ?1 AND id = ?2")?
            .execute(params![kind, id])
            .map(drop),
    }
}

fn value(connection: &Connection, kind: &str, id: &str) -> Result<Option<String>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT value FROM entries WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind, id], |row| row.get(0))
        .optional()
}

fn put(connection: &Connection, kind: &str, id: &str, value: &str) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO entries (kind, id, value) VALUES (?1, ?2, ?3)")?
        .execute(params![kind, id, value])
        .map(drop)
}
