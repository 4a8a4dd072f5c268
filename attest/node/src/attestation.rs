//! One attestation: challenge, activation, quote, evidence, ticket.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr as _;

use attest::nonce::{NONCE_BYTES, PURPOSE_CONFIG, qualifying_data};
use attest::protocol::{Blob, ChallengeRequest, ChallengeResponse, EvidenceRequest, HexDigest, TpmAttester, TpmEvidence, TpmTask};
use attest::tpm::event_log::LOG_LIMIT_BYTES;
use attest::tpm::wire::HashAlg;
use aws_lc_rs::digest;
use zeroize::Zeroizing;

use crate::failure::{Failure, printable};
use crate::gateway::{Gateway, GatewayError};
use crate::tpm::{Attester, EndorsementKey};

/// How often to start again with a new challenge when the old one was spent (the answer was lost) or has expired (the TPM is slow).
const CHALLENGES_LIMIT: usize = 3;
/// The gateway's codes that are worth a new challenge.
const WORTH_ANOTHER_CHALLENGE: [&str; 2] = ["challenge-spent", "challenge-expired"];
/// Highest PCR that may be quoted. 16 and 23 can be reset by anybody, 17 to 22 by a dynamic launch: they say nothing about a boot.
const HIGHEST_PCR: u8 = 15;
/// Longest ticket put into a header, in bytes: HTTP servers take 8 KiB of headers.
const TICKET_LIMIT_BYTES: usize = 4096;

/// What a node shows to every gateway.
#[derive(Debug, Clone)]
pub struct Presented {
    /// The name that the node wants, if it has one.
    pub name: Option<String>,
    /// The keys.
    pub attester: TpmAttester,
    /// The firmware's event log.
    pub event_log: Option<Blob>,
}

impl Presented {
    /// Of a TPM's keys.
    #[must_use]
    pub fn new(
        name: Option<String>,
        ek: &EndorsementKey,
        intermediates: Vec<Vec<u8>>,
        ak_public: &[u8],
        event_log: Option<Vec<u8>>,
    ) -> Self {
        let attester = TpmAttester {
            ek_public: ek.public.clone().into(),
            ek_certificate: ek.certificate.clone().map(Blob::from),
            ek_intermediates: intermediates.into_iter().map(Blob::from).collect(),
            ak_public: ak_public.to_vec().into(),
        };
        Self {
            name,
            attester,
            event_log: event_log.map(Blob::from),
        }
    }
}

/// Attests to a gateway, for a pool.
///
/// # Errors
/// The gateway's refusal, or what kept the node from attesting.
pub fn attest(gateway: &Gateway<'_>, pool: &str, presented: &Presented, tpm: &mut Attester<'_>) -> Result<Zeroizing<String>, Failure> {
    let request = ChallengeRequest {
        pool: pool.to_owned(),
        name: presented.name.clone(),
        attester: presented.attester.clone().into(),
    };
    let mut challenges = 0;
    loop {
        challenges += 1;
        let (challenge, server_key) = gateway.challenge(&request)?;
        let (task, bank) = check_challenge(&challenge)?;
        let secret = tpm.activate(task.credential_blob.as_ref(), task.encrypted_secret.as_ref())?;
        let extra_data = qualifying_data(challenge.nonce.as_ref(), &challenge.purpose, pool, &server_key);
        let quote = tpm.quote(&extra_data, bank, &task.pcrs)?;
        let pcrs: Option<_> = quote
            .pcrs
            .iter()
            .map(|(index, value)| Some((*index, HexDigest::new(value)?)))
            .collect();
        let evidence = TpmEvidence {
            secret_sha256: sha256(&secret)?,
            quoted: quote.quoted.into(),
            signature: quote.signature.into(),
            pcrs: pcrs.ok_or_else(|| Failure::new("internal", "a PCR value has no digest's length", "report this message"))?,
            event_log: presented.event_log.clone(),
        };
        match gateway.evidence(&EvidenceRequest {
            challenge: challenge.challenge,
            evidence: evidence.into(),
        }) {
            Ok(response) => return check_ticket(response.ticket, &response.url, pool),
            Err(GatewayError::Refused(problem))
                if challenges < CHALLENGES_LIMIT && WORTH_ANOTHER_CHALLENGE.contains(&problem.code.as_str()) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn sha256(bytes: &[u8]) -> Result<HexDigest, Failure> {
    HexDigest::new(digest::digest(&digest::SHA256, bytes).as_ref())
        .ok_or_else(|| Failure::new("internal", "SHA-256 is not 32 bytes long", "report this message"))
}

/// What a node lets a gateway ask of its TPM: a quote for this purpose, over PCRs that say something about its boot.
fn check_challenge(challenge: &ChallengeResponse) -> Result<(&TpmTask, HashAlg), Failure> {
    let refuse = |reason: String| {
        Failure::new(
            "gateway-task",
            format!("the gateway asks for what this node does not do: {reason}"),
            "check the gateway's release and its pool.toml",
        )
    };
    let asked = challenge.task.kinds();
    let Some(task) = challenge.task.tpm.as_ref().filter(|_| asked.len() == 1) else {
        return Err(refuse("evidence of other kinds than this node has offered".to_owned()));
    };
    if challenge.purpose != PURPOSE_CONFIG {
        return Err(refuse(format!("evidence for the purpose {:?}", printable(&challenge.purpose))));
    }
    if challenge.nonce.as_ref().len() != NONCE_BYTES {
        return Err(refuse(format!(
            "a nonce of {} bytes instead of {NONCE_BYTES}",
            challenge.nonce.as_ref().len()
        )));
    }
    let bank = HashAlg::from_str(&task.pcr_bank).map_err(|error| refuse(printable(&error.to_string())))?;
    if task.pcrs.is_empty() {
        return Err(refuse("a quote over no PCR".to_owned()));
    }
    if let Some(index) = task.pcrs.iter().find(|index| **index > HIGHEST_PCR) {
        return Err(refuse(format!("a quote over PCR {index}, which can be reset after the boot")));
    }
    if !task.pcrs.is_sorted_by(|first, second| first < second) {
        return Err(refuse("a list of PCRs that does not ascend".to_owned()));
    }
    Ok((task, bank))
}

/// A ticket that can stand in a header, for the config that the pointer names.
fn check_ticket(ticket: String, url: &str, pool: &str) -> Result<Zeroizing<String>, Failure> {
    let ticket = Zeroizing::new(ticket);
    let wrong = |what: &str| {
        Failure::new(
            "gateway-answer",
            format!("the gateway's ticket {what}"),
            "look at the gateway's log",
        )
    };
    if ticket.is_empty() || ticket.len() > TICKET_LIMIT_BYTES || !ticket.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong("cannot stand in a header"));
    }
    if url.rsplit_once("/config/").map(|(_, granted)| granted) != Some(pool) {
        return Err(wrong(&format!("is for {:?}, not for pool {pool}", printable(url))));
    }
    Ok(ticket)
}

/// The firmware's event log; `None` if there is none, with a note if there is one that cannot be sent.
#[must_use]
pub fn event_log(path: &Path) -> (Option<Vec<u8>>, Option<String>) {
    let Ok(file) = File::open(path) else { return (None, None) };
    let mut log = Vec::new();
    let limit = u64::try_from(LOG_LIMIT_BYTES).unwrap_or(u64::MAX);
    match file.take(limit.saturating_add(1)).read_to_end(&mut log) {
        Err(error) => (
            None,
            Some(format!("the event log {} cannot be read, so none is sent: {error}", path.display())),
        ),
        Ok(_) if log.len() > LOG_LIMIT_BYTES => (
            None,
            Some(format!(
                "the event log {} is larger than {LOG_LIMIT_BYTES} bytes, so none is sent",
                path.display()
            )),
        ),
        Ok(_) if log.is_empty() => (None, None),
        Ok(_) => (Some(log), None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn challenge(change: impl FnOnce(&mut ChallengeResponse, &mut TpmTask)) -> ChallengeResponse {
        let mut task = TpmTask {
            credential_blob: Blob::default(),
            encrypted_secret: Blob::default(),
            pcr_bank: "sha256".to_owned(),
            pcrs: vec![0, 7, 15],
        };
        let mut challenge = ChallengeResponse {
            challenge: "c".to_owned(),
            nonce: vec![1; 32].into(),
            purpose: PURPOSE_CONFIG.to_owned(),
            expires: 0,
            task: task.clone().into(),
        };
        change(&mut challenge, &mut task);
        challenge.task = task.into();
        challenge
    }

    fn check(change: impl FnOnce(&mut ChallengeResponse, &mut TpmTask), refused_for: Option<&str>) {
        let result = check_challenge(&challenge(change))
            .map(|_| ())
            .map_err(|failure| (failure.code, failure.reason));
        match refused_for {
            None => assert_eq!(result, Ok(())),
            Some(reason) => {
                let (code, said) = result.unwrap_err();
                assert_eq!(code, "gateway-task");
                assert!(said.contains(reason), "{said}");
            }
        }
    }

    #[test]
    fn a_node_does_not_quote_whatever_it_is_asked_to() {
        check(|_, _| {}, None);
        check(|_, task| task.pcr_bank = "SHA384".to_lowercase(), None);
        check(|challenge, _| challenge.purpose = "report".to_owned(), Some("purpose \"report\""));
        check(|challenge, _| challenge.purpose = String::new(), Some("purpose \"\""));
        check(|challenge, _| challenge.nonce = Blob::default(), Some("a nonce of 0 bytes"));
        check(|challenge, _| challenge.nonce = vec![0; 33].into(), Some("a nonce of 33 bytes"));
        check(|_, task| task.pcr_bank = "sha1".to_owned(), Some("sha1"));
        check(|_, task| task.pcrs.clear(), Some("over no PCR"));
        check(|_, task| task.pcrs = vec![16], Some("PCR 16"));
        check(|_, task| task.pcrs = vec![0, 23], Some("PCR 23"));
        check(|_, task| task.pcrs = vec![0, 255], Some("PCR 255"));
        check(|_, task| task.pcrs = vec![1, 0], Some("does not ascend"));
        check(|_, task| task.pcrs = vec![0, 0], Some("does not ascend"));
    }

    fn check_answer(ticket: &str, url: &str, accepted: bool) {
        assert_eq!(
            check_ticket(ticket.to_owned(), url, "worker").is_ok(),
            accepted,
            "{ticket:?} {url:?}"
        );
    }

    #[test]
    fn tickets_fit_into_a_header_and_are_for_the_pool() {
        check_answer("ticket.abc-_", "/config/worker", true);
        check_answer("ticket.abc", "/prefix/config/worker", true);
        check_answer("", "/config/worker", false);
        check_answer("ticket.\r\nX: y", "/config/worker", false);
        check_answer("ticket abc", "/config/worker", false);
        check_answer("ticket.ü", "/config/worker", false);
        check_answer(&"x".repeat(TICKET_LIMIT_BYTES + 1), "/config/worker", false);
        check_answer("ticket.abc", "/config/master", false);
        check_answer("ticket.abc", "worker", false);
    }

    #[test]
    fn event_logs_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert_eq!(event_log(&path), (None, None));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(event_log(&path), (None, None));
        std::fs::write(&path, b"log").unwrap();
        assert_eq!(event_log(&path), (Some(b"log".to_vec()), None));
        std::fs::write(&path, vec![0; LOG_LIMIT_BYTES + 1]).unwrap();
        assert!(event_log(&path).1.unwrap().contains("larger than"));
        assert!(event_log(folder.path()).1.unwrap().contains("cannot be read"));
    }
}
