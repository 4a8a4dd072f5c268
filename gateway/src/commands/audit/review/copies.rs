//! Copies of configs that were served: they are there, and what they were.

use std::collections::BTreeMap;

use attest_gateway::audit::Blobs;
use attest_gateway::audit::configs::ConfigCopy;

use super::{Differences, Line};

/// Copies that records name. Most name the same ones: each is read once for each config that it is said to be of.
#[derive(Debug)]
pub struct Copies {
    folder: Blobs,
    read: BTreeMap<(ConfigCopy, String), Option<String>>,
}

impl Copies {
    pub const fn of(folder: Blobs) -> Self {
        let read = BTreeMap::new();
        Self { folder, read }
    }

    /// Whether the copy that a line names is what was kept.
    pub(super) fn check(&mut self, line: &Line, differences: &mut Differences) {
        let Some(copy) = &line.config_copy else { return };
        let Some(config) = &line.config_sha256 else {
            return differences.say("config_copy does not belong there");
        };
        let Self { folder, read } = self;
        let wrong = read
            .entry((copy.clone(), config.clone()))
            .or_insert_with(|| copy.read(folder, config).err().map(|error| error.to_string()));
        if let Some(wrong) = wrong {
            differences.say(format!("the copy of the config: {wrong}"));
        }
    }
}
