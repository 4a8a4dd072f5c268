//! What becomes of what a decision stands on. Each function is a part of somebody's transaction.

use super::engine::{Transaction, Unfinished};
use super::{Pending, held, holders, keys, pending, uses};

/// A decision that is neither settled nor given back. One that others have settled, with all that it stood on, need not be known any longer.
pub(super) fn look(transaction: &mut dyn Transaction, decision: &str) -> Result<Option<Pending>, Unfinished> {
    let Some(document) = pending::stands_on(transaction, decision)? else {
        return Ok(None);
    };
    let mut stands = !document.repeats.is_empty();
    for key in &document.uses {
        stands = stands || uses::stood_on(transaction, key, decision)?;
    }
    for key in &document.entries {
        stands = stands || held::stood_on(transaction, key, decision)?;
    }
    if !stands {
        transaction.delete(&keys::pending(decision))?;
    }
    Ok(stands.then(|| Pending {
        decision: decision.to_owned(),
        at: document.at,
    }))
}

/// The decision is recorded: what it stands on stays.
pub(super) fn settle(transaction: &mut dyn Transaction, decision: &str) -> Result<(), Unfinished> {
    let Some(document) = pending::stands_on(transaction, decision)? else {
        return Ok(());
    };
    transaction.delete(&keys::pending(decision))?;
    for key in &document.entries {
        held::settle(transaction, key, decision)?;
    }
    for key in &document.uses {
        uses::settle(transaction, key, decision)?;
    }
    Ok(())
}

/// Frees what a decision used up, unless others stand on it, and takes back what it claimed; says whether there was anything. Of a thing whose
/// uses are forgotten there is nothing to give back: it has expired.
pub(super) fn give_back(transaction: &mut dyn Transaction, decision: &str) -> Result<bool, Unfinished> {
    let Some(document) = pending::stands_on(transaction, decision)? else {
        return Ok(false);
    };
    transaction.delete(&keys::pending(decision))?;
    let mut anything = false;
    for key in &document.uses {
        anything |= uses::give_back(transaction, key, decision)?;
    }
    for repeat in document.repeats.values() {
        holders::give_back(transaction, repeat)?;
        anything = true;
    }
    for key in &document.entries {
        anything |= held::give_back(transaction, key, decision)?;
    }
    Ok(anything)
}
