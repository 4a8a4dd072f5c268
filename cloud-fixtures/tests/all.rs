//! The stand-ins, asked as a node asks: one crate, so that what its tests share is compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod aws;
mod azure;
mod client;
mod google;
mod kubernetes;
