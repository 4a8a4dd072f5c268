//! What evidence of clouds is held against: gathered for one request, kept for its record.

use std::sync::Arc;

use attest::endorsements::CloudEndorsements;
use attest::{Claims, Endorsements, Submission};

use super::Gateway;
use super::evidence::Asked;
use super::problem::Refusal;
use crate::audit::Basis;

/// What one request's evidence is held against.
#[derive(Debug, Default)]
pub(super) struct Anchors {
    clouds: CloudEndorsements,
    blobs: Vec<(String, Vec<u8>)>,
}

impl Anchors {
    /// Gets what the challenge's kinds need.
    pub(super) async fn gather(&mut self, _gateway: &Gateway, _asked: &Asked<'_>, _basis: &mut Basis) -> Result<(), Refusal> {
        Ok(())
    }

    /// Verifies the evidence.
    pub(super) async fn verify(
        &mut self,
        _gateway: &Gateway,
        asked: &Asked<'_>,
        endorsements: &Endorsements,
        basis: &Basis,
    ) -> Result<Claims, Refusal> {
        let endorsements = endorsements.clone().with_clouds(self.clouds.clone());
        let submission = Submission::new(asked.opened.peek(), asked.evidence, &basis.server_keys);
        Ok(attest::verify(&submission, &endorsements, asked.now)?)
    }

    pub(super) async fn redeem_token(&self, _gateway: &Gateway, _asked: &Asked<'_>) -> Result<Option<String>, Refusal> {
        Ok(None)
    }

    /// What the record names, to be kept beside it.
    pub(super) fn into_blobs(self) -> Vec<(String, Vec<u8>)> {
        self.blobs
    }
}

impl Gateway {
    /// The gateway's own name, for evidence that says whom it is for.
    pub(super) fn own_name(&self) -> &str {
        "gateway"
    }

    pub(super) fn vtpm_roots(&self) -> Arc<attest::gcp::vtpm::VtpmRoots> {
        Arc::new(attest::gcp::vtpm::VtpmRoots::load(Vec::new(), Vec::new()).0)
    }

    pub(super) fn vtpm_root_blobs(&self) -> Vec<String> {
        Vec::new()
    }
}
