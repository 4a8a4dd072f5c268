//! Fields of the console's lines in text.

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

use super::visible;

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
