//! Upgrade of a store: its schema is raised by command, once all processes that use the store know the next one.

use std::path::Path;

use super::embedded::{connect, prepare};
use super::expected_store::{ExpectedStore, write_mark};
use super::schema::{self, Schema};
use super::sqlite::Explain;
use super::{AnyStore, StoreError};
use crate::settings::{EngineSettings, StoreSettings};

/// A process that uses a shared store: a gateway, or the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUser {
    pub host: String,
    pub release: String,
    /// Number of the newest schema that it knows.
    pub schema: i64,
}

/// Schema of a store, and who uses it. The users of an embedded store are not known here: the lock on the attestation log tells of a
/// gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaStatus {
    pub schema: Schema,
    pub users: Vec<StoreUser>,
}

impl SchemaStatus {
    /// Reads the status of a store.
    ///
    /// # Errors
    /// [`StoreError`], also if there is no store.
    pub fn read(settings: &StoreSettings) -> Result<Self, StoreError> {
        let file = &settings.file;
        if !AnyStore::exists(settings)? {
            return Err(StoreError::Missing(super::place(settings).into()));
        }
        match &settings.engine {
            EngineSettings::Embedded => {
                let (connection, _) = connect(file)?;
                ExpectedStore::load(file)?.check(file, &schema::inspect(file, &connection)?)?;
                let schema = schema::current(&connection)?;
                Ok(Self { schema, users: Vec::new() })
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
        schema::set(&connection, Schema::newest()).explain(&connection)?;
        schema::advance(&connection).explain(&connection)
    });
    let end = if raised.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.execute_batch(end).explain(&connection);
    let mark = raised?;
    ended?;
    write_mark(file, &mark)
}

/// Checks that all processes that use a store know this schema.
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
pub(super) fn check_users(place: &str, users: &[StoreUser], schema: Schema) -> Result<(), StoreError> {
    let behind: Vec<String> = users
        .iter()
        .filter(|user| user.schema < schema.number)
        .map(|user| format!("{} (release {})", user.host, user.release))
        .collect();
    match behind.is_empty() {
        true => Ok(()),
        false => Err(StoreError::Behind {
            place: place.to_owned(),
            schema: schema.number,
            users: behind.join(", "),
        }),
    }
}
