//! What is predicted from files that are made here. That machines measure just this is shown by VMs (`swtpm-tests/tests/measured_boot.rs`).

mod altered;
mod bytes;
mod grub;
mod image;
mod pe;
mod secure_boot;
mod uki;
