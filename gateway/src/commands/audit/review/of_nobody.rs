//! Lines that are about no node.

use attest_gateway::audit::admin::Verb;

use super::{Differences, Judged, Line, VERSION};

impl Line {
    /// A line that stands for many gives nothing to anybody.
    pub(super) fn counted(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("counted", self.counted.as_ref());
        self.gives_nothing(differences);
        ("counted".to_owned(), Judged::Whole)
    }

    pub(super) fn store_accepted(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("accepted_store", self.accepted_store.as_ref());
        // Earlier releases did not say who it was.
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

    pub(super) fn checkpoint(&self, differences: &mut Differences) -> (String, Judged) {
        differences.there("checkpoint", self.checkpoint.as_ref());
        self.gives_nothing(differences);
        ("signed".to_owned(), Judged::Checkpoint)
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

    fn gives_nothing(&self, differences: &mut Differences) {
        differences.absent("grant", self.grant.as_ref());
        differences.absent("identity", self.identity.as_ref());
        differences.absent("claims", self.claims.as_ref());
        differences.absent("config_sha256", self.config_sha256.as_ref());
    }
}
