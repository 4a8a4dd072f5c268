//! The client of the cluster's API: watches with caches of what they report ([`WatchCache`]), the health of watches, and events.
//!
//! An API that is away takes nothing from a cache. [`WatchHealth`] says in the log since when a watch is lost, and tells a [`WatchObserver`].

#![deny(unreachable_pub)]

mod answer_limit;
mod api_watch;
pub mod cached_object;
mod client;
pub mod events;
pub mod failures;
mod health;
pub mod resources;
mod watch_cache;

pub use api_watch::{ApiWatch, Sink};
pub use attest_store::cluster_api::{ClusterError, RequestCause};
pub use client::ClusterClient;
pub use health::{WatchHealth, WatchObserver, WatchStatus};
pub use watch_cache::{Keeping, WatchCache, keep, keep_by_fields};
