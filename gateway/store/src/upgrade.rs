//! Upgrade of a store: its schema is raised by command, once all processes that use the store know the next one.

use std::path::Path;

use super::embedded::{connect, prepare};
use super::expected_store::{ExpectedStore, write_mark};
use super::schema::{self, StoreSchema};
use super::sqlite::Explain;
use super::users::SchemaStatus;
use super::{AnyStore, StoreError};
use crate::settings::{EngineSettings, StoreSettings};

/// Returns the schema of a store, and who uses it.
///
/// # Errors
/// [`StoreError`], also if there is no store.
pub fn schema_status(settings: &StoreSettings) -> Result<SchemaStatus, StoreError> {
    let file = &settings.file;
    if !AnyStore::exists(settings)? {
        return Err(StoreError::Missing(super::place(settings).into()));
    }
    match &settings.engine {
        EngineSettings::Embedded => {
            let (connection, _) = connect(file)?;
            ExpectedStore::load(file)?.check(file, &schema::inspect(file, &connection)?)?;
            let schema = schema::current(&connection)?;
            Ok(SchemaStatus { schema, users: Vec::new() })
        }
        #[cfg(feature = "etcd")]
        EngineSettings::Etcd(etcd) => super::etcd::schema_status(etcd),
        #[cfg(not(feature = "etcd"))]
        EngineSettings::Etcd(etcd) => Err(super::named::without(etcd)),
        #[cfg(feature = "kubernetes")]
        EngineSettings::Kubernetes(kubernetes) => super::kubernetes::schema_status(kubernetes),
        #[cfg(not(feature = "kubernetes"))]
        EngineSettings::Kubernetes(kubernetes) => Err(super::named::without_cluster(kubernetes)),
    }
}

/// Raises the schema of the store to the newest that this release knows, in one transaction. Gateways may serve on a shared store
/// meanwhile. The caller keeps a gateway from serving on an embedded one.
///
/// # Errors
/// [`StoreError::Behind`] if a process that uses the store does not know that schema; and others, if nothing was changed.
pub fn raise_schema(settings: &StoreSettings) -> Result<(), StoreError> {
    match &settings.engine {
        EngineSettings::Embedded => raise_embedded(&settings.file),
        #[cfg(feature = "etcd")]
        EngineSettings::Etcd(etcd) => super::etcd::raise_schema(etcd, &settings.file),
        #[cfg(not(feature = "etcd"))]
        EngineSettings::Etcd(etcd) => Err(super::named::without(etcd)),
        #[cfg(feature = "kubernetes")]
        EngineSettings::Kubernetes(kubernetes) => super::kubernetes::raise_schema(kubernetes, &settings.file),
        #[cfg(not(feature = "kubernetes"))]
        EngineSettings::Kubernetes(kubernetes) => Err(super::named::without_cluster(kubernetes)),
    }
}

fn raise_embedded(file: &Path) -> Result<(), StoreError> {
    let (connection, _) = connect(file)?;
    ExpectedStore::load(file)?.check(file, &schema::inspect(file, &connection)?)?;
    prepare(&connection)?;
    connection.execute_batch("BEGIN IMMEDIATE").explain(&connection)?;
    let raised = schema::check_version(file, &connection).and_then(|()| {
        schema::set(&connection, StoreSchema::newest()).explain(&connection)?;
        schema::advance(&connection).explain(&connection)
    });
    let end = if raised.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.execute_batch(end).explain(&connection);
    let mark = raised?;
    ended?;
    write_mark(file, &mark)
}
