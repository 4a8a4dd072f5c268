//! The identity token of Google Compute Engine: how it is asked for, and how it travels.

mod audience;
mod kind;
mod messages;

pub use audience::{Audience, METADATA_HEADER, METADATA_HOST, request_path};
pub use kind::Gcp;
pub use messages::{GcpEvidence, GcpTask};

/// Largest identity token that is read, in bytes. Real ones have about 1200.
pub const IDENTITY_TOKEN_LIMIT_BYTES: usize = 8 * 1024;
