//! Facts in the attestation log about machines that have proven their identity; of several about one machine, the last.

use std::collections::HashMap;

use attest_command_line::visible;
use attest_log::{Decision, Entry, EventKind, LogEvent, Record, ShownEvidence, Verdict};
use attest_system::clock::rfc3339;
use serde::de::IgnoredAny;

use super::object_name::object_name;
use super::status::{
    AttestedNodeStatus, ConditionAnswer, ConditionType, LastAttestation, LastConfig, LastRefusal, LastReport, reason_of_code,
};

/// Longest error of a report in an object, in characters; the record has all of it.
const REPORT_ERROR_LIMIT_CHARACTERS: usize = 512;

/// Facts about one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineFacts {
    pub identity: String,
    /// Name at the time of its attestation.
    name: Option<String>,
    attestation: Option<(u64, LastAttestation)>,
    refusal: Option<(u64, LastRefusal)>,
    /// Set if the refusal is later in the log than the attestation. Both can be of one second.
    refused_last: bool,
    config: Option<(u64, LastConfig)>,
    report: Option<LastReport>,
}

/// Facts about all machines, by the names of their objects.
#[derive(Debug, Default)]
pub struct MachineUpdates(pub HashMap<String, MachineFacts>);

/// A decision, as far as it is looked at.
struct DecisionFacts(Record<IgnoredAny, IgnoredAny>);

impl MachineUpdates {
    /// Adds what a line says.
    pub fn add(&mut self, line: &[u8]) {
        let record = match Entry::<IgnoredAny, IgnoredAny>::read(line) {
            Ok(Entry::Decision(record)) => *record,
            Ok(Entry::Event(event)) => return self.add_report(*event),
            Err(_) => return,
        };
        let Some((name, identity)) = record
            .identity
            .as_deref()
            .and_then(|identity| Some((object_name(identity)?, identity.to_owned())))
        else {
            return;
        };
        let facts = || MachineFacts {
            identity,
            ..MachineFacts::default()
        };
        let at = record.at;
        match (record.decision, record.verdict) {
            (Decision::Evidence, Verdict::Trusted) => {
                let facts = self.0.entry(name).or_insert_with(facts);
                facts.name.clone_from(&record.name);
                facts.attestation = Some((at, DecisionFacts(record).attestation()));
                facts.refused_last = false;
            }
            // Who proves nothing names whom it likes.
            (Decision::Evidence, Verdict::Refused) if record.claims.is_some() => {
                let facts = self.0.entry(name).or_insert_with(facts);
                facts.refusal = Some((at, DecisionFacts(record).refusal()));
                facts.refused_last = true;
            }
            (Decision::Config, Verdict::Served) if record.shown == ShownEvidence::Ticket => {
                self.0.entry(name).or_insert_with(facts).config = Some((at, DecisionFacts(record).config()))
            }
            _ => {}
        }
    }
}

impl MachineUpdates {
    /// Adds the report of a machine that proved its attestation. Other events are about no machine.
    fn add_report(&mut self, event: LogEvent) {
        let EventKind::Report { source, report } = event.what else {
            return;
        };
        let Some((name, identity)) = source
            .identity
            .filter(|_| report.verified)
            .and_then(|identity| Some((object_name(&identity)?, identity)))
        else {
            return;
        };
        let facts = self.0.entry(name).or_insert_with(|| MachineFacts {
            identity,
            ..MachineFacts::default()
        });
        facts.report = Some(LastReport {
            at: event.time,
            stage: report.stage.to_string(),
            unit: report.unit,
            error: visible(&report.error).chars().take(REPORT_ERROR_LIMIT_CHARACTERS).collect(),
            pool: source.pool,
            record: event.id,
        });
    }
}

impl DecisionFacts {
    fn attestation(self) -> LastAttestation {
        let kinds: Vec<String> = self.0.kinds.iter().map(ToString::to_string).collect();
        LastAttestation {
            at: rfc3339(self.0.at),
            by: kinds.join("+"),
            pool: self.0.pool,
            instance: self.0.instance,
            record: self.0.id,
        }
    }

    fn refusal(self) -> LastRefusal {
        LastRefusal {
            at: rfc3339(self.0.at),
            code: self.0.code.unwrap_or_default(),
            pool: self.0.pool,
            record: self.0.id,
        }
    }

    fn config(self) -> LastConfig {
        LastConfig {
            at: rfc3339(self.0.at),
            set: self.0.grant.map(|set| set.to_string()).unwrap_or_default(),
            pool: self.0.pool,
            sha256: self.0.config_sha256.unwrap_or_default(),
            spec_version: self.0.spec_version.map(|version| version.to_string()).unwrap_or_default(),
            record: self.0.id,
        }
    }
}

impl MachineFacts {
    /// Returns whether it has attested: a machine that was only ever refused gets no object.
    pub const fn is_of_a_machine(&self) -> bool {
        self.attestation.is_some() || self.config.is_some()
    }

    /// Puts what is newer into a status, which another gateway may have written.
    pub fn add_to(&self, status: &mut AttestedNodeStatus, generation: i64) {
        status.identity.get_or_insert_with(|| self.identity.clone());
        if let Some((_, new)) = &self.attestation
            && status.attestation.as_ref().is_none_or(|old| old.at <= new.at)
        {
            status.attestation = Some(Box::new(new.clone()));
            // What the store says of it counts, as soon as that is told.
            status.node_name = self.name.clone().or_else(|| status.node_name.take());
        }
        if let Some((_, new)) = &self.refusal
            && status.refusal.as_ref().is_none_or(|old| old.at <= new.at)
        {
            status.refusal = Some(Box::new(new.clone()));
        }
        if let Some((at, new)) = &self.config
            && status.config.as_ref().is_none_or(|old| old.at <= new.at)
        {
            let message = format!(
                "config {} of pool {}, sha256 {} (record {})",
                new.set, new.pool, new.sha256, new.record
            );
            let answer = ConditionAnswer::new(true, &reason_of_code(&new.set), message);
            status.config = Some(Box::new(new.clone()));
            status.set_condition(ConditionType::ConfigServed, answer, generation, *at);
        }
        if let Some(new) = &self.report
            && status.report.as_ref().is_none_or(|old| old.at <= new.at)
        {
            status.report = Some(Box::new(new.clone()));
        }
        let times = [
            &self.attestation.as_ref().map(|(at, _)| *at),
            &self.refusal.as_ref().map(|(at, _)| *at),
        ];
        let Some(at) = times.into_iter().flatten().max() else { return };
        let refused = match (&status.attestation, &status.refusal) {
            (Some(held), Some(refused)) if refused.at == held.at => self.refused_last,
            (Some(held), Some(refused)) => refused.at > held.at,
            (held, _) => held.is_none(),
        };
        let answer = match (&status.attestation, &status.refusal) {
            (_, Some(refusal)) if refused => {
                let message = format!("refused for pool {}: {} (record {})", refusal.pool, refusal.code, refusal.record);
                ConditionAnswer::new(false, &reason_of_code(&refusal.code), message)
            }
            (Some(held), _) => {
                let message = format!("{} evidence for pool {} (record {})", held.by, held.pool, held.record);
                ConditionAnswer::new(true, "Trusted", message)
            }
            _ => return,
        };
        status.set_condition(ConditionType::Attested, answer, generation, *at);
    }
}
