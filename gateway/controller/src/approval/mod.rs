//! CSRs of kubelets, approved if their machine has attested: `docs/how-to/approve-csrs.md`.
//!
//! ```text
//! CertificateSigningRequest → CsrObject (trimmed) → Csr (request: PKCS#10, its signature verified) → RequestCache
//!   → candidates (machines that have attested and may be that node) → Held (what the store has of both) → judge
//!   → Approve: spent in the store, with an outbox entry, then approved at the API · Leave: an event says why
//! ```
//!
//! Judging is pure: [`judge`] and [`serving`] get all facts as arguments. Nothing is ever denied: another approver may be responsible for a
//! request that is not approved here.

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
mod watches;

pub use approver::{Approver, PoolRules};
pub use watches::check_access;
