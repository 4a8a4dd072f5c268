//! A Machine Config Server ("upstream") as the source of a pool's full config: its settings, what it gave, and what of that is the pre-approved config.

mod error;
mod fetched;
mod include;
mod settings;

pub use error::UpstreamError;
pub use fetched::{Fetched, Version};
pub use include::{BadEntry, Include, IncludeError};
pub use settings::{BadSettings, UpstreamSettings};

/// How often a fetch begins again because the config changed meanwhile. A rollout changes it once, or twice.
pub const ROUNDS_LIMIT: usize = 3;
