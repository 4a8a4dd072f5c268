//! The state of all watches, and the log lines about it: one when a watch is lost, one when it is restored.
//!
//! All watches are lost together when the API is away. The first one is logged, with the reason; those that fail with it are named by the line that says that
//! all are restored, and by the metric meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use attest_system::clock::Clock;
use tokio::sync::watch;

use super::ClusterError;

/// Time after a line about a lost watch in which others that the same outage takes are not logged, in seconds: a silent API is found out by every watch within
/// 70 s, and 15 s more for the next attempt.
const ALIKE_SECONDS: u64 = 120;

/// State of one watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchStatus {
    /// It has listed nothing yet.
    Beginning,
    /// The cached state is current.
    Well,
    /// It has failed since then (seconds since 1970), for this reason.
    Away { since: u64, reason: String },
}

/// A receiver of changes of the state of watches, for metrics.
pub trait WatchObserver: std::fmt::Debug + Send + Sync {
    /// Takes a change of whether a watch fails.
    fn watch_broken(&self, what: &'static str, broken: bool);
}

/// An observer that ignores all changes.
impl WatchObserver for () {
    fn watch_broken(&self, _: &'static str, _: bool) {}
}

/// State of all watches.
#[derive(Debug)]
pub struct WatchHealth {
    clock: Clock,
    observer: Arc<dyn WatchObserver>,
    watches: watch::Sender<BTreeMap<&'static str, WatchStatus>>,
    log: Mutex<Log>,
}

/// Log lines about lost watches that no line about their restoration has followed yet.
#[derive(Debug, Default)]
struct Log {
    /// Lost by a cause that concerns all requests.
    outage: BTreeSet<&'static str>,
    /// Those of the outage that are restored.
    restored: BTreeSet<&'static str>,
    /// Beginning of the outage, and the last line about it; seconds since 1970.
    since: u64,
    logged: u64,
    /// Lost by a cause of their own.
    alone: BTreeSet<&'static str>,
}

/// A line to log.
#[derive(Debug, PartialEq, Eq)]
enum HealthMessage {
    Lost { watch: &'static str },
    Restored { watches: String, seconds: u64 },
}

impl HealthMessage {
    fn write(&self, state: &str, reason: &str) {
        match self {
            Self::Lost { watch } => tracing::warn!("cluster: watch of {watch} {state}: {reason}"),
            Self::Restored { watches, seconds } => tracing::info!("cluster: restored after {seconds} s: watches of {watches}"),
        }
    }
}

impl Log {
    fn lost(&mut self, watch: &'static str, concerns_all: bool, now: u64) -> Vec<HealthMessage> {
        let mut lines = Vec::new();
        if !concerns_all {
            // The API answers again, if this was the last one that it did not answer.
            if self.alone.insert(watch) {
                lines.push(HealthMessage::Lost { watch });
            }
            if self.outage.remove(&watch) {
                lines.extend(self.over(now));
            }
        } else if !self.alone.contains(watch) && self.outage.insert(watch) {
            if self.outage.len() == 1 && self.restored.is_empty() {
                (self.since, self.logged) = (now, 0);
            }
            self.restored.remove(&watch);
            if now.saturating_sub(self.logged) > ALIKE_SECONDS {
                self.logged = now;
                lines.push(HealthMessage::Lost { watch });
            }
        }
        lines
    }

    fn restored(&mut self, watch: &'static str, since: u64, now: u64) -> Option<HealthMessage> {
        if self.alone.remove(watch) {
            let seconds = now.saturating_sub(since);
            let watches = watch.to_owned();
            return Some(HealthMessage::Restored { watches, seconds });
        }
        if !self.outage.remove(watch) {
            return None;
        }
        self.restored.insert(watch);
        self.over(now)
    }

    /// Ends the outage with the last watch.
    fn over(&mut self, now: u64) -> Option<HealthMessage> {
        if !self.outage.is_empty() {
            return None;
        }
        let restored = std::mem::take(&mut self.restored);
        let watches = restored.into_iter().collect::<Vec<_>>().join(", ");
        let seconds = now.saturating_sub(self.since);
        (!watches.is_empty()).then_some(HealthMessage::Restored { watches, seconds })
    }
}

impl WatchHealth {
    #[must_use]
    pub fn new(clock: Clock, observer: Arc<dyn WatchObserver>) -> Self {
        Self {
            clock,
            observer,
            watches: watch::Sender::default(),
            log: Mutex::default(),
        }
    }

    /// Returns the state of each watch, by the name of its objects.
    #[must_use]
    pub fn watches(&self) -> BTreeMap<&'static str, WatchStatus> {
        self.watches.borrow().clone()
    }

    /// Returns a receiver of the same, and of each change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<&'static str, WatchStatus>> {
        self.watches.subscribe()
    }

    pub(super) fn begin(&self, what: &'static str) {
        self.set(what, WatchStatus::Beginning);
        self.observer.watch_broken(what, false);
    }

    pub(super) fn well(&self, what: &'static str) {
        let heard = self.watches.borrow().get(what).cloned();
        // Each event says it: who waits for a change is woken by a change only.
        if heard == Some(WatchStatus::Well) {
            return;
        }
        self.set(what, WatchStatus::Well);
        self.observer.watch_broken(what, false);
        if let Some(WatchStatus::Away { since, .. }) = heard
            && let Some(line) = self.log(|log, now| log.restored(what, since, now))
        {
            line.write("", "");
        }
    }

    /// Notes a failure. A watch that fails repeatedly counts as failed since the first time.
    pub(super) fn record_failure(&self, what: &'static str, error: &ClusterError) {
        let (reason, cause) = (error.reason(), error.cause());
        let heard = self.watches.borrow().get(what).cloned();
        let since = match &heard {
            Some(WatchStatus::Away { since, .. }) => *since,
            _ => self.clock.now().as_secs(),
        };
        let state = match heard {
            Some(WatchStatus::Well) => "lost, using cached state",
            _ => "cannot begin",
        };
        let away = WatchStatus::Away {
            since,
            reason: reason.clone(),
        };
        self.set(what, away);
        self.observer.watch_broken(what, true);
        for line in self.log(|log, now| log.lost(what, cause.concerns_all(), now)) {
            line.write(state, &reason);
        }
    }

    fn log<T>(&self, change: impl FnOnce(&mut Log, u64) -> T) -> T {
        let now = self.clock.now().as_secs();
        change(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    fn set(&self, what: &'static str, heard: WatchStatus) {
        self.watches.send_modify(|watches| drop(watches.insert(what, heard)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn lost(watch: &'static str) -> Vec<HealthMessage> {
        vec![HealthMessage::Lost { watch }]
    }

    fn restored(watches: &str, seconds: u64) -> Option<HealthMessage> {
        let watches = watches.to_owned();
        Some(HealthMessage::Restored { watches, seconds })
    }

    #[test]
    fn outage_and_recovery_are_logged_once_each() {
        let mut log = Log::default();
        assert_eq!(log.lost("nodes", true, NOW), lost("nodes"));
        for second in 0..67 {
            for watch in ["machines", "nodes", "secrets"] {
                assert_eq!(log.lost(watch, true, NOW + second), []);
            }
        }
        assert_eq!(log.restored("nodes", NOW, NOW + 67), None);
        assert_eq!(log.restored("secrets", NOW, NOW + 67), None);
        // One that is lost again before all are back is part of it.
        assert_eq!(log.lost("nodes", true, NOW + 68), []);
        assert_eq!(log.restored("nodes", NOW + 68, NOW + 69), None);
        assert_eq!(log.restored("machines", NOW, NOW + 70), restored("machines, nodes, secrets", 70));
        assert_eq!(log.restored("machines", NOW, NOW + 70), None);
        assert_eq!(log.lost("nodes", true, NOW + 71), lost("nodes"));
    }

    #[test]
    fn unrecovered_watch_does_not_hide_a_later_outage() {
        let mut log = Log::default();
        assert_eq!(log.lost("nodes", true, NOW), lost("nodes"));
        assert_eq!(log.lost("machines", true, NOW + ALIKE_SECONDS + 1), lost("machines"));
        assert_eq!(log.lost("secrets", true, NOW + ALIKE_SECONDS + 2), []);
    }

    #[test]
    fn refusal_of_one_watch_is_logged_separately() {
        let mut log = Log::default();
        assert_eq!(log.lost("nodes", true, NOW), lost("nodes"));
        assert_eq!(log.lost("machines", true, NOW), []);
        // The API is back, and refuses one of them.
        assert_eq!(log.lost("machines", false, NOW + 5), lost("machines"));
        assert_eq!(log.restored("nodes", NOW, NOW + 6), restored("nodes", 6));
        assert_eq!(log.lost("machines", false, NOW + 7), []);
        assert_eq!(log.lost("machines", true, NOW + 8), []);
        assert_eq!(log.restored("machines", NOW, NOW + 9), restored("machines", 9));
    }
}
