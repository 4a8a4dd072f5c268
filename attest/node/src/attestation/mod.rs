//! Performs one attestation: the node's offer, the gateway's challenge, evidence of each kind that it asks for, the ticket.

mod azure_vtpm;
mod binding;
pub mod cloud;
pub mod means;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr as _;
use std::time::Duration;

use attest_wire::nonce::{NONCE_BYTES, PURPOSE_CONFIG};
use attest_wire::protocol::{
    ChallengeRequest, ChallengeResponse, ConfigForm, ConfigFormats, Evidence, EvidenceRequest, HexDigest, RehearsalResponse, SecretText,
    TokenEvidence, TpmEvidence, TpmTask,
};
use attest_wire::tpm::LOG_LIMIT_BYTES;
use attest_wire::tpm::wire::HashAlg;
use attest_wire::{Kind, SpkiSha256, purpose};
use aws_lc_rs::digest;
use zeroize::Zeroizing;

use crate::boot_complete;
use crate::failure::{Failure, printable};
use crate::gateway::{GatewayClient, GatewayError};

use self::binding::ChallengeBinding;
use self::means::{Means, TpmMeans};

/// Number of challenges to try if one was spent (the answer was lost) or has expired (the TPM is slow).
const CHALLENGES_LIMIT: usize = 3;
/// The gateway's codes that are worth a new challenge. Azure's metadata server may repeat a document for an earlier nonce.
const WORTH_ANOTHER_CHALLENGE: [&str; 7] = [
    "challenge-spent",
    "challenge-expired",
    "azure-document-nonce",
    "cloud-unavailable",
    "machine-pending",
    "machines-unavailable",
    "answer-pending",
];
/// Highest PCR that may be quoted. Any software can reset 16 and 23, and a dynamic launch resets 17 to 22: they say nothing about a boot.
const HIGHEST_PCR: u8 = 15;
/// Length of a SHA-256 digest, in bytes.
const SHA256_BYTES: usize = 32;
/// Longest ticket put into a header, in bytes: HTTP servers take 8 KiB of headers.
const TICKET_LIMIT_BYTES: usize = 4096;

/// Gateway, pool and credentials of an attestation.
#[derive(Clone, Copy)]
pub struct AttestationTarget<'a> {
    pub gateway: &'a GatewayClient<'a>,
    /// Kinds of evidence that the gateway accepts.
    pub takes: &'a BTreeSet<Kind>,
    pub pool: &'a str,
    /// Key that the node's kubelet will have, if it has one and the gateway accepts it.
    pub kubelet_key: Option<SpkiSha256>,
    /// The provisioning token that the pointer carries for it. A secret, so there is no `Debug`.
    pub token: Option<&'a Zeroizing<String>>,
    /// Forms of the config that the pointer can name.
    pub formats: &'a ConfigFormats,
}

/// Result of an attestation: the ticket, and the evidence that earned it.
pub struct AttestationOutcome {
    pub ticket: Zeroizing<String>,
    /// Minimum lifetime of the ticket; `None` if the gateway's times do not say.
    pub lasts: Option<Duration>,
    /// The kinds of evidence.
    pub kinds: BTreeSet<Kind>,
    /// Identities of this node in that evidence, as far as it can see.
    pub identities: Vec<String>,
    /// Proof of the attestation for a report; `None` if the gateway gives none.
    pub report: Option<SecretText>,
    /// Form in which the gateway sends the config: the pointer has to name the same. `None` for plain JSON.
    pub config: Option<ConfigForm>,
}

impl fmt::Display for AttestationOutcome {
    /// Writes `as tpm:45c9…`, and the kinds of evidence if it was not the TPM alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.identities.is_empty() {
            write!(f, "as {}", self.identities.join(" and "))?;
        }
        if !self.kinds.iter().eq([&Kind::Tpm]) || self.identities.is_empty() {
            let blank = if self.identities.is_empty() { "" } else { " " };
            write!(f, "{blank}by {}", list(&self.kinds))?;
        }
        Ok(())
    }
}

/// Kinds for a message: `tpm + gcp`.
fn list(kinds: &BTreeSet<Kind>) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    words.join(" + ")
}

/// Attests to a gateway, for a pool.
///
/// # Errors
/// The gateway's refusal, or the reason why the node could not attest.
pub fn attest(target: AttestationTarget<'_>, means: &mut Means<'_>) -> Result<AttestationOutcome, Failure> {
    let AttestationTarget {
        gateway,
        pool,
        kubelet_key,
        ..
    } = target;
    let (request, offered) = offer(target, means, false)?;
    let purpose = kubelet_key
        .as_ref()
        .map_or_else(|| PURPOSE_CONFIG.to_owned(), purpose::with_kubelet_key);
    let (mut challenges, mut held, mut waited) = (0, gateway.held(), gateway.waited());
    loop {
        challenges += 1;
        let (challenge, server_key) = gateway.challenge(&request)?;
        check_challenge(&challenge, &offered, &purpose)?;
        let binding = ChallengeBinding {
            nonce: challenge.nonce.as_ref(),
            purpose: &challenge.purpose,
            pool,
            server_key: &server_key,
        };
        let (evidence, identities) = answer(&challenge, &binding, means, target)?;
        let (kinds, expires) = (evidence.kinds(), challenge.expires);
        match gateway.evidence(&EvidenceRequest {
            challenge: challenge.challenge,
            evidence,
            config: Some(target.formats.clone()),
        }) {
            Ok(response) => {
                let ticket = check_ticket(response.ticket, &response.url, pool)?;
                check_form(response.config.as_ref(), target.formats)?;
                // By the gateway's clock alone: this node's may be off. The challenge was still good when the ticket was given for it.
                let lasts = response.expires.checked_sub(expires).filter(|seconds| *seconds > 0);
                return Ok(AttestationOutcome {
                    ticket,
                    lasts: lasts.map(Duration::from_secs),
                    kinds,
                    identities,
                    report: response.report,
                    config: response.config,
                });
            }
            Err(GatewayError::Refused(problem)) if WORTH_ANOTHER_CHALLENGE.contains(&problem.code.as_str()) => {
                // A challenge that was lost because this node was to come again does not count: its patience bounds those. Nor does one that
                // expired while there was no gateway.
                if gateway.held() > held || (problem.code == "challenge-expired" && gateway.waited() > waited) {
                    (challenges, held, waited) = (0, gateway.held(), gateway.waited());
                } else if challenges >= CHALLENGES_LIMIT {
                    return Err(GatewayError::Refused(problem).into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Rehearses an attestation: returns what the gateway would decide.
///
/// # Errors
/// The gateway's refusal of a challenge, or the reason why the node could not show evidence.
pub fn rehearse(target: AttestationTarget<'_>, means: &mut Means<'_>) -> Result<RehearsalResponse, Failure> {
    let (request, offered) = offer(target, means, true)?;
    let (challenge, server_key) = target.gateway.challenge(&request)?;
    check_challenge(&challenge, &offered, purpose::REHEARSAL)?;
    let binding = ChallengeBinding {
        nonce: challenge.nonce.as_ref(),
        purpose: &challenge.purpose,
        pool: target.pool,
        server_key: &server_key,
    };
    let (evidence, _) = answer(&challenge, &binding, means, target)?;
    Ok(target.gateway.rehearse(&EvidenceRequest {
        challenge: challenge.challenge,
        evidence,
        config: None,
    })?)
}

/// Returns the request for a challenge, with the kinds that the node offers.
fn offer(target: AttestationTarget<'_>, means: &Means<'_>, rehearsal: bool) -> Result<(ChallengeRequest, BTreeSet<Kind>), Failure> {
    let AttestationTarget {
        gateway,
        takes,
        pool,
        token,
        kubelet_key,
        ..
    } = target;
    let request = ChallengeRequest {
        kubelet_key_sha256: kubelet_key.map(HexDigest::from),
        rehearsal,
        pool: pool.to_owned(),
        name: means.name.clone(),
        attester: means.offer(takes, gateway.base(), token),
    };
    let offered = request.attester.kinds();
    if offered.is_empty() {
        return Err(Failure::new(
            "no-accepted-evidence",
            format!("this node has no kind of evidence that the gateway accepts: {}", list(takes)),
            "enable the TPM 2.0; in a cloud, give the instance what its evidence needs, such as a service account or a role",
        ));
    }
    Ok((request, offered))
}

/// Returns evidence of each kind that the task asks for, and the node's identities in it.
fn answer(
    challenge: &ChallengeResponse,
    binding: &ChallengeBinding<'_>,
    means: &mut Means<'_>,
    target: AttestationTarget<'_>,
) -> Result<(Evidence, Vec<String>), Failure> {
    let (gateway, token) = (target.gateway, target.token);
    let task = &challenge.task;
    let (mut evidence, mut identities) = (Evidence::default(), Vec::new());
    if let Some(cloud) = &means.cloud {
        identities.extend(cloud.answer(task, binding, gateway.base(), &mut evidence, gateway.deadline())?);
    }
    if let (Some(task), Some(tpm)) = (&task.tpm, &mut means.tpm) {
        tpm.keys.retry_until(gateway.deadline());
        evidence.tpm = Some(quote(tpm, task, binding)?);
        identities.push(tpm.identity.clone());
    }
    log_once(&mut evidence);
    if let (Some(_), Some(token)) = (task.token, token) {
        evidence.token = Some(TokenEvidence {
            token: SecretText::new(token.clone()),
        });
    }
    if evidence.kinds() == task.kinds() {
        Ok((evidence, identities))
    } else {
        Err(Failure::new(
            "internal",
            "evidence that this node offered cannot be collected",
            "report this message",
        ))
    }
}

/// Removes a duplicate event log: if the TPM's evidence has it, the evidence of Azure's vTPM does not need it.
fn log_once(evidence: &mut Evidence) {
    if let (Some(_), Some(vtpm)) = (&evidence.tpm, &mut evidence.azure_vtpm) {
        vtpm.event_log = None;
    }
}

fn quote(tpm: &mut TpmMeans<'_>, task: &TpmTask, binding: &ChallengeBinding<'_>) -> Result<TpmEvidence, Failure> {
    let bank = check_quote(&task.pcr_bank, &task.pcrs)?;
    let secret = tpm.keys.activate(task.credential_blob.as_ref(), task.encrypted_secret.as_ref())?;
    let quote = tpm.keys.quote(&binding.qualifying_data(), bank, &task.pcrs)?;
    boot_complete::warn_if_closed(bank, &quote.pcrs);
    Ok(TpmEvidence {
        secret_sha256: sha256(&secret)?,
        pcrs: digests(&quote.pcrs)?,
        quoted: quote.quoted.into(),
        signature: quote.signature.into(),
        event_log: tpm.event_log.clone(),
    })
}

fn digests(pcrs: &BTreeMap<u8, Vec<u8>>) -> Result<BTreeMap<u8, HexDigest>, Failure> {
    let digests: Option<_> = pcrs.iter().map(|(index, value)| Some((*index, HexDigest::new(value)?))).collect();
    digests.ok_or_else(|| {
        Failure::new(
            "internal",
            "a PCR value does not have the length of a digest",
            "report this message",
        )
    })
}

fn sha256(bytes: &[u8]) -> Result<HexDigest, Failure> {
    HexDigest::new(digest::digest(&digest::SHA256, bytes).as_ref())
        .ok_or_else(|| Failure::new("internal", "SHA-256 is not 32 bytes long", "report this message"))
}

fn refuse(what: String) -> Failure {
    Failure::new(
        "gateway-task",
        format!("the gateway requires something that this node does not support: {what}"),
        "check the gateway's release and its pool.toml",
    )
}

/// Checks that a challenge asks only for evidence for this purpose, of kinds that the node has offered. A purpose names the kubelet's future
/// key that was told, so that whatever is signed says it.
fn check_challenge(challenge: &ChallengeResponse, offered: &BTreeSet<Kind>, purpose: &str) -> Result<(), Failure> {
    if challenge.purpose != purpose {
        return Err(refuse(format!("evidence for the purpose {:?}", printable(&challenge.purpose))));
    }
    if challenge.nonce.as_ref().len() != NONCE_BYTES {
        return Err(refuse(format!(
            "a nonce of {} bytes instead of {NONCE_BYTES}",
            challenge.nonce.as_ref().len()
        )));
    }
    let asked = challenge.task.kinds();
    if let Some(kind) = asked.difference(offered).next() {
        return Err(refuse(format!("evidence of the kind {kind}, which was not offered")));
    }
    if asked.iter().all(|kind| *kind == Kind::Token) {
        return Err(refuse("no kind of evidence that identifies this node".to_owned()));
    }
    let (tpm, vtpm) = (&challenge.task.tpm, &challenge.task.azure_vtpm);
    let quotes = [
        tpm.as_ref().map(|task| (&task.pcr_bank, &task.pcrs)),
        vtpm.as_ref().map(|task| (&task.pcr_bank, &task.pcrs)),
    ];
    quotes
        .into_iter()
        .flatten()
        .try_for_each(|(bank, pcrs)| check_quote(bank, pcrs).map(drop))
}

/// Checks that a gateway asks the TPM only for a quote over PCRs that describe the boot.
fn check_quote(bank: &str, pcrs: &[u8]) -> Result<HashAlg, Failure> {
    let bank = HashAlg::from_str(bank).map_err(|error| refuse(printable(&error.to_string())))?;
    if pcrs.is_empty() {
        return Err(refuse("a quote over no PCR".to_owned()));
    }
    if let Some(index) = pcrs.iter().find(|index| **index > HIGHEST_PCR) {
        return Err(refuse(format!("a quote over PCR {index}, which can be reset after the boot")));
    }
    if !pcrs.is_sorted_by(|first, second| first < second) {
        return Err(refuse("a list of PCRs that does not ascend".to_owned()));
    }
    Ok(bank)
}

/// Checks that a ticket fits into a header and is for the config that the pointer names.
fn check_ticket(ticket: String, url: &str, pool: &str) -> Result<Zeroizing<String>, Failure> {
    let ticket = Zeroizing::new(ticket);
    let wrong = |what: &str| wrong_answer(&format!("ticket {what}"));
    if ticket.is_empty() || ticket.len() > TICKET_LIMIT_BYTES || !ticket.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("cannot stand in a header"));
    }
    if url.rsplit_once("/config/").map(|(_, granted)| granted) != Some(pool) {
        return Err(wrong(&format!("is for {:?}, not for pool {pool}", printable(url))));
    }
    Ok(ticket)
}

/// Checks that a gateway sends the config only in a way that the pointer can say.
fn check_form(form: Option<&ConfigForm>, formats: &ConfigFormats) -> Result<(), Failure> {
    let Some(ConfigForm { compression, sha256 }) = form else {
        return Ok(());
    };
    if compression.is_some() && *compression != formats.compression {
        return Err(wrong_answer("config is compressed in a way that this node did not offer"));
    }
    match sha256 {
        Some(_) if formats.spec_version.is_none() => Err(wrong_answer("config has a hash that this node did not offer to check")),
        Some(sha256) if sha256.as_bytes().len() != SHA256_BYTES => Err(wrong_answer("config has a hash that is not SHA-256")),
        _ => Ok(()),
    }
}

fn wrong_answer(what: &str) -> Failure {
    Failure::new("gateway-answer", format!("the gateway's {what}"), "read the gateway's log")
}

/// Reads the firmware's event log. Returns `None` if it is missing, with a note if it exists but cannot be sent.
#[must_use]
pub fn event_log(path: &Path) -> (Option<Vec<u8>>, Option<String>) {
    let Ok(file) = File::open(path) else { return (None, None) };
    let mut log = Vec::new();
    let limit = u64::try_from(LOG_LIMIT_BYTES).unwrap_or(u64::MAX);
    match file.take(limit.saturating_add(1)).read_to_end(&mut log) {
        Err(error) => (
            None,
            Some(format!("no event log is sent: {} cannot be read: {error}", path.display())),
        ),
        Ok(_) if log.len() > LOG_LIMIT_BYTES => (
            None,
            Some(format!(
                "no event log is sent: {} is larger than {LOG_LIMIT_BYTES} bytes",
                path.display()
            )),
        ),
        Ok(_) if log.is_empty() => (None, None),
        Ok(_) => (Some(log), None),
    }
}

#[cfg(test)]
mod tests;
