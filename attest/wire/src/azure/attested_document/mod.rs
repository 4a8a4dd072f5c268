//! The attested document: how Azure's Instance Metadata Service (IMDS) is asked for it, and how it travels.

mod imds;
mod kind;
mod messages;
mod nonce;

pub use imds::{ENCODING, IMDS_HEADER, ImdsAnswer, imds_path};
pub use kind::AttestedDocument;
pub use messages::AzureEvidence;
pub use nonce::{IMDS_NONCE_LIMIT_CHARACTERS, ImdsNonce, MalformedNonce, NonceForm};
