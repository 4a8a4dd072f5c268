//! Administrators' acts: each counts once, although a gateway that was killed, or another one, may have recorded it twice.

use std::collections::BTreeMap;

use attest_log::LineHash;
use attest_log::admin::Act;

use super::Differences;

/// The acts that were read, by their ids in the outbox.
#[derive(Debug)]
pub(super) struct Acts(BTreeMap<String, LineHash>);

impl Acts {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns whether it was not read before. A second record has to say the same.
    pub(super) fn is_new(&mut self, act: &Act, differences: &mut Differences) -> bool {
        let Some(id) = &act.outbox else { return true };
        let said = LineHash::of(serde_json::to_string(act).unwrap_or_default().as_bytes());
        match self.0.insert(id.clone(), said) {
            None => true,
            Some(before) if before == said => false,
            Some(_) => {
                differences.add(format!("another line with id {id} has different content"));
                true
            }
        }
    }
}
