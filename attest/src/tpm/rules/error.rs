//! Reasons why a measured boot is refused.

use super::{Check, EventDetail, Excerpt};
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
        /// Number of hashes in dbx.
        found: usize,
        /// Number of missing hashes, with their generation.
        accepted: Withheld,
    },
    /// An event that is not accepted.
    #[error("event {event}, PCR {pcr}, {}: {bank} {digest} is not accepted{said}", .check.event(), pcr = .check.pcr())]
    NotAccepted {
        check: Check,
        /// Position in the log, counted from 1 after the header.
        event: usize,
        bank: HashAlg,
        /// Digest of the event, hexadecimal.
        digest: String,
        /// Other knowledge about the event.
        said: EventDetail,
        accepted: Withheld,
    },
    /// The firmware is of another version.
    #[error("the firmware's version {found} is not accepted")]
    FirmwareVersion { found: Excerpt, accepted: Withheld },
}

advice! {
    /// The codes of a [`BootRefusal`].
    pub(crate) BOOT_NOT_PROVEN = "boot-not-proven", "The event log does not prove what the pool asks about the boot", "The reason says which event, and what is wrong with it; the advice depends on that. docs/explanation/measured-boot.md (The facts) says what each check needs. A check that a machine's firmware cannot satisfy is taken out of `boot` in the pool's pool.toml.";
    SECURE_BOOT_OFF = "secure-boot-off", "Secure Boot is off", "Turn Secure Boot on in the firmware setup.";
    BOOT_NOTHING_MEASURED = "boot-nothing-measured", "Nothing was measured of what the pool checks", "Take the check that the gateway's log names out of `boot` in the pool's pool.toml, if these machines boot otherwise.";
    DBX_TOO_OLD = "dbx-too-old", "The firmware's list of revoked images lacks some that the pool requires", "Update dbx on the machine (fwupdmgr update), or let a generation without these hashes be accepted for a while.";
    BOOT_NOT_ACCEPTED = "boot-not-accepted", "The machine booted something the pool does not accept", "The gateway's log names the event, what it is, and what is accepted. If it was updated: `attest-audit reference-values record` from a node that you trust, or add the digest by hand.";
    FIRMWARE_NOT_ACCEPTED = "firmware-not-accepted", "The firmware's version is not accepted", "If the firmware was updated, add its version to the pool's reference values; otherwise update it.";
}

/// The advice for a file that is written while the machine runs.
const GRUB_ENVIRONMENT: &str = "The node calls this file GRUB's environment block, which GRUB and the system write: saved_entry, boot_success, boot_counter. Accept each content that it should have, by `attest-audit reference-values record` from a node that you trust; if it is another at each boot, take `files` out of `boot` in the pool's pool.toml.";

/// The advice for a fact that is not proven: under one code, what each cause wants.
const fn not_proven(why: &NotProven) -> Advice {
    let next_step = match why {
        NotProven::UnknownEvent { .. } => {
            "The firmware measures something into PCR 7 that this gateway does not know; the reason has its digest. If the machine's maker explains it, list exactly this digest: pcr_7_events in a file of the pool's reference values, or `attest-audit reference-values record` with --pcr-7-events while the pool observes (docs/how-to/strict-boot-rules.md)."
        }
        NotProven::DebugMode { .. } => {
            "Turn the firmware's debugger off in the firmware setup: while it is on, Secure Boot proves nothing."
        }
        NotProven::ErrorSeparator { .. } => {
            "The firmware could not measure all that it started, and says so in this event. Reset the machine; if it stays, update its firmware, or ask its maker."
        }
        NotProven::PcrNotExplained { .. } => {
            "Something extends this PCR after the firmware's log ends, so its events cannot be checked. Take the checks of this PCR out of `boot` in the pool's pool.toml."
        }
        NotProven::TooManyEvents { .. } => {
            "The log has more events than a boot leaves: look at what extends PCRs on this machine, and reset it."
        }
        NotProven::Missing { .. } => {
            "This machine's firmware or boot loader does not measure what the check needs. Update its firmware, or take the check out of `boot` in the pool's pool.toml."
        }
        NotProven::Repeated { .. } | NotProven::Unexpected { .. } => {
            "The event that the reason names is not what has to be in its place: software has extended the PCR after the firmware, or this firmware measures otherwise. Reset the machine; if it stays, compare its log with another machine's (`attest-audit log compare-boots`)."
        }
        NotProven::SecureBootOff => return SECURE_BOOT_OFF,
    };
    Advice {
        next_step,
        ..BOOT_NOT_PROVEN
    }
}

impl BootRefusal {
    /// Code, meaning and next step.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NotProven { why, .. } => not_proven(why),
            Self::SecureBootOff { .. } => SECURE_BOOT_OFF,
            Self::Nothing { .. } => BOOT_NOTHING_MEASURED,
            Self::Dbx { .. } => DBX_TOO_OLD,
            Self::NotAccepted {
                said: EventDetail::GrubEnvironment(_),
                ..
            } => Advice {
                next_step: GRUB_ENVIRONMENT,
                ..BOOT_NOT_ACCEPTED
            },
            Self::NotAccepted { .. } => BOOT_NOT_ACCEPTED,
            Self::FirmwareVersion { .. } => FIRMWARE_NOT_ACCEPTED,
        }
    }

    pub(crate) const fn withheld(&self) -> Option<&Withheld> {
        match self {
            Self::Dbx { accepted, .. } | Self::NotAccepted { accepted, .. } | Self::FirmwareVersion { accepted, .. } => Some(accepted),
            Self::NotProven { .. } | Self::SecureBootOff { .. } | Self::Nothing { .. } => None,
        }
    }
}
