//! Comparison of two boots as HTML: one self-contained file without references, scripts or forms.

use std::fmt::Write;

use super::split::Split;
use super::{BootDifference, DifferenceRow};
use crate::tpm::measured_boot::event::BootEvent;

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
<title>Two boots</title><style>\
body{font-family:sans-serif}table{border-collapse:collapse;width:100%;table-layout:fixed}\
td,th{border:1px solid #bbb;padding:.2em .4em;vertical-align:top;text-align:left;overflow-wrap:anywhere}\
.changed,.first,.second{background:#fff3cd}.same{color:#555}code{font-size:85%}\
</style></head><body>\n";

impl BootDifference<'_> {
    /// Returns a whole document with both boots in full. `first` and `second` are the titles of the columns.
    #[must_use]
    pub fn html(&self, first: &str, second: &str) -> String {
        let mut out = HEAD.to_owned();
        for pcr in &self.pcrs {
            let state = if pcr.is_empty() { "the same" } else { "differs" };
            let remark = pcr.remark().map(|remark| format!(": {remark}")).unwrap_or_default();
            put(&mut out, format_args!("<h2>PCR {} — {state}{remark}</h2>\n", pcr.pcr));
            put(
                &mut out,
                format_args!("<table><tr><th>{}</th><th>{}</th></tr>\n", escaped(first), escaped(second)),
            );
            for row in &pcr.rows {
                let class = match row {
                    DifferenceRow::Same(..) => "same",
                    DifferenceRow::Changed(..) => "changed",
                    DifferenceRow::First(_) => "first",
                    DifferenceRow::Second(_) => "second",
                };
                let (one, other) = cells(row);
                put(
                    &mut out,
                    format_args!("<tr class=\"{class}\"><td>{one}</td><td>{other}</td></tr>\n"),
                );
            }
            out.push_str("</table>\n");
        }
        if let (first, second) = self.left_out
            && first + second > 0
        {
            put(
                &mut out,
                format_args!("<p>Not read, over the limit: {first} events of the first, {second} of the second.</p>\n"),
            );
        }
        out.push_str("</body></html>\n");
        out
    }
}

/// Both cells of a row, with all of the texts; where both have an event, what differs is marked.
fn cells(row: &DifferenceRow<'_>) -> (String, String) {
    let cell = |event: &BootEvent, text: &str| format!("{} {text}<br><code>{}</code>", event.number, event.digest);
    let whole = |event: &BootEvent| cell(event, &escaped(&event.whole_summary()));
    match row {
        DifferenceRow::Same(one, other) => (whole(one), whole(other)),
        DifferenceRow::First(one) => (whole(one), String::new()),
        DifferenceRow::Second(other) => (String::new(), whole(other)),
        DifferenceRow::Changed(one, other) => {
            let texts = (one.whole_summary(), other.whole_summary());
            let split = Split::new(&texts.0, &texts.1);
            let marked = |part: &str| {
                let part = match part {
                    "" => String::new(),
                    part => format!("<mark>{}</mark>", escaped(part)),
                };
                format!("{}{part}{}", escaped(split.before), escaped(split.behind))
            };
            (cell(one, &marked(split.one)), cell(other, &marked(split.other)))
        }
    }
}

/// Writing to a String does not fail.
fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// A text as the content of an element, or as an attribute's value.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            char if char.is_control() => out.push('\u{fffd}'),
            char => out.push(char),
        }
    }
    out
}
