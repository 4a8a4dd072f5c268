//! Who has made a use: one who makes it again a short while later has made one use. Each function is a part of somebody's transaction.

use super::documents::{HolderDocument, Repeat, Version, read, write};
use super::engine::{Transaction, Unfinished};
use super::{Holder, Pending, Spendable, keys, pending};

/// The use that its holder can make again at this time. A clock that was set back since makes none too old: there are so many repeats and
/// no more.
pub(super) fn held(transaction: &mut dyn Transaction, thing: &Spendable, holder: &Holder, at: u64) -> Result<Option<u32>, Unfinished> {
    let made: Option<HolderDocument> = read(transaction, &key(thing, holder))?;
    let again = made.filter(|made| made.repeats < holder.repeats && made.at >= at.saturating_sub(holder.seconds));
    Ok(again.map(|made| made.number))
}

fn key(thing: &Spendable, holder: &Holder) -> String {
    keys::holder(thing.kind.as_str(), &thing.id, &holder.id)
}

/// Remembers who has made a use; what the same one has made before is too long ago, or was made again too often.
pub(super) fn hold(transaction: &mut dyn Transaction, key: &str, use_number: u32, at: u64) -> Result<(), Unfinished> {
    let made = HolderDocument {
        v: Version,
        number: use_number,
        at,
        repeats: 0,
    };
    write(transaction, key, &made)
}

/// Makes a use again, for a decision.
pub(super) fn repeat(
    transaction: &mut dyn Transaction,
    thing: &Spendable,
    holder: &Holder,
    use_number: u32,
    decision: &Pending,
) -> Result<(), Unfinished> {
    let (made, of) = (key(thing, holder), keys::uses(thing.kind.as_str(), &thing.id));
    let stands = pending::stands_on(transaction, &decision.decision)?;
    if stands.is_some_and(|stands| stands.repeats.contains_key(&of)) {
        return Err(pending::twice(&decision.decision, &of));
    }
    count(transaction, &made, |repeats| repeats.saturating_add(1))?;
    let repeat = Repeat {
        holder: made,
        number: use_number,
    };
    pending::stand(transaction, decision, |stands| {
        stands.repeats.insert(of, repeat);
    })
}

/// The decision came to nothing: it was not made again.
pub(super) fn give_back(transaction: &mut dyn Transaction, repeat: &Repeat) -> Result<(), Unfinished> {
    let made: Option<HolderDocument> = read(transaction, &repeat.holder)?;
    if made.is_some_and(|made| made.number == repeat.number) {
        count(transaction, &repeat.holder, |repeats| repeats.saturating_sub(1))?;
    }
    Ok(())
}

fn count(transaction: &mut dyn Transaction, key: &str, change: impl FnOnce(u32) -> u32) -> Result<(), Unfinished> {
    let Some(mut made) = read::<HolderDocument>(transaction, key)? else {
        return Ok(());
    };
    made.repeats = change(made.repeats);
    write(transaction, key, &made)
}
