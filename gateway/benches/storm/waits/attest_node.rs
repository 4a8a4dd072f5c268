//! Pauses and timeouts of `attest-node`. Their figures are those of its `exchange.rs`, `http.rs` and `attestation/mod.rs`; a test keeps
//! them equal.

use std::time::{Duration, Instant};

use attest::protocol::HOLD_LIMIT_SECONDS;

use crate::deadline::Backoff;
use crate::failure::Failure;
use crate::wait_limits::{NextStep, RetryRequest, WaitLimits};

/// Timeout for a node's own work: the default of `--deadline`.
pub const SILENCE: Duration = Duration::from_secs(60);
pub const CONNECT_LIMIT: Duration = Duration::from_secs(30);
pub const REQUEST_LIMIT: Duration = Duration::from_secs(45);
pub const RETRY_AFTER_LIMIT_SECONDS: u64 = 60;
pub const SLOWEST_BODY_BYTES_PER_SECOND: u64 = 64 * 1024;
pub const PARTIAL_OUTAGE_PARTS: u32 = 10;
pub const CHALLENGES_LIMIT: usize = 3;

/// Returns the patience of a node that has just started.
pub fn patience() -> WaitLimits {
    WaitLimits::new(SILENCE, Duration::from_secs(HOLD_LIMIT_SECONDS), None)
}

/// Request that is repeated until there is an answer.
#[derive(Debug)]
pub struct Asking {
    backoff: Backoff,
    since: Instant,
}

impl Asking {
    pub fn begun(now: Instant) -> Self {
        Self {
            backoff: Backoff::default(),
            since: now,
        }
    }

    /// Handles a 503 of the gateway. Returns the pause, or the code with which the node gives up.
    pub fn held(
        &mut self,
        patience: &WaitLimits,
        code: &str,
        not_before: Option<Duration>,
        now: Instant,
    ) -> Result<Duration, &'static str> {
        let pause = self.backoff.held(not_before);
        match patience.retry_later(
            RetryRequest {
                url: "",
                why: code,
                what: "",
                pause,
            },
            now,
        ) {
            NextStep::Pause { time, .. } => {
                self.since = now + time;
                Ok(time)
            }
            NextStep::Over { .. } | NextStep::NotHeld => Err("retry-limit-exceeded"),
        }
    }

    /// Handles a missing answer. A gateway that may still have configs is given up at once, which is sooner than in `attest-node`, which
    /// asks it.
    pub fn unanswered(&mut self, patience: &WaitLimits, soon: bool, now: Instant) -> Result<Duration, &'static str> {
        if now.saturating_duration_since(self.since) >= SILENCE * if soon { 1 } else { PARTIAL_OUTAGE_PARTS } {
            return Err("gateway-unreachable");
        }
        let failure = Failure::new("gateway-unreachable", "", "");
        match patience.unanswered(&failure, self.backoff.endless(), now) {
            NextStep::Pause { time, .. } => Ok(time),
            NextStep::Over { .. } | NextStep::NotHeld => Err("gateway-unreachable"),
        }
    }
}
