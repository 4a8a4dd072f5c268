//! Section `[waiting]` of `pool.toml`: rules for machines that wait for an administrator's answer.

use attest_log::Earns;
use serde::Deserialize;

/// Allowed numbers of machines before the administrator is asked: at most more than boot in a first part of any roll-out.
const MACHINES_WANTED: std::ops::RangeInclusive<usize> = 1..=1000;
/// Allowed windows in which a machine that has shown a value counts, in hours: at most a month.
const WINDOW_HOURS: std::ops::RangeInclusive<u64> = 1..=720;

/// A pool's rules for machines that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingRules {
    /// Number of machines that must boot a value before the administrator is asked about it.
    pub machines: usize,
    /// Time for which a waiting machine counts, and a question stays, in seconds.
    pub window_seconds: u64,
    /// Maximum time for which a machine must retry, in seconds, from when its question began.
    pub wait_seconds: u64,
    /// Reaction to machines that nobody has enrolled.
    pub unknown: UnknownMachines,
}

/// Reaction to a machine whose TPM nobody endorses, or that the pool's inventory does not list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownMachines {
    /// The machine is refused at once.
    #[default]
    Refuse,
    /// The machine waits until the administrator has answered.
    Wait,
}

impl WaitingRules {
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
pub(super) struct WaitingSection {
    machines: usize,
    window_hours: u64,
    wait_minutes: u64,
    unknown: UnknownMachines,
}

impl Default for WaitingSection {
    /// A roll-out's first machines boot within a day. Half an hour is half of what nodes wait by default.
    fn default() -> Self {
        Self {
            machines: 1,
            window_hours: 24,
            wait_minutes: 30,
            unknown: UnknownMachines::default(),
        }
    }
}

impl WaitingSection {
    /// Checks the section against the rest of the file; refuses rules by which no machine could ever wait.
    pub(super) fn rules(self, attested: Earns, hold_seconds: u64) -> Result<WaitingRules, String> {
        let Self {
            machines,
            window_hours,
            wait_minutes,
            unknown,
        } = self;
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
        Ok(WaitingRules {
            machines,
            window_seconds,
            wait_seconds,
            unknown,
        })
    }
}
