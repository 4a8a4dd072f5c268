//! What a process costs, as the kernel counts it.

#![allow(dead_code, reason = "each benchmark uses its part")]

use std::fs;
use std::time::Duration;

/// What a process has spent of the processors.
pub fn spent(process: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // After the program's name, which may hold anything: utime and stime are the 14th and 15th of all.
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// The bytes that a process has had written to disks.
pub fn written(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
    line.parse().unwrap()
}
