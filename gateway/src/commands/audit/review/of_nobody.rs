//! Lines that are about no node.

use attest_log::admin::Verb;
use serde_json::{Map, Value};

use super::{Decision, Differences, Judged, Line, VERSION};

/// What a line has beside its record: how far the store had come, and its place.
const PLACED: [&str; 2] = ["store", "chain"];

fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

impl Line {
    /// A line that stands for many gives nothing to anybody.
    pub(super) fn counted(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("counted", self.counted.as_ref());
        self.gives_nothing(differences);
        ("counted".to_owned(), Judged::Whole)
    }

    pub(super) fn store_accepted(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("accepted_store", self.accepted_store.as_ref());
        differences.there("admin", self.admin.as_ref());
        if let Some(act) = &self.admin {
            differences.same("admin.v", &act.v, &VERSION);
            if ![Verb::StoreAccept, Verb::StoreImport, Verb::StoreCopy].contains(&act.verb) {
                differences.say(format!("{} accepts no store", act.verb));
            }
        }
        self.gives_nothing(differences);
        differences.warn(format!("another store was accepted here: {}", self.reason));
        ("accepted".to_owned(), Judged::Whole)
    }

    /// Of the log's last line nothing but its signature says what it was: it holds what the signature is over, and no more.
    pub(super) fn checkpoint(&self, text: &str, differences: &mut Differences) -> (String, Judged) {
        differences.there("checkpoint", self.checkpoint.as_ref());
        if let Some(checkpoint) = &self.checkpoint {
            let record = serde_json::to_value(checkpoint.clone().record(self.id.clone(), self.at));
            let mut expected = members(record.unwrap_or_default());
            let mut recorded = members(serde_json::from_str(text).unwrap_or_default());
            recorded.retain(|name, _| !PLACED.contains(&name.as_str()));
            for (name, value) in recorded {
                match expected.remove(&name) {
                    Some(said) => differences.same(&name, &value, &said),
                    None => differences.say(format!("{name} does not belong there")),
                }
            }
            differences.said.extend(expected.keys().map(|name| format!("{name} is missing")));
        }
        ("signed".to_owned(), Judged::OfLog)
    }

    /// What was done is not made again; it is shown.
    pub(super) fn admin(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("admin", self.admin.as_ref());
        if let Some(act) = &self.admin {
            differences.same("admin.v", &act.v, &VERSION);
            differences.same("reason", &self.reason, &act.to_string());
            if act.refused.is_some() && !act.things.is_empty() {
                differences.say("what was refused has changed nothing");
            }
        }
        self.gives_nothing(differences);
        ("done".to_owned(), Judged::Admin)
    }

    /// That it says nothing of what other lines are about.
    pub(super) fn says_its_own(&self, differences: &mut Differences) {
        if self.decision != Decision::Checkpoint {
            differences.absent("checkpoint", self.checkpoint.as_ref());
        }
        // Whoever accepts a store says so in the same line.
        if ![Decision::Admin, Decision::StoreAccepted].contains(&self.decision) {
            differences.absent("admin", self.admin.as_ref());
        }
        if self.decision != Decision::Counted {
            differences.absent("counted", self.counted.as_ref());
        }
        if self.decision != Decision::StoreAccepted {
            differences.absent("accepted_store", self.accepted_store.as_ref());
        }
        if self.decision != Decision::Removed {
            differences.absent("removed", self.removed.as_ref());
        }
    }

    /// Whether what it says is so, the chain's verification says.
    pub(super) fn removed(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("removed", self.removed.as_ref());
        if let Some(removal) = &self.removed {
            differences.same("reason", &self.reason, &removal.to_string());
        }
        self.gives_nothing(differences);
        ("removed".to_owned(), Judged::OfLog)
    }

    fn gives_nothing(&self, differences: &mut Differences) {
        differences.absent("grant", self.grant.as_ref());
        differences.absent("identity", self.identity.as_ref());
        differences.absent("claims", self.claims.as_ref());
        differences.absent("config_sha256", self.config_sha256.as_ref());
    }
}
