//! TPMs and VMs: one crate, so that VMs of all tests can run beside each other.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod apply;
mod attacks_enrolment;
mod attacks_gateway;
mod attacks_tpm;
mod azure_vtpm;
mod bench;
mod clouds;
mod crash;
mod delivery;
mod differential;
mod four_vms;
mod harness;
mod ignition;
mod initrds;
mod kubelet;
#[path = "../../attest/tests/log_builder/mod.rs"]
mod log_builder;
mod machine_configs;
mod node;
mod pointer_places;
mod pointers;
mod reboots;
mod tokens;
mod twice;
mod whole_boot;
#[path = "../../gateway/benches/worker/mod.rs"]
mod worker;
