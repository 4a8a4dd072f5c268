//! Azure: attested documents, the metadata service, and where the certificates of its CAs are published.

mod aia;
pub mod attested_document;
mod metadata;

pub use aia::Aia;
pub use attested_document::{Authority, Machine, metadata_params};
pub use metadata::MetadataServer;
