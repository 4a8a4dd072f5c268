//! Trust anchors for evidence of clouds: gathered for one request, kept for its record.

use std::sync::Arc;

use attest::aws::sts;
use attest::endorsements::CloudEndorsements;
use attest::gcp::GcpError;
use attest::protocol::{Blob, Evidence};
use attest::{Claims, Endorsements, Kind, Reject, StsCall, Submission};
use attest_log::{Basis, Blobs, CloudBasis, LargeParts, RecordedAnswer};
use attest_pool::{Pool, PoolInventory};

use super::effort;
use super::endorsers::Endorsers;
use super::evidence_context::EvidenceAsked;
use super::problem::Refusal;
use crate::admission::{TooBusy, Verification};
use crate::cloud::{AzureTrustInUse, Clouds, GoogleKeysInUse};

/// Maximum number of repeated verifications after newer keys or certificates were found: one for each cloud that has such updates.
const RETRIES: usize = 2;

/// Trust anchors for the evidence of one request.
#[derive(Debug, Default)]
pub(super) struct RequestAnchors {
    clouds: CloudEndorsements,
    google_keys: Option<Arc<GoogleKeysInUse>>,
    /// Blobs that the record names and that may still have to be stored.
    large_parts: LargeParts,
}

impl RequestAnchors {
    /// Gets what the challenge's kinds need: what is configured, and what was fetched.
    ///
    /// # Errors
    /// `cloud-unavailable`.
    pub(super) async fn gather(&mut self, endorsers: &Endorsers, asked: &EvidenceAsked<'_>, basis: &mut Basis) -> Result<(), Refusal> {
        let (clouds, kept) = (&endorsers.clouds, &endorsers.cloud_blobs);
        for kind in asked.challenge.subject.kinds() {
            match kind {
                Kind::Gcp => self.use_google_keys(clouds.google_keys(asked.now).await?, &mut basis.cloud),
                // An empty folder is no trust at all, here as in the record.
                Kind::AwsIdentityDocument => {
                    let there = !kept.region_certificates.is_empty();
                    self.clouds.region_certificates = there.then(|| Arc::clone(clouds.region_certificates()));
                    basis.cloud.region_certificates.clone_from(&kept.region_certificates);
                }
                Kind::AwsNitroTpm => {
                    self.clouds.nitro_roots = (!kept.nitro_roots.is_empty()).then(|| Arc::clone(clouds.nitro_roots()));
                    basis.cloud.nitro_roots.clone_from(&kept.nitro_roots);
                }
                Kind::Azure => self.use_azure_trust(clouds.azure_trust(), kept, &mut basis.cloud),
                Kind::AzureVtpm => {
                    self.clouds.azure_vtpm = (!kept.azure_vtpm_roots.is_empty()).then(|| Arc::clone(clouds.azure_vtpm_roots()));
                    basis.cloud.azure_vtpm_roots.clone_from(&kept.azure_vtpm_roots);
                }
                Kind::Tpm | Kind::AwsSts | Kind::Token => {}
            }
        }
        Ok(())
    }

    fn use_google_keys(&mut self, keys: Arc<GoogleKeysInUse>, basis: &mut CloudBasis) {
        basis.google_keys = Some(self.keep(&keys.jwks));
        self.clouds.google_keys = Some(Arc::clone(&keys.keys));
        self.google_keys = Some(keys);
    }

    fn use_azure_trust(&mut self, in_use: AzureTrustInUse, kept: &CloudBasis, basis: &mut CloudBasis) {
        basis.azure_clouds = in_use.trust.clouds().to_vec();
        basis.azure_certificates = in_use
            .certificates
            .iter()
            .map(|certificate| {
                let name = Blobs::name(certificate);
                if kept.azure_certificates.contains(&name) {
                    name
                } else {
                    self.keep(certificate)
                }
            })
            .collect();
        self.clouds.azure = (!basis.azure_certificates.is_empty()).then_some(in_use.trust);
    }

    /// Keeps the sets of reference values that the policy names by their digests.
    pub(super) fn use_reference_sets(&mut self, pool: &Pool) {
        let names = pool.policy.reference_sets().iter().map(ToString::to_string);
        self.large_parts.extend(names.zip(pool.reference_sets.iter().cloned()));
    }

    /// Notes which machines may join: the pool's whole inventory.
    pub(super) fn use_inventory(&mut self, inventory: &PoolInventory, basis: &mut Basis) {
        basis.inventory = Some(self.keep(inventory.text().as_bytes()));
    }

    fn keep(&mut self, content: &[u8]) -> String {
        let name = Blobs::name(content);
        self.large_parts.push((name.clone(), content.into()));
        name
    }

    /// Verifies the evidence; again, if a cloud has signed with a key or certificate that only an update has. The inner error is the
    /// verification's refusal.
    ///
    /// # Errors
    /// [`TooBusy`].
    pub(super) async fn verify(
        &mut self,
        endorsers: &Endorsers,
        verification: &Verification,
        asked: &EvidenceAsked<'_>,
        endorsements: &Endorsements,
        basis: &mut Basis,
    ) -> Result<Result<Claims, Reject>, TooBusy> {
        let asked_of = asked.challenge.subject.tpm.as_ref();
        let length = effort::estimate_evidence(asked.evidence, asked_of.map(|tpm| &tpm.attester));
        let mut retries = 0;
        loop {
            let sts = match (&basis.cloud.sts_answer, asked.pool.policy.aws_sts()) {
                (Some(answer), Some(rules)) => Some(StsCall {
                    rules,
                    answer: answer.as_answer(),
                }),
                _ => None,
            };
            let submission = Submission {
                sts,
                token: basis.cloud.token.as_deref(),
                ..Submission::new(asked.challenge, asked.evidence, &basis.server_keys)
            };
            let endorsements = endorsements.clone().with_clouds(self.clouds.clone());
            let verify = || attest::verify(&submission, &endorsements, asked.now);
            let reject = match verification.run(asked.source, length, verify).await? {
                Ok(claims) => return Ok(Ok(claims)),
                Err(reject) => reject,
            };
            retries += 1;
            if retries > RETRIES || !self.learn(endorsers, asked, &reject, &mut basis.cloud).await {
                return Ok(Err(reject));
            }
        }
    }

    /// Returns whether newer keys or certificates were found after this refusal, and adopts them.
    async fn learn(&mut self, endorsers: &Endorsers, asked: &EvidenceAsked<'_>, reject: &Reject, basis: &mut CloudBasis) -> bool {
        match (reject, &self.google_keys, &asked.evidence.azure) {
            (Reject::Gcp(GcpError::KeyUnknown { .. }), Some(keys), _) => {
                let newer = endorsers.clouds.newer_google_keys(keys, asked.now).await;
                newer.map(|newer| self.use_google_keys(newer, basis)).is_some()
            }
            (Reject::Azure(error), _, Some(evidence)) if error.is_unknown_issuer() => {
                let signature = evidence.signature.0.as_bytes();
                let completed = endorsers.clouds.completed_azure_trust(signature, asked.now).await;
                completed
                    .map(|trust| self.use_azure_trust(trust, &endorsers.cloud_blobs, basis))
                    .is_some()
            }
            _ => false,
        }
    }

    /// Returns the blobs that the record names, to be stored with it.
    pub(super) fn into_large_parts(self) -> LargeParts {
        self.large_parts
    }
}

/// Sends the node's request to AWS STS, if it is one that may be sent, and what has come of it is not `known` already.
///
/// # Errors
/// Those of the check of the request, and `cloud-unavailable`.
pub(super) async fn ask_sts(
    clouds: &Clouds,
    asked: &EvidenceAsked<'_>,
    server_keys: &[attest::SpkiSha256],
    known: Option<&RecordedAnswer>,
) -> Result<Option<RecordedAnswer>, Refusal> {
    let (
        Evidence {
            aws_sts: Some(evidence), ..
        },
        Some(rules),
    ) = (asked.evidence, asked.pool.policy.aws_sts())
    else {
        return Ok(None);
    };
    let expected = asked.challenge.binding(server_keys);
    let request = sts::check(&evidence.request, rules, &expected, asked.now).map_err(Reject::from)?;
    if known.is_some() {
        return Ok(known.cloned());
    }
    let answer = clouds.ask_sts(&request).await?;
    Ok(Some(RecordedAnswer {
        status: answer.status,
        content_type: answer.content_type,
        body: Blob(answer.body),
    }))
}
