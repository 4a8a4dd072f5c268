//! Chains of certificates that strangers send: what building and verifying them may cost.

mod budget;
mod path;

pub use budget::{Budget, Budgeted};
pub use path::{Led, lead_on};
