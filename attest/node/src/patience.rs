//! How long this node waits: so long for what does not answer, and much longer for a gateway that says "come again".
//!
//! Whoever was told to come again has a gateway that lives and will serve it. To give up would mean to take the pre-approved config where
//! the full one is due. Ignition needs the same server anyway, so waiting makes nothing worse. A gateway that does not answer at all is
//! waited for as long as `--deadline` says; each "come again" starts that time anew.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use attest::protocol::{HOLD_DEFAULT_SECONDS, HOLD_LIMIT_SECONDS};

use crate::deadline::Deadline;

/// Kept back from the deadline, so that what hangs on the network is reported as such and not as a deadline that passed.
const REPORT_TIME: Duration = Duration::from_secs(1);
/// How often the console is told what is waited for. Seldom enough to leave the lines before it on the screen.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// The time of one run, for all gateways together.
#[derive(Debug)]
pub struct Patience {
    silence: Duration,
    most: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    deadline: Deadline,
    /// What gateways have said; of several, the longest.
    told: Option<Duration>,
    since: Option<Instant>,
    times: u32,
    said: Option<Instant>,
}

/// A gateway's wish that this node come again.
#[derive(Debug, Clone, Copy)]
pub struct ComeAgain<'a> {
    /// Where it said so.
    pub url: &'a str,
    /// Why, in the gateway's words; empty if it did not say.
    pub why: &'a str,
    /// The pause that is to be made.
    pub pause: Duration,
}

/// What a node does that was told to come again.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Make this pause, and ask again.
    Pause {
        /// How long.
        time: Duration,
        /// How long until this run ends if it hears nothing more.
        until: Duration,
        /// What to say on the console, if it is time for that.
        line: Option<String>,
    },
    /// It has waited for as long as the pool has it wait.
    Over {
        /// How long that was.
        held: Duration,
    },
    /// Nobody has it wait: a gateway that is not ready is like one that does not answer.
    NotHeld,
}

impl Patience {
    /// For who starts now, waits so long for an answer, and at `most` so long when told to come again.
    #[must_use]
    pub fn new(silence: Duration, most: Duration) -> Self {
        Self {
            silence,
            most: most.min(Duration::from_secs(HOLD_LIMIT_SECONDS)),
            state: Mutex::new(State {
                deadline: Deadline::after(silence),
                told: None,
                since: None,
                times: 0,
                said: None,
            }),
        }
    }

    /// When this run ends as things stand. It may move on while one waits for it.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.lock().deadline
    }

    /// The same for the work, which leaves time to report.
    #[must_use]
    pub fn work(&self) -> Deadline {
        self.deadline().before(REPORT_TIME)
    }

    /// Takes what a gateway says about its pool. Of several gateways, the most patient one counts: Ignition needs them all.
    pub fn told(&self, seconds: u64) {
        let mut state = self.lock();
        let told = Duration::from_secs(seconds);
        state.told = Some(state.told.map_or(told, |before| before.max(told)));
    }

    /// How often this node was told to come again.
    #[must_use]
    pub fn times(&self) -> u32 {
        self.lock().times
    }

    /// What to do about a gateway that says at `now` that this node should come again.
    pub fn come_again(&self, again: ComeAgain<'_>, now: Instant) -> Next {
        let mut state = self.lock();
        let limit = state.told.unwrap_or(Duration::from_secs(HOLD_DEFAULT_SECONDS)).min(self.most);
        if limit.is_zero() && state.since.is_none() {
            return Next::NotHeld;
        }
        let held = now.saturating_duration_since(*state.since.get_or_insert(now));
        let left = limit.saturating_sub(held);
        if left.is_zero() {
            return Next::Over { held };
        }
        state.times = state.times.saturating_add(1);
        let time = again.pause.min(left);
        let until = time + self.silence;
        state.deadline = now.checked_add(until).map_or(state.deadline, Deadline::at);
        let quiet = state.said.is_some_and(|said| now.saturating_duration_since(said) < SAY_EVERY);
        if !quiet {
            state.said = Some(now);
        }
        Next::Pause {
            time,
            until,
            line: (!quiet).then(|| line(again, held, left)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn line(again: ComeAgain<'_>, held: Duration, left: Duration) -> String {
    let ComeAgain { url, why, .. } = again;
    let why = if why.is_empty() { String::new() } else { format!(" [{why}]") };
    format!(
        "waiting: {url} tells this node to come again{why}, for {} s so far; it goes on asking for {} s at most, and Ignition waits for it; \
         to boot without attesting: rd.systemd.mask=attest-node.service on the kernel command line",
        held.as_secs(),
        left.as_secs()
    )
}

#[cfg(test)]
#[allow(clippy::panic, reason = "a test may panic")]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(60);
    const PAUSE: Duration = Duration::from_secs(10);
    const HOUR: u64 = 3600;

    fn come_again(patience: &Patience, now: Instant) -> Next {
        let again = ComeAgain {
            url: "https://a/v1/attest",
            why: "unavailable",
            pause: PAUSE,
        };
        patience.come_again(again, now)
    }

    /// Asked every ten seconds, how long it goes on, and what it says meanwhile.
    fn check(told: &[u64], most: u64, expect: u64) {
        let patience = Patience::new(SILENCE, Duration::from_secs(most));
        told.iter().for_each(|seconds| patience.told(*seconds));
        let start = Instant::now();
        let (mut passed, mut lines) = (Duration::ZERO, 0);
        loop {
            match come_again(&patience, start + passed) {
                Next::Pause { time, until, line } => {
                    assert_eq!(until, time + SILENCE);
                    let remaining = patience.deadline().remaining();
                    assert!(remaining + Duration::from_secs(5) > until + passed && remaining <= until + passed);
                    lines += u64::from(line.is_some());
                    passed += time;
                }
                Next::Over { held } => {
                    assert_eq!(held, passed);
                    break;
                }
                Next::NotHeld => break,
            }
            assert!(passed <= Duration::from_secs(100_000), "for ever");
        }
        assert_eq!(passed, Duration::from_secs(expect), "{told:?} {most}");
        assert_eq!(lines, expect.div_ceil(10));
        assert_eq!(u64::from(patience.times()), expect.div_ceil(10));
    }

    #[test]
    fn a_node_is_held_for_as_long_as_its_pool_says() {
        check(&[], u64::MAX, HOUR);
        check(&[1], u64::MAX, 1);
        check(&[7200], u64::MAX, 7200);
        check(&[0], u64::MAX, 0);
        // No pool can hold a node for ever, and whoever starts the program can have it wait less.
        check(&[u64::MAX], u64::MAX, HOLD_LIMIT_SECONDS);
        check(&[], 25, 25);
        check(&[7200], 25, 25);
        check(&[], 0, 0);
        // Ignition needs all sources.
        check(&[60, 600, 0], u64::MAX, 600);
    }

    #[test]
    fn what_was_said_later_counts_from_the_first_time() {
        let patience = Patience::new(SILENCE, Duration::MAX);
        let start = Instant::now();
        assert!(matches!(come_again(&patience, start), Next::Pause { .. }));
        patience.told(300);
        assert!(matches!(come_again(&patience, start + Duration::from_secs(299)), Next::Pause { time, .. } if time.as_secs() == 1));
        assert!(matches!(come_again(&patience, start + Duration::from_secs(300)), Next::Over { held } if held.as_secs() == 300));
        // Who says zero now is told so, although it held the node before it said anything.
        let patience = Patience::new(SILENCE, Duration::MAX);
        assert!(matches!(come_again(&patience, start), Next::Pause { .. }));
        patience.told(0);
        assert!(matches!(come_again(&patience, start + PAUSE), Next::Over { .. }));
    }

    #[test]
    fn the_console_is_told_what_since_when_until_when_and_the_way_out() {
        let patience = Patience::new(SILENCE, Duration::MAX);
        let start = Instant::now();
        let said = |seconds| match come_again(&patience, start + Duration::from_secs(seconds)) {
            Next::Pause { line, .. } => line,
            other => panic!("{other:?}"),
        };
        let first = said(0).unwrap_or_default();
        for part in [
            "https://a/v1/attest",
            "[unavailable]",
            "for 0 s so far",
            "for 3600 s at most",
            "rd.systemd.mask=attest-node.service",
        ] {
            assert!(first.contains(part), "{part:?} is missing in {first}");
        }
        assert_eq!(said(9), None);
        let second = said(10).unwrap_or_default();
        assert!(
            second.contains("for 10 s so far") && second.contains("for 3590 s at most"),
            "{second}"
        );
        assert_eq!(said(19), None);
    }

    #[test]
    fn who_is_not_told_to_come_again_has_the_deadline_only() {
        let patience = Patience::new(SILENCE, Duration::MAX);
        assert!(patience.deadline().remaining() <= SILENCE);
        assert!(patience.work().remaining() <= SILENCE - REPORT_TIME);
        patience.told(HOUR);
        assert!(patience.deadline().remaining() <= SILENCE);
    }
}
