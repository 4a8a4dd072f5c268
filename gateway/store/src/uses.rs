//! Uses: what was spent, for which decision, and what was given back. Each function is a part of somebody's transaction.

use super::documents::{ExpiryDocument, HolderDocument, UseDocument, Used, read, write, write_or_remove};
use super::engine::{Transaction, Unfinished};
use super::{EntryKind, Occasion, Pending, REMEMBERED, Spend, Spendable, holders, keys, late, pending};

impl UseDocument {
    /// How often it was used, without what was given back.
    pub(super) fn uses(&self) -> u32 {
        self.used.as_ref().map_or(0, Used::uses)
    }

    /// How many decisions stand on its uses.
    pub(super) fn undecided(&self) -> usize {
        self.pending.values().map(|standing| standing.decisions.len()).sum()
    }

    /// The number of the use that a decision stands on.
    fn stood_on_by(&self, decision: &str) -> Option<u32> {
        let mut standing = self.pending.iter();
        standing
            .find(|(_, standing)| standing.decisions.contains(decision))
            .map(|(number, _)| *number)
    }

    /// The next use: by a number that was given back, if there is one.
    fn next(&self, limit: u32) -> Spend {
        let next = self.used.as_ref().map_or(1, |used| match used.freed.first() {
            Some(freed) => *freed,
            None => used.highest.saturating_add(1),
        });
        if next > limit {
            Spend::Exhausted
        } else {
            Spend::Granted { use_number: next }
        }
    }
}

impl Used {
    fn uses(&self) -> u32 {
        self.highest.saturating_sub(u32::try_from(self.freed.len()).unwrap_or(u32::MAX))
    }
}

/// The uses of one thing, as they are written down.
struct Uses<'a> {
    thing: &'a Spendable,
    key: String,
    document: UseDocument,
}

impl<'a> Uses<'a> {
    fn read(transaction: &mut dyn Transaction, thing: &'a Spendable) -> Result<Self, Unfinished> {
        let key = keys::uses(thing.kind.as_str(), &thing.id);
        let document = read(transaction, &key)?.unwrap_or_default();
        Ok(Self { thing, key, document })
    }

    fn write(&self, transaction: &mut dyn Transaction) -> Result<(), Unfinished> {
        write(transaction, &self.key, &self.document)
    }

    /// What a use on this occasion would be, at this time.
    fn look(&self, transaction: &mut dyn Transaction, occasion: &Occasion, at: u64) -> Result<Spend, Unfinished> {
        let next = || self.document.next(self.thing.limit);
        Ok(match occasion {
            Occasion::Any => next(),
            Occasion::By(holder) => match holders::held(transaction, self.thing, holder, at)? {
                Some(use_number) => Spend::Again { use_number },
                None => next(),
            },
            Occasion::Late(late) => late::refused(&self.document, *late, at).unwrap_or_else(next),
        })
    }

    /// Makes the use of that number.
    fn take(&mut self, transaction: &mut dyn Transaction, use_number: u32) -> Result<(), Unfinished> {
        let Spendable {
            kind, id, remember_until, ..
        } = self.thing;
        let before = self.document.used.as_ref().map(|used| used.remember_until);
        let used = self.document.used.get_or_insert_default();
        used.freed.remove(&use_number);
        used.highest = used.highest.max(use_number);
        used.remember_until = *remember_until;
        if !REMEMBERED.contains(kind) || before == Some(*remember_until) {
            return Ok(());
        }
        if let Some(before) = before {
            transaction.delete(&keys::expiry(kind.as_str(), before, id))?;
        }
        let key = keys::expiry(kind.as_str(), *remember_until, id);
        write(transaction, &key, &ExpiryDocument::default())
    }

    /// Lets a decision stand on the use of that number.
    fn stand(&mut self, transaction: &mut dyn Transaction, use_number: u32, decision: &Pending) -> Result<(), Unfinished> {
        if self.document.stood_on_by(&decision.decision).is_some() {
            return Err(pending::twice(&decision.decision, &self.key));
        }
        let standing = self.document.pending.entry(use_number).or_default();
        standing.decisions.insert(decision.decision.clone());
        pending::stand(transaction, decision, |stands| {
            stands.uses.insert(self.key.clone());
        })
    }

    /// Remembers who has made the use of that number.
    fn hold(&mut self, transaction: &mut dyn Transaction, use_number: u32, holder: &str, at: u64) -> Result<(), Unfinished> {
        let key = keys::holder(self.thing.kind.as_str(), &self.thing.id, holder);
        holders::hold(transaction, &key, use_number, at)?;
        if let Some(used) = &mut self.document.used {
            used.holders = true;
        }
        if let Some(standing) = self.document.pending.get_mut(&use_number) {
            standing.holder = Some(key);
        }
        Ok(())
    }
}

/// How often it was used, without what was given back.
pub(super) fn uses(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<u32, Unfinished> {
    let document: Option<UseDocument> = read(transaction, &keys::uses(kind.as_str(), id))?;
    Ok(document.map_or(0, |document| document.uses()))
}

/// Uses something once more.
pub(super) fn spend(transaction: &mut dyn Transaction, thing: &Spendable) -> Result<Spend, Unfinished> {
    let mut uses = Uses::read(transaction, thing)?;
    let found = uses.document.next(thing.limit);
    if let Spend::Granted { use_number } = found {
        uses.take(transaction, use_number)?;
        uses.write(transaction)?;
    }
    Ok(found)
}

/// As [`spend`], on this occasion, and remembers which decision it was for.
pub(super) fn spend_for(
    transaction: &mut dyn Transaction,
    thing: &Spendable,
    occasion: &Occasion,
    decision: &Pending,
) -> Result<Spend, Unfinished> {
    let mut uses = Uses::read(transaction, thing)?;
    let found = uses.look(transaction, occasion, decision.at)?;
    match (found, occasion) {
        (Spend::Granted { use_number }, _) => {
            let first = uses.document.uses() == 0;
            uses.take(transaction, use_number)?;
            if let (Occasion::Late(_), true, Some(used)) = (occasion, first, &mut uses.document.used) {
                used.late_since = Some(decision.at);
            }
            uses.stand(transaction, use_number, decision)?;
            if let Occasion::By(holder) = occasion {
                uses.hold(transaction, use_number, &holder.id, decision.at)?;
            }
            uses.write(transaction)?;
        }
        (Spend::Again { use_number }, Occasion::By(holder)) => {
            holders::repeat(transaction, thing, holder, use_number, decision)?;
            // As long as the use itself is not recorded it stands for this decision, too.
            if uses.document.pending.contains_key(&use_number) {
                uses.stand(transaction, use_number, decision)?;
                uses.write(transaction)?;
            }
        }
        _ => {}
    }
    Ok(found)
}

/// What a use on this occasion would be, at this time.
pub(super) fn look(transaction: &mut dyn Transaction, thing: &Spendable, occasion: &Occasion, at: u64) -> Result<Spend, Unfinished> {
    Uses::read(transaction, thing)?.look(transaction, occasion, at)
}

/// Whether a decision stands on a use of what is under this key.
pub(super) fn stood_on(transaction: &mut dyn Transaction, key: &str, decision: &str) -> Result<bool, Unfinished> {
    let document: Option<UseDocument> = read(transaction, key)?;
    Ok(document.is_some_and(|document| document.stood_on_by(decision).is_some()))
}

/// The decision is recorded: the use that it stands on stays, whatever becomes of others that stand on it as well.
pub(super) fn settle(transaction: &mut dyn Transaction, key: &str, decision: &str) -> Result<(), Unfinished> {
    let mut document: UseDocument = read(transaction, key)?.unwrap_or_default();
    let Some(number) = document.stood_on_by(decision) else {
        return Ok(());
    };
    document.pending.remove(&number);
    write_or_remove(transaction, key, &document)
}

/// Frees the use that a decision stands on, unless others do, or its uses are forgotten. Says whether it stands on one.
pub(super) fn give_back(transaction: &mut dyn Transaction, key: &str, decision: &str) -> Result<bool, Unfinished> {
    let mut document: UseDocument = read(transaction, key)?.unwrap_or_default();
    let Some(number) = document.stood_on_by(decision) else {
        return Ok(false);
    };
    let standing = document.pending.entry(number).or_default();
    standing.decisions.remove(decision);
    if standing.decisions.is_empty() {
        let holder = standing.holder.take();
        document.pending.remove(&number);
        free(transaction, &mut document, number, holder.as_deref())?;
    }
    write_or_remove(transaction, key, &document)?;
    Ok(true)
}

fn free(transaction: &mut dyn Transaction, document: &mut UseDocument, number: u32, holder: Option<&str>) -> Result<(), Unfinished> {
    let Some(used) = &mut document.used else { return Ok(()) };
    used.freed.insert(number);
    late::forget_unused(used);
    // Nobody has made it.
    if let Some(key) = holder
        && let Some(made) = read::<HolderDocument>(transaction, key)?
        && made.number == number
    {
        transaction.delete(key)?;
    }
    Ok(())
}

/// Forgets the uses of one thing, who made them, and what was given back of them.
pub(super) fn forget(transaction: &mut dyn Transaction, kind: EntryKind, id: &str) -> Result<(), Unfinished> {
    let key = keys::uses(kind.as_str(), id);
    let mut document: UseDocument = read(transaction, &key)?.unwrap_or_default();
    let Some(used) = document.used.take() else { return Ok(()) };
    if REMEMBERED.contains(&kind) {
        transaction.delete(&keys::expiry(kind.as_str(), used.remember_until, id))?;
    }
    if used.holders {
        transaction.delete_range(&keys::holders(kind.as_str(), id))?;
    }
    for standing in document.pending.values_mut() {
        standing.holder = None;
    }
    write_or_remove(transaction, &key, &document)
}

/// As [`forget`], if its uses are remembered until then and no longer.
pub(super) fn forget_expired(transaction: &mut dyn Transaction, kind: EntryKind, remember_until: u64, id: &str) -> Result<(), Unfinished> {
    let document: Option<UseDocument> = read(transaction, &keys::uses(kind.as_str(), id))?;
    let until = document.and_then(|document| document.used).map(|used| used.remember_until);
    if until == Some(remember_until) {
        forget(transaction, kind, id)
    } else {
        Ok(())
    }
}
