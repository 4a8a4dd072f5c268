//! Heartbeats: a process that holds something changes the head now and then, and observes whether others do.
//!
//! An API has no leases that end by themselves. So the state has the number of each holder's last change, and a holder makes a change at
//! least every few seconds. If a process sees the same number for the length of a lease, it concludes that the other one is gone, and
//! removes it. It measures that by a monotonic clock. The other one may only have been paused: then its next change is refused, because the
//! state is another one. So it learns that it holds nothing. No clock is compared with another.

use tokio::time::{Instant, sleep};

use super::super::remote::locked;
use super::super::remote::queue::LATER_PAUSE;
use super::head::Head;
use super::plan::Context;
use super::swap::HeadWriter;

impl HeadWriter {
    /// Returns whether this process serves, but its key is missing.
    pub(super) fn is_absent(&self) -> bool {
        let serving = self.opened.serving.get();
        serving.is_some_and(|(key, value)| self.view.head.holder(key) != Some((&self.opened.session, value)))
    }

    /// Removes what this process holds from the head.
    pub(super) async fn leave(&mut self) {
        let session = self.opened.session.clone();
        if self.view.head.sessions.get(&session).is_none_or(|own| own.holds.is_empty()) {
            return;
        }
        let until = Instant::now() + self.opened.timeout;
        let left = self.change(until, |head, context| {
            head.forget(context.session);
            true
        });
        if let Err(trouble) = left.await {
            let error = self.opened.error(&trouble);
            tracing::warn!("cannot end this gateway's session in the store; it expires by itself: {error}");
        }
    }

    fn holds(&self) -> bool {
        self.opened.serving.get().is_some() || !locked(&self.opened.leads).is_empty()
    }

    /// Returns when the next beat is due, if this process holds something.
    pub(super) fn beat_due(&self) -> Option<Instant> {
        self.holds().then(|| self.heard + self.opened.limits.lease / 3)
    }

    /// Sends the heartbeat of this process, if it holds something; removes the holds of processes that have stopped theirs.
    pub(super) async fn beat(&mut self) {
        let is_due = self.heard.elapsed() >= self.opened.limits.lease / 3;
        if !self.holds() || !(is_due || self.knows_of_dead()) {
            return;
        }
        let serving = self.opened.serving.get().cloned();
        let own = self.opened.session.clone();
        if let Some((holder, _)) = serving.as_ref().and_then(|(key, _)| self.view.head.holder(key))
            && holder != own
        {
            tracing::error!(
                "another process serves as replica {}; refusing decisions. Was the state folder copied?",
                self.opened.replica
            );
        }
        let until = Instant::now() + self.opened.limits.lease / 3;
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
        let beat = beat.await;
        if beat.is_ok() {
            self.unheard = None;
        }
        if let Err(trouble) = beat {
            // Tried again within the third of a lease: the log says it once for each kind of failure.
            if self.unheard.replace(trouble.kind()) != Some(trouble.kind()) {
                let error = self.opened.error(&trouble);
                tracing::warn!("cannot renew this gateway's session in the store; retrying: {error}");
            }
            if self.heard.elapsed() >= self.opened.limits.lease {
                locked(&self.opened.leads).drain(..).for_each(|leads| leads.is_lost());
            }
            // Not at once again; and what others ask for meanwhile is done.
            sleep(LATER_PAUSE.min(self.opened.limits.lease / 10)).await;
        }
    }

    /// Returns whether another process holds something, but has stopped its heartbeats.
    fn knows_of_dead(&self) -> bool {
        let mut sessions = self.view.head.sessions.iter();
        sessions.any(|(id, session)| !session.holds.is_empty() && self.is_dead(id, session.number))
    }

    pub(super) fn is_dead(&self, session: &str, number: u64) -> bool {
        let seen = self.observed.get(session);
        session != self.opened.session && seen.is_some_and(|(seen, since)| *seen == number && since.elapsed() >= self.opened.limits.lease)
    }

    pub(super) fn observe(&mut self) {
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
}

/// Removes the holds of processes that have stopped their heartbeats.
pub(super) fn expire(head: &mut Head, context: &Context<'_>) {
    let dead: Vec<String> = head
        .sessions
        .iter()
        .filter(|(id, session)| !session.holds.is_empty() && (context.is_dead)(id, session.number))
        .map(|(id, _)| id.clone())
        .collect();
    for session in dead {
        head.forget(&session);
    }
}
