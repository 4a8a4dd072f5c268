//! Snapshot of a store on objects of an API, unaffected by other writers.

use std::path::Path;
use std::sync::Arc;

use tokio::time::Instant;

use super::super::engine::{KeyRange, KeyValue};
use super::super::expected_store::ExpectedStore;
use super::super::migration::{ExportError, MigrationSource};
use super::super::moved::Moved;
use super::super::remote::set_back::{self, RollbackStatement};
use super::super::schema::{self, StoreSchema};
use super::super::{StoreError, StoreMark, StoreUser};
use super::head::Head;
use super::pages::{KubernetesPages, WHOLE};
use super::view::View;
use crate::settings::KubernetesSettings;

/// Snapshot of the content of a store.
pub(crate) struct KubernetesSnapshot {
    below: Arc<KubernetesPages>,
    view: View,
}

impl KubernetesSnapshot {
    pub(crate) fn open(settings: &KubernetesSettings, beside: &Path) -> Result<Self, StoreError> {
        // Known first: what is found is then at least as new.
        let known = ExpectedStore::load(beside)?;
        let below = KubernetesPages::open(settings)?;
        let view = below.wait(|below| async move { below.whole().await })?;
        let place = Path::new(&below.place.place);
        set_back::check_to_move(&known, place, view.as_ref().map(|view| &*view.head))?;
        let Some(view) = view else {
            return Err(StoreError::Lost {
                path: place.to_owned(),
                known: "its content was requested".to_owned(),
            });
        };
        Ok(Self { below, view })
    }

    /// Records the new place of the store, or that it was not moved, if it is unchanged and no gateway serves on it.
    fn record_move(&self, moved: Option<Moved>) -> Result<Result<(), Vec<String>>, StoreError> {
        let was = Arc::clone(&self.view.head);
        self.below.wait(|below| async move {
            let until = Instant::now() + below.timeout * WHOLE;
            loop {
                let head = match below.used_by(|_| true).await? {
                    Err(users) => return Ok(Err(hosts(users))),
                    Ok(head) => head.ok_or_else(|| below.replaced())?,
                };
                let is_as_it_was = head.id == was.id && head.mark == was.mark && head.set_back.is_none();
                if is_as_it_was && head.moved == moved {
                    return Ok(Ok(()));
                }
                if !is_as_it_was || head.moved != was.moved || Instant::now() >= until {
                    return Err(below.replaced());
                }
                let own = schema::new_id()?;
                let mut next = head.next(&own, 1)?;
                next.forget(&own);
                next.moved.clone_from(&moved);
                below.swap(&head, &next, until).await?;
            }
        })
    }
}

impl MigrationSource for KubernetesSnapshot {
    fn store(&self) -> StoreMark {
        self.view.head.mark()
    }

    fn schema(&self) -> StoreSchema {
        self.view.head.schema()
    }

    fn moved(&self) -> Option<&Moved> {
        self.view.head.moved.as_ref()
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.view.page(range, most).map_err(|_| StoreError::Closed)
    }

    fn store_now(&mut self) -> Result<StoreMark, StoreError> {
        let head = self.below.wait(|below| async move { below.read_head().await })?;
        let head = head.filter(|head| head.moved == self.view.head.moved);
        Ok(head.ok_or_else(|| self.below.replaced())?.mark())
    }

    fn move_to(&mut self, to: &Moved) -> Result<(), ExportError> {
        match self.record_move(Some(to.clone())) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(hosts)) => Err(ExportError::Served {
                place: self.below.place.place.clone(),
                hosts: hosts.join(", "),
            }),
            Err(StoreError::Replaced(place)) => match self.below.wait(|below| async move { below.read_head().await })? {
                Some(Head { moved: Some(moved), .. }) => Err(moved.error(&place).into()),
                _ => Err(ExportError::WentOn),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn undo_move(&mut self) -> Result<(), ExportError> {
        match self.record_move(None) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(StoreError::Replaced(_)) => Err(ExportError::WentOn),
            Err(error) => Err(error.into()),
        }
    }
}

/// On which hosts processes use the store.
pub(crate) fn served_by(settings: &KubernetesSettings) -> Result<Vec<String>, StoreError> {
    let used = KubernetesPages::open(settings)?.wait(|below| async move { below.used_by(|_| true).await })?;
    Ok(used.err().map(hosts).unwrap_or_default())
}

fn hosts(users: Vec<StoreUser>) -> Vec<String> {
    users.into_iter().map(|user| user.host).collect()
}

/// Returns the store that is there, regardless of the known one.
pub(crate) fn existing_store(settings: &KubernetesSettings) -> Result<Option<StoreMark>, StoreError> {
    match KubernetesPages::open(settings)?.wait(|below| async move { below.read_head().await }) {
        Ok(found) => Ok(found.filter(|head| head.moved.is_none()).map(|head| head.mark())),
        Err(StoreError::Unfinished(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
