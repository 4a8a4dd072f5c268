//! CSRs of kubelets, approved if their machine has attested: `docs/approval.md`.
//!
//! ```text
//! CertificateSigningRequest → CsrObject (trimmed) → Csr (request: PKCS#10, its signature verified) → RequestCache
//!   → candidates (who has attested and may be that node) → Held (what the store has of both) → judge
//!   → Approve: spent and told in the store, then the API is told · Leave: an event says why
//! ```
//!
//! Judging is pure: [`judge`] and [`serving`] are told everything. Nothing is ever denied: what is not approved here may be somebody else's to approve.

mod answer;
mod approver;
pub mod csr;
mod csr_object;
mod egress;
mod event_budget;
pub mod facts;
pub mod judge;
pub mod reason;
pub mod request;
mod request_cache;
mod request_watch;
pub mod serving;
mod watched;

pub use approver::{Approver, PoolRules};
pub use watched::look;
