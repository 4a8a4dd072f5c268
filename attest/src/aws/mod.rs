//! Evidence that Amazon Web Services gives to its instances.

pub mod identity_document;
mod names;
pub mod nitro_tpm;
pub mod sts;

pub use names::{is_account, is_role};
