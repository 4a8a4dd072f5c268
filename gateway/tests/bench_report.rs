//! The report that `make bench` writes.

#[path = "../benches/report/machine.rs"]
mod machine;
#[path = "../benches/report/markdown.rs"]
mod markdown;
#[path = "../benches/results/mod.rs"]
mod results;
#[path = "../benches/report/svg.rs"]
mod svg;

use std::collections::BTreeMap;
use std::path::Path;

use results::{Bound, Figure, Plot, Results, median};
use svg::Bar;

const HOSTILE: &str = "<a & \"b\" | 'c'>\n`d` *e*";

fn plot(points: Vec<[f64; 2]>) -> Plot {
    Plot {
        file: "plot".to_owned(),
        title: HOSTILE.to_owned(),
        across: "seconds".to_owned(),
        up: "nodes".to_owned(),
        lines: vec![(HOSTILE.to_owned(), points)],
    }
}

/// Verifies that the picture is XML whose elements are closed, and in which foreign text is not markup.
fn is_svg(picture: &str) {
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    assert!(
        !picture.contains("<a &") && !picture.contains("NaN") && !picture.contains("inf"),
        "{picture}"
    );
    for element in ["svg", "text"] {
        let (begun, ended) = (format!("<{element} "), format!("</{element}>"));
        assert_eq!(
            picture.matches(&begun).count(),
            picture.matches(&ended).count(),
            "{element} in {picture}"
        );
    }
}

#[test]
fn computes_the_median() {
    assert!(median(&[]).is_nan());
    assert_eq!(median(&[3.0]), 3.0);
    assert_eq!(median(&[1.0, 2.0]), 1.5);
    assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
    let figure = Figure::from_runs("a", "s", &[9.0, 1.0, 2.0]);
    assert_eq!((figure.median, figure.least, figure.most), (2.0, 1.0, 9.0));
    assert_eq!(figure.runs, [9.0, 1.0, 2.0]);
}

#[test]
fn judges_whether_a_figure_meets_its_limit() {
    let kept = |limit, value| Figure::from_runs("a", "s", &[value]).limit(limit).is_within_limit();
    assert!(kept(Bound::AtMost(2.0), 2.0) && !kept(Bound::AtMost(2.0), 2.1));
    assert!(kept(Bound::AtLeast(2.0), 2.0) && !kept(Bound::AtLeast(2.0), 1.9));
    assert!(!kept(Bound::AtMost(2.0), f64::NAN), "what was not measured keeps nothing");
    let never = |runs: &[f64]| Figure::from_runs("a", "", runs).limit(Bound::Never).is_within_limit();
    assert!(never(&[0.0, 0.0, 0.0]) && !never(&[0.0, 1.0, 0.0]), "one run is enough");
    assert!(Figure::from_runs("a", "s", &[]).is_within_limit(), "there is no limit");
}

#[test]
fn svg_output_is_well_formed_for_any_input() {
    for points in [
        vec![],
        vec![[f64::NAN, 1.0]],
        vec![[0.0, 0.0]],
        vec![[0.0, 0.0], [3.0, 1e9], [f64::INFINITY, 1.0]],
    ] {
        let drawn = points.iter().any(|point| point.iter().all(|value| value.is_finite()));
        let picture = svg::lines(&plot(points));
        is_svg(&picture);
        assert_eq!(picture.contains("nothing was measured"), !drawn, "{picture}");
        assert_eq!(picture.contains("<polyline"), drawn, "{picture}");
    }
    is_svg(&svg::bars(HOSTILE, "x", &[]));
    let bar = |value, limit| Bar {
        name: HOSTILE.to_owned(),
        value,
        limit,
    };
    let picture = svg::bars("ratios", "x", &[bar(1.5, Some(2.0)), bar(f64::NAN, None), bar(3.0, Some(2.0))]);
    is_svg(&picture);
    // The page, two bars; and a mark at each limit.
    assert_eq!(
        (picture.matches("<rect").count(), picture.matches("stroke=\"#000\"").count()),
        (3, 2),
        "{picture}"
    );
    assert_eq!(svg::escaped("<&>\"'\u{7}é"), "&lt;&amp;&gt;&quot;&apos;\u{fffd}é");
}

#[test]
fn report_shows_reached_goals_and_kept_limits() {
    let figures = vec![
        Figure::from_runs("boots", "s", &[3.0, 1.0, 2.0])
            .goal(Bound::AtMost(2.0))
            .limit(Bound::AtMost(1.5)),
        Figure::from_runs(HOSTILE, "x", &[1.0]).goal(Bound::AtLeast(4.0)),
        Figure::from_runs("nothing", "s", &[f64::NAN]),
    ];
    let plots = vec![plot(Vec::new())];
    let all = BTreeMap::from([("storm".to_owned(), Results { figures, plots })]);
    let pictures = [("Boots".to_owned(), "boots.svg".to_owned())];
    let text = markdown::report(&[("Processor".to_owned(), "one | two".to_owned())], &all, &pictures);
    for line in [
        "| Processor | one \\| two |",
        "| storm | boots | 2 s | at most 2 s | reached |",
        "| storm | boots | 2 s | at most 1.5 s | **not kept** |",
        "| storm | &lt;a &amp; \"b\" \\| 'c'> \\`d\\` \\*e\\* | 1x | at least 4x | **not reached** |",
        "| boots | 2 s | 1 s | 3 s | 3 |",
        "| nothing | – s | – s | – s | 1 |",
        "![Boots](boots.svg)",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is missing in {text}");
    }
    // It can be read again.
    let read: BTreeMap<String, Results> = serde_json::from_value(serde_json::to_value(&all).unwrap()).unwrap();
    assert_eq!(read["storm"].figures[..2], all["storm"].figures[..2]);
    assert!(read["storm"].figures[2].median.is_nan());
    let empty = markdown::report(&[], &BTreeMap::new(), &[]);
    assert_eq!(empty.matches("Nothing was measured that has one.").count(), 2, "{empty}");
}

#[test]
fn describes_the_benchmark_machine() {
    assert_eq!(
        machine::field("processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n", "model name"),
        "A: B"
    );
    assert_eq!(machine::field("", "model name"), "unknown");
    let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/x xfs rw 0 0\n/dev/c /tmp/x btrfs rw 0 0\nbad\n";
    let found = |folder: &str| machine::filesystem(mounts, Path::new(folder));
    assert_eq!(found("/tmp/x/state"), "btrfs on /dev/c, /tmp/x/state");
    assert_eq!(found("/tmp/xy"), "tmpfs on tmpfs, /tmp/xy");
    assert_eq!(found("/var"), "ext4 on /dev/a, /var");
    assert_eq!(machine::filesystem("", Path::new("/")), "unknown");
    let all = machine::described();
    assert!(all.iter().all(|(_, value)| !value.is_empty()), "{all:?}");
}
