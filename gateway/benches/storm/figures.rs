//! Figures of a mode's runs, their goals and limits, and their plots.

use crate::measured::Figures;
use crate::results::{Bound, Figure, Plot, median};
use crate::site::Mode;
use crate::tally::FULL;

use Bound::{AtMost, Never};

/// Number of points in a line.
const POINTS: u32 = 200;
/// Number of intervals of the plot of answers over time, enough to show gaps.
const BINS: f64 = 80.0;

/// Returns the goal of a figure, and the limit beyond which this benchmark fails. Until the goal is reached, the limit is a little above
/// the value that was measured when it was last set.
fn bounds(mode: Mode, name: &str) -> (Option<Bound>, Option<Bound>) {
    let both = |goal, limit| (Some(goal), Some(limit));
    match (mode, name) {
        (_, NOT_FULL | FELL_BACK | TWICE | AGAIN) => both(Never, Never),
        (Mode::AtOnce, SPREAD) => both(AtMost(2.0), AtMost(2.0)),
        (Mode::AtOnce, PEAK) => both(AtMost(150.0), AtMost(220.0)),
        (Mode::ByToken, PEAK) => both(AtMost(200.0), AtMost(200.0)),
        (Mode::AtOnce, FAILED) => both(AtMost(1.0), AtMost(1.0)),
        (Mode::AtOnce, WRITTEN) => both(AtMost(70.0), AtMost(80.0)),
        (Mode::AtOnce, DISK) => both(AtMost(7.0), AtMost(7.7)),
        (Mode::AtOnce, RECEIVED) => both(AtMost(200.0), AtMost(200.0)),
        (Mode::Syncs, SYNCS) => both(AtMost(0.05), AtMost(0.06)),
        _ => (None, None),
    }
}

const NOT_FULL: &str = "nodes without their full config";
const FELL_BACK: &str = "of them, nodes that fell back or gave up";
const SPREAD: &str = "boot, p99 / p50";
const FAILED: &str = "failed attempts a node";
const TWICE: &str = "evidence verified again";
const AGAIN: &str = "configs given again";
const PEAK: &str = "gateway's peak memory";
const DISK: &str = "on disk a node";
const WRITTEN: &str = "written a node";
const RECEIVED: &str = "received a node";
const SYNCS: &str = "fsyncs a node";

/// Returns the figures of these runs, each with its goal and limit.
#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "no figure is that large")]
pub fn summarize(mode: Mode, runs: &[Figures]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: &str, unit: &str, of: &dyn Fn(&Figures) -> f64| {
        let values: Vec<f64> = runs.iter().map(of).collect();
        let (goal, limit) = bounds(mode, name);
        figures.push(Figure {
            goal,
            limit,
            ..Figure::from_runs(format!("{}: {name}", mode.label()), unit, &values)
        });
    };
    let waiting = |run: &Figures| run.ended.get("still waiting").copied().unwrap_or_default() as f64;
    add("nodes", "", &|run| run.nodes as f64);
    add(NOT_FULL, "", &|run| (run.nodes - run.full) as f64);
    add(FELL_BACK, "", &|run| (run.nodes - run.full) as f64 - waiting(run));
    add("nodes a second", "/s", &|run| run.full as f64 / run.lasted);
    for percent in [50.0, 90.0, 99.0, 100.0] {
        add(&format!("boot, p{percent}"), "s", &|run| run.percentile(percent));
    }
    add(SPREAD, "", &|run| run.percentile(99.0) / run.percentile(50.0));
    add(FAILED, "", &Figures::failed_each);
    add(TWICE, "", &|run| run.twice as f64);
    add(AGAIN, "", &|run| run.given_again as f64);
    add("evidence made again", "", &|run| run.made_again as f64);
    add("gateway's processor time a node", "ms", &|run| run.spent[0]);
    add("gateway's part of its core", "", &|run| run.busy[0]);
    add("generator's processor time a node", "ms", &|run| run.spent[1]);
    add("generator's part of its cores", "", &|run| run.busy[1]);
    add(PEAK, "MiB", &|run| run.peak as f64 / 1024.0 / 1024.0);
    add(WRITTEN, "KiB", &|run| run.written / 1024.0);
    add(DISK, "KiB", &|run| run.on_disk / 1024.0);
    add(RECEIVED, "KB", &|run| run.received / 1000.0);
    if runs.iter().all(|run| run.syncs.is_some()) {
        add(SYNCS, "", &|run| run.syncs.unwrap_or(f64::NAN));
    }
    if mode == Mode::Stranger {
        add("the stranger's connections", "", &|run| run.stranger[0] as f64);
        add("the stranger's connections without an answer", "", &|run| run.stranger[1] as f64);
    }
    figures
}

/// Prints the other results of a run: those of boots, and of attempts.
pub fn print(run: &Figures) {
    for (ended, count) in run.ended.iter().filter(|(ended, _)| *ended != FULL) {
        println!("  {count:>8} ended in: {ended}");
    }
    for (what, count) in &run.failed {
        println!("  {count:>8} attempts failed in {what}");
    }
}

/// Returns the median of these runs' nodes per second.
#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "no figure is that large")]
pub fn rate(runs: &[Figures]) -> f64 {
    let mut rates: Vec<f64> = runs.iter().map(|run| run.full as f64 / run.lasted).collect();
    rates.sort_by(f64::total_cmp);
    median(&rates)
}

/// Returns plots of the boots' durations and of the answers' times, with one run of each mode.
pub fn plots(all: &[(Mode, Vec<Figures>)]) -> [Plot; 2] {
    let runs = || {
        let shown = all.iter().filter(|(mode, _)| *mode != Mode::Syncs);
        shown.map(|(mode, runs)| (mode.label().to_owned(), middle(runs)))
    };
    let took = runs().map(|(name, run)| {
        let share = |point: u32| f64::from(point) * 100.0 / f64::from(POINTS);
        let points = (1..=POINTS).map(|point| [run.percentile(share(point)), share(point)]);
        (name, points.filter(|[took, _]| took.is_finite()).collect())
    });
    let answers = runs().map(|(name, run)| (name, over_time(run)));
    [
        Plot {
            file: "storm-boots".to_owned(),
            title: "How long a boot takes: of all boots that came through, how many are done".to_owned(),
            across: "seconds from a node's first byte to the last of its config".to_owned(),
            up: "% of nodes".to_owned(),
            lines: took.collect(),
        },
        Plot {
            file: "storm-answers".to_owned(),
            title: "Configs over time".to_owned(),
            across: "seconds since the first node began".to_owned(),
            up: "nodes a second that have their config".to_owned(),
            lines: answers.collect(),
        },
    ]
}

/// Returns the run with the median duration of several.
fn middle(runs: &[Figures]) -> &Figures {
    let mut sorted: Vec<&Figures> = runs.iter().collect();
    sorted.sort_by(|one, other| one.lasted.total_cmp(&other.lasted));
    sorted[sorted.len() / 2]
}

fn over_time(run: &Figures) -> Vec<[f64; 2]> {
    let width = (run.lasted / BINS).max(0.25);
    let (mut points, mut from, mut ends) = (vec![[0.0, 0.0]], 0.0, run.ends.iter().peekable());
    while from < run.lasted {
        let mut count = 0.0;
        while ends.next_if(|end| **end < from + width).is_some() {
            count += 1.0;
        }
        points.push([from + width / 2.0, count / width]);
        from += width;
    }
    points
}
