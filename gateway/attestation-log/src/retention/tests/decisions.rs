//! A gateway's pending decisions, in memory.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::*;

#[derive(Default)]
pub(crate) struct Decisions(Mutex<State>);

#[derive(Default)]
struct State {
    /// The trusted time, once there is one.
    time: Option<u64>,
    /// When each was made.
    pending: BTreeMap<String, u64>,
    given_back: BTreeSet<String>,
}

impl Decisions {
    /// Sets the trusted time.
    pub(crate) fn set_time(&self, time: u64) {
        self.0.lock().unwrap().time = Some(time);
    }

    pub(crate) fn decide(&self, decision: &PendingDecision) {
        self.0.lock().unwrap().pending.insert(decision.id.clone(), decision.at);
    }

    /// Gives back what a decision has used up, as a gateway's start does.
    pub(crate) fn undo(&self, id: &str) {
        let mut state = self.0.lock().unwrap();
        if state.pending.remove(id).is_some() {
            state.given_back.insert(id.to_owned());
        }
    }

    /// The decisions that are neither settled nor given back.
    pub(crate) fn left(&self) -> Vec<PendingDecision> {
        let pending = self.0.lock().unwrap().pending.clone().into_iter();
        pending.map(|(id, at)| PendingDecision { id, at }).collect()
    }

    pub(crate) fn is_given_back(&self, id: &str) -> bool {
        self.0.lock().unwrap().given_back.contains(id)
    }
}

impl PendingDecisions for Decisions {
    async fn trusted_time(&self, now: u64) -> Result<u64, StoreFailure> {
        Ok(*self.0.lock().unwrap().time.get_or_insert(now))
    }

    async fn pending(&self) -> Result<Vec<PendingDecision>, StoreFailure> {
        Ok(self.left())
    }

    fn settle(&self, id: &str) {
        self.0.lock().unwrap().pending.remove(id);
    }

    async fn give_back(&self, id: &str) -> Result<(), StoreFailure> {
        self.undo(id);
        Ok(())
    }
}
