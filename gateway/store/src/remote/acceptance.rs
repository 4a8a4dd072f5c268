//! Acceptance of the current store as the right one, on an administrator's word.

use std::path::Path;

use super::set_back::{self, RollbackStatement};
use crate::expected_store::{self, ExpectedStore};
use crate::threads::under_lock;
use crate::{AcceptedStore, Replacement, StoreError, StoreMark};

/// Accepts the current store, or initializes an empty one, like [`crate::accept()`]. A rolled back or missing store becomes another store.
/// A store that names the known one as replaced is accepted as it is: the first gateway that accepts it has given it its id.
///
/// `rename` gives the store that was found another id, with a mark that is at least this.
///
/// # Errors
/// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
pub(crate) fn accept<F: RollbackStatement, E: From<StoreError>>(
    beside: &Path,
    place: &Path,
    look: impl FnOnce() -> Result<Option<F>, StoreError>,
    first: impl FnOnce(&Replacement) -> Result<(), E>,
    rename: impl FnOnce(&Replacement, u64) -> Result<StoreMark, StoreError>,
) -> Result<AcceptedStore, E> {
    let known = ExpectedStore::load(beside);
    let readable = known.is_ok();
    let known = known.or_else(|_| ExpectedStore::but_for_file(beside))?;
    let found = look()?;
    if readable && set_back::check(&known, place, found.as_ref()).is_ok() {
        return Err(StoreError::Known(place.to_owned()).into());
    }
    let replacement = Replacement {
        known: known.expected().cloned(),
        found: found.as_ref().map(RollbackStatement::mark),
    };
    first(&replacement)?;
    let is_instead = |found: &F| replacement.known.as_ref().is_some_and(|known| found.is_instead_of(&known.id));
    let now = match found.filter(is_instead) {
        Some(named) => named.mark(),
        None => rename(&replacement, known.furthest())?,
    };
    under_lock(beside, || expected_store::replace_mark(beside, &now))?;
    Ok(AcceptedStore { replacement, now })
}
