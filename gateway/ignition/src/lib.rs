//! Ignition configs: spec versions, merge, validation, lint; and MachineConfigs, rendered as the Machine Config Operator does.
//!
//! This crate does no I/O, and does not depend on attestation.

#![deny(unreachable_pub)]

mod config;
pub mod data_url;
mod express;
mod features;
mod hashed;
pub mod lint;
pub mod machine_config;
mod merge;
mod parse;
mod schema;
mod spec2;
mod validate;
mod version;

pub use config::Config;
pub use features::Inexpressible;
pub use hashed::Hashed;
pub use parse::{NotAConfig, without_values};
pub use spec2::NotTranslatable;
pub use validate::Invalid;
pub use version::{SpecVersion, UnknownVersion};
