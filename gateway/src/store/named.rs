//! The store that the settings name, whatever engine keeps it.

use super::engine::{Engine, Work};
#[cfg(feature = "etcd")]
use super::etcd::Etcd;
#[cfg(feature = "cluster")]
use super::kubernetes::Kubernetes;
use super::through::Through;
use super::{Accepted, Embedded, Replacement, StoreError};
use crate::settings::{Settings, StoreSettings};
use async_trait::async_trait;

/// What there is to say of an engine, in sentences for the administrator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    pub good: Vec<String>,
    /// Worth knowing: it works, for now.
    pub warnings: Vec<String>,
}

/// A store on one of the engines. Clones are the same store.
#[derive(Debug, Clone)]
pub enum AnyStore {
    Embedded(Embedded),
    #[cfg(feature = "etcd")]
    Etcd(Etcd),
    #[cfg(feature = "cluster")]
    Kubernetes(Kubernetes),
}

impl AnyStore {
    /// Opens the store, and makes it if there is none and there never was one.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be reached, opened or written, is no store, or is not the one that is known ([`super::Known`]).
    pub fn open(settings: &Settings) -> Result<Self, StoreError> {
        match &settings.engine {
            StoreSettings::Embedded => Embedded::open(&settings.store()).map(Self::Embedded),
            #[cfg(feature = "etcd")]
            StoreSettings::Etcd(etcd) => Etcd::open(etcd, &settings.store()).map(Self::Etcd),
            #[cfg(not(feature = "etcd"))]
            StoreSettings::Etcd(etcd) => Err(without(etcd)),
            #[cfg(feature = "cluster")]
            StoreSettings::Kubernetes(kubernetes) => Kubernetes::open(kubernetes, &settings.store()).map(Self::Kubernetes),
            #[cfg(not(feature = "cluster"))]
            StoreSettings::Kubernetes(kubernetes) => Err(without_cluster(kubernetes)),
        }
    }

    /// Whether there is a store that could be opened; nothing is made. `false` if there is none yet, and never was one.
    ///
    /// # Errors
    /// As [`AnyStore::open`].
    pub fn look(settings: &Settings) -> Result<bool, StoreError> {
        match &settings.engine {
            StoreSettings::Embedded => Embedded::look(&settings.store()),
            #[cfg(feature = "etcd")]
            StoreSettings::Etcd(etcd) => Etcd::look(etcd, &settings.store()),
            #[cfg(not(feature = "etcd"))]
            StoreSettings::Etcd(etcd) => Err(without(etcd)),
            #[cfg(feature = "cluster")]
            StoreSettings::Kubernetes(kubernetes) => Kubernetes::look(kubernetes, &settings.store()),
            #[cfg(not(feature = "cluster"))]
            StoreSettings::Kubernetes(kubernetes) => Err(without_cluster(kubernetes)),
        }
    }

    /// What there is to say of the engine beside that.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn health(settings: &Settings) -> Result<Health, StoreError> {
        match &settings.engine {
            StoreSettings::Embedded => Ok(Health::default()),
            #[cfg(feature = "etcd")]
            StoreSettings::Etcd(etcd) => Etcd::health(etcd),
            #[cfg(not(feature = "etcd"))]
            StoreSettings::Etcd(etcd) => Err(without(etcd)),
            #[cfg(feature = "cluster")]
            StoreSettings::Kubernetes(kubernetes) => Kubernetes::health(kubernetes),
            #[cfg(not(feature = "cluster"))]
            StoreSettings::Kubernetes(kubernetes) => Err(without_cluster(kubernetes)),
        }
    }

    /// Takes the store that is there for the right one, or begins an empty one, as [`super::accept()`].
    ///
    /// # Errors
    /// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
    pub fn accept<E: From<StoreError>>(settings: &Settings, first: impl FnOnce(&Replacement) -> Result<(), E>) -> Result<Accepted, E> {
        match &settings.engine {
            StoreSettings::Embedded => super::accept(&settings.store(), first),
            #[cfg(feature = "etcd")]
            StoreSettings::Etcd(etcd) => Etcd::accept(etcd, &settings.store(), first),
            #[cfg(not(feature = "etcd"))]
            StoreSettings::Etcd(etcd) => Err(without(etcd).into()),
            #[cfg(feature = "cluster")]
            StoreSettings::Kubernetes(kubernetes) => Kubernetes::accept(kubernetes, &settings.store(), first),
            #[cfg(not(feature = "cluster"))]
            StoreSettings::Kubernetes(kubernetes) => Err(without_cluster(kubernetes).into()),
        }
    }
}

/// Settings that name it are refused before.
#[cfg(not(feature = "etcd"))]
pub(super) fn without(etcd: &crate::settings::EtcdSettings) -> StoreError {
    StoreError::Engine {
        engine: "etcd",
        place: etcd.place(),
        problem: "this attest-gateway was built without it".to_owned(),
        advice: "build it with the feature `etcd`".to_owned(),
    }
}

/// Settings that name it are refused before.
#[cfg(not(feature = "cluster"))]
pub(super) fn without_cluster(kubernetes: &crate::settings::KubernetesSettings) -> StoreError {
    StoreError::Engine {
        engine: "kubernetes",
        place: kubernetes.place(),
        problem: "this attest-gateway was built without it".to_owned(),
        advice: "build it with the feature `cluster`".to_owned(),
    }
}

#[async_trait]
impl Through for AnyStore {
    fn engine(&self) -> &dyn Engine {
        match self {
            Self::Embedded(embedded) => embedded,
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd,
            #[cfg(feature = "cluster")]
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
