//! Section `[new_values]` of `pool.toml`: rules for machines whose boots have values without a reference value.

use attest::AppraisalPolicy;
use attest_log::Earns;
use serde::Deserialize;

/// Allowed numbers of machines before the administrator is asked: at most more than boot in a first part of any roll-out.
const MACHINES_WANTED: std::ops::RangeInclusive<usize> = 1..=1000;
/// Allowed windows in which a machine that has shown a value counts, in hours: at most a month.
const WINDOW_HOURS: std::ops::RangeInclusive<u64> = 1..=720;

/// A pool's rules for new values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewValueRules {
    /// Number of machines that must show a value before the administrator is asked.
    pub machines: usize,
    /// Time for which a machine with a new value counts, and a question stays, in seconds.
    pub window_seconds: u64,
    /// Maximum time for which a machine must retry, in seconds, from when it first showed the values.
    pub wait_seconds: u64,
}

impl NewValueRules {
    /// Returns the time until a waiting machine retries, in seconds. It is short for a short wait, but not shorter than a quote and its
    /// verification are worth. Nodes accept at most a minute.
    #[must_use]
    pub fn retry_seconds(&self) -> u16 {
        u16::try_from((self.wait_seconds / 20).clamp(5, 60)).unwrap_or(60)
    }
}

const SECONDS_PER_MINUTE: u64 = 60;
const SECONDS_PER_HOUR: u64 = 3600;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NewValuesSection {
    machines: usize,
    window_hours: u64,
    wait_minutes: u64,
}

impl Default for NewValuesSection {
    /// Two machines of a pool that show the same value probably had an update; one alone may be anything. A roll-out's first machines boot
    /// within a day. Half an hour is half of what nodes wait by default.
    fn default() -> Self {
        Self {
            machines: 2,
            window_hours: 24,
            wait_minutes: 30,
        }
    }
}

impl NewValuesSection {
    /// Checks the section against the rest of the file; refuses rules by which no machine could ever wait.
    pub(super) fn rules(self, policy: &AppraisalPolicy, attested: Earns, hold_seconds: u64) -> Result<NewValueRules, String> {
        let Self {
            machines,
            window_hours,
            wait_minutes,
        } = self;
        if !policy.wants_reference_sets() {
            return Err(
                "no rule uses reference values, so no value can be new: set \"reference values\" for a PCR, or name checks in boot"
                    .to_owned(),
            );
        }
        if attested == Earns::Refuse {
            return Err("grants.attested is \"refuse\": there is nothing to wait for".to_owned());
        }
        if !MACHINES_WANTED.contains(&machines) {
            let (least, most) = (MACHINES_WANTED.start(), MACHINES_WANTED.end());
            return Err(format!("machines is {machines}; allowed are {least} to {most}"));
        }
        if !WINDOW_HOURS.contains(&window_hours) {
            let (least, most) = (WINDOW_HOURS.start(), WINDOW_HOURS.end());
            return Err(format!("window_hours is {window_hours}; allowed are {least} to {most}"));
        }
        let wait_seconds = wait_minutes.saturating_mul(SECONDS_PER_MINUTE);
        let window_seconds = window_hours.saturating_mul(SECONDS_PER_HOUR);
        // A node that has waited for that long asks for what a stranger gets, whatever the gateway would still have said.
        if wait_seconds == 0 || wait_seconds > hold_seconds {
            return Err(format!(
                "wait_minutes is {wait_minutes}; it must be at least 1, and not longer than attestation.hold_seconds, {hold_seconds}"
            ));
        }
        Ok(NewValueRules {
            machines,
            window_seconds,
            wait_seconds,
        })
    }
}
