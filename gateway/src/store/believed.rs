//! The time that the store believes, and what may be forgotten by it.
//!
//! What was spent must stay spent until it has expired, whatever the clock says. A clock that is days ahead for one start would have it
//! forgotten, and set right again the clock would make it good. So the store has a time of its own: it follows the clock only as fast as the
//! gateway runs, or some times that after a pause, and never goes back. And what might have been forgotten is not taken for unused.

use rusqlite::{Connection, OptionalExtension, params};

use super::sqlite::Explain;
use super::{EntryKind, Spendable, StoreError, Tick, uses};

/// How many seconds the store's time follows the clock in one second: after a weekend's pause it has caught up within a working day, and a
/// clock that was wrong for an hour has moved it by less than what it lags behind on purpose.
const CATCH_UP: u64 = 10;
/// What is forgotten by time. What is not here goes with what it belongs to: a token's uses.
const REMEMBERED: [EntryKind; 2] = [EntryKind::Challenge, EntryKind::Ticket];
/// How long it is remembered after it could last be used: how far the clock may be set back without anything having to be refused.
const REMEMBERED_SECONDS: u64 = 24 * 3600;
/// Most challenges that are remembered when others come, whatever time it is: whoever asks for all that there are makes 250 rows a second, and
/// a day of them would be four gigabytes. This many are 170 MB, and an hour of those: each has long expired. A ticket costs an attestation.
pub(super) const CHALLENGES_LIMIT_ROWS: u64 = 900_000;
/// Most rows that are forgotten in one transaction: decisions wait for it. Some milliseconds, or a tenth of a second from a slow disk.
pub(super) const FORGET_ROWS: usize = 1000;

/// Lets the store's time go on, and gives it.
pub(super) fn go_on(connection: &Connection, tick: Tick) -> Result<u64, rusqlite::Error> {
    let before: Option<i64> = connection
        .prepare_cached("SELECT believed FROM store WHERE one = 1")?
        .query_row([], |row| row.get(0))?;
    let believed = match before.map(i64::unsigned_abs) {
        Some(before) => {
            let ahead = tick.now.saturating_sub(before);
            before.saturating_add(ahead.min(tick.passed.as_secs().saturating_mul(CATCH_UP)))
        }
        None => first(connection, tick.now)?,
    };
    connection
        .prepare_cached("UPDATE store SET believed = ?1")?
        .execute([integer(believed)])?;
    Ok(believed)
}

/// Where a store's time begins: now, but not after anything that it remembers.
fn first(connection: &Connection, now: u64) -> Result<u64, rusqlite::Error> {
    let oldest: Option<i64> = connection.query_row(
        "SELECT min(remember_until) FROM uses WHERE kind <> ?1",
        [EntryKind::TokenUse.as_str()],
        |row| row.get(0),
    )?;
    Ok(oldest.map_or(now, |oldest| now.min(oldest.unsigned_abs())))
}

/// Forgets uses of what expired long before the store's time, and remembers up to when that was. Says whether there may be more:
/// [`FORGET_ROWS`] at most at a time.
pub(super) fn forget(connection: &Connection, believed: u64) -> Result<bool, rusqlite::Error> {
    let mut left = FORGET_ROWS;
    for kind in REMEMBERED {
        let forgotten = forget_oldest(connection, kind, believed.saturating_sub(REMEMBERED_SECONDS), left)?;
        left = left.saturating_sub(forgotten);
    }
    Ok(left == 0)
}

/// How many challenges are remembered beyond that many.
pub(super) fn beyond(connection: &Connection, most: u64) -> Result<u64, rusqlite::Error> {
    let all: i64 = connection
        .prepare_cached("SELECT count(*) FROM uses WHERE kind = ?1")?
        .query_row([EntryKind::Challenge.as_str()], |row| row.get(0))?;
    Ok(all.unsigned_abs().saturating_sub(most))
}

/// Forgets that many of the oldest challenges, whenever they expire: [`FORGET_ROWS`] at most at a time. Says how many there may be more.
pub(super) fn forget_beyond(connection: &Connection, beyond: u64) -> Result<u64, rusqlite::Error> {
    let most = usize::try_from(beyond).unwrap_or(usize::MAX).min(FORGET_ROWS);
    forget_oldest(connection, EntryKind::Challenge, u64::MAX, most)?;
    Ok(beyond.saturating_sub(u64::try_from(most).unwrap_or(u64::MAX)))
}

/// Forgets so many at most of a kind that expired before `until`; gives how many.
fn forget_oldest(connection: &Connection, kind: EntryKind, until: u64, most: usize) -> Result<usize, rusqlite::Error> {
    let expired = expired(connection, kind, until, most)?;
    let Some((_, last)) = expired.last() else { return Ok(0) };
    for (id, _) in &expired {
        uses::forget(connection, kind, id)?;
    }
    connection
        .prepare_cached("UPDATE store SET forgotten_until = max(forgotten_until, ?1)")?
        .execute([last])?;
    Ok(expired.len())
}

/// What expired before `until`, and when: the oldest first, so that nothing older is left when the last of these is forgotten.
fn expired(connection: &Connection, kind: EntryKind, until: u64, most: usize) -> Result<Vec<(String, i64)>, rusqlite::Error> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    connection
        .prepare_cached(
            "SELECT id, remember_until FROM uses INDEXED BY uses_by_expiry WHERE kind = ?1 AND remember_until < ?2 ORDER BY remember_until LIMIT ?3",
        )?
        .query_map(params![kind.as_str(), integer(until), most], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Refuses what was never used, as far as is known, and expires no later than something that was forgotten: it may have been that.
pub(super) fn refuse_forgotten(connection: &Connection, thing: &Spendable) -> Result<(), StoreError> {
    if thing.kind == EntryKind::TokenUse {
        return Ok(());
    }
    let until: Option<i64> = connection
        .prepare_cached("SELECT forgotten_until FROM store WHERE one = 1 AND forgotten_until >= ?1")
        .and_then(|mut statement| statement.query_row([integer(thing.remember_until)], |row| row.get(0)).optional())
        .of(connection)?;
    match until {
        None => Ok(()),
        Some(until) => Err(StoreError::Forgotten {
            kind: thing.kind.as_str(),
            expires: thing.remember_until,
            until: until.unsigned_abs(),
        }),
    }
}

pub(super) fn integer(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}
