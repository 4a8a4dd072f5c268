//! Common parts of stores that are kept elsewhere, and shared by several gateways. Works wait in a queue for the committer of this process.
//! Each gateway records that it serves. The store that is there is compared with what is known of it, and accepted on an administrator's
//! word.
//!
//! Commits, and the outcome of one whose answer was lost, are the engine's own.

pub(super) mod acceptance;
pub(super) mod commit_loop;
pub(super) mod desk;
pub(super) mod leadership;
pub(super) mod plan;
pub(super) mod queue;
pub(super) mod serving;
pub(super) mod set_back;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whatever happened to who had it before: what is locked is whole at any moment.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
