//! The store on objects of the cluster's API: for several gateways, and no second etcd.
//!
//! The store is a single object, the head: only its content counts. All reads ask for the current state. A process that cannot reach the
//! API answers errors, and decides nothing.

mod api;
mod changes;
mod committer;
mod head;
mod import;
mod leaves;
mod liveness;
mod open_store;
mod opening;
mod pages;
mod plan;
mod presence;
mod snapshot;
mod swap;
mod upgrade;
mod view;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::StoreLocation;
use async_trait::async_trait;
use attest_system::files;
use committer::KubernetesCommitter;
pub(super) use import::KubernetesImport;
use open_store::{KubernetesTrouble, OpenKubernetesStore};
use opening::{open, read_head, rename};
use plan::{Change, CommitRequest};
pub(super) use snapshot::{KubernetesSnapshot, existing_store, served_by};
use tokio::time::Instant;
pub(super) use upgrade::{raise_schema, schema_status};
use view::{Missing, View};

use super::engine::{Engine, KeyRange, KeyValue, Work};
use super::expected_store::{self, ExpectedStore};
use super::remote::desk::Desk;
pub use super::remote::leadership::Leadership;
use super::remote::serving::LEASE;
use super::remote::{acceptance, locked, set_back};
use super::threads::{Threads, under_lock};
use super::{AcceptedStore, LeaderGuard, Replacement, StoreError, StoreHealth, StoreMark, schema};
use crate::settings::KubernetesSettings;

/// Most challenges that are remembered when more come. Their ids are random: 48 KiB of commits, some 200 challenges, are spread over all
/// leaves with challenges, and compaction rewrites each of these. So the cost of remembering another one grows with their number, up to a
/// leaf for each. The benchmark `stores` measures it: here 4.6 KiB, with a tenth of these 1.1 KiB. Thirty boots a second make this many in
/// a quarter of an hour; a node comes with its challenge after seconds.
const CHALLENGES_LIMIT_ROWS: u64 = 30_000;
/// Number of leaves beyond which no more challenges are taken. Challenges are forgotten only now and then. Clients that spend all that
/// three gateways give meanwhile would have each head name more than ten thousand leaves. This many are some 100 MB, more than a hundred
/// thousand machines and their tickets have, and 150 KiB of each head.
const LEAVES_LIMIT: usize = 2_000;
/// Keys that one transaction writes or removes: they fit into a commit, and delay others no longer than another commit does.
const MOST_WRITES: usize = 200;
/// Limits of this engine, and its waiting time for other processes. Gateways of one store have the same; tests have less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubernetesLimits {
    /// Time for which a process that is not heard of keeps what it holds.
    pub lease: Duration,
    /// Most challenges that are remembered.
    pub challenges: u64,
    /// Leaves beyond which no more challenges are taken.
    pub leaves: usize,
    /// Unpacked bytes of leaves that are kept in memory from one commit to the next.
    pub cache_bytes: usize,
}

impl Default for KubernetesLimits {
    fn default() -> Self {
        Self {
            lease: LEASE,
            challenges: CHALLENGES_LIMIT_ROWS,
            leaves: LEAVES_LIMIT,
            cache_bytes: 96 * 1024 * 1024,
        }
    }
}

/// The name of its threads.
const THREADS: &str = "kubernetes";

/// A store on objects of an API. Clones are the same store.
#[derive(Clone)]
pub struct Kubernetes {
    open: Arc<KubernetesInner>,
}

struct KubernetesInner {
    opened: Arc<OpenKubernetesStore>,
    desk: Desk<CommitRequest>,
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kubernetes({})", self.open.opened.place.place)
    }
}

impl Kubernetes {
    /// Opens the store, and creates it if none exists or ever existed. The folder of `beside` holds what is known of the store.
    ///
    /// # Errors
    /// [`StoreError`] if the API does not answer in time, or if what it has is not a store, or not the known one ([`ExpectedStore`]).
    pub fn open(settings: &KubernetesSettings, beside: &Path) -> Result<Self, StoreError> {
        Self::open_within(settings, beside, KubernetesLimits::default())
    }

    /// Like [`Kubernetes::open`], with other limits.
    ///
    /// # Errors
    /// Like [`Kubernetes::open`].
    pub fn open_within(settings: &KubernetesSettings, beside: &Path, limits: KubernetesLimits) -> Result<Self, StoreError> {
        let threads = Threads::start(THREADS, &settings.place())?;
        let (settings, folder) = (settings.clone(), beside.to_owned());
        let (opened, head) = threads.wait(async move {
            // Known first: what is found is then at least as new.
            let known = ExpectedStore::load(&folder)?;
            let (opened, head) = open(&settings, &known, &folder, limits).await?;
            if known.file.is_none() {
                under_lock(&folder, || expected_store::write_mark(&folder, &locked(&opened.mark)))?;
            }
            Ok((opened, head))
        })?;
        let opened = Arc::new(opened);
        let committer = KubernetesCommitter::new(Arc::clone(&opened), head);
        let desk = Desk::open(threads, beside, opened.timeout, Arc::clone(&opened), |jobs| committer.run(jobs));
        Ok(Self {
            open: Arc::new(KubernetesInner { opened, desk }),
        })
    }

    /// Returns whether there is a store that could be opened; writes nothing. `false` if none exists or ever existed.
    ///
    /// # Errors
    /// Like [`Kubernetes::open`].
    pub fn exists(settings: &KubernetesSettings, beside: &Path) -> Result<bool, StoreError> {
        let (settings, folder) = (settings.clone(), beside.to_owned());
        Threads::start(THREADS, &settings.place())?.wait(async move {
            let known = ExpectedStore::load(&folder)?;
            let place = StoreLocation::from_settings(&settings).await?;
            let found = read_head(&place, Instant::now() + settings.timeout).await?;
            set_back::check(&known, place.place.as_ref(), found.as_ref())?;
            Ok(found.is_some())
        })
    }

    /// Returns the health report of the store.
    ///
    /// # Errors
    /// Like [`Kubernetes::exists`].
    pub fn health(settings: &KubernetesSettings) -> Result<StoreHealth, StoreError> {
        let settings = settings.clone();
        Threads::start(THREADS, &settings.place())?.wait(async move {
            let place = StoreLocation::from_settings(&settings).await?;
            let mut health = StoreHealth::default();
            if let Some(head) = read_head(&place, Instant::now() + settings.timeout).await? {
                let packed = head.encode()?.len();
                health.good.push(format!(
                    "{}: {} KiB, which each commit writes, and {} leaves",
                    place.place,
                    packed >> 10,
                    head.leaves.len()
                ));
            }
            Ok(health)
        })
    }

    /// Accepts the current store, or initializes an empty one, like [`super::accept()`].
    ///
    /// # Errors
    /// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
    pub fn accept<E: From<StoreError>>(
        settings: &KubernetesSettings,
        beside: &Path,
        first: impl FnOnce(&Replacement) -> Result<(), E>,
    ) -> Result<AcceptedStore, E> {
        let threads = Threads::start(THREADS, &settings.place())?;
        let (timeout, asking) = (settings.timeout, settings.clone());
        let place = threads.wait(async move { StoreLocation::from_settings(&asking).await })?;
        let looks = || {
            let place = place.clone();
            threads.wait(async move { read_head(&place, Instant::now() + timeout).await })
        };
        let name_anew = |replacement: &Replacement, furthest| {
            let (place, replacement) = (place.clone(), replacement.clone());
            threads.wait(async move { rename(&place, &replacement, furthest, Instant::now() + timeout).await })
        };
        acceptance::accept(beside, place.place.as_ref(), looks, first, name_anew)
    }

    async fn do_change(&self, change: Change) -> Result<(), StoreError> {
        self.open.desk.ask(CommitRequest::Change(change)).await
    }

    /// Reads the current state, and returns the result of the last run.
    async fn read_state<T: Send + 'static>(&self, look: impl Fn(&View) -> Result<T, Missing> + Send + 'static) -> Result<T, StoreError> {
        let found = Arc::new(Mutex::new(None));
        let place = Arc::clone(&found);
        let look = Box::new(move |view: &View| {
            let read = look(view)?;
            *locked(&place) = Some(read);
            Ok(())
        });
        self.open.desk.ask(CommitRequest::Look(look)).await?;
        let found = locked(&found).take();
        found.ok_or(StoreError::Closed)
    }

    fn change_later(&self, change: Change) {
        self.open.desk.nobody_waits(CommitRequest::Change(change));
    }

    /// Has the committer look what is to be done next.
    fn wake(&self) {
        self.open.desk.nobody_waits(CommitRequest::Look(Box::new(|_| Ok(()))));
    }

    /// Registers this process as the user of the store with this id.
    async fn use_as(&self, id: &str) -> Result<(), StoreError> {
        let (store, beside, id) = (self.clone(), self.open.desk.mark_path.clone(), id.to_owned());
        self.open
            .desk
            .spawn(async move {
                store.begin_to_serve(&id, files::folder(&beside)).await?;
                store.wake();
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl Engine for Kubernetes {
    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        self.open.desk.ask(CommitRequest::Work(work)).await
    }

    fn later(&self, work: Work) {
        self.open.desk.later(work, CommitRequest::Work);
    }

    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.read_state(move |view| view.page(&range, most)).await
    }

    async fn count(&self, range: KeyRange) -> Result<u64, StoreError> {
        self.read_state(move |view| view.count(&range)).await
    }

    fn replica(&self) -> Option<&str> {
        Some(&self.open.opened.replica)
    }

    async fn serve(&self) -> Result<(), StoreError> {
        self.use_as(&self.open.opened.replica).await
    }

    async fn join(&self) -> Result<(), StoreError> {
        self.use_as(&schema::new_id()?).await
    }

    async fn acquire_leadership(&self, work: &str) -> Result<Option<LeaderGuard>, StoreError> {
        let leads = self.acquire_lease(work).await?;
        Ok(leads.map(|leads| leads.into_leader(self.clone())))
    }

    fn most_writes(&self) -> usize {
        MOST_WRITES
    }

    fn most_challenges(&self) -> u64 {
        self.open.opened.limits.challenges
    }

    fn has_room(&self) -> Result<(), StoreError> {
        let opened = &self.open.opened;
        if opened.is_crowded() {
            return Err(opened.error(&KubernetesTrouble::Crowded));
        }
        Ok(())
    }

    fn store_mark(&self) -> Option<StoreMark> {
        Some(locked(&self.open.opened.mark).clone())
    }

    fn recent_mark(&self) -> Option<u64> {
        self.open.opened.recent_mark()
    }

    fn mark_path(&self) -> Option<&Path> {
        Some(&self.open.desk.mark_path)
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        let standing = locked(&self.open.opened.mark).clone();
        self.open.desk.keep_mark(standing).await
    }
}
