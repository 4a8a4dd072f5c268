//! The subjects of rules on what was booted.

use attest::tpm::rules::Check;

/// What a rule could be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thing {
    Pcr(u8),
    Boot(Check),
}
