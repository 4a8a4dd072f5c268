//! Secret values of this node's configs, which are searched for as they are.

use std::collections::HashMap;

use serde_json::Value;

use super::MARK;
use crate::pointer::data_url;

/// Shortest value of a config that is searched for, in bytes: shorter ones are words.
const VALUE_LEAST_BYTES: usize = 8;
/// Shortest line of a file in a config that is searched for, in bytes.
const LINE_LEAST_BYTES: usize = 16;
/// Members of Ignition configs whose texts are secret: sources of files and keys, headers, password hashes, contents of units, pins of Clevis.
pub(super) const MEMBERS: [&str; 8] = [
    "config",
    "contents",
    "httpsProxy",
    "httpProxy",
    "inline",
    "passwordHash",
    "source",
    "value",
];

/// Secret values that are searched for as they are. There is no `Debug`.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Adds the secrets of an Ignition config, or of a pointer config.
    pub fn add_config(&mut self, config: &Value) {
        match config {
            Value::Object(members) => {
                for (name, value) in members {
                    match value {
                        Value::String(text) if MEMBERS.contains(&name.as_str()) => self.add(text, members.get("compression")),
                        value => self.add_config(value),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.add_config(value)),
            _ => {}
        }
    }

    fn add(&mut self, text: &str, compression: Option<&Value>) {
        if let Some((_, payload)) = text.strip_prefix("data:").and_then(|url| url.split_once(',')) {
            self.add_text(payload, VALUE_LEAST_BYTES);
            let content = data_url::content(text, compression.and_then(Value::as_str)).unwrap_or_default();
            for line in String::from_utf8_lossy(&content).lines() {
                self.add_text(line, LINE_LEAST_BYTES);
            }
        } else if let Some(query) = text.split_once('?').map(|(_, query)| query)
            && text.contains("://")
        {
            self.add_text(query, VALUE_LEAST_BYTES);
        } else if !text.contains("://") {
            let least = if text.contains('\n') { LINE_LEAST_BYTES } else { VALUE_LEAST_BYTES };
            text.lines().for_each(|line| self.add_text(line, least));
            if let Some(bearer) = text.strip_prefix("Bearer ") {
                self.add_text(bearer, VALUE_LEAST_BYTES);
            }
        }
    }

    fn add_text(&mut self, text: &str, least_bytes: usize) {
        let text = text.trim();
        if text.len() >= least_bytes {
            self.0.push(text.to_owned());
        }
    }

    /// Returns a text with a mark in the place of each value. Values that overlap are removed with all that they cover.
    pub(super) fn removed_from(&self, text: &str) -> String {
        let mut by_beginning: HashMap<&[u8], Vec<&str>> = HashMap::new();
        for value in &self.0 {
            if let Some(beginning) = value.as_bytes().get(..VALUE_LEAST_BYTES) {
                by_beginning.entry(beginning).or_default().push(value);
            }
        }
        let longest = |place: usize| {
            let rest = text.get(place..)?;
            let values = by_beginning.get(rest.as_bytes().get(..VALUE_LEAST_BYTES)?)?;
            values
                .iter()
                .filter(|value| rest.starts_with(**value))
                .map(|value| value.len())
                .max()
        };
        let (mut out, mut covered) = (String::with_capacity(text.len()), 0);
        for (place, letter) in text.char_indices() {
            if let Some(length) = longest(place) {
                if covered <= place {
                    out.push(MARK);
                }
                covered = covered.max(place + length);
            }
            if covered <= place {
                out.push(letter);
            }
        }
        out
    }
}
