use serde::{Deserialize, Serialize};

use super::values::Values;
use super::{NAME_LIMIT_BYTES, ReferenceSetError, Time, VALUE_NAME_LIMIT_BYTES};

/// Values that were added together, and where they come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generation {
    /// Name for people, such as `grubx64 2.06-98`. It is unique in a set.
    pub name: String,
    /// Time of the generation's addition.
    pub added: Time,
    /// Author of the generation.
    pub by: String,
    pub from: ValueOrigin,
    /// Expiry of the generation: from then on it is not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Time>,
    pub values: Values,
}

/// Source of the values. Not verified: the author of the generation states it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ValueOrigin {
    /// A node that has attested: its name, or its identity; and the decision of the attestation log.
    Recorded { node: String, record: String },
    /// Files, from which they were predicted: names, with SHA-256 of what is in them.
    Predicted { files: Vec<String> },
    /// So many machines of a pool, by what the attestation log has of them since then: `policy propose`.
    Proposed { machines: usize, since: Time },
    /// A file that was imported.
    Imported { file: String },
    /// No source: the values were entered by hand.
    ByHand,
}

impl Generation {
    /// Returns whether the generation is accepted at a time, in seconds since 1970.
    #[must_use]
    pub fn is_accepted_at(&self, now: u64) -> bool {
        self.expires.is_none_or(|expires| now < expires.at)
    }

    pub(super) fn check(&self) -> Result<(), ReferenceSetError> {
        let generation = || self.name.clone();
        let within = |field, text: &str, limit: usize| match (1..=limit).contains(&text.len()) && !text.contains(char::is_control) {
            true => Ok(()),
            false => Err(ReferenceSetError::Name {
                generation: crate::values::printable(&self.name, NAME_LIMIT_BYTES),
                field,
                limit,
            }),
        };
        let named = |field, text: &str| within(field, text, NAME_LIMIT_BYTES);
        named("name", &self.name)?;
        named("by", &self.by)?;
        match &self.from {
            ValueOrigin::Recorded { node, record } => {
                named("node", node)?;
                named("record", record)?;
            }
            ValueOrigin::Predicted { files } => files.iter().try_for_each(|file| named("file", file))?,
            ValueOrigin::Imported { file } => named("file", file)?,
            ValueOrigin::Proposed { .. } | ValueOrigin::ByHand => {}
        }
        if self.expires.is_some_and(|expires| expires < self.added) {
            return Err(ReferenceSetError::Expires { generation: generation() });
        }
        for name in self.values.names() {
            within("name of a value", name, VALUE_NAME_LIMIT_BYTES)?;
        }
        self.values.check(&self.name)
    }
}
