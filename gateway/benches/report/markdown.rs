//! Report of all benchmarks as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::results::{Bound, Figure, Results};

/// Returns the report: the machine, the results of each benchmark, and the pictures (title, file).
pub fn report(machine: &[(String, String)], all: &BTreeMap<String, Results>, pictures: &[(String, String)]) -> String {
    let mut out =
        "# Benchmarks\n\nMedian, least and most of the runs. What each figure means: docs/explanation/performance.md.\n\n".to_owned();
    out.push_str("## Machine\n\n| | |\n| --- | --- |\n");
    for (what, value) in machine {
        let _ = writeln!(out, "| {} | {} |", cell(what), cell(value));
    }
    let figures = || {
        all.iter()
            .flat_map(|(bench, results)| results.figures.iter().map(move |figure| (bench, figure)))
    };
    for (title, words) in [("Goal", ["reached", "**not reached**"]), ("Limit", ["kept", "**not kept**"])] {
        let bound = |figure: &Figure| if title == "Goal" { figure.goal } else { figure.limit };
        let rows = figures().filter_map(|(bench, figure)| Some((bench, figure, bound(figure)?)));
        let _ = writeln!(out, "\n## {title}s\n");
        let mut table = String::new();
        for (bench, figure, bound) in rows {
            let word = words[usize::from(!bound.holds(figure))];
            let _ = writeln!(
                table,
                "| {} | {} | {} | {} | {word} |",
                cell(bench),
                cell(&figure.name),
                with_unit(figure.median, &figure.unit),
                bound_text(bound, &figure.unit)
            );
        }
        if table.is_empty() {
            out.push_str("Nothing was measured that has one.\n");
        } else {
            let _ = write!(
                out,
                "| Benchmark | Figure | Median | {title} | |\n| --- | --- | --- | --- | --- |\n{table}"
            );
        }
    }
    for (title, file) in pictures {
        let _ = writeln!(out, "\n![{}]({file})", cell(title));
    }
    for (bench, results) in all {
        let _ = write!(
            out,
            "\n## {}\n\n| | Median | Least | Most | Runs |\n| --- | ---: | ---: | ---: | ---: |\n",
            cell(bench)
        );
        for figure in &results.figures {
            let [median, least, most] = [figure.median, figure.least, figure.most].map(|value| with_unit(value, &figure.unit));
            let _ = writeln!(
                out,
                "| {} | {median} | {least} | {most} | {} |",
                cell(&figure.name),
                figure.runs.len()
            );
        }
    }
    out
}

/// Escapes a text for a cell of a table.
pub fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => out.extend(['\\', letter]),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

fn bound_text(bound: Bound, unit: &str) -> String {
    match bound {
        Bound::AtMost(most) => format!("at most {}", with_unit(most, unit)),
        Bound::AtLeast(least) => format!("at least {}", with_unit(least, unit)),
        Bound::Never => "never".to_owned(),
    }
}

/// Formats a number with its unit, with three digits at least if it has as many.
fn with_unit(value: f64, unit: &str) -> String {
    let number = if value.is_nan() {
        "–".to_owned()
    } else if value.fract() == 0.0 || value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match unit {
        "" => number,
        "x" => format!("{number}x"),
        unit => format!("{number} {unit}"),
    }
}
