//! Predictions from files that are made here. VMs show that machines measure the same (`swtpm-tests/tests/measured_boot.rs`).

mod altered;
mod bytes;
mod grub;
mod image;
mod pe;
mod secure_boot;
mod uki;
