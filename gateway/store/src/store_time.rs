//! The time that the store believes, and what may be forgotten by it.
//!
//! A use must stay recorded until the credential has expired, whatever the clock says. Otherwise a clock that is days ahead for one start
//! would forget it, and the corrected clock would make the credential valid again. So the store has its own time, which never goes back. It
//! follows the clock only as fast as the gateway runs, or `CATCH_UP` times as fast after a pause. A credential whose use may have been
//! forgotten does not count as unused.

use super::documents::{TimeDocument, read, write};
use super::engine::{Engine, KeyRange, Transaction, WorkInterrupted, fetch, run};
use super::{EntryKind, REMEMBERED, Spendable, StoreError, Tick, keys, uses};

/// Seconds by which the store time follows the clock in one second. After a weekend's pause it catches up within a working day. A clock
/// that was wrong for an hour moves it by less than its deliberate lag.
const CATCH_UP: u64 = 10;
/// Seconds for which uses are remembered after the last possible use: the clock may be set back that far without refusals.
const REMEMBERED_SECONDS: u64 = 24 * 3600;
/// Most keys for one thing that is forgotten: its uses, its expiry, and their holders.
const KEYS_OF_A_THING: usize = 3;

/// Advances the store time, and returns it.
pub(super) async fn go_on(engine: &impl Engine, tick: Tick) -> Result<u64, StoreError> {
    let begun = run(engine, |transaction| Ok(time(transaction)?.believed.is_some())).await?;
    let oldest = if begun { None } else { oldest(engine).await? };
    run(engine, move |transaction| {
        let mut time = time(transaction)?;
        let believed = match time.believed {
            Some(before) => {
                let ahead = tick.now.saturating_sub(before);
                before.saturating_add(ahead.min(tick.passed.as_secs().saturating_mul(CATCH_UP)))
            }
            // It begins now, but not after anything that is remembered.
            None => oldest.map_or(tick.now, |oldest| tick.now.min(oldest)),
        };
        if time.believed != Some(believed) {
            time.believed = Some(believed);
            write(transaction, keys::TIME, &time)?;
        }
        Ok(believed)
    })
    .await
}

fn time(transaction: &mut dyn Transaction) -> Result<TimeDocument, WorkInterrupted> {
    Ok(read(transaction, keys::TIME)?.unwrap_or_default())
}

/// Returns the earliest expiry of all remembered things.
async fn oldest(engine: &impl Engine) -> Result<Option<u64>, StoreError> {
    let mut oldest = None;
    for kind in REMEMBERED {
        let first = expired(engine, keys::expiries(kind.as_str()), 1).await?;
        oldest = oldest.into_iter().chain(first.into_iter().map(|(seconds, _)| seconds)).min();
    }
    Ok(oldest)
}

/// Forgets uses of things that expired long before this time, and the oldest challenges beyond `most_challenges`. Records up to when uses
/// are forgotten. Runs in several transactions, between those of others.
pub(super) async fn forget(engine: &impl Engine, believed: u64, most_challenges: u64) -> Result<(), StoreError> {
    let at_once = (engine.most_writes() / KEYS_OF_A_THING).saturating_sub(1).max(1);
    for kind in REMEMBERED {
        let range = keys::expiries_before(kind.as_str(), believed.saturating_sub(REMEMBERED_SECONDS));
        while forget_oldest(engine, kind, range.clone(), at_once).await? == at_once {}
    }
    let challenges = keys::expiries(EntryKind::Challenge.as_str());
    let mut beyond = engine.count(challenges.clone()).await?.saturating_sub(most_challenges);
    while beyond > 0 {
        let most = usize::try_from(beyond).unwrap_or(usize::MAX).min(at_once);
        let forgotten = forget_oldest(engine, EntryKind::Challenge, challenges.clone(), most).await?;
        if forgotten == 0 {
            break;
        }
        beyond = beyond.saturating_sub(u64::try_from(forgotten).unwrap_or(u64::MAX));
    }
    Ok(())
}

/// Forgets at most `most` things of a kind, the oldest first, so that nothing older is left when the last of these is forgotten. Returns
/// their number.
async fn forget_oldest(engine: &impl Engine, kind: EntryKind, range: KeyRange, most: usize) -> Result<usize, StoreError> {
    let expired = expired(engine, range, most).await?;
    let Some((last, _)) = expired.last().cloned() else { return Ok(0) };
    let number = expired.len();
    run(engine, move |transaction| {
        let uses = expired.iter().map(|(_, id)| keys::uses(kind.as_str(), id));
        fetch(transaction, uses.chain([keys::TIME.to_owned()]))?;
        for (remember_until, id) in &expired {
            uses::forget_expired(transaction, kind, *remember_until, id)?;
        }
        let mut time = time(transaction)?;
        time.forgotten_until = time.forgotten_until.max(last);
        write(transaction, keys::TIME, &time)
    })
    .await?;
    Ok(number)
}

/// Returns the first `most` expiries of a range, each with its time and id.
async fn expired(engine: &impl Engine, range: KeyRange, most: usize) -> Result<Vec<(u64, String)>, StoreError> {
    let page = engine.page(range, most).await?;
    let read = |key: &str| keys::remembered(key).ok_or_else(|| StoreError::Key { key: key.to_owned() });
    page.iter().map(|expiry| read(&expiry.key)).collect()
}

/// Refuses what was never used, as far as is known, and expires no later than something that was forgotten: it may have been that.
pub(super) fn refuse_forgotten(transaction: &mut dyn Transaction, thing: &Spendable) -> Result<(), WorkInterrupted> {
    if thing.kind == EntryKind::TokenUse {
        return Ok(());
    }
    let until = time(transaction)?.forgotten_until;
    if until < thing.remember_until {
        return Ok(());
    }
    Err(WorkInterrupted::Refused(StoreError::Forgotten {
        kind: thing.kind.as_str(),
        expires: thing.remember_until,
        until,
    }))
}

/// Resets the store time of a store that becomes another one: it does not know what its predecessor has forgotten.
pub(super) fn reset(transaction: &mut dyn Transaction) -> Result<(), WorkInterrupted> {
    transaction.delete(keys::TIME)
}
