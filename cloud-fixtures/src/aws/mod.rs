//! AWS: instance identity documents, NitroTPM documents, STS, and the instance metadata service.

pub mod identity_document;
pub mod instance;
mod legacy_documents;
mod metadata;
pub mod nitro_tpm;
pub mod session;
pub mod sigv4;
pub mod sts;

pub use identity_document::{RegionAuthority, region_certificate};
pub use instance::AwsInstance;
pub use legacy_documents::WeakAuthority;
pub use metadata::AwsMetadataServer;
pub use nitro_tpm::{NitroAuthority, NitroDocument};
pub use session::RoleSession;
pub use sts::StsServer;
