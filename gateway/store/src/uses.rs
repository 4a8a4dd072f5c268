//! Uses: how often a thing was spent, and by which holder. Each function is a part of the caller's transaction.

use super::documents::{DocumentVersion, ExpiryDocument, HolderDocument, PendingDocument, UseDocument, UseOfDecision, Used, read, write};
use super::engine::{Transaction, WorkInterrupted};
use super::{EntryKind, ExpiredUse, REMEMBERED, Spend, Spendable, UseHolder, UseOccasion, keys};

impl Used {
    /// Returns the number of uses, without those that were given back.
    fn uses(&self) -> u32 {
        self.highest.saturating_sub(u32::try_from(self.freed.len()).unwrap_or(u32::MAX))
    }

    /// The next use: by a number that was given back, if there is one.
    fn next(&self, limit: u32) -> Spend {
        let next = self.freed.first().copied().unwrap_or_else(|| self.highest.saturating_add(1));
        if next > limit {
            Spend::Exhausted
        } else {
            Spend::Granted { use_number: next }
        }
    }

    /// Returns whether the thing, which has expired, cannot be used at this time. An unused thing can be used until the limit for its first
    /// use. One that was first used after its expiry can be used again for a while.
    fn is_too_late(&self, late: ExpiredUse, at: u64) -> bool {
        if self.uses() == 0 {
            return at > late.first_until;
        }
        let until = self.late_since.map(|since| since.saturating_add(late.seconds));
        until.is_none_or(|until| at > until)
    }
}

fn used(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<Option<Used>, WorkInterrupted> {
    let document: Option<UseDocument> = read(transaction, &keys::uses(kind.as_str(), id))?;
    Ok(document.map(|document| document.used))
}

fn holder_key(thing: &Spendable, holder: &UseHolder) -> String {
    keys::holder(thing.kind.as_str(), &thing.id, &holder.id)
}

/// Returns how often a thing was used, without what was given back.
pub(super) fn uses(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<u32, WorkInterrupted> {
    Ok(used(transaction, kind, id)?.map_or(0, |used| used.uses()))
}

/// Returns what a use on this occasion would be, at this time in seconds since 1970. Writes nothing.
pub(super) fn check_use(
    transaction: &mut dyn Transaction,
    thing: &Spendable,
    occasion: &UseOccasion,
    at: u64,
) -> Result<Spend, WorkInterrupted> {
    let used = used(transaction, thing.kind, &thing.id)?.unwrap_or_default();
    if let UseOccasion::By(holder) = occasion
        && let Some(made) = read::<HolderDocument>(transaction, &holder_key(thing, holder))?
        // A clock that was set back since makes no use too old: the number of repeats is the limit.
        && made.repeats < holder.repeats
        && made.at >= at.saturating_sub(holder.seconds)
    {
        return Ok(Spend::Again { use_number: made.number });
    }
    match occasion {
        UseOccasion::Late(late) if used.is_too_late(*late, at) => Ok(Spend::TooLate),
        _ => Ok(used.next(thing.limit)),
    }
}

/// The use that a decision has made, as [`give_back`] takes it. `None` if it has made none, or one of a challenge: that stays spent.
pub(super) fn decision_use(thing: &Spendable, occasion: &UseOccasion, found: Spend) -> Option<UseOfDecision> {
    if thing.kind == EntryKind::Challenge {
        return None;
    }
    let (number, again) = match found {
        Spend::Granted { use_number } => (use_number, false),
        Spend::Again { use_number } => (use_number, true),
        Spend::Exhausted | Spend::TooLate => return None,
    };
    let holder = match occasion {
        UseOccasion::By(holder) => Some(holder_key(thing, holder)),
        UseOccasion::Any | UseOccasion::Late(_) => None,
    };
    Some(UseOfDecision {
        key: keys::uses(thing.kind.as_str(), &thing.id),
        number,
        holder,
        again,
        kept: false,
    })
}

/// Uses a thing, on this occasion, at this time in seconds since 1970.
pub(super) fn spend(
    transaction: &mut dyn Transaction,
    thing: &Spendable,
    occasion: &UseOccasion,
    at: u64,
) -> Result<Spend, WorkInterrupted> {
    let found = check_use(transaction, thing, occasion, at)?;
    match (found, occasion) {
        (Spend::Granted { use_number }, _) => {
            take(transaction, thing, occasion, use_number, at)?;
            if let UseOccasion::By(holder) = occasion {
                let made = HolderDocument {
                    v: DocumentVersion,
                    number: use_number,
                    at,
                    repeats: 0,
                };
                write(transaction, &holder_key(thing, holder), &made)?;
            }
        }
        (Spend::Again { .. }, UseOccasion::By(holder)) => {
            let key = holder_key(thing, holder);
            if let Some(mut made) = read::<HolderDocument>(transaction, &key)? {
                made.repeats = made.repeats.saturating_add(1);
                write(transaction, &key, &made)?;
            }
        }
        _ => {}
    }
    Ok(found)
}

/// Writes the use with that number.
fn take(
    transaction: &mut dyn Transaction,
    thing: &Spendable,
    occasion: &UseOccasion,
    use_number: u32,
    at: u64,
) -> Result<(), WorkInterrupted> {
    let Spendable {
        kind, id, remember_until, ..
    } = thing;
    let known = used(transaction, *kind, id)?;
    let before = known.as_ref().map(|used| used.remember_until);
    let mut used = known.unwrap_or_default();
    if matches!(occasion, UseOccasion::Late(_)) && used.uses() == 0 {
        used.late_since = Some(at);
    }
    used.freed.remove(&use_number);
    used.highest = used.highest.max(use_number);
    used.remember_until = *remember_until;
    used.holders |= matches!(occasion, UseOccasion::By(_));
    write(
        transaction,
        &keys::uses(kind.as_str(), id),
        &UseDocument { v: DocumentVersion, used },
    )?;
    if !REMEMBERED.contains(kind) || before == Some(*remember_until) {
        return Ok(());
    }
    if let Some(before) = before {
        transaction.delete(&keys::expiry(kind.as_str(), before, id))?;
    }
    let key = keys::expiry(kind.as_str(), *remember_until, id);
    write(transaction, &key, &ExpiryDocument::default())
}

/// Gives back the use of a decision; returns whether it did. If the uses of the thing are forgotten, there is nothing to give back. A use
/// that its holder has repeated since stays used: one of the answers may have been delivered.
pub(super) fn give_back(transaction: &mut dyn Transaction, made: &UseOfDecision) -> Result<bool, WorkInterrupted> {
    if let Some(key) = &made.holder {
        let found: Option<HolderDocument> = read(transaction, key)?;
        let Some(mut holder) = found.filter(|holder| holder.number == made.number) else {
            return Ok(false);
        };
        if made.again {
            holder.repeats = holder.repeats.saturating_sub(1);
            write(transaction, key, &holder)?;
            return Ok(true);
        }
        if holder.repeats > 0 {
            return Ok(false);
        }
        transaction.delete(key)?;
    }
    let found: Option<UseDocument> = read(transaction, &made.key)?;
    let Some(mut used) = found.map(|document| document.used).filter(|used| made.number <= used.highest) else {
        return Ok(false);
    };
    used.freed.insert(made.number);
    // If no use is left, there was no first one.
    if used.uses() == 0 {
        used.late_since = None;
    }
    write(transaction, &made.key, &UseDocument { v: DocumentVersion, used })?;
    Ok(true)
}

/// Notes of a decision, under this key, that another gateway's log may have it: the use that it has made is never given back.
pub(super) fn adopt(transaction: &mut dyn Transaction, pending: &str) -> Result<(), WorkInterrupted> {
    let Some(mut document) = read::<PendingDocument>(transaction, pending)? else {
        return Ok(());
    };
    document.adopted = true;
    if let Some(made) = &mut document.made {
        made.kept = true;
    }
    write(transaction, pending, &document)
}

/// Forgets the uses of a thing, their holders, and the numbers that were given back.
pub(super) fn forget(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<(), WorkInterrupted> {
    let Some(used) = used(transaction, kind, id)? else { return Ok(()) };
    if REMEMBERED.contains(&kind) {
        transaction.delete(&keys::expiry(kind.as_str(), used.remember_until, id))?;
    }
    if used.holders {
        transaction.delete_range(&keys::holders(kind.as_str(), id))?;
    }
    transaction.delete(&keys::uses(kind.as_str(), id))
}

/// Like [`forget`], if the uses are remembered until that time and no longer.
pub(super) fn forget_expired(
    transaction: &mut dyn Transaction,
    kind: EntryKind,
    remember_until: u64,
    id: &str,
) -> Result<(), WorkInterrupted> {
    let until = used(transaction, kind, id)?.map(|used| used.remember_until);
    if until == Some(remember_until) {
        forget(transaction, kind, id)
    } else {
        Ok(())
    }
}
