//! Results of a benchmark for the report of all: `target/bench/<name>.json`.

#![allow(dead_code, reason = "each benchmark uses its part")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Deserializer, Serialize};

/// Results of a single benchmark.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Results {
    pub figures: Vec<Figure>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
}

/// Measured figure over all runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub name: String,
    pub unit: String,
    #[serde(deserialize_with = "number")]
    pub median: f64,
    #[serde(deserialize_with = "number")]
    pub least: f64,
    #[serde(deserialize_with = "number")]
    pub most: f64,
    #[serde(deserialize_with = "numbers")]
    pub runs: Vec<f64>,
    /// Limit, whose violation fails the benchmark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bound>,
    /// Goal for the figure, without effect on the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<Bound>,
}

/// Bound of a figure: for its median, and with `Never` for each of its runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    Never,
}

/// Plot of lines over one axis.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plot {
    /// Name of its file, without `.svg`.
    pub file: String,
    pub title: String,
    /// Labels of the axes, with the unit.
    pub across: String,
    pub up: String,
    pub lines: Vec<(String, Vec<[f64; 2]>)>,
}

impl Figure {
    /// Creates a figure from at least one run; whole numbers and shares have no unit.
    pub fn from_runs(name: impl Into<String>, unit: &str, runs: &[f64]) -> Self {
        let mut ascending = runs.to_vec();
        ascending.sort_by(f64::total_cmp);
        Self {
            name: name.into(),
            unit: unit.to_owned(),
            median: median(&ascending),
            least: ascending.first().copied().unwrap_or(f64::NAN),
            most: ascending.last().copied().unwrap_or(f64::NAN),
            runs: runs.to_vec(),
            limit: None,
            goal: None,
        }
    }

    pub fn limit(mut self, limit: Bound) -> Self {
        self.limit = Some(limit);
        self
    }

    pub fn goal(mut self, goal: Bound) -> Self {
        self.goal = Some(goal);
        self
    }

    /// Returns whether the figure is within its limit.
    pub fn is_within_limit(&self) -> bool {
        self.limit.is_none_or(|limit| limit.holds(self))
    }
}

impl Bound {
    /// Returns whether the bound holds; it does not for NaN.
    pub fn holds(self, figure: &Figure) -> bool {
        match self {
            Self::AtMost(most) => figure.median <= most,
            Self::AtLeast(least) => figure.median >= least,
            Self::Never => figure.runs.iter().all(|run| *run == 0.0),
        }
    }
}

/// Returns the median of ascending values; of an even number, the mean of the two in the middle.
pub fn median(ascending: &[f64]) -> f64 {
    let middle = ascending.len() / 2;
    match ascending.get(middle) {
        None => f64::NAN,
        Some(upper) if ascending.len().is_multiple_of(2) => f64::midpoint(ascending[middle - 1], *upper),
        Some(value) => *value,
    }
}

/// Deserializes a number; JSON has `null` for NaN.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let numbers: Vec<Option<f64>> = Vec::deserialize(from)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
}

/// Returns the folder of the benchmarks' lasting files.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench")
}

/// Prints a line for each figure.
pub fn print(figures: &[Figure]) {
    println!("{:<64} {:>12} {:>12} {:>12}", "", "median", "least", "most");
    for Figure {
        name,
        unit,
        median,
        least,
        most,
        ..
    } in figures
    {
        println!(
            "{:<64} {median:>12.3} {least:>12.3} {most:>12.3}",
            format!("{name}, {unit}").trim_end_matches(", ")
        );
    }
}

/// Returns whether these figures are within their limits; prints those that are not.
pub fn are_within_limits<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> bool {
    let beyond: Vec<&Figure> = figures.into_iter().filter(|figure| !figure.is_within_limit()).collect();
    for figure in &beyond {
        let Figure {
            name, unit, median, most, ..
        } = figure;
        let blank = if unit.is_empty() { "" } else { " " };
        let limit = figure.limit.unwrap_or(Bound::Never);
        println!("not kept: {name}: {median:.3}{blank}{unit}, {most:.3} at most; the limit is {limit:?}");
    }
    beyond.is_empty()
}

/// Adds figures to this benchmark's results, and writes them.
pub fn report(figures: impl IntoIterator<Item = Figure>) {
    add(|told| told.figures.extend(figures));
}

/// Adds plots to this benchmark's results.
pub fn show(plots: impl IntoIterator<Item = Plot>) {
    add(|told| told.plots.extend(plots));
}

fn add(what: impl FnOnce(&mut Results)) {
    static TOLD: Mutex<Results> = Mutex::new(Results {
        figures: Vec::new(),
        plots: Vec::new(),
    });
    let mut told = TOLD.lock().unwrap();
    what(&mut told);
    fs::create_dir_all(folder()).unwrap();
    let file = folder().join(concat!(env!("CARGO_CRATE_NAME"), ".json"));
    fs::write(file, serde_json::to_vec_pretty(&*told).unwrap()).unwrap();
}
