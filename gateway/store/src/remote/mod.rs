//! What a store that is kept elsewhere, and shared by several gateways, has in itself, whatever keeps it: works wait in a queue for the one of this process who
//! commits; each gateway says that it serves; and what is there is held against what is known of it, and accepted if that is said.
//!
//! How a commit is made, and what becomes of one whose answer was lost, is the engine's own.

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
