//! Decisions that are not recorded yet, and what they stand on. Each function is a part of somebody's transaction.

use super::documents::{PendingDocument, read, write};
use super::engine::{Transaction, Unfinished};
use super::{Pending, StoreError, keys};

/// Remembers of a decision what it stands on from now on.
pub(super) fn stand(
    transaction: &mut dyn Transaction,
    decision: &Pending,
    note: impl FnOnce(&mut PendingDocument),
) -> Result<(), Unfinished> {
    let key = keys::pending(&decision.decision);
    let mut document = read(transaction, &key)?.unwrap_or(PendingDocument {
        at: decision.at,
        ..PendingDocument::default()
    });
    note(&mut document);
    write(transaction, &key, &document)
}

/// Remembers which of several gateways decides, if anything stands on it.
pub(super) fn is_of(transaction: &mut dyn Transaction, decision: &str, replica: Option<&str>) -> Result<(), Unfinished> {
    let (Some(replica), key) = (replica, keys::pending(decision)) else {
        return Ok(());
    };
    match read::<PendingDocument>(transaction, &key)? {
        Some(document) if document.replica.is_none() => {
            let replica = Some(replica.to_owned());
            write(transaction, &key, &PendingDocument { replica, ..document })
        }
        _ => Ok(()),
    }
}

/// Remembers of a decision, in a store that was another gateway's, that it is none of this one's, whose log does not say what came of it. Without a name
/// of its own that gateway is called as its store was.
pub(super) fn is_another_s(transaction: &mut dyn Transaction, key: &str, store: &str) -> Result<(), Unfinished> {
    match read::<PendingDocument>(transaction, key)? {
        Some(document) if document.replica.is_none() => {
            let replica = Some(store.to_owned());
            write(transaction, key, &PendingDocument { replica, ..document })
        }
        _ => Ok(()),
    }
}

/// What a decision stands on, by its own account.
pub(super) fn stands_on(transaction: &mut dyn Transaction, decision: &str) -> Result<Option<PendingDocument>, Unfinished> {
    read(transaction, &keys::pending(decision))
}

/// A decision stands on a thing once, so that what it gives back is clear.
pub(super) fn twice(decision: &str, key: &str) -> Unfinished {
    Unfinished::Refused(StoreError::Twice {
        decision: decision.to_owned(),
        key: key.to_owned(),
    })
}
