//! `attest-node try`: rehearses the attestation of a running machine, and says what a boot would get, and why.
//!
//! It changes nothing: the gateway gives no ticket and keeps nothing but a record, the TPM keeps no key, and files stay as they are.

mod findings;

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use attest_wire::EkDigest;
use attest_wire::protocol::{ConfigFormats, RehearsalResponse};
use attest_wire::tpm::boot_complete::{BOOT_COMPLETE_PCR, is_closed};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use self::findings::{Findings, Severity};
use crate::attestation::means::Means;
use crate::attestation::{self, AttestationTarget, cloud};
use crate::boot::BootOptions;
use crate::boot::opened_tpm::{OpenedTpm, cloud_means, open};
use crate::console::print_line;
use crate::deadline::Deadline;
use crate::ek_table::issuer;
use crate::failure::Failure;
use crate::first_boot_secret::FirstBootSecret;
use crate::first_boot_secret::state::ClaimFolder;
use crate::first_boot_secret::storage::Storage;
use crate::gateway::tls::PointerTrust;
use crate::gateway::{Discovered, GatewayClient, Http, Takes};
use crate::keep;
use crate::platform::{CloudInstance, NodePlatform, pointer_file};
use crate::pointer::source::gateway_of;
use crate::pointer::{GatewaySource, Pointer, SourceLocation};
use crate::tpm::{Lockout, TpmDevice, TpmError, device};

/// Largest file with CAs, in bytes.
const CA_LIMIT_BYTES: u64 = 1024 * 1024;

/// Largest difference between this machine's clock and a gateway's that is not pointed out, in seconds. AWS refuses signatures that are five minutes old.
const CLOCK_TOLERANCE_SECONDS: u64 = 120;

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct RehearsalOptions {
    /// Settings of the attestation, as at a boot.
    pub boot: BootOptions,
    /// Gateway, pool and file with its CA, instead of a pointer config.
    pub gateway: Option<(String, String, PathBuf)>,
    /// Set to print JSON.
    pub json: bool,
}

/// Gateways that are asked, and the CAs that they are trusted by.
struct Targets {
    sources: Vec<GatewaySource>,
    authorities: Vec<CertificateDer<'static>>,
}

/// Runs, prints the findings on stdout, and returns 0 if every gateway would trust the machine, and 1 if not.
#[must_use]
pub fn run(settings: &RehearsalOptions) -> ExitCode {
    let mut findings = Findings::default();
    match temporary_folder() {
        Ok(state) => {
            let boot = BootOptions {
                state: state.clone(),
                storage: Storage::Nowhere,
                ..settings.boot.clone()
            };
            rehearse(settings, &boot, &mut findings);
            let _ = fs::remove_dir_all(&state);
        }
        Err(error) => findings.add(Severity::Bad, "temporary folder", error.to_string()),
    }
    let text = match settings.json {
        true => serde_json::to_string_pretty(&findings).unwrap_or_default() + "\n",
        false => findings.text(),
    };
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            print_line(&format!("standard output: {error}"));
            ExitCode::FAILURE
        }
        _ if findings.trusted => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Creates a folder for the state of this run, which no other user can have prepared.
fn temporary_folder() -> io::Result<PathBuf> {
    let mut random = [0; 8];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| io::Error::other("the system has no randomness"))?;
    let folder = std::env::temp_dir().join(format!("attest-node-try-{}", data_encoding::HEXLOWER.encode(&random)));
    // It fails if the folder is there.
    DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

fn rehearse(settings: &RehearsalOptions, boot: &BootOptions, findings: &mut Findings) {
    let platform = NodePlatform::read(&boot.cmdline, &boot.dmi);
    let targets = match targets(settings, &platform, findings) {
        Ok(targets) => Some(targets),
        Err(failure) => {
            findings.fail(Severity::Bad, "pointer", &failure);
            None
        }
    };
    let deadline = Deadline::after(boot.deadline);
    let mut tpm = device::ready(&boot.tcti, deadline)
        .and_then(|()| open(boot, deadline))
        .map_err(Failure::from);
    if let Err(failure) = &tpm {
        findings.fail(Severity::Note, "TPM", failure);
    }
    if let Ok(tpm) = &mut tpm {
        describe(tpm, boot, findings);
    }
    let instance = match platform.instance(&boot.metadata, deadline) {
        Ok(Some(instance)) => {
            findings.add(Severity::Ok, "cloud", instance.cloud.instance());
            Some(instance)
        }
        Ok(None) => None,
        Err(error) => {
            findings.fail(Severity::Note, "cloud", &error.into());
            None
        }
    };
    let Some(targets) = targets else { return };
    let http = PointerTrust::new(&targets.authorities).and_then(Http::new);
    let http = match http {
        Ok(http) => http,
        Err(error) => return findings.fail(Severity::Bad, "CA", &error.into()),
    };
    let mut trusted = !targets.sources.is_empty();
    for source in &targets.sources {
        let client = GatewayClient::new(&http, &source.base, Deadline::after(boot.deadline));
        let ek = tpm.as_ref().ok().map(|tpm| tpm.ek().digest);
        let decided = with_gateway(&client, source, boot, tpm.as_mut(), instance.as_ref(), findings);
        let refused = match decided {
            Ok(decided) => say(&decided, source, findings).map(|failure| ("decision", failure)),
            Err(failure) => Some((if failure.code.starts_with("tpm-") { "TPM" } else { "gateway" }, failure)),
        };
        if let Some((about, failure)) = refused {
            findings.fail(
                Severity::Bad,
                about,
                &with_command(failure, source, ek.as_ref(), settings.gateway.is_some()),
            );
            trusted = false;
        }
    }
    findings.trusted = trusted;
}

/// Finds the gateways to ask, and their CAs.
fn targets(settings: &RehearsalOptions, platform: &NodePlatform, findings: &mut Findings) -> Result<Targets, Failure> {
    let boot = &settings.boot;
    if let Some((url, pool, file)) = &settings.gateway {
        let base = url.trim_end_matches('/');
        let (base, pool) = gateway_of(&format!("{base}/config/{pool}")).ok_or_else(|| {
            Failure::new(
                "config-source",
                // Not as typed, which may have a password.
                "--gateway and --pool make no URL of a config",
                "name the gateway as https://HOST:PORT, and its pool by --pool",
            )
        })?;
        let authorities = authorities(file)?;
        findings.add(Severity::Ok, "pointer", format!("none is read: pool {pool} at {base}"));
        let place = SourceLocation::Replace;
        return Ok(Targets {
            sources: vec![GatewaySource { place, base, pool }],
            authorities,
        });
    }
    let kept = keep::pointer(&boot.kept_folder);
    let (from, bytes) = match boot.pointer.as_ref().or(kept.as_ref()) {
        Some(path) => (path.display().to_string(), pointer_file(path)?),
        None => (
            "the platform".to_owned(),
            platform.pointer(&boot.metadata, Deadline::after(boot.deadline))?,
        ),
    };
    let pointer = Pointer::parse(&bytes)?;
    let (sources, authorities) = (pointer.sources(), pointer.authorities()?);
    let named: Vec<String> = sources
        .iter()
        .map(|source| format!("pool {} at {}", source.pool, source.base))
        .collect();
    if named.is_empty() {
        return Err(Failure::new(
            "config-source",
            format!("the pointer config of {from} names no source of the form https://…/config/<pool>"),
            "create one on the gateway: `attest-gateway pointer create --pool POOL --url https://HOST:PORT`",
        ));
    }
    let (named, count) = (named.join(", "), authorities.len());
    findings.add(Severity::Ok, "pointer", format!("from {from}: {named}; CAs: {count}"));
    Ok(Targets { sources, authorities })
}

/// Reads the CAs in a PEM file.
fn authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let wrong = |reason: String| Failure::new("pointer-ca", reason, "name the PEM file with the gateway's MCS CA with --ca");
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(CA_LIMIT_BYTES.saturating_add(1)).read_to_end(&mut bytes));
    read.map_err(|error| wrong(format!("{}: {error}", file.display())))?;
    let is_small = u64::try_from(bytes.len()).is_ok_and(|length| length <= CA_LIMIT_BYTES);
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if is_small && !all.is_empty() => Ok(all),
        _ => Err(wrong(format!("{} holds no PEM certificates", file.display()))),
    }
}

/// Adds what is known of the TPM and of this boot.
fn describe(tpm: &mut OpenedTpm, boot: &BootOptions, findings: &mut Findings) {
    let ek = tpm.ek();
    let certificate = match (&ek.certificate, ek.certificate_index()) {
        (Some(certificate), Some(index)) => format!("certificate in NV index {index:#010x}, issued by {}", issuer(certificate)),
        (Some(certificate), None) => format!("certificate issued by {}", issuer(certificate)),
        (None, _) => "no certificate".to_owned(),
    };
    let said = format!("{}: EK {} {}, {certificate}", boot.tcti, ek.label, ek.digest);
    let unread = ek.unread.as_ref().map(ToString::to_string);
    findings.add(Severity::Ok, "TPM", said);
    if let Some(unread) = unread {
        findings.add(Severity::Note, "TPM", unread);
    }
    describe_device(tpm.device(), findings);
    match attestation::event_log(&boot.event_log) {
        (Some(log), _) => findings.add(
            Severity::Ok,
            "event log",
            format!("{}: {} bytes", boot.event_log.display(), log.len()),
        ),
        (None, Some(note)) => findings.add(Severity::Note, "event log", note),
        (None, None) => findings.add(
            Severity::Note,
            "event log",
            format!(
                "{} does not exist or is empty: a pool that requires the event log refuses this machine",
                boot.event_log.display()
            ),
        ),
    }
}

/// Adds the TPM's maker, PCR banks and lockout, and whether this boot is complete.
fn describe_device(tpm: &mut TpmDevice, findings: &mut Findings) {
    let failed = |findings: &mut Findings, error: TpmError| findings.fail(Severity::Note, "TPM", &error.into());
    match tpm.maker() {
        Ok(maker) => findings.add(Severity::Ok, "TPM maker", maker.to_string()),
        Err(error) => failed(findings, error),
    }
    match tpm.banks() {
        Ok(banks) => findings.add(Severity::Ok, "PCR banks", banks),
        Err(error) => failed(findings, error),
    }
    if let Some(Lockout { failed, limit, .. }) = tpm.lockout() {
        let said = format!("{failed} failed authorizations count, {limit} lock the TPM");
        match failed >= limit {
            true => findings.note(
                "lockout",
                &format!("{said}: it is in dictionary-attack lockout, in which most EKs work"),
                "`tpm2_dictionarylockout --clear-lockout`, with --auth PASSWORD if the lockout hierarchy has one; do not clear the TPM",
            ),
            false => findings.add(Severity::Ok, "lockout", said),
        }
    }
    match tpm.boot_complete_pcr() {
        Ok(values) if values.iter().any(|(bank, value)| is_closed(*bank, &vec![0; bank.digest_bytes()], value)) => findings.add(
            Severity::Note,
            "boot",
            format!(
                "it is complete (PCR {BOOT_COMPLETE_PCR} is extended), so a real attestation needs a reset; the rehearsal decides as if this machine were booting"
            ),
        ),
        Ok(values) if values.is_empty() => {}
        Ok(_) => findings.add(
            Severity::Note,
            "boot",
            format!("PCR {BOOT_COMPLETE_PCR} is not extended: any program on this machine can attest, unless `attest-node boot complete` runs at each boot"),
        ),
        Err(error) => failed(findings, error),
    }
}

/// Asks one gateway what it would decide.
fn with_gateway(
    client: &GatewayClient<'_>,
    source: &GatewaySource,
    boot: &BootOptions,
    tpm: Result<&mut OpenedTpm, &mut Failure>,
    instance: Option<&CloudInstance>,
    findings: &mut Findings,
) -> Result<RehearsalResponse, Failure> {
    let Takes { kinds, clock_behind, .. } = match client.discover(&source.pool, false)? {
        Discovered::Gateway(takes) => takes,
        Discovered::Other(what) => {
            return Err(Failure::new(
                "gateway-answer",
                what,
                "check that the address in the pointer config is an attestation gateway's",
            ));
        }
    };
    let words: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    findings.add(
        Severity::Ok,
        "gateway",
        format!("{} answers, and accepts {}", source.base, words.join(", ")),
    );
    if let Some(behind) = clock_behind {
        say_clock(behind, findings);
    }
    if let (Err(failure), None) = (&tpm, instance) {
        return Err(Failure::new(
            "no-accepted-evidence",
            "this machine has no TPM that can be used, and is no instance of a known cloud",
            failure.next_step.clone(),
        ));
    }
    let has_tpm = tpm.is_ok();
    let mut means = Means {
        name: boot.name.clone(),
        ..Means::default()
    };
    if let Some(tpm) = tpm.ok().filter(|_| kinds.contains(&attest_wire::Kind::Tpm)) {
        let (found, notes) = tpm.means(boot)?;
        notes.into_iter().for_each(|note| findings.add(Severity::Note, "TPM", note));
        means.tpm = Some(found);
    }
    let mut claimants = FirstBootSecret::new(ClaimFolder::new(&boot.state), boot.storage.clone());
    if let Some(instance) = instance.filter(|_| cloud::KINDS.iter().any(|kind| kinds.contains(kind))) {
        let found = cloud_means(boot, instance, &kinds, has_tpm, &mut claimants, client.deadline())?;
        found.notes.into_iter().for_each(|note| findings.add(Severity::Note, "cloud", note));
        means.cloud = found.means;
    }
    let target = AttestationTarget {
        gateway: client,
        takes: &kinds,
        pool: &source.pool,
        kubelet_key: None,
        token: None,
        formats: &ConfigFormats::default(),
    };
    attestation::rehearse(target, &mut means)
}

/// Adds the difference between this machine's clock and a gateway's.
fn say_clock(behind: i64, findings: &mut Findings) {
    let seconds = behind.unsigned_abs();
    if seconds <= CLOCK_TOLERANCE_SECONDS {
        return findings.add(Severity::Ok, "clock", format!("within {seconds} s of the gateway's"));
    }
    let direction = if behind > 0 { "behind" } else { "ahead of" };
    findings.note(
        "clock",
        &format!("{seconds} s {direction} the gateway's: certificates and requests to clouds depend on it"),
        "set this node's clock (the RTC, in the firmware setup) to the current time in UTC; if it is right, the gateway's is wrong",
    );
}

/// Adds what a gateway would decide; returns the failure if it would not trust the machine.
fn say(decided: &RehearsalResponse, source: &GatewaySource, findings: &mut Findings) -> Option<Failure> {
    for one in &decided.requirements {
        let said = format!("[{}] {}", one.section, one.requirement);
        match &one.code {
            None => findings.add(Severity::Ok, "requirement", said),
            Some(code) => findings.unmet("requirement", &said, code),
        }
    }
    let record = decided.decision.as_ref().map(|id| format!(" (record {id})")).unwrap_or_default();
    let pool = &source.pool;
    match (&decided.refusal, &decided.grant) {
        (None, Some(grant)) => {
            let name = decided.name.as_ref().map(|name| format!(", as node {name}")).unwrap_or_default();
            findings.add(
                Severity::Ok,
                "decision",
                format!("trusted: the {grant} config of pool {pool}{name}{record}"),
            );
            None
        }
        (Some(problem), _) => {
            let reason = problem.detail.as_ref().unwrap_or(&problem.title);
            let mut next_step = problem.next_step.clone();
            if let (true, Some(record)) = (decided.acceptable, &decided.decision) {
                next_step = format!("on the gateway: `attest-gateway waiting accept --record {record}`, or: {next_step}");
            }
            Some(Failure {
                code: crate::failure::code_of(&problem.code),
                reason: format!("refused for pool {pool}: {reason}{record}"),
                next_step,
                refusal: None,
            })
        }
        (None, None) => Some(Failure::new(
            "gateway-answer",
            format!("the gateway's answer says nothing of pool {pool}"),
            "use an attest-node of the gateway's release",
        )),
    }
}

/// Puts a command that runs as printed into a next step that has to be general, because its author does not know this machine or this source.
/// `named` is set if options name the gateway and its CA, and not a pointer config.
fn with_command(mut failure: Failure, source: &GatewaySource, ek: Option<&EkDigest>, named: bool) -> Failure {
    let GatewaySource { base, pool, .. } = source;
    failure.next_step = match (failure.code.as_str(), ek) {
        ("ek-not-endorsed", Some(ek)) => format!(
            "on the gateway, if this machine is to join pool {pool}: `attest-gateway ek add {ek} --pool {pool}`, or let the pool trust its TPM's maker \
             (docs/how-to/endorse-tpms.md); if it belongs to another pool, name that in the pointer config"
        ),
        ("ek-certificate-unread" | "ek-certificate-invalid" | "ek-certificate-mismatch", Some(ek)) => format!(
            "on the gateway, if this machine is yours: `attest-gateway ek add {ek} --pool {pool}`; or: {}",
            failure.next_step
        ),
        ("node-revoked", Some(ek)) => {
            format!("on the gateway, if this machine should join again: `attest-gateway node restore {ek}`")
        }
        ("tls-unknown-ca", _) if named => {
            "name a PEM file with the gateway's current MCS CA with --ca; if this file has it, somebody else answers at this address"
                .to_owned()
        }
        ("tls-unknown-ca", _) => format!(
            "create the pointer config again, on the gateway: `attest-gateway pointer create --pool {pool} --url {base}`; if it has the gateway's \
             current CA, somebody else answers at this address"
        ),
        _ => return failure,
    };
    failure
}
