//! Schema of a line, without its place in the chain. A line is a decision about a node, or an event that decides nothing.

use attest::Claims;
use attest_system::clock::rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::act::Act;
use super::basis::Basis;
use super::chain::UncoveredLines;
use super::checkpoint::Checkpoint;
use super::journal_error::JournalError;
use super::record::{Record, VERSION, decision_id};
use super::removal::Removal;
use super::report::{NodeReport, ReportSource};
use super::store_position::StoreReplacement;

/// A line that was read. Readers choose the types of claims (`C`) and basis (`B`): [`serde::de::IgnoredAny`] for those that they do not
/// need.
#[derive(Debug)]
pub enum Entry<C = Claims, B = Basis> {
    Decision(Box<Record<C, B>>),
    Event(Box<LogEvent>),
}

/// An event. It has no verdict, because no node is trusted, served or refused by it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogEvent {
    /// The schema's version: 1.
    pub v: u32,
    /// The time of the event, RFC 3339.
    pub time: String,
    /// The same time in seconds since 1970.
    pub at: u64,
    pub id: String,
    #[serde(flatten)]
    pub what: EventKind,
    /// The event in words, for a person.
    pub reason: String,
}

/// The kinds of events, each with its own members.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum EventKind {
    /// Decisions about nodes of this network are counted and not recorded one by one; 0 at the start of the count.
    Counted { peer: String, counted: u64 },
    /// An administrator has accepted a store that is not the known one.
    StoreAccepted { accepted_store: StoreReplacement, admin: Act },
    /// The gateway has signed a checkpoint of the log.
    Checkpoint { checkpoint: Checkpoint },
    /// An administrator, or the gateway itself, has changed something.
    Admin { admin: Act },
    /// A segment of the log is removed by the rule of retention.
    Removed { removed: Removal },
    /// A node has reported that its first boot failed.
    Report {
        #[serde(flatten)]
        source: ReportSource,
        report: NodeReport,
    },
}

/// The kind of a line: its member `decision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineKind {
    Challenge,
    Evidence,
    Config,
    Rehearsal,
    Counted,
    StoreAccepted,
    Checkpoint,
    Admin,
    Removed,
    Report,
}

impl LineKind {
    /// Returns whether such lines are decisions about nodes.
    #[must_use]
    pub const fn is_decision(self) -> bool {
        matches!(self, Self::Challenge | Self::Evidence | Self::Config | Self::Rehearsal)
    }
}

impl<C, B> Entry<C, B>
where
    C: for<'de> Deserialize<'de>,
    B: for<'de> Deserialize<'de>,
{
    /// Parses a line. Members that this release does not know are ignored.
    ///
    /// # Errors
    /// The line is not JSON, or lacks a member that each such line has.
    pub fn read(line: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct EntryLineKind {
            decision: LineKind,
        }
        let EntryLineKind { decision } = serde_json::from_slice(line)?;
        if decision.is_decision() {
            serde_json::from_slice(line).map(Self::Decision)
        } else {
            serde_json::from_slice(line).map(Self::Event)
        }
    }
}

impl LogEvent {
    /// Returns an event of this time, seconds since 1970.
    #[must_use]
    pub fn new(id: String, at: u64, what: EventKind, reason: String) -> Self {
        Self {
            v: VERSION,
            time: rfc3339(at),
            at,
            id,
            what,
            reason,
        }
    }

    /// Returns the differences of a line from this event, member by member: the line has to have all of its members, and no others except
    /// its place.
    #[must_use]
    pub fn differences_of(&self, line: &str) -> Vec<String> {
        let members = |value: Result<Value, serde_json::Error>| match value {
            Ok(Value::Object(members)) => members,
            _ => serde_json::Map::new(),
        };
        let mut expected = members(serde_json::to_value(self));
        let mut differences = Vec::new();
        for (name, value) in members(serde_json::from_str(line)) {
            if ["store", "chain"].contains(&name.as_str()) {
                continue;
            }
            match expected.remove(&name) {
                Some(said) if said == value => {}
                Some(said) => differences.push(format!("{name} is {value}, and must be {said}")),
                None => differences.push(format!("{name} does not belong there")),
            }
        }
        differences.extend(expected.keys().map(|name| format!("{name} is missing")));
        differences
    }
}

impl Act {
    /// Returns its event, recorded at this time, seconds since 1970.
    ///
    /// # Errors
    /// [`JournalError::Failed`] without random bytes.
    pub fn event(self, at: u64) -> Result<LogEvent, JournalError> {
        let id = decision_id().ok_or(JournalError::Failed)?;
        let reason = self.to_string();
        Ok(LogEvent::new(id, at, EventKind::Admin { admin: self }, reason))
    }
}

impl Checkpoint {
    /// Returns the event with this checkpoint. It has no other contents, so that a signed line states nothing that was not signed.
    #[must_use]
    pub fn event(self, id: String, at: u64) -> LogEvent {
        let mut reason = format!("the log's chain had {} lines before this one", self.count);
        if let Some(UncoveredLines { first, last }) = self.found {
            reason += &format!("; {first} to {last} stood there at a start, unsigned");
        }
        LogEvent::new(id, at, EventKind::Checkpoint { checkpoint: self }, reason)
    }
}

impl Removal {
    /// Returns the event of the removal, at this time in seconds since 1970.
    ///
    /// # Errors
    /// [`JournalError::Failed`] without random bytes.
    pub fn event(self, at: u64) -> Result<LogEvent, JournalError> {
        let id = decision_id().ok_or(JournalError::Failed)?;
        let reason = self.to_string();
        Ok(LogEvent::new(id, at, EventKind::Removed { removed: self }, reason))
    }
}

impl NodeReport {
    /// Returns the event with this report, at this time in seconds since 1970.
    #[must_use]
    pub fn event(self, id: String, at: u64, source: ReportSource) -> LogEvent {
        let reason = self.to_string();
        LogEvent::new(id, at, EventKind::Report { source, report: self }, reason)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use serde::de::IgnoredAny;
    use serde_json::json;

    use super::super::act::{By, Verb};
    use super::super::record::{ChainedLine, Decision};
    use super::*;

    type Read = Entry<IgnoredAny, IgnoredAny>;

    fn events() -> Vec<(LineKind, LogEvent)> {
        let act = || Act::done(Verb::EkAdd, 7, By::gateway(None), Vec::new());
        let replacement = StoreReplacement { known: None, found: None };
        let what = [
            (
                LineKind::Counted,
                EventKind::Counted {
                    peer: "192.0.2.0/24".to_owned(),
                    counted: 3,
                },
            ),
            (
                LineKind::StoreAccepted,
                EventKind::StoreAccepted {
                    accepted_store: replacement,
                    admin: act(),
                },
            ),
            (LineKind::Admin, EventKind::Admin { admin: act() }),
            (
                LineKind::Report,
                EventKind::Report {
                    source: ReportSource {
                        peer: "192.0.2.7:4711".to_owned(),
                        pool: "worker".to_owned(),
                        ..ReportSource::default()
                    },
                    report: NodeReport {
                        verified: false,
                        attestation: None,
                        stage: attest::protocol::ReportStage::Disks,
                        unit: "ignition-disks.service".to_owned(),
                        error: "no disk".to_owned(),
                        boot: "ab".repeat(16),
                        journal_bytes: 0,
                        journal_sha256: None,
                    },
                },
            ),
        ];
        let event = |(kind, what)| (kind, LogEvent::new("ab".repeat(16), 7, what, "why".to_owned()));
        what.into_iter().map(event).collect()
    }

    fn line(event: &LogEvent) -> String {
        serde_json::to_string(&ChainedLine {
            record: event,
            store: None,
        })
        .unwrap()
    }

    #[test]
    fn event_round_trips_without_a_verdict() {
        for (kind, event) in events() {
            let line = line(&event);
            let value: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value["decision"], serde_json::to_value(kind).unwrap());
            for absent in ["verdict", "shown", "decided_by", "code"] {
                assert_eq!(value.get(absent), None, "{line}");
            }
            let Read::Event(read) = Read::read(line.as_bytes()).unwrap() else {
                panic!("{line}")
            };
            assert_eq!(*read, event);
            assert_eq!(event.differences_of(&line), Vec::<String>::new());
        }
    }

    #[test]
    fn reports_each_difference_of_an_event_line() {
        for (_, event) in events() {
            let line: Value = serde_json::from_str(&line(&event)).unwrap();
            for name in line.as_object().unwrap().keys() {
                let mut without = line.clone();
                without.as_object_mut().unwrap().remove(name);
                assert_eq!(event.differences_of(&without.to_string()), [format!("{name} is missing")]);
                let mut other = line.clone();
                other[name] = json!(["other"]);
                let differences = event.differences_of(&other.to_string());
                assert!(
                    differences.len() == 1 && differences[0].starts_with(&format!("{name} is [\"other\"]")),
                    "{differences:?}"
                );
            }
            for name in ["verdict", "grant", "identity", "claims"] {
                let mut more = line.clone();
                more[name] = json!("refused");
                assert_eq!(event.differences_of(&more.to_string()), [format!("{name} does not belong there")]);
            }
            let mut placed = line.clone();
            placed["chain"] = json!({});
            assert_eq!(event.differences_of(&placed.to_string()), Vec::<String>::new());
        }
    }

    #[test]
    fn decision_round_trips() {
        let mut record: Record = Record::new("id".to_owned(), Decision::Config, 7, "peer".to_owned(), "worker".to_owned());
        record.use_number = Some(2);
        record.again = true;
        record.alerts.push("alert".to_owned());
        let line = serde_json::to_vec(&ChainedLine {
            record: &record,
            store: None,
        })
        .unwrap();
        let Entry::<Value, Value>::Decision(read) = Entry::read(&line).unwrap() else {
            panic!("no decision")
        };
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&record).unwrap());
        for kind in ["counted", "decided"] {
            let other = String::from_utf8(line.clone()).unwrap().replace("\"config\"", &format!("{kind:?}"));
            assert!(Read::read(other.as_bytes()).is_err(), "{kind}");
        }
    }
}
