//! The firmware's event log: how the PCRs came to their values.
//!
//! The crypto-agile log of the TCG PC Client Platform Firmware Profile (PFP) 1.06, section 10, little-endian, as Linux shows it in
//! `/sys/kernel/security/tpm0/binary_bios_measurements`.
//!
//! Nothing signs a log: only its replay proves anything. If hashing its events in order gives a PCR's quoted value, then exactly these
//! **digests** were extended into that PCR in this order. So only [`EventLog::check_against`] returns events that may be relied upon. Even
//! there the event's type and data stay untrusted: they are not hashed into the PCR. Data may be relied upon only if the event's digest is
//! known to be the hash of that very data.
//!
//! These are tolerated on purpose, because firmware sends them:
//! - A vendor information field of any content in the Spec ID event (PFP 10.4.5.1): it is skipped.
//! - Algorithms this verifier does not know, such as SM3: skipped by the digest size that the Spec ID event declares.
//! - SHA-1 digests beside others: skipped. No decision is ever made on them.
//! - An event that lacks digests of some declared banks, as Linux tolerates it: refused only if it extends a PCR that is being
//!   replayed in a bank that it lacks.
//! - Event types this verifier does not know: a type has no meaning for the replay, except `EV_NO_ACTION`.
//! - `EV_NO_ACTION` events of unknown content (SP 800-155 and others): they extend nothing and prove nothing. Those that are about no PCR are
//!   passed over.
//! - A StartupLocality event that is longer than its 17 bytes: the rest of it is padding.
//!
//! Everything else that deviates from the profile is refused. Examples are bytes after the last event, padding, an event for a PCR that
//! does not exist, and the SHA-1-only format of TPM 1.2.
//!
//! Only systemd 261 and later extends the firmware's PCRs without an event in the firmware's log, see [`OS_SEPARATOR`]. And each [`Phase`]
//! of a boot extends PCR 11.

mod error;
mod parse;
mod phase;
mod replay;

use std::fmt;

pub use attest_wire::tpm::LOG_LIMIT_BYTES;
pub use error::EventLogError;
pub use phase::Phase;
pub use replay::{Replayed, TrustedEvent, TrustedEvents};

use super::wire::HashAlg;

/// Most algorithms that a log may declare: HASH_COUNT, TPM 2.0 Library Part 2 allows for no more banks in practice.
pub const ALGORITHMS_LIMIT: usize = 16;

/// The PCRs of a PC Client TPM: 0 to 23.
pub const PCR_COUNT: usize = 24;

/// The word that systemd extends into [`OS_SEPARATOR_PCRS`] when its userspace first sees the TPM of a machine that was booted by a unified kernel
/// image: the hash of these bytes in each bank, once (systemd 261, `systemd-pcrosseparator.service`; systemd-pcrphase.service(8), and the Linux TPM
/// PCR Registry of the UAPI group). It is in systemd's own log, `/run/log/systemd/tpm2-measure.log`, and in no firmware's.
///
/// The gateway does not ask for that log. The word is the same on every machine, so whether it was extended after the firmware's events can
/// be computed. Like these, it does not prove which software has extended it.
pub const OS_SEPARATOR: &[u8] = attest_wire::tpm::boot_complete::OS_SEPARATOR;

/// The PCRs into which systemd extends [`OS_SEPARATOR`].
pub const OS_SEPARATOR_PCRS: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14];

/// A well-formed event log. Nothing in it may be relied upon before [`EventLog::check_against`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventLog<'a> {
    algorithms: Vec<DeclaredAlgorithm>,
    startup_locality: u8,
    events: Vec<Event<'a>>,
}

/// A digest algorithm that the log's header declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeclaredAlgorithm {
    /// Identifier of the algorithm (`TPM_ALG_ID`).
    pub id: u16,
    /// Length of its digests in bytes.
    pub digest_bytes: u16,
}

/// An event as the log has it: **untrusted** in every field, the PCR included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Position in the log, counted from 1 after the header; events that are about no PCR count too.
    pub number: usize,
    /// The PCR that the event says it extended: 0 to 23.
    pub pcr: u8,
    /// Type of the event according to the log.
    pub event_type: EventType,
    /// The event's data. Most types describe in it what was measured; few digests cover it.
    pub data: &'a [u8],
    sha256: Option<&'a [u8; 32]>,
    sha384: Option<&'a [u8; 48]>,
    sha512: Option<&'a [u8; 64]>,
}

impl<'a> EventLog<'a> {
    /// Parses a log in the crypto-agile format.
    ///
    /// # Errors
    /// [`EventLogError`] with the offending values for anything but a well-formed crypto-agile log of at most
    /// [`LOG_LIMIT_BYTES`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, EventLogError> {
        parse::log(bytes)
    }

    /// All events in the order of the log, without its header, and without those that are about no PCR.
    #[must_use]
    pub fn events(&self) -> &[Event<'a>] {
        &self.events
    }

    /// Returns the number of events, without the header.
    #[must_use]
    pub const fn event_count(&self) -> usize {
        self.events.len()
    }

    /// The digest algorithms that the header declares: the banks that the firmware extended.
    #[must_use]
    pub fn algorithms(&self) -> &[DeclaredAlgorithm] {
        &self.algorithms
    }

    /// The locality that started the TPM, which PCR 0 begins with: 0, 3 or 4 (PFP 10.4.5.3).
    #[must_use]
    pub const fn startup_locality(&self) -> u8 {
        self.startup_locality
    }
}

impl<'a> Event<'a> {
    /// The digest for one bank, if the event has it.
    #[must_use]
    pub fn digest(&self, bank: HashAlg) -> Option<&'a [u8]> {
        match bank {
            HashAlg::Sha256 => self.sha256.map(<[u8; 32]>::as_slice),
            HashAlg::Sha384 => self.sha384.map(<[u8; 48]>::as_slice),
            HashAlg::Sha512 => self.sha512.map(<[u8; 64]>::as_slice),
        }
    }

    /// Returns whether the event changed its PCR: every event does, except `EV_NO_ACTION`.
    #[must_use]
    pub fn extends(&self) -> bool {
        self.event_type != EventType::NO_ACTION
    }
}

/// The type of an event (PFP 10.4.1). It is not measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventType(pub u32);

impl EventType {
    /// `EV_NO_ACTION`: informative, extends nothing.
    pub const NO_ACTION: Self = Self(0x0000_0003);

    /// The name in the profile, `None` for types it does not define.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x0000_0000 => "EV_PREBOOT_CERT",
            0x0000_0001 => "EV_POST_CODE",
            0x0000_0003 => "EV_NO_ACTION",
            0x0000_0004 => "EV_SEPARATOR",
            0x0000_0005 => "EV_ACTION",
            0x0000_0006 => "EV_EVENT_TAG",
            0x0000_0007 => "EV_S_CRTM_CONTENTS",
            0x0000_0008 => "EV_S_CRTM_VERSION",
            0x0000_0009 => "EV_CPU_MICROCODE",
            0x0000_000a => "EV_PLATFORM_CONFIG_FLAGS",
            0x0000_000b => "EV_TABLE_OF_DEVICES",
            0x0000_000c => "EV_COMPACT_HASH",
            0x0000_000d => "EV_IPL",
            0x0000_000e => "EV_IPL_PARTITION_DATA",
            0x0000_000f => "EV_NONHOST_CODE",
            0x0000_0010 => "EV_NONHOST_CONFIG",
            0x0000_0011 => "EV_NONHOST_INFO",
            0x0000_0012 => "EV_OMIT_BOOT_DEVICE_EVENTS",
            0x0000_0013 => "EV_POST_CODE2",
            0x8000_0001 => "EV_EFI_VARIABLE_DRIVER_CONFIG",
            0x8000_0002 => "EV_EFI_VARIABLE_BOOT",
            0x8000_0003 => "EV_EFI_BOOT_SERVICES_APPLICATION",
            0x8000_0004 => "EV_EFI_BOOT_SERVICES_DRIVER",
            0x8000_0005 => "EV_EFI_RUNTIME_SERVICES_DRIVER",
            0x8000_0006 => "EV_EFI_GPT_EVENT",
            0x8000_0007 => "EV_EFI_ACTION",
            0x8000_0008 => "EV_EFI_PLATFORM_FIRMWARE_BLOB",
            0x8000_0009 => "EV_EFI_HANDOFF_TABLES",
            0x8000_000a => "EV_EFI_PLATFORM_FIRMWARE_BLOB2",
            0x8000_000b => "EV_EFI_HANDOFF_TABLES2",
            0x8000_000c => "EV_EFI_VARIABLE_BOOT2",
            0x8000_000d => "EV_EFI_GPT_EVENT2",
            0x8000_0010 => "EV_EFI_HCRTM_EVENT",
            0x8000_00e0 => "EV_EFI_VARIABLE_AUTHORITY",
            0x8000_00e1 => "EV_EFI_SPDM_FIRMWARE_BLOB",
            0x8000_00e2 => "EV_EFI_SPDM_FIRMWARE_CONFIG",
            0x8000_00e3 => "EV_EFI_SPDM_DEVICE_POLICY",
            0x8000_00e4 => "EV_EFI_SPDM_DEVICE_AUTHORITY",
            _ => return None,
        })
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
