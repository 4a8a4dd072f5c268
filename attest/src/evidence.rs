//! Evidence: from what a node sent to what it has proven.

use rustls_pki_types::UnixTime;

use crate::aws::identity_document::ClaimedDocument;
use crate::aws::nitro_tpm::NitroTpmSubject;
use crate::aws::sts::{Answer, StsRules};
use crate::aws::{identity_document, nitro_tpm, sts};
use crate::azure::attested_document::{self, AttestedDocumentError, AzureSubject, ImdsNonce, NonceForm, VerifiedAttestedDocument};
use crate::challenge::{Challenge, Subject};
use crate::claims::{Claims, NodeIdentity, Proven};
use crate::endorsements::Endorsements;
use crate::gcp::{self, Audience};
use crate::kinds::Kind;
use crate::nonce::{SpkiSha256, qualifying_data};
use crate::protocol::{AzureEvidence, Evidence, GcpTask, HexDigest, NitroTpmEvidence};
use crate::reject::Reject;
use crate::tpm::verifier::Binding;
use crate::tpm::{self, EndorsedBy};

/// Evidence, and what it answers.
#[derive(Debug, Clone, Copy)]
pub struct Submission<'a> {
    /// The challenge, opened.
    pub challenge: &'a Challenge,
    /// The answer.
    pub evidence: &'a Evidence,
    /// Keys that the node may have seen this server use: the current one and, after a rotation, the one before.
    pub server_keys: &'a [SpkiSha256],
    /// What AWS STS has answered to the request that is part of the evidence.
    pub sts: Option<StsCall<'a>>,
    /// The name of the provisioning token that is part of the evidence, if the gateway has taken it.
    pub token: Option<&'a str>,
    /// SHA-256 of the claimant that was part of the evidence, where a gateway has found that it was and has not kept it: for a record
    /// that is verified again. Whoever shows evidence has to show the claimant itself.
    pub claimant_sha256: Option<&'a HexDigest>,
}

impl<'a> Submission<'a> {
    /// An answer that needs nothing beside it.
    #[must_use]
    pub const fn new(challenge: &'a Challenge, evidence: &'a Evidence, server_keys: &'a [SpkiSha256]) -> Self {
        Self {
            challenge,
            evidence,
            server_keys,
            sts: None,
            token: None,
            claimant_sha256: None,
        }
    }
}

/// A request to AWS STS that the gateway has sent.
#[derive(Debug, Clone, Copy)]
pub struct StsCall<'a> {
    /// Which requests may be sent.
    pub rules: &'a StsRules,
    /// What came back.
    pub answer: Answer<'a>,
}

/// Verifies Evidence: a pure function of its arguments, so that the same record gives the same answer years later.
///
/// # Errors
/// [`Reject`]: one variant for each thing that can be wrong.
pub fn verify(submission: &Submission<'_>, endorsements: &Endorsements, now: UnixTime) -> Result<Claims, Reject> {
    let Submission { challenge, evidence, .. } = *submission;
    if now.as_secs() > challenge.expires {
        return Err(Reject::ChallengeExpired {
            expires: challenge.expires,
            now: now.as_secs(),
        });
    }
    let (asked, shown) = (challenge.subject.kinds(), evidence.kinds());
    if asked != shown || shown.is_empty() {
        return Err(Reject::KindsShown { asked, shown });
    }
    let claimant_sha256 = claimant(submission)?;
    let (mut proven, server_key) = each(submission, endorsements, now)?;
    let instance = join(&mut proven)?;
    let identity = match (&proven.tpm, &instance) {
        (Some(tpm), _) => NodeIdentity::of_tpm(tpm.ek_digest),
        (None, Some(instance)) => instance.clone(),
        // A token says no more than that somebody was given it.
        (None, None) => return Err(Reject::KindsShown { asked, shown }),
    };
    Ok(Claims {
        identity,
        instance,
        kinds: shown,
        pool: challenge.pool.clone(),
        name: challenge.name.clone(),
        server_key,
        // Older challenges, and records of them, have it beside the document.
        claimant_sha256: challenge.subject.claimant_sha256.is_some().then_some(claimant_sha256).flatten(),
        proven,
    })
}

/// Verifies each kind by itself; gives the server key, too, that the node saw.
fn each(submission: &Submission<'_>, endorsements: &Endorsements, now: UnixTime) -> Result<(Proven, Option<SpkiSha256>), Reject> {
    let Submission {
        challenge,
        evidence,
        server_keys,
        sts,
        token,
        ..
    } = *submission;
    let (subject, clouds) = (&challenge.subject, endorsements.clouds());
    let (mut proven, mut server_key) = (Proven::default(), None);
    if let (Some(subject), Some(evidence)) = (&subject.tpm, &evidence.tpm) {
        let binding = Binding {
            nonce: challenge.nonce.as_ref(),
            purpose: &challenge.purpose,
            pool: &challenge.pool,
            server_keys,
        };
        let (claims, key) = tpm::verifier::verify(&binding, subject, evidence, endorsements.tpm(), now)?;
        (proven.tpm, server_key) = (Some(claims), Some(key));
    }
    if let (Some(GcpTask { gateway }), Some(evidence)) = (&subject.gcp, &evidence.gcp) {
        let keys = anchors(clouds.google_keys.as_ref(), Kind::Gcp)?;
        let audience = |key| Audience::new(gateway, &challenge.purpose, &challenge.pool, challenge.nonce.as_ref(), key);
        let audiences: Vec<Audience> = server_keys.iter().map(audience).collect();
        proven.gcp = Some(gcp::verify(evidence.token.0.as_bytes(), keys, &audiences, now)?);
    }
    if let (Some(subject), Some(evidence)) = (&subject.aws_identity_document, &evidence.aws_identity_document) {
        let certificates = anchors(clouds.region_certificates.as_ref(), Kind::AwsIdentityDocument)?;
        let document = identity_document::verify(evidence.pkcs7.0.as_bytes(), certificates, now)?;
        let claimant_sha256 = subject.claimant_sha256.clone();
        proven.aws_identity_document = Some(ClaimedDocument { document, claimant_sha256 });
    }
    if let (Some(NitroTpmSubject { .. }), Some(NitroTpmEvidence { document })) = (&subject.aws_nitro_tpm, &evidence.aws_nitro_tpm) {
        let roots = anchors(clouds.nitro_roots.as_ref(), Kind::AwsNitroTpm)?;
        let expected = nitro_tpm::Expected {
            nonce: challenge.nonce.as_ref(),
            purpose: &challenge.purpose,
            pool: &challenge.pool,
            server_keys,
        };
        let verified = nitro_tpm::verify(document.as_ref(), roots, &expected, now)?;
        server_key.get_or_insert(*verified.server_key());
        proven.aws_nitro_tpm = Some(verified);
    }
    if let Some(evidence) = &evidence.aws_sts {
        let call = sts.ok_or(Reject::NothingToHoldAgainst { kind: Kind::AwsSts })?;
        let expected = sts_expected(challenge, server_keys);
        let request = sts::check(&evidence.request, call.rules, &expected, now)?;
        let verified = sts::verify_answer(request, &call.answer)?;
        server_key.get_or_insert(*verified.server_key());
        proven.aws_sts = Some(verified);
    }
    if let (Some(AzureSubject { nonce }), Some(evidence)) = (subject.azure, &evidence.azure) {
        let trust = anchors(clouds.azure.as_ref(), Kind::Azure)?;
        let (document, key) = attested_document(challenge, nonce, evidence, server_keys, trust, now)?;
        server_key.get_or_insert(key);
        proven.azure = Some(document);
    }
    if evidence.token.is_some() {
        proven.token = Some(token.ok_or(Reject::TokenMissing)?.to_owned());
    }
    Ok((proven, server_key))
}

/// What a request to AWS STS has to answer.
#[must_use]
pub fn sts_expected<'a>(challenge: &'a Challenge, server_keys: &'a [SpkiSha256]) -> sts::Expected<'a> {
    sts::Expected {
        nonce: challenge.nonce.as_ref(),
        purpose: &challenge.purpose,
        pool: &challenge.pool,
        server_keys,
    }
}

fn anchors<T>(anchors: Option<&T>, kind: Kind) -> Result<&T, Reject> {
    anchors.ok_or(Reject::NothingToHoldAgainst { kind })
}

/// Whoever asked for the challenge is who answers it. Gives the claimant, if there is one.
fn claimant(submission: &Submission<'_>) -> Result<Option<HexDigest>, Reject> {
    let Subject {
        claimant_sha256,
        aws_identity_document,
        ..
    } = &submission.challenge.subject;
    let beside_document = || aws_identity_document.as_ref()?.claimant_sha256.as_ref();
    let asked = claimant_sha256.as_ref().or_else(beside_document);
    let shown = submission.evidence.claimant_sha256();
    if shown.as_ref().or(submission.claimant_sha256) != asked {
        return Err(Reject::Claimant);
    }
    Ok(asked.cloned())
}

/// The document is for this challenge, and one of the keys that the node may have seen.
fn attested_document(
    challenge: &Challenge,
    form: NonceForm,
    evidence: &AzureEvidence,
    server_keys: &[SpkiSha256],
    trust: &attested_document::AzureTrust,
    now: UnixTime,
) -> Result<(VerifiedAttestedDocument, SpkiSha256), Reject> {
    let mut refused = Reject::NothingToHoldAgainst { kind: Kind::Azure };
    for key in server_keys {
        let binding = qualifying_data(challenge.nonce.as_ref(), &challenge.purpose, &challenge.pool, key);
        match attested_document::verify(evidence.signature.0.as_bytes(), trust, &ImdsNonce::of_form(form, &binding), now) {
            Ok(document) => return Ok((document, *key)),
            Err(error @ AttestedDocumentError::Nonce { .. }) => refused = error.into(),
            Err(error) => return Err(error.into()),
        }
    }
    Err(refused)
}

/// That all kinds are about the same machine; gives which instance of a cloud that is, if any kind says so.
fn join(proven: &mut Proven) -> Result<Option<NodeIdentity>, Reject> {
    let vtpm = proven.tpm.as_ref().and_then(|tpm| match &tpm.endorsed_by {
        EndorsedBy::GcpInstance(instance) => Some(instance),
        _ => None,
    });
    if let (Some(vtpm), Some(identity)) = (vtpm, &proven.gcp) {
        vtpm.check_identity(identity)?;
    }
    let document = proven.aws_identity_document.as_ref().map(|claimed| claimed.document.replayable());
    let account = match (document, &proven.aws_sts) {
        (Some(document), _) => Some((document.account_id(), document.instance_id())),
        (None, Some(caller)) => Some((caller.account(), caller.instance())),
        (None, None) => None,
    };
    if let Some((account, instance)) = account
        && let Some(nitro_tpm) = proven.aws_nitro_tpm.take()
    {
        proven.aws_nitro_tpm = Some(nitro_tpm.with_account(account, instance)?);
    }
    let mut instance: Option<String> = None;
    let said = [
        vtpm.map(|vtpm| vtpm.identity()),
        proven.gcp.as_ref().map(|identity| identity.identity()),
        document.map(|document| document.node_identity()),
        proven.aws_sts.as_ref().map(|caller| caller.identity()),
        proven.aws_nitro_tpm.as_ref().map(|document| document.identity()),
        proven.azure.as_ref().map(|document| document.node_identity()),
    ];
    for said in said.into_iter().flatten() {
        match &instance {
            Some(first) if *first != said => {
                return Err(Reject::IdentitiesDiffer {
                    first: first.clone(),
                    second: said,
                });
            }
            Some(_) => {}
            None => instance = Some(said),
        }
    }
    Ok(instance.map(NodeIdentity::of_instance))
}
