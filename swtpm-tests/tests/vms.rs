//! Tests with VMs, in one crate so that those of all tests can run at the same time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

// Tests are run in the order of their names: these take longest, and are not to be alone at the end.
mod a_whole_boot;
mod apply;
mod approval;
mod clouds;
mod compressed_configs;
mod config_drives;
mod control_plane;
mod delivery;
mod four_vms;
mod harness;
mod hibernation;
mod host_steps;
mod ignition;
mod initrds;
mod kubelet;
mod machine_configs;
mod measured_boot;
#[path = "../../gateway/tests/hosts/network.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod network;
mod node;
mod packages;
mod pointer_places;
mod pointers;
mod power_cuts;
mod reboots;
mod replicas;
mod reports;
mod schema_power_cuts;
mod service;
mod tokens;
mod twice;
mod waiting_machines;
#[path = "../../gateway/benches/worker/mod.rs"]
mod worker;
