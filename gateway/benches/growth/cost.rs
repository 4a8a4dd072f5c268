//! Cost of a process, and its growth from one size to another.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::results::{Bound, Figure};
use crate::support::{Gateway, program_of};
use crate::{COSTLIER, LARGER, process};

/// Time between two looks at the memory of a process.
const LOOK: Duration = Duration::from_millis(5);
/// Processor time below which a measurement counts as this: the kernel counts in ticks of 10 ms.
const LEAST_SECONDS: f64 = 0.1;
/// Memory below which a measurement counts as this: a command that ends between two looks has hardly begun at the last one.
const LEAST_BYTES: f64 = 32.0 * 1024.0 * 1024.0;

/// Cost of one process.
pub struct Cost {
    pub what: String,
    /// Processor time, in seconds.
    processor: f64,
    /// Peak memory, in bytes.
    memory: f64,
}

/// Expected growth of memory.
#[derive(Clone, Copy, PartialEq)]
pub enum Memory {
    /// With the number of items.
    Linear,
    /// It does not grow.
    Constant,
}

/// Costs of the same command at two sizes.
pub struct Growth {
    what: String,
    items: &'static str,
    sizes: [usize; 2],
    costs: [Cost; 2],
    memory: Memory,
}

impl Cost {
    /// Measures a start until the gateway is ready, without its end.
    pub fn of_start(of: &str, gateway: &mut Gateway) -> Self {
        let begun = Instant::now();
        gateway.run();
        let (process, took) = (gateway.process_id(), begun.elapsed());
        let cost = Self {
            what: "serve, until ready".to_owned(),
            processor: process::spent(process).as_secs_f64(),
            memory: as_f64(process::peak(process)),
        };
        gateway.terminate();
        gateway.wait();
        cost.print(of, took)
    }

    /// Measures a command of the gateway or the auditor.
    pub fn of_command(of: &str, gateway: &Gateway, arguments: &[&str]) -> Self {
        let mut command = program_of(arguments);
        let errors = gateway.path("errors");
        command.arg("--config").arg(gateway.path("gateway.toml")).args(arguments);
        command.stdout(Stdio::null()).stderr(File::create(&errors).unwrap());
        let what = arguments.join(" ").replace(gateway.path("").to_str().unwrap(), "");
        let (cost, took, code) = Self::of(what, command);
        // A status of a gateway that does not serve, or warnings.
        let is_expected = code == 0 || ["status", "check"].contains(&arguments[0]) && code == 1;
        assert!(is_expected, "{arguments:?}: {code}: {}", fs::read_to_string(errors).unwrap());
        cost.print(of, took)
    }

    fn of(what: String, mut command: Command) -> (Self, Duration, i32) {
        let begun = Instant::now();
        let mut child = command.spawn().unwrap();
        let mut memory = 0.0;
        // A process that has ended stays until it is waited for, with its times, but without its memory.
        loop {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            if status.contains("State:\tZ") {
                break;
            }
            if status.contains("VmHWM:") {
                memory = peak(&status).max(memory);
            }
            thread::sleep(LOOK);
        }
        let took = begun.elapsed();
        let processor = process::spent(child.id()).as_secs_f64();
        let code = child.wait().unwrap().code().unwrap();
        (Self { what, processor, memory }, took, code)
    }

    fn print(self, of: &str, took: Duration) -> Self {
        let Self { what, processor, memory } = &self;
        let mebibytes = memory / f64::from(1 << 20);
        println!(
            "{of:<28} {what:<56} {processor:>9.2} s of the processor, {:>8.2} s, {mebibytes:>8.1} MiB",
            took.as_secs_f64()
        );
        self
    }
}

/// Returns the peak memory in a process's status, in bytes.
fn peak(status: &str) -> f64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    1024.0 * line.trim().trim_end_matches(" kB").parse::<f64>().unwrap()
}

fn as_f64(number: u64) -> f64 {
    f64::from(u32::try_from(number / 1024).unwrap()) * 1024.0
}

fn count(items: usize) -> f64 {
    f64::from(u32::try_from(items).unwrap())
}

impl Growth {
    /// Joins the costs at two sizes, in their order. Memory must not grow.
    pub fn all<const N: usize>(items: &'static str, sizes: [usize; 2], measured: Vec<[Cost; N]>) -> Vec<Self> {
        let [part, whole] = <[[Cost; N]; 2]>::try_from(measured).map_err(|all| all.len()).unwrap();
        let pairs = part.into_iter().zip(whole);
        pairs
            .map(|(part, whole)| Self {
                what: whole.what.clone(),
                items,
                sizes,
                costs: [part, whole],
                memory: Memory::Constant,
            })
            .collect()
    }

    pub fn with_memory(self, memory: Memory) -> Self {
        Self { memory, ..self }
    }

    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the costs at the larger size, and their growth with its limits.
    pub fn figures(&self) -> Vec<Figure> {
        let Self {
            what,
            items,
            sizes,
            costs,
            memory,
        } = self;
        let [part, whole] = sizes.map(count);
        let growth = |cost: fn(&Cost) -> f64| cost(&costs[1]) / cost(&costs[0]) / (whole / part);
        let of = format!("{what}: {} {items}", sizes[1]);
        let figure = |name: String, unit: &str, value| Figure::from_runs(name, unit, &[value]);
        let (processor, mebibytes) = (costs[1].processor, costs[1].memory / f64::from(1 << 20));
        let bytes = |cost: &Cost| cost.memory.max(LEAST_BYTES);
        let larger = match memory {
            Memory::Linear => (bytes(&costs[1]) / bytes(&costs[0]) / (whole / part), COSTLIER),
            Memory::Constant => (bytes(&costs[1]) / bytes(&costs[0]), LARGER),
        };
        vec![
            figure(format!("{of}: processor time"), "s", processor),
            figure(format!("{of}: memory"), "MiB", mebibytes),
            figure(
                format!("{of}: growth of an item's time"),
                "x",
                growth(|cost| cost.processor.max(LEAST_SECONDS)),
            )
            .limit(Bound::AtMost(COSTLIER)),
            figure(format!("{of}: growth of memory"), "x", larger.0).limit(Bound::AtMost(larger.1)),
        ]
    }
}
