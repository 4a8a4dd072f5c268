//! Rate limit of the events about CSRs that are left: a quota for each name, and a part for names of attested machines.

use std::collections::HashMap;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
/// Most of a minute's events (120, `attest_cluster_api::events`) that CSRs for names of no attested machine get: such names are invented by the thousand.
const UNATTESTED_LIMIT: u32 = 80;
/// Most of a minute's events for one name: a node has one CSR, and few reasons.
const NAME_LIMIT: u32 = 10;

/// The events of this minute.
#[derive(Debug)]
pub(super) struct EventBudget {
    begun: Instant,
    unattested: u32,
    by_name: HashMap<String, u32>,
}

impl EventBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            begun: now,
            unattested: 0,
            by_name: HashMap::new(),
        }
    }

    /// Takes an event for this name out of the budget; returns `false` if the budget is used up.
    pub(super) fn take(&mut self, name: &str, is_attested: bool, now: Instant) -> bool {
        if now.duration_since(self.begun) >= MINUTE {
            *self = Self::new(now);
        }
        let of_name = self.by_name.get(name).copied().unwrap_or_default();
        if of_name >= NAME_LIMIT || (!is_attested && self.unattested >= UNATTESTED_LIMIT) {
            return false;
        }
        self.by_name.insert(name.to_owned(), of_name + 1);
        self.unattested += u32::from(!is_attested);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_budget_reserves_a_share_for_attested_names() {
        let now = Instant::now();
        let mut budget = EventBudget::new(now);
        let granted = (0..300)
            .filter(|number| budget.take(&format!("nobody-{number}"), false, now))
            .count();
        assert_eq!(granted, 80);
        assert!(budget.take("worker-1", true, now));
        assert!(!budget.take("worker-2", false, now));
        assert!(budget.take("worker-2", false, now + MINUTE));
    }

    #[test]
    fn event_budget_is_limited_per_name() {
        let now = Instant::now();
        let mut budget = EventBudget::new(now);
        let granted = (0..5_000).filter(|_| budget.take("worker-1", true, now)).count();
        assert_eq!(granted, 10);
        assert!(budget.take("worker-2", true, now) && budget.take("nobody", false, now));
    }
}
