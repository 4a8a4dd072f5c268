//! Shared store, from the view of one replica: one commit at a time, with all accesses that have queued up before it.

use std::collections::VecDeque;

use super::clock::Time;
use super::site::{Etcd, KEYS, MOST_KEYS, Site, Step};

/// Access of a request to the store.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub node: u32,
    pub attempt: u32,
    /// Number of its earlier accesses.
    pub round: usize,
    pub step: Step,
    pub writes: bool,
}

#[derive(Debug, Default)]
pub struct Store {
    waiting: VecDeque<Work>,
    under_way: Vec<Work>,
    pub commits: u64,
    /// Processor time of etcd for all replicas.
    pub worked: Time,
    /// Time in which a commit of this replica was in progress that had no room for more.
    pub full: Time,
}

impl Store {
    pub fn ask(&mut self, work: Work) {
        self.waiting.push_back(work);
    }

    /// Begins the next commit. Returns its duration, or `None` if none can begin.
    pub fn begin(&mut self, etcd: &Etcd, site: &Site) -> Option<Time> {
        if self.waiting.is_empty() || !self.under_way.is_empty() {
            return None;
        }
        let count = self.waiting.len().min(MOST_KEYS / KEYS);
        self.under_way.extend(self.waiting.drain(..count));
        let writes = self.under_way.iter().any(|work| work.writes);
        self.commits += u64::from(writes);
        let work = etcd.transaction + etcd.ask * Time::try_from(count).unwrap_or_default();
        // All replicas come with as much.
        self.worked += work * site.replicas;
        let waits_for_others = work * site.replicas.div_ceil(etcd.cores);
        let time = if writes { etcd.commit } else { etcd.read } + waits_for_others;
        self.full += if count == MOST_KEYS / KEYS { time } else { 0 };
        Some(time)
    }

    /// Ends the commit, and returns its accesses.
    pub fn end(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.under_way)
    }
}
