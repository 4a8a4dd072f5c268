//! Measurements of a run: of the nodes by their own reports, of the gateway by the kernel and the attestation log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::logged::Logged;
use crate::process;
use crate::support::Gateway;
use crate::tally::{FULL, Told};

/// Size of the write-ahead log above which the store frees its disk space, a second after the last write to it.
const GIVEN_BACK_BYTES: u64 = 4 * 1024 * 1024;
/// Time without changes on the disk after which writing counts as finished, and the maximum wait for that.
const STILL: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// State of the gateway before a run.
pub struct Before {
    spent: Duration,
    written: u64,
    on_disk: u64,
}

impl Before {
    pub fn now(gateway: &Gateway) -> Self {
        Self {
            spent: process::spent(gateway.process_id()),
            written: process::written(gateway.process_id()),
            on_disk: process::on_disk(&gateway.path("state")),
        }
    }
}

/// Measurements of a run.
pub struct Figures {
    pub nodes: usize,
    /// Number of nodes that have their full config.
    pub full: usize,
    /// Number of boots by their result.
    pub ended: BTreeMap<String, u64>,
    /// Durations of the successful boots, in seconds, ascending.
    pub took: Vec<f64>,
    /// Number of failed attempts by reason.
    pub failed: BTreeMap<String, u64>,
    /// Seconds until the last node was done.
    pub lasted: f64,
    /// Number of verifications of evidence beyond each node's first.
    pub twice: u64,
    /// Number of configs beyond each node's first.
    pub given_again: u64,
    /// Number of pieces of evidence that nodes made again.
    pub made_again: u64,
    /// Processor time for each node, in milliseconds: the gateway's, the generator's.
    pub spent: [f64; 2],
    /// Utilization of both during the run.
    pub busy: [f64; 2],
    /// Peak memory of the gateway, in bytes.
    pub peak: u64,
    /// Bytes for each node: written, and on disk at the end.
    pub written: f64,
    pub on_disk: f64,
    /// Bytes of the bodies of the answers to each node.
    pub received: f64,
    /// Calls for each node that flush files to the disk, if they were counted.
    pub syncs: Option<f64>,
    /// Times at which each node had its config, in seconds since the run began, ascending.
    pub ends: Vec<f64>,
    /// Connections of the attacker, and the number of them without an answer.
    pub stranger: [u64; 2],
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "no figure is that large")]
impl Figures {
    pub fn new(told: Told, before: &Before, syncs: Option<u64>, gateway: &Gateway) -> Self {
        let spent = process::spent(gateway.process_id());
        wait_until_nobody_writes(gateway);
        let after = Before::now(gateway);
        let nodes = told.nodes.len();
        let each = |value: f64| value / nodes as f64;
        let (mut ended, mut failed, mut took) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for node in &told.nodes {
            *ended.entry(node.ended.clone()).or_default() += 1;
            for (what, times) in &node.failed {
                *failed.entry(what.clone()).or_default() += u64::from(*times);
            }
            if node.ended == FULL {
                took.push(node.took);
            }
        }
        took.sort_by(f64::total_cmp);
        let ended_full = told.nodes.iter().filter(|node| node.ended == FULL);
        let mut ends: Vec<f64> = ended_full.map(|node| node.begun + node.took).collect();
        ends.sort_by(f64::total_cmp);
        let took_tickets = told.nodes.iter().filter(|node| node.ended == FULL && node.evidence > 0).count();
        let logged = Logged::by(gateway);
        assert!(
            logged.verified() >= took_tickets && logged.given() >= took.len(),
            "the log has less than the nodes have"
        );
        let spent = (spent - before.spent).as_secs_f64();
        Self {
            nodes,
            full: took.len(),
            ended,
            took,
            failed,
            lasted: told.lasted,
            twice: logged.twice(),
            given_again: logged.repeated_configs(),
            made_again: told.nodes.iter().map(|node| u64::from(node.evidence.saturating_sub(1))).sum(),
            spent: [each(spent), each(told.spent)].map(|seconds| seconds * 1e3),
            busy: [spent, told.spent].map(|seconds| seconds / told.lasted),
            peak: process::peak(gateway.process_id()),
            written: each((after.written - before.written) as f64),
            on_disk: each(after.on_disk.saturating_sub(before.on_disk) as f64),
            received: each(told.nodes.iter().map(|node| node.received).sum::<u64>() as f64),
            syncs: syncs.map(|syncs| each(syncs as f64)),
            stranger: told.stranger,
            ends,
        }
    }

    /// Returns the seconds after which this percentage of the nodes had their config.
    pub fn percentile(&self, percent: f64) -> f64 {
        percentile(&self.took, percent)
    }

    /// Returns the number of failed attempts for each node.
    pub fn failed_each(&self) -> f64 {
        self.failed.values().sum::<u64>() as f64 / self.nodes as f64
    }
}

/// Waits until the store has freed its write-ahead log, and closed segments of the attestation log are compressed. Then the folder's disk
/// space no longer changes.
fn wait_until_nobody_writes(gateway: &Gateway) {
    let length = || fs::metadata(gateway.path("state/gateway.db-wal")).map_or(0, |log| log.len());
    let taken = || process::on_disk(&gateway.path("state"));
    let (since, mut last) = (Instant::now(), (taken(), Instant::now()));
    while since.elapsed() < LONGEST_WAIT && (length() > GIVEN_BACK_BYTES || last.1.elapsed() < STILL) {
        thread::sleep(Duration::from_millis(100));
        let now = taken();
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
}

/// Returns the percentile of ascending values, by the nearest-rank method.
#[allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in a list"
)]
fn percentile(ascending: &[f64], percent: f64) -> f64 {
    let place = (ascending.len() as f64 * percent / 100.0).ceil() as usize;
    ascending.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
