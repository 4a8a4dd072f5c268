//! Pictures of figures as SVG: lines over axes, and bars.

use std::fmt::Write as _;

use super::results::Plot;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 440.0;
/// Margins around the axes: left, top, right, bottom.
const ROOM: [f64; 4] = [70.0, 40.0, 30.0, 80.0];
/// Width of a line's name in the legend below the axes.
const LEGEND: f64 = 150.0;
const COLOURS: [&str; 6] = ["#1f6fb4", "#d9730d", "#2e8b57", "#b03a48", "#7a5ca8", "#6b6b6b"];
/// Height of a bar with its space, and width of its name.
const BAR: f64 = 26.0;
const NAMES: f64 = 560.0;

/// Bar of a chart, with its limit, if there is one.
pub struct Bar {
    pub name: String,
    pub value: f64,
    pub limit: Option<f64>,
}

/// Escapes a text for XML. Control characters are replaced.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// Draws lines over axes that begin at zero. Points that are not numbers are left out.
pub fn lines(plot: &Plot) -> String {
    let points = || plot.lines.iter().flat_map(|(_, points)| points).filter(|point| is_drawn(point));
    let [left, top, right, bottom] = ROOM;
    let mut out = begin(&plot.title, HEIGHT);
    if points().next().is_none() {
        text(&mut out, [WIDTH / 2.0, HEIGHT / 2.0], "middle", "nothing was measured");
        return end(out);
    }
    let most = |place: usize| points().map(|point| point[place]).fold(0.0, f64::max);
    let (across, up) = (Axis::to(most(0)), Axis::to(most(1)));
    let x = |value: f64| left + (WIDTH - left - right) * value / across.end;
    let y = |value: f64| HEIGHT - bottom - (HEIGHT - top - bottom) * value / up.end;
    for value in up.marks() {
        rule(&mut out, [left, y(value)], [WIDTH - right, y(value)]);
        text(&mut out, [left - 6.0, y(value) + 4.0], "end", &number(value));
    }
    for value in across.marks() {
        rule(&mut out, [x(value), y(0.0)], [x(value), y(0.0) + 5.0]);
        text(&mut out, [x(value), y(0.0) + 19.0], "middle", &number(value));
    }
    text(&mut out, [WIDTH / 2.0, HEIGHT - bottom + 38.0], "middle", &plot.across);
    text(&mut out, [left - 50.0, top - 8.0], "start", &plot.up);
    for (number, (name, points)) in plot.lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> = points
            .iter()
            .filter(|point| is_drawn(point))
            .map(|[across, up]| format!("{:.1},{:.1}", x(*across), y(*up)))
            .collect();
        let _ = writeln!(
            out,
            r#"<polyline fill="none" stroke="{colour}" stroke-width="2" points="{}"/>"#,
            points.join(" ")
        );
        legend(&mut out, number, colour, name);
    }
    end(out)
}

/// Draws a bar for each figure, and a mark at its limit.
pub fn bars(title: &str, unit: &str, bars: &[Bar]) -> String {
    let drawn: Vec<&Bar> = bars.iter().filter(|bar| bar.value.is_finite() && bar.value >= 0.0).collect();
    let [_, top, right, bottom] = ROOM;
    let rows: f64 = drawn.iter().map(|_| BAR).sum();
    let height = top + rows.max(BAR) + bottom;
    let mut out = begin(title, height);
    if drawn.is_empty() {
        text(&mut out, [WIDTH / 2.0, height / 2.0], "middle", "nothing was measured");
        return end(out);
    }
    let axis = Axis::to(
        drawn
            .iter()
            .flat_map(|bar| [bar.value, bar.limit.unwrap_or(0.0)])
            .fold(0.0, f64::max),
    );
    let x = |value: f64| NAMES + (WIDTH - NAMES - right) * value / axis.end;
    for value in axis.marks() {
        rule(&mut out, [x(value), top], [x(value), height - bottom]);
        text(&mut out, [x(value), height - bottom + 18.0], "middle", &number(value));
    }
    text(&mut out, [x(axis.end / 2.0), height - bottom + 38.0], "middle", unit);
    let mut y = top;
    for bar in drawn {
        let over = bar.limit.is_some_and(|limit| bar.value > limit);
        let colour = COLOURS[if over { 3 } else { 0 }];
        text(&mut out, [NAMES - 8.0, y + 17.0], "end", &bar.name);
        let (width, height) = (x(bar.value) - NAMES, BAR - 8.0);
        let _ = writeln!(
            out,
            r#"<rect x="{NAMES:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#,
            y + 4.0
        );
        if let Some(limit) = bar.limit {
            let at = x(limit);
            let _ = writeln!(
                out,
                r##"<line x1="{at:.1}" y1="{:.1}" x2="{at:.1}" y2="{:.1}" stroke="#000" stroke-width="2"/>"##,
                y + 1.0,
                y + BAR - 1.0
            );
        }
        y += BAR;
    }
    end(out)
}

fn is_drawn(point: &[f64; 2]) -> bool {
    point.iter().all(|value| value.is_finite() && *value >= 0.0)
}

/// Axis from zero, with marks at round numbers.
struct Axis {
    end: f64,
    step: f64,
}

impl Axis {
    /// Creates an axis that reaches this value.
    fn to(most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let power = 10_f64.powf((most / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let step = step.into_iter().find(|step| most / step <= 6.0).unwrap_or(power * 10.0);
        Self {
            end: (most / step).ceil() * step,
            step,
        }
    }

    fn marks(&self) -> impl Iterator<Item = f64> + '_ {
        (0..=6_u8)
            .map(|count| f64::from(count) * self.step)
            .take_while(|value| *value <= self.end * 1.001)
    }
}

/// Formats a number briefly, but exactly enough for a mark.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn begin(title: &str, height: f64) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let _ = writeln!(
        out,
        r#"<text x="{}" y="18" text-anchor="middle" font-size="15">{}</text>"#,
        WIDTH / 2.0,
        escaped(title)
    );
    out
}

fn end(mut out: String) -> String {
    out.push_str("</svg>\n");
    out
}

fn text(out: &mut String, [x, y]: [f64; 2], anchor: &str, words: &str) {
    let _ = writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
        escaped(words)
    );
}

fn rule(out: &mut String, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
    let _ = writeln!(
        out,
        r##"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="#ccc"/>"##
    );
}

fn legend(out: &mut String, number: usize, colour: &str, name: &str) {
    let x = (0..number).fold(ROOM[0], |x, _| x + LEGEND);
    let y = HEIGHT - 12.0;
    let _ = writeln!(
        out,
        r#"<rect x="{x:.1}" y="{:.1}" width="12" height="12" fill="{colour}"/>"#,
        y - 10.0
    );
    text(out, [x + 18.0, y], "start", name);
}
