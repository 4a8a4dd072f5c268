//! Admission: who waits, and who is told to come again.
//!
//! Whoever has proven nothing costs little and holds nothing that others need. Each limit is for the whole gateway, and is shared out among
//! sources when there is not enough: a source may have all that nobody else wants, so that a thousand good machines behind one address boot
//! at once all the same.

mod bodies;
mod shares;
mod source;
mod turns;
mod verification;
mod wrong;

pub use bodies::{Bodies, NoBody, Whole};
pub use shares::{GRACE, NoRoom, Share, Shares};
pub use source::Source;
pub use turns::{TooBusy, Turn, Turns};
pub use verification::Verification;
pub use wrong::{Wrong, WrongCredentials};

use crate::settings::Limits;

/// Everything that sources share.
#[derive(Debug)]
pub struct Admission {
    /// Bodies under way, in bytes.
    pub bodies: Bodies,
    /// Requests in work.
    pub requests: Turns,
    /// What takes the processor.
    pub verification: Verification,
    /// Credentials that turned out wrong.
    pub wrong: WrongCredentials,
}

impl Admission {
    /// Within these limits.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            bodies: Bodies::new(limits.body_bytes, limits.request),
            requests: Turns::new(limits.requests),
            verification: Verification::default(),
            wrong: WrongCredentials::default(),
        }
    }
}
