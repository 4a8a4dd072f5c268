//! Migration from one engine to another: whenever it ends, exactly one of both is the store.
//!
//! The target first receives all content of the source, without being a store. Then the source records its new place, in one transaction,
//! if it is as it was read and no gateway serves on it. From then on a process that has it open writes and reads nothing more, even a
//! gateway that was paused. Only then the target becomes a store, under the id that the source has recorded. If this is interrupted before
//! that transaction, the source is the store. After it, a second run continues from there, or `undo` reverts it, unless the target is a
//! store by then.

// They move to etcd and back.
#[cfg(all(test, feature = "etcd"))]
mod tests;

use super::super::accept::{AcceptedStore, Replacement};
use super::super::expected_store::{ExpectedStore, replace_mark};
use super::super::moved::Moved;
use super::super::{StoreMark, schema};
use super::{
    Contents, ExportError, Exported, MigrationSource, MigrationTarget, PAGE, abandon, alone, existing_store, place, source, take, target,
    walk,
};
use crate::settings::StoreSettings;

/// A store that was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedStore {
    pub accepted: AcceptedStore,
    /// None if all was there before, and is not read any more: gateways may have gone on there.
    pub contents: Option<Contents>,
}

/// Like [`super::import`], from the store of other settings. That store must not be written to meanwhile; a write is detected. From then on
/// it is marked as moved, and no gateway uses it. If interrupted, it has to be run again.
///
/// # Errors
/// Like [`super::import`].
pub fn copy<E: From<ExportError>>(
    from: &StoreSettings,
    to: &StoreSettings,
    first: impl FnOnce(&Replacement) -> Result<(), E>,
) -> Result<CopiedStore, E> {
    let mut source = source(from)?;
    let becomes = becomes(&*source, from, to)?;
    if source.moved().is_some()
        && let Some(now) = existing_store(to)?.filter(|now| now.id == becomes.id)
    {
        return finish_copy(to, &source.store(), now, first);
    }
    let mut target = target(to)?;
    let (accepted, contents) = move_over(&mut *source, &mut *target, &becomes, || alone(from), first)?;
    Ok(CopiedStore {
        accepted,
        contents: Some(contents),
    })
}

/// Returns the new place that the source is to record; the one that it has already, if this continues a copy.
fn becomes(source: &dyn MigrationSource, from: &StoreSettings, to: &StoreSettings) -> Result<Moved, ExportError> {
    let to = place(to);
    match source.moved() {
        Some(moved) if moved.to != to => Err(moved.error(place(from).as_ref()).into()),
        Some(moved) => Ok(moved.clone()),
        None => Ok(Moved { id: schema::new_id()?, to }),
    }
}

/// Finishes a copy whose target is the store already: only the known mark of these settings is left to write.
fn finish_copy<E: From<ExportError>>(
    to: &StoreSettings,
    from: &StoreMark,
    now: StoreMark,
    first: impl FnOnce(&Replacement) -> Result<(), E>,
) -> Result<CopiedStore, E> {
    let file = &to.file;
    let known = ExpectedStore::load(file).or_else(|_| ExpectedStore::but_for_file(file));
    let known = known.map_err(ExportError::from)?.expected().cloned();
    let is_known = known.as_ref().is_some_and(|known| known.id == now.id);
    let replacement = Replacement {
        known,
        found: Some(from.clone()),
    };
    if !is_known {
        first(&replacement)?;
        replace_mark(file, &now).map_err(ExportError::from)?;
    }
    Ok(CopiedStore {
        accepted: AcceptedStore { replacement, now },
        contents: None,
    })
}

/// Moves a store in the steps that the module describes.
pub(super) fn move_over<E: From<ExportError>>(
    source: &mut dyn MigrationSource,
    target: &mut dyn MigrationTarget,
    becomes: &Moved,
    alone: impl Fn() -> Result<(), ExportError>,
    first: impl FnOnce(&Replacement) -> Result<(), E>,
) -> Result<(AcceptedStore, Contents), E> {
    let store = source.store();
    let contents = walk(|range| source.page(range, PAGE), |pair| Ok(target.put(pair)?))?;
    let unchanged = |source: &mut dyn MigrationSource| match source.store_now() {
        Ok(now) if now == store => alone(),
        Ok(_) => Err(ExportError::WentOn),
        Err(error) => Err(error.into()),
    };
    unchanged(source)?;
    let whole = Exported {
        store: store.clone(),
        schema: source.schema(),
        contents,
    };
    take(target, &whole, &becomes.id, |replacement| {
        // Once more, after what has arrived was looked through.
        unchanged(source)?;
        first(replacement)?;
        if source.moved().is_none() {
            source.move_to(becomes)?;
        }
        Ok(())
    })
}

/// Reverts a copy that was not completed: the store of `from` is again what it was. First removes what has arrived at `to`, so that no
/// process can make a store of it.
///
/// # Errors
/// [`ExportError`], [`ExportError::Whole`] if that is a store already.
pub fn undo(from: &StoreSettings, to: &StoreSettings) -> Result<StoreMark, ExportError> {
    let mut source = source(from)?;
    let moved = source.moved().cloned().ok_or_else(|| ExportError::NotMoved(place(from)))?;
    if moved.to != place(to) {
        return Err(moved.error(place(from).as_ref()).into());
    }
    abandon(to)?;
    if let Some(store) = existing_store(to)?.filter(|there| there.id == moved.id) {
        return Err(ExportError::Whole { to: moved.to, store });
    }
    source.undo_move()?;
    let (file, store) = (&from.file, source.store());
    let known = ExpectedStore::load(file)?;
    if known.file.as_ref().is_some_and(|known| known.id == moved.id) {
        // That was written down just before it would have been one.
        replace_mark(file, &store)?;
    }
    Ok(store)
}
