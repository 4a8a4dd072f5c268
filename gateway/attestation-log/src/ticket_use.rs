//! Uses of tickets and provisioning tokens.

/// Which use of a ticket or token a config was served for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    pub number: u32,
    /// Whether its node had made it before.
    pub again: bool,
    /// How long after the ticket had expired, seconds, if it had.
    pub late_seconds: Option<u64>,
}
