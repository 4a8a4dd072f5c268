//! The whole run in a booting node: find the pointer, attest, put the tickets in, report the result.
//!
//! No failure makes the boot worse than it would be without this program. The pointer is only replaced by a complete one. The time is
//! bounded, except while Ignition waits too ([`WaitLimits`]). The work runs in its own thread, and only the thread that watches the clock
//! writes the pointer. So a TPM or a network that hangs cannot hold up the boot, and nothing is written after the deadline.

pub(crate) mod opened_tpm;
mod tickets;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use attest_wire::SpkiSha256;
use attest_wire::protocol::{GATEWAY_UNREACHABLE, RETRY_LIMIT_EXCEEDED, TICKET_UNDELIVERABLE};
use zeroize::Zeroizing;

use crate::attestation::cloud;
use crate::boot_id;
use crate::cloud::MetadataAddress;
use crate::console::{self, print_line};
use crate::deadline::Deadline;
use crate::delivery::{Delivery, Gateways};
use crate::entropy;
use crate::failure::Failure;
use crate::first_boot_secret::state::ClaimFolder;
use crate::first_boot_secret::storage::{self, Storage};
use crate::first_boot_secret::{ClaimPurpose, FirstBootSecret};
use crate::gateway::tls::PointerTrust;
use crate::gateway::{Discovered, GatewayClient, GatewayError, Http, Takes};
use crate::ignition::version::newest_spec;
use crate::keep;
use crate::kubelet;
use crate::kubelet::key::{self, KeyPaths, KubeletKeyPair};
use crate::platform::{CloudInstance, KubeletKey, NAME_ARGUMENT, NodePlatform, pointer_file};
use crate::pointer::{GatewaySource, Pointer, PointerError, SourceLocation};
use crate::report::attestations::{self, GatewayAttestation};
use crate::tpm::{AkKind, EkChoice, TpmError, device};
use crate::wait::WaitLimits;

/// A metadata server that comes late is waited for this much longer than anything else: by default for the two minutes that Ignition waits for
/// it (`--fetch-timeout`, in `internal/main.go` of coreos/ignition).
const POINTER_PARTS: u32 = 2;

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct BootOptions {
    /// Pointer file to use instead of Ignition's own source.
    pub pointer: Option<PathBuf>,
    /// Output path; Ignition's `user.ign` by default.
    pub output: Option<PathBuf>,
    /// TCTI of the TPM.
    pub tcti: String,
    /// The firmware's event log.
    pub event_log: PathBuf,
    /// Time limit for the node's own work; it restarts after each wait for a gateway.
    pub deadline: Duration,
    /// The most time to wait for a gateway that does not answer, unless the kernel command line says another; without end if neither does.
    pub wait: Option<Duration>,
    /// The most time to wait for a gateway that does so.
    pub hold: Duration,
    /// Kind of AK; P-256 by default, RSA-2048 if the TPM cannot make that.
    pub ak: Option<AkKind>,
    /// Kind of EK to use.
    pub ek: EkChoice,
    /// The name that the node wants to be known by.
    pub name: Option<String>,
    /// The kernel command line.
    pub cmdline: PathBuf,
    /// The folder of the DMI tables.
    pub dmi: PathBuf,
    /// Base URL of the metadata server.
    pub metadata: MetadataAddress,
    /// AWS's program that asks the NitroTPM: a path, or a name to be looked for in `PATH`.
    pub nitro_tpm_attest: PathBuf,
    /// Folder for state that is kept until the next boot.
    pub state: PathBuf,
    /// Folder for files that are kept for the booted system.
    pub kept_folder: PathBuf,
    /// Set to attest the kubelet's future key even if the kernel command line does not ask for it.
    pub kubelet_key: bool,
    /// Storage for state that must survive a reboot of this first boot, unless the kernel command line names another.
    pub storage: Storage,
}

/// Result of the work.
enum BootOutcome {
    /// No gateway to attest to, or no use in it.
    Nothing(String),
    /// All sources that are gateways were processed, with or without success.
    Done(Box<BootResult>),
}

#[derive(Default)]
struct BootResult {
    /// Pointer with all tickets and headers; `None` if it is to stay unchanged.
    pointer: Option<Zeroizing<Vec<u8>>>,
    /// Reason for having no evidence, in cases that are not failures.
    nothing: Option<String>,
    attested: Vec<String>,
    /// Set if some gateway has accepted the kubelet's future key.
    attested_key: bool,
    /// Set if the pointer tells a source which client shows its token.
    claimed: bool,
    /// Sources without evidence, with the reason that their gateways will be told.
    untold: Vec<(SourceLocation, String)>,
    failed: Vec<Failure>,
    notes: Vec<String>,
    /// Results that a report of this boot proves or names; of one gateway, the last counts.
    reports: Vec<GatewayAttestation>,
    /// Gateways to notify if the pointer for Ignition cannot be written.
    gateways: Option<Gateways>,
}

/// Runs, says on stderr how it went, and returns 0 if the node has attested or has nothing to attest to, and 1 if it has not.
#[must_use]
pub fn run(settings: BootOptions) -> ExitCode {
    entropy::wait();
    if let Some(id) = boot_id::of_unit() {
        print_line(&format!("boot {id}"));
    }
    let platform = NodePlatform::read(&settings.cmdline, &settings.dmi);
    if let Some(word) = &platform.wait_not_understood {
        print_line(&format!(
            "ignoring attest-node.wait={word} on the kernel command line: expected a number of seconds, such as 90"
        ));
    }
    if let Some(word) = &platform.storage_not_understood {
        print_line(&format!(
            "ignoring {}={word} on the kernel command line: expected a filesystem's label, a folder's path, or none",
            storage::ARGUMENT
        ));
    }
    if let Some(word) = &platform.name_not_understood {
        print_line(&format!(
            "ignoring {NAME_ARGUMENT}={word} on the kernel command line: a node name has lower-case letters, digits, '-' and '.' only"
        ));
    }
    let name = platform.name.clone().or(settings.name);
    let settings = BootOptions { name, ..settings };
    let unanswered = platform.wait.or(settings.wait);
    let patience = Arc::new(WaitLimits::new(settings.deadline, settings.hold, unanswered));
    let delivery = Delivery::find(&platform.ignition, settings.output.as_deref());
    let deliverable = delivery.possible();
    let seconds = settings.deadline.as_secs_f32();
    let places = KeyPaths::new(&settings.kept_folder, Path::new(key::FOLDER));
    let is_told_to = settings.kubelet_key || platform.kubelet_key == KubeletKey::Always;
    let (key, is_new) = if is_told_to || platform.kubelet_key != KubeletKey::Never {
        kubelet::key_of_this_boot(&places, is_told_to)
    } else {
        (None, false)
    };
    let (sender, receiver) = mpsc::sync_channel(1);
    let at_work = Arc::clone(&patience);
    let worker = thread::Builder::new().name("attest".to_owned()).spawn(move || {
        // The receiver is gone only when the process is about to be.
        let _ = sender.send(work(&settings, &platform, deliverable, (key.as_ref(), is_told_to), &at_work));
    });
    let result = match worker.map(|_| wait(&receiver, &patience)) {
        Ok(Ok(result)) => result,
        Ok(Err(RecvTimeoutError::Timeout)) => Err(Failure::new(
            "deadline",
            format!("{seconds} s have passed, most likely because the TPM does not answer"),
            "run `attest-node ek list` on this node to check its TPM; a slow TPM needs a longer --deadline",
        )),
        Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => Err(Failure::new(
            "internal",
            "the attestation stopped unexpectedly",
            "report this message",
        )),
    };
    let is_attested = matches!(&result, Ok(BootOutcome::Done(done)) if done.attested_key);
    if is_new && !is_attested {
        // Nobody asks for a certificate by a key that nobody knows of.
        let _ = places.forget_of_this_boot();
    }
    if is_new && !is_attested && is_told_to {
        print_line("note: no gateway has accepted this node's attested key for its kubelet: the kubelet creates its own");
    }
    report(result, &delivery)
}

/// Waits for the work, until the deadline, which may move on meanwhile.
fn wait<T>(receiver: &Receiver<T>, patience: &WaitLimits) -> Result<T, RecvTimeoutError> {
    loop {
        match receiver.recv_timeout(patience.deadline().remaining()) {
            Err(RecvTimeoutError::Timeout) if !patience.deadline().remaining().is_zero() => {}
            result => return result,
        }
    }
}

fn report(result: Result<BootOutcome, Failure>, delivery: &Delivery) -> ExitCode {
    let done = match result {
        Ok(BootOutcome::Nothing(reason)) => {
            print_line(&format!("nothing to do: {reason}"));
            return ExitCode::SUCCESS;
        }
        Ok(BootOutcome::Done(done)) => *done,
        Err(failure) => BootResult {
            failed: vec![failure],
            ..BootResult::default()
        },
    };
    let BootResult {
        pointer,
        nothing,
        attested,
        untold,
        mut failed,
        notes,
        gateways,
        ..
    } = done;
    notes.iter().for_each(|note| print_line(&format!("note: {note}")));
    let written = pointer.map(|pointer| delivery.deliver(&pointer));
    if let Some(reason) = nothing {
        // Without that header the token is good all the same.
        failed.extend(written.and_then(Result::err));
        failed.iter().for_each(|failure| print_line(&format!("note: {failure}")));
        print_line(&format!("nothing to do: {reason}"));
        return ExitCode::SUCCESS;
    }
    match &written {
        Some(Ok(())) => attested
            .iter()
            .for_each(|what| print_line(&format!("attested {what}; ticket written to {}", delivery.path().display()))),
        Some(Err(failure)) => failed.push(failure.clone()),
        None => {}
    }
    let outcome = match written {
        Some(Ok(())) if attested.is_empty() && untold.is_empty() => {
            "the pointer config is unchanged, except for a header that identifies the node that uses its token"
        }
        Some(Ok(())) if attested.is_empty() => {
            "the pointer config is unchanged, except for a header that reports this failure to the gateway"
        }
        Some(Ok(())) => "the other sources have their tickets",
        _ => "the pointer config is unchanged",
    };
    failed
        .iter()
        .for_each(|failure| print_line(&format!("not attested: {failure}; {outcome}")));
    if failed.iter().any(|failure| failure.code == TICKET_UNDELIVERABLE) {
        // Their logs must not end in TRUSTED, or in silence, for a node that gets less.
        gateways.iter().for_each(Gateways::notify);
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn work(
    settings: &BootOptions,
    platform: &NodePlatform,
    deliverable: Result<(), Failure>,
    (kubelet_key, is_told_to): (Option<&KubeletKeyPair>, bool),
    patience: &WaitLimits,
) -> Result<BootOutcome, Failure> {
    match platform.ignition.heeds_user_config() {
        // Somebody knows what this program does not.
        Err(PointerError::Unclear) if settings.pointer.is_some() && settings.output.is_some() => {}
        heeds => heeds?,
    }
    let bytes = match &settings.pointer {
        Some(path) => pointer_file(path)?,
        None => {
            let begin = |time| console::extend(patience.begin(time), "Looking for the pointer config");
            begin(settings.deadline * POINTER_PARTS);
            let pointer = platform.pointer(&settings.metadata, patience.work())?;
            begin(settings.deadline);
            pointer
        }
    };
    let mut pointer = Pointer::parse(&bytes)?.for_boot(boot_id::of_unit());
    if let Some(limit) = pointer.wait() {
        patience.at_most(limit.max(settings.deadline));
    }
    let sources = pointer.sources();
    if sources.is_empty() {
        return Ok(BootOutcome::Nothing(
            "the pointer config names no source of the form https://…/config/<pool>".to_owned(),
        ));
    }
    keep::leave(&settings.kept_folder, &pointer);
    let left_out = pointer.authority_left_out();
    // At once: whatever this run ends in, it may be why.
    left_out.iter().for_each(|left_out| print_line(&format!("note: {left_out}")));
    let trust = PointerTrust::new(&pointer.authorities()?)?.partial(left_out.is_some());
    let storage = platform.storage.clone().unwrap_or_else(|| settings.storage.clone());
    // A driver that comes late has its time, and what comes after it too.
    let begin = |status| console::extend(patience.begin(Duration::ZERO), status);
    begin("Looking for the TPM");
    let tpm = device::ready(&settings.tcti, patience.work());
    begin("Attesting");
    let mut surroundings = Surroundings {
        first_boot_secret: FirstBootSecret::new(ClaimFolder::new(&settings.state), storage),
        tpm,
        instance: None,
        kubelet_key: kubelet_key.and_then(KubeletKeyPair::digest),
    };
    let mut done = BootResult::default();
    if let Err(absent) = &surroundings.tpm {
        surroundings.instance = platform.instance(&settings.metadata, patience.work())?;
        if surroundings.instance.is_none() {
            if !sources.iter().all(|source| pointer.token(source.place).is_some()) {
                return Err(absent.clone().into());
            }
            // Whoever gave it a token knows that it is no failure.
            let reason = format!("{absent}; Ignition uses the provisioning token in the pointer config");
            // What Ignition fetches by a proxy this program cannot ask.
            if deliverable.is_err() || pointer.wait() == Some(Duration::ZERO) {
                return Ok(BootOutcome::Nothing(reason));
            }
            done.nothing = Some(reason);
        }
    }
    let http = Http::new(trust)?;
    let gateways = discover(
        &http,
        &sources,
        &pointer,
        patience,
        is_told_to && surroundings.kubelet_key.is_some(),
        &mut done,
    );
    if gateways.is_empty() {
        done.write(&mut pointer);
        if done.failed.is_empty() {
            let notes = std::mem::take(&mut done.notes).join("; ");
            done.nothing = Some(format!("no source is an attestation gateway: {notes}"));
        }
        return Ok(BootOutcome::Done(done.into()));
    }
    let to_tell = gateways
        .iter()
        .map(|(source, _)| (source.base.clone(), source.pool.clone()))
        .collect();
    // To attest would be in vain.
    if let Err(failure) = deliverable {
        done.failed.push(failure);
        done.gateways = Some(Gateways::new(http, to_tell));
        return Ok(BootOutcome::Done(done.into()));
    }
    // Who takes nothing from clouds need not know whether this is one.
    if done.nothing.is_none()
        && surroundings.instance.is_none()
        && cloud::KINDS
            .iter()
            .any(|kind| gateways.iter().any(|(_, takes)| takes.kinds.contains(kind)))
    {
        surroundings.instance = platform.instance(&settings.metadata, patience.work())?;
    }
    if done.nothing.is_none() {
        pointer.set_newest_spec(platform.ignition.release().and_then(newest_spec));
        let result = tickets::attest_to_all(settings, &http, &gateways, &mut surroundings, patience, &mut pointer, &mut done);
        // What is known of the other gateways is not lost with it.
        done.failed.extend(result.err());
        attestations::keep(&settings.kept_folder, &done.reports);
    }
    claim_tokens(
        &gateways,
        &mut surroundings.first_boot_secret,
        patience.work(),
        &mut pointer,
        &mut done,
    );
    done.notes.extend(surroundings.first_boot_secret.note());
    done.write(&mut pointer);
    done.gateways = Some(Gateways::new(http, to_tell));
    Ok(BootOutcome::Done(done.into()))
}

impl BootResult {
    /// Records the failure of a source. Its gateway learns the reason from Ignition's later request, if the node gave up waiting for it, or
    /// if it refused the node.
    fn fail(&mut self, place: SourceLocation, failure: Failure, patience: &WaitLimits) {
        let why = match &failure.refusal {
            _ if failure.code == RETRY_LIMIT_EXCEEDED => Some(RETRY_LIMIT_EXCEEDED.to_owned()),
            _ if patience.gave_up() => Some(GATEWAY_UNREACHABLE.to_owned()),
            refusal => refusal.clone(),
        };
        self.untold.extend(why.map(|why| (place, why)));
        self.failed.push(failure);
    }

    /// Makes the pointer that is to be written, if there is anything to say in it.
    fn write(&mut self, pointer: &mut Pointer) {
        self.untold.iter().for_each(|(place, code)| pointer.set_not_attested(*place, code));
        if self.claimed || !self.attested.is_empty() || !self.untold.is_empty() {
            self.pointer = Some(pointer.to_bytes());
        }
    }
}

/// Potential means of attestation.
struct Surroundings {
    /// First-boot secrets that identify this node to gateways.
    first_boot_secret: FirstBootSecret,
    /// Result of the search for a TPM.
    tpm: Result<(), TpmError>,
    /// The instance of a cloud that this node is.
    instance: Option<CloudInstance>,
    /// The key that its kubelet will have.
    kubelet_key: Option<SpkiSha256>,
}

/// Finds the sources that are attestation gateways, with the kinds that they accept. A node never shows its EK to another server.
fn discover<'a>(
    http: &Http,
    sources: &'a [GatewaySource],
    pointer: &Pointer,
    patience: &WaitLimits,
    offers_key: bool,
    done: &mut BootResult,
) -> Vec<(&'a GatewaySource, Takes)> {
    let mut gateways = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let share = patience.work().share(sources.len() - index);
        patience.answered(Instant::now());
        let gateway = GatewayClient::patiently(http, source, share, patience).with_token(pointer.token(source.place).is_some());
        match gateway.discover(&source.pool, offers_key) {
            Ok(Discovered::Gateway(takes)) => gateways.push((source, takes)),
            Ok(Discovered::Other(what)) => done.notes.push(what),
            // Most likely no gateway. If it is one, it is to know: who is none does not read it.
            Err(error @ GatewayError::BesideConfigs(_)) => {
                done.notes.push(error.to_string());
                done.untold.push((source.place, GATEWAY_UNREACHABLE.to_owned()));
            }
            Err(error) => done.fail(source.place, error.into(), patience),
        }
    }
    gateways
}

/// Adds this node's claimant to Ignition's requests with a token: an initramfs that starts over fetches again, and a use counts per node.
/// No other server learns of it.
fn claim_tokens(
    gateways: &[(&GatewaySource, Takes)],
    claimants: &mut FirstBootSecret,
    deadline: Deadline,
    pointer: &mut Pointer,
    done: &mut BootResult,
) {
    for (source, _) in gateways {
        // Where there is a ticket now, it has taken the token's place.
        if pointer.token(source.place).is_none() {
            continue;
        }
        match claimants.secret(deadline) {
            Ok(secret) => {
                pointer.set_claimant(source.place, &secret.claimant(ClaimPurpose::Token, &source.base));
                done.claimed = true;
            }
            Err(failure) => done.notes.push(failure.to_string()),
        }
    }
}
