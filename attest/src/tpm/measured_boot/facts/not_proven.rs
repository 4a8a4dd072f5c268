//! Reasons why a fact is not proven.

use crate::tpm::measured_boot::EVENTS_LIMIT;
use crate::values::HexDigest;

/// Reason why something is not proven. `event` is the position in the log, counted from 1 after the header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotProven {
    /// Nothing is proven about this PCR: it was not quoted, or the log does not lead to its value.
    #[error("the log's events do not give the quoted PCR {pcr}")]
    PcrNotExplained { pcr: u8 },
    /// A log has more events than are stored.
    #[error("the log has {left_out} events more than the limit of {EVENTS_LIMIT}")]
    TooManyEvents { left_out: usize },
    /// Something that the PCR has to have is not there.
    #[error("PCR {pcr} has no {required}")]
    Missing { pcr: u8, required: &'static str },
    /// Something that may be there once is there again.
    #[error("event {event} in PCR {pcr} is another {repeated}")]
    Repeated { pcr: u8, event: usize, repeated: &'static str },
    /// An event that is not what has to be in its place.
    #[error("event {event} in PCR {pcr} is not {required}")]
    Unexpected { pcr: u8, event: usize, required: &'static str },
    /// An event whose meaning is not known, where each has to be.
    #[error("the meaning of event {event} in PCR {pcr} is not known (digest {digest})")]
    UnknownEvent { pcr: u8, event: usize, digest: HexDigest },
    /// The firmware reports that it could not measure everything.
    #[error("event {event}, in PCR {pcr}, is the separator by which firmware reports an error")]
    ErrorSeparator { pcr: u8, event: usize },
    /// Secure Boot was off: the log does not have the actual authorities, and any software may have added those that it has.
    #[error("Secure Boot was off")]
    SecureBootOff,
    /// The firmware's debugger was on, so Secure Boot proves nothing.
    #[error("event {event} in PCR 7 reports that the firmware was in debug mode")]
    DebugMode { event: usize },
}

/// A proven answer, or the reason why it is not proven.
pub type Fact<T> = Result<T, NotProven>;
