//! The controller does in the cluster what the gateway has no right to do. It approves the CSRs of kubelets whose machines have attested
//! (`docs/how-to/approve-csrs.md`), and renews the pointers of machine sets (`docs/how-to/run-the-controller.md`). It makes the MachineConfigs of the second stage
//! (`docs/how-to/second-stage.md`).
//!
//! It is a program next to the gateway. Clients that have not attested reach the gateway; of the controller, a client reaches only health
//! and metrics. Both have one store: the gateway notes attestations there, the controller spends them.
//!
//! ```text
//! run → lease (leader election, if the store is shared) → approval (watches, judges, approves) → store: approval and outbox → API
//!                                                       → pointers (reads Secrets, renews)     → API → store: outbox
//!                                                       → second_stage (asks the gateway)      → API
//! ```

#![deny(unreachable_pub)]

pub mod approval;
pub mod check;
mod health;
pub mod lease;
mod metrics;
pub mod pointers;
pub mod pools;
mod run;
pub mod second_stage;
pub mod settings;

pub use metrics::METRICS;
pub use run::{RunError, run};
