//! Check that a quote was made while the machine boots. The boot-complete PCR ([`attest_wire::tpm::boot_complete`]) must have the value that the
//! firmware has left in it, without any later extension.

use std::collections::BTreeMap;

pub use attest_wire::tpm::boot_complete::{BOOT_COMPLETE_PCR, CLOSING_WORD, extended};
use attest_wire::tpm::boot_complete::{OS_SEPARATOR, is_closed};

use super::event_log::EventLog;
use super::wire::HashAlg;
use crate::values::HexDigest;

/// The firmware log's claim about the boot-complete PCR: like the log, it is the node's own claim until the quote has its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootCompleteMeasurement {
    /// The value that its events lead to.
    value: Vec<u8>,
    /// Number of events in this PCR.
    events: usize,
    /// Position in the log of the event that completes the boot, counted from 1. No firmware has one.
    closing: Option<usize>,
}

impl BootCompleteMeasurement {
    /// Replays the PCR's events in a log; `None` if the log has no digests of this bank.
    pub(crate) fn by(log: &EventLog<'_>, bank: HashAlg) -> Option<Self> {
        let replayed = log.replay(bank, [BOOT_COMPLETE_PCR]).ok()?;
        let word = bank.digest(&[CLOSING_WORD]);
        let closes = |event: &super::event_log::Event<'_>| {
            event.pcr == BOOT_COMPLETE_PCR && event.extends() && event.digest(bank).is_some_and(|digest| digest == word.as_ref())
        };
        Some(Self {
            value: replayed.value(BOOT_COMPLETE_PCR)?.to_vec(),
            events: replayed.events(BOOT_COMPLETE_PCR),
            closing: log.events().iter().position(closes).map(|position| position.saturating_add(1)),
        })
    }
}

/// Reason why a quote was not made while the machine boots.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BootCompleteError {
    /// The boot-complete PCR was not quoted.
    #[error("the quote does not cover PCR {BOOT_COMPLETE_PCR}, the boot-complete PCR")]
    NotQuoted,
    /// `attest-node` has ended the boot.
    #[error("PCR {BOOT_COMPLETE_PCR} ({bank}) is {quoted}: attest-node extended it at the end of the boot")]
    Closed {
        bank: HashAlg,
        /// Quoted value of the PCR.
        quoted: HexDigest,
    },
    /// The log would have the end of the boot for a part of it.
    #[error("event {event} of the log, in PCR {BOOT_COMPLETE_PCR}, is attest-node's at the end of a boot: no firmware logs it")]
    InLog {
        /// Its place in the log, from 1.
        event: usize,
    },
    /// Something has extended it since the firmware was done.
    #[error(
        "PCR {BOOT_COMPLETE_PCR} ({bank}) is {quoted}, but its {events} events in the firmware's log give {expected}: software extended it after the firmware"
    )]
    Extended {
        bank: HashAlg,
        /// Quoted value of the PCR.
        quoted: HexDigest,
        /// Value that the log leads to, hexadecimal; zeros without a log.
        expected: String,
        events: usize,
    },
}

/// Checks that the boot is not complete: the quoted value is exactly what the firmware's events lead to, except for systemd's separator.
/// Without a log of this PCR, the value must be zeros. The event that completes a boot must not be in the log.
///
/// # Errors
/// [`BootCompleteError`].
pub(crate) fn check_open(
    bank: HashAlg,
    pcrs: &BTreeMap<u8, HexDigest>,
    log: Option<&BootCompleteMeasurement>,
) -> Result<(), BootCompleteError> {
    let quoted = pcrs.get(&BOOT_COMPLETE_PCR).ok_or(BootCompleteError::NotQuoted)?;
    if let Some(event) = log.and_then(|log| log.closing) {
        return Err(BootCompleteError::InLog { event });
    }
    let nothing = BootCompleteMeasurement {
        value: vec![0; bank.digest_bytes()],
        events: 0,
        closing: None,
    };
    let BootCompleteMeasurement { value, events, .. } = log.unwrap_or(&nothing);
    if quoted.as_bytes() == value || quoted.as_bytes() == extended(bank, value, OS_SEPARATOR) {
        return Ok(());
    }
    let quoted = quoted.clone();
    Err(match is_closed(bank, value, quoted.as_bytes()) {
        true => BootCompleteError::Closed { bank, quoted },
        false => BootCompleteError::Extended {
            bank,
            quoted,
            expected: data_encoding::HEXLOWER.encode(value),
            events: *events,
        },
    })
}
