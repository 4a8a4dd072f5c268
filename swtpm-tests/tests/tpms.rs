//! Tests with TPMs and without VMs, in a crate of their own: VMs' disks keep the host busy for longer than a challenge lasts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod approval;
mod attacks_enrolment;
mod attacks_gateway;
mod attacks_tpm;
mod azure_vtpm;
mod bench;
mod boot_complete;
mod crash;
mod differential;
mod ek_issuers;
#[path = "clouds/estate.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod estate;
mod kubelet_key;
#[path = "../../attest/tests/log_builder/mod.rs"]
mod log_builder;
mod rehearsal;
mod tpm_retry;
mod waiting;
