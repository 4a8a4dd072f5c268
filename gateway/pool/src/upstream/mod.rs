//! A Machine Config Server ("upstream") as the source of a pool's full config: its settings, the fetched configs, and the selection of the
//! pre-approved config.

mod error;
mod fetched;
mod include;
mod settings;

pub use error::UpstreamError;
pub use fetched::{FetchedConfig, FetchedVersion};
pub use include::{BadEntry, Include, IncludeError};
pub use settings::{BadSettings, UpstreamSettings};

/// Maximum number of attempts of a fetch while the config changes during it. A roll-out changes it once or twice.
pub const ROUNDS_LIMIT: usize = 3;
