//! The store on etcd: for several gateways, on machines of which any may die.
//!
//! All reads are linearizable, and nothing is kept of what was read before: a process that cannot reach etcd, or reaches members that have
//! lost the others, answers errors and decides nothing.

mod committer;
mod diagnosis;
mod health;
mod identity;
mod keys;
mod leader;
mod members;
mod moment;
mod opened;
mod overlay;
mod own;
mod presence;
mod queue;
mod set_back;
mod taking;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use committer::Committer;
use etcd_client::{GetOptions, TxnOp, TxnOpResponse};
use identity::Found;
use keys::Keys;
pub use leader::Leadership;
use members::{Failure, FailureKind, Members};
pub(super) use moment::{Moment, served_by, there};
use opened::{Opened, pair};
use overlay::MOST_KEYS;
use presence::Presence;
use queue::Job;
pub(super) use taking::Taking;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::engine::{Engine, KeyRange, KeyValue, Work};
use super::fence::Fenced;
use super::known::{self, Known};
use super::threads::{Threads, under_lock};
use super::{Accepted, Lead, Replacement, StoreError, StoreMark, Wrote, replica};
use crate::files;
use crate::settings::EtcdSettings;

/// Works that may wait; beyond that the gateway is overloaded and says so.
const QUEUE_LIMIT: usize = 4096;
/// Works that nobody waits for and that may wait, while etcd does not answer.
const LATER_LIMIT: usize = 4096;
/// How much longer whoever asked waits than what it asked for is tried: the committer knows better what has become of it.
const GRACE: Duration = Duration::from_millis(200);
/// How much of an answer is taken: a page of a store.
const MOST_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Below the keys that one commit takes, for what a work reads besides.
const MOST_WRITES: usize = MOST_KEYS - 20;

/// A store below a prefix of an etcd cluster. Clones are the same store.
#[derive(Clone)]
pub struct Etcd {
    open: Arc<Open>,
}

struct Open {
    opened: Arc<Opened>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    later: Arc<AtomicUsize>,
    /// Says so when everything is done.
    closed: Mutex<std::sync::mpsc::Receiver<()>>,
    threads: Threads,
    /// The store's file, if it were embedded: beside it is what is known of the store.
    beside: PathBuf,
    replica: String,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Etcd({})", self.open.opened.members.place)
    }
}

impl Etcd {
    /// Opens the store, and begins it if there is none and there never was one. What is known of it lies in the folder of `beside`.
    ///
    /// # Errors
    /// [`StoreError`] if etcd does not answer in time, or if what is there is no store or not the one that is known ([`Known`]).
    pub fn open(settings: &EtcdSettings, beside: &Path) -> Result<Self, StoreError> {
        let threads = Threads::start("etcd", &settings.place())?;
        let (settings, folder) = (settings.clone(), beside.to_owned());
        let (opened, replica) = threads.wait(async move {
            // Known first: what is found is then at least as new.
            let known = Known::beside(&folder)?;
            let (opened, replica) = open(&settings, &known, &folder).await?;
            if known.file.is_none() {
                under_lock(&folder, || known::write_mark(&folder, &standing(&opened)))?;
            }
            Ok((opened, replica))
        })?;
        let opened = Arc::new(opened);
        let (jobs, queue) = mpsc::channel(QUEUE_LIMIT);
        let (done, closed) = std::sync::mpsc::channel();
        let committer = Committer::new(Arc::clone(&opened), &identity::new_id()?);
        threads.handle.spawn(async move {
            committer.run(queue).await;
            // Nobody waits for it if the process ends.
            let _ = done.send(());
        });
        Ok(Self {
            open: Arc::new(Open {
                opened,
                jobs: Mutex::new(Some(jobs)),
                later: Arc::default(),
                closed: Mutex::new(closed),
                threads,
                beside: beside.to_owned(),
                replica,
            }),
        })
    }

    /// Whether there is a store that could be opened; nothing is written. `false` if there is none yet, and never was one.
    ///
    /// # Errors
    /// As [`Etcd::open`].
    pub fn look(settings: &EtcdSettings, beside: &Path) -> Result<bool, StoreError> {
        let (place, settings, folder) = (settings.place(), settings.clone(), beside.to_owned());
        Threads::start("etcd", &place)?.wait(async move {
            let known = Known::beside(&folder)?;
            let members = Members::of(&settings)?;
            let found = identity::look(&settings, &members, Instant::now() + settings.timeout).await?;
            set_back::check(&known, Path::new(&members.place), found.as_ref())?;
            Ok(found.is_some())
        })
    }

    /// Takes the store that is there for the right one, or begins an empty one, as [`super::accept()`]. If it is the one that is known, from before, or
    /// none, it becomes another store. If it is another one, and says that it is in the place of the one that is known, this gateway takes it as it is: the first
    /// of several that accepts it has given it its name.
    ///
    /// # Errors
    /// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
    pub fn accept<E: From<StoreError>>(
        settings: &EtcdSettings,
        beside: &Path,
        first: impl FnOnce(&Replacement) -> Result<(), E>,
    ) -> Result<Accepted, E> {
        let (place, known) = (PathBuf::from(settings.place()), Known::beside(beside));
        let readable = known.is_ok();
        let known = known.or_else(|_| Known::but_for_file(beside))?;
        let threads = Threads::start("etcd", &settings.place())?;
        let looking = settings.clone();
        let found = threads.wait(async move {
            let members = Members::of(&looking)?;
            identity::look(&looking, &members, Instant::now() + looking.timeout).await
        })?;
        if readable && set_back::check(&known, &place, found.as_ref()).is_ok() {
            return Err(StoreError::Known(place).into());
        }
        let replacement = Replacement {
            known: known.expected().cloned(),
            found: found.as_ref().map(|found| found.mark.clone()),
        };
        first(&replacement)?;
        let known_before = replacement.known.clone();
        let now = match found.filter(|found| known_before.as_ref().is_some_and(|known| found.is_instead_of(known))) {
            Some(named) => named.mark,
            None => {
                let (settings, found, furthest) = (settings.clone(), replacement.found.clone(), known.furthest());
                threads.wait(async move { rename(&settings, found.as_ref(), known_before.as_ref(), furthest).await })?
            }
        };
        under_lock(beside, || known::replace_mark(beside, &now))?;
        Ok(Accepted { replacement, now })
    }

    /// Does something on the store's own threads: those of whoever asks may have neither clock nor network.
    async fn spawn<T: Send + 'static>(&self, work: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Result<T, StoreError> {
        self.open.threads.handle.spawn(work).await.map_err(|_| StoreError::Closed)?
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        let jobs = self.open.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.as_ref()
            .ok_or(StoreError::Closed)?
            .try_send(job)
            .map_err(|_| self.overloaded())
    }

    fn overloaded(&self) -> StoreError {
        self.failed(
            "more works wait than can be done",
            "etcd is too slow, or does not answer: look at etcdctl endpoint status",
        )
    }

    fn failed(&self, problem: &str, advice: &str) -> StoreError {
        StoreError::Engine {
            engine: "etcd",
            place: self.open.opened.members.place.clone(),
            problem: problem.to_owned(),
            advice: advice.to_owned(),
        }
    }

    /// Waits until each commit that this process has sent has happened, or cannot happen any more: what is read after it holds.
    async fn settled(&self) -> Result<(), StoreError> {
        self.transact(Box::new(|_| Ok(()))).await
    }

    fn keys(&self, range: &KeyRange) -> (String, String) {
        let Opened { keys, .. } = &*self.open.opened;
        (keys.of(&range.from), keys.of(&range.until))
    }
}

/// Opens the store, and says which of its gateways this is.
async fn open(settings: &EtcdSettings, known: &Known, beside: &Path) -> Result<(Opened, String), StoreError> {
    let (members, keys) = (Members::of(settings)?, Keys::below(&settings.prefix));
    let place = Path::new(&settings.place()).to_owned();
    let until = Instant::now() + settings.timeout;
    let found = match identity::look(settings, &members, until).await? {
        Some(found) => Some(found),
        None => {
            set_back::check(known, &place, None)?;
            identity::begin(settings, &members, until).await?;
            identity::look(settings, &members, until).await?
        }
    };
    if let Some(found) = &found {
        set_back::tell(known, &members, &keys, found, until).await;
    }
    set_back::check(known, &place, found.as_ref())?;
    let found = found.ok_or(StoreError::Replaced(place))?;
    let replica = under_lock(beside, || replica::of_state(files::folder(beside)))?;
    let wrote = Wrote {
        replica: replica.clone(),
        commits: found.wrote(&replica).unsigned_abs(),
    };
    let Found { identity, began, mark, .. } = found;
    let opened = Opened {
        wrote: keys.wrote(&replica),
        set_back: keys.set_back(&mark.id),
        members,
        keys,
        identity,
        began,
        standing: Mutex::new(StoreMark {
            wrote: Some(wrote),
            ..mark
        }),
        timeout: settings.timeout,
        presence: OnceLock::new(),
    };
    Ok((opened, replica))
}

/// Gives the store that was found another name.
async fn rename(settings: &EtcdSettings, found: Option<&StoreMark>, known: Option<&StoreMark>, mark: u64) -> Result<StoreMark, StoreError> {
    let members = Members::of(settings)?;
    let until = Instant::now() + settings.timeout;
    let there = identity::look(settings, &members, until).await?;
    if there.as_ref().map(|there| &there.mark.id) != found.map(|found| &found.id) {
        return Err(StoreError::Replaced(members.place.into()));
    }
    identity::rename(settings, &members, there.as_ref(), known, mark, until).await
}

fn standing(opened: &Opened) -> StoreMark {
    opened.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Ok(jobs) = self.jobs.get_mut() {
            jobs.take();
        }
        if let Ok(closed) = self.closed.get_mut() {
            // What nobody waits for is tried once more, and the lease given back.
            let _ = closed.recv_timeout(self.opened.timeout * 2);
        }
    }
}

#[async_trait]
impl Engine for Etcd {
    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.open.opened.timeout;
        let (answer, answered) = oneshot::channel();
        self.send(Job {
            work,
            answer: Some(answer),
            deadline: Some(deadline),
        })?;
        let opened = Arc::clone(&self.open.opened);
        self.spawn(async move {
            match timeout_at(deadline + GRACE, answered).await {
                Ok(answer) => answer.map_err(|_| StoreError::Closed)?,
                Err(_) => Err(opened.members.explain(
                    &Failure {
                        endpoint: "all members".to_owned(),
                        problem: "there was no answer in time".to_owned(),
                        kind: FailureKind::Unanswered,
                    },
                    true,
                )),
            }
        })
        .await
    }

    fn later(&self, mut work: Work) {
        let waiting = Arc::clone(&self.open.later);
        if waiting.fetch_add(1, Ordering::Relaxed) >= LATER_LIMIT {
            waiting.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("{}", self.overloaded());
            return;
        }
        let counted = Counted(waiting);
        let work: Work = Box::new(move |transaction| {
            let _ = &counted;
            work(transaction)
        });
        let job = Job {
            work,
            answer: None,
            deadline: None,
        };
        if let Err(error) = self.send(job) {
            tracing::warn!(%error, "a work that nobody waits for is not done");
        }
    }

    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.settled().await?;
        let (from, until) = self.keys(&range);
        let options = GetOptions::new()
            .with_range(until)
            .with_limit(i64::try_from(most).unwrap_or(i64::MAX));
        let opened = Arc::clone(&self.open.opened);
        self.spawn(async move {
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
        self.spawn(async move {
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
        let (opened, replica, beside) = (Arc::clone(&self.open.opened), self.open.replica.clone(), self.open.beside.clone());
        self.spawn(async move {
            let presence = Arc::new(Presence::new(&opened, &replica, files::folder(&beside))?);
            presence.begin(&opened).await?;
            if opened.presence.set(Arc::clone(&presence)).is_ok() {
                tokio::spawn(presence.keep(Arc::downgrade(&opened)));
            }
            Ok(())
        })
        .await
    }

    async fn lead(&self, work: &str) -> Result<Option<Lead>, StoreError> {
        let leads = Self::lead(self, work, leader::LEASE).await?;
        Ok(leads.map(|leads| {
            let fenced = Fenced::new(self.clone(), leads.fence());
            Lead::of(Arc::new(fenced), Box::new(leads))
        }))
    }

    fn most_writes(&self) -> usize {
        MOST_WRITES
    }

    fn standing(&self) -> Option<StoreMark> {
        Some(standing(&self.open.opened))
    }

    fn beside(&self) -> Option<&Path> {
        Some(&self.open.beside)
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        let (standing, beside) = (standing(&self.open.opened), self.open.beside.clone());
        let written = self
            .open
            .threads
            .handle
            .spawn_blocking(move || under_lock(&beside, || known::write_mark(&beside, &standing)));
        written.await.map_err(|_| StoreError::Closed)?
    }
}

/// One of the works that nobody waits for.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
