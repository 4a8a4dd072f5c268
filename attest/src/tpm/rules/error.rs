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
    #[error("dbx has {found} hashes, and lacks hashes that the pool requires")]
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
    pub(crate) BOOT_NOT_PROVEN = "boot-not-proven", "The event log does not prove a fact about the boot that the pool requires", "The reason names the event and its defect. docs/explanation/measured-boot.md lists each check's needs. If the machine's firmware cannot satisfy a check, remove it from `boot` in the pool's pool.toml.";
    SECURE_BOOT_OFF = "secure-boot-off", "Secure Boot is off", "Turn Secure Boot on in the firmware setup.";
    BOOT_NOTHING_MEASURED = "boot-nothing-measured", "The event log has no event of a kind that the pool checks", "If these machines boot in another way, remove the check that the gateway's log names from `boot` in the pool's pool.toml.";
    DBX_TOO_OLD = "dbx-too-old", "The firmware's list of revoked images (dbx) lacks hashes that the pool requires", "Update dbx on the machine: `fwupdmgr update`. Or accept a generation without these hashes for a while.";
    BOOT_NOT_ACCEPTED = "boot-not-accepted", "The machine booted a component that the pool does not accept", "The gateway's log names the event, the component, and the accepted values. After an update: run `attest-audit reference-values record` with the record of a trusted node, or add the digest by hand.";
    FIRMWARE_NOT_ACCEPTED = "firmware-not-accepted", "The pool does not accept the firmware's version", "If the firmware was updated, add its version to the pool's reference values. Otherwise update the firmware.";
}

/// The advice for a file that is written while the machine runs.
const GRUB_ENVIRONMENT: &str = "The node names this file as GRUB's environment block, which GRUB and the system write: saved_entry, boot_success, boot_counter. Accept each valid content with `attest-audit reference-values record` from a trusted node. If it changes at each boot, remove `files` from `boot` in the pool's pool.toml.";

/// The advice for a fact that is not proven: under one code, what each cause wants.
const fn not_proven(why: &NotProven) -> Advice {
    let next_step = match why {
        NotProven::UnknownEvent { .. } => {
            "The firmware measures an unknown event into PCR 7; the reason has its digest. If the machine's manufacturer explains the event, accept exactly this digest: in pcr_7_events of a file of the pool's reference values, or with `attest-audit reference-values record --pcr-7-events` while the pool observes."
        }
        NotProven::DebugMode { .. } => {
            "Disable the firmware's debugger in the firmware setup: while it is enabled, Secure Boot proves nothing."
        }
        NotProven::ErrorSeparator { .. } => {
            "By this event, the firmware reports that it could not measure every image that it started. Reset the machine. If this repeats, update its firmware, or ask its manufacturer."
        }
        NotProven::PcrNotExplained { .. } => {
            "Software extends this PCR after the end of the firmware's log, so its events cannot be checked. Remove the checks of this PCR from `boot` in the pool's pool.toml."
        }
        NotProven::TooManyEvents { .. } => {
            "The log has more events than a normal boot. Find out which software extends PCRs on this machine, and reset it."
        }
        NotProven::Missing { .. } => {
            "This machine's firmware or boot loader does not measure what the check needs. Update its firmware, or remove the check from `boot` in the pool's pool.toml."
        }
        NotProven::Repeated { .. } | NotProven::Unexpected { .. } => {
            "The event that the reason names is unexpected at its position: software extended the PCR after the firmware, or this firmware measures in another way. Reset the machine. If this repeats, compare its log with another machine's: `attest-audit log compare-boots`."
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
