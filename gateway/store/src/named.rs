//! The store that the settings name, whatever engine keeps it.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::embedded::ReadOnlyStore;
use super::engine::{Engine, Work};
use super::engine_layer::EngineLayer;
#[cfg(feature = "etcd")]
use super::etcd::Etcd;
use super::health::StoreHealth;
#[cfg(feature = "kubernetes")]
use super::kubernetes::Kubernetes;
use super::{AcceptedStore, Embedded, Replacement, Store, StoreError};
use crate::settings::{EngineSettings, StoreSettings};
use async_trait::async_trait;

/// A store on one of the engines. Clones are the same store.
#[derive(Debug, Clone)]
pub enum AnyStore {
    Embedded(Embedded),
    #[cfg(feature = "etcd")]
    Etcd(Etcd),
    #[cfg(feature = "kubernetes")]
    Kubernetes(Kubernetes),
}

impl AnyStore {
    /// Opens the store, and creates it if none exists or ever existed.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be reached, opened or written, is not a store, or is not the known one ([`super::Known`]).
    pub fn open(settings: &StoreSettings) -> Result<Self, StoreError> {
        match &settings.engine {
            EngineSettings::Embedded => Embedded::open(&settings.file).map(Self::Embedded),
            #[cfg(feature = "etcd")]
            EngineSettings::Etcd(etcd) => Etcd::open(etcd, &settings.file).map(Self::Etcd),
            #[cfg(not(feature = "etcd"))]
            EngineSettings::Etcd(etcd) => Err(without(etcd)),
            #[cfg(feature = "kubernetes")]
            EngineSettings::Kubernetes(kubernetes) => Kubernetes::open(kubernetes, &settings.file).map(Self::Kubernetes),
            #[cfg(not(feature = "kubernetes"))]
            EngineSettings::Kubernetes(kubernetes) => Err(without_cluster(kubernetes)),
        }
    }

    /// Opens an existing store for callers that only read. The embedded store can be one that this user cannot write.
    ///
    /// # Errors
    /// Like [`AnyStore::open`].
    pub fn open_to_read(settings: &StoreSettings) -> Result<Arc<dyn Store>, StoreError> {
        if settings.engine == EngineSettings::Embedded {
            let writable = OpenOptions::new().read(true).write(true).open(&settings.file);
            let is_refused = |error: &io::Error| matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem);
            if writable.is_err_and(|error| is_refused(&error)) {
                return Ok(Arc::new(ReadOnlyStore::open(&settings.file)?));
            }
        }
        Ok(Arc::new(Self::open(settings)?))
    }

    /// Returns whether there is a store that could be opened; creates nothing. `false` if none exists or ever existed.
    ///
    /// # Errors
    /// Like [`AnyStore::open`].
    pub fn exists(settings: &StoreSettings) -> Result<bool, StoreError> {
        match &settings.engine {
            EngineSettings::Embedded => Embedded::exists(&settings.file),
            #[cfg(feature = "etcd")]
            EngineSettings::Etcd(etcd) => Etcd::exists(etcd, &settings.file),
            #[cfg(not(feature = "etcd"))]
            EngineSettings::Etcd(etcd) => Err(without(etcd)),
            #[cfg(feature = "kubernetes")]
            EngineSettings::Kubernetes(kubernetes) => Kubernetes::exists(kubernetes, &settings.file),
            #[cfg(not(feature = "kubernetes"))]
            EngineSettings::Kubernetes(kubernetes) => Err(without_cluster(kubernetes)),
        }
    }

    /// Returns the health report of the engine.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn health(settings: &StoreSettings) -> Result<StoreHealth, StoreError> {
        match &settings.engine {
            EngineSettings::Embedded => Ok(StoreHealth::default()),
            #[cfg(feature = "etcd")]
            EngineSettings::Etcd(etcd) => Etcd::health(etcd),
            #[cfg(not(feature = "etcd"))]
            EngineSettings::Etcd(etcd) => Err(without(etcd)),
            #[cfg(feature = "kubernetes")]
            EngineSettings::Kubernetes(kubernetes) => Kubernetes::health(kubernetes),
            #[cfg(not(feature = "kubernetes"))]
            EngineSettings::Kubernetes(kubernetes) => Err(without_cluster(kubernetes)),
        }
    }

    /// Accepts the current store, or initializes an empty one, like [`super::accept()`].
    ///
    /// # Errors
    /// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
    pub fn accept<E: From<StoreError>>(
        settings: &StoreSettings,
        first: impl FnOnce(&Replacement) -> Result<(), E>,
    ) -> Result<AcceptedStore, E> {
        match &settings.engine {
            EngineSettings::Embedded => super::accept(&settings.file, first),
            #[cfg(feature = "etcd")]
            EngineSettings::Etcd(etcd) => Etcd::accept(etcd, &settings.file, first),
            #[cfg(not(feature = "etcd"))]
            EngineSettings::Etcd(etcd) => Err(without(etcd).into()),
            #[cfg(feature = "kubernetes")]
            EngineSettings::Kubernetes(kubernetes) => Kubernetes::accept(kubernetes, &settings.file, first),
            #[cfg(not(feature = "kubernetes"))]
            EngineSettings::Kubernetes(kubernetes) => Err(without_cluster(kubernetes).into()),
        }
    }
}

/// StoreSettings that name it are refused before.
#[cfg(not(feature = "etcd"))]
pub(super) fn without(etcd: &crate::settings::EtcdSettings) -> StoreError {
    StoreError::Engine {
        engine: "etcd",
        place: etcd.place(),
        problem: "this attest-gateway was built without it".to_owned(),
        advice: "build it with the feature `etcd`".to_owned(),
    }
}

/// StoreSettings that name it are refused before.
#[cfg(not(feature = "kubernetes"))]
pub(super) fn without_cluster(kubernetes: &crate::settings::KubernetesSettings) -> StoreError {
    StoreError::Engine {
        engine: "kubernetes",
        place: kubernetes.place(),
        problem: "this attest-gateway was built without it".to_owned(),
        advice: "build it with the feature `cluster`".to_owned(),
    }
}

#[async_trait]
impl EngineLayer for AnyStore {
    fn engine(&self) -> &dyn Engine {
        match self {
            Self::Embedded(embedded) => embedded,
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(kubernetes) => kubernetes,
        }
    }

    async fn transact_for_record(&self, work: Work) -> Result<(), StoreError> {
        self.engine().transact_for_record(work).await
    }

    async fn read(&self, work: Work) -> Result<(), StoreError> {
        self.engine().read(work).await
    }
}
