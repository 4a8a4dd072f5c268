//! Decisions of the last days, counted from the attestation log.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use attest_command_line::output::ReaderState;
use attest_command_line::records::{Filter, LogSource, RecordFields};
use attest_log::admin::Verb;
use serde::Deserialize;

/// Number of days that are shown, today included.
pub(super) const DAYS: u64 = 30;
pub(super) const SECONDS_OF_A_DAY: u64 = 24 * 3600;
/// Number of last decisions that are listed, of proven ones and of others each: whoever proves nothing pushes nobody off the page.
const LAST_LIMIT: usize = 50;

/// Number of decisions of a pool on one day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DayCount {
    pub(super) trusted: u64,
    pub(super) refused: u64,
    pub(super) full: u64,
    pub(super) pre_approved: u64,
}

impl DayCount {
    /// Returns the number of decisions in a bar.
    pub(super) const fn total(self) -> u64 {
        self.trusted.saturating_add(self.refused).saturating_add(self.pre_approved)
    }
}

/// A change that may explain a change of the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    Restart,
    Reload,
    /// A step of a CA, or a new certificate.
    Authority,
    /// An image that was rolled out: values were accepted.
    RollOut,
}

impl Mark {
    pub(super) const ALL: [Self; 4] = [Self::Restart, Self::Reload, Self::Authority, Self::RollOut];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Reload => "reload",
            Self::Authority => "CA or certificate",
            Self::RollOut => "values accepted",
        }
    }

    const fn of(verb: Verb) -> Option<Self> {
        match verb {
            Verb::GatewayStart => Some(Self::Restart),
            Verb::GatewayReload => Some(Self::Reload),
            Verb::CaIntroduce | Verb::CaSwitch | Verb::CaRetire | Verb::CertificateRenew => Some(Self::Authority),
            Verb::WaitingAccept => Some(Self::RollOut),
            _ => None,
        }
    }
}

/// Counts and changes of the last days, from the log.
#[derive(Debug, Default)]
pub(super) struct DecisionHistory {
    /// First second of the first day, since 1970.
    pub(super) begins: u64,
    /// Counts by pool and day; the first day is 0.
    pub(super) pools: BTreeMap<String, BTreeMap<u64, DayCount>>,
    /// Number of marks by day.
    pub(super) marks: BTreeMap<(u64, Mark), u64>,
    /// Decisions about unauthenticated clients in aggregated records.
    pub(super) aggregated: u64,
    /// Last decisions about verified evidence or a full config, and last other ones. Both have their position in the log.
    last: [VecDeque<(u64, RecordFields)>; 2],
    /// Number of decisions that were read.
    read: u64,
    /// Lines or files that could not be read.
    pub(super) is_incomplete: bool,
}

/// The verb of an act.
#[derive(Deserialize)]
struct VerbLine {
    admin: ActVerb,
}

#[derive(Deserialize)]
struct ActVerb {
    verb: Verb,
}

/// Reads the last days of the gateway's own log, or of these.
///
/// # Errors
/// If no log can be read.
pub(super) fn read(own: &Path, logs: &[PathBuf], now: u64) -> anyhow::Result<DecisionHistory> {
    let midnight = now.saturating_sub(now % SECONDS_OF_A_DAY);
    let begins = midnight.saturating_sub((DAYS - 1).saturating_mul(SECONDS_OF_A_DAY));
    let mut history = DecisionHistory {
        begins,
        ..DecisionHistory::default()
    };
    if logs.is_empty() && !own.exists() {
        return Ok(history);
    }
    let source = LogSource {
        log: logs.to_vec(),
        filter: Filter::since(begins),
        last: None,
    };
    let unread = source.open(own, None)?.each(|read| {
        if let Some(fields) = read.fields.as_ref().filter(|fields| source.filter.takes(fields, read.line)) {
            history.add(fields, read.line);
        }
        Ok(ReaderState::There)
    })?;
    history.is_incomplete = unread.report();
    Ok(history)
}

impl DecisionHistory {
    fn add(&mut self, fields: &RecordFields, line: &[u8]) {
        let day = fields.at.saturating_sub(self.begins) / SECONDS_OF_A_DAY;
        self.aggregated = self.aggregated.saturating_add(fields.counted.unwrap_or(0));
        if fields.decision == "admin" {
            let mark = serde_json::from_slice::<VerbLine>(line)
                .ok()
                .and_then(|act| Mark::of(act.admin.verb));
            if let Some(mark) = mark {
                *self.marks.entry((day, mark)).or_default() += 1;
            }
        }
        if !fields.is_of_a_boot() || day >= DAYS {
            return;
        }
        let count = self.pools.entry(fields.pool.clone()).or_default().entry(day).or_default();
        let place = match (fields.verdict.as_str(), fields.grant.as_deref()) {
            ("trusted", _) => &mut count.trusted,
            ("served", Some("full")) => &mut count.full,
            ("served", _) => &mut count.pre_approved,
            _ => &mut count.refused,
        };
        *place = place.saturating_add(1);
        let is_proven = fields.claims.is_some() || (fields.verdict == "served" && fields.grant.as_deref() == Some("full"));
        let [proven, others] = &mut self.last;
        let last = if is_proven { proven } else { others };
        if last.len() == LAST_LIMIT {
            last.pop_front();
        }
        self.read = self.read.saturating_add(1);
        last.push_back((self.read, fields.clone()));
    }

    /// Returns the last decisions, the newest first.
    pub(super) fn last(&self) -> Vec<&RecordFields> {
        let mut last: Vec<&(u64, RecordFields)> = self.last.iter().flatten().collect();
        last.sort_by_key(|(position, _)| std::cmp::Reverse(*position));
        last.into_iter().map(|(_, fields)| fields).collect()
    }
}
