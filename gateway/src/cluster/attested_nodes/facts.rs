//! What the lines of the attestation log say of machines that have proven who they are; of several about one the last.

use std::collections::HashMap;

use attest_system::clock::rfc3339;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::object::object_name;
use super::status::{Answer, Attestation, Config, Question, Refusal, Status, reason_of_code};

/// What is known of one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) identity: String,
    /// As it was called when it attested.
    name: Option<String>,
    attestation: Option<(u64, Attestation)>,
    refusal: Option<(u64, Refusal)>,
    config: Option<(u64, Config)>,
}

/// What is known of all of them, by the names of their objects.
#[derive(Debug, Default)]
pub(super) struct News(pub(super) HashMap<String, Facts>);

/// A line, as far as it is looked at.
#[derive(Deserialize)]
struct Line {
    at: u64,
    id: String,
    decision: String,
    verdict: String,
    pool: String,
    shown: String,
    #[serde(default)]
    kinds: Vec<String>,
    identity: Option<String>,
    instance: Option<String>,
    name: Option<String>,
    code: Option<String>,
    grant: Option<String>,
    config_sha256: Option<String>,
    spec_version: Option<String>,
    /// There if the evidence was verified, whatever came of it then.
    claims: Option<IgnoredAny>,
}

impl News {
    /// Adds what a line says.
    pub(super) fn add(&mut self, line: &[u8]) {
        let Ok(line) = serde_json::from_slice::<Line>(line) else { return };
        let Some((name, identity)) = line
            .identity
            .as_deref()
            .and_then(|identity| Some((object_name(identity)?, identity.to_owned())))
        else {
            return;
        };
        let facts = || Facts {
            identity,
            ..Facts::default()
        };
        match (&*line.decision, &*line.verdict) {
            ("evidence", "trusted") => {
                let facts = self.0.entry(name).or_insert_with(facts);
                facts.name.clone_from(&line.name);
                facts.attestation = Some((line.at, line.attestation()));
            }
            // Who proves nothing names whom it likes.
            ("evidence", "refused") if line.claims.is_some() => {
                self.0.entry(name).or_insert_with(facts).refusal = Some((line.at, line.refusal()))
            }
            ("config", "served") if line.shown == "ticket" => {
                self.0.entry(name).or_insert_with(facts).config = Some((line.at, line.config()))
            }
            _ => {}
        }
    }
}

impl Line {
    fn attestation(self) -> Attestation {
        Attestation {
            at: rfc3339(self.at),
            by: self.kinds.join("+"),
            pool: self.pool,
            instance: self.instance,
            record: self.id,
        }
    }

    fn refusal(self) -> Refusal {
        Refusal {
            at: rfc3339(self.at),
            code: self.code.unwrap_or_default(),
            pool: self.pool,
            record: self.id,
        }
    }

    fn config(self) -> Config {
        Config {
            at: rfc3339(self.at),
            set: self.grant.unwrap_or_default(),
            pool: self.pool,
            sha256: self.config_sha256.unwrap_or_default(),
            spec_version: self.spec_version.unwrap_or_default(),
            record: self.id,
        }
    }
}

impl Facts {
    /// Whether it has attested: who was only ever refused has no object for that.
    pub(super) const fn is_of_a_machine(&self) -> bool {
        self.attestation.is_some() || self.config.is_some()
    }

    /// Puts what is newer into a status, which another gateway may have written.
    pub(super) fn add_to(&self, status: &mut Status, generation: i64) {
        status.identity.get_or_insert_with(|| self.identity.clone());
        if let Some((_, new)) = &self.attestation
            && status.attestation.as_ref().is_none_or(|old| old.at <= new.at)
        {
            status.attestation = Some(new.clone());
            // What the store says of it counts, as soon as that is told.
            status.node_name = self.name.clone().or_else(|| status.node_name.take());
        }
        if let Some((_, new)) = &self.refusal
            && status.refusal.as_ref().is_none_or(|old| old.at <= new.at)
        {
            status.refusal = Some(new.clone());
        }
        if let Some((at, new)) = &self.config
            && status.config.as_ref().is_none_or(|old| old.at <= new.at)
        {
            let message = format!(
                "config {} of pool {}, sha256 {} (record {})",
                new.set, new.pool, new.sha256, new.record
            );
            let answer = Answer::new(true, &reason_of_code(&new.set), message);
            status.config = Some(new.clone());
            status.say(Question::ConfigServed, answer, generation, *at);
        }
        let times = [
            &self.attestation.as_ref().map(|(at, _)| *at),
            &self.refusal.as_ref().map(|(at, _)| *at),
        ];
        let Some(at) = times.into_iter().flatten().max() else { return };
        let refused = match (&status.attestation, &status.refusal) {
            (Some(held), Some(refused)) => refused.at > held.at,
            (held, _) => held.is_none(),
        };
        let answer = match (&status.attestation, &status.refusal) {
            (_, Some(refusal)) if refused => {
                let message = format!("refused for pool {}: {} (record {})", refusal.pool, refusal.code, refusal.record);
                Answer::new(false, &reason_of_code(&refusal.code), message)
            }
            (Some(held), _) => {
                let message = format!("{} evidence for pool {} (record {})", held.by, held.pool, held.record);
                Answer::new(true, "Trusted", message)
            }
            _ => return,
        };
        status.say(Question::Attested, answer, generation, *at);
    }
}
