//! Which machines there are: who vouches for them, what they are called, to whom an instance belongs, which of them the cluster has made, and who gets
//! nothing any more.

mod approvals;
pub mod attested;
pub mod by_object;
pub mod enrolment;
pub mod history;
pub mod instances;
mod json_entry;
pub mod new_values;
pub mod objects;
pub mod revocations;
