//! Ignition configs: spec versions, merge, what they may say.

mod config;
pub mod data_url;
mod express;
mod hashed;
pub mod lint;
mod merge;
mod schema;
mod spec2;
mod validate;
mod version;

pub(crate) use config::without_values;
pub use config::{Config, NotAConfig};
pub use express::Inexpressible;
pub(crate) use hashed::Hashed;
pub use spec2::NotTranslatable;
pub use validate::Invalid;
pub use version::{SpecVersion, UnknownVersion};
