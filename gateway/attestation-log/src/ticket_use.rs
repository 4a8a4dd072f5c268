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
