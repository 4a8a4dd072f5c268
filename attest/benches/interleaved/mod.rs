//! Times of several pieces of work as ratios, measured so that a busy machine changes them little.
//!
//! criterion measures one benchmark after the other: whatever else the machine did in one of these seconds goes into the ratio. Here
//! all take turns in short batches, and of each the fastest batch counts: other load only ever adds time.

#![allow(dead_code, reason = "each benchmark uses its part")]

#[path = "../../../gateway/benches/results/mod.rs"]
mod results;

use std::time::{Duration, Instant};

use results::{Bound, Figure};

/// Batches of each piece of work: enough that some are hit by nothing even on a busy machine.
const BATCHES: u32 = 4000;

/// Approximate duration of a batch: far longer than reading the clock, far shorter than a time slice of the scheduler.
const BATCH: Duration = Duration::from_micros(100);

/// Maximum number of measurements while a ratio is above its limit. Code that is too slow is so every time.
const ATTEMPTS: u32 = 3;

/// Pieces of work that take turns.
#[derive(Default)]
pub struct Interleaved<'a> {
    steps: Vec<Step<'a>>,
}

struct Step<'a> {
    name: &'static str,
    work: Box<dyn FnMut() + 'a>,
    iterations: u32,
    fastest: Duration,
}

/// Limit on the cost of one step, relative to another.
pub struct Limit {
    /// The step that is limited.
    pub whole: &'static str,
    /// The step that it is compared with.
    pub floor: &'static str,
    /// Maximum of the quotient of their times.
    pub ratio: f64,
}

impl<'a> Interleaved<'a> {
    pub fn step(&mut self, name: &'static str, work: impl FnMut() + 'a) {
        self.steps.push(Step {
            name,
            work: Box::new(work),
            iterations: 1,
            fastest: Duration::MAX,
        });
    }

    /// Measures all, prints a table, and ends the process with an error if a step costs more than its limit. Without `--bench`, which
    /// `cargo bench` passes, each step runs only once.
    pub fn run(mut self, limits: &[Limit]) {
        self.steps.iter_mut().for_each(|step| (step.work)());
        if !std::env::args().any(|argument| argument == "--bench") {
            return println!("no figures: this was no measuring run");
        }
        self.steps.iter_mut().for_each(Step::size_batch);
        let mut attempt = 1;
        loop {
            for _ in 0..BATCHES {
                self.steps.iter_mut().for_each(Step::batch);
            }
            let within = limits.iter().all(|limit| self.ratio(limit) <= limit.ratio);
            if within || attempt == ATTEMPTS {
                self.report(limits);
                if !within {
                    std::process::exit(1);
                }
                return;
            }
            attempt += 1;
        }
    }

    fn report(&self, limits: &[Limit]) {
        for limit in limits {
            let floor = self.time(limit.floor);
            println!("\n{:<48} {:>12} {:>8}", format!("against: {}", limit.floor), "fastest", "ratio");
            for step in &self.steps {
                let ratio = step.time() / floor;
                println!("{:<48} {:>9.1} µs {ratio:>7.2}x", step.name, step.time() * 1e6);
            }
        }
        println!();
        for limit in limits {
            let (ratio, allowed) = (self.ratio(limit), limit.ratio);
            println!("{}: {ratio:.2}x {}, at most {allowed}x is allowed", limit.whole, limit.floor);
            let name = format!("{}, as a ratio to {}", limit.whole, limit.floor);
            results::report([Figure::from_runs(name, "x", &[ratio]).limit(Bound::AtMost(allowed))]);
        }
        results::report(
            self.steps
                .iter()
                .map(|step| Figure::from_runs(step.name, "µs", &[step.time() * 1e6])),
        );
    }

    fn ratio(&self, limit: &Limit) -> f64 {
        self.time(limit.whole) / self.time(limit.floor)
    }

    fn time(&self, name: &str) -> f64 {
        self.steps.iter().find(|step| step.name == name).unwrap().time()
    }
}

impl Step<'_> {
    /// Sets the number of iterations that take about [`BATCH`].
    fn size_batch(&mut self) {
        let started = Instant::now();
        let mut iterations = 0;
        while started.elapsed() < BATCH * 10 {
            (self.work)();
            iterations += 1;
        }
        self.iterations = (iterations / 10).max(1);
    }

    fn batch(&mut self) {
        let started = Instant::now();
        for _ in 0..self.iterations {
            (self.work)();
        }
        self.fastest = self.fastest.min(started.elapsed());
    }

    /// Seconds of one iteration.
    fn time(&self) -> f64 {
        self.fastest.as_secs_f64() / f64::from(self.iterations)
    }
}
