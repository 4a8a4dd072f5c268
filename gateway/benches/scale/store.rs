//! Shared store, from the view of one replica: one commit at a time, with all accesses that have queued up before it.

use std::collections::VecDeque;

use super::clock::Time;
use super::site::{Access, Etcd, MOST_KEYS, Site, Step};

/// Access of a request to the store.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub node: u32,
    pub attempt: u32,
    /// Number of its earlier accesses.
    pub round: usize,
    pub step: Step,
    pub access: Access,
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
        let mut keys = 0;
        while let Some(work) = self.waiting.pop_front_if(|work| keys + work.access.keys <= MOST_KEYS) {
            keys += work.access.keys;
            self.under_way.push(work);
        }
        let writes = self.under_way.iter().any(|work| work.access.writes);
        self.commits += u64::from(writes);
        let work = etcd.transaction + etcd.key * Time::try_from(keys).unwrap_or_default();
        // All replicas come with as much.
        self.worked += work * site.replicas;
        let waits_for_others = work * site.replicas.div_ceil(etcd.cores);
        let time = if writes { etcd.commit } else { etcd.read } + waits_for_others;
        self.full += if self.waiting.is_empty() { 0 } else { time };
        Some(time)
    }

    /// Ends the commit, and returns its accesses.
    pub fn end(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.under_way)
    }
}
