//! Approval of the CSRs of kubelets whose machines have attested.

#![deny(unreachable_pub)]

pub mod approval;
pub mod settings;
