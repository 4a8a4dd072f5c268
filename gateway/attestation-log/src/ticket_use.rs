//! Uses of tickets and provisioning tokens.

/// The use of a ticket or token that a config was served for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    pub number: u32,
    /// Set if its node had made it before.
    pub again: bool,
    /// Seconds since the ticket had expired, if it had.
    pub late_seconds: Option<u64>,
}

/// How long a ticket that was not used can be good at most after its lifetime, in seconds. A week: a gateway that was away for longer is a site that is
/// provisioned anew; and the store remembers for as long what was used.
pub const TICKET_LATE_LIMIT_SECONDS: u64 = 7 * 86_400;
