//! The JWT profile of Google's identity tokens: their issuer, and their limits in time.

/// Who signs identity tokens: the `iss` claim, exactly.
pub const ISSUER: &str = "https://accounts.google.com";

/// How far Google's clock and the gateway's may differ, in seconds.
pub const CLOCK_SKEW_SECONDS: u64 = 60;

/// Longest time for which a token may be valid, in seconds: Google's are for one hour.
pub const LIFETIME_LIMIT_SECONDS: u64 = 3600;

/// Oldest token that is accepted, in seconds. A node asks for it after it was given the challenge, and sends it at once.
pub const AGE_LIMIT_SECONDS: u64 = 600;
