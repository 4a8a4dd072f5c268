//! The harness of the tests that need a real TPM or a whole VM, and of the demo.
//!
//! Every part is the real one: QEMU, swtpm, Debian's kernel and Ignition, `attest-gateway` and `attest-node` as they are shipped. What a
//! test starts is a [`Process`]: killed when its owner is dropped, and by the kernel when the test itself dies.
//!
//! Reading order: [`scenario`] (what a VM shows, and what it must come to) → [`TestGateway`], [`Swtpm`], [`Vm`] → [`IgnitionOutcome`] (what the VM
//! says it got), [`TestNode`] (what attests without a VM) → [`Process`], [`Images`], [`Programs`].

mod accelerator;
mod attestation_log;
mod client;
mod cloud;
mod cluster;
pub mod core_os;
mod expected_files;
pub mod firmware;
mod folder;
mod gateway;
mod images;
mod node;
mod outcome;
mod pid_file;
mod process;
mod programs;
mod qemu;
mod relay;
pub mod scenario;
pub mod stand_in;
mod swtpm;
mod tpm_proxy;

pub use accelerator::Accelerator;
pub use attestation_log::LogRecord;
pub use client::{Client, IssuedChallenge, Reply};
pub use cloud::TestCloud;
pub use cluster::TestCluster;
pub use expected_files::{RESULT_FILE, WrittenFile, content_of, expected_files};
pub use folder::TestFolder;
pub use gateway::{ANY_TPM, ConfigAnswer, DEFAULT_PORT, GUEST_VIEW_OF_HOST, IGNITION_ACCEPT, IGNITION_SPEC, POOL, TestGateway, WAITING};
pub use images::{DebianRelease, Images, WholeBoot, node_initrd, read_from_disk, run};
pub use node::TestNode;
pub use outcome::IgnitionOutcome;
pub use process::Process;
pub use programs::Programs;
pub use qemu::{Vm, VmBuilder, VmClock, command_line};
pub use relay::Relay;
pub use swtpm::{EkAuthority, Swtpm, TestEndorsement, TpmServer, free_port, manufacture};
pub use tpm_proxy::TpmProxy;
