//! The evidence of one request, with the pool and the time of its decision.

use std::net::IpAddr;
use std::sync::Arc;

use attest::protocol::Evidence;
use attest::{Challenge, UnixTime};
use attest_pool::Pool;

use crate::admission::ClientSource;

/// Subject of a decision, with its pool and its time.
#[derive(Clone)]
pub(super) struct EvidenceAsked<'r> {
    pub pool: Arc<Pool>,
    pub challenge: &'r Challenge,
    pub evidence: &'r Evidence,
    pub peer: IpAddr,
    /// The source that its turns at the processor are counted for.
    pub source: ClientSource,
    pub now: UnixTime,
}
