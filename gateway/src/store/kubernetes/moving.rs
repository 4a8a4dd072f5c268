//! A store on objects of an API that is read as it is at one moment, whoever writes to it meanwhile; and one that takes what another holds.
//!
//! What is taken comes leaf by leaf. Until all of it is there the head says who takes it: whoever opens it says that it is not whole, and whoever takes
//! something anew puts himself in that place. It becomes a store by one change, which wants that its own process stands there still.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::engine::{KeyRange, KeyValue};
use super::super::house::{HouseError, Source, Target};
use super::super::known::{self, Known};
use super::super::moved::Moved;
use super::super::threads::{Threads, under_lock};
use super::super::{StoreError, StoreMark, schema};
use super::api::{Failure, Place};
use super::head::{Head, Leaf};
use super::leaves::{self, LEAF_BYTES};
use super::opened::{check_known, mark};
use super::presence::{LEASE, LOOK_EVERY, serving};
use super::view::{Missing, Pairs, View};
use super::{THREADS, look};
use crate::settings::KubernetesSettings;

/// How much longer a whole store may take than one request.
const WHOLE: u32 = 12;

/// How it is asked, by who is not async.
struct Below {
    threads: Threads,
    place: Place,
    timeout: Duration,
}

impl Below {
    fn of(settings: &KubernetesSettings) -> Result<Arc<Self>, StoreError> {
        let threads = Threads::start(THREADS, &settings.place())?;
        let asking = settings.clone();
        let place = threads.wait(async move { Place::of(&asking).await })?;
        Ok(Arc::new(Self {
            threads,
            place,
            timeout: settings.timeout,
        }))
    }

    fn wait<T, F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (threads, below) = (Arc::clone(self), Arc::clone(self));
        threads.threads.wait(work(below))
    }

    fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    fn replaced(&self) -> StoreError {
        StoreError::Replaced(self.place.place.clone().into())
    }

    fn error(&self, failure: &Failure) -> StoreError {
        self.place.error(failure, false)
    }

    async fn look(&self) -> Result<Option<Head>, StoreError> {
        look(&self.place, self.until()).await
    }

    /// All of a store, at one moment.
    async fn whole(&self) -> Result<Option<View>, StoreError> {
        let until = Instant::now() + self.timeout * WHOLE;
        loop {
            let Some(head) = self.look().await? else { return Ok(None) };
            let mut view = View::new(head);
            match self.fetch(&mut view, None, until).await? {
                None => return Ok(Some(view)),
                // It was put into another one meanwhile.
                Some(_) if Instant::now() < until && self.is_another(&view.head).await? => {}
                Some(name) => return Err(self.error(&leaves::lost(&name))),
            }
        }
    }

    async fn is_another(&self, head: &Head) -> Result<bool, StoreError> {
        let now = self.place.commit(self.until()).await.map_err(|failure| self.error(&failure))?;
        Ok(now.as_ref() != Some(&head.commit))
    }

    /// Fetches leaves, and gives the name of one that is not there.
    async fn fetch(&self, view: &mut View, which: Option<&Missing>, until: Instant) -> Result<Option<String>, StoreError> {
        let is_wanted = |leaf: &&Leaf| !view.leaves.contains_key(&leaf.name) && which.is_none_or(|which| which.contains(&leaf.name));
        let wanted: Vec<Leaf> = view.head.leaves.iter().filter(is_wanted).cloned().collect();
        let found = leaves::fetch(&self.place, wanted, until)
            .await
            .map_err(|failure| self.error(&failure))?;
        let mut gone = None;
        for (name, pairs) in found {
            match pairs {
                Some(pairs) => drop(view.leaves.insert(name, Arc::new(pairs))),
                None => gone = Some(name),
            }
        }
        Ok(gone)
    }

    /// Who serves, by the host of each; and the state by which nobody does. Who is not heard of while a lease lasts is put out.
    async fn served_by(&self) -> Result<Result<Option<Head>, Vec<String>>, StoreError> {
        let begun = Instant::now();
        let mut first: Option<BTreeMap<String, u64>> = None;
        loop {
            let Some(head) = self.look().await? else { return Ok(Ok(None)) };
            let now = serving(&head);
            if now.is_empty() {
                return Ok(Ok(Some(head)));
            }
            let numbers: BTreeMap<String, u64> = now.iter().map(|(session, number, _)| (session.clone(), *number)).collect();
            let known = first.get_or_insert_with(|| numbers.clone());
            let heard = now.iter().filter(|(session, number, _)| known.get(session) != Some(number));
            let heard: Vec<String> = heard.map(|(_, _, host)| host.clone()).collect();
            if !heard.is_empty() {
                return Ok(Err(heard));
            }
            if begun.elapsed() >= LEASE {
                let own = schema::new_id()?;
                let mut next = head.next(&own, 1)?;
                for session in numbers.keys().chain([&own]) {
                    next.leave_out(session);
                }
                self.swap(&head, &next, begun + LEASE * 2).await?;
                continue;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Puts one state in the place of another, by then. Whether it did, whoever asks has to look.
    async fn swap(&self, from: &Head, to: &Head, until: Instant) -> Result<(), StoreError> {
        let swapped = self.place.swap(&from.commit, to, &to.encode()?, self.until()).await;
        match swapped {
            Ok(_) => Ok(()),
            Err(Failure::Unanswered(_)) if Instant::now() < until => {
                sleep(LOOK_EVERY).await;
                Ok(())
            }
            Err(failure) => Err(self.place.error(&failure, true)),
        }
    }

    async fn remove(&self, names: impl IntoIterator<Item = String>) -> Result<(), StoreError> {
        for name in names {
            let gone = self.place.delete_leaf(&name, self.until()).await;
            gone.map_err(|failure| self.error(&failure))?;
        }
        Ok(())
    }

    async fn leaves(&self) -> Result<Vec<String>, StoreError> {
        self.place.leaves(self.until()).await.map_err(|failure| self.error(&failure))
    }
}

/// What a store holds at one moment.
pub(in super::super) struct Moment {
    below: Arc<Below>,
    view: View,
}

impl Moment {
    pub(in super::super) fn of(settings: &KubernetesSettings, beside: &Path) -> Result<Self, StoreError> {
        // Known first: what is found is then at least as new.
        let known = Known::beside(beside)?;
        let below = Below::of(settings)?;
        let view = below.wait(|below| async move { below.whole().await })?;
        let place = Path::new(&below.place.place);
        check_known(&known, place, view.as_ref().map(|view| &*view.head), Known::check_to_move)?;
        let Some(view) = view else {
            return Err(StoreError::Lost {
                path: place.to_owned(),
                known: "what it holds was asked for".to_owned(),
            });
        };
        Ok(Self { below, view })
    }

    /// Has the store say that it has gone there, or that it has not, if all is as it was, and nobody serves on it.
    fn say(&self, moved: Option<Moved>) -> Result<Result<(), Vec<String>>, StoreError> {
        let was = Arc::clone(&self.view.head);
        self.below.wait(|below| async move {
            let until = Instant::now() + below.timeout * WHOLE;
            loop {
                let head = match below.served_by().await? {
                    Err(hosts) => return Ok(Err(hosts)),
                    Ok(head) => head.ok_or_else(|| below.replaced())?,
                };
                let is_as_it_was = head.id == was.id && head.mark == was.mark && head.set_back.is_none();
                if is_as_it_was && head.moved == moved {
                    return Ok(Ok(()));
                }
                if !is_as_it_was || head.moved != was.moved || Instant::now() >= until {
                    return Err(below.replaced());
                }
                let own = schema::new_id()?;
                let mut next = head.next(&own, 1)?;
                next.leave_out(&own);
                next.moved.clone_from(&moved);
                below.swap(&head, &next, until).await?;
            }
        })
    }
}

impl Source for Moment {
    fn store(&self) -> StoreMark {
        mark(&self.view.head)
    }

    fn moved(&self) -> Option<&Moved> {
        self.view.head.moved.as_ref()
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.view.page(range, most).map_err(|_| StoreError::Closed)
    }

    fn store_now(&mut self) -> Result<StoreMark, StoreError> {
        let head = self.below.wait(|below| async move { below.look().await })?;
        let head = head.filter(|head| head.moved == self.view.head.moved);
        Ok(mark(&head.ok_or_else(|| self.below.replaced())?))
    }

    fn move_to(&mut self, to: &Moved) -> Result<(), HouseError> {
        match self.say(Some(to.clone())) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(hosts)) => Err(HouseError::Served {
                place: self.below.place.place.clone(),
                hosts: hosts.join(", "),
            }),
            Err(StoreError::Replaced(place)) => match self.below.wait(|below| async move { below.look().await })? {
                Some(Head { moved: Some(moved), .. }) => Err(moved.error(&place).into()),
                _ => Err(HouseError::WentOn),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn take_back(&mut self) -> Result<(), HouseError> {
        match self.say(None) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(StoreError::Replaced(_)) => Err(HouseError::WentOn),
            Err(error) => Err(error.into()),
        }
    }
}

/// On which hosts gateways serve on the store.
pub(in super::super) fn served_by(settings: &KubernetesSettings) -> Result<Vec<String>, StoreError> {
    let served = Below::of(settings)?.wait(|below| async move { below.served_by().await })?;
    Ok(served.err().unwrap_or_default())
}

/// The store that is there, whoever knows it.
pub(in super::super) fn there(settings: &KubernetesSettings) -> Result<Option<StoreMark>, StoreError> {
    match Below::of(settings)?.wait(|below| async move { below.look().await }) {
        Ok(found) => Ok(found.filter(|head| head.moved.is_none()).map(|head| mark(&head))),
        Err(StoreError::Unfinished(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is there, and is no store yet.
pub(in super::super) struct Taking {
    below: Arc<Below>,
    /// The store's file, if it were embedded: beside it is what is known of the store.
    beside: PathBuf,
    known: Known,
    /// What this process has put there.
    session: String,
    /// What has not been sent yet.
    waiting: Pairs,
    bytes: usize,
    last: Option<String>,
    /// What was sent, as it is read again.
    view: View,
}

impl Taking {
    /// Begins, where there is nothing, or what another one has taken that came to no end.
    pub(in super::super) fn begin(settings: &KubernetesSettings, beside: &Path) -> Result<Self, HouseError> {
        let below = Below::of(settings)?;
        let session = schema::new_id()?;
        let mut head = Head::new(String::new())?;
        head.taking = Some(session.clone());
        let begun = head.clone();
        let there = below.wait(|below| async move { below.begin(&begun).await })?;
        if let Some(keys) = there {
            return Err(HouseError::NotEmpty(keys));
        }
        Ok(Self {
            beside: beside.to_owned(),
            known: Known::beside(beside).or_else(|_| Known::but_for_file(beside))?,
            session,
            waiting: Pairs::new(),
            bytes: 0,
            last: None,
            view: View::new(head),
            below,
        })
    }

    /// Keeps what was under way from coming to its end, whoever did it: what has arrived goes.
    pub(in super::super) fn abandon(settings: &KubernetesSettings) -> Result<(), StoreError> {
        Below::of(settings)?.wait(|below| async move { below.abandon().await })
    }

    fn send_waiting(&mut self) -> Result<(), StoreError> {
        let pairs = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        let Some(first) = pairs.keys().next() else { return Ok(()) };
        let leaves = &self.view.head.leaves;
        let name = format!("{}-{}-{}", self.below.place.name, self.session, leaves.len());
        let mut leaf = Leaf {
            from: if leaves.is_empty() { String::new() } else { first.clone() },
            name: name.clone(),
            sha256: String::new(),
        };
        leaf.sha256 = self.below.wait(|below| async move {
            let made = below.place.create_leaf(&name, &pairs, below.until()).await;
            made.map_err(|failure| below.error(&failure))
        })?;
        Arc::make_mut(&mut self.view.head).leaves.push(leaf);
        Ok(())
    }
}

impl Below {
    /// Puts this state where nothing is, or where something is taken; or says how many keys are there.
    async fn begin(&self, begun: &Head) -> Result<Option<u64>, StoreError> {
        let until = Instant::now() + self.timeout;
        loop {
            let there = self.place.head(self.until()).await.map_err(|failure| self.error(&failure))?;
            match there {
                Some(there) if there.commit == begun.commit => break,
                Some(there) if there.taking.is_some() => self.swap(&there, begun, until).await?,
                Some(_) => {
                    let everything = KeyRange {
                        from: String::new(),
                        until: '\u{10ffff}'.to_string(),
                    };
                    let whole = self.whole().await?;
                    let keys = whole.and_then(|view| view.count(&everything).ok()).unwrap_or_default();
                    // A store that holds nothing is there, too.
                    return Ok(Some(keys.max(1)));
                }
                None => super::begin(&self.place, begun, self.until()).await?,
            }
            if Instant::now() >= until {
                return Err(self.replaced());
            }
        }
        // What is there by now is no store's, and will be none's.
        let own = begun.taking.clone().unwrap_or_default();
        let left = self.leaves().await?.into_iter().filter(|name| !name.contains(&own));
        self.remove(left).await?;
        Ok(None)
    }

    async fn abandon(&self) -> Result<(), StoreError> {
        let until = Instant::now() + self.timeout;
        let mut nobody = Head::new(String::new())?;
        nobody.taking = Some(schema::new_id()?);
        loop {
            // Those of whoever begins something after this are not among them.
            let left = self.leaves().await?;
            let there = self.place.head(self.until()).await.map_err(|failure| self.error(&failure))?;
            match there {
                Some(there) if there.commit == nobody.commit => {
                    self.remove(left).await?;
                    let gone = self.place.delete_head(&nobody.commit, self.until()).await;
                    return gone.map_err(|failure| self.error(&failure));
                }
                Some(there) if there.taking.is_some() => self.swap(&there, &nobody, until).await?,
                _ => return Ok(()),
            }
            if Instant::now() >= until {
                return Err(self.replaced());
            }
        }
    }

    /// Makes a store of what this session has taken.
    async fn finish(&self, session: &str, whole: &Head) -> Result<(), StoreError> {
        let until = Instant::now() + self.timeout;
        loop {
            let there = self.place.head(self.until()).await.map_err(|failure| self.error(&failure))?;
            match there {
                // An answer was lost.
                Some(there) if there.id == whole.id => return Ok(()),
                Some(there) if there.taking.as_deref() == Some(session) && Instant::now() < until => {
                    self.swap(&there, whole, until).await?
                }
                _ => return Err(self.replaced()),
            }
        }
    }
}

impl Target for Taking {
    fn known(&self) -> &Known {
        &self.known
    }

    fn put(&mut self, pair: &KeyValue) -> Result<(), StoreError> {
        if self.last.as_ref().is_some_and(|last| *last >= pair.key) {
            return Err(StoreError::Key { key: pair.key.clone() });
        }
        let bytes = pair.key.len() + pair.value.len();
        if self.bytes + bytes > LEAF_BYTES {
            self.send_waiting()?;
        }
        self.bytes += bytes;
        self.last = Some(pair.key.clone());
        self.waiting.insert(pair.key.clone(), pair.value.clone());
        Ok(())
    }

    fn page(&mut self, range: &KeyRange, most: usize) -> Result<Vec<KeyValue>, StoreError> {
        self.send_waiting()?;
        loop {
            let missing = match self.view.page(range, most) {
                Ok(page) => return Ok(page),
                Err(missing) => missing,
            };
            let mut view = self.view.clone();
            let (found, gone) = self.below.wait(|below| async move {
                let gone = below.fetch(&mut view, Some(&missing), below.until()).await?;
                Ok((view, gone))
            })?;
            if let Some(name) = gone {
                return Err(self.below.error(&leaves::lost(&name)));
            }
            self.view = found;
        }
    }

    fn finish(&mut self, from: &StoreMark, id: &str) -> Result<StoreMark, StoreError> {
        self.send_waiting()?;
        let mut whole = Head::new(id.to_owned())?;
        whole.leaves.clone_from(&self.view.head.leaves);
        whole.mark = self.known.furthest().max(from.mark).saturating_add(1);
        let instead_of = [Some(from), self.known.expected()].into_iter().flatten();
        whole.replaced = instead_of.map(|mark| mark.id.clone()).collect();
        whole.replaced.dedup();
        let (now, session) = (mark(&whole), self.session.clone());
        self.below.wait(|below| async move { below.finish(&session, &whole).await })?;
        under_lock(&self.beside, || known::replace_mark(&self.beside, &now))?;
        Ok(now)
    }
}
