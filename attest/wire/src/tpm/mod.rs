//! A TPM 2.0: its wire formats ([`wire`]), the name of its EK ([`ek`]), the messages about both, and the boot-complete PCR ([`boot_complete`]).

pub mod boot_complete;
pub mod ek;
mod ek_key;
mod kind;
mod messages;
pub mod wire;

pub use ek_key::EkKey;
pub use kind::Tpm;
pub use messages::{TpmAttester, TpmEvidence, TpmTask};

/// Most intermediates that a TPM may send. Manufacturers' chains have one or two.
pub const INTERMEDIATES_LIMIT: usize = 8;

/// Largest event log that is read. The largest seen on real machines are under 128 KiB; firmware reserves 64 KiB to 512 KiB for it.
/// The number of events needs no limit of its own: none is shorter than 19 bytes.
pub const LOG_LIMIT_BYTES: usize = 1024 * 1024;
