//! Evidence of clouds, sent to the real program over TLS: accepted evidence with its policy, and attacks that are refused.

mod accepted;
mod amazon;
mod anew;
mod azure_event_log;
mod azure_vtpm;
mod first_use;
mod google;
mod inventory;
mod join;
mod kubelet_key;
// Of what the cluster tells, a gateway without that feature writes nothing.
#[cfg(feature = "cluster")]
mod log_schema;
pub mod machine;
#[cfg(feature = "cluster")]
mod machines;
mod meanwhile;
mod microsoft;
mod outage;
mod own_tpm;
mod policy;
mod proposed;
mod row_by_row;
pub mod site;
mod sts;
