//! Budgets that keep clients from filling the log. Decisions about unauthenticated clients are recorded one by one within a budget of
//! bytes; those about genuine machines that are not known here have another. Beyond it they are counted, in one aggregated record for each
//! source and minute.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use attest::UnixTime;
use attest_log::{EventKind, JournalError, LogEvent, Record, ShownEvidence, Verdict, decision_id};
use attest_system::clock::rfc3339;

use crate::admission::{ClientSource, Network, RateLimit, Spending};

/// Bytes of records at once about unauthenticated clients. A rack of a thousand machines that are refused takes one megabyte; ten thousand
/// machines without credentials take five.
pub const STRANGERS_AT_ONCE_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes of their records each second beyond that: a megabyte a minute.
pub const STRANGERS_EACH_SECOND_BYTES: u64 = 16 * 1024;
/// Bytes of whole records at once, event logs included, about machines that are genuine, refused, and not known here. It suffices for a
/// rack of a thousand behind one address before an administrator has accepted it, with 32 KiB each.
const GENUINE_AT_ONCE_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes of their records each second beyond that: four megabytes a minute.
const GENUINE_EACH_SECOND_BYTES: u64 = 64 * 1024;
/// Time for which decisions are counted before an aggregated record is written, in seconds.
const COUNT_SECONDS: u64 = 60;
/// Networks that are counted by themselves. All others are counted together.
const SOURCES_LIMIT: usize = 1024;

/// Budget that a decision is recorded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BudgetOwner {
    /// Clients that proved nothing.
    Strangers,
    /// Machines that proved what they are, are refused, and are not known here: any client can have genuine documents of a cloud, or a TPM
    /// of a trusted maker.
    Genuine,
}

/// Key of a count: one network of machines, since each of its addresses would be a line of its own, or all networks that are not counted by
/// themselves.
type CountKey = (BudgetOwner, Option<Network>);

/// Budgets, and counts of the decisions beyond them.
#[derive(Debug)]
pub(super) struct Strangers {
    strangers: RateLimit,
    genuine: RateLimit,
    counts: Mutex<BTreeMap<CountKey, Count>>,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    since: u64,
    decisions: u64,
    /// Set if the log says already that these decisions are counted.
    announced: bool,
}

/// A count: its key, the number of decisions, and its start in seconds since 1970.
pub(super) type Sum = (CountKey, u64, u64);

/// Way in which a decision is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordMode {
    /// The record is written to the log.
    OneByOne,
    /// It is counted under this key. If the log does not say so yet, it has to before the client is answered.
    Counted { of: CountKey, announced: bool },
}

impl Default for Strangers {
    fn default() -> Self {
        Self {
            strangers: RateLimit::new(STRANGERS_AT_ONCE_BYTES, STRANGERS_EACH_SECOND_BYTES),
            genuine: RateLimit::new(GENUINE_AT_ONCE_BYTES, GENUINE_EACH_SECOND_BYTES),
            counts: Mutex::default(),
        }
    }
}

impl Strangers {
    /// Decides how a record is written that takes so many bytes, and counts it if it is beyond the budget.
    pub(super) fn admit(&self, record: &Record, bytes: usize) -> RecordMode {
        let peer = record.peer.parse::<SocketAddr>().ok();
        let (Some(source), Some(whose)) = (peer.map(|peer| ClientSource::from(peer.ip())), budget_owner(record)) else {
            return RecordMode::OneByOne;
        };
        let budget = match whose {
            BudgetOwner::Strangers => &self.strangers,
            BudgetOwner::Genuine => &self.genuine,
        };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(record.at));
        match budget.spend(source, bytes, now) {
            Spending::Granted => RecordMode::OneByOne,
            Spending::Over { .. } => self.count(whose, source.machines(), record.at),
        }
    }

    fn count(&self, whose: BudgetOwner, network: Network, at: u64) -> RecordMode {
        let mut counts = self.lock();
        let known = counts.contains_key(&(whose, Some(network))) || counts.len() < SOURCES_LIMIT;
        let of = (whose, known.then_some(network));
        let count = counts.entry(of).or_insert(Count {
            since: at,
            decisions: 0,
            announced: false,
        });
        count.decisions = count.decisions.saturating_add(1);
        let announced = count.announced;
        RecordMode::Counted { of, announced }
    }

    /// Notes that the log says that these are counted.
    pub(super) fn announced(&self, of: CountKey) {
        if let Some(count) = self.lock().get_mut(&of) {
            count.announced = true;
        }
    }

    /// Removes and returns the counts of the minutes that are over at `now`, or all of them.
    pub(super) fn sums(&self, now: u64, all: bool) -> Vec<Sum> {
        let mut counts = self.lock();
        let over = |count: &Count| all || now.abs_diff(count.since) >= COUNT_SECONDS;
        let sums = counts.iter().filter(|(_, count)| over(count));
        let sums = sums.map(|(of, count)| (*of, count.decisions, count.since)).collect();
        counts.retain(|_, count| !over(count));
        sums
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<CountKey, Count>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the budget that a decision is written from. `None` if it gave something for a proof, or if the machine is known here.
fn budget_owner(record: &Record) -> Option<BudgetOwner> {
    match record.verdict {
        Verdict::Trusted => None,
        Verdict::Served => (record.shown == ShownEvidence::Nothing).then_some(BudgetOwner::Strangers),
        Verdict::Refused if record.claims.is_none() => Some(BudgetOwner::Strangers),
        // Its owner has to be able to read why.
        Verdict::Refused => (!record.known).then_some(BudgetOwner::Genuine),
    }
}

impl BudgetOwner {
    const fn named(self) -> &'static str {
        match self {
            Self::Strangers => "who proved nothing",
            Self::Genuine => "genuine but unknown machines that were refused",
        }
    }
}

/// Returns the line that says that decisions are counted from now on.
///
/// # Errors
/// [`JournalError::Failed`] without random bytes.
pub(super) fn begins((whose, network): CountKey, now: u64) -> Result<LogEvent, JournalError> {
    let reason = format!(
        "too many decisions about {}: from now on they are counted in aggregated records",
        whose.named()
    );
    line(network, now, reason, 0)
}

/// Returns the aggregated record.
///
/// # Errors
/// [`JournalError::Failed`] without random bytes.
pub(super) fn sum(((whose, network), decisions, since): Sum, now: u64) -> Result<LogEvent, JournalError> {
    let reason = format!(
        "{decisions} decisions about {} since {} have no records of their own",
        whose.named(),
        rfc3339(since)
    );
    line(network, now, reason, decisions)
}

fn line(network: Option<Network>, now: u64, reason: String, counted: u64) -> Result<LogEvent, JournalError> {
    let id = decision_id().ok_or(JournalError::Failed)?;
    let peer = network.map_or_else(|| "others".to_owned(), |network| network.to_string());
    Ok(LogEvent::new(id, now, EventKind::Counted { peer, counted }, reason))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use attest_log::Decision;

    use super::*;

    fn refusal(source: u32, at: u64) -> Record {
        let peer = SocketAddr::from((Ipv4Addr::from_bits(source), 1));
        Record::new(String::new(), Decision::Challenge, at, peer.to_string(), String::new())
    }

    /// Returns the bytes that are written of so many refusals of a kilobyte.
    fn written(strangers: &Strangers, source: u32, refusals: usize, at: u64) -> usize {
        let record = refusal(source, at);
        let one_by_one = || strangers.admit(&record, 1024) == RecordMode::OneByOne;
        1024 * (0..refusals).filter(|_| one_by_one()).count()
    }

    #[test]
    fn attack_37_a_flood_adds_few_megabytes_a_minute() {
        let strangers = Strangers::default();
        let from_one: usize = (0..60).map(|second| written(&strangers, 66, 3000, 1000 + second)).sum();
        assert!(from_one < 10_000_000, "{from_one}");
        // Another source's refusals are recorded one by one beside it.
        assert_eq!(written(&strangers, 7, 100, 1059), 100 * 1024);
        let strangers = Strangers::default();
        let from_many: usize = (0..60)
            .flat_map(|second| (0..100).map(move |source| (second, source)))
            .map(|(second, source)| written(&strangers, source, 30, 1000 + second))
            .sum();
        assert!(from_many < 20_000_000, "{from_many}");
    }

    #[test]
    fn attack_54_greedy_sources_leave_records_to_other_sources() {
        for greedy in [2, 10, 1200] {
            let strangers = Strangers::default();
            for second in 0..40 {
                (0..greedy).for_each(|source| {
                    written(&strangers, source, 3000 / usize::try_from(greedy).unwrap(), 1000 + second);
                });
            }
            for node in 0..33 {
                assert_eq!(written(&strangers, 100_000 + node, 2, 1039), 2048, "beside {greedy}");
            }
        }
    }

    #[test]
    fn attack_55_aggregates_addresses_of_a_network_in_one_record() {
        let strangers = Strangers::default();
        let line = |address: u128| {
            let peer = SocketAddr::from((Ipv6Addr::from_bits((0x2001_0db8 << 96) + address), 1));
            let record = Record::new(String::new(), Decision::Challenge, 1000, peer.to_string(), String::new());
            strangers.admit(&record, 32 * 1024)
        };
        for address in 0..5000 {
            line(address);
        }
        let sums = strangers.sums(1000, true);
        assert_eq!(sums.len(), 1, "{sums:?}");
    }

    #[test]
    fn writes_aggregated_records_once_a_minute() {
        let strangers = Strangers::default();
        written(&strangers, 66, 20_000, 1000);
        let source = ClientSource::from(Ipv4Addr::from_bits(66));
        let of = (BudgetOwner::Strangers, Some(source.machines()));
        let counted = |announced| RecordMode::Counted { of, announced };
        assert_eq!(strangers.admit(&refusal(66, 1000), 1024), counted(false));
        strangers.announced(of);
        assert_eq!(strangers.admit(&refusal(66, 1000), 1024), counted(true));
        assert!(strangers.sums(1059, false).is_empty());
        let sums = strangers.sums(1060, false);
        assert_eq!(sums, [(of, 20_000 - 8 * 1024 + 2, 1000)]);
        assert!(strangers.sums(1060, true).is_empty());
        for source in 0..5000 {
            strangers.count(
                BudgetOwner::Strangers,
                ClientSource::from(Ipv4Addr::from_bits(source)).machines(),
                1000,
            );
        }
        let sums = strangers.sums(1000, true);
        assert_eq!(sums.len(), SOURCES_LIMIT + 1);
        assert_eq!(sums.iter().map(|(_, count, _)| count).sum::<u64>(), 5000);
    }

    #[test]
    fn authenticated_decisions_are_never_aggregated() {
        let strangers = Strangers::default();
        written(&strangers, 66, 20_000, 1000);
        assert_ne!(strangers.admit(&refusal(66, 1000), 1), RecordMode::OneByOne);
        let mut trusted = refusal(66, 1000);
        trusted.verdict = Verdict::Trusted;
        assert_eq!(strangers.admit(&trusted, 1), RecordMode::OneByOne);
        let mut served = refusal(66, 1000);
        served.verdict = Verdict::Served;
        served.shown = ShownEvidence::Token;
        assert_eq!(strangers.admit(&served, 1), RecordMode::OneByOne);
        served.shown = ShownEvidence::Nothing;
        assert_ne!(strangers.admit(&served, 1), RecordMode::OneByOne);
    }
}
