//! Display of external text.

/// Returns an external text for display. It escapes characters that a terminal interprets, or that reverse the direction of the surrounding
/// text.
#[must_use]
pub fn visible(text: &str) -> String {
    escaped(text, |c| c.escape_unicode().collect())
}

/// Returns such a text in JSON, without a change of its meaning.
#[must_use]
pub fn visible_json(text: &str) -> String {
    let mut units = [0; 2];
    escaped(text, |c| {
        c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    })
}

fn escaped(text: &str, mut escape: impl FnMut(char) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_command(c) {
            out.push_str(&escape(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns whether a terminal interprets the character, or it changes the text's appearance. These are control characters of C0 and C1;
/// Unicode's general categories Cf, Zl and Zp; its default ignorable characters; and the blank of braille.
#[must_use]
pub fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns an external text without control characters.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Formats rows in columns, as wide as their widest cell. Cells may be external text.
#[must_use]
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| visible(cell))).collect();
    let mut widths = head.map(|cell| cell.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[&str]| {
        let cells: Vec<String> = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    let mut out = line(&head);
    for row in &rows {
        out.push_str(&line(&row.each_ref().map(String::as_str)));
    }
    out
}
