//! Machines in the store: enrolment, node names, instances of clouds, attestations, approvals, revocations and the history of TPMs.

#![deny(unreachable_pub)]

mod approvals;
pub mod attested;
pub mod by_object;
pub mod enrolment;
pub mod history;
pub mod import;
pub mod instances;
mod json_entry;
pub mod objects;
pub mod revocations;
pub mod waiting;
