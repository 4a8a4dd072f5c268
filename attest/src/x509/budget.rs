//! A bound on the one thing in a chain that costs: verifying signatures.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls_pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

/// Limit on the signatures that are verified for one chain. webpki's own budget is 100, at up to a millisecond each.
#[derive(Debug)]
pub struct SignatureBudget {
    left: AtomicUsize,
    limit: usize,
}

impl SignatureBudget {
    /// A budget of so many signatures.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self {
            left: AtomicUsize::new(limit),
            limit,
        }
    }

    /// Returns webpki's own budget of 100 signatures, for chains whose sender has little to choose.
    #[must_use]
    pub const fn webpki_default() -> Self {
        Self::new(usize::MAX)
    }

    /// Returns the same algorithms, each verification of which is charged to this budget.
    #[must_use]
    pub fn limit<'b>(&'b self, algorithms: &[&'b dyn SignatureVerificationAlgorithm]) -> Vec<Budgeted<'b>> {
        algorithms
            .iter()
            .map(|algorithm| Budgeted {
                algorithm: *algorithm,
                budget: self,
            })
            .collect()
    }

    /// Returns the number of signatures that were verified.
    #[must_use]
    pub fn spent(&self) -> usize {
        self.limit.saturating_sub(self.left.load(Ordering::Relaxed))
    }

    /// Returns whether the budget is exhausted. A refusal may then be due to the budget alone.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    fn spend(&self) -> Result<(), InvalidSignature> {
        let spend = |left: usize| left.checked_sub(1);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
            .map(drop)
            .map_err(|_| InvalidSignature)
    }
}

/// An algorithm whose use is counted. Beyond the budget no signature is looked at, and none holds.
pub struct Budgeted<'b> {
    algorithm: &'b dyn SignatureVerificationAlgorithm,
    budget: &'b SignatureBudget,
}

impl<'b> Budgeted<'b> {
    /// The form in which webpki takes algorithms.
    #[must_use]
    pub fn as_algorithms(all: &'b [Self]) -> Vec<&'b dyn SignatureVerificationAlgorithm> {
        all.iter().map(|one| -> &dyn SignatureVerificationAlgorithm { one }).collect()
    }
}

impl fmt::Debug for Budgeted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithm.fmt(f)
    }
}

impl SignatureVerificationAlgorithm for Budgeted<'_> {
    fn verify_signature(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        self.budget.spend()?;
        self.algorithm.verify_signature(public_key, message, signature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.algorithm.signature_alg_id()
    }
}
