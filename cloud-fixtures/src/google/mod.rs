//! Google Compute Engine: identity tokens, certificates of Shielded VM's vTPM, the metadata server, and the issuer that publishes keys.

pub mod identity_provider;
pub mod identity_token;
pub mod instance;
mod keys;
mod metadata;
pub mod vtpm;

pub use identity_provider::IdentityProvider;
pub use identity_token::JwtSigner;
pub use instance::GoogleInstance;
pub use keys::StandInKeys;
pub use metadata::GoogleMetadataServer;
