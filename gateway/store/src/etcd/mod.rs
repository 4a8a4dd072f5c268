//! The store on etcd: for several gateways, on machines of which any may die.
//!
//! All reads are linearizable: a remembered value is only a guess, which etcd confirms before anything is answered by it. A process that
//! cannot reach etcd, or reaches members that have lost the others, answers errors and decides nothing.

mod committer;
mod diagnosis;
mod guesses;
mod health;
mod identity;
mod import;
mod keys;
mod leader;
mod member;
mod members;
mod open_store;
mod overlay;
mod own;
mod plan;
mod presence;
mod replica_key;
mod requests;
mod rollback;
mod snapshot;
mod upgrade;

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use attest_system::files;
use committer::EtcdCommitter;
use etcd_client::{GetOptions, TxnOp, TxnOpResponse};
use identity::ExistingStore;
pub(super) use import::EtcdImport;
use keys::KeyPrefix;
use members::Members;
use open_store::OpenEtcdStore;
use overlay::MOST_KEYS;
use presence::Presence;
use requests::pair;
pub(super) use snapshot::{EtcdSnapshot, existing_store, served_by};
use tokio::time::Instant;
pub(super) use upgrade::{raise_schema, schema_status};

use super::engine::{Engine, KeyRange, KeyValue, Work};
use super::expected_store::{self, ExpectedStore};
use super::remote::desk::Desk;
pub use super::remote::leadership::Leadership;
use super::remote::serving::LEASE;
use super::remote::{acceptance, locked, set_back};
use super::threads::{Threads, under_lock};
use super::{AcceptedStore, LeaderGuard, Replacement, StoreError, StoreMark, Wrote, replica};
use crate::settings::EtcdSettings;

/// Maximum size of an answer that is accepted: a page of a store.
const MOST_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of writes, below the keys that one commit takes: a work also reads keys.
const MOST_WRITES: usize = MOST_KEYS - 20;

/// A store below a prefix of an etcd cluster. Clones are the same store.
#[derive(Clone)]
pub struct Etcd {
    open: Arc<EtcdInner>,
}

struct EtcdInner {
    opened: Arc<OpenEtcdStore>,
    desk: Desk<Work>,
    replica: String,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Etcd({})", self.open.opened.members.place)
    }
}

impl Etcd {
    /// Opens the store, and creates it if none exists or ever existed. The folder of `beside` holds what is known of the store.
    ///
    /// # Errors
    /// [`StoreError`] if etcd does not answer in time, or if what it has is not a store, or not the known one ([`ExpectedStore`]).
    pub fn open(settings: &EtcdSettings, beside: &Path) -> Result<Self, StoreError> {
        let threads = Threads::start("etcd", &settings.place())?;
        let (settings, folder) = (settings.clone(), beside.to_owned());
        let (opened, replica) = threads.wait(async move {
            // Known first: what is found is then at least as new.
            let known = ExpectedStore::load(&folder)?;
            let (opened, replica) = open(&settings, &known, &folder).await?;
            if known.file.is_none() {
                under_lock(&folder, || expected_store::write_mark(&folder, &locked(&opened.mark)))?;
            }
            Ok((opened, replica))
        })?;
        let opened = Arc::new(opened);
        let committer = EtcdCommitter::new(Arc::clone(&opened), &identity::new_id()?);
        let desk = Desk::open(threads, beside, opened.timeout, Arc::clone(&opened), |jobs| committer.run(jobs));
        Ok(Self {
            open: Arc::new(EtcdInner { opened, desk, replica }),
        })
    }

    /// Returns whether there is a store that could be opened; writes nothing. `false` if none exists or ever existed.
    ///
    /// # Errors
    /// Like [`Etcd::open`].
    pub fn exists(settings: &EtcdSettings, beside: &Path) -> Result<bool, StoreError> {
        let (place, settings, folder) = (settings.place(), settings.clone(), beside.to_owned());
        Threads::start("etcd", &place)?.wait(async move {
            let known = ExpectedStore::load(&folder)?;
            let members = Members::from_settings(&settings)?;
            let found = identity::read_identity(&settings, &members, Instant::now() + settings.timeout).await?;
            set_back::check(&known, Path::new(&members.place), found.as_ref())?;
            Ok(found.is_some())
        })
    }

    /// Accepts the current store, or initializes an empty one, like [`super::accept()`].
    ///
    /// # Errors
    /// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
    pub fn accept<E: From<StoreError>>(
        settings: &EtcdSettings,
        beside: &Path,
        first: impl FnOnce(&Replacement) -> Result<(), E>,
    ) -> Result<AcceptedStore, E> {
        let (place, threads) = (settings.place(), Threads::start("etcd", &settings.place())?);
        let look = || {
            let settings = settings.clone();
            threads.wait(async move {
                let members = Members::from_settings(&settings)?;
                identity::read_identity(&settings, &members, Instant::now() + settings.timeout).await
            })
        };
        let name_anew = |replacement: &Replacement, furthest| {
            let (settings, replacement) = (settings.clone(), replacement.clone());
            threads.wait(async move { rename(&settings, &replacement, furthest).await })
        };
        acceptance::accept(beside, Path::new(&place), look, first, name_anew)
    }

    /// Waits until each commit that this process has sent has happened, or cannot happen any more: what is read after it holds.
    async fn settled(&self) -> Result<(), StoreError> {
        self.transact(Box::new(|_| Ok(()))).await
    }

    /// Registers this process as the user of the store with this id.
    async fn use_as(&self, id: &str) -> Result<(), StoreError> {
        let (opened, replica, beside) = (Arc::clone(&self.open.opened), id.to_owned(), self.open.desk.mark_path.clone());
        self.open
            .desk
            .spawn(async move {
                let presence = Presence::new(&opened, &replica, files::folder(&beside))?;
                presence.begin(&opened).await?;
                if opened.replica_key.set(presence.key()).is_ok() {
                    tokio::spawn(presence.keep(Arc::downgrade(&opened)));
                }
                Ok(())
            })
            .await
    }

    fn keys(&self, range: &KeyRange) -> (String, String) {
        let OpenEtcdStore { keys, .. } = &*self.open.opened;
        (keys.full_key(&range.from), keys.full_key(&range.until))
    }
}

/// Opens the store, and says which of its gateways this is.
async fn open(settings: &EtcdSettings, known: &ExpectedStore, beside: &Path) -> Result<(OpenEtcdStore, String), StoreError> {
    let (members, keys) = (Members::from_settings(settings)?, KeyPrefix::below(&settings.prefix));
    let place = Path::new(&settings.place()).to_owned();
    let until = Instant::now() + settings.timeout;
    let found = match identity::read_identity(settings, &members, until).await? {
        Some(found) => Some(found),
        None => {
            set_back::check(known, &place, None::<&ExistingStore>)?;
            identity::begin(settings, &members, until).await?;
            identity::read_identity(settings, &members, until).await?
        }
    };
    if let Some(found) = &found {
        rollback::report_rollback(known, &members, &keys, found, until).await;
    }
    set_back::check(known, &place, found.as_ref())?;
    let found = found.ok_or(StoreError::Replaced(place))?;
    let replica = under_lock(beside, || replica::load_or_create_id(files::folder(beside)))?;
    let wrote = Wrote {
        replica: replica.clone(),
        commits: found.wrote(&replica).unsigned_abs(),
    };
    let ExistingStore {
        identity,
        schema,
        began,
        mark,
        ..
    } = found;
    let opened = OpenEtcdStore {
        wrote: keys.wrote(&replica),
        set_back: keys.set_back(&mark.id),
        members,
        keys,
        identity,
        schema: Mutex::new(schema),
        began,
        mark: Mutex::new(StoreMark {
            wrote: Some(wrote),
            ..mark
        }),
        timeout: settings.timeout,
        leases: Mutex::default(),
        replica_key: OnceLock::new(),
    };
    Ok((opened, replica))
}

/// Gives another id to the store that was found.
async fn rename(settings: &EtcdSettings, Replacement { known, found }: &Replacement, mark: u64) -> Result<StoreMark, StoreError> {
    let members = Members::from_settings(settings)?;
    let until = Instant::now() + settings.timeout;
    let there = identity::read_identity(settings, &members, until).await?;
    if there.as_ref().map(|there| &there.mark.id) != found.as_ref().map(|found| &found.id) {
        return Err(StoreError::Replaced(members.place.into()));
    }
    identity::rename(settings, &members, there.as_ref(), known.as_ref(), mark, until).await
}

#[async_trait]
impl Engine for Etcd {
    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        self.open.desk.ask(work).await
    }

    fn later(&self, work: Work) {
        self.open.desk.later(work, |work| work);
    }

    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.settled().await?;
        let (from, until) = self.keys(&range);
        let options = GetOptions::new()
            .with_range(until)
            .with_limit(i64::try_from(most).unwrap_or(i64::MAX));
        let opened = Arc::clone(&self.open.opened);
        self.open
            .desk
            .spawn(async move {
                let read = [TxnOp::get(from, Some(options))];
                let answers = opened.read(Instant::now() + opened.timeout, &read).await;
                let answers = answers.map_err(|trouble| opened.error(&trouble))?;
                let found = answers.iter().filter_map(|answer| match answer {
                    TxnOpResponse::Get(found) => Some(found.kvs()),
                    _ => None,
                });
                found.flatten().map(|found| pair(&opened.keys, found)).collect()
            })
            .await
    }

    async fn count(&self, range: KeyRange) -> Result<u64, StoreError> {
        self.settled().await?;
        let (from, until) = self.keys(&range);
        let opened = Arc::clone(&self.open.opened);
        self.open
            .desk
            .spawn(async move {
                let read = [TxnOp::get(from, Some(GetOptions::new().with_range(until).with_count_only()))];
                let answers = opened.read(Instant::now() + opened.timeout, &read).await;
                let answers = answers.map_err(|trouble| opened.error(&trouble))?;
                Ok(match answers.first() {
                    Some(TxnOpResponse::Get(found)) => found.count().unsigned_abs(),
                    _ => 0,
                })
            })
            .await
    }

    fn replica(&self) -> Option<&str> {
        Some(&self.open.replica)
    }

    async fn serve(&self) -> Result<(), StoreError> {
        self.use_as(&self.open.replica).await
    }

    async fn join(&self) -> Result<(), StoreError> {
        self.use_as(&identity::new_id()?).await
    }

    async fn acquire_leadership(&self, work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        let leads = Self::acquire_lease(self, work, LEASE).await?;
        Ok(leads.map(|leads| leads.into_leader(self.clone())))
    }

    fn most_writes(&self) -> usize {
        MOST_WRITES
    }

    fn store_mark(&self) -> Option<StoreMark> {
        Some(locked(&self.open.opened.mark).clone())
    }

    fn mark_path(&self) -> Option<&Path> {
        Some(&self.open.desk.mark_path)
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        let standing = locked(&self.open.opened.mark).clone();
        self.open.desk.keep_mark(standing).await
    }
}
