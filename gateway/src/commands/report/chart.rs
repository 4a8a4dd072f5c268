//! Pictures as SVG, made without script.

use attest_system::clock::rfc3339;

use super::history::{DAYS, DayCount, DecisionHistory, Mark, SECONDS_OF_A_DAY};
use super::html::{Escaped, put};

/// Width of a day, and height of the tallest bar, in units of the picture.
const DAY_WIDTH: u64 = 20;
const BAR_HEIGHT: u64 = 100;
/// Space below the bars, for dates and marks.
const FOOT_HEIGHT: u64 = 30;
/// Number of days between two dates.
const DATE_EACH: u64 = 5;
/// Characters of a date without its time.
const DATE_CHARACTERS: usize = 10;
/// Time that the time line shows, in seconds.
const AHEAD_SECONDS: u64 = 400 * SECONDS_OF_A_DAY;
/// Width of a bar of the time line, in units of the picture.
const LINE_WIDTH: u64 = 100;

/// Returns the bars of a pool, one for each day.
pub(super) fn days(history: &DecisionHistory, pool: &str) -> String {
    let empty = std::collections::BTreeMap::new();
    let counts = history.pools.get(pool).unwrap_or(&empty);
    let most = counts.values().map(|count| count.total()).max().unwrap_or(0).max(1);
    let (width, height) = (DAYS * DAY_WIDTH, BAR_HEIGHT + FOOT_HEIGHT);
    let mut text = String::new();
    put(
        &mut text,
        format_args!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\"><title>Decisions of pool {} in the last {DAYS} days; at most {most} in a day</title>\n",
            Escaped(pool)
        ),
    );
    for day in 0..DAYS {
        let (x, count) = (day * DAY_WIDTH, counts.get(&day).copied().unwrap_or_default());
        let date = date(history.begins.saturating_add(day * SECONDS_OF_A_DAY));
        put(&mut text, format_args!("<g><title>{date}: {}</title>", described(count)));
        let mut top = BAR_HEIGHT;
        for (class, number) in [
            ("trusted", count.trusted),
            ("pre-approved", count.pre_approved),
            ("refused", count.refused),
        ] {
            if number > 0 {
                // A single decision among many is visible.
                let height = (number.saturating_mul(BAR_HEIGHT) / most).max(2).min(top);
                top = top.saturating_sub(height);
                put(
                    &mut text,
                    format_args!(
                        "<rect class=\"{class}\" x=\"{}\" y=\"{top}\" width=\"{}\" height=\"{height}\"/>",
                        x + 2,
                        DAY_WIDTH - 4
                    ),
                );
            }
        }
        text.push_str("</g>");
        if day % DATE_EACH == 0 {
            let short = date.get(5..).unwrap_or_default();
            put(&mut text, format_args!("<text x=\"{x}\" y=\"{height}\">{short}</text>"));
        }
        for (place, mark) in Mark::ALL.into_iter().enumerate() {
            if let Some(times) = history.marks.get(&(day, mark)) {
                put(
                    &mut text,
                    format_args!(
                        "<g class=\"mark{place}\"><title>{date}: {} {times} times</title><circle cx=\"{}\" cy=\"{}\" r=\"3\"/></g>",
                        mark.label(),
                        x + 5 + u64::try_from(place).unwrap_or(0) * 4,
                        BAR_HEIGHT + 8
                    ),
                );
            }
        }
        text.push('\n');
    }
    put(
        &mut text,
        format_args!("<line x1=\"0\" y1=\"{BAR_HEIGHT}\" x2=\"{width}\" y2=\"{BAR_HEIGHT}\"/></svg>\n"),
    );
    text
}

/// Returns the meaning of the colours.
pub(super) fn legend() -> String {
    let mut text = "<p class=\"legend\">".to_owned();
    for (class, words) in [
        ("trusted", "evidence trusted"),
        ("pre-approved", "served pre-approved"),
        ("refused", "refused"),
    ] {
        put(
            &mut text,
            format_args!("<span><svg viewBox=\"0 0 8 8\"><rect class=\"{class}\" width=\"8\" height=\"8\"/></svg> {words}</span> "),
        );
    }
    for (place, mark) in Mark::ALL.into_iter().enumerate() {
        put(
            &mut text,
            format_args!(
                "<span class=\"mark{place}\"><svg viewBox=\"0 0 8 8\"><circle cx=\"4\" cy=\"4\" r=\"3\"/></svg></span> <span>{}</span> ",
                mark.label()
            ),
        );
    }
    text.push_str("</p>\n");
    text
}

fn described(count: DayCount) -> String {
    let DayCount {
        trusted,
        refused,
        full,
        pre_approved,
    } = count;
    format!("{trusted} trusted, {refused} refused, {full} served full, {pre_approved} served pre-approved")
}

/// Returns the ends of certificates and tokens, each with a bar that is as long as its time left.
pub(super) fn time_line(ends: &[(String, u64)], now: u64) -> String {
    let mut text = "<table class=\"ends\"><thead><tr><th scope=\"col\">NAME</th><th scope=\"col\">UNTIL</th><th scope=\"col\">WITHIN 400 DAYS</th></tr></thead><tbody>\n".to_owned();
    for (name, end) in ends {
        let left = end.saturating_sub(now);
        let width = (left.min(AHEAD_SECONDS).saturating_mul(LINE_WIDTH) / AHEAD_SECONDS).max(1);
        let class = match left / SECONDS_OF_A_DAY {
            0..14 => "refused",
            14..60 => "pre-approved",
            _ => "trusted",
        };
        put(
            &mut text,
            format_args!(
                "<tr><td data-column=\"NAME\">{}</td><td data-column=\"UNTIL\">{}</td><td><svg viewBox=\"0 0 {LINE_WIDTH} 4\" preserveAspectRatio=\"none\"><rect class=\"{class}\" width=\"{width}\" height=\"4\"/></svg></td></tr>\n",
                Escaped(name),
                rfc3339(*end)
            ),
        );
    }
    text.push_str("</tbody></table>\n");
    text
}

/// Returns the day of a time.
fn date(at: u64) -> String {
    rfc3339(at).chars().take(DATE_CHARACTERS).collect()
}
