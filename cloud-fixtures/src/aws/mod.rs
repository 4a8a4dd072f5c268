//! AWS: instance identity documents, NitroTPM documents, STS, and the instance metadata service.

pub mod identity_document;
pub mod instance;
mod metadata;
pub mod nitro_tpm;
pub mod session;
pub mod sigv4;
pub mod sts;
mod weak;

pub use identity_document::{RegionAuthority, region_certificate};
pub use instance::Instance;
pub use metadata::MetadataServer;
pub use nitro_tpm::{NitroAuthority, NitroDocument};
pub use session::Session;
pub use sts::Sts;
pub use weak::WeakAuthority;
