//! Tests of the stand-ins, with requests like a node's. They are one crate, so that shared code is compiled once.

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
mod openstack;
