//! The attestation log's records, sent on to those whom the settings name. Each has a reader of the log with a kept place in it: whoever is away for
//! days gets what he missed, in order, and no node waits for it.

mod batch;
mod http;
mod kept;
mod sink;
mod syslog;
mod task;
mod tls;

#[cfg(feature = "cluster")]
pub(crate) use batch::Reader;
pub use kept::{Kept, KeptError, Place};
pub use sink::{OpenError, check_token};
pub use task::Forwarder;
