//! Uses of tickets, held against what earned them.

use std::collections::{BTreeMap, BTreeSet};

use attest_gateway::audit::{TicketTerms, Verdict};
use attest_gateway::settings::TICKET_LATE_LIMIT_SECONDS;

use super::{Differences, Line, TICKET_LIMIT_SECONDS};

/// The latest that a ticket can be used after it was earned, whatever gateway.toml says, in seconds: first as late as it may be, and then for its lifetime.
const LATEST_USE_SECONDS: u64 = 2 * TICKET_LIMIT_SECONDS + TICKET_LATE_LIMIT_SECONDS;

/// What a ticket was earned by.
#[derive(Debug)]
struct Earned {
    identity: Option<String>,
    name: Option<String>,
    pool: String,
    at: u64,
    ticket: Option<TicketTerms>,
}

/// The tickets that a log speaks of, from its beginning.
#[derive(Debug)]
pub(super) struct Tickets {
    /// The log begins where another ended.
    continued: bool,
    earned: BTreeMap<String, Earned>,
    uses: BTreeSet<(String, u32)>,
    /// When those were used first that had expired by then, by what earned them.
    late: BTreeMap<String, u64>,
}

impl Tickets {
    pub(super) const fn new(continued: bool) -> Self {
        Self {
            continued,
            earned: BTreeMap::new(),
            uses: BTreeSet::new(),
            late: BTreeMap::new(),
        }
    }

    /// A line that is trusted has earned one.
    pub(super) fn earned(&mut self, line: &Line) {
        let earned = Earned {
            identity: line.identity.clone(),
            name: line.name.clone(),
            pool: line.pool.clone(),
            at: line.at,
            ticket: line.ticket,
        };
        self.earned.insert(line.id.clone(), earned);
    }

    /// A use of a ticket: by whom it was earned, for what, for how long, and how often.
    pub(super) fn check(&mut self, line: &Line, began: u64, ids: &BTreeSet<String>, differences: &mut Differences) {
        let served = line.verdict == Verdict::Served;
        let Some(earned_by) = &line.earned_by else {
            // A ticket that could not be opened says nothing.
            if served {
                differences.say("earned_by is missing");
            }
            return;
        };
        let Some(earned) = self.earned.get(earned_by) else {
            let before = line.at.saturating_sub(began) <= LATEST_USE_SECONDS && !ids.contains(earned_by);
            if self.continued && before {
                differences.warn(format!("{earned_by}, which earned it, is not in this log, or before it"));
            } else {
                differences.say(format!("earned_by is {earned_by}, which earned nothing before it"));
            }
            return;
        };
        differences.same("identity", &line.identity, &earned.identity);
        differences.same("name", &line.name, &earned.name);
        differences.same("pool", &line.pool, &earned.pool);
        if line.at < earned.at {
            // Each record says the time of its own gateway.
            differences.warn(format!(
                "it is {} s older than what earned it: clocks differ, or one was set back",
                earned.at - line.at
            ));
        }
        if !served {
            return;
        }
        let Some(number) = line.use_number else {
            return differences.say("use_number is missing");
        };
        if let Some(ticket) = earned.ticket {
            let before = self
                .uses
                .range((earned_by.clone(), 0)..)
                .next()
                .is_some_and(|(by, _)| by == earned_by);
            let late = line.at.checked_sub(ticket.expires).filter(|late| *late > 0);
            differences.same("late_seconds", &line.late_seconds, &late);
            let in_time = match late {
                None => true,
                Some(late) if !before => late <= ticket.late_seconds,
                Some(_) => {
                    let lifetime = ticket.expires.saturating_sub(earned.at);
                    let first = self.late.get(earned_by);
                    first.is_some_and(|first| line.at.saturating_sub(*first) <= lifetime)
                }
            };
            if !in_time {
                differences.say("its ticket was too old");
            }
            if late.is_some() && !before {
                self.late.insert(earned_by.clone(), line.at);
            }
        }
        if !self.uses.insert((earned_by.clone(), number)) {
            differences.say(format!("use {number} was made before"));
        }
        if number == 0 || earned.ticket.is_some_and(|ticket| number > ticket.uses) {
            differences.say(format!("there is no use {number} of its ticket"));
        }
    }
}
