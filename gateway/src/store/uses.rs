//! Uses: what was spent, for which decision, and what was given back. Each function is a part of somebody's transaction.

use rusqlite::{Connection, OptionalExtension, params};

use super::{Kind, Pending, Spend, Spendable, held};

/// Takes decisions that are recorded off the pending ones.
pub(super) fn forget_pending(connection: &Connection, decisions: &[String]) -> Result<(), rusqlite::Error> {
    for decision in decisions {
        held::settle(connection, decision)?;
        connection
            .prepare_cached("DELETE FROM pending_uses WHERE decision = ?1")?
            .execute([decision])?;
    }
    Ok(())
}

/// The highest number that a use of it ever had.
fn highest_use(connection: &Connection, kind: Kind, id: &str) -> Result<u32, rusqlite::Error> {
    let used: Option<u32> = connection
        .prepare_cached("SELECT uses FROM uses WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| row.get(0))
        .optional()?;
    Ok(used.unwrap_or(0))
}

/// How often it was used, without what was given back.
pub(super) fn uses(connection: &Connection, kind: Kind, id: &str) -> Result<u32, rusqlite::Error> {
    let freed: u32 = connection
        .prepare_cached("SELECT COUNT(*) FROM freed_uses WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| row.get(0))?;
    Ok(highest_use(connection, kind, id)?.saturating_sub(freed))
}

/// Uses something once more: by a number that was given back, if there is one.
pub(super) fn spend(connection: &Connection, thing: &Spendable) -> Result<Spend, rusqlite::Error> {
    let Spendable {
        kind,
        id,
        limit,
        remember_until,
    } = thing;
    let freed: Option<u32> = connection
        .prepare_cached("SELECT MIN(number) FROM freed_uses WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| row.get(0))?;
    let highest = highest_use(connection, *kind, id)?;
    let use_number = freed.unwrap_or(highest.saturating_add(1));
    if use_number > *limit {
        return Ok(Spend::Exhausted);
    }
    if freed.is_some() {
        connection
            .prepare_cached("DELETE FROM freed_uses WHERE kind = ?1 AND id = ?2 AND number = ?3")?
            .execute(params![kind.as_str(), id, use_number])?;
    }
    connection
        .prepare_cached("INSERT OR REPLACE INTO uses (kind, id, uses, remember_until) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            kind.as_str(),
            id,
            highest.max(use_number),
            i64::try_from(*remember_until).unwrap_or(i64::MAX)
        ])?;
    Ok(Spend::Granted { use_number })
}

/// As [`spend`], and remembers which decision it was for.
pub(super) fn spend_for(connection: &Connection, thing: &Spendable, pending: &Pending) -> Result<Spend, rusqlite::Error> {
    let spent = spend(connection, thing)?;
    if let Spend::Granted { use_number } = spent {
        connection
            .prepare_cached("INSERT INTO pending_uses (decision, kind, id, number, at) VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![
                pending.decision,
                thing.kind.as_str(),
                thing.id,
                use_number,
                i64::try_from(pending.at).unwrap_or(i64::MAX)
            ])?;
    }
    Ok(spent)
}

/// Frees what a decision used up, and takes back what it claimed; says whether there was anything. Of a thing whose uses are forgotten there is nothing to give back: it
/// has expired.
pub(super) fn give_back(connection: &Connection, decision: &str) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO freed_uses (kind, id, number) SELECT kind, id, number FROM pending_uses AS p
             WHERE decision = ?1 AND EXISTS (SELECT 1 FROM uses WHERE uses.kind = p.kind AND uses.id = p.id)",
        )?
        .execute([decision])?;
    let rows = connection
        .prepare_cached("DELETE FROM pending_uses WHERE decision = ?1")?
        .execute([decision])?;
    Ok(held::give_back(connection, decision)? || rows > 0)
}

/// The decisions that are neither settled nor given back, the oldest first.
pub(super) fn pending(connection: &Connection) -> Result<Vec<Pending>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT decision, at FROM pending_uses UNION SELECT decision, at FROM pending_entries ORDER BY at, decision")?
        .query_map([], |row| {
            Ok(Pending {
                decision: row.get(0)?,
                at: u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0),
            })
        })?
        .collect()
}

/// Forgets the uses of one thing, and what was given back of them.
pub(super) fn forget(connection: &Connection, kind: Kind, id: &str) -> Result<(), rusqlite::Error> {
    for sql in [
        "DELETE FROM uses WHERE kind = ?1 AND id = ?2",
        "DELETE FROM freed_uses WHERE kind = ?1 AND id = ?2",
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
