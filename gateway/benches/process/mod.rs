//! Costs of a process, as the kernel counts them.

#![allow(dead_code, reason = "each benchmark uses its part")]

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the environment of the gateway's unit, which controls how glibc keeps memory.
pub fn environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("../../dist/attest-gateway.service").lines();
    let lines = lines.filter_map(|line| line.strip_prefix("Environment="));
    lines.flat_map(str::split_whitespace).filter_map(|one| one.split_once('='))
}

/// Returns the processor time of a process.
pub fn spent(process: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // After the program's name, which may hold anything: utime and stime are the 14th and 15th of all.
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Returns the number of bytes that a process has written to disks.
pub fn written(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
    line.parse().unwrap()
}

/// Returns the peak memory of a process, in bytes.
pub fn peak(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// Returns the disk space of the files under a folder, in bytes.
pub fn on_disk(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let of = |path: PathBuf| match fs::symlink_metadata(&path) {
        Ok(found) if found.is_dir() => on_disk(&path),
        Ok(found) => found.blocks() * 512,
        // It was there a moment ago.
        Err(_) => 0,
    };
    entries.map(|entry| of(entry.path())).sum()
}
