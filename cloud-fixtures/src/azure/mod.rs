//! Azure: attested documents, the metadata service, where the certificates of its CAs are published, and the vTPM.

mod aia;
pub mod attested_document;
mod metadata;
pub mod vtpm;

pub use aia::Aia;
pub use attested_document::{AzureAuthority, AzureMachine, metadata_params};
pub use metadata::AzureMetadataServer;
