//! Uses of tickets, held against what earned them.

use std::collections::{BTreeMap, BTreeSet};

use attest_log::{RecordedLate, TICKET_LATE_LIMIT_SECONDS, TicketTerms, Verdict};

use super::{DecisionKey, Differences, ReviewedDecision, TICKET_LIMIT_SECONDS};

/// The latest that a ticket can be used after it was earned, whatever gateway.toml says, in seconds: first as late as it may be, and then for its lifetime.
const LATEST_USE_SECONDS: u64 = 2 * TICKET_LIMIT_SECONDS + TICKET_LATE_LIMIT_SECONDS;

/// The decision that has earned a ticket.
#[derive(Debug)]
struct TicketOrigin {
    identity: Option<String>,
    name: Option<String>,
    pool: String,
    at: u64,
    ticket: Option<TicketTerms>,
    recorded_late: Option<RecordedLate>,
}

/// The tickets that a log speaks of, from its beginning.
#[derive(Debug)]
pub(super) struct Tickets {
    elsewhere: Elsewhere,
    earned: BTreeMap<DecisionKey, TicketOrigin>,
    uses: BTreeSet<(DecisionKey, u32)>,
    /// Times of the tickets' first uses, by the decisions that earned them.
    first: BTreeMap<DecisionKey, u64>,
}

/// State of the logs that are not read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elsewhere {
    /// The log begins where another ended.
    pub continued: bool,
    /// Lines of several gateways are read, each with the time of its own clock.
    pub several: bool,
    /// Other gateways have logs that are not read: one of them may have given a ticket.
    pub has_other_logs: bool,
    /// A log was given up, or it is not known what there is.
    pub lost: bool,
}

impl Tickets {
    pub(super) const fn new(elsewhere: Elsewhere) -> Self {
        Self {
            elsewhere,
            earned: BTreeMap::new(),
            uses: BTreeSet::new(),
            first: BTreeMap::new(),
        }
    }

    /// A line that is trusted has earned one.
    pub(super) fn earned(&mut self, line: &ReviewedDecision) {
        let earned = TicketOrigin {
            identity: line.identity.clone(),
            name: line.name.clone(),
            pool: line.pool.clone(),
            at: line.at,
            ticket: line.ticket.clone(),
            recorded_late: line.recorded_late,
        };
        // What another gateway has recorded in full says more.
        let id = DecisionKey::from(line.id.as_str());
        let known = self.earned.get(&id);
        if earned.recorded_late.is_none() || known.is_none_or(|known| known.recorded_late.is_some()) {
            self.earned.insert(id, earned);
        }
    }

    /// A line that a ticket was served for the first time by.
    pub(super) fn first_used(&mut self, line: &ReviewedDecision) {
        if let (Some(earned_by), Some(1), Verdict::Served) = (&line.earned_by, line.use_number, line.verdict) {
            self.first.entry(earned_by.as_str().into()).or_insert(line.at);
        }
    }

    /// Checks a use of a ticket: the decision that earned it, its purpose, its lifetime, and the number of uses.
    pub(super) fn check(&mut self, line: &ReviewedDecision, began: u64, ids: &BTreeSet<DecisionKey>, differences: &mut Differences) {
        let served = line.verdict == Verdict::Served;
        let Some(earned_by) = &line.earned_by else {
            // A ticket that could not be opened says nothing.
            if served {
                differences.add("earned_by is missing");
            }
            return;
        };
        let key = DecisionKey::from(earned_by.as_str());
        let Some(earned) = self.earned.get(&key) else {
            return self.earned_elsewhere(line, earned_by, began, ids, differences);
        };
        differences.same("identity", &line.identity, &earned.identity);
        differences.same("name", &line.name, &earned.name);
        differences.same("pool", &line.pool, &earned.pool);
        if line.at < earned.at {
            // Each record says the time of its own gateway.
            differences.warn(format!(
                "the ticket's use is {} s older than the attestation that earned it: clocks differ, or one was set back",
                earned.at - line.at
            ));
        }
        if !served {
            return;
        }
        match earned.recorded_late {
            Some(RecordedLate::Unanswered) => differences.add("its ticket was never sent: the decision that earned it was recorded late"),
            Some(RecordedLate::Unknown) if self.elsewhere.continued || self.elsewhere.has_other_logs || self.elsewhere.lost => {
                differences.warn("the decision that earned it was recorded late, without its evidence");
            }
            Some(RecordedLate::Unknown) => {
                differences.add("the decision that earned it was recorded late, without its evidence, and all logs are given");
            }
            None => {}
        }
        let Some(number) = line.use_number else {
            return differences.add("use_number is missing");
        };
        if let Some(ticket) = &earned.ticket {
            if let Some(promised) = &ticket.config_sha256
                && line.config_sha256.as_ref() != Some(promised)
            {
                differences.add("config_sha256 is not that of the config that its ticket is for");
            }
            let late = line.at.checked_sub(ticket.expires).filter(|late| *late > 0);
            differences.same("late_seconds", &line.late_seconds, &late);
            let lifetime = ticket.expires.saturating_sub(earned.at);
            match (late, self.first.get(&key)) {
                (None, _) => {}
                (Some(late), _) if number == 1 => {
                    if late > ticket.late_seconds {
                        differences.add("its ticket was too old");
                    }
                }
                // It is for the number to say which use is the first: where clocks differ, it may be read later.
                (Some(_), Some(first)) if *first > ticket.expires && line.at.saturating_sub(*first) <= lifetime => {}
                (Some(_), Some(first)) if *first > ticket.expires && self.elsewhere.several => {
                    differences.warn("its ticket was too old, unless clocks differ");
                }
                (Some(_), None) if self.elsewhere.has_other_logs => {
                    differences.warn("its ticket was too old, unless the log of another gateway, not given here, has its first use");
                }
                _ => differences.add("its ticket was too old"),
            }
        }
        if !self.uses.insert((key, number)) {
            differences.add(format!("use {number} is recorded twice"));
        }
        if number == 0 || earned.ticket.as_ref().is_some_and(|ticket| number > ticket.uses) {
            differences.add(format!("use {number} of its ticket is missing"));
        }
    }

    /// A use of a ticket that no line has earned.
    fn earned_elsewhere(
        &self,
        line: &ReviewedDecision,
        earned_by: &str,
        began: u64,
        ids: &BTreeSet<DecisionKey>,
        differences: &mut Differences,
    ) {
        let in_time = line.at.saturating_sub(began) <= LATEST_USE_SECONDS;
        if ids.contains(&earned_by.into()) {
            differences.add(format!(
                "earned_by is {earned_by}, which is not an earlier decision that earned a ticket"
            ));
        } else if self.elsewhere.continued && in_time {
            differences.warn(format!("{earned_by}, which earned it, is not earlier in this log"));
        } else if self.elsewhere.has_other_logs {
            differences.warn(format!(
                "{earned_by}, which earned it, is not in these logs: the log of another gateway may have it"
            ));
        } else {
            differences.add(format!(
                "earned_by is {earned_by}, which is not an earlier decision that earned a ticket; if another gateway made it, pass its log, too, or name this log's gateway with --replica"
            ));
        }
    }
}
