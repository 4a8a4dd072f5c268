//! Who has made a use: one who makes it again a short while later has made one use. Each function is a part of somebody's transaction.

use rusqlite::{Connection, OptionalExtension, params};

use super::believed::integer;
use super::{Holder, Pending, Spendable};

/// The use that its holder can make again at this time. A clock that was set back since makes none too old: there are so many repeats and
/// no more.
pub(super) fn held(connection: &Connection, thing: &Spendable, holder: &Holder, at: u64) -> Result<Option<u32>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT number FROM holders WHERE kind = ?1 AND id = ?2 AND holder = ?3 AND repeats < ?4 AND at >= ?5")?
        .query_row(
            params![
                thing.kind.as_str(),
                thing.id,
                holder.id,
                holder.repeats,
                integer(at.saturating_sub(holder.seconds))
            ],
            |row| row.get(0),
        )
        .optional()
}

/// Remembers who has made a use; what the same one has made before is too long ago, or was made again too often.
pub(super) fn hold(connection: &Connection, thing: &Spendable, holder: &Holder, use_number: u32, at: u64) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO holders (kind, id, holder, number, at, repeats) VALUES (?1, ?2, ?3, ?4, ?5, 0)")?
        .execute(params![thing.kind.as_str(), thing.id, holder.id, use_number, integer(at)])
        .map(drop)
}

/// Makes a use again, for a decision. As long as the use itself is not recorded it stands for this decision, too.
pub(super) fn repeat(
    connection: &Connection,
    thing: &Spendable,
    holder: &Holder,
    use_number: u32,
    pending: &Pending,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("UPDATE holders SET repeats = repeats + 1 WHERE kind = ?1 AND id = ?2 AND holder = ?3")?
        .execute(params![thing.kind.as_str(), thing.id, holder.id])?;
    connection
        .prepare_cached("INSERT INTO pending_repeats (decision, kind, id, holder, number, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            pending.decision,
            thing.kind.as_str(),
            thing.id,
            holder.id,
            use_number,
            integer(pending.at)
        ])?;
    connection
        .prepare_cached(
            "INSERT INTO pending_uses (decision, kind, id, number, at)
             SELECT ?1, kind, id, number, ?2 FROM pending_uses WHERE kind = ?3 AND id = ?4 AND number = ?5 LIMIT 1",
        )?
        .execute(params![
            pending.decision,
            integer(pending.at),
            thing.kind.as_str(),
            thing.id,
            use_number
        ])
        .map(drop)
}

/// The decision is recorded: that it was made again counts.
pub(super) fn settle(connection: &Connection, decision: &str) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("DELETE FROM pending_repeats WHERE decision = ?1")?
        .execute([decision])
        .map(drop)
}

/// The decision came to nothing: it was not made again. Says whether it was.
pub(super) fn give_back(connection: &Connection, decision: &str) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached(
            "UPDATE holders SET repeats = repeats - 1 WHERE repeats > 0 AND EXISTS (SELECT 1 FROM pending_repeats AS p
             WHERE p.decision = ?1 AND p.kind = holders.kind AND p.id = holders.id AND p.holder = holders.holder AND p.number = holders.number)",
        )?
        .execute([decision])?;
    let rows = connection
        .prepare_cached("DELETE FROM pending_repeats WHERE decision = ?1")?
        .execute([decision])?;
    Ok(rows > 0)
}

/// A use is free again: nobody has made it.
pub(super) fn forget_use(connection: &Connection, kind: &str, id: &str, number: u32) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("DELETE FROM holders WHERE kind = ?1 AND id = ?2 AND number = ?3")?
        .execute(params![kind, id, number])
        .map(drop)
}
