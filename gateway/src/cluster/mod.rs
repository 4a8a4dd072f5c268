//! The cluster's API: what the gateway is told there, and what it does there.
//!
//! What is told is kept by watches ([`Kept`]): who decides by it asks nobody, and knows how old it may be. An API that is away takes nothing from what was known
//! last; how long it has been away is said in the log, in a metric and by `check`.

mod client;
mod error;
mod health;
mod kept;

pub use client::Cluster;
pub use error::ClusterError;
pub use health::{Health, Heard};
pub use kept::{Keeping, Kept, keep};
