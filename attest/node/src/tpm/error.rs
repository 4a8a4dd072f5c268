//! Errors of a TPM.

use std::time::Duration;

use attest_wire::tpm::ek::EkAreaError;
use tss_esapi::constants::response_code::Tss2ResponseCodeKind;

use super::warning::{Lockout, Warning};
use crate::failure::Failure;

/// A failure of the TPM, or something that it cannot do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TpmError {
    /// The TPM device does not exist.
    #[error("this node has no TPM 2.0 ({path} does not exist)")]
    Absent {
        /// The device looked for.
        path: String,
    },
    /// The device is one of a TPM 1.2.
    #[error("this node's TPM is a TPM 1.2")]
    Version12,
    /// The TCTI string is not understood.
    #[error("the TCTI {tcti:?} is invalid")]
    Tcti { tcti: String },
    /// No TPM answers at the TCTI.
    #[error("no TPM answers at {tcti} ({})", code(.source))]
    NoAnswer { tcti: String, source: tss_esapi::Error },
    /// The firmware announces a TPM, and the kernel has no device of it.
    #[error("the firmware announces a TPM 2.0, but {path} did not appear within {} s", .waited.as_secs())]
    NoDevice {
        /// The device looked for.
        path: String,
        waited: Duration,
    },
    /// The TPM could not run a command, each time that it was asked until the deadline.
    #[error("{doing} failed: the TPM answered {} ({:#x}) {attempts} times in {} s", .warning.name, .warning.code, .waited.as_secs())]
    Busy {
        doing: &'static str,
        warning: Warning,
        attempts: u32,
        waited: Duration,
    },
    /// The TPM is in dictionary-attack lockout.
    #[error("{doing} failed: the TPM is in dictionary-attack lockout (TPM_RC_LOCKOUT, 0x921{})", counter(.lockout.as_ref()))]
    Lockout {
        doing: &'static str,
        /// Its counter, if the TPM tells it.
        lockout: Option<Lockout>,
    },
    /// A command failed, in the TPM or on the way to it.
    #[error("{doing} failed: {source} ({})", code(.source))]
    Command { doing: &'static str, source: tss_esapi::Error },
    /// An answer that the TPM specification does not allow.
    #[error("the TPM answered with {what}")]
    Unexpected {
        /// Description of the unexpected answer.
        what: &'static str,
    },
    /// A place in NV memory for something that is not there yet.
    #[error("the TPM's NV index {index:#010x} is empty")]
    Unwritten { index: u32 },
    /// No EK of the kind asked for.
    #[error("the TPM has no endorsement key of the requested kind ({choice})")]
    NoEndorsementKey {
        /// `auto`, `rsa` or `ecc`.
        choice: &'static str,
    },
    /// The EK is of no form that the attestation protocol knows.
    #[error("the endorsement key cannot be used: {0}")]
    EndorsementKey(EkAreaError),
    /// A structure of the gateway's is not a valid TPM structure.
    #[error("{structure} is malformed: {found} bytes, {expected} expected")]
    Structure {
        /// Its name in TPM 2.0 Part 2.
        structure: &'static str,
        found: usize,
        /// Bytes announced, or the most allowed.
        expected: usize,
    },
    /// The TPM does not have the PCR bank to be quoted.
    #[error("the TPM has no {wanted} PCR bank; it has {available}")]
    NoBank {
        /// The bank asked for.
        wanted: String,
        /// The banks it has.
        available: String,
    },
    /// A PCR is unchanged, though the TPM reported that it extended it.
    #[error("the TPM reports that it extended the PCR, but its {bank} bank is unchanged")]
    Unextended {
        /// Hash algorithm of the bank.
        bank: String,
    },
    /// PCRs kept changing between their reading and the quote.
    #[error("the PCRs changed between reading and quoting, {attempts} times in a row")]
    PcrsChanging {
        /// Number of attempts that were made.
        attempts: u32,
    },
}

impl TpmError {
    /// Returns whether the TPM did not run the command, and may run it later.
    pub(crate) const fn is_temporary(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Lockout { .. })
    }
}

fn counter(lockout: Option<&Lockout>) -> String {
    lockout.map_or_else(String::new, |Lockout { failed, limit, .. }| {
        format!("; {failed} failed authorizations, {limit} lock it")
    })
}

/// Returns the advice for a lockout. Clearing the TPM would end it as well, but would destroy what disks are sealed to.
fn after_lockout(lockout: Option<&Lockout>) -> String {
    let interval = match lockout {
        Some(Lockout { interval_seconds, .. }) => format!("{interval_seconds} s"),
        None => "the lockout interval (TPM2_PT_LOCKOUT_INTERVAL of `tpm2_getcap properties-variable`)".to_owned(),
    };
    format!(
        "leave this machine on and attest again after {interval}, in which the TPM forgets one failed authorization; or end the lockout with \
         `tpm2_dictionarylockout --clear-lockout` (with --auth PASSWORD if the lockout hierarchy has one); do not clear the TPM: disks may be sealed to it"
    )
}

/// Returns the response code as a number, which can be looked up.
fn code(error: &tss_esapi::Error) -> String {
    use tss_esapi::constants::response_code::Tss2ResponseCode;
    let text = match error {
        tss_esapi::Error::Tss2Error(Tss2ResponseCode::FormatZero(code)) => code.to_string(),
        tss_esapi::Error::Tss2Error(Tss2ResponseCode::FormatOne(code)) => code.to_string(),
        _ => return "before it reached the TPM".to_owned(),
    };
    text.rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Adds the attempted operation to the error of a TSS call.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, TpmError>;
}

impl<T> Doing<T> for Result<T, tss_esapi::Error> {
    fn doing(self, doing: &'static str) -> Result<T, TpmError> {
        self.map_err(|source| TpmError::Command { doing, source })
    }
}

impl From<TpmError> for Failure {
    fn from(error: TpmError) -> Self {
        let (code, next_step) = match &error {
            TpmError::Absent { .. } | TpmError::Version12 => (
                "tpm-absent",
                "enable the TPM 2.0 in the firmware setup, or give the virtual machine a TPM 2.0",
            ),
            TpmError::NoEndorsementKey { .. } => (
                "tpm-no-endorsement-key",
                "use --ek auto; `attest-node ek list` lists this TPM's endorsement keys",
            ),
            TpmError::NoBank { .. } => (
                "tpm-bank-missing",
                "enable this PCR bank in the firmware setup, or change `bank` in the pool's pool.toml",
            ),
            TpmError::PcrsChanging { .. } => ("tpm-failed", "find out which software extends PCRs during the boot"),
            TpmError::Unwritten { .. } => (
                "tpm-failed",
                "boot again; in Azure, if this repeats, ask Azure support for the certificate of the vTPM's attestation key",
            ),
            TpmError::NoDevice { .. } => (
                "tpm-absent",
                "put the TPM's driver into the initramfs (tpm_crb or tpm_tis; see `dmesg`), or raise --deadline if the TPM is slow",
            ),
            TpmError::Busy { .. } => (
                "tpm-busy",
                "boot again: the TPM was busy, and the machine is not at fault; if this repeats, find out which program uses the TPM, or raise --deadline",
            ),
            TpmError::Lockout { lockout, .. } => return Self::new("tpm-lockout", &error, after_lockout(lockout.as_ref())),
            TpmError::Command {
                source: tss_esapi::Error::Tss2Error(answer),
                ..
            } if answer.kind() == Some(Tss2ResponseCodeKind::BadAuth) => (
                "tpm-failed",
                "remove the password of the TPM's endorsement hierarchy, which attest-node does not have: `tpm2_changeauth -c endorsement -p PASSWORD`",
            ),
            TpmError::Tcti { .. } => ("tpm-failed", "pass a TCTI such as --tcti device:/dev/tpmrm0"),
            _ => (
                "tpm-failed",
                "run `attest-node ek list` on this node; if the TPM keeps failing, switch the machine off and on, and update its firmware; do not clear the TPM: disks may be sealed to it",
            ),
        };
        Self::new(code, &error, next_step)
    }
}
