//! Status of a machine, in the form that its object in the cluster has.

use attest_system::clock::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The label with the node's name, by which its object is found.
pub const NODE_LABEL: &str = "attest-gateway.internal/node";
/// The label with the pool of the machine's last attestation.
pub const POOL_LABEL: &str = "attest-gateway.internal/pool";
/// Most conditions that an object has.
pub const CONDITIONS_LIMIT: usize = 8;
/// Longest message of a condition, in characters.
pub const MESSAGE_LIMIT_CHARACTERS: usize = 1024;
/// Longest value of a label.
const LABEL_LIMIT_BYTES: usize = 63;

/// The whole status of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttestedNodeStatus {
    /// The spec that this was said of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<AttestedNodeState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attestation: Option<Box<LastAttestation>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Box<LastRefusal>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Box<LastConfig>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Box<LastReport>>,
    /// Code of the last refusal, unless the machine was trusted since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Question that the machine waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    #[serde(skip_serializing_if = "Handled::is_nothing")]
    pub handled: Handled,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

/// Summary of the status in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttestedNodeState {
    /// Nothing is given to it.
    Banned,
    /// Its last attestation held.
    Trusted,
    /// Its last attestation was refused.
    Refused,
    /// It is on the allowlist, and has not attested.
    Expected,
    /// The store knows it, and the log that was read says nothing of it.
    Known,
    /// No such machine is known.
    Unknown,
}

/// The last attestation that held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastAttestation {
    /// RFC 3339, in UTC and whole seconds: the text's order is that of time.
    pub at: String,
    /// The kinds of evidence.
    pub by: String,
    pub pool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    pub record: String,
}

/// The last refusal of a machine that has proven its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRefusal {
    pub at: String,
    pub code: String,
    pub pool: String,
    pub record: String,
}

/// The last config that was served for an attestation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastConfig {
    pub at: String,
    pub set: String,
    pub pool: String,
    pub sha256: String,
    pub spec_version: String,
    pub record: String,
}

/// The last report of a failed first boot. Its text is the node's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReport {
    pub at: String,
    pub stage: String,
    pub unit: String,
    pub error: String,
    pub pool: String,
    pub record: String,
}

/// Edits that are done once, when they are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Handled {
    /// SHA-256 of what it was approved for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forget: Option<String>,
}

impl Handled {
    const fn is_nothing(&self) -> bool {
        self.approved.is_none() && self.forget.is_none()
    }
}

/// Type of a condition: the statement that it confirms or denies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionType {
    /// Its last attestation held.
    Attested,
    /// The administrator endorses its TPM.
    Approved,
    /// Nothing is given to it.
    Banned,
    /// It was served a config for an attestation.
    ConfigServed,
    /// The edits in the object's spec were done.
    Accepted,
}

impl ConditionType {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attested => "Attested",
            Self::Approved => "Approved",
            Self::Banned => "Banned",
            Self::ConfigServed => "ConfigServed",
            Self::Accepted => "Accepted",
        }
    }
}

/// Condition like `metav1.Condition` of apimachinery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusCondition {
    #[serde(rename = "type")]
    pub of: String,
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    pub last_transition_time: String,
    pub reason: String,
    pub message: String,
}

/// An answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionAnswer {
    pub holds: Option<bool>,
    /// Reason in one word.
    pub reason: String,
    pub message: String,
}

impl ConditionAnswer {
    pub fn new(holds: impl Into<Option<bool>>, reason: &str, message: impl Into<String>) -> Self {
        Self {
            holds: holds.into(),
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

impl AttestedNodeStatus {
    /// Returns the condition for a question.
    pub fn says(&self, question: ConditionType) -> Option<&StatusCondition> {
        self.conditions.iter().find(|condition| condition.of == question.as_str())
    }

    /// Returns whether the answer is yes.
    pub fn holds(&self, question: ConditionType) -> bool {
        self.says(question).is_some_and(|condition| condition.status == "True")
    }

    /// Says it, as of this time, seconds since 1970, and of this generation of the spec.
    pub fn set_condition(&mut self, question: ConditionType, answer: ConditionAnswer, generation: i64, at: u64) {
        let status = match answer.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let has_room = self.conditions.len() < CONDITIONS_LIMIT;
        let before = self.conditions.iter_mut().find(|condition| condition.of == question.as_str());
        let since = before
            .as_ref()
            .filter(|before| before.status == status)
            .map(|before| before.last_transition_time.clone());
        let said = StatusCondition {
            of: question.as_str().to_owned(),
            status: status.to_owned(),
            observed_generation: Some(generation),
            last_transition_time: since.unwrap_or_else(|| rfc3339(at)),
            reason: answer.reason,
            message: answer.message.chars().take(MESSAGE_LIMIT_CHARACTERS).collect(),
        };
        match before {
            Some(before) => *before = said,
            None if has_room => self.conditions.push(said),
            None => {}
        }
    }

    /// Sets the summary in one word.
    pub fn sum_up(&mut self) {
        let refused = self.says(ConditionType::Attested).is_some_and(|said| said.status == "False");
        self.code = self.refusal.as_ref().filter(|_| refused).map(|refusal| refusal.code.clone());
        self.state = Some(if self.holds(ConditionType::Banned) {
            AttestedNodeState::Banned
        } else if refused && self.refusal.is_some() {
            AttestedNodeState::Refused
        } else if self.holds(ConditionType::Attested) {
            AttestedNodeState::Trusted
        } else if self.holds(ConditionType::Approved) {
            AttestedNodeState::Expected
        } else if self.identity.is_some() {
            AttestedNodeState::Known
        } else {
            AttestedNodeState::Unknown
        });
    }

    /// Returns the labels that the object should have; `None` for a value that a label cannot have: a node's name can be longer.
    pub fn labels(&self) -> [(&'static str, Option<&str>); 2] {
        let pool = self.attestation.as_ref().map(|attestation| attestation.pool.as_str());
        [(NODE_LABEL, self.node_name.as_deref()), (POOL_LABEL, pool)]
            .map(|(label, value)| (label, value.filter(|value| self.identity.is_some() && is_label_value(value))))
    }

    /// Returns the merge patch (RFC 7386) from `before` to this; `None` if they are equal.
    pub fn patch(&self, before: &Self) -> Option<Value> {
        let value = |status: &Self| serde_json::to_value(status).unwrap_or_default();
        difference(&value(before), &value(self))
    }
}

/// Returns whether a label can have this value (`IsValidLabelValue` in `apimachinery/pkg/util/validation/validation.go`).
fn is_label_value(value: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    value.len() <= LABEL_LIMIT_BYTES && value.bytes().all(plain) && ends(value.bytes().next()) && ends(value.bytes().last())
}

fn difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut changes = Map::new();
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        changes.insert(name.clone(), Value::Null);
    }
    for (name, value) in new {
        let change = match old.get(name) {
            Some(before) => difference(before, value),
            None => Some(value.clone()),
        };
        if let Some(change) = change {
            changes.insert(name.clone(), change);
        }
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// Returns a code of `docs/reference/codes.md` as the reason of a condition, which has no hyphens.
pub fn reason_of_code(code: &str) -> String {
    let word = |word: &str| {
        let mut characters = word.chars();
        let first = characters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(characters).collect::<String>()
    };
    let reason: String = code.split('-').map(word).collect();
    // There has to be one.
    if reason.is_empty() { "Unsaid".to_owned() } else { reason }
}
