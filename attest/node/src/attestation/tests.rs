#![allow(clippy::unwrap_used, reason = "a test may panic")]

use attest_wire::azure::vtpm::{AzureVtpmEvidence, AzureVtpmTask};
use attest_wire::protocol::{Blob, ConfigCompression, GcpTask, Nothing, Task};

use super::*;

fn challenge(change: impl FnOnce(&mut ChallengeResponse)) -> ChallengeResponse {
    let task = TpmTask {
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
        task: Task::from(task),
    };
    change(&mut challenge);
    challenge
}

#[test]
fn challenge_purpose_must_name_the_offered_kubelet_key() {
    let key = SpkiSha256([7; 32]);
    let check = |purpose: &str, key: Option<&SpkiSha256>| {
        let challenge = challenge(|challenge| purpose.clone_into(&mut challenge.purpose));
        let wanted = key.map_or_else(|| PURPOSE_CONFIG.to_owned(), purpose::with_kubelet_key);
        let checked = check_challenge(&challenge, &BTreeSet::from([Kind::Tpm]), &wanted);
        checked.map_err(|failure| failure.code)
    };
    let refused = || Err("gateway-task".to_owned());
    let keyed = purpose::with_kubelet_key(&key);
    assert_eq!(check(&keyed, Some(&key)), Ok(()));
    assert_eq!(check(PURPOSE_CONFIG, None), Ok(()));
    assert_eq!(check(PURPOSE_CONFIG, Some(&key)), refused());
    assert_eq!(check(&keyed, None), refused());
    assert_eq!(check(&keyed, Some(&SpkiSha256([8; 32]))), refused());
    assert_eq!(check("report", None), refused());
}

#[test]
fn event_log_is_sent_once() {
    let log = || Some(Blob(b"log".to_vec()));
    let of_tpm = TpmEvidence {
        secret_sha256: HexDigest::new(&[0; 32]).unwrap(),
        quoted: Blob::default(),
        signature: Blob::default(),
        pcrs: BTreeMap::new(),
        event_log: log(),
    };
    let of_vtpm = AzureVtpmEvidence {
        quoted: Blob::default(),
        signature: Blob::default(),
        pcrs: BTreeMap::new(),
        event_log: log(),
    };
    let sent = |tpm: Option<TpmEvidence>, azure_vtpm: Option<AzureVtpmEvidence>| {
        let mut evidence = Evidence {
            tpm,
            azure_vtpm,
            ..Evidence::default()
        };
        log_once(&mut evidence);
        (
            evidence.tpm.map(|tpm| tpm.event_log),
            evidence.azure_vtpm.map(|vtpm| vtpm.event_log),
        )
    };
    assert_eq!(sent(Some(of_tpm.clone()), None), (Some(log()), None));
    assert_eq!(sent(None, Some(of_vtpm.clone())), (None, Some(log())));
    assert_eq!(sent(Some(of_tpm), Some(of_vtpm)), (Some(log()), Some(None)));
}

/// Checks the response of a node that has offered its TPM, Azure's key in it and a token, to a challenge.
fn check(change: impl FnOnce(&mut ChallengeResponse), refused_for: Option<&str>) {
    let offered = BTreeSet::from([Kind::Tpm, Kind::AzureVtpm, Kind::Token]);
    let result = check_challenge(&challenge(change), &offered, PURPOSE_CONFIG).map_err(|failure| (failure.code, failure.reason));
    match refused_for {
        None => assert_eq!(result, Ok(())),
        Some(reason) => {
            let (code, said) = result.unwrap_err();
            assert_eq!(code, "gateway-task");
            assert!(said.contains(reason), "{said}");
        }
    }
}

fn check_quote(change: impl FnOnce(&mut TpmTask), refused_for: Option<&str>) {
    check(|challenge| change(challenge.task.tpm.as_mut().unwrap()), refused_for);
}

/// Checks a task for a quote by Azure's key, next to the task for the node's own.
fn check_azure_quote(pcr_bank: &str, pcrs: &[u8], refused_for: Option<&str>) {
    let task = AzureVtpmTask {
        pcr_bank: pcr_bank.to_owned(),
        pcrs: pcrs.to_vec(),
    };
    check(|challenge| challenge.task.azure_vtpm = Some(task), refused_for);
}

#[test]
fn refuses_an_azure_quote_over_invalid_pcrs() {
    check_azure_quote("sha256", &[0, 7, 15], None);
    check_azure_quote("sha1", &[0], Some("sha1"));
    check_azure_quote("sha256", &[], Some("over no PCR"));
    check_azure_quote("sha256", &[16], Some("PCR 16"));
    check_azure_quote("sha256", &[7, 6], Some("does not ascend"));
    check_azure_quote("sha256", &[6, 6], Some("does not ascend"));
}

#[test]
fn refuses_challenges_with_invalid_purpose_nonce_or_pcrs() {
    check(|_| {}, None);
    check(|challenge| challenge.purpose = "report".to_owned(), Some("purpose \"report\""));
    check(|challenge| challenge.purpose = String::new(), Some("purpose \"\""));
    check(|challenge| challenge.nonce = Blob::default(), Some("a nonce of 0 bytes"));
    check(|challenge| challenge.nonce = vec![0; 33].into(), Some("a nonce of 33 bytes"));
    check_quote(|task| task.pcr_bank = "SHA384".to_lowercase(), None);
    check_quote(|task| task.pcr_bank = "sha1".to_owned(), Some("sha1"));
    check_quote(|task| task.pcrs.clear(), Some("over no PCR"));
    check_quote(|task| task.pcrs = vec![16], Some("PCR 16"));
    check_quote(|task| task.pcrs = vec![0, 23], Some("PCR 23"));
    check_quote(|task| task.pcrs = vec![0, 255], Some("PCR 255"));
    check_quote(|task| task.pcrs = vec![1, 0], Some("does not ascend"));
    check_quote(|task| task.pcrs = vec![0, 0], Some("does not ascend"));
}

#[test]
fn refuses_tasks_for_kinds_not_offered() {
    let gateway = "api-int.example".to_owned();
    check(|challenge| challenge.task.token = Some(Nothing {}), None);
    check(
        |challenge| challenge.task.gcp = Some(GcpTask { gateway }),
        Some("kind gcp, which was not offered"),
    );
    check(|challenge| challenge.task.azure = Some(Nothing {}), Some("kind azure, which"));
    check(|challenge| challenge.task.aws_sts = Some(Nothing {}), Some("kind aws-sts, which"));
    check(
        |challenge| challenge.task.aws_nitro_tpm = Some(Nothing {}),
        Some("kind aws-nitro-tpm, which"),
    );
    check(
        |challenge| challenge.task.aws_identity_document = Some(Nothing {}),
        Some("kind aws-identity-document, which"),
    );
    check(
        |challenge| challenge.task = Task::default(),
        Some("no kind of evidence that identifies this node"),
    );
    let token = Task {
        token: Some(Nothing {}),
        ..Task::default()
    };
    check(
        |challenge| challenge.task = token,
        Some("no kind of evidence that identifies this node"),
    );
}

fn check_line(kinds: &[Kind], identities: &[&str], expect: &str) {
    let attested = AttestationOutcome {
        lasts: None,
        ticket: Zeroizing::new("ticket.SECRET".to_owned()),
        kinds: kinds.iter().copied().collect(),
        identities: identities.iter().map(|identity| (*identity).to_owned()).collect(),
        report: None,
        config: None,
    };
    assert_eq!(attested.to_string(), expect);
}

#[test]
fn console_line_names_identities_and_evidence_kinds() {
    check_line(&[Kind::Tpm], &["tpm:45c9"], "as tpm:45c9");
    check_line(&[Kind::Gcp], &["gcp:p/1"], "as gcp:p/1 by gcp");
    check_line(
        &[Kind::Tpm, Kind::Gcp],
        &["gcp:p/1", "tpm:45c9"],
        "as gcp:p/1 and tpm:45c9 by tpm + gcp",
    );
    check_line(&[Kind::AwsSts, Kind::Token], &[], "by aws-sts + token");
}

fn check_answer(ticket: &str, url: &str, accepted: bool) {
    assert_eq!(
        check_ticket(ticket.to_owned(), url, "worker").is_ok(),
        accepted,
        "{ticket:?} {url:?}"
    );
}

#[test]
fn ticket_fits_a_header_and_names_the_pool() {
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

fn check_config(compression: Option<ConfigCompression>, sha256: Option<HexDigest>, formats: (bool, bool), accepted: bool) {
    let formats = ConfigFormats {
        compression: formats.0.then_some(ConfigCompression::Gzip),
        spec_version: formats.1.then(|| "3.4.0".to_owned()),
    };
    let form = ConfigForm { compression, sha256 };
    assert_eq!(check_form(Some(&form), &formats).is_ok(), accepted, "{form:?} {formats:?}");
    assert_eq!(check_form(None, &formats), Ok(()));
}

#[test]
fn config_is_sent_as_the_node_has_offered() {
    let (gzip, hash) = (Some(ConfigCompression::Gzip), HexDigest::new(&[7; 32]));
    check_config(gzip, hash.clone(), (true, true), true);
    check_config(gzip, None, (true, true), true);
    check_config(None, hash.clone(), (true, true), true);
    check_config(None, None, (false, false), true);
    check_config(gzip, None, (false, true), false);
    check_config(None, hash, (true, false), false);
    check_config(None, HexDigest::new(&[7; 48]), (true, true), false);
}

#[test]
fn event_log_size_is_limited() {
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
