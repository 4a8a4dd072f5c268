//! Settings of the controller.

mod approval;

pub use approval::{ApprovalSection, ApprovalSettings, Keys, checked};

/// A key, what it is, and what it may be.
type Fault = (&'static str, String, &'static str);
