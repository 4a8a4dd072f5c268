//! Stages of this process's pending decisions, which the store keeps until the log has them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use attest_store::Pending;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecisionStage {
    /// The task that decides it records it, however long that takes.
    UnderWay,
    /// It could not be written.
    Left,
    /// It needs no line, or has one; the store is to be informed.
    Recorded,
}

/// Decisions by their ids. A pending decision that is not among them may have been written without an answer of the store, and has no line.
#[derive(Debug, Default)]
pub(super) struct Stages(Mutex<StagedDecisions>);

#[derive(Debug, Default)]
struct StagedDecisions {
    stages: BTreeMap<String, DecisionStage>,
    /// Number of those that could not be written; each decision asks for it.
    left: usize,
}

impl StagedDecisions {
    fn set(&mut self, decision: &str, stage: Option<DecisionStage>) {
        let before = match stage {
            Some(stage) => self.stages.insert(decision.to_owned(), stage),
            None => self.stages.remove(decision),
        };
        let is_left = |stage: Option<DecisionStage>| usize::from(stage == Some(DecisionStage::Left));
        self.left = self.left.saturating_add(is_left(stage)).saturating_sub(is_left(before));
    }
}

impl Stages {
    /// Begins a decision: the store may have it from now on.
    pub(super) fn begin(&self, decision: &str) {
        self.staged().set(decision, Some(DecisionStage::UnderWay));
    }

    /// Notes that it was not made, as far as is known.
    pub(super) fn end(&self, decision: &str) {
        self.staged().set(decision, None);
    }

    /// Notes that it could not be written.
    pub(super) fn leave(&self, decision: &str) {
        self.staged().set(decision, Some(DecisionStage::Left));
    }

    /// Notes that it no longer needs a line.
    pub(super) fn record(&self, decision: &str) {
        self.staged().set(decision, Some(DecisionStage::Recorded));
    }

    /// Returns how many could not be written.
    pub(super) fn left(&self) -> usize {
        self.staged().left
    }

    /// Returns those that no longer need a line.
    pub(super) fn recorded(&self) -> BTreeSet<String> {
        let staged = self.staged();
        let recorded = staged.stages.iter().filter(|(_, stage)| **stage == DecisionStage::Recorded);
        recorded.map(|(decision, _)| decision.clone()).collect()
    }

    /// Returns whether a pending decision is not under way and not recorded.
    pub(super) fn is_left(&self, pending: &Pending) -> bool {
        matches!(
            self.staged().stages.get(&pending.decided.decision),
            None | Some(DecisionStage::Left)
        )
    }

    fn staged(&self) -> MutexGuard<'_, StagedDecisions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
