//! Report of all benchmarks, from their results in `target/bench`: `report.md`, `report.json`, and pictures. `make bench` runs it last. It
//! fails if a benchmark's limit is exceeded.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may panic")]

mod machine;
mod markdown;
#[path = "../results/mod.rs"]
mod results;
mod svg;

use std::collections::BTreeMap;
use std::fs;

use results::{Bound, Results};
use serde_json::json;
use svg::Bar;

const REPORT: &str = "report";

fn main() {
    // `cargo test --benches` only wants to know whether it works.
    if !std::env::args().any(|argument| argument == "--bench") {
        return println!("no report: this was no measuring run");
    }
    let folder = results::folder();
    fs::create_dir_all(&folder).unwrap();
    let mut all: BTreeMap<String, Results> = BTreeMap::new();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == "json") && name != REPORT {
            all.insert(name, serde_json::from_slice(&fs::read(&path).unwrap()).unwrap());
        }
    }
    let mut pictures = Vec::new();
    let mut draw = |title: &str, file: String, picture: String| {
        fs::write(folder.join(&file), picture).unwrap();
        pictures.push((title.to_owned(), file));
    };
    for plot in all.values().flat_map(|results| &results.plots) {
        draw(&plot.title, format!("{}.svg", plot.file), svg::lines(plot));
    }
    let ratios: Vec<Bar> = all.values().flat_map(|results| &results.figures).filter_map(bar).collect();
    let title = "What it costs, as a ratio to its floor";
    draw(
        title,
        "ratios.svg".to_owned(),
        svg::bars(title, "times the floor; the mark is the limit", &ratios),
    );

    let mut machine = machine::described();
    // As make says: of these there may be less here, or nothing.
    let failed = std::env::var("BENCHES_FAILED").unwrap_or_default();
    machine.extend((!failed.is_empty()).then(|| ("Benchmarks that failed".to_owned(), failed.trim().to_owned())));
    let text = markdown::report(&machine, &all, &pictures);
    fs::write(folder.join("report.md"), text).unwrap();
    let machine: BTreeMap<_, _> = machine.into_iter().collect();
    let whole = json!({"machine": machine, "benchmarks": all});
    fs::write(folder.join("report.json"), serde_json::to_vec_pretty(&whole).unwrap()).unwrap();
    println!("{}", folder.join("report.md").display());
    if !results::are_within_limits(all.values().flat_map(|results| &results.figures)) {
        std::process::exit(1);
    }
}

/// Returns the bar of a figure that is a ratio.
fn bar(figure: &results::Figure) -> Option<Bar> {
    let limit = match figure.limit {
        Some(Bound::AtMost(most)) => Some(most),
        _ => None,
    };
    (figure.unit == "x").then(|| Bar {
        name: figure.name.clone(),
        value: figure.median,
        limit,
    })
}
