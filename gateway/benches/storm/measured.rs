//! What a run has shown: of the nodes as they tell it, of the gateway as the kernel and the attestation log do.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::process;
use crate::support::Gateway;
use crate::tally::{FULL, Told};

/// How the gateway stands before a run.
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

/// One run.
pub struct Figures {
    pub nodes: usize,
    /// Nodes that have their full config.
    pub full: usize,
    /// How all boots ended.
    pub ended: BTreeMap<String, u64>,
    /// Seconds of the boots that came through, ascending.
    pub took: Vec<f64>,
    /// Attempts that failed, by what.
    pub failed: BTreeMap<String, u64>,
    /// Seconds until the last node was done.
    pub lasted: f64,
    /// Evidence that was verified although that node's had been.
    pub twice: u64,
    /// Evidence that was made again.
    pub made_again: u64,
    /// Milliseconds of processors for each node: the gateway's, the generator's.
    pub spent: [f64; 2],
    /// Of the time that the run lasted, how much each of both was at work.
    pub busy: [f64; 2],
    /// The gateway's most memory, bytes.
    pub peak: u64,
    /// Bytes for each node: written, and on disk at the end.
    pub written: f64,
    pub on_disk: f64,
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "no figure is that large")]
impl Figures {
    pub fn of(told: Told, before: &Before, gateway: &Gateway) -> Self {
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
        let took_tickets = told.nodes.iter().filter(|node| node.ended == FULL && node.evidence > 0).count();
        let spent = (after.spent - before.spent).as_secs_f64();
        Self {
            nodes,
            full: took.len(),
            ended,
            took,
            failed,
            lasted: told.lasted,
            twice: verified_twice(gateway, took_tickets),
            made_again: told.nodes.iter().map(|node| u64::from(node.evidence.saturating_sub(1))).sum(),
            spent: [each(spent), each(told.spent)].map(|seconds| seconds * 1e3),
            busy: [spent, told.spent].map(|seconds| seconds / told.lasted),
            peak: process::peak(gateway.process_id()),
            written: each((after.written - before.written) as f64),
            on_disk: each(after.on_disk.saturating_sub(before.on_disk) as f64),
        }
    }

    /// So many of a hundred nodes had their config after so many seconds.
    pub fn percentile(&self, percent: f64) -> f64 {
        percentile(&self.took, percent)
    }

    /// Attempts that failed, for each node.
    pub fn failed_each(&self) -> f64 {
        self.failed.values().sum::<u64>() as f64 / self.nodes as f64
    }
}

/// Of values that ascend, the one below or at which so many of a hundred are.
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

/// Records of evidence that was taken, beyond one of each machine; of so many machines at least there has to be one.
fn verified_twice(gateway: &Gateway, machines: usize) -> u64 {
    let mut times: BTreeMap<String, u64> = BTreeMap::new();
    for file in fs::read_dir(gateway.path("state")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("attestation.jsonl") {
            continue;
        }
        let text = fs::read(&path).unwrap();
        let text = if name.ends_with(".gz") {
            let mut whole = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(text.as_slice()), &mut whole).unwrap();
            whole
        } else {
            text
        };
        for line in text.split(|byte| *byte == b'\n') {
            if line.windows(21).any(|window| window == b"\"decision\":\"evidence\"") {
                let record: Value = serde_json::from_slice(line).unwrap();
                let verified = record["verdict"] == "trusted";
                *times.entry(record["identity"].to_string()).or_default() += u64::from(verified);
            }
        }
    }
    let verified = times.values().filter(|times| **times > 0).count();
    assert!(
        verified >= machines,
        "{machines} machines have shown evidence, and the log has {verified}"
    );
    times.values().map(|times| times.saturating_sub(1)).sum()
}

/// A line for each figure: median, least and most of the runs.
#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "no figure is that large")]
pub fn table(runs: &[Figures]) {
    println!("{:<52} {:>10} {:>10} {:>10}", "", "median", "least", "most");
    let line = |name: &str, of: &dyn Fn(&Figures) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let (least, median, most) = (values[0], values[values.len() / 2], values[values.len() - 1]);
        println!("{name:<52} {median:>10.2} {least:>10.2} {most:>10.2}");
    };
    line("nodes with their full config", &|run| run.full as f64);
    line("until the last one was done, s", &|run| run.lasted);
    for percent in [50.0, 90.0, 99.0, 100.0] {
        line(&format!("boot, p{percent}, s"), &|run| run.percentile(percent));
    }
    line("boot, p99 / p50", &|run| run.percentile(99.0) / run.percentile(50.0));
    line("failed attempts a node", &Figures::failed_each);
    line("evidence verified again", &|run| run.twice as f64);
    line("evidence made again", &|run| run.made_again as f64);
    line("gateway's processor time a node, ms", &|run| run.spent[0]);
    line("gateway's part of its core", &|run| run.busy[0]);
    line("generator's processor time a node, ms", &|run| run.spent[1]);
    line("generator's part of its cores", &|run| run.busy[1]);
    line("gateway's peak memory, MiB", &|run| run.peak as f64 / 1024.0 / 1024.0);
    line("written a node, KiB", &|run| run.written / 1024.0);
    line("on disk a node, KiB", &|run| run.on_disk / 1024.0);
    let run = &runs[0];
    for (ended, count) in run.ended.iter().filter(|(ended, _)| *ended != FULL) {
        println!("  {count:>8} ended in: {ended}");
    }
    for (what, count) in &run.failed {
        println!("  {count:>8} attempts failed in {what}");
    }
}
