//! The one who commits: takes the works that have queued up, does them one on top of the other on the state that is known, and puts the state that comes of it
//! in the place of that one, if that still stands.
//!
//! **A commit is one request to one object.** Every state has a random name, its commit; a change says which one it is a change of, and the API does it, all of it, if
//! that one stands, and not at all otherwise. So all commits of all gateways come one after the other, each on the state that the one before has left; a
//! process that stood still, was cut off, or was told something old, finds its change refused, whatever it believes. What only reads asks which commit stands
//! now, after it was asked for, and answers by that one.
//!
//! **A commit whose answer was lost.** Each change puts this process's own number into the state. If the answer is lost, what stands is looked at: if
//! it is another state, the number there says whether the commit has happened, and it cannot happen any more, because its own state is gone for
//! good; if it is the same state, the commit may be under way still, so a change of nothing but the number is put in its place, until either of both has
//! happened. Only if the API does not answer until the works' time is over it stays unknown, and the error says so; nothing that comes after is answered before it is known.
//! What that means for those who asked is said for the store on etcd, and is the same here.
//!
//! **A process that is killed** between any two requests leaves a state that one commit has made, and leaves that no state names.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::super::StoreError;
use super::api::{Failure, MOST_HEAD_BYTES};
use super::head::Head;
use super::opened::{Opened, Trouble, locked};
use super::presence::LEASE;
use super::queue::{Asked, Context, Job, LATER_PAUSE, Plan, answer, fail, gather, pause, plan, refuse_late, until};
use super::view::{MOST_WORK_BYTES, Missing, View};

/// What is not in leaves is put there from so much on. Each commit writes all of it once more.
const FOLD_BYTES: usize = 48 * 1024;
/// No more than that is written before it is put into leaves: so much that a commit, with what it writes, fits into an object.
const MOST_CHANGES_BYTES: usize = 384 * 1024;
/// How much of leaves is kept in memory, unpacked.
const CACHE_BYTES: usize = 96 * 1024 * 1024;
/// How long after a fold that has failed it is tried again.
const FOLD_AGAIN: Duration = Duration::from_secs(2);

pub(super) struct Committer {
    pub(super) opened: Arc<Opened>,
    pub(super) view: View,
    /// The last number that was put there, or tried.
    number: u64,
    /// A commit on this state, with this number, that may have happened, or may do so still.
    doubt: Option<Doubt>,
    /// Since when the number of each session is what it is, as far as was seen.
    observed: BTreeMap<String, (u64, Instant)>,
    /// When this process was heard of last.
    heard: Instant,
    pub(super) later: VecDeque<Job>,
    again: Option<Instant>,
    fold_again: Instant,
    pub(super) folds: u32,
}

#[derive(Debug, Clone)]
struct Doubt {
    base: Arc<Head>,
    number: u64,
}

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Happened,
    /// And it cannot happen any more.
    Never,
    /// Nothing says so any longer; it cannot happen any more.
    Unknown,
}

impl Committer {
    pub(super) fn new(opened: Arc<Opened>, head: Head) -> Self {
        let mut committer = Self {
            opened,
            view: View::new(head),
            number: 0,
            doubt: None,
            observed: BTreeMap::new(),
            heard: Instant::now(),
            later: VecDeque::new(),
            again: None,
            fold_again: Instant::now(),
            folds: 0,
        };
        committer.observe();
        committer
    }

    /// Until nobody can ask any more; what nobody waits for is done then.
    pub(super) async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut waiting = VecDeque::new();
        while gather(&mut waiting, &mut jobs, self.due()).await {
            self.round(&mut waiting).await;
            if self.again.is_some_and(|again| again <= Instant::now()) {
                self.again = None;
                let mut due = std::mem::take(&mut self.later);
                self.round(&mut due).await;
                self.keep(due);
            }
            self.beat().await;
            self.fold_if_due().await;
        }
        waiting.append(&mut self.later);
        while !waiting.is_empty() {
            let before = waiting.len();
            self.round(&mut waiting).await;
            waiting.append(&mut self.later);
            if waiting.len() == before {
                tracing::warn!("{before} works that nobody waits for were not done: the cluster's API does not answer");
                break;
            }
        }
        self.leave().await;
    }

    /// Gives back what this process holds.
    async fn leave(&mut self) {
        let session = self.opened.session.clone();
        if self.view.head.sessions.get(&session).is_none_or(|own| own.holds.is_empty()) {
            return;
        }
        let until = Instant::now() + self.opened.timeout;
        let left = self.change(until, |head, context| {
            head.leave_out(context.session);
            true
        });
        if let Err(trouble) = left.await {
            let error = self.opened.error(&trouble);
            tracing::warn!("that this gateway has ended cannot be said in the store: {error}");
        }
    }

    /// Keeps what could not be done for later.
    fn keep(&mut self, works: VecDeque<Job>) {
        if !works.is_empty() {
            self.again = Some(Instant::now() + LATER_PAUSE);
            self.later.extend(works);
        }
    }

    fn holds(&self) -> bool {
        self.opened.serving.get().is_some() || !locked(&self.opened.leads).is_empty()
    }

    fn due(&self) -> Option<Instant> {
        let beat = self.holds().then(|| self.heard + LEASE / 3);
        beat.into_iter().chain(self.again).min()
    }

    /// Has this process heard of, if it holds something; and others that are not heard of hold nothing any more.
    async fn beat(&mut self) {
        let is_due = self.heard.elapsed() >= LEASE / 3;
        if !self.holds() || !(is_due || self.knows_of_dead()) {
            return;
        }
        let serving = self.opened.serving.get().cloned();
        let own = self.opened.session.clone();
        if let Some((holder, _)) = serving.as_ref().and_then(|(key, _)| self.view.head.holder(key))
            && holder != own
        {
            tracing::error!("another process serves as replica {}: nothing is decided here", self.opened.replica);
        }
        let until = Instant::now() + LEASE / 3;
        let beat = self.change(until, move |head, context| {
            expire(head, context);
            if let Some((key, value)) = &serving
                && head.holder(key).is_none()
                && let Some(own) = head.sessions.get_mut(context.session)
            {
                own.holds.insert(key.clone(), value.clone());
            }
            true
        });
        if let Err(trouble) = beat.await {
            let error = self.opened.error(&trouble);
            tracing::warn!("this gateway cannot say in the store that it is there: {error}");
            if self.heard.elapsed() >= LEASE {
                locked(&self.opened.leads).drain(..).for_each(|leads| leads.is_lost());
            }
            // Not at once again; and what others ask for meanwhile is done.
            sleep(LATER_PAUSE.min(LEASE / 10)).await;
        }
    }

    /// Whether somebody holds something who is not heard of any more.
    fn knows_of_dead(&self) -> bool {
        let mut sessions = self.view.head.sessions.iter();
        sessions.any(|(id, session)| !session.holds.is_empty() && self.is_dead(id, session.number))
    }

    fn is_dead(&self, session: &str, number: u64) -> bool {
        let seen = self.observed.get(session);
        session != self.opened.session && seen.is_some_and(|(seen, since)| *seen == number && since.elapsed() >= LEASE)
    }

    async fn fold_if_due(&mut self) {
        if self.view.head.changes.bytes() < FOLD_BYTES || Instant::now() < self.fold_again {
            return;
        }
        if let Err(trouble) = self.fold().await {
            self.fold_again = Instant::now() + FOLD_AGAIN;
            let error = self.opened.error(&trouble);
            tracing::warn!("what was written lately cannot be put away, and each commit writes it again: {error}");
        }
    }

    /// One commit, or an error for those who wait.
    async fn round(&mut self, waiting: &mut VecDeque<Job>) {
        // What is known by then is not older than what was asked for.
        let (mut is_fresh, mut conflicts) = (false, 0_u32);
        // What nobody waits for has time, but not at others' cost.
        let begun = Instant::now();
        loop {
            refuse_late(waiting, &self.opened);
            let Some(until) = until(waiting, begun + self.opened.timeout) else {
                return;
            };
            let (count, tried) = self.attempt(waiting, &mut is_fresh, until).await;
            let tried = match tried {
                Ok(false) if Instant::now() >= until => Err(Trouble::Contended),
                tried => tried,
            };
            match tried {
                Ok(true) => return,
                Ok(false) => {}
                Err(Trouble::Contended) if Instant::now() < until => {
                    conflicts += 1;
                    is_fresh = true;
                    if conflicts > 1 {
                        pause(conflicts).await;
                        // What was found before the pause is what others have changed in it.
                        is_fresh = self.refresh(until).await.is_ok();
                    }
                }
                Err(trouble) => {
                    let trouble = self.told(trouble).await;
                    tracing::warn!("{}", self.opened.error(&trouble));
                    let left = fail(waiting, count, &self.opened, &trouble);
                    self.keep(left);
                    return;
                }
            }
        }
    }

    /// Says how many it was about, and whether they were answered; if not, something is known now that was not, and they are to be tried again.
    async fn attempt(&mut self, waiting: &mut VecDeque<Job>, is_fresh: &mut bool, until: Instant) -> (usize, Result<bool, Trouble>) {
        let all = waiting.len();
        if self.doubt.is_some() {
            if let Err(trouble) = self.settle(until).await {
                return (all, Err(trouble));
            }
            *is_fresh = true;
        }
        if self.is_absent() {
            // Others may have put it out; or this process knows it only as it was before it served.
            if !*is_fresh {
                *is_fresh = true;
                return (all, self.refresh(until).await.map(|()| false));
            }
            self.heard = self.heard.checked_sub(LEASE / 3).unwrap_or(self.heard);
            return (all, Err(Trouble::Absent));
        }
        let (count, plan) = plan(waiting, &self.view);
        let done = match plan {
            Plan::TooLarge => {
                let problem = format!("a transaction is too large: it writes more than {MOST_WORK_BYTES} bytes; nothing was done");
                answer(waiting, vec![Err(self.defect(problem))]);
                Ok(waiting.is_empty())
            }
            Plan::Fetch(missing) => self.fetch(&missing, until).await.map(|found| {
                *is_fresh |= !found;
                false
            }),
            Plan::Change => {
                let Some(Job {
                    asked: Asked::Change(change),
                    ..
                }) = waiting.front_mut()
                else {
                    return (count, Ok(false));
                };
                match self.change(until, change).await {
                    Ok(()) => {
                        answer(waiting, vec![Ok(())]);
                        Ok(true)
                    }
                    Err(trouble) => Err(trouble),
                }
            }
            Plan::Commit(batch, answers) if batch.changes.is_empty() => {
                let known = if *is_fresh { Ok(true) } else { self.confirm(until).await };
                *is_fresh = true;
                if matches!(known, Ok(true)) {
                    answer(waiting, answers);
                }
                known
            }
            Plan::Commit(batch, answers) => {
                if self.view.head.changes.bytes() > MOST_CHANGES_BYTES {
                    let folded = match self.fold().await {
                        Ok(true) => Ok(false),
                        // Another does.
                        Ok(false) => {
                            pause(6).await;
                            self.refresh(until).await.map(|()| false)
                        }
                        Err(trouble) => {
                            tracing::warn!("{}", self.opened.error(&trouble));
                            Err(Trouble::Full)
                        }
                    };
                    return (count, folded);
                }
                let next = self.next(|head| {
                    head.count(&self.opened.replica);
                    head.changes.then(batch.changes);
                });
                match next {
                    Ok(next) => self.swap(next, until).await.and_then(|fate| match fate {
                        Fate::Happened => {
                            answer(waiting, answers);
                            Ok(true)
                        }
                        _ => Err(Trouble::Contended),
                    }),
                    Err(error) => Err(error.into()),
                }
            }
        };
        (count, done)
    }

    fn defect(&self, problem: String) -> StoreError {
        StoreError::Engine {
            engine: "kubernetes",
            place: self.opened.place.place.clone(),
            problem,
            advice: "a change of that size is a defect of the gateway".to_owned(),
        }
    }

    /// Whether this process serves, and its key is not there.
    fn is_absent(&self) -> bool {
        let serving = self.opened.serving.get();
        serving.is_some_and(|(key, value)| self.view.head.holder(key) != Some((&self.opened.session, value)))
    }

    fn next(&self, change: impl FnOnce(&mut Head)) -> Result<Head, StoreError> {
        let mut next = self.view.head.next(&self.opened.session, self.number + 1)?;
        change(&mut next);
        Ok(next)
    }

    /// Changes what is held, or something else that no work does, until that is done; or finds that it is not to be done.
    pub(super) async fn change(&mut self, until: Instant, mut change: impl FnMut(&mut Head, &Context<'_>) -> bool) -> Result<(), Trouble> {
        let (mut is_fresh, mut conflicts) = (false, 0);
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
                Fate::Happened => return Ok(()),
                _ if Instant::now() >= until => return Err(Trouble::Contended),
                _ => {
                    (is_fresh, conflicts) = (true, conflicts + 1);
                    if conflicts > 1 {
                        pause(conflicts).await;
                        self.refresh(until).await?;
                    }
                }
            }
        }
    }

    /// Puts a state in the place of the one that is known.
    async fn swap(&mut self, next: Head, until: Instant) -> Result<Fate, Trouble> {
        let base = Arc::clone(&self.view.head);
        if self.opened.check(&base).is_err() {
            // What was known last is no state to go on from; what stands now may be one.
            self.refresh(until).await?;
            return Ok(Fate::Never);
        }
        let data = next.encode()?;
        if data.len() > MOST_HEAD_BYTES {
            return Err(Trouble::Full);
        }
        self.number += 1;
        let number = self.number;
        let sent = self.opened.place.swap(&base.commit, &next, &data, until).await;
        match sent {
            Ok(true) => {
                self.heard = Instant::now();
                self.adopt(next)?;
                Ok(Fate::Happened)
            }
            // Somebody was faster; or it was sent twice on its way, and this is the answer to the second.
            Ok(false) => {
                self.doubt = Some(Doubt { base, number });
                self.settled(until, "it was refused, and may have been done before that".to_owned())
                    .await
            }
            Err(Failure::Unanswered(why)) => {
                self.doubt = Some(Doubt { base, number });
                self.settled(until, why).await
            }
            Err(Failure::Refused { code: 404, .. }) => Err(Trouble::Replaced),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Finds out what became of the commit that was just sent; if nothing says so, that is an error, and nothing is done once more.
    async fn settled(&mut self, until: Instant, why: String) -> Result<Fate, Trouble> {
        match self.settle(until).await {
            Ok(Fate::Unknown) => Err(Trouble::Doubt(Failure::Unanswered(why))),
            Err(Trouble::Api(failure @ Failure::Unanswered(_))) => Err(Trouble::Doubt(failure)),
            settled => settled,
        }
    }

    /// Finds out what became of the commit that is in doubt, if one is.
    async fn settle(&mut self, until: Instant) -> Result<Fate, Trouble> {
        loop {
            let Some(Doubt { base, number }) = self.doubt.clone() else {
                return Ok(Fate::Never);
            };
            let head = self.opened.place.head(until).await?.ok_or(Trouble::Replaced)?;
            if head.commit != base.commit {
                let fate = fate(&head, &base, &self.opened.session, number);
                self.doubt = None;
                if fate == Fate::Happened {
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
                Ok(true) => {
                    self.doubt = None;
                    self.heard = Instant::now();
                    self.adopt(fence)?;
                    return Ok(Fate::Never);
                }
                Ok(false) => {}
                Err(Failure::Unanswered(_)) if Instant::now() < until => pause(6).await,
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Whether what is known still stands; if not, what stands is known now.
    async fn confirm(&mut self, until: Instant) -> Result<bool, Trouble> {
        let commit = self.opened.place.commit(until).await?.ok_or(Trouble::Replaced)?;
        if commit == self.view.head.commit {
            return self.opened.check(&self.view.head).map(|()| true);
        }
        self.refresh(until).await?;
        Ok(false)
    }

    async fn refresh(&mut self, until: Instant) -> Result<(), Trouble> {
        let head = self.opened.place.head(until).await?.ok_or(Trouble::Replaced)?;
        self.adopt(head)
    }

    /// This is what stands.
    fn adopt(&mut self, head: Head) -> Result<(), Trouble> {
        let checked = self.opened.check(&head);
        if checked.is_ok() {
            self.opened.reached(&head);
        }
        self.view.head = Arc::new(head);
        let named: std::collections::BTreeSet<&String> = self.view.head.leaves.iter().map(|leaf| &leaf.name).collect();
        self.view.leaves.retain(|name, _| named.contains(name));
        self.observe();
        checked
    }

    fn observe(&mut self) {
        let head = &self.view.head;
        let now = Instant::now();
        self.observed.retain(|session, _| head.sessions.contains_key(session));
        for (id, session) in &head.sessions {
            let seen = self.observed.entry(id.clone()).or_insert((session.number, now));
            if seen.0 != session.number {
                *seen = (session.number, now);
            }
        }
        locked(&self.opened.leads).retain(|leads| {
            let is_held = head.holder(&leads.key) == Some((&self.opened.session, &leads.value));
            if !is_held {
                leads.is_lost();
            }
            is_held
        });
    }

    /// Fetches leaves of the state that is known. `false`: it is another one by now.
    pub(super) async fn fetch(&mut self, missing: &Missing, until: Instant) -> Result<bool, Trouble> {
        let kept: usize = self.view.leaves.values().map(|pairs| bytes(pairs)).sum();
        if kept > CACHE_BYTES {
            self.view.leaves.clear();
        }
        let wanted = self.view.head.leaves.iter().filter(|leaf| missing.contains(&leaf.name)).cloned();
        let fetched = super::leaves::fetch(&self.opened.place, wanted.collect(), until).await?;
        let mut gone = None;
        for (name, pairs) in fetched {
            match pairs {
                Some(pairs) => drop(self.view.leaves.insert(name, Arc::new(pairs))),
                None => gone = Some(name),
            }
        }
        let Some(name) = gone else { return Ok(true) };
        // It was put into another one meanwhile.
        if !self.confirm(until).await? {
            return Ok(false);
        }
        Err(super::leaves::lost(&name).into())
    }

    /// Tells all gateways if the trouble is that the store is one from before: those that do not know better would go on with it.
    async fn told(&mut self, trouble: Trouble) -> Trouble {
        let head = Arc::clone(&self.view.head);
        if matches!(trouble, Trouble::Replaced) && head.set_back.is_none() && self.opened.is_behind(&head) {
            let until = Instant::now() + self.opened.timeout;
            if let Err(error) = super::tell_set_back(&self.opened.place, &head, &self.opened.session, until).await {
                tracing::error!("{:?} was set back, and other gateways cannot be told: {error}", self.opened.place);
            }
        }
        trouble
    }
}

/// What became of a commit with this number on `base`, where another state stands now.
fn fate(head: &Head, base: &Head, session: &str, number: u64) -> Fate {
    match head.sessions.get(session) {
        Some(own) if own.number == number => Fate::Happened,
        Some(_) => Fate::Never,
        // It would have been the next change after its base.
        None if head.dropped > base.turn => Fate::Unknown,
        None => Fate::Never,
    }
}

/// Whoever is not heard of any more holds nothing.
pub(super) fn expire(head: &mut Head, context: &Context<'_>) {
    let dead: Vec<String> = head
        .sessions
        .iter()
        .filter(|(id, session)| !session.holds.is_empty() && (context.is_dead)(id, session.number))
        .map(|(id, _)| id.clone())
        .collect();
    for session in dead {
        head.leave_out(&session);
    }
}

fn bytes(pairs: &super::view::Pairs) -> usize {
    pairs.iter().map(|(key, value)| key.len() + value.len()).sum()
}
