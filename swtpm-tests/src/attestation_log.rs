//! The gateway's attestation log: one JSON line for each decision.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Line of the attestation log that records a decision about a node.
#[derive(Debug, Clone)]
pub struct LogRecord(Value);

impl LogRecord {
    /// Reads all decisions about nodes: a log's lines without checkpoints and without events of administrators and gateways.
    pub fn read_all(log: &Path) -> Result<Vec<Self>> {
        let text = fs::read_to_string(log).with_context(|| format!("reading {}", log.display()))?;
        let parse = |line| serde_json::from_str(line).map(Self).with_context(|| format!("a record: {line:?}"));
        let records: Vec<Self> = text.lines().map(parse).collect::<Result<_>>()?;
        let of_nodes = |record: &Self| !["checkpoint", "admin"].contains(&record.decision());
        Ok(records.into_iter().filter(of_nodes).collect())
    }

    /// Returns a member as text, by JSON pointer.
    #[must_use]
    pub fn text(&self, pointer: &str) -> Option<&str> {
        self.0.pointer(pointer).and_then(Value::as_str)
    }

    /// Returns the kind of request decided on: `challenge`, `evidence` or `config`.
    #[must_use]
    pub fn decision(&self) -> &str {
        self.text("/decision").unwrap_or_default()
    }

    /// Returns the verdict: `trusted`, `served` or `refused`.
    #[must_use]
    pub fn verdict(&self) -> &str {
        self.text("/verdict").unwrap_or_default()
    }

    /// Returns the node's identity, proven or claimed.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.text("/identity")
    }

    /// Returns the code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.text("/code")
    }

    /// Returns the granted config: `full` or `pre-approved`.
    #[must_use]
    pub fn grant(&self) -> Option<&str> {
        self.text("/grant")
    }

    /// Returns the kind of credential or evidence that the client presented.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.text("/shown").unwrap_or_default()
    }

    /// Returns the reason for the decision, in words for people.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.text("/reason").unwrap_or_default()
    }

    /// Returns the whole record as JSON.
    #[must_use]
    pub fn json(&self) -> &Value {
        &self.0
    }
}
