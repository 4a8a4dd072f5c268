//! Metrics of the process, under the names that all Prometheus clients use. They are read from `/proc` at a scrape.
//!
//! Format of the files: proc(5), <https://man7.org/linux/man-pages/man5/proc.5.html>.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

crate::metrics! {
    /// Metrics of the process.
    pub struct ProcessMetrics {
        cpu: Counter<f64, AtomicU64> = "process_cpu_seconds_total", [], "Time that the process has computed, in user and system mode";
        memory: Gauge = "process_resident_memory_bytes", [], "Resident memory of the process";
        open_files: Gauge = "process_open_fds", [], "Open file descriptors of the process";
        most_files: Gauge = "process_max_fds", [], "Limit on open file descriptors of the process";
        start: Gauge<f64, AtomicU64> = "process_start_time_seconds", [], "Start of the process, in seconds since 1970";
    }
}

/// Clock ticks of a second in files of `/proc`: the same on all architectures that the programs are built for.
const TICKS: u32 = 100;

impl ProcessMetrics {
    /// Reads all values. One that cannot be read stays as it was.
    pub fn read(&self) {
        let text = |path: &str| fs::read_to_string(path).ok();
        let stat = text("/proc/self/stat");
        if let Some(seconds) = stat.as_deref().and_then(cpu_seconds) {
            self.cpu.inner().store(seconds.to_bits(), Ordering::Relaxed);
        }
        let booted = text("/proc/stat");
        if let Some(seconds) = start_seconds(stat.as_deref(), booted.as_deref()) {
            self.start.set(seconds);
        }
        if let Some(bytes) = text("/proc/self/status").as_deref().and_then(resident_bytes) {
            self.memory.set(bytes);
        }
        if let Some(limit) = text("/proc/self/limits").as_deref().and_then(most_files) {
            self.most_files.set(limit);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them lists the folder.
            self.open_files
                .set(i64::try_from(open.count().saturating_sub(1)).unwrap_or(i64::MAX));
        }
    }
}

/// Returns the fields behind the program's name, which may contain spaces and brackets; the first is the third of the line.
fn stat_fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat_fields(stat).skip(11);
    let (user, system) = (fields.next()?.parse::<f64>().ok()?, fields.next()?.parse::<f64>().ok()?);
    Some((user + system) / f64::from(TICKS))
}

fn start_seconds(stat: Option<&str>, system: Option<&str>) -> Option<f64> {
    let ticks = stat_fields(stat?).nth(19)?.parse::<f64>().ok()?;
    let boot = system?.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + ticks / f64::from(TICKS))
}

fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes = line.trim().strip_suffix(" kB")?.parse::<i64>().ok()?;
    kilobytes.checked_mul(1024)
}

fn most_files(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_files_of_proc() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 12345 1000 200 18446744073709551615";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        let system = "cpu  1 2 3\nbtime 1700000000\n";
        assert_eq!(start_seconds(Some(stat), Some(system)), Some(1_700_000_123.45));
        assert_eq!(resident_bytes("VmPeak:\t  9 kB\nVmRSS:\t    2048 kB\n"), Some(2_097_152));
        assert_eq!(
            most_files("Max open files            1024                 524288               files\n"),
            Some(1024)
        );
        for broken in ["", ")", "7 (a) S 1", "VmRSS: x kB", "Max open files unlimited"] {
            assert_eq!((cpu_seconds(broken), start_seconds(Some(broken), Some(system))), (None, None));
            assert_eq!((resident_bytes(broken), most_files(broken)), (None, None), "{broken}");
        }
    }

    #[test]
    fn values_of_this_process_are_plausible() {
        let metrics = ProcessMetrics::register(&mut crate::Registry::default());
        metrics.read();
        assert!(metrics.memory.get() > 1 << 20 && metrics.open_files.get() > 2);
        assert!(metrics.most_files.get() >= metrics.open_files.get());
        assert!(metrics.start.get() > 1_600_000_000.0 && metrics.cpu.get() >= 0.0);
    }
}
