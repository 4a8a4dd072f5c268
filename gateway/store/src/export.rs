//! Export, import and migration of a store: its content as lines of JSON, key by key, with a digest; or from one engine to another.
//!
//! ```text
//! {"format":"attest-gateway store","schema":1,"release":"0.1.0","store":{"id":"…","mark":7}}
//! {"key":"entry/name/worker-1","value":"{\"v\":1,…}"}
//! {"count":1,"sha256":"…"}
//! ```
//!
//! Keys come in their order as bytes. The digest is SHA-256 over each key and each value, either with its length in bytes before it as 64
//! bits, the highest first. A store has the same digest on whatever engine it is.

mod embedded;
mod lines;
mod migrate;
mod outbox_state;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead, Write};

use attest_system::files;
use aws_lc_rs::digest::{Context, SHA256};
use data_encoding::HEXLOWER;
pub use migrate::{CopiedStore, copy, undo};
pub use outbox_state::OutboxState;

use super::accept::{AcceptedStore, Replacement};
use super::engine::{KeyRange, KeyValue};
use super::migration::{Contents, ExportError, MigrationSource, MigrationTarget};
use super::schema::StoreSchema;
use super::{StoreError, StoreMark, keys, schema};
use crate::settings::{EngineSettings, StoreSettings};

/// Number of values that are read at once.
const PAGE: usize = 1000;

/// A store that was written down, or read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Id and mark of the exported store.
    pub store: StoreMark,
    pub schema: StoreSchema,
    pub contents: Contents,
}

/// Digest of a store's content, one key after the other.
struct StoreDigest {
    context: Context,
    count: u64,
}

impl StoreDigest {
    fn new() -> Self {
        Self {
            context: Context::new(&SHA256),
            count: 0,
        }
    }

    fn add(&mut self, KeyValue { key, value }: &KeyValue) {
        for part in [key, value] {
            let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
            self.context.update(&length.to_be_bytes());
            self.context.update(part.as_bytes());
        }
        self.count = self.count.saturating_add(1);
    }

    fn contents(self) -> Contents {
        Contents {
            count: self.count,
            sha256: HEXLOWER.encode(self.context.finish().as_ref()),
        }
    }
}

/// Reads all there is, page by page.
fn walk(
    mut page: impl FnMut(&KeyRange) -> Result<Vec<KeyValue>, StoreError>,
    mut each: impl FnMut(&KeyValue) -> Result<(), ExportError>,
) -> Result<Contents, ExportError> {
    let (mut digest, mut range) = (StoreDigest::new(), everything());
    loop {
        let pairs = page(&range)?;
        let Some(last) = pairs.last() else { return Ok(digest.contents()) };
        range = keys::after(&last.key, &range);
        for pair in &pairs {
            digest.add(pair);
            each(pair)?;
        }
    }
}

fn everything() -> KeyRange {
    KeyRange {
        from: String::new(),
        // No key begins with it.
        until: '\u{10ffff}'.to_string(),
    }
}

/// Writes down all that the store holds at one moment; a gateway may serve meanwhile.
///
/// # Errors
/// [`ExportError`].
pub fn export(settings: &StoreSettings, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let mut source = source(settings)?;
    if let Some(moved) = source.moved() {
        return Err(moved.error(place(settings).as_ref()).into());
    }
    lines::write_down(&mut *source, out)
}

/// Reads an exported store to its end, and checks that it is complete.
///
/// # Errors
/// [`ExportError`].
pub fn verify(text: Box<dyn BufRead>) -> Result<(Exported, OutboxState), ExportError> {
    let mut outbox = OutboxState::default();
    let exported = lines::read(text, &mut |pair| {
        outbox.add(pair);
        Ok(())
    })?;
    Ok((exported, outbox))
}

/// Imports a file into the store, which has to be empty: all of it, or nothing. The store gets another id, as by [`super::accept()`]. Uses
/// and revocations of the exported store since the export are unknown here. So `first` has to invalidate whatever must not be used twice,
/// and to record the import. The time up to which uses are forgotten stays known.
///
/// # Errors
/// [`ExportError`], and those of `first`: nothing was taken then.
pub fn import<E: From<ExportError>>(
    settings: &StoreSettings,
    open: impl Fn() -> io::Result<Box<dyn BufRead>>,
    first: impl FnOnce(&Replacement) -> Result<(), E>,
) -> Result<(AcceptedStore, Contents), E> {
    let whole = open()
        .map_err(ExportError::from)
        .and_then(|text| lines::read(text, &mut |_| Ok(())))?;
    let mut target = target(settings)?;
    let again = open()
        .map_err(ExportError::from)
        .and_then(|text| lines::read(text, &mut |pair| Ok(target.put(pair)?)))?;
    if again != whole {
        return Err(lines::problem(0, "or another has changed meanwhile").into());
    }
    let id = schema::new_id().map_err(ExportError::from)?;
    take(&mut *target, &whole, &id, first)
}

/// Returns the place of the store of these settings, as a text that does not depend on the caller's folder.
#[must_use]
pub fn place(settings: &StoreSettings) -> String {
    match &settings.engine {
        EngineSettings::Embedded => {
            let file = &settings.file;
            let folder = std::fs::canonicalize(files::folder(file));
            let name = file.file_name().unwrap_or_default();
            folder
                .map_or_else(|_| file.clone(), |folder| folder.join(name))
                .display()
                .to_string()
        }
        EngineSettings::Etcd(etcd) => etcd.place(),
        EngineSettings::Kubernetes(kubernetes) => kubernetes.place(),
    }
}

/// Checks that no gateway serves on this store, by their leases. For an embedded one the lock on the attestation log does so.
///
/// # Errors
/// [`ExportError::Served`], and [`ExportError::Store`].
pub fn alone(settings: &StoreSettings) -> Result<(), ExportError> {
    match replicas(settings)? {
        Some(hosts) if !hosts.is_empty() => Err(ExportError::Served {
            place: place(settings),
            hosts: hosts.join(", "),
        }),
        _ => Ok(()),
    }
}

/// Returns the hosts of the gateways that serve with this store, by their leases; `None` for an embedded store, which one gateway has.
///
/// # Errors
/// [`StoreError`].
pub fn replicas(settings: &StoreSettings) -> Result<Option<Vec<String>>, StoreError> {
    match &settings.engine {
        EngineSettings::Embedded => Ok(None),
        #[cfg(feature = "etcd")]
        EngineSettings::Etcd(etcd) => super::etcd::served_by(etcd).map(Some),
        #[cfg(not(feature = "etcd"))]
        EngineSettings::Etcd(etcd) => Err(super::named::without(etcd)),
        #[cfg(feature = "kubernetes")]
        EngineSettings::Kubernetes(kubernetes) => super::kubernetes::served_by(kubernetes).map(Some),
        #[cfg(not(feature = "kubernetes"))]
        EngineSettings::Kubernetes(kubernetes) => Err(super::named::without_cluster(kubernetes)),
    }
}

fn take<E: From<ExportError>>(
    target: &mut dyn MigrationTarget,
    whole: &Exported,
    id: &str,
    first: impl FnOnce(&Replacement) -> Result<(), E>,
) -> Result<(AcceptedStore, Contents), E> {
    let arrived = walk(|range| target.page(range, PAGE), |_| Ok(()))?;
    if arrived != whole.contents {
        let read = whole.contents.clone();
        return Err(ExportError::Differs { read, arrived }.into());
    }
    let replacement = Replacement {
        known: target.expected_store().expected().cloned(),
        found: Some(whole.store.clone()),
    };
    first(&replacement)?;
    let now = target.finish(&whole.store, whole.schema, id).map_err(ExportError::from)?;
    Ok((AcceptedStore { replacement, now }, arrived))
}

fn source(settings: &StoreSettings) -> Result<Box<dyn MigrationSource>, ExportError> {
    Ok(match &settings.engine {
        EngineSettings::Embedded => Box::new(embedded::EmbeddedSnapshot::open(&settings.file)?),
        #[cfg(feature = "etcd")]
        EngineSettings::Etcd(etcd) => Box::new(super::etcd::EtcdSnapshot::open(etcd, &settings.file)?),
        #[cfg(not(feature = "etcd"))]
        EngineSettings::Etcd(etcd) => return Err(super::named::without(etcd).into()),
        #[cfg(feature = "kubernetes")]
        EngineSettings::Kubernetes(kubernetes) => Box::new(super::kubernetes::KubernetesSnapshot::open(kubernetes, &settings.file)?),
        #[cfg(not(feature = "kubernetes"))]
        EngineSettings::Kubernetes(kubernetes) => return Err(super::named::without_cluster(kubernetes).into()),
    })
}

fn target(settings: &StoreSettings) -> Result<Box<dyn MigrationTarget>, ExportError> {
    Ok(match &settings.engine {
        EngineSettings::Embedded => Box::new(embedded::EmbeddedImport::begin(&settings.file)?),
        #[cfg(feature = "etcd")]
        EngineSettings::Etcd(etcd) => Box::new(super::etcd::EtcdImport::begin(etcd, &settings.file)?),
        #[cfg(not(feature = "etcd"))]
        EngineSettings::Etcd(etcd) => return Err(super::named::without(etcd).into()),
        #[cfg(feature = "kubernetes")]
        EngineSettings::Kubernetes(kubernetes) => Box::new(super::kubernetes::KubernetesImport::begin(kubernetes, &settings.file)?),
        #[cfg(not(feature = "kubernetes"))]
        EngineSettings::Kubernetes(kubernetes) => return Err(super::named::without_cluster(kubernetes).into()),
    })
}

/// Returns the store that is there, regardless of the known one; `None` if a store is missing there, or was moved.
fn existing_store(settings: &StoreSettings) -> Result<Option<StoreMark>, ExportError> {
    Ok(match &settings.engine {
        EngineSettings::Embedded => embedded::existing_store(&settings.file)?,
        #[cfg(feature = "etcd")]
        EngineSettings::Etcd(etcd) => super::etcd::existing_store(etcd)?,
        #[cfg(not(feature = "etcd"))]
        EngineSettings::Etcd(etcd) => return Err(super::named::without(etcd).into()),
        #[cfg(feature = "kubernetes")]
        EngineSettings::Kubernetes(kubernetes) => super::kubernetes::existing_store(kubernetes)?,
        #[cfg(not(feature = "kubernetes"))]
        EngineSettings::Kubernetes(kubernetes) => return Err(super::named::without_cluster(kubernetes).into()),
    })
}

/// Aborts an import there, of any process, even one that is paused.
fn abandon(settings: &StoreSettings) -> Result<(), ExportError> {
    match &settings.engine {
        // Whoever takes something holds the file's lock, and has written nothing until the end.
        EngineSettings::Embedded => Ok(()),
        #[cfg(feature = "etcd")]
        EngineSettings::Etcd(etcd) => Ok(super::etcd::EtcdImport::abandon(etcd)?),
        #[cfg(not(feature = "etcd"))]
        EngineSettings::Etcd(etcd) => Err(super::named::without(etcd).into()),
        #[cfg(feature = "kubernetes")]
        EngineSettings::Kubernetes(kubernetes) => Ok(super::kubernetes::KubernetesImport::abandon(kubernetes)?),
        #[cfg(not(feature = "kubernetes"))]
        EngineSettings::Kubernetes(kubernetes) => Err(super::named::without_cluster(kubernetes).into()),
    }
}
