//! Records as CSV (RFC 4180), safe to open in a spreadsheet.

use super::filter::Fields;
use super::row::visible;

/// The columns. New ones come last.
pub const COLUMNS: [&str; 20] = [
    "time",
    "at",
    "id",
    "decision",
    "verdict",
    "pool",
    "peer",
    "shown",
    "name",
    "identity",
    "instance",
    "code",
    "reason",
    "grant",
    "config_sha256",
    "spec_version",
    "earned_by",
    "use_number",
    "chain",
    "number",
];

pub fn head() -> String {
    line(&COLUMNS.map(str::to_owned))
}

pub fn of(fields: &Fields) -> String {
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    line(&[
        fields.time.clone(),
        fields.at.to_string(),
        fields.id.clone(),
        fields.decision.clone(),
        fields.verdict.clone(),
        fields.pool.clone(),
        fields.peer.clone(),
        fields.shown.clone(),
        optional(&fields.name),
        optional(&fields.identity),
        optional(&fields.instance),
        optional(&fields.code),
        fields.reason.clone(),
        optional(&fields.grant),
        optional(&fields.config_sha256),
        optional(&fields.spec_version),
        optional(&fields.earned_by),
        number(fields.use_number),
        fields.chain.as_ref().map(|place| place.id.clone()).unwrap_or_default(),
        number(fields.chain.as_ref().map(|place| place.number)),
    ])
}

fn line(cells: &[String; 20]) -> String {
    let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
    format!("{}\r\n", cells.join(","))
}

/// One cell: without a line's end, and nothing that a spreadsheet takes for a formula.
fn cell(text: &str) -> String {
    let text = visible(text);
    // Spreadsheets pass over what cannot be seen, and take these signs in full width too.
    let formula = text
        .trim_start()
        .starts_with(['=', '+', '-', '@', '|', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}']);
    let text = if formula { format!("'{text}") } else { text };
    if text.contains(['"', ',', ';', '\'']) || text.starts_with(' ') || text.ends_with(' ') {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_never_a_formula_nor_more_than_one() {
        for (text, expected) in [
            ("worker-7", "worker-7"),
            ("a,b", "\"a,b\""),
            ("say \"a\"", "\"say \"\"a\"\"\""),
            ("a\r\nb", "a\\u{d}\\u{a}b"),
            ("=1+1", "\"'=1+1\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("  =1", "\"'  =1\""),
            ("\u{ff1d}1", "\"'\u{ff1d}1\""),
            ("\t=1", "\\u{9}=1"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            // Whatever cannot be seen before it is seen.
            ("\u{ad}=1", "\\u{ad}=1"),
            ("\u{3164}=1", "\\u{3164}=1"),
            ("\u{fe0f}=1", "\\u{fe0f}=1"),
            ("\u{2003}=1", "\"'\u{2003}=1\""),
        ] {
            assert_eq!(cell(text), expected, "{text:?}");
        }
    }
}
