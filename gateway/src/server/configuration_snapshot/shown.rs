//! The form in which a setting's value is recorded. No setting holds a secret: secrets are in files, and URLs with credentials or a query are refused.

use serde_json::{Value, json};

/// Longest value of a setting that is recorded whole.
const VALUE_LIMIT_BYTES: usize = 1024;

/// Returns text, tables and numbers as they are, other values as their JSON; of a long value its length and digest.
pub(super) fn shown(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() > VALUE_LIMIT_BYTES {
        return json!({ "bytes": text.len(), "sha256": super::sha256(text.as_bytes()) });
    }
    match value {
        Value::Object(_) | Value::String(_) => value.clone(),
        Value::Number(number) if number.is_u64() => value.clone(),
        _ => Value::from(text),
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn shows_long_values_as_length_and_digest() {
        for (value, expected) in [
            (json!(7), json!(7)),
            (json!(true), json!("true")),
            (json!("a"), json!("a")),
            (json!(["a", "b"]), json!("[\"a\",\"b\"]")),
        ] {
            assert_eq!(shown(&value), expected);
        }
        let of = |text: &str| shown(&json!(text.repeat(1000)));
        assert_eq!(of("ab")["bytes"], 2002);
        assert_ne!(of("ab"), of("ba"));
    }
}
