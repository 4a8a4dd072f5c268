//! How the watches are: said once when one fails, and once when it is well again.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::clock::{Clock, rfc3339};
use crate::metrics::Metrics;

/// How one watch is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// It has not listed anything yet.
    Beginning,
    /// What is kept is what there is.
    Well,
    /// It has failed, since then (seconds since 1970), for this reason.
    Away { since: u64, reason: String },
}

/// How all watches are.
#[derive(Debug)]
pub struct Health {
    clock: Clock,
    metrics: Arc<Metrics>,
    watches: watch::Sender<BTreeMap<&'static str, Heard>>,
}

impl Health {
    #[must_use]
    pub fn new(clock: Clock, metrics: Arc<Metrics>) -> Self {
        let watches = watch::Sender::default();
        Self { clock, metrics, watches }
    }

    /// How each watch is, by what it watches.
    #[must_use]
    pub fn watches(&self) -> BTreeMap<&'static str, Heard> {
        self.watches.borrow().clone()
    }

    /// The same, and each change of it.
    #[must_use]
    pub fn told(&self) -> watch::Receiver<BTreeMap<&'static str, Heard>> {
        self.watches.subscribe()
    }

    pub(super) fn begin(&self, what: &'static str) {
        self.set(what, Heard::Beginning);
        self.metrics.cluster_watch_broken(what, false);
    }

    pub(super) fn well(&self, what: &'static str) {
        if let Some(Heard::Away { since, .. }) = self.set(what, Heard::Well) {
            tracing::info!("cluster: {what}: told again, after it was away since {}", rfc3339(since));
            self.metrics.cluster_watch_broken(what, false);
        }
    }

    /// A watch that fails again has failed since the first time.
    pub(super) fn away(&self, what: &'static str, reason: &str) {
        let since = match self.watches().get(what) {
            Some(Heard::Away { since, .. }) => *since,
            _ => self.clock.now().as_secs(),
        };
        let reason = reason.to_owned();
        let before = self.set(
            what,
            Heard::Away {
                since,
                reason: reason.clone(),
            },
        );
        match before {
            Some(Heard::Away { reason: said, .. }) if said == reason => {}
            Some(Heard::Well) => tracing::warn!("cluster: {what}: not told any longer, what was known last is kept: {reason}"),
            _ => tracing::warn!("cluster: {what}: {reason}"),
        }
        self.metrics.cluster_watch_broken(what, true);
    }

    fn set(&self, what: &'static str, heard: Heard) -> Option<Heard> {
        let mut before = None;
        self.watches.send_modify(|watches| before = watches.insert(what, heard));
        before
    }
}
