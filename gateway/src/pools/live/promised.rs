//! Configs that tickets promise. The pointer of a node has the hash of its config, so that a changed config would stop its boot: for a while
//! the replaced states of a pool are still there for the tickets that promise them.

use std::sync::{Arc, PoisonError};

use attest_log::ConfigSet;
use attest_pool::Pool;

use super::super::PreparedConfig;
use super::{Live, LivePools};
use crate::credentials::tickets::ConfigPromise;

/// Time for which a replaced state is there, in seconds: longer than tickets last by default. Later its nodes boot again.
const PREVIOUS_SECONDS: u64 = 900;
/// Maximum number of replaced states of a pool.
const PREVIOUS_LIMIT: usize = 4;

/// A replaced state of a pool.
#[derive(Debug, Clone)]
pub(super) struct PreviousState {
    pool: Arc<Pool>,
    /// The last second at which it is there.
    until: u64,
}

/// Location of the config that a ticket promises.
#[derive(Debug)]
pub enum Promised {
    Config(PreparedConfig),
    /// Another gateway has made the promise, by a state that this one has not read yet.
    NotYet,
    /// The pool has changed since.
    Gone,
}

impl Live {
    /// Returns the pool's state after `new` has replaced this one.
    pub(super) fn replaced(&self, new: Arc<Pool>, now: u64) -> Self {
        let mut next = Self {
            pool: Some(Arc::clone(&new)),
            broken: None,
            ..self.clone()
        };
        let Some(old) = &self.pool else {
            return Self { since: now, ..next };
        };
        if new.has_configs_of(old) {
            return next;
        }
        next.since = now;
        next.previous.retain(|state| state.until >= now);
        if old.is_rendered() {
            next.previous.push(PreviousState {
                pool: Arc::clone(old),
                until: now.saturating_add(PREVIOUS_SECONDS),
            });
        }
        let surplus = next.previous.len().saturating_sub(PREVIOUS_LIMIT);
        next.previous.drain(..surplus);
        next
    }
}

impl LivePools {
    /// Finds the config that a ticket for a pool promises, in the pool's present state or in one that was replaced lately.
    #[must_use]
    pub fn promised(&self, pool: &Arc<Pool>, set: ConfigSet, promise: &ConfigPromise) -> Promised {
        if set != promise.set {
            return Promised::Gone;
        }
        let of = |pool: &Pool| {
            let prepared = PreparedConfig::new(pool, set, promise.spec_version).ok();
            prepared.filter(|prepared| prepared.sha256() == promise.sha256)
        };
        if let Some(prepared) = of(pool) {
            return Promised::Config(prepared);
        }
        let now = self.clock.now().as_secs();
        let pools = self.pools.load();
        let Some(live) = pools.get(pool.name()) else {
            return Promised::Gone;
        };
        let previous = live.previous.iter().filter(|state| state.until >= now);
        if let Some(prepared) = previous.rev().find_map(|state| of(&state.pool)) {
            return Promised::Config(prepared);
        }
        match promise.at >= live.since && now <= promise.wait_until {
            true => {
                self.warn_of_awaited(pool.name(), &promise.sha256);
                Promised::NotYet
            }
            false => Promised::Gone,
        }
    }

    /// Logs once for each config that another gateway has and this one has not: its nodes ask every few seconds.
    fn warn_of_awaited(&self, pool: &str, sha256: &str) {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        if awaited.as_str() != sha256 {
            sha256.clone_into(&mut awaited);
            tracing::warn!(
                "pool {pool}: another gateway has given a ticket for the config with SHA-256 {sha256}, which is not here yet; answering 503. Check that all gateways read the same pools"
            );
        }
    }

    /// Drops replaced states whose time is over.
    pub(super) fn forget_previous(&self) {
        let now = self.clock.now().as_secs();
        let is_over = |state: &PreviousState| state.until < now;
        if !self.pools.load().values().any(|live| live.previous.iter().any(is_over)) {
            return;
        }
        self.pools.rcu(|pools| {
            let mut pools = (**pools).clone();
            for live in pools.values_mut() {
                live.previous.retain(|state| !is_over(state));
            }
            pools
        });
    }
}
