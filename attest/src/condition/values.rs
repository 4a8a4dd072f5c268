//! Input of a condition: claims of a bounded size.

use serde_json::Value;

/// Most elements of a list, and members of an object, that a condition is evaluated on. A quote has at most 24 PCRs; the longest lists are GRUB's texts of a
/// boot, of which recorded logs have up to 73.
pub const LIST_LIMIT: usize = 128;

/// Most values in claims, those inside of others too.
pub const VALUES_LIMIT: usize = 2048;

/// Longest text in claims, in bytes.
pub const TEXT_LIMIT_BYTES: usize = 4096;

/// Longest texts in claims together, in bytes.
pub const TEXTS_LIMIT_BYTES: usize = 256 * 1024;

/// Maximum depth of nested values: claims have five levels.
const DEPTH_LIMIT: usize = 16;

/// Checks that claims are within these limits.
pub(super) fn check(claims: &Value) -> Result<(), String> {
    let mut left = RemainingBudget {
        values: VALUES_LIMIT,
        text_bytes: TEXTS_LIMIT_BYTES,
    };
    left.value(claims, DEPTH_LIMIT)
}

/// Remaining budget of values and text.
struct RemainingBudget {
    values: usize,
    text_bytes: usize,
}

impl RemainingBudget {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        let (Some(values), Some(depth)) = (self.values.checked_sub(1), depth.checked_sub(1)) else {
            return Err(format!("the claims have more than {VALUES_LIMIT} values, or {DEPTH_LIMIT} levels"));
        };
        self.values = values;
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
            Value::String(text) => self.text(text),
            Value::Array(values) => {
                count(values.len())?;
                values.iter().try_for_each(|value| self.value(value, depth))
            }
            Value::Object(members) => {
                count(members.len())?;
                members.iter().try_for_each(|(name, value)| {
                    self.text(name)?;
                    self.value(value, depth)
                })
            }
        }
    }

    fn text(&mut self, text: &str) -> Result<(), String> {
        let found = text.len();
        match self.text_bytes.checked_sub(found) {
            Some(left) if found <= TEXT_LIMIT_BYTES => self.text_bytes = left,
            _ => {
                return Err(format!(
                    "a text in the claims has {found} bytes: more than {TEXT_LIMIT_BYTES}, or than {TEXTS_LIMIT_BYTES} with the others"
                ));
            }
        }
        Ok(())
    }
}

fn count(found: usize) -> Result<(), String> {
    match found {
        0..=LIST_LIMIT => Ok(()),
        _ => Err(format!("a list in the claims has {found} elements, more than {LIST_LIMIT}")),
    }
}
