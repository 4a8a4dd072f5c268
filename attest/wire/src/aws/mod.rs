//! Evidence from Amazon Web Services for its instances.

pub mod identity_document;
pub mod nitro_tpm;
pub mod sts;
