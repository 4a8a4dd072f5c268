//! Lifetimes of challenges and tickets.

use std::time::Duration;

use serde::Deserialize;

use attest_log::TICKET_LATE_LIMIT_SECONDS;

use super::Fault;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TicketSettings {
    /// Time for which a ticket is valid.
    pub lifetime: Duration,
    /// Grace period after it in which a ticket that was not used yet is still valid.
    pub late: Duration,
    /// Number of fetches that a ticket is valid for.
    pub uses: u32,
}

impl TicketSettings {
    /// Returns the longest time from a ticket's issue to its end: first used at the end of the grace period, and then for a lifetime.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        let latest = self.lifetime.saturating_add(self.late);
        if self.late.is_zero() {
            latest
        } else {
            latest.saturating_add(self.lifetime)
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ChallengeSection {
    lifetime_seconds: u32,
}

impl Default for ChallengeSection {
    fn default() -> Self {
        // The slowest TPMs take tens of seconds to activate and quote.
        Self { lifetime_seconds: 120 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TicketSection {
    lifetime_seconds: u32,
    late_seconds: u32,
    uses: u32,
}

impl Default for TicketSection {
    fn default() -> Self {
        // Ignition fetches within seconds; it may retry after a lost answer, and not for ever.
        Self {
            lifetime_seconds: 600,
            // A gateway may be away between attestation and fetch: overnight, for a power cut.
            late_seconds: 86_400,
            uses: 4,
        }
    }
}

/// Returns the time in which a challenge can be answered.
pub(super) fn challenge_lifetime(section: &ChallengeSection) -> Result<Duration, Fault> {
    seconds("challenge.lifetime_seconds", section.lifetime_seconds, (900, "1 to 900 seconds"))
}

pub(super) fn ticket_settings(section: &TicketSection) -> Result<TicketSettings, Fault> {
    let TicketSection {
        lifetime_seconds,
        late_seconds,
        uses,
    } = *section;
    if u64::from(late_seconds) > TICKET_LATE_LIMIT_SECONDS {
        return Err(("ticket.late_seconds", late_seconds.to_string(), "0 to 604800 seconds"));
    }
    if uses == 0 || uses > 100 {
        return Err(("ticket.uses", uses.to_string(), "1 to 100"));
    }
    Ok(TicketSettings {
        lifetime: seconds("ticket.lifetime_seconds", lifetime_seconds, (86_400, "1 to 86400 seconds"))?,
        late: Duration::from_secs(late_seconds.into()),
        uses,
    })
}

/// Returns a duration of so many seconds, if there is at least one and no more than `most`. `allowed` is the range for people.
pub(super) fn seconds(key: &'static str, value: u32, (most, allowed): (u32, &'static str)) -> Result<Duration, Fault> {
    if value == 0 || value > most {
        return Err((key, value.to_string(), allowed));
    }
    Ok(Duration::from_secs(value.into()))
}
