//! Uses: what was spent, for which decision, and what was given back. Each function is a part of somebody's transaction.

use rusqlite::{Connection, OptionalExtension, params};

use super::believed::integer;
use super::{EntryKind, Occasion, Pending, Spend, Spendable, held, holders, late};

/// Takes decisions that are recorded off the pending ones.
pub(super) fn forget_pending(connection: &Connection, decisions: &[String]) -> Result<(), rusqlite::Error> {
    for decision in decisions {
        held::settle(connection, decision)?;
        settle(connection, decision)?;
    }
    Ok(())
}

/// The highest number that a use of it ever had.
fn highest_use(connection: &Connection, kind: EntryKind, id: &str) -> Result<u32, rusqlite::Error> {
    let used: Option<u32> = connection
        .prepare_cached("SELECT uses FROM uses WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| row.get(0))
        .optional()?;
    Ok(used.unwrap_or(0))
}

/// How often it was used, without what was given back.
pub(super) fn uses(connection: &Connection, kind: EntryKind, id: &str) -> Result<u32, rusqlite::Error> {
    let freed: u32 = connection
        .prepare_cached("SELECT COUNT(*) FROM freed_uses WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| row.get(0))?;
    Ok(highest_use(connection, kind, id)?.saturating_sub(freed))
}

/// Uses something once more.
pub(super) fn spend(connection: &Connection, thing: &Spendable) -> Result<Spend, rusqlite::Error> {
    let found = next(connection, thing)?;
    if let Spend::Granted { use_number } = found {
        take(connection, thing, use_number)?;
    }
    Ok(found)
}

/// As [`spend`], on this occasion, and remembers which decision it was for.
pub(super) fn spend_for(
    connection: &Connection,
    thing: &Spendable,
    occasion: &Occasion,
    pending: &Pending,
) -> Result<Spend, rusqlite::Error> {
    let found = look(connection, thing, occasion, pending.at)?;
    match (found, occasion) {
        (Spend::Granted { use_number }, _) => {
            if matches!(occasion, Occasion::Late(_)) {
                late::used(connection, thing, pending.at)?;
            }
            take(connection, thing, use_number)?;
            held_by(connection, thing, use_number, pending)?;
            if let Occasion::By(holder) = occasion {
                holders::hold(connection, thing, holder, use_number, pending.at)?;
            }
        }
        (Spend::Again { use_number }, Occasion::By(holder)) => holders::repeat(connection, thing, holder, use_number, pending)?,
        _ => {}
    }
    Ok(found)
}

/// What a use on this occasion would be, at this time.
pub(super) fn look(connection: &Connection, thing: &Spendable, occasion: &Occasion, at: u64) -> Result<Spend, rusqlite::Error> {
    match occasion {
        Occasion::Any => next(connection, thing),
        Occasion::By(holder) => match holders::held(connection, thing, holder, at)? {
            Some(use_number) => Ok(Spend::Again { use_number }),
            None => next(connection, thing),
        },
        Occasion::Late(late) => match late::refused(connection, thing, *late, at)? {
            Some(refused) => Ok(refused),
            None => next(connection, thing),
        },
    }
}

/// The next use: by a number that was given back, if there is one.
fn next(connection: &Connection, thing: &Spendable) -> Result<Spend, rusqlite::Error> {
    let Spendable { kind, id, limit, .. } = thing;
    let freed: Option<u32> = connection
        .prepare_cached("SELECT MIN(number) FROM freed_uses WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| row.get(0))?;
    let use_number = match freed {
        Some(freed) => freed,
        None => highest_use(connection, *kind, id)?.saturating_add(1),
    };
    Ok(if use_number > *limit {
        Spend::Exhausted
    } else {
        Spend::Granted { use_number }
    })
}

/// Makes the use of that number.
fn take(connection: &Connection, thing: &Spendable, use_number: u32) -> Result<(), rusqlite::Error> {
    let Spendable {
        kind, id, remember_until, ..
    } = thing;
    connection
        .prepare_cached("DELETE FROM freed_uses WHERE kind = ?1 AND id = ?2 AND number = ?3")?
        .execute(params![kind.as_str(), id, use_number])?;
    let highest = highest_use(connection, *kind, id)?;
    connection
        .prepare_cached("INSERT OR REPLACE INTO uses (kind, id, uses, remember_until) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![kind.as_str(), id, highest.max(use_number), integer(*remember_until)])
        .map(drop)
}

/// Remembers that a decision stands on the use of that number.
fn held_by(connection: &Connection, thing: &Spendable, use_number: u32, pending: &Pending) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT INTO pending_uses (decision, kind, id, number, at) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![
            pending.decision,
            thing.kind.as_str(),
            thing.id,
            use_number,
            integer(pending.at)
        ])
        .map(drop)
}

/// The decision is recorded: the use that it stands on stays, whatever becomes of others that stand on it as well.
fn settle(connection: &Connection, decision: &str) -> Result<(), rusqlite::Error> {
    for Stands { kind, id, number } in stands_on(connection, decision)? {
        connection
            .prepare_cached("DELETE FROM pending_uses WHERE kind = ?1 AND id = ?2 AND number = ?3")?
            .execute(params![kind, id, number])?;
    }
    holders::settle(connection, decision)
}

/// A use that a decision stands on.
struct Stands {
    kind: String,
    id: String,
    number: u32,
}

fn stands_on(connection: &Connection, decision: &str) -> Result<Vec<Stands>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT kind, id, number FROM pending_uses WHERE decision = ?1")?
        .query_map([decision], |row| {
            Ok(Stands {
                kind: row.get(0)?,
                id: row.get(1)?,
                number: row.get(2)?,
            })
        })?
        .collect()
}

/// Frees what a decision used up, unless others stand on it, and takes back what it claimed; says whether there was anything. Of a thing whose
/// uses are forgotten there is nothing to give back: it has expired.
pub(super) fn give_back(connection: &Connection, decision: &str) -> Result<bool, rusqlite::Error> {
    let stood = stands_on(connection, decision)?;
    connection
        .prepare_cached("DELETE FROM pending_uses WHERE decision = ?1")?
        .execute([decision])?;
    for stands in &stood {
        free(connection, stands)?;
    }
    let repeated = holders::give_back(connection, decision)?;
    Ok(held::give_back(connection, decision)? || repeated || !stood.is_empty())
}

fn free(connection: &Connection, stands: &Stands) -> Result<(), rusqlite::Error> {
    let Stands { kind, id, number } = stands;
    let freed = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO freed_uses (kind, id, number) SELECT ?1, ?2, ?3
             WHERE EXISTS (SELECT 1 FROM uses WHERE kind = ?1 AND id = ?2)
             AND NOT EXISTS (SELECT 1 FROM pending_uses WHERE kind = ?1 AND id = ?2 AND number = ?3)",
        )?
        .execute(params![kind, id, number])?;
    if freed > 0 {
        holders::forget_use(connection, kind, id, *number)?;
        late::forget_unused(connection, kind, id)?;
    }
    Ok(())
}

/// The decisions that are neither settled nor given back, the oldest first.
pub(super) fn pending(connection: &Connection) -> Result<Vec<Pending>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT decision, at FROM pending_uses UNION SELECT decision, at FROM pending_repeats
             UNION SELECT decision, at FROM pending_entries ORDER BY at, decision",
        )?
        .query_map([], |row| {
            Ok(Pending {
                decision: row.get(0)?,
                at: u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0),
            })
        })?
        .collect()
}

/// Forgets the uses of one thing, who made them, and what was given back of them.
pub(super) fn forget(connection: &Connection, kind: EntryKind, id: &str) -> Result<(), rusqlite::Error> {
    for sql in [
        "DELETE FROM uses WHERE kind = ?1 AND id = ?2",
        "DELETE FROM freed_uses WHERE kind = ?1 AND id = ?2",
        "DELETE FROM holders WHERE kind = ?1 AND id = ?2",
        "DELETE FROM late WHERE kind = ?1 AND id = ?2",
    ] {
        connection.prepare_cached(sql)?.execute(params![kind.as_str(), id])?;
    }
    Ok(())
}

/// All or none of it: others' work is in the same transaction.
pub(super) fn whole<T>(connection: &Connection, work: impl FnOnce() -> Result<T, rusqlite::Error>) -> Result<T, rusqlite::Error> {
    connection.execute_batch("SAVEPOINT whole")?;
    let result = work();
    connection.execute_batch(if result.is_ok() {
        "RELEASE whole"
    } else {
        "ROLLBACK TO whole; RELEASE whole"
    })?;
    result
}
