//! Upgrade of a store on etcd.

use std::path::Path;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::time::Instant;

use super::super::expected_store::ExpectedStore;
use super::super::remote::set_back;
use super::super::schema::{self, StoreSchema};
use super::super::users::check_users;
use super::super::{SchemaStatus, StoreError};
use super::snapshot::EtcdPages;
use crate::settings::EtcdSettings;

/// Returns the schema of the store, and who uses it.
pub(crate) fn schema_status(settings: &EtcdSettings) -> Result<SchemaStatus, StoreError> {
    let below = Arc::new(EtcdPages::open(settings)?);
    let found = below.read_identity()?.0.ok_or_else(|| missing(&below))?;
    let (users, _) = below.users()?;
    Ok(SchemaStatus {
        schema: found.schema,
        users,
    })
}

/// Raises the schema of the store, if all who use it know the new one. The transaction requires that nobody else has come meanwhile.
pub(crate) fn raise_schema(settings: &EtcdSettings, beside: &Path) -> Result<(), StoreError> {
    // Known first: what is found is then at least as new.
    let known = ExpectedStore::load(beside)?;
    let (below, to) = (Arc::new(EtcdPages::open(settings)?), StoreSchema::newest());
    let (keys, place) = (&below.keys, &below.members.place);
    let begun = Instant::now();
    loop {
        let (found, _) = below.read_identity()?;
        set_back::check(&known, Path::new(place), found.as_ref())?;
        let found = found.ok_or_else(|| missing(&below))?;
        if found.schema == to {
            return Ok(());
        }
        let (users, revision) = below.users()?;
        check_users(place, &users, to)?;
        let (users, until) = (keys.replica(""), keys.replica("\u{10ffff}"));
        let when = [
            Compare::value(keys.identity(), CompareOp::Equal, found.identity.as_str()),
            Compare::value(keys.schema(), CompareOp::Equal, schema::text(found.schema)),
            Compare::create_revision(keys.set_back(&found.mark.id), CompareOp::Equal, 0),
            Compare::mod_revision(users, CompareOp::Less, revision.saturating_add(1)).with_range(until),
        ];
        let writes = [TxnOp::put(keys.schema(), schema::text(to), None), TxnOp::put(keys.mark(), "", None)];
        // If an answer is lost, the schema tells.
        if !below.send(Txn::new().when(when).and_then(writes))?.succeeded() && begun.elapsed() > settings.timeout {
            return Err(StoreError::Engine {
                engine: "etcd",
                place: place.clone(),
                problem: "gateways started or ended meanwhile; nothing was done".to_owned(),
                advice: "run the command again".to_owned(),
            });
        }
    }
}

fn missing(below: &EtcdPages) -> StoreError {
    StoreError::Missing(below.members.place.clone().into())
}
