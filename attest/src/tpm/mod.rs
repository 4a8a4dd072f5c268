//! TPM 2.0 Evidence: an AK in a TPM whose EK is endorsed quotes the PCRs that were asked for.
//!
//! In reading order: [`wire`] (the bytes), [`ek`] and [`ek_certificate`] (which TPM), `endorsements` (who vouches for it; [`vtpm`], if Google
//! does), [`ak`] (which key in it), [`credential`] and `task` (the proof that both are in one TPM), [`quote`] and [`pcr`] (what was signed),
//! [`event_log`] (how the PCRs came about), [`measured_boot`] (what its events mean), [`boot_complete`] (whether that is all that came about), `verifier`, which puts
//! them together into [`TpmClaims`], [`reference_values`] with [`rules`], which those are held against, and [`prediction`], which computes such values from
//! files.

pub mod ak;
pub mod boot_complete;
mod claims;
pub mod credential;
pub mod ek_certificate;
pub(crate) mod endorsements;
mod error;
pub mod event_log;
mod kind;
pub mod measured_boot;
pub mod pcr;
pub mod prediction;
pub mod quote;
pub mod reference_values;
pub mod requirements;
pub mod rules;
mod subject;
pub(crate) mod task;
pub(crate) mod verifier;
pub mod vtpm;

pub use attest_wire::tpm::{Tpm, TpmAttester, TpmEvidence, TpmTask, ek, wire};
pub use claims::{EndorsedBy, EventLogClaims, EventLogProblem, TpmClaims};
pub use error::{ADVICE, TPM_MALFORMED, TpmEvidenceError};
pub use subject::TpmSubject;
