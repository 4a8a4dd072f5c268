use super::{ALGORITHMS_LIMIT, EventType, LOG_LIMIT_BYTES, PCR_COUNT};
use crate::tpm::wire::HashAlg;

/// Reason why a log cannot be parsed, or does not explain the quote. `event` counts from 1 after the header, `offset` from byte 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventLogError {
    /// More bytes than any firmware writes.
    #[error("the log has {bytes} bytes, at most {LOG_LIMIT_BYTES} are read")]
    TooLarge { bytes: usize },
    /// The log ends inside a field.
    #[error("{field} at byte {offset} needs {needed} bytes, {left} are left")]
    Truncated {
        field: &'static str,
        /// Position of the field, in bytes.
        offset: usize,
        /// Required length, in bytes.
        needed: usize,
        left: usize,
    },
    /// The bytes do not begin with a header: they are not a log.
    #[error("not an event log: the first event's {field} is {found}, a header has {required}")]
    NotALog {
        field: &'static str,
        /// Value of the field.
        found: String,
        /// Value that a header has in this field.
        required: &'static str,
    },
    /// A log in the format of TPM 1.2, which has SHA-1 digests only. Never accepted.
    #[error("the log is in the SHA-1-only format of TPM 1.2 (its first event is {first}); a crypto-agile log is required")]
    Sha1Only {
        /// Type of the first event, which is the Spec ID event in a crypto-agile log.
        first: EventType,
    },
    /// A revision of the format that this verifier does not know.
    #[error("the Spec ID event is of version {major}.{minor}, 2.0 is required")]
    SpecVersion {
        /// Field `specVersionMajor` of the header.
        major: u8,
        /// Field `specVersionMinor` of the header.
        minor: u8,
    },
    /// The header declares no algorithm, or too many.
    #[error("the header declares {found} digest algorithms, 1 to {ALGORITHMS_LIMIT} are allowed")]
    AlgorithmCount {
        /// Field `numberOfAlgorithms` of the header.
        found: u32,
    },
    /// The header declares one algorithm twice.
    #[error("the header declares algorithm {algorithm:#06x} twice")]
    AlgorithmTwice {
        /// Identifier of the algorithm (`TPM_ALG_ID`).
        algorithm: u16,
    },
    /// The header declares a digest size that the algorithm cannot have.
    #[error("the header declares {declared} bytes for digests of algorithm {algorithm:#06x}, they have {required}")]
    AlgorithmSize {
        /// Identifier of the algorithm (`TPM_ALG_ID`).
        algorithm: u16,
        /// Field `digestSize` of the header.
        declared: u16,
        /// The correct size; for an unknown algorithm the possible sizes.
        required: &'static str,
    },
    /// The header's event data is longer than what it holds.
    #[error("the header has {stated} bytes of event data, its fields take {used}")]
    HeaderSize {
        /// Field `eventDataSize` of the header.
        stated: usize,
        /// Length of the header's fields, in bytes.
        used: usize,
    },
    /// An event for a PCR that no TPM has.
    #[error("event {event} is for PCR {index}, the last one is {}", PCR_COUNT - 1)]
    PcrIndex {
        event: usize,
        /// Field `pcrIndex` of the event.
        index: u32,
    },
    /// An event with no digest, or with more than the header declares.
    #[error("event {event} has {found} digests, the header declares {declared}")]
    DigestCount {
        event: usize,
        /// Number of digests in the event.
        found: u32,
        /// Algorithms of the header.
        declared: usize,
    },
    /// A digest whose algorithm the header does not declare.
    #[error("event {event} has a digest of algorithm {algorithm:#06x}, which the header does not declare")]
    DigestUndeclared {
        event: usize,
        /// Identifier of the algorithm (`TPM_ALG_ID`).
        algorithm: u16,
    },
    /// Two digests for one bank.
    #[error("event {event} has two digests of algorithm {algorithm:#06x}")]
    DigestTwice {
        event: usize,
        /// Identifier of the algorithm (`TPM_ALG_ID`).
        algorithm: u16,
    },
    /// A StartupLocality event with a locality that cannot start a TPM.
    #[error("event {event} gives startup locality {found}, possible are 0, 3 and 4")]
    StartupLocality {
        event: usize,
        /// Field `StartupLocality` of the event.
        found: u8,
    },
    /// A StartupLocality event that is not in PCR 0, comes twice, or comes after PCR 0 was extended.
    #[error("event {event} is a StartupLocality event in PCR {pcr} {problem}")]
    StartupLocalityPlace {
        event: usize,
        pcr: u8,
        /// The problem with the event's position.
        problem: &'static str,
    },
    /// The quote is of a bank that the log does not have.
    #[error("the log has no {bank} digests, it declares algorithms {declared:04x?}")]
    BankMissing {
        /// The bank asked for.
        bank: HashAlg,
        /// TPM_ALG_IDs of the header.
        declared: Vec<u16>,
    },
    /// An extending event without a digest for the bank asked for.
    #[error("event {event} extends PCR {index} but has no {bank} digest")]
    DigestMissing {
        event: usize,
        /// PCR that the event extends.
        index: u8,
        /// The bank asked for.
        bank: HashAlg,
    },
    /// A PCR was asked for that no TPM has.
    #[error("PCR {index} does not exist, the last one is {}", PCR_COUNT - 1)]
    NoSuchPcr { index: u8 },
    /// The log is not how this PCR came to its value.
    #[error("PCR {index} ({bank}) is quoted as {quoted}, but the log's {events} events give {replayed}")]
    PcrMismatch {
        index: u8,
        bank: HashAlg,
        /// The quoted value, hexadecimal.
        quoted: String,
        /// Value from the replay, hexadecimal.
        replayed: String,
        /// Number of events in the log that extend it.
        events: usize,
    },
}

/// TPM_ALG_SHA1 (TPM 2.0 Library, Part 2).
const SHA1: u16 = 0x0004;

impl EventLogError {
    /// Returns true if the log has SHA-1 digests and no others.
    #[must_use]
    pub const fn is_of_sha1_only(&self) -> bool {
        match self {
            Self::Sha1Only { .. } => true,
            Self::BankMissing { declared, .. } => matches!(declared.as_slice(), [SHA1]),
            _ => false,
        }
    }
}
