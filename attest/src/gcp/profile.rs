//! The JWT profile of Google's identity tokens: their issuer, and their limits in time.

/// The issuer of identity tokens: the exact `iss` claim.
pub const ISSUER: &str = "https://accounts.google.com";

/// The largest difference between Google's clock and the gateway's, in seconds.
pub const CLOCK_SKEW_SECONDS: u64 = 60;

/// Longest time for which a token may be valid, in seconds: Google's are for one hour.
pub const LIFETIME_LIMIT_SECONDS: u64 = 3600;

/// Age of the oldest token that is accepted, in seconds. A node asks for a token when it has the challenge, and sends it at once.
pub const AGE_LIMIT_SECONDS: u64 = 600;
