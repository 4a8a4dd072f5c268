//! Upgrade of a store on objects.

use std::path::Path;

use tokio::time::Instant;

use super::super::expected_store::ExpectedStore;
use super::super::remote::set_back;
use super::super::schema::{self, StoreSchema};
use super::super::users::check_users;
use super::super::{SchemaStatus, StoreError};
use super::pages::{KubernetesPages, WHOLE};
use super::presence::users;
use crate::settings::KubernetesSettings;

/// Returns the schema of the store, and who uses it.
pub(crate) fn schema_status(settings: &KubernetesSettings) -> Result<SchemaStatus, StoreError> {
    KubernetesPages::open(settings)?.wait(|below| async move {
        let head = below.read_head().await?.ok_or_else(|| missing(&below))?;
        Ok(SchemaStatus {
            schema: head.schema(),
            users: users(&head).into_iter().map(|(_, _, user)| user).collect(),
        })
    })
}

/// Raises the schema of the store, if all who use it know the new one. Nobody else can come meanwhile: the state would be another one.
pub(crate) fn raise_schema(settings: &KubernetesSettings, beside: &Path) -> Result<(), StoreError> {
    // Known first: what is found is then at least as new.
    let (known, to) = (ExpectedStore::load(beside)?, StoreSchema::newest());
    KubernetesPages::open(settings)?.wait(move |below| async move {
        let until = Instant::now() + below.timeout * WHOLE;
        loop {
            let head = match below.used_by(|user| user.schema < to.number).await? {
                Err(behind) => {
                    check_users(&below.place.place, &behind, to)?;
                    continue;
                }
                Ok(head) => head.ok_or_else(|| missing(&below))?,
            };
            set_back::check(&known, Path::new(&below.place.place), Some(&head))?;
            if head.schema() == to {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(below.replaced());
            }
            let own = schema::new_id()?;
            let mut next = head.next(&own, 1)?;
            next.forget(&own);
            next.set_schema(to);
            next.mark = next.mark.saturating_add(1);
            below.swap(&head, &next, until).await?;
        }
    })
}

fn missing(below: &KubernetesPages) -> StoreError {
    StoreError::Missing(below.place.place.clone().into())
}
