//! Uses of tickets and provisioning tokens.

/// The use of a ticket or token that a config was served for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TicketUse {
    pub number: u32,
    /// Set if its node had made it before.
    pub is_repeated: bool,
    /// Seconds since the ticket had expired, if it had.
    pub late_seconds: Option<u64>,
}

/// Longest grace period of an unused ticket after its lifetime, in seconds. A week: a site whose gateway was away for longer has to be
/// provisioned again. The store remembers uses for as long.
pub const TICKET_LATE_LIMIT_SECONDS: u64 = 7 * 86_400;
