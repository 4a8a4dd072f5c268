//! The store on objects of the cluster's API: for several gateways, and no second etcd.
//!
//! One object, the head, is the store: whatever it says stands, and nothing else does. All reads ask which state stands; a process that cannot reach the API answers
//! errors and decides nothing.

mod api;
mod changes;
mod committer;
mod head;
mod leaves;
mod moving;
mod opened;
mod presence;
mod queue;
mod view;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use api::{Failure, Place};
use async_trait::async_trait;
use committer::Committer;
use head::Head;
pub(super) use moving::{Moment, Taking, served_by, there};
use opened::{Opened, Trouble, check_known, locked, mark};
pub use presence::Leadership;
use queue::{Asked, Change, Job};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use view::{Missing, View};

use super::engine::{Engine, KeyRange, KeyValue, Work};
use super::fence::Fenced;
use super::known::{self, Known};
use super::threads::{Threads, under_lock};
use super::{Accepted, Health, Lead, Replacement, StoreError, StoreMark, Wrote, replica, schema};
use crate::files;
use crate::settings::KubernetesSettings;

/// Works that may wait; beyond that the gateway is overloaded and says so.
const QUEUE_LIMIT: usize = 4096;
/// Works that nobody waits for and that may wait, while the API does not answer.
const LATER_LIMIT: usize = 4096;
/// How much longer whoever asked waits than what it asked for is tried: the committer knows better what has become of it.
const GRACE: Duration = Duration::from_millis(200);
/// Keys that one transaction writes or removes: they fit into a commit, and others wait no longer for it than for another.
const MOST_WRITES: usize = 200;
/// The name of its threads.
const THREADS: &str = "kubernetes";

/// A store on objects of an API. Clones are the same store.
#[derive(Clone)]
pub struct Kubernetes {
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
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kubernetes({})", self.open.opened.place.place)
    }
}

impl Kubernetes {
    /// Opens the store, and begins it if there is none and there never was one. What is known of it lies in the folder of `beside`.
    ///
    /// # Errors
    /// [`StoreError`] if the API does not answer in time, or if what is there is no store or not the one that is known ([`Known`]).
    pub fn open(settings: &KubernetesSettings, beside: &Path) -> Result<Self, StoreError> {
        let threads = Threads::start(THREADS, &settings.place())?;
        let (settings, folder) = (settings.clone(), beside.to_owned());
        let (opened, head) = threads.wait(async move {
            // Known first: what is found is then at least as new.
            let known = Known::beside(&folder)?;
            let (opened, head) = open(&settings, &known, &folder).await?;
            if known.file.is_none() {
                under_lock(&folder, || known::write_mark(&folder, &locked(&opened.standing)))?;
            }
            Ok((opened, head))
        })?;
        let opened = Arc::new(opened);
        let (jobs, queue) = mpsc::channel(QUEUE_LIMIT);
        let (done, closed) = std::sync::mpsc::channel();
        let committer = Committer::new(Arc::clone(&opened), head);
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
            }),
        })
    }

    /// Whether there is a store that could be opened; nothing is written. `false` if there is none yet, and never was one.
    ///
    /// # Errors
    /// As [`Kubernetes::open`].
    pub fn look(settings: &KubernetesSettings, beside: &Path) -> Result<bool, StoreError> {
        let (settings, folder) = (settings.clone(), beside.to_owned());
        Threads::start(THREADS, &settings.place())?.wait(async move {
            let known = Known::beside(&folder)?;
            let place = Place::of(&settings).await?;
            let found = look(&place, Instant::now() + settings.timeout).await?;
            check_known(&known, place.place.as_ref(), found.as_ref(), Known::check)?;
            Ok(found.is_some())
        })
    }

    /// What there is to say of it beside that.
    ///
    /// # Errors
    /// As [`Kubernetes::look`].
    pub fn health(settings: &KubernetesSettings) -> Result<Health, StoreError> {
        let settings = settings.clone();
        Threads::start(THREADS, &settings.place())?.wait(async move {
            let place = Place::of(&settings).await?;
            let mut health = Health::default();
            if let Some(head) = look(&place, Instant::now() + settings.timeout).await? {
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

    /// Takes the store that is there for the right one, or begins an empty one, as [`super::accept()`]. If it is the one that is known, from before, or
    /// none, it becomes another store. If it is another one, and says that it is in the place of the one that is known, this gateway takes it as it is: the first
    /// of several that accepts it has given it its name.
    ///
    /// # Errors
    /// [`StoreError`], [`StoreError::Known`] if there is nothing to accept; and those of `first`.
    pub fn accept<E: From<StoreError>>(
        settings: &KubernetesSettings,
        beside: &Path,
        first: impl FnOnce(&Replacement) -> Result<(), E>,
    ) -> Result<Accepted, E> {
        let known = Known::beside(beside);
        let readable = known.is_ok();
        let known = known.or_else(|_| Known::but_for_file(beside))?;
        let threads = Threads::start(THREADS, &settings.place())?;
        let looking = settings.clone();
        let (place, found) = threads.wait(async move {
            let place = Place::of(&looking).await?;
            let found = look(&place, Instant::now() + looking.timeout).await?;
            Ok((place, found))
        })?;
        if readable && check_known(&known, place.place.as_ref(), found.as_ref(), Known::check).is_ok() {
            return Err(StoreError::Known(place.place.into()).into());
        }
        let replacement = Replacement {
            known: known.expected().cloned(),
            found: found.as_ref().map(mark),
        };
        first(&replacement)?;
        let is_instead = |head: &Head, known: &StoreMark| head.moved.is_none() && head.replaced.contains(&known.id);
        let named = found.filter(|head| replacement.known.as_ref().is_some_and(|known| is_instead(head, known)));
        let now = match named {
            Some(named) => mark(&named),
            None => {
                let (timeout, replacement, furthest) = (settings.timeout, replacement.clone(), known.furthest());
                threads.wait(async move { rename(&place, &replacement, furthest, Instant::now() + timeout).await })?
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
        let jobs = locked(&self.open.jobs);
        jobs.as_ref()
            .ok_or(StoreError::Closed)?
            .try_send(job)
            .map_err(|_| self.overloaded())
    }

    fn overloaded(&self) -> StoreError {
        StoreError::Engine {
            engine: "kubernetes",
            place: self.open.opened.place.place.clone(),
            problem: "more works wait than can be done".to_owned(),
            advice: "the cluster's API is too slow, or does not answer".to_owned(),
        }
    }

    /// Asks the committer, and waits for it.
    async fn ask(&self, asked: Asked) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.open.opened.timeout;
        let (answer, answered) = oneshot::channel();
        self.send(Job {
            asked,
            answer: Some(answer),
            deadline: Some(deadline),
        })?;
        let opened = Arc::clone(&self.open.opened);
        self.spawn(async move {
            match timeout_at(deadline + GRACE, answered).await {
                Ok(answer) => answer.map_err(|_| StoreError::Closed)?,
                Err(_) => Err(opened.error(&Trouble::Doubt(Failure::Unanswered("there was no answer in time".to_owned())))),
            }
        })
        .await
    }

    async fn do_change(&self, change: Change) -> Result<(), StoreError> {
        self.ask(Asked::Change(change)).await
    }

    /// Reads what stands, and gives what the last run has found.
    async fn look_at<T: Send + 'static>(&self, look: impl Fn(&View) -> Result<T, Missing> + Send + 'static) -> Result<T, StoreError> {
        let found = Arc::new(Mutex::new(None));
        let place = Arc::clone(&found);
        let look = Box::new(move |view: &View| {
            let read = look(view)?;
            *locked(&place) = Some(read);
            Ok(())
        });
        self.ask(Asked::Look(look)).await?;
        let found = locked(&found).take();
        found.ok_or(StoreError::Closed)
    }

    fn nobody_waits(&self, asked: Asked) {
        let job = Job {
            asked,
            answer: None,
            deadline: None,
        };
        if let Err(error) = self.send(job) {
            tracing::warn!(%error, "a work that nobody waits for is not done");
        }
    }

    fn change_later(&self, change: Change) {
        self.nobody_waits(Asked::Change(change));
    }

    /// Has the committer look what is to be done next.
    fn wake(&self) {
        self.nobody_waits(Asked::Look(Box::new(|_| Ok(()))));
    }
}

/// What is there, if it is a store. Nothing is written.
async fn look(place: &Place, until: Instant) -> Result<Option<Head>, StoreError> {
    let head = place.head(until).await.map_err(|failure| place.error(&failure, false))?;
    match head {
        Some(head) if head.taking.is_some() => Err(StoreError::Unfinished(place.place.clone().into())),
        head => Ok(head),
    }
}

/// Opens the store, and what it is now.
async fn open(settings: &KubernetesSettings, known: &Known, beside: &Path) -> Result<(Opened, Head), StoreError> {
    let place = Place::of(settings).await?;
    let path = PathBuf::from(&place.place);
    let until = Instant::now() + settings.timeout;
    let found = match look(&place, until).await? {
        Some(found) => found,
        None => {
            check_known(known, &path, None, Known::check)?;
            begin(&place, &Head::new(schema::new_id()?)?, until).await?;
            let begun = look(&place, until).await?;
            begun.ok_or_else(|| StoreError::Replaced(path.clone()))?
        }
    };
    if found.set_back.is_none() && is_behind(known, &found) {
        let session = schema::new_id()?;
        if let Err(error) = tell_set_back(&place, &found, &session, until).await {
            tracing::error!("{} was set back, and other gateways cannot be told: {error}", place.place);
        }
    }
    check_known(known, &path, Some(&found), Known::check)?;
    let replica = under_lock(beside, || replica::of_state(files::folder(beside)))?;
    let wrote = Wrote {
        replica: replica.clone(),
        commits: found.commits(&replica).unwrap_or(0),
    };
    let opened = Opened {
        id: found.id.clone(),
        replica,
        session: schema::new_id()?,
        standing: Mutex::new(StoreMark {
            wrote: Some(wrote),
            ..mark(&found)
        }),
        timeout: settings.timeout,
        serving: OnceLock::new(),
        leads: Mutex::default(),
        place,
    };
    Ok((opened, found))
}

/// Whether a store that was found lacks something of what is known.
fn is_behind(known: &Known, found: &Head) -> bool {
    let is_it = |mark: &&StoreMark| mark.id == found.id;
    let furthest = known.file.iter().chain(&known.log).filter(is_it).map(|known| known.mark).max();
    let lacks = known
        .wrote(&found.id)
        .any(|wrote| found.commits(&wrote.replica).is_some_and(|commits| commits < wrote.commits));
    furthest.is_some_and(|furthest| furthest > found.mark) || lacks
}

/// Makes the object; another process may be faster.
async fn begin(place: &Place, head: &Head, until: Instant) -> Result<(), StoreError> {
    match place.create(head, head.encode()?, until).await {
        // Whatever is there is looked at.
        Ok(_) | Err(Failure::Unanswered(_)) => Ok(()),
        Err(failure) => Err(place.error(&failure, false)),
    }
}

/// Tells all gateways that what was found is the store from before. If it is another one by now, it is not.
async fn tell_set_back(place: &Place, found: &Head, session: &str, until: Instant) -> Result<(), StoreError> {
    let mut next = found.next(session, 1)?;
    next.leave_out(session);
    next.set_back = Some(presence::host_of_this());
    let told = place.swap(&found.commit, &next, &next.encode()?, until).await;
    match told {
        Ok(true) => tracing::error!("{} was set back: no gateway uses it from here on", place.place),
        Ok(false) => {}
        Err(failure) => return Err(place.error(&failure, true)),
    }
    Ok(())
}

/// Gives the store that was found another name, or begins one.
async fn rename(place: &Place, replacement: &Replacement, furthest: u64, until: Instant) -> Result<StoreMark, StoreError> {
    let replaced = || StoreError::Replaced(place.place.clone().into());
    let known = replacement.known.as_ref().map(|known| known.id.as_str());
    let id = schema::new_id()?;
    loop {
        let there = look(place, until).await?;
        if let Some(now) = there.as_ref().filter(|there| there.id == id) {
            // An answer was lost.
            return Ok(mark(now));
        }
        if there.as_ref().map(|there| &there.id) != replacement.found.as_ref().map(|found| &found.id) {
            return Err(replaced());
        }
        let sent = match &there {
            None => {
                let mut head = Head::new(String::new())?;
                head.rename(id.clone(), furthest, known.into_iter());
                place.create(&head, head.encode()?, until).await.map(|_| ())
            }
            Some(there) => {
                let mut next = there.next(&id, 1)?;
                next.leave_out(&id);
                next.rename(id.clone(), furthest, [there.id.as_str()].into_iter().chain(known));
                place.swap(&there.commit, &next, &next.encode()?, until).await.map(|_| ())
            }
        };
        match sent {
            Ok(()) | Err(Failure::Unanswered(_)) if Instant::now() < until => {}
            Ok(()) => return Err(replaced()),
            Err(failure) => return Err(place.error(&failure, true)),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Ok(jobs) = self.jobs.get_mut() {
            jobs.take();
        }
        if let Ok(closed) = self.closed.get_mut() {
            // What nobody waits for is tried once more, and what is held given back.
            let _ = closed.recv_timeout(self.opened.timeout * 2);
        }
    }
}

#[async_trait]
impl Engine for Kubernetes {
    async fn transact(&self, work: Work) -> Result<(), StoreError> {
        self.ask(Asked::Work(work)).await
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
        self.nobody_waits(Asked::Work(work));
    }

    async fn page(&self, range: KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.look_at(move |view| view.page(&range, most)).await
    }

    async fn count(&self, range: KeyRange) -> Result<u64, StoreError> {
        self.look_at(move |view| view.count(&range)).await
    }

    fn replica(&self) -> Option<&str> {
        Some(&self.open.opened.replica)
    }

    async fn serve(&self) -> Result<(), StoreError> {
        let (store, beside) = (self.clone(), self.open.beside.clone());
        self.spawn(async move {
            store.begin_to_serve(files::folder(&beside)).await?;
            store.wake();
            Ok(())
        })
        .await
    }

    async fn lead(&self, work: &str) -> Result<Option<Lead>, StoreError> {
        let leads = self.lead_work(work).await?;
        Ok(leads.map(|leads| {
            let fenced = Fenced::new(self.clone(), leads.fence());
            Lead::of(Arc::new(fenced), Box::new(leads))
        }))
    }

    fn most_writes(&self) -> usize {
        MOST_WRITES
    }

    fn standing(&self) -> Option<StoreMark> {
        Some(locked(&self.open.opened.standing).clone())
    }

    fn beside(&self) -> Option<&Path> {
        Some(&self.open.beside)
    }

    async fn keep_mark(&self) -> Result<(), StoreError> {
        let (standing, beside) = (locked(&self.open.opened.standing).clone(), self.open.beside.clone());
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
