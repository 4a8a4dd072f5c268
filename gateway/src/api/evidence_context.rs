//! The evidence of one request, with the pool and the time of its decision.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use attest::protocol::Evidence;
use attest::{AppraisalPolicy, Challenge, UnixTime};
use attest_pool::Pool;

use super::config_formats::WantedFormats;
use crate::admission::ClientSource;

/// Subject of a decision, with its pool and its time.
#[derive(Clone)]
pub(super) struct EvidenceAsked<'r> {
    pub pool: Arc<Pool>,
    pub challenge: &'r Challenge,
    pub evidence: &'r Evidence,
    /// Forms of the config that the node takes.
    pub formats: WantedFormats,
    pub peer: IpAddr,
    /// The source that its turns at the processor are counted for.
    pub source: ClientSource,
    pub now: UnixTime,
}

impl EvidenceAsked<'_> {
    /// Returns the policy that decides.
    pub(super) fn policy(&self) -> Cow<'_, AppraisalPolicy> {
        policy(&self.pool, self.challenge.is_rehearsal())
    }
}

/// Returns the policy of a pool; in a rehearsal, that of a machine that would be booting now.
pub(super) fn policy(pool: &Pool, is_rehearsal: bool) -> Cow<'_, AppraisalPolicy> {
    match is_rehearsal {
        true => Cow::Owned(pool.policy.after_boot()),
        false => Cow::Borrowed(&pool.policy),
    }
}
