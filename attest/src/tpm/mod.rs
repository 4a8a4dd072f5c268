//! TPM 2.0 Evidence: an AK in a TPM whose EK is endorsed quotes the PCRs that were asked for.
//!
//! In reading order: [`wire`] (the bytes), [`ek`] and [`ek_certificate`] (which TPM), [`ak`] (which key in it), [`credential`]
//! (the proof that both are in one TPM), [`quote`] and [`pcr`] (what was signed), [`event_log`] (how the PCRs came about) and
//! [`verifier`], which puts them together.

pub mod ak;
pub mod credential;
pub mod ek;
pub mod ek_certificate;
pub mod event_log;
pub mod pcr;
pub mod quote;
pub mod verifier;
pub mod wire;
