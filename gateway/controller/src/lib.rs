//! The controller: approves the CSRs of kubelets whose machines have attested (`docs/approval.md`).
//!
//! It is a program next to the gateway. Clients that have not attested reach the gateway, which has no right to approve; nobody reaches the controller
//! but for its health and metrics. Both have one store: the gateway notes attestations there, the controller spends them.
//!
//! ```text
//! run → lease (leader election, if the store is shared) → approval (watches, judges, approves) → store: approval and outbox → API
//! ```

#![deny(unreachable_pub)]

pub mod approval;
pub mod check;
mod health;
pub mod lease;
mod metrics;
pub mod pools;
mod run;
pub mod settings;

pub use run::{RunError, run};
