//! Uses of what has expired: it must not have been used before. Each function is a part of somebody's transaction.

use rusqlite::{Connection, OptionalExtension, params};

use super::believed::integer;
use super::{Late, Spend, Spendable, uses};

/// Why it cannot be used at this time. `None` if it was not used before and the time for that is not over, or its first use was late, too, and is not long ago.
pub(super) fn refused(connection: &Connection, thing: &Spendable, late: Late, at: u64) -> Result<Option<Spend>, rusqlite::Error> {
    let used = uses::uses(connection, thing.kind, &thing.id)?;
    if used == 0 {
        return Ok((at > late.first_until).then_some(Spend::TooLate));
    }
    if since(connection, thing)?.is_some_and(|since| integer(at) <= since.saturating_add(integer(late.seconds))) {
        return Ok(None);
    }
    let settled: bool = connection
        .prepare_cached("SELECT count(*) < ?3 FROM pending_uses WHERE kind = ?1 AND id = ?2")?
        .query_row(params![thing.kind.as_str(), thing.id, used], |row| row.get(0))?;
    Ok(Some(if settled { Spend::TooLate } else { Spend::Undecided }))
}

/// Remembers when it was used first, if this is that use.
pub(super) fn used(connection: &Connection, thing: &Spendable, at: u64) -> Result<(), rusqlite::Error> {
    if uses::uses(connection, thing.kind, &thing.id)? > 0 {
        return Ok(());
    }
    connection
        .prepare_cached("INSERT OR REPLACE INTO late (kind, id, since) VALUES (?1, ?2, ?3)")?
        .execute(params![thing.kind.as_str(), thing.id, integer(at)])
        .map(drop)
}

/// If nothing is left of its uses, there was no first one.
pub(super) fn forget_unused(connection: &Connection, kind: &str, id: &str) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(
            "DELETE FROM late WHERE kind = ?1 AND id = ?2 AND (SELECT uses FROM uses WHERE kind = ?1 AND id = ?2)
             <= (SELECT count(*) FROM freed_uses WHERE kind = ?1 AND id = ?2)",
        )?
        .execute(params![kind, id])
        .map(drop)
}

/// When it was used first, if it had expired by then.
fn since(connection: &Connection, thing: &Spendable) -> Result<Option<i64>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT since FROM late WHERE kind = ?1 AND id = ?2")?
        .query_row(params![thing.kind.as_str(), thing.id], |row| row.get(0))
        .optional()
}
