//! The plan of a commit on etcd.

use std::collections::VecDeque;

use super::super::StoreError;
use super::super::engine::Work;
use super::super::remote::plan::{self, CommitPlan};
use super::super::remote::queue::{self, answer};
use super::open_store::OpenEtcdStore;
use super::overlay::{EtcdBatch, Fetched, MOST_KEYS};

/// A work, and who waits for it.
pub(super) type EtcdJob = queue::QueuedJob<Work>;

/// Returns how many of the first works were looked at, and the plan for them.
pub(super) fn plan(waiting: &mut VecDeque<EtcdJob>, most: usize, fetched: &Fetched) -> (usize, CommitPlan<EtcdBatch>) {
    plan::plan(waiting, most, MOST_KEYS, EtcdBatch::default(), |batch, work| {
        batch.run(fetched, work)
    })
}

/// Refuses the first work, which fits into no commit.
pub(super) fn refuse_first(waiting: &mut VecDeque<EtcdJob>, opened: &OpenEtcdStore) {
    let error = StoreError::Engine {
        engine: "etcd",
        place: opened.members.place.clone(),
        problem: format!(
            "a transaction is too large: it has more than {MOST_KEYS} keys, or more than etcd takes in one request; nothing was done"
        ),
        advice: "raise etcd's --max-request-bytes; a change of that many keys is a defect of the gateway".to_owned(),
    };
    answer(waiting, vec![Err(error)]);
}
