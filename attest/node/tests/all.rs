//! Tests of the node against stand-ins of clouds and gateways: one crate, so that shared code is compiled once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod apply;
mod attest_in_cloud;
mod cloud;
mod command;
mod delivery;
mod hold;
mod install;
mod kubelet_certificate;
mod kubelet_key;
mod rehearsal;
mod report;
mod stand_ins;
mod support;
mod user_data;
