//! Duration from MachineConfigs on disk to a config that is served, next to the unavoidable parts: parsing the same YAML, and writing the
//! same JSON.
//!
//! Run with `cargo bench -p attest-gateway --bench render`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod results;
mod worker;

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use attest_gateway::pools;
use attest_ignition::{Config, SpecVersion};
use attest_log::ConfigSet;
use attest_pool::Pool;
use attest_pool::needed_before_approval::NeededState;
use results::Figure;
use serde_json::Value;

/// Number of MachineConfigs in a pool: a usual one, and that of one pool of a large cluster, including those of tools.
const MACHINE_CONFIGS: [u32; 2] = [100, 1000];
/// Number of measurements of each step; the median counts.
const RUNS: usize = 5;
/// Spec version of the requested configs.
const VERSION: SpecVersion = SpecVersion::V3_4;

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    if !measuring {
        return compare(3, 1);
    }
    for count in MACHINE_CONFIGS {
        compare(count, RUNS);
    }
}

fn compare(count: u32, runs: usize) {
    let folder = tempfile::tempdir().unwrap();
    let configs: Vec<Value> = (0..count)
        .map(|number| worker::small_machine_config(number.try_into().unwrap()))
        .collect();
    let one_each = pool_folder(&folder.path().join("one-each"));
    worker::write(&one_each.join("machine-configs"), &configs).unwrap();
    let together = pool_folder(&folder.path().join("together"));
    fs::create_dir(together.join("machine-configs")).unwrap();
    let documents: Vec<String> = configs.iter().map(worker::yaml).collect();
    fs::write(together.join("machine-configs/all.yaml"), documents.join("---\n")).unwrap();

    let pool = load(&one_each);
    let served = render(&pool);
    assert_eq!(served, render(&load(&together)));
    let config = Config::parse(&served).unwrap();
    let bytes: usize = documents.iter().map(String::len).sum();
    println!(
        "\n{count} MachineConfigs, {} kB of YAML; the config served has {} kB\n",
        bytes / 1000,
        served.len() / 1000
    );

    println!("{:<52} {:>12} {:>18}", "step", "median", "per MachineConfig");
    let measure = |name: &str, body: &mut dyn FnMut()| {
        let mut times: Vec<Duration> = (0..runs)
            .map(|_| {
                let start = Instant::now();
                body();
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        let median = times[runs / 2];
        println!(
            "{name:<52} {:>9.1} ms {:>15.1} µs",
            median.as_secs_f64() * 1e3,
            median.as_secs_f64() * 1e6 / f64::from(count)
        );
        if runs > 1 {
            let millis: Vec<f64> = times.iter().map(|took| took.as_secs_f64() * 1e3).collect();
            results::report([Figure::from_runs(format!("{count} MachineConfigs: {}", name.trim()), "ms", &millis)]);
        }
    };
    measure("read and render: a file for each", &mut || {
        drop(black_box(render(&load(&one_each))))
    });
    measure("read and render: one file", &mut || drop(black_box(render(&load(&together)))));
    measure("  of it: parse, merge, check (load)", &mut || drop(black_box(load(&together))));
    measure("unavoidable: the YAML into JSON values, one by one", &mut || {
        for document in &documents {
            black_box(serde_saphyr::from_str::<Value>(document).unwrap());
        }
    });
    measure("unavoidable: the merged config as JSON (express)", &mut || {
        drop(black_box(config.express(VERSION).unwrap()));
    });
}

/// Creates a pool that has MachineConfigs for approved nodes only.
fn pool_folder(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let settings = attest_pool::SAMPLE.replace("nothing = \"pre-approved\"", "nothing = \"refuse\"");
    fs::write(folder.join("pool.toml"), settings).unwrap();
    folder.to_owned()
}

fn load(folder: &Path) -> Pool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(pools::load("worker", folder, &NeededState::Pending)).unwrap()
}

fn render(pool: &Pool) -> Vec<u8> {
    pool.for_administrator(ConfigSet::Full).get(VERSION).unwrap().bytes.to_vec()
}
