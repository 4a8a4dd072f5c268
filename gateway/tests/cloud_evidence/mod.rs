//! Evidence of clouds, sent to the real program over TLS: accepted evidence with its policy, and attacks that are refused.

mod accepted;
mod amazon;
mod azure_event_log;
mod azure_vtpm;
mod first_use;
mod google;
mod inventory;
mod join;
mod kubelet_key;
mod retry;
// Of what the cluster tells, a gateway without that feature writes nothing.
mod conflicts;
#[cfg(feature = "cluster")]
mod log_schema;
pub mod machine;
#[cfg(feature = "cluster")]
mod machines;
mod microsoft;
mod outage;
mod own_tpm;
mod policy;
mod proposed;
#[cfg(feature = "cluster")]
mod rendered;
mod row_by_row;
pub mod site;
mod sts;
