//! The console's lines, without characters that a terminal interprets.

use std::fmt::{self, Debug};
use std::io::{self, Write};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use super::{visible, visible_json};

/// Prefix of fields that the message has in words.
const IN_THE_MESSAGE: &str = "attestation.";

/// Writes the message, then `key=value`. No control character reaches the terminal, and an event is one line.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConsoleFields;

struct TextVisitor<'w> {
    writer: Writer<'w>,
    is_first: bool,
    result: fmt::Result,
}

impl<'w> FormatFields<'w> for ConsoleFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = TextVisitor {
            writer,
            is_first: true,
            result: Ok(()),
        };
        fields.record(&mut visitor);
        visitor.result
    }
}

impl Visit for TextVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name().starts_with(IN_THE_MESSAGE) || self.result.is_err() {
            return;
        }
        let separator = if self.is_first { "" } else { " " };
        let value = visible(&format!("{value:?}"));
        self.is_first = false;
        self.result = match field.name() {
            "message" => write!(self.writer, "{separator}{value}"),
            name => write!(self.writer, "{separator}{name}={value}"),
        };
    }
}

/// Console of lines in JSON. Characters that a terminal interprets are escaped as JSON escapes them, so programs read the same.
#[derive(Debug)]
pub(super) struct JsonConsole<W>(pub(super) W);

impl<W: Write> Write for JsonConsole<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        // An event is written at once. Line feeds end lines: within them JSON escapes them.
        let text = String::from_utf8_lossy(buffer);
        let lines: Vec<String> = text.split('\n').map(visible_json).collect();
        self.0.write_all(lines.join("\n").as_bytes())?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn json_lines_keep_their_meaning_and_reach_no_terminal() {
        let event = serde_json::json!({"fields": {"attestation.name": "a\u{9b}31m\u{202e}\u{2028}ä\n"}});
        let mut console = JsonConsole(Vec::new());
        console.write_all(format!("{event}\n").as_bytes()).unwrap();
        let written = String::from_utf8(console.0).unwrap();
        assert!(
            written.ends_with('\n') && !written.trim_end().chars().any(attest_command_line::is_command),
            "{written:?}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), event);
    }
}
