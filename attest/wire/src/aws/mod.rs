//! Evidence that Amazon Web Services gives to its instances.

pub mod identity_document;
pub mod nitro_tpm;
pub mod sts;
