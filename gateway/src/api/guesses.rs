//! Counting of wrong credentials.

use std::net::IpAddr;
use std::sync::Arc;

use attest::UnixTime;

use super::gateway::Gateway;
use super::problem::Refusal;
use crate::admission::{Admission, FailureOutcome};
use crate::metrics::Metrics;

/// Counter of wrong credentials per source.
#[derive(Debug)]
pub(super) struct Guesses {
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
}

impl Guesses {
    pub(super) fn new(gateway: &Gateway) -> Self {
        Self {
            admission: Arc::clone(&gateway.admission),
            metrics: Arc::clone(&gateway.metrics),
        }
    }

    /// Counts a wrong credential. A source with too many gets 503, so that a rack of good machines with a dead pointer waits and is not
    /// refused. That is not recorded, so that guessing does not fill the disk. Right credentials are never counted.
    pub(super) fn count_failure(&self, peer: IpAddr, now: UnixTime, refusal: Refusal) -> Refusal {
        let FailureOutcome::TooMany { tell } = self.admission.wrong_credentials.count(self.admission.source(peer), now) else {
            return refusal;
        };
        self.metrics.guess_ignored();
        if tell {
            tracing::warn!(%peer, "too many wrong tokens, tickets or client certificates: answering 503 to wrong ones");
        }
        Refusal::unavailable()
    }
}
