//! Why what a machine has booted is refused.

use super::{Beginning, Check, Known};
use crate::advice::{Advice, advice};
use crate::tpm::measured_boot::NotProven;
use crate::tpm::wire::HashAlg;
use crate::withheld::Withheld;

/// The first thing that differs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BootRefusal {
    /// The log does not prove what is asked about.
    #[error("{check}: {why}")]
    NotProven { check: Check, why: NotProven },
    /// Secure Boot is off.
    #[error("{check}: Secure Boot is off")]
    SecureBootOff { check: Check },
    /// Not one of what there has to be.
    #[error("{check}: no {} was measured into PCR {}", .check.event(), .check.pcr())]
    Nothing { check: Check },
    /// dbx lacks what it has to have.
    #[error("dbx has {found} hashes, and lacks some that it has to have")]
    Dbx {
        /// How many hashes it has.
        found: usize,
        /// How many it lacks, of which generation.
        accepted: Withheld,
    },
    /// An event that is not accepted.
    #[error("event {event}, PCR {pcr}, {}: {bank} {digest} is not accepted{said}", .check.event(), pcr = .check.pcr())]
    NotAccepted {
        check: Check,
        /// Its place in the log, counted from 1 behind the header.
        event: usize,
        bank: HashAlg,
        /// Hexadecimal.
        digest: String,
        /// What is known of it beside that.
        said: Known,
        accepted: Withheld,
    },
    /// The firmware is of another version.
    #[error("the firmware's version {found} is not accepted")]
    FirmwareVersion { found: Beginning, accepted: Withheld },
}

advice! {
    /// The codes of a [`BootRefusal`].
    pub BOOT_NOT_PROVEN = "boot-not-proven", "The event log does not prove what the pool asks about the boot", "Look at the event that the gateway's log names. A PCR that later software extends as well cannot be checked by its events; take that check out of `boot` in the pool's pool.toml.";
    SECURE_BOOT_OFF = "secure-boot-off", "Secure Boot is off", "Turn Secure Boot on in the firmware setup.";
    BOOT_NOTHING_MEASURED = "boot-nothing-measured", "Nothing was measured of what the pool checks", "Take the check that the gateway's log names out of `boot` in the pool's pool.toml, if these machines boot otherwise.";
    DBX_TOO_OLD = "dbx-too-old", "The firmware's list of revoked images lacks some that the pool requires", "Update dbx on the machine (fwupdmgr update), or let a generation without these hashes be accepted for a while.";
    BOOT_NOT_ACCEPTED = "boot-not-accepted", "The machine booted something the pool does not accept", "The gateway's log names the event, what it is, and what is accepted. If it was updated: `attest-gateway reference-values record` from a node that you trust, or add the digest by hand.";
    FIRMWARE_NOT_ACCEPTED = "firmware-not-accepted", "The firmware's version is not accepted", "If the firmware was updated, add its version to the pool's reference values; otherwise update it.";
}

impl BootRefusal {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NotProven { .. } => BOOT_NOT_PROVEN,
            Self::SecureBootOff { .. } => SECURE_BOOT_OFF,
            Self::Nothing { .. } => BOOT_NOTHING_MEASURED,
            Self::Dbx { .. } => DBX_TOO_OLD,
            Self::NotAccepted { .. } => BOOT_NOT_ACCEPTED,
            Self::FirmwareVersion { .. } => FIRMWARE_NOT_ACCEPTED,
        }
    }

    /// The same as earlier releases said it, if that was otherwise: they put no mark behind a text that they had cut, and named what is accepted of other sections
    /// of a unified kernel image, too.
    #[must_use]
    pub fn of_before(&self) -> Option<Self> {
        let before = match self {
            Self::NotAccepted {
                check,
                event,
                bank,
                digest,
                said,
                accepted,
            } => Self::NotAccepted {
                check: *check,
                event: *event,
                bank: *bank,
                digest: digest.clone(),
                said: said.unmarked(),
                accepted: accepted.of_before(),
            },
            Self::FirmwareVersion { found, accepted } => Self::FirmwareVersion {
                found: found.unmarked(),
                accepted: accepted.of_before(),
            },
            Self::NotProven { .. } | Self::SecureBootOff { .. } | Self::Nothing { .. } | Self::Dbx { .. } => return None,
        };
        (before != *self).then_some(before)
    }

    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::Dbx { accepted, .. } | Self::NotAccepted { accepted, .. } | Self::FirmwareVersion { accepted, .. } => Some(accepted),
            Self::NotProven { .. } | Self::SecureBootOff { .. } | Self::Nothing { .. } => None,
        }
    }
}
