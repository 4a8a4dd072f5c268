//! Replacement of one state by another, and its outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::super::StoreError;
use super::api::{MOST_HEAD_BYTES, RequestFailure, Swapped};
use super::head::Head;
use super::open_store::{KubernetesTrouble, OpenKubernetesStore};
use super::opening::report_rollback;
use super::plan::{Context, MOST_CONFLICTS, pause};
use super::view::View;

/// Number of times that an unchanged state may refuse its change. Others may change parts of the object outside of it, and each conflict
/// with them is refused, too.
const MOST_REFUSALS: u32 = 8;

/// A commit on this state, with this number, that may have happened, or may do so still.
#[derive(Debug, Clone)]
pub(super) struct Doubt {
    base: Arc<Head>,
    number: u64,
}

/// Outcome of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SwapOutcome {
    Happened,
    /// The commit did not happen, and cannot happen any more.
    Never,
    /// The outcome cannot be determined; the commit can no longer happen.
    Unknown,
}

/// The part of the process that changes the head: the state that it knows, and how far it has come itself.
pub(super) struct HeadWriter {
    pub(super) opened: Arc<OpenKubernetesStore>,
    pub(super) view: View,
    /// The last number that was put there, or tried.
    number: u64,
    /// A commit on this state, with this number, that may have happened, or may do so still.
    pub(super) doubt: Option<Doubt>,
    /// Since when the number of each session is what it is, as far as was seen.
    pub(super) observed: BTreeMap<String, (u64, Instant)>,
    /// The time when this process was heard of last.
    pub(super) heard: Instant,
    /// The kind of failure that was logged last, while this process's heartbeats fail.
    pub(super) unheard: Option<(&'static str, u16)>,
    pub(super) folds: u32,
}

impl HeadWriter {
    pub(super) fn new(opened: Arc<OpenKubernetesStore>, head: Head) -> Self {
        let mut writer = Self {
            opened,
            view: View::new(head),
            number: 0,
            doubt: None,
            observed: BTreeMap::new(),
            heard: Instant::now(),
            unheard: None,
            folds: 0,
        };
        writer.observe();
        writer
    }

    pub(super) fn next(&self, change: impl FnOnce(&mut Head)) -> Result<Head, StoreError> {
        let mut next = self.view.head.next(&self.opened.session, self.number + 1)?;
        change(&mut next);
        Ok(next)
    }

    /// Changes what is held, or something else that no work does, until that is done; or finds that it is not to be done.
    pub(super) async fn change(
        &mut self,
        until: Instant,
        mut change: impl FnMut(&mut Head, &Context<'_>) -> bool,
    ) -> Result<(), KubernetesTrouble> {
        let mut is_fresh = false;
        loop {
            if self.doubt.is_some() {
                self.settle(until).await?;
            }
            let mut wanted = false;
            let next = self.next(|head| {
                let context = Context {
                    session: &self.opened.session,
                    is_dead: &|session, number| self.is_dead(session, number),
                };
                wanted = change(head, &context);
            })?;
            if !wanted {
                if is_fresh || self.confirm(until).await? {
                    return Ok(());
                }
                is_fresh = true;
                continue;
            }
            match self.swap(next, until).await? {
                SwapOutcome::Happened => return Ok(()),
                _ if Instant::now() >= until => return Err(KubernetesTrouble::Contended),
                _ => is_fresh = true,
            }
        }
    }

    /// Puts a state in the place of the one that is known.
    pub(super) async fn swap(&mut self, next: Head, until: Instant) -> Result<SwapOutcome, KubernetesTrouble> {
        let base = Arc::clone(&self.view.head);
        if self.opened.check(&base).is_err() {
            // What was known last is no state to go on from; what stands now may be one.
            self.refresh(until).await?;
            return Ok(SwapOutcome::Never);
        }
        let data = next.encode()?;
        if data.len() > MOST_HEAD_BYTES {
            return Err(KubernetesTrouble::Full);
        }
        self.number += 1;
        let number = self.number;
        let sent = self.opened.place.swap(&base.commit, &next, &data, until).await;
        match sent {
            Ok(Swapped::Done) => {
                self.heard = Instant::now();
                self.adopt(next)?;
                Ok(SwapOutcome::Happened)
            }
            // Somebody was faster; or it was sent twice on its way, and this is the answer to the second.
            Ok(Swapped::Refused(why)) => {
                self.doubt = Some(Doubt { base, number });
                self.settled(until, why).await
            }
            Err(RequestFailure::Unanswered(why)) => {
                self.doubt = Some(Doubt { base, number });
                self.settled(until, why).await
            }
            Err(RequestFailure::Refused { code: 404, .. }) => Err(KubernetesTrouble::Replaced),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Determines the outcome of the commit that was just sent. If that is impossible, it is an error, and nothing is repeated.
    async fn settled(&mut self, until: Instant, why: String) -> Result<SwapOutcome, KubernetesTrouble> {
        match self.settle(until).await {
            Ok(SwapOutcome::Unknown) => Err(KubernetesTrouble::Doubt(RequestFailure::Unanswered(why))),
            Err(KubernetesTrouble::Api(failure @ (RequestFailure::Unanswered(_) | RequestFailure::Untrusted(_)))) => {
                Err(KubernetesTrouble::Doubt(failure))
            }
            settled => settled,
        }
    }

    /// Finds out what became of the commit that is in doubt, if one is.
    pub(super) async fn settle(&mut self, until: Instant) -> Result<SwapOutcome, KubernetesTrouble> {
        let mut refused = 0;
        loop {
            let Some(Doubt { base, number }) = self.doubt.clone() else {
                return Ok(SwapOutcome::Never);
            };
            let head = self.opened.place.head(until).await?.ok_or(KubernetesTrouble::Replaced)?;
            if head.commit != base.commit {
                let fate = fate(&head, &base, &self.opened.session, number);
                self.doubt = None;
                if fate == SwapOutcome::Happened {
                    self.heard = Instant::now();
                }
                self.adopt(head)?;
                return Ok(fate);
            }
            // It is to come first, or never.
            self.number += 1;
            let fence = head.next(&self.opened.session, self.number)?;
            let data = fence.encode()?;
            match self.opened.place.swap(&base.commit, &fence, &data, until).await {
                Ok(Swapped::Done) => {
                    self.doubt = None;
                    self.heard = Instant::now();
                    self.adopt(fence)?;
                    return Ok(SwapOutcome::Never);
                }
                // As a rule somebody was faster; of one that does not change, and cannot be changed, this is all that is ever said.
                Ok(Swapped::Refused(why)) => {
                    refused += 1;
                    if refused > MOST_REFUSALS {
                        return Err(KubernetesTrouble::Kept(why));
                    }
                    pause(refused).await;
                }
                Err(RequestFailure::Unanswered(_)) if Instant::now() < until => pause(MOST_CONFLICTS).await,
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Returns whether the known state is still the current one; if not, fetches that.
    pub(super) async fn confirm(&mut self, until: Instant) -> Result<bool, KubernetesTrouble> {
        let commit = self.opened.place.commit(until).await?.ok_or(KubernetesTrouble::Replaced)?;
        if commit == self.view.head.commit {
            self.opened.check(&self.view.head)?;
            self.opened.confirmed();
            return Ok(true);
        }
        self.refresh(until).await?;
        Ok(false)
    }

    pub(super) async fn refresh(&mut self, until: Instant) -> Result<(), KubernetesTrouble> {
        let head = self.opened.place.head(until).await?.ok_or(KubernetesTrouble::Replaced)?;
        self.adopt(head)
    }

    /// Makes this head the known state.
    fn adopt(&mut self, head: Head) -> Result<(), KubernetesTrouble> {
        let checked = self.opened.check(&head);
        if checked.is_ok() {
            self.opened.reached(&head);
        }
        self.view.head = Arc::new(head);
        let named: BTreeSet<&String> = self.view.head.leaves.iter().map(|leaf| &leaf.name).collect();
        self.view.leaves.retain(|name, _| named.contains(name));
        self.observe();
        checked
    }

    /// Reports the rollback of the store, if that is the trouble: gateways that cannot tell would go on with it.
    pub(super) async fn report_trouble(&mut self, trouble: KubernetesTrouble) -> KubernetesTrouble {
        let head = Arc::clone(&self.view.head);
        if matches!(trouble, KubernetesTrouble::Replaced) && head.set_back.is_none() && self.opened.is_behind(&head) {
            let until = Instant::now() + self.opened.timeout;
            if let Err(error) = report_rollback(&self.opened.place, &head, &self.opened.session, until).await {
                tracing::error!(
                    "store {} was rolled back; cannot tell the other gateways: {error}",
                    self.opened.place.place
                );
            }
        }
        trouble
    }
}

/// Returns the outcome of a commit with this number on `base`, by the head that is there instead.
fn fate(head: &Head, base: &Head, session: &str, number: u64) -> SwapOutcome {
    match head.sessions.get(session) {
        Some(own) if own.number == number => SwapOutcome::Happened,
        Some(_) => SwapOutcome::Never,
        // It would have been the next change after its base.
        None if head.dropped > base.turn => SwapOutcome::Unknown,
        None => SwapOutcome::Never,
    }
}
