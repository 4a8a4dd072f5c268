//! A gateway's pending decisions, in memory.

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
}

impl Decisions {
    /// Sets the trusted time.
    pub(crate) fn set_time(&self, time: u64) {
        self.0.lock().unwrap().time = Some(time);
    }

    pub(crate) fn decide(&self, decision: &PendingDecision) {
        self.0.lock().unwrap().pending.insert(decision.id.clone(), decision.at);
    }

    /// Marks a decision as recorded.
    pub(crate) fn settle(&self, id: &str) {
        self.0.lock().unwrap().pending.remove(id);
    }

    /// Returns the decisions that are not recorded.
    pub(crate) fn left(&self) -> Vec<PendingDecision> {
        let pending = self.0.lock().unwrap().pending.clone().into_iter();
        pending.map(|(id, at)| PendingDecision { id, at }).collect()
    }
}

impl PendingDecisions for Decisions {
    async fn trusted_time(&self, now: u64) -> Result<u64, StoreFailure> {
        Ok(*self.0.lock().unwrap().time.get_or_insert(now))
    }

    async fn pending(&self) -> Result<Vec<PendingDecision>, StoreFailure> {
        Ok(self.left())
    }
}
