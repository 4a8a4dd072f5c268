//! HTML text: everything that comes from outside is escaped.

use std::fmt::{self, Display, Write as _};

use crate::commands::visible;

/// Text that is safe as content of an element and as value of a quoted attribute. Control characters, and those that hide or reverse text,
/// are written out.
pub(super) struct Escaped<'t>(pub(super) &'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in visible(self.0).chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// A table. On a narrow screen each row becomes a block, in which each cell has its column's name.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut text = "<table><thead><tr>".to_owned();
    for column in head {
        put(&mut text, format_args!("<th scope=\"col\">{}</th>", Escaped(column)));
    }
    text.push_str("</tr></thead><tbody>\n");
    for row in rows {
        text.push_str("<tr>");
        for (column, cell) in head.iter().zip(row) {
            put(
                &mut text,
                format_args!("<td data-column=\"{}\">{}</td>", Escaped(column), Escaped(cell)),
            );
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody></table>\n");
    text
}

/// Adds formatted text.
pub(super) fn put(text: &mut String, more: fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        let hostile = "</td><script>alert('1')</script>&\"\u{1b}[2J\u{202e}";
        let rows = [[hostile.to_owned()]];
        let text = table([hostile], &rows);
        assert!(
            !text.contains("<script") && !text.contains("\u{1b}") && !text.contains('\u{202e}'),
            "{text}"
        );
        assert_eq!(
            text.matches("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;").count(),
            3,
            "{text}"
        );
    }
}
