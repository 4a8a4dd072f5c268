//! The subjects of rules on what was booted.

use attest::tpm::rules::Check;

/// The subject of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleSubject {
    Pcr(u8),
    Boot(Check),
}
