//! A recorded decision, made again: what an auditor does months later.

mod anchors;
pub mod simulation;

use std::collections::BTreeMap;
use std::sync::Arc;

use attest::protocol::{Blob, HexDigest};
use attest::reference_sets::ReferenceSets;
use attest::{
    AppraisalPolicy, AttestationResult, Claims, Endorsements, Inventory, NamedMachine, Reject, StsCall, Submission, UnixTime, aws,
    machine_objects,
};
use attest_certificates::Certificate;
use attest_certificates::kubelet::{
    Authorities, KubeletError, NamePatterns, PatternError, PresentedCertificate, VerifiedKubelet, WrongPool, verify as verify_certificate,
};
use attest_log::{Basis, BlobError, Blobs, DeltaError, Entry, LogDifference, Record, event_log};
use rustls_pki_types::CertificateDer;
use serde::Deserialize;

/// Reason why a line cannot be replayed, or the refusal in which the replay ends.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Not a line of the attestation log, or one without evidence.
    #[error("this line has no evidence: {0}")]
    Line(#[from] serde_json::Error),
    /// A part is missing from the line.
    #[error("this line has no {0}")]
    Missing(&'static str),
    /// A large part is missing or altered.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// An event log cannot be made again.
    #[error(transparent)]
    EventLog(#[from] DeltaError),
    /// A recorded client CA cannot be one.
    #[error("the recorded client CA {name} is not a CA certificate: {problem}")]
    Authority {
        /// Its blob, or its subject.
        name: String,
        problem: String,
    },
    /// A recorded trust anchor of a cloud, or set of reference values, cannot be read.
    #[error("the recorded {what} cannot be used: {problem}")]
    Anchor { what: &'static str, problem: String },
    /// The recorded names of the pool's nodes are invalid.
    #[error("the recorded patterns of node names are invalid: {0}")]
    Names(PatternError),
    /// The certificate is another node's than the line says.
    #[error("the line names {recorded:?}, but the certificate names {found}")]
    OtherNode {
        /// Identity that the line has.
        recorded: String,
        /// Identity in the certificate.
        found: String,
    },
    /// The client certificate is refused.
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    /// The client certificate is that of a node of another pool.
    #[error(transparent)]
    WrongPool(#[from] WrongPool),
    /// The evidence is refused.
    #[error(transparent)]
    Reject(#[from] Reject),
}

/// The values of PCRs in recorded claims. The evidence beside them has none then.
#[derive(Debug, Default, Deserialize)]
struct RecordedClaims {
    tpm: Option<RecordedPcrs>,
    azure_vtpm: Option<RecordedPcrs>,
}

#[derive(Debug, Deserialize)]
struct RecordedPcrs {
    pcrs: BTreeMap<u8, HexDigest>,
}

/// Reads a decision and what it was made from.
fn decision(line: &str) -> Result<(Record<RecordedClaims>, Basis), ReplayError> {
    match Entry::read(line.as_bytes())? {
        Entry::Decision(mut record) => {
            let basis = record.basis.take().ok_or(ReplayError::Missing("basis"))?;
            Ok((*record, *basis))
        }
        Entry::Event(_) => Err(ReplayError::Missing("evidence: it is about no node")),
    }
}

/// Verifies a recorded client certificate with the recorded CAs, names and time.
///
/// # Errors
/// [`ReplayError::Kubelet`], [`ReplayError::WrongPool`] if it is refused (again), the other variants if the record is not whole, or is of
/// another node than the certificate.
pub fn replay_kubelet(line: &str, blobs: &Blobs) -> Result<VerifiedKubelet, ReplayError> {
    let (Record { at, pool, identity, .. }, basis) = decision(line)?;
    let read = |name: &String| Ok::<_, ReplayError>(CertificateDer::from(blobs.get(name)?));
    let chain = basis.client_chain.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if chain.is_empty() {
        return Err(ReplayError::Missing("chain of a client certificate"));
    }
    let authorities = basis.client_authorities.iter().map(|name| {
        let certificate = Certificate::parse(read(name)?);
        certificate.map_err(|problem| ReplayError::Authority {
            name: name.clone(),
            problem,
        })
    });
    let authorities = Authorities::from_certificates(authorities.collect::<Result<Vec<_>, _>>()?)
        .map_err(|(name, problem)| ReplayError::Authority { name, problem })?;
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at));
    let verified = verify_certificate(&PresentedCertificate::new(&chain), &authorities, now)?;
    if identity.as_deref() != Some(verified.identity().as_str()) {
        return Err(ReplayError::OtherNode {
            recorded: identity.unwrap_or_default(),
            found: verified.identity(),
        });
    }
    let names = NamePatterns::new(basis.kubelet_names).map_err(ReplayError::Names)?;
    names.check(verified.name(), &pool)?;
    Ok(verified)
}

/// Verifies and appraises recorded evidence with the recorded endorsements, reference values, keys and time.
///
/// # Errors
/// [`ReplayError::Reject`] if it is refused (again), the other variants if the record is not whole.
pub fn replay(line: &str, blobs: &Blobs) -> Result<AttestationResult, ReplayError> {
    let ReplayedVerification {
        claims,
        policy,
        now,
        inventory,
        machine,
    } = verify(line, blobs)?;
    let result = attest::appraise(claims, &policy, now)?;
    machine_objects::admit(inventory.as_ref(), machine.as_ref(), result.claims())?;
    Ok(result)
}

/// Recorded evidence, verified, and what it is to be held against.
#[derive(Debug)]
pub struct ReplayedVerification {
    pub claims: Claims,
    /// The pool's policy at that time.
    pub policy: AppraisalPolicy,
    /// The time of the decision.
    pub now: UnixTime,
    inventory: Option<Inventory>,
    machine: Option<NamedMachine>,
}

/// Verifies recorded evidence with the recorded endorsements, keys and time, and appraises nothing.
///
/// # Errors
/// Like [`replay`].
pub fn verify(line: &str, blobs: &Blobs) -> Result<ReplayedVerification, ReplayError> {
    let (Record { at, claims, .. }, basis) = decision(line)?;
    let challenge = &basis.challenge.ok_or(ReplayError::Missing("challenge"))?;
    let policy = basis.policy.ok_or(ReplayError::Missing("policy"))?;
    let policy = with_reference_sets(policy, blobs)?;
    let mut evidence = basis.evidence.ok_or(ReplayError::Missing("evidence"))?;
    let RecordedClaims { tpm, azure_vtpm } = claims.unwrap_or_default();
    if let (Some(shown), Some(recorded)) = (&mut evidence.tpm, tpm)
        && shown.pcrs.is_empty()
    {
        shown.pcrs = recorded.pcrs;
    }
    if let (Some(shown), Some(recorded)) = (&mut evidence.azure_vtpm, azure_vtpm)
        && shown.pcrs.is_empty()
    {
        shown.pcrs = recorded.pcrs;
    }
    let log = |sha256: &Option<String>, difference: &Option<LogDifference>| {
        let content = sha256.as_ref().map(|sha256| event_log(blobs, sha256, difference.as_ref()));
        content.transpose().map(|content| content.map(Blob))
    };
    let first = log(&basis.event_log_sha256, &basis.event_log_difference)?;
    let second = log(&basis.azure_vtpm_event_log_sha256, &basis.azure_vtpm_event_log_difference)?;
    let (of_tpm, of_vtpm) = if evidence.tpm.is_some() { (first, second) } else { (None, first) };
    if let (Some(tpm), Some(log)) = (&mut evidence.tpm, of_tpm) {
        tpm.event_log = Some(log);
    }
    if let (Some(vtpm), Some(log)) = (&mut evidence.azure_vtpm, of_vtpm) {
        vtpm.event_log = Some(log);
    }
    let mut endorsements = match anchors::vtpm_roots(&basis.cloud, blobs)? {
        Some(roots) => Endorsements::for_gcp_instances(roots),
        None => Endorsements::new(Arc::new(anchors::ek_roots(
            basis.ek_roots.as_deref(),
            &basis.ek_named_roots,
            blobs,
        )?)),
    };
    if let (true, Some(subject)) = (basis.allowlisted, &challenge.subject.tpm) {
        endorsements = endorsements.allow(subject.attester.ek_digest().map_err(Reject::from)?);
    }
    endorsements = endorsements.with_clouds(anchors::endorsements(&basis.cloud, blobs)?);
    let sts = match (&basis.cloud.sts_answer, policy.aws_sts()) {
        (Some(answer), Some(rules)) => Some(StsCall {
            rules,
            answer: answer.as_answer(),
        }),
        _ => None,
    };
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at));
    // A request that must not be sent has no answer.
    if let (Some(_), Some(shown), Some(rules), None) = (challenge.subject.aws_sts, &evidence.aws_sts, policy.aws_sts(), sts) {
        let expected = challenge.binding(&basis.server_keys);
        aws::sts::check(&shown.request, rules, &expected, now).map_err(Reject::from)?;
    }
    let submission = Submission {
        sts,
        token: basis.cloud.token.as_deref(),
        claimant_sha256: basis.cloud.claimant_sha256.as_ref(),
        ..Submission::new(challenge, &evidence, &basis.server_keys)
    };
    let claims = attest::verify(&submission, &endorsements, now)?;
    Ok(ReplayedVerification {
        claims,
        policy,
        now,
        inventory: basis.inventory.map(|name| inventory(&blobs.get(&name)?)).transpose()?,
        machine: basis.machine,
    })
}

/// Adds the sets of reference values to the recorded policy that names them.
fn with_reference_sets(policy: AppraisalPolicy, blobs: &Blobs) -> Result<AppraisalPolicy, ReplayError> {
    if policy.reference_sets().is_empty() {
        return Ok(policy);
    }
    let unusable = |problem: String| ReplayError::Anchor {
        what: "set of reference values",
        problem,
    };
    let read = |digest: &HexDigest| {
        let content = blobs.get(&digest.to_string())?;
        String::from_utf8(content).map_err(|error| unusable(error.to_string()))
    };
    let texts = policy.reference_sets().iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let sets = ReferenceSets::parse(texts.iter().map(String::as_str)).map_err(|(_, error)| unusable(error.to_string()))?;
    policy.with_reference_sets(&Arc::new(sets)).map_err(unusable)
}

fn inventory(text: &[u8]) -> Result<Inventory, ReplayError> {
    let unusable = |problem: String| ReplayError::Anchor {
        what: "inventory",
        problem,
    };
    let text = std::str::from_utf8(text).map_err(|error| unusable(error.to_string()))?;
    Inventory::parse(text).map_err(|error| unusable(error.to_string()))
}
