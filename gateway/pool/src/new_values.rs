//! `[new_values]` of `pool.toml`: what becomes of machines whose boots have what no reference value has.

use attest::AppraisalPolicy;
use attest_log::Earns;
use serde::Deserialize;

/// Most machines that a pool can want: more than boot one after the other in a first part of any roll-out.
const MACHINES_WANTED: std::ops::RangeInclusive<usize> = 1..=1000;
/// For how long a machine that has shown a value can count, in hours: at most a month.
const WINDOW_HOURS: std::ops::RangeInclusive<u64> = 1..=720;

/// What a pool does with values that are new to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewValueRules {
    /// How many machines have shown a value before the administrator is asked.
    pub machines: usize,
    /// How long a machine that has shown something counts, and a question stands, in seconds.
    pub window_seconds: u64,
    /// How long a machine is told to come again at most, in seconds, counted from when it showed this first.
    pub wait_seconds: u64,
}

impl NewValueRules {
    /// After how long a machine that waits comes again, in seconds: soon where it does not wait for long, and not oftener than is worth a quote and its
    /// verification. Nodes heed no more than a minute.
    #[must_use]
    pub fn again_seconds(&self) -> u16 {
        u16::try_from((self.wait_seconds / 20).clamp(5, 60)).unwrap_or(60)
    }
}

const SECONDS_PER_MINUTE: u64 = 60;
const SECONDS_PER_HOUR: u64 = 3600;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Section {
    machines: usize,
    window_hours: u64,
    wait_minutes: u64,
}

impl Default for Section {
    /// Two machines of a pool have had the same update; one alone may be anything. A roll-out's first machines boot within a day, and half an hour is what nodes
    /// wait anyway, twice.
    fn default() -> Self {
        Self {
            machines: 2,
            window_hours: 24,
            wait_minutes: 30,
        }
    }
}

impl Section {
    /// Checked against what else the file says: where nobody would ever wait, it cannot be meant.
    pub(super) fn rules(self, policy: &AppraisalPolicy, attested: Earns, hold_seconds: u64) -> Result<NewValueRules, String> {
        let Self {
            machines,
            window_hours,
            wait_minutes,
        } = self;
        if !policy.wants_reference_sets() {
            return Err(
                "no rule looks for reference values, so that none is new: say \"reference values\" for a PCR, or name checks in boot"
                    .to_owned(),
            );
        }
        if attested == Earns::Refuse {
            return Err("grants.attested is \"refuse\": there is nothing to wait for".to_owned());
        }
        if !MACHINES_WANTED.contains(&machines) {
            let (least, most) = (MACHINES_WANTED.start(), MACHINES_WANTED.end());
            return Err(format!("machines is {machines}; {least} to {most} can be"));
        }
        if !WINDOW_HOURS.contains(&window_hours) {
            let (least, most) = (WINDOW_HOURS.start(), WINDOW_HOURS.end());
            return Err(format!("window_hours is {window_hours}; {least} to {most} can be"));
        }
        let wait_seconds = wait_minutes.saturating_mul(SECONDS_PER_MINUTE);
        let window_seconds = window_hours.saturating_mul(SECONDS_PER_HOUR);
        // A node that has waited for that long asks for what a stranger gets, whatever the gateway would still have said.
        if wait_seconds == 0 || wait_seconds > hold_seconds {
            return Err(format!(
                "wait_minutes is {wait_minutes}; it has to be at least 1, and no more than nodes wait that are told to come again: attestation.hold_seconds, {hold_seconds}"
            ));
        }
        Ok(NewValueRules {
            machines,
            window_seconds,
            wait_seconds,
        })
    }
}
