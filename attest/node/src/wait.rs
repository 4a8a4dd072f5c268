//! Time that this node waits for a gateway: without limit if it does not answer, and as long as the pool sets if it answers 503 with
//! Retry-After.
//!
//! A node that gave up would take the pre-approved config instead of the full one. Ignition needs the same server anyway, and asks it for
//! ever: waiting makes nothing worse. This node's own work has the time limit of `--deadline`, which restarts after each pause that is made
//! for a gateway.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use attest_wire::protocol::{HOLD_DEFAULT_SECONDS, HOLD_LIMIT_SECONDS};

use crate::deadline::Deadline;
use crate::failure::Failure;

/// Time reserved before the deadline, so that a hanging network is reported as such and not as a passed deadline.
const REPORT_TIME: Duration = Duration::from_secs(1);
/// Interval between console messages during a wait. Long enough to leave the lines before it on the screen.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Instructions for booting without this program.
pub const WAY_OUT: &str = "to boot without attesting: rd.systemd.mask=attest-node.service on the kernel command line";

/// The time of one run, for all gateways together.
#[derive(Debug)]
pub struct WaitLimits {
    silence: Duration,
    most: Duration,
    state: Mutex<WaitState>,
}

#[derive(Debug)]
struct WaitState {
    deadline: Deadline,
    /// Waiting time that the gateways ask for; of several, the longest.
    requested_wait: Option<Duration>,
    since: Option<Instant>,
    times: u32,
    held: u32,
    last_report: Option<Instant>,
    /// The most time without an answer, if there is a limit.
    unanswered: Option<Duration>,
    /// Since when there has been no answer.
    unanswered_since: Option<Instant>,
    gave_up: bool,
}

impl WaitState {
    /// Excludes the time without an answer from the time of 503 answers.
    fn answered(&mut self, now: Instant) {
        let silent = self.unanswered_since.take().map(|since| now.saturating_duration_since(since));
        if let (Some(silent), Some(since)) = (silent, self.since) {
            self.since = Some(since.checked_add(silent).unwrap_or(since));
        }
    }
}

/// A gateway's wish that this node come again.
#[derive(Debug, Clone, Copy)]
pub struct RetryRequest<'a> {
    /// URL of the request.
    pub url: &'a str,
    /// Gateway's reason for it; empty if it gave none.
    pub why: &'a str,
    /// Gateway's description of the cause of the wait; empty if it gave none.
    pub what: &'a str,
    /// The pause that is to be made.
    pub pause: Duration,
}

/// Next step of a node that has to wait.
#[derive(Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Make this pause, and ask again.
    Pause {
        /// Length of the pause.
        time: Duration,
        /// Time until this run ends if it gets no further answer.
        until: Duration,
        /// Message for the console, if one is due.
        line: Option<String>,
    },
    /// The node has waited for the pool's maximum.
    Over {
        /// Total time that it waited.
        held: Duration,
    },
    /// No waiting time is set: a gateway that is not ready is treated like one that does not answer.
    NotHeld,
}

impl WaitLimits {
    /// Creates the limits of a run that starts now: `silence` for the node's own work, at `most` so long after a 503 with Retry-After, and,
    /// if the administrator sets it, at most `unanswered` without an answer.
    #[must_use]
    pub fn new(silence: Duration, most: Duration, unanswered: Option<Duration>) -> Self {
        Self {
            silence,
            most: most.min(Duration::from_secs(HOLD_LIMIT_SECONDS)),
            state: Mutex::new(WaitState {
                deadline: Deadline::after(silence),
                requested_wait: None,
                since: None,
                times: 0,
                held: 0,
                last_report: None,
                unanswered,
                unanswered_since: None,
                gave_up: false,
            }),
        }
    }

    /// Returns the current end of this run. It may move on during a wait.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        self.lock().deadline
    }

    /// Returns the deadline for the work, which leaves time to report.
    #[must_use]
    pub fn work(&self) -> Deadline {
        self.deadline().before(REPORT_TIME)
    }

    /// Records a gateway's waiting time for its pool. Of several gateways, the longest time counts: Ignition needs them all.
    pub fn record_wait(&self, seconds: u64) {
        let mut state = self.lock();
        let told = Duration::from_secs(seconds);
        state.requested_wait = Some(state.requested_wait.map_or(told, |before| before.max(told)));
    }

    /// Returns the number of waits.
    #[must_use]
    pub fn times(&self) -> u32 {
        self.lock().times
    }

    /// Returns the number of waits after a gateway's 503 with Retry-After.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.lock().held
    }

    /// Has a gateway that does not answer waited for no longer than that: Ignition waits no longer either, or not for that server.
    pub fn at_most(&self, limit: Duration) {
        let mut state = self.lock();
        state.unanswered = Some(state.unanswered.map_or(limit, |before| before.min(limit)));
    }

    /// Starts a piece of this node's own work, with a fresh time limit, or `time` if that is more. Returns the time until this run ends if
    /// it gets no further answer.
    pub fn begin(&self, time: Duration) -> Duration {
        let until = time.max(self.silence);
        self.lock().deadline = Deadline::after(until);
        until
    }

    /// The time that each piece of this node's own work has.
    #[must_use]
    pub const fn silence(&self) -> Duration {
        self.silence
    }

    /// Returns the next step after a gateway's request, at `now`, to retry later.
    pub fn retry_later(&self, again: RetryRequest<'_>, now: Instant) -> NextStep {
        let mut state = self.lock();
        state.answered(now);
        let limit = state
            .requested_wait
            .unwrap_or(Duration::from_secs(HOLD_DEFAULT_SECONDS))
            .min(self.most);
        if limit.is_zero() && state.since.is_none() {
            return NextStep::NotHeld;
        }
        let held = now.saturating_duration_since(*state.since.get_or_insert(now));
        let left = limit.saturating_sub(held);
        if left.is_zero() {
            return NextStep::Over { held };
        }
        state.held = state.held.saturating_add(1);
        let says = || line(again, held, left);
        self.pause(&mut state, again.pause.min(left), now, says)
    }

    /// Returns the next step, at `now`, for a gateway that cannot be reached, or has errors only, with a pause of this length.
    pub fn unanswered(&self, failure: &Failure, pause: Duration, now: Instant) -> NextStep {
        let mut state = self.lock();
        let waited = now.saturating_duration_since(*state.unanswered_since.get_or_insert(now));
        let left = state.unanswered.map(|limit| limit.saturating_sub(waited));
        if left.is_some_and(|left| left.is_zero()) {
            state.gave_up = true;
            return NextStep::Over { held: waited };
        }
        let says = || {
            let limit = left.map_or_else(String::new, |left| format!("; retrying for at most {} s", left.as_secs()));
            format!(
                "waiting for {} s so far: {failure}{limit}; Ignition waits for the same gateway; {WAY_OUT}",
                waited.as_secs()
            )
        };
        self.pause(&mut state, left.map_or(pause, |left| pause.min(left)), now, says)
    }

    /// Records that a gateway answers at `now`, or that another one is asked from now on.
    pub fn answered(&self, now: Instant) {
        let mut state = self.lock();
        state.answered(now);
        state.gave_up = false;
    }

    /// Returns whether a gateway has failed to answer for the administrator's time limit.
    #[must_use]
    pub fn gave_up(&self) -> bool {
        self.lock().gave_up
    }

    /// Returns whether this node waits for a gateway that answers 503 with Retry-After.
    #[must_use]
    pub const fn holds(&self) -> bool {
        !self.most.is_zero()
    }

    fn pause(&self, state: &mut WaitState, time: Duration, now: Instant, line: impl FnOnce() -> String) -> NextStep {
        state.times = state.times.saturating_add(1);
        let until = time + self.silence;
        state.deadline = now.checked_add(until).map_or(state.deadline, Deadline::at);
        let quiet = state
            .last_report
            .is_some_and(|said| now.saturating_duration_since(said) < SAY_EVERY);
        if !quiet {
            state.last_report = Some(now);
        }
        NextStep::Pause {
            time,
            until,
            line: (!quiet).then(line),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, WaitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn line(again: RetryRequest<'_>, held: Duration, left: Duration) -> String {
    let RetryRequest { url, why, what, .. } = again;
    let why = if why.is_empty() { String::new() } else { format!(" [{why}]") };
    let what = if what.is_empty() {
        String::new()
    } else {
        format!(", because: {what}")
    };
    format!(
        "waiting for {} s so far: {url} tells this node to retry{why}{what}; retrying for at most {} s, while Ignition waits; {WAY_OUT}",
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

    fn retry_later(patience: &WaitLimits, now: Instant) -> NextStep {
        let again = RetryRequest {
            url: "https://a/v1/attest",
            why: "unavailable",
            what: "the store is away",
            pause: PAUSE,
        };
        patience.retry_later(again, now)
    }

    /// Checks the total wait and the number of messages, with a request every ten seconds.
    fn check(told: &[u64], most: u64, expect: u64) {
        let patience = WaitLimits::new(SILENCE, Duration::from_secs(most), None);
        told.iter().for_each(|seconds| patience.record_wait(*seconds));
        let start = Instant::now();
        let (mut passed, mut lines) = (Duration::ZERO, 0);
        loop {
            match retry_later(&patience, start + passed) {
                NextStep::Pause { time, until, line } => {
                    assert_eq!(until, time + SILENCE);
                    let remaining = patience.deadline().remaining();
                    assert!(remaining + Duration::from_secs(5) > until + passed && remaining <= until + passed);
                    lines += u64::from(line.is_some());
                    passed += time;
                }
                NextStep::Over { held } => {
                    assert_eq!(held, passed);
                    break;
                }
                NextStep::NotHeld => break,
            }
            assert!(passed <= Duration::from_secs(100_000), "for ever");
        }
        assert_eq!(passed, Duration::from_secs(expect), "{told:?} {most}");
        assert_eq!(lines, expect.div_ceil(10));
        assert_eq!(u64::from(patience.times()), expect.div_ceil(10));
    }

    #[test]
    fn hold_time_comes_from_the_pool() {
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
    fn later_hold_time_counts_from_the_first_retry() {
        let patience = WaitLimits::new(SILENCE, Duration::MAX, None);
        let start = Instant::now();
        assert!(matches!(retry_later(&patience, start), NextStep::Pause { .. }));
        patience.record_wait(300);
        assert!(matches!(retry_later(&patience, start + Duration::from_secs(299)), NextStep::Pause { time, .. } if time.as_secs() == 1));
        assert!(matches!(retry_later(&patience, start + Duration::from_secs(300)), NextStep::Over { held } if held.as_secs() == 300));
        // Who says zero now is told so, although it held the node before it said anything.
        let patience = WaitLimits::new(SILENCE, Duration::MAX, None);
        assert!(matches!(retry_later(&patience, start), NextStep::Pause { .. }));
        patience.record_wait(0);
        assert!(matches!(retry_later(&patience, start + PAUSE), NextStep::Over { .. }));
    }

    #[test]
    fn console_states_cause_duration_limit_and_next_step() {
        let patience = WaitLimits::new(SILENCE, Duration::MAX, None);
        let start = Instant::now();
        let said = |seconds| match retry_later(&patience, start + Duration::from_secs(seconds)) {
            NextStep::Pause { line, .. } => line,
            other => panic!("{other:?}"),
        };
        let first = said(0).unwrap_or_default();
        for part in [
            "https://a/v1/attest",
            "[unavailable], because: the store is away; retrying",
            "for 0 s so far",
            "for at most 3600 s",
            "rd.systemd.mask=attest-node.service",
        ] {
            assert!(first.contains(part), "{part:?} is missing in {first}");
        }
        assert_eq!(said(9), None);
        let second = said(10).unwrap_or_default();
        assert!(
            second.contains("for 10 s so far") && second.contains("for at most 3590 s"),
            "{second}"
        );
        assert_eq!(said(19), None);
    }

    fn unanswered(patience: &WaitLimits, now: Instant) -> NextStep {
        let failure = Failure::new("gateway-unreachable", "https://a cannot be reached", "look");
        patience.unanswered(&failure, PAUSE, now)
    }

    #[test]
    fn unreachable_gateway_is_retried_without_limit() {
        let patience = WaitLimits::new(SILENCE, Duration::ZERO, None);
        let start = Instant::now();
        for seconds in (0..100_000).step_by(10) {
            let now = start + Duration::from_secs(seconds);
            let NextStep::Pause { time, until, line } = unanswered(&patience, now) else {
                panic!("gave up after {seconds} s");
            };
            assert_eq!((time, until), (PAUSE, PAUSE + SILENCE));
            let line = line.unwrap_or_default();
            for part in [
                format!("waiting for {seconds} s so far: https://a cannot be reached [gateway-unreachable]; next: look"),
                "rd.systemd.mask=attest-node.service".to_owned(),
            ] {
                assert!(line.contains(&part), "{part:?} is missing in {line}");
            }
            assert!(!line.contains("at most"), "{line}");
        }
        assert!(!patience.gave_up());
    }

    #[test]
    fn wait_limit_applies_to_each_outage() {
        let limit = Duration::from_secs(25);
        let patience = WaitLimits::new(SILENCE, Duration::ZERO, Some(limit));
        let start = Instant::now();
        let at = |seconds| unanswered(&patience, start + Duration::from_secs(seconds));
        let NextStep::Pause { line, .. } = at(0) else {
            panic!("gave up at once")
        };
        assert!(line.unwrap_or_default().contains("for at most 25 s"));
        assert!(matches!(at(20), NextStep::Pause { time, .. } if time.as_secs() == 5));
        // It has answered: what is past is past.
        patience.answered(start + Duration::from_secs(21));
        assert!(matches!(at(24), NextStep::Pause { .. }));
        assert!(matches!(at(48), NextStep::Pause { .. }));
        assert!(!patience.gave_up());
        assert!(matches!(at(49), NextStep::Over { held } if held == limit));
        assert!(patience.gave_up());
        patience.answered(start);
        assert!(!patience.gave_up());
        // Who says "come again" has answered.
        let patience = WaitLimits::new(SILENCE, Duration::MAX, Some(limit));
        assert!(matches!(unanswered(&patience, start), NextStep::Pause { .. }));
        assert!(matches!(
            retry_later(&patience, start + Duration::from_secs(24)),
            NextStep::Pause { .. }
        ));
        assert!(matches!(
            unanswered(&patience, start + Duration::from_secs(48)),
            NextStep::Pause { .. }
        ));
    }

    #[test]
    fn outage_does_not_count_towards_the_hold_time() {
        let patience = WaitLimits::new(SILENCE, Duration::MAX, None);
        patience.record_wait(100);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(matches!(retry_later(&patience, start), NextStep::Pause { .. }));
        assert!(matches!(unanswered(&patience, after(10)), NextStep::Pause { .. }));
        // Off for an hour, and back.
        assert!(matches!(retry_later(&patience, after(3610)), NextStep::Pause { .. }));
        assert!(matches!(retry_later(&patience, after(3699)), NextStep::Pause { time, .. } if time.as_secs() == 1));
        assert!(matches!(retry_later(&patience, after(3700)), NextStep::Over { held } if held.as_secs() == 100));
        assert_eq!((patience.times(), patience.held()), (4, 3));
    }

    #[test]
    fn deadline_applies_before_any_retry_request() {
        let patience = WaitLimits::new(SILENCE, Duration::MAX, None);
        assert!(patience.deadline().remaining() <= SILENCE);
        assert!(patience.work().remaining() <= SILENCE - REPORT_TIME);
        patience.record_wait(HOUR);
        assert!(patience.deadline().remaining() <= SILENCE);
    }
}
