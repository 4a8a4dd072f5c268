//! The whole run in a booting node: find the pointer, attest, put the tickets in, say what happened.
//!
//! Whatever goes wrong, the boot is no worse off than without this program: the pointer is only replaced by a complete one, and
//! the time is bounded. The work is done in a thread of its own, and only the thread that watches the clock writes, so that a TPM
//! or a network that hangs cannot hold up the boot and nothing is written after the deadline.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use attest::Kind;
use zeroize::Zeroizing;

use crate::attestation::cloud::{self, CloudMeans, NitroTpm};
use crate::attestation::means::{Means, TpmMeans};
use crate::attestation::{self, Target};
use crate::cloud::{Base, nitro_tpm};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::gateway::tls::Trust;
use crate::gateway::{Discovered, Gateway, Http};
use crate::pointer::platform::{Instance, Platform, pointer_file};
use crate::pointer::{Pointer, Source, write};
use crate::state::State;
use crate::tpm::{AkKind, EkChoice, EndorsementKey, Tpm, TpmError, device};

/// Kept back from the deadline, so that what hangs on the network is reported as such and not as a deadline that passed.
const REPORT_TIME: Duration = Duration::from_secs(1);

/// What to do, as the command line says.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A pointer file that wins over what Ignition would find.
    pub pointer: Option<PathBuf>,
    /// Where to write; Ignition's `user.ign` by default.
    pub output: Option<PathBuf>,
    /// The TPM.
    pub tcti: String,
    /// The firmware's event log.
    pub event_log: PathBuf,
    /// The most time that all of it may take.
    pub deadline: Duration,
    /// Kind of AK; P-256 by default, RSA-2048 if the TPM cannot make that.
    pub ak: Option<AkKind>,
    /// Kind of EK.
    pub ek: EkChoice,
    /// The name that the node wants to be known by.
    pub name: Option<String>,
    /// The kernel command line.
    pub cmdline: PathBuf,
    /// The folder of the DMI tables.
    pub dmi: PathBuf,
    /// The metadata server.
    pub metadata: Base,
    /// AWS's program that asks the NitroTPM: a path, or a name to be looked for in `PATH`.
    pub nitro_tpm_attest: PathBuf,
    /// The folder for what is kept until the next boot.
    pub state: PathBuf,
}

/// How the work ended.
enum Work {
    /// There is no gateway to attest to, or no use in it.
    Nothing(String),
    /// Each source that is a gateway was attested to, or not.
    Done(Done),
}

#[derive(Default)]
struct Done {
    /// The pointer with all tickets; nothing if there are none.
    pointer: Option<Zeroizing<Vec<u8>>>,
    attested: Vec<String>,
    failed: Vec<Failure>,
    notes: Vec<String>,
}

/// Runs, says on stderr how it went, and returns 0 if the node has attested or has nothing to attest to, and 1 if it has not.
#[must_use]
pub fn run(settings: Settings) -> ExitCode {
    let deadline = Deadline::after(settings.deadline);
    let platform = Platform::read(&settings.cmdline, &settings.dmi);
    let output = settings.output.clone().unwrap_or_else(|| platform.user_config.clone());
    write::tidy(&output);
    let seconds = settings.deadline.as_secs_f32();
    let (sender, receiver) = mpsc::sync_channel(1);
    let worker = thread::Builder::new().name("attest".to_owned()).spawn(move || {
        // The receiver is gone only when the process is about to be.
        let _ = sender.send(work(&settings, &platform, deadline.before(REPORT_TIME)));
    });
    let result = match worker.map(|_| receiver.recv_timeout(deadline.remaining())) {
        Ok(Ok(result)) => result,
        Ok(Err(RecvTimeoutError::Timeout)) => Err(Failure::new(
            "deadline",
            format!("{seconds} s have passed, most likely because the TPM does not answer"),
            "run `attest-node ek` on this node to see whether its TPM works; a slow one needs a longer --deadline",
        )),
        Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => Err(Failure::new(
            "internal",
            "the attestation stopped unexpectedly",
            "report this message",
        )),
    };
    report(result, &output)
}

fn report(result: Result<Work, Failure>, output: &Path) -> ExitCode {
    let done = match result {
        Ok(Work::Nothing(reason)) => {
            say(&format!("nothing to do: {reason}"));
            return ExitCode::SUCCESS;
        }
        Ok(Work::Done(done)) => done,
        Err(failure) => Done {
            failed: vec![failure],
            ..Done::default()
        },
    };
    let Done {
        pointer,
        attested,
        mut failed,
        notes,
    } = done;
    notes.iter().for_each(|note| say(&format!("note: {note}")));
    let written = pointer.map(|pointer| write::replace(output, &pointer));
    match &written {
        Some(Ok(())) => attested
            .iter()
            .for_each(|what| say(&format!("attested {what}; ticket written to {}", output.display()))),
        Some(Err(error)) => failed.push(Failure::new(
            "output",
            format!("{} cannot be written: {error}", output.display()),
            "make this folder writable in the initramfs, or name another file with --output",
        )),
        None => {}
    }
    let outcome = if matches!(written, Some(Ok(()))) {
        "the other sources have their tickets"
    } else {
        "the pointer config is unchanged"
    };
    failed
        .iter()
        .for_each(|failure| say(&format!("not attested: {failure}; {outcome}")));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(line: &str) {
    eprintln!("attest-node: {line}");
}

fn work(settings: &Settings, platform: &Platform, deadline: Deadline) -> Result<Work, Failure> {
    if platform.config_url {
        return Ok(Work::Nothing(
            "ignition.config.url is on the kernel command line, and Ignition prefers it to whatever this program writes".to_owned(),
        ));
    }
    let bytes = match &settings.pointer {
        Some(path) => pointer_file(path)?,
        None => platform.pointer(&settings.metadata, deadline)?,
    };
    let mut pointer = Pointer::parse(&bytes)?;
    let sources = pointer.sources();
    if sources.is_empty() {
        return Ok(Work::Nothing(
            "the pointer config names no source of the form https://…/config/<pool>".to_owned(),
        ));
    }
    let trust = Trust::new(&pointer.authorities()?)?;
    let mut surroundings = Surroundings {
        tpm: device::ready(&settings.tcti),
        instance: None,
    };
    if let Err(absent) = &surroundings.tpm {
        surroundings.instance = platform.instance(&settings.metadata, deadline)?;
        if surroundings.instance.is_none() {
            return Err(absent.clone().into());
        }
    }
    let http = Http::new(trust)?;
    let mut done = Done::default();
    let gateways = discover(&http, &sources, deadline, &mut done);
    if gateways.is_empty() {
        return match done.failed.is_empty() {
            true => Ok(Work::Nothing(format!(
                "no source is an attestation gateway: {}",
                done.notes.join("; ")
            ))),
            false => Ok(Work::Done(done)),
        };
    }
    // Who takes nothing from clouds need not know whether this is one.
    if surroundings.instance.is_none()
        && cloud::KINDS
            .iter()
            .any(|kind| gateways.iter().any(|(_, takes)| takes.contains(kind)))
    {
        surroundings.instance = platform.instance(&settings.metadata, deadline)?;
    }
    attest_to_all(settings, &http, &gateways, &surroundings, deadline, &mut pointer, &mut done)?;
    Ok(Work::Done(done))
}

/// What there may be to attest with.
struct Surroundings {
    /// Whether there is a TPM.
    tpm: Result<(), TpmError>,
    /// The instance of a cloud that this node is.
    instance: Option<Instance>,
}

/// The sources that are attestation gateways, with what they take. A node never shows its EK to anything else.
fn discover<'a>(http: &Http, sources: &'a [Source], deadline: Deadline, done: &mut Done) -> Vec<(&'a Source, BTreeSet<Kind>)> {
    let mut gateways = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let share = deadline.share(sources.len() - index);
        match Gateway::new(http, &source.base, share).discover() {
            Ok(Discovered::Gateway(takes)) => gateways.push((source, takes)),
            Ok(Discovered::Other(what)) => done.notes.push(what),
            Err(error) => done.failed.push(error.into()),
        }
    }
    gateways
}

/// A TPM with the EK that it attests by.
struct Opened {
    tpm: Tpm,
    ek: EndorsementKey,
    intermediates: Vec<Vec<u8>>,
}

fn open(settings: &Settings) -> Result<Opened, TpmError> {
    let mut tpm = Tpm::open(&settings.tcti)?;
    let ek = tpm.endorsement_key(settings.ek)?;
    let intermediates = if ek.certificate.is_some() {
        tpm.intermediates().unwrap_or_default()
    } else {
        Vec::new()
    };
    Ok(Opened { tpm, ek, intermediates })
}

impl Opened {
    fn means<'a>(&'a mut self, settings: &Settings) -> Result<(TpmMeans<'a>, Option<String>), TpmError> {
        let ak = settings.ak.unwrap_or_else(|| {
            if self.tpm.can_make(AkKind::EccP256) {
                AkKind::EccP256
            } else {
                AkKind::Rsa2048
            }
        });
        let keys = self.tpm.attester(&self.ek, ak)?;
        let intermediates = std::mem::take(&mut self.intermediates);
        Ok(TpmMeans::new(&self.ek, intermediates, keys, &settings.event_log))
    }
}

fn attest_to_all(
    settings: &Settings,
    http: &Http,
    gateways: &[(&Source, BTreeSet<Kind>)],
    surroundings: &Surroundings,
    deadline: Deadline,
    pointer: &mut Pointer,
    done: &mut Done,
) -> Result<(), Failure> {
    let takes: BTreeSet<Kind> = gateways.iter().flat_map(|(_, takes)| takes.iter().copied()).collect();
    let mut opened = None;
    let mut means = Means {
        name: settings.name.clone(),
        ..Means::default()
    };
    // On a cloud, one of two may be out of order: the pool says whether the other is enough.
    let mut missing = Vec::new();
    if takes.contains(&Kind::Tpm) && surroundings.tpm.is_ok() {
        let tpm = open(settings).and_then(|tpm| opened.insert(tpm).means(settings));
        match tpm {
            Ok((tpm, note)) => {
                done.notes.extend(note);
                means.tpm = Some(tpm);
            }
            Err(error) => missing.push(Failure::from(error)),
        }
    }
    if let Some(instance) = &surroundings.instance {
        match cloud_means(settings, instance, &takes, surroundings.tpm.is_ok(), deadline) {
            Ok(cloud) => means.cloud = cloud,
            Err(failure) => missing.push(failure),
        }
    }
    if means.tpm.is_none() && means.cloud.is_none() && !missing.is_empty() {
        return Err(missing.swap_remove(0));
    }
    done.notes.extend(missing.iter().map(|failure| format!("not shown: {failure}")));
    for (index, (source, takes)) in gateways.iter().enumerate() {
        let share = deadline.share(gateways.len() - index);
        let token = pointer.token(source.place);
        let target = Target {
            gateway: &Gateway::new(http, &source.base, share),
            takes,
            pool: &source.pool,
            token: token.as_ref(),
            deadline: share,
        };
        match attestation::attest(target, &mut means) {
            Ok(attested) => {
                pointer.set_ticket(source.place, &attested.ticket);
                done.attested
                    .push(format!("{attested} to {} for pool {}", source.base, source.pool));
            }
            Err(failure) => done.failed.push(failure),
        }
    }
    if !done.attested.is_empty() {
        done.pointer = Some(pointer.to_bytes());
    }
    Ok(())
}

fn cloud_means<'a>(
    settings: &Settings,
    instance: &'a Instance,
    takes: &BTreeSet<Kind>,
    has_tpm: bool,
    deadline: Deadline,
) -> Result<Option<CloudMeans<'a>>, Failure> {
    let state = State::new(&settings.state);
    let program = nitro_tpm::find(&settings.nitro_tpm_attest, std::env::var_os("PATH").as_deref());
    let nitro_tpm = program.filter(|_| has_tpm).map(|program| NitroTpm {
        program,
        folder: state.input(),
    });
    CloudMeans::find(instance, takes, nitro_tpm, &state, deadline)
}
