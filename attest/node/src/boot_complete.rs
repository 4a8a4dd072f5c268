//! `attest-node boot complete`: ends this boot for gateways by extending the boot-complete PCR. Software that runs later cannot quote this boot's
//! PCRs: a pool that accepts machines only while they boot refuses it, until the machine is reset.
//!
//! A unit of the initramfs runs it on each boot: on a first boot when Ignition has its config, on others at the start. If it fails, the
//! boot goes on, and the console shows the error.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use attest_wire::tpm::boot_complete::{BOOT_COMPLETE_PCR, is_closed};
use attest_wire::tpm::wire::HashAlg;

use crate::console::print_line;
use crate::deadline::{Backoff, Deadline};
use crate::failure::Failure;
use crate::tpm::{Closed, TpmDevice, TpmError, device};

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct CloseOptions {
    /// TCTI of the TPM.
    pub tcti: String,
    /// The most time that it may take.
    pub deadline: Duration,
}

/// Runs, reports the result on stderr, and returns 0 if the boot-complete PCR is extended or the machine has no TPM, and 1 if it is not
/// extended.
#[must_use]
pub fn run(settings: &CloseOptions) -> ExitCode {
    match close(settings) {
        Ok(said) => {
            print_line(&said);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print_line(&format!(
                "PCR {BOOT_COMPLETE_PCR} IS NOT EXTENDED: {failure}; until it is, any program on this node can attest as a booting machine"
            ));
            ExitCode::FAILURE
        }
    }
}

fn close(settings: &CloseOptions) -> Result<String, Failure> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let (tcti, deadline) = (settings.tcti.clone(), Deadline::after(settings.deadline));
    let worker = thread::Builder::new().name("close".to_owned()).spawn(move || {
        // The receiver is gone only when the process is about to be.
        let _ = sender.send(work(&tcti, deadline));
    });
    let result = worker.ok().and_then(|_| receiver.recv_timeout(deadline.remaining()).ok());
    let result = result.ok_or_else(|| {
        Failure::new(
            "deadline",
            format!("{} s have passed, and the TPM does not answer", settings.deadline.as_secs()),
            "run `attest-node boot complete` again, or reset this machine",
        )
    })?;
    match result {
        Ok(Closed::Now(banks)) => Ok(format!(
            "boot complete: PCR {BOOT_COMPLETE_PCR} is extended ({}); until a reset, this machine cannot attest to pools that accept only booting machines",
            banks.join(", ")
        )),
        Ok(Closed::Before) => Ok(format!("boot already complete: PCR {BOOT_COMPLETE_PCR} is extended")),
        Err(absent @ (TpmError::Absent { .. } | TpmError::Version12)) => Ok(format!("nothing to do: {absent}")),
        Err(error) => Err(error.into()),
    }
}

/// Tries until the deadline: a TPM's driver may come late, and a TPM may be busy.
fn work(tcti: &str, deadline: Deadline) -> Result<Closed, TpmError> {
    // What this thread says has to be heard before the deadline.
    let deadline = deadline.before(LAST_WORD);
    let mut backoff = Backoff::default();
    loop {
        let error = match device::ready(tcti, deadline).and_then(|()| close_once(tcti, deadline)) {
            Ok(closed) => return Ok(closed),
            Err(error @ (TpmError::Absent { .. } | TpmError::NoDevice { .. } | TpmError::Version12 | TpmError::Tcti { .. })) => {
                return Err(error);
            }
            Err(error) => error,
        };
        thread::sleep(backoff.pause(deadline).ok_or(error)?);
    }
}

fn close_once(tcti: &str, deadline: Deadline) -> Result<Closed, TpmError> {
    let mut tpm = TpmDevice::open(tcti)?;
    tpm.retry_until(deadline);
    tpm.extend_boot_complete_pcr()
}

/// Time reserved for receiving the worker's result before the deadline.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Prints a note before a quote over these PCRs is sent, if the boot-complete PCR shows that the machine's boot is over.
pub fn warn_if_closed(bank: HashAlg, pcrs: &BTreeMap<u8, Vec<u8>>) {
    let closed = |value: &Vec<u8>| is_closed(bank, &vec![0; bank.digest_bytes()], value);
    if pcrs.get(&BOOT_COMPLETE_PCR).is_some_and(closed) {
        print_line(&format!(
            "note: the boot is complete (PCR {BOOT_COMPLETE_PCR} is extended): pools that accept only booting machines refuse this machine; reset it to attest during the boot"
        ));
    }
}
