//! Causes of an error, in one line.

use std::error::Error;

/// Returns an error with its causes, each once. `reqwest`'s own text is only "error sending request".
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string().trim_end().to_owned();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(said.trim_end()) {
            text.push_str(": ");
            text.push_str(said.trim_end());
        }
        source = cause.source();
    }
    text
}
