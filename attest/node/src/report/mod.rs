//! `attest-node report`: sends the failure of this first boot to the gateways of the pointer config, which are the only ones that learn of it.
//!
//! A file of this boot's attestation proves whose report it is ([`attestations`]). Secrets are removed from the journal first
//! ([`redaction`]). All of it has a time limit, because somebody may wait for the emergency shell.

pub mod attestations;
mod journal;
pub mod redaction;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use attest_wire::protocol::{REPORT_ERROR_LIMIT_CHARS, REPORT_PROOF_INVALID, REPORTS_OFF, ReportRequest, ReportStage, SecretText};
use zeroize::Zeroizing;

use self::attestations::GatewayAttestation;
use self::journal::ATTEST_UNIT;
use self::redaction::{Secrets, redact};
use crate::console::print_line;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::gateway::tls::PointerTrust;
use crate::gateway::{Discovered, GatewayClient, GatewayError, Http};
use crate::ignition::USER_CONFIG;
use crate::keep;
use crate::platform::pointer_file;
use crate::pointer::Pointer;

/// The part of the time that each of systemd's programs may take: half of it is for the gateway.
const PROGRAM_PART: u32 = 6;
/// Time for the console line after the deadline.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Folders in which Ignition looks for its `user.ign`, with the ticket.
const USER_CONFIG_FOLDERS: [&str; 3] = ["/run/ignition", "/etc/ignition", "/usr/lib/ignition"];
/// Largest config that is searched for secrets, in bytes.
const CONFIG_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct ReportOptions {
    pub failure: ReportedFailure,
    /// Pointer file to use instead of this boot's.
    pub pointer: Option<PathBuf>,
    /// Time limit for everything.
    pub deadline: Duration,
    /// Folder with the files that were kept of this boot.
    pub kept_folder: PathBuf,
    /// Config that Ignition has fetched.
    pub config: PathBuf,
    /// The kernel's boot ID.
    pub boot_id: PathBuf,
}

/// Failure that is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportedFailure {
    /// The attestation has failed; the boot goes on.
    Attestation,
    /// The boot has ended in the emergency shell.
    Boot,
}

/// Runs, says on stderr how it went, and returns 0 if a gateway has the report or there is nothing to report, and 1 if not.
#[must_use]
pub fn run(settings: ReportOptions) -> ExitCode {
    let limit = settings.deadline;
    let (sender, receiver) = mpsc::sync_channel(1);
    let worker = thread::Builder::new().name("report".to_owned()).spawn(move || {
        // The receiver is gone only when the process is about to be.
        let _ = sender.send(report(&settings));
    });
    let result = match worker.map(|_| receiver.recv_timeout(limit + LAST_WORDS)) {
        Ok(Ok(result)) => result,
        Ok(Err(RecvTimeoutError::Timeout)) => Err(Failure::new(
            "report-deadline",
            format!("{} s have passed", limit.as_secs()),
            "check the network of this node, and run `attest-node report` again",
        )),
        Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => {
            Err(Failure::new("internal", "the report stopped unexpectedly", "report this message"))
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            print_line(&format!("not reported: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// Sends the report to each gateway of the pointer; returns whether one has it, or none is to have it.
fn report(settings: &ReportOptions) -> Result<bool, Failure> {
    let deadline = Deadline::after(settings.deadline);
    let local = || deadline.at_most(settings.deadline / PROGRAM_PART);
    let failed = match settings.failure {
        ReportedFailure::Attestation => Ok(vec![ATTEST_UNIT.to_owned()]),
        ReportedFailure::Boot => journal::failed_units(local()),
    };
    let path = settings.pointer.clone().or_else(|| keep::pointer(&settings.kept_folder));
    let Some(path) = path else {
        let of_ignition = |unit: &String| unit.starts_with("ignition-");
        // A later boot has no such pointer, and nobody waits for its report.
        if settings.failure == ReportedFailure::Boot && !failed.is_ok_and(|failed| failed.iter().any(of_ignition)) {
            return Ok(true);
        }
        return Err(Failure::new(
            "report-no-pointer",
            "this boot has failed before attest-node had a pointer config with a gateway",
            "read the failure above; on a booted system pass the pointer config with --pointer",
        ));
    };
    let pointer = Pointer::parse(&pointer_file(&path)?)?;
    let (stage, unit) = match (settings.failure, &failed) {
        (ReportedFailure::Attestation, _) => (ReportStage::Attest, ATTEST_UNIT.to_owned()),
        (ReportedFailure::Boot, Ok(failed)) => journal::cause(failed).unwrap_or((ReportStage::Other, "emergency.target".to_owned())),
        (ReportedFailure::Boot, Err(_)) => (ReportStage::Other, "emergency.target".to_owned()),
    };
    let secrets = secrets(settings, &pointer);
    let text = journal::read(local()).unwrap_or_else(|error| format!("attest-node: no journal: {error}\n"));
    let text = redact(&text, &secrets);
    let error = journal::error_of(&unit, local()).unwrap_or_else(|| format!("{unit} failed; it left no message"));
    let request = ReportRequest {
        pool: String::new(),
        stage,
        unit,
        error: one_line(&redact(&error, &secrets)),
        boot: boot_id(&settings.boot_id),
        decision: None,
        proof: None,
        journal: journal::end_of(&text).to_owned(),
    };
    let http = Http::new(PointerTrust::new(&pointer.authorities()?)?)?;
    let known = attestations::read(&settings.kept_folder);
    let mut sources = pointer.sources();
    let mut seen = BTreeSet::new();
    sources.retain(|source| seen.insert(source.base.clone()));
    let (mut is_reported, count) = (false, sources.len());
    for (index, source) in sources.iter().enumerate() {
        let attestation = known
            .iter()
            .rev()
            .find(|known| known.base == source.base && known.pool == source.pool);
        let gateway = GatewayClient::new(&http, &source.base, deadline.share(count - index));
        let request = ReportRequest {
            pool: source.pool.clone(),
            ..request.clone()
        };
        match send(&gateway, request, attestation) {
            Ok(Sent::As(id)) => {
                is_reported = true;
                print_line(&format!(
                    "reported as {id} to {}; to read it there: `attest-gateway reports show {id}`",
                    source.base
                ));
            }
            Ok(Sent::ToNobody(what)) => print_line(&format!("not reported: {what}: no attestation gateway")),
            Err(GatewayError::Refused(problem)) if problem.code == REPORTS_OFF => {
                print_line(&format!(
                    "not reported: the gateway at {} takes no reports [{REPORTS_OFF}]",
                    source.base
                ));
            }
            Err(error) => print_line(&format!("not reported: {}", Failure::from(error))),
        }
    }
    Ok(is_reported)
}

/// Outcome of an attempt to send a report.
enum Sent {
    /// Id of the gateway's record.
    As(String),
    /// The server is no gateway, and gets no journal; with its answer.
    ToNobody(String),
}

/// Sends a report with the proof of the attestation, and without it if the gateway does not accept the proof.
fn send(gateway: &GatewayClient<'_>, request: ReportRequest, attestation: Option<&GatewayAttestation>) -> Result<Sent, GatewayError> {
    if let Discovered::Other(what) = gateway.discover(&request.pool, false)? {
        return Ok(Sent::ToNobody(what));
    }
    let decision = attestation.and_then(|attestation| attestation.decision.clone());
    let proof = attestation.and_then(|attestation| attestation.proof.clone());
    let unproven = ReportRequest { decision, ..request };
    if let Some(proof) = proof {
        let proven = ReportRequest {
            proof: Some(SecretText::new(Zeroizing::new(proof))),
            ..unproven.clone()
        };
        match gateway.report(&proven) {
            Err(GatewayError::Refused(problem)) if problem.code == REPORT_PROOF_INVALID => {}
            answer => return answer.map(Sent::As),
        }
    }
    gateway.report(&unproven).map(Sent::As)
}

/// Returns the secrets that this node's configs hold: the pointer, the `user.ign` with the ticket, and what Ignition has fetched.
fn secrets(settings: &ReportOptions, pointer: &Pointer) -> Secrets {
    let mut secrets = Secrets::default();
    if let Ok(config) = serde_json::from_slice(&pointer.to_bytes()) {
        secrets.add_config(&config);
    }
    let users = USER_CONFIG_FOLDERS.iter().map(|folder| Path::new(folder).join(USER_CONFIG));
    for path in users.chain([settings.config.clone()]) {
        let is_small = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() <= CONFIG_LIMIT_BYTES);
        let bytes = is_small.then(|| fs::read(&path).map(Zeroizing::new).ok()).flatten();
        if let Some(config) = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            secrets.add_config(&config);
        }
    }
    secrets
}

/// Returns a text as one line of limited length.
fn one_line(text: &str) -> String {
    let plain = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    plain.take(REPORT_ERROR_LIMIT_CHARS).collect()
}

/// Returns the kernel's boot ID as the journal has it; zeros if it cannot be read.
fn boot_id(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default().trim().replace('-', "");
    let is_id = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_id { text } else { "0".repeat(32) }
}
