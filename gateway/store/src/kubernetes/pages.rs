//! Access to a store on objects for synchronous callers, and for callers that have not opened it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::remote::serving::{LEASE, LOOK_EVERY};
use super::super::threads::Threads;
use super::super::{StoreError, StoreUser, schema};
use super::THREADS;
use super::api::{AGAIN_AFTER, RequestFailure, StoreLocation, Swapped};
use super::head::{Head, LeafReference};
use super::leaves;
use super::opening::read_head;
use super::presence::users;
use super::view::{Missing, View};
use crate::settings::KubernetesSettings;

/// Multiple of a request's time limit that access to a whole store may take.
pub(super) const WHOLE: u32 = 12;

/// Synchronous access to a store on objects.
pub(super) struct KubernetesPages {
    threads: Threads,
    pub place: StoreLocation,
    pub timeout: Duration,
}

impl KubernetesPages {
    pub(super) fn open(settings: &KubernetesSettings) -> Result<Arc<Self>, StoreError> {
        let threads = Threads::start(THREADS, &settings.place())?;
        let asking = settings.clone();
        let place = threads.wait(async move { StoreLocation::from_settings(&asking).await })?;
        Ok(Arc::new(Self {
            threads,
            place,
            timeout: settings.timeout,
        }))
    }

    pub(super) fn wait<T, F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (threads, below) = (Arc::clone(self), Arc::clone(self));
        threads.threads.wait(work(below))
    }

    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    pub(super) fn replaced(&self) -> StoreError {
        StoreError::Replaced(self.place.place.clone().into())
    }

    pub(super) fn error(&self, failure: &RequestFailure) -> StoreError {
        self.place.error(failure, false)
    }

    pub(super) async fn read_head(&self) -> Result<Option<Head>, StoreError> {
        read_head(&self.place, self.until()).await
    }

    /// All of a store, at one moment.
    pub(super) async fn whole(&self) -> Result<Option<View>, StoreError> {
        let until = Instant::now() + self.timeout * WHOLE;
        loop {
            let Some(head) = self.read_head().await? else { return Ok(None) };
            let mut view = View::new(head);
            match self.fetch(&mut view, None, until).await? {
                None => return Ok(Some(view)),
                // It was put into another one meanwhile.
                Some(_) if Instant::now() < until && self.is_another(&view.head).await? => {}
                Some(name) => return Err(self.error(&leaves::lost(&name))),
            }
        }
    }

    pub(super) async fn is_another(&self, head: &Head) -> Result<bool, StoreError> {
        let now = self.place.commit(self.until()).await.map_err(|failure| self.error(&failure))?;
        Ok(now.as_ref() != Some(&head.commit))
    }

    /// Fetches leaves, and returns the name of one that does not exist.
    pub(super) async fn fetch(&self, view: &mut View, which: Option<&Missing>, until: Instant) -> Result<Option<String>, StoreError> {
        let is_wanted =
            |leaf: &&LeafReference| !view.leaves.contains_key(&leaf.name) && which.is_none_or(|which| which.contains(&leaf.name));
        let wanted: Vec<LeafReference> = view.head.leaves.iter().filter(is_wanted).cloned().collect();
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

    /// Returns the wanted processes that use the store, or the state in which none does. Removes those that were not heard of for the length
    /// of a lease.
    pub(super) async fn used_by(&self, is_wanted: impl Fn(&StoreUser) -> bool) -> Result<Result<Option<Head>, Vec<StoreUser>>, StoreError> {
        let begun = Instant::now();
        let mut first: Option<BTreeMap<String, u64>> = None;
        loop {
            let Some(head) = self.read_head().await? else { return Ok(Ok(None)) };
            let mut now = users(&head);
            now.retain(|(_, _, user)| is_wanted(user));
            if now.is_empty() {
                return Ok(Ok(Some(head)));
            }
            let numbers: BTreeMap<String, u64> = now.iter().map(|(session, number, _)| (session.clone(), *number)).collect();
            let known = first.get_or_insert_with(|| numbers.clone());
            let heard = now.iter().filter(|(session, number, _)| known.get(session) != Some(number));
            let heard: Vec<StoreUser> = heard.map(|(_, _, user)| user.clone()).collect();
            if !heard.is_empty() {
                return Ok(Err(heard));
            }
            if begun.elapsed() >= LEASE {
                let own = schema::new_id()?;
                let mut next = head.next(&own, 1)?;
                for session in numbers.keys().chain([&own]) {
                    next.forget(session);
                }
                self.swap(&head, &next, begun + LEASE * 2).await?;
                continue;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Replaces one state by another, before that time. The caller has to look whether it did.
    pub(super) async fn swap(&self, from: &Head, to: &Head, until: Instant) -> Result<(), StoreError> {
        let swapped = self.place.swap(&from.commit, to, &to.encode()?, self.until()).await;
        match swapped {
            Ok(Swapped::Done) => Ok(()),
            // As a rule it is another state by now.
            Ok(Swapped::Refused(_)) if Instant::now() + AGAIN_AFTER < until => {
                sleep(AGAIN_AFTER).await;
                Ok(())
            }
            Ok(Swapped::Refused(message)) => Err(self.error(&RequestFailure::Refused { code: 422, message })),
            Err(RequestFailure::Unanswered(_)) if Instant::now() < until => {
                sleep(LOOK_EVERY).await;
                Ok(())
            }
            Err(failure) => Err(self.place.error(&failure, true)),
        }
    }

    pub(super) async fn remove(&self, names: impl IntoIterator<Item = String>) -> Result<(), StoreError> {
        for name in names {
            let gone = self.place.delete_leaf(&name, self.until()).await;
            gone.map_err(|failure| self.error(&failure))?;
        }
        Ok(())
    }

    pub(super) async fn leaves(&self) -> Result<Vec<String>, StoreError> {
        self.place.leaves(self.until()).await.map_err(|failure| self.error(&failure))
    }
}
