//! Chains of certificates that strangers send: what they may end at, by what they are held to be good, and what building and verifying them may cost.
//!
//! [`TrustAnchors`] are the CAs that an administrator trusts. [`TrustAnchors::validate`] looks for a path from a leaf to one of them, by webpki (RFC 5280), and
//! looks at what webpki does not: names that are the same although they are spelled in other bytes (`canonical`, `spelling`), parameters of
//! algorithms that mean the same (`signatures`), and an anchor's own validity and path length, as OpenSSL and Go do and RFC 5280 (6.1.1 d) leaves open. What else a kind
//! of evidence asks of its CAs (their keys, their usages) and of its leaves it says in its own room.

mod anchors;
mod budget;
mod ca;
pub(crate) mod canonical;
pub(crate) mod names;
mod path;
pub(crate) mod signatures;
mod spelling;
mod validation;

pub(crate) use attest_wire::der;

pub use anchors::{Anchor, TrustAnchors, Unusable};
pub use budget::{Budgeted, SignatureBudget};
pub use ca::{Ca, CaKey, NoCa};
pub use path::PathEnd;
pub use validation::{PathProblem, Terms, ValidPath, no_more};
