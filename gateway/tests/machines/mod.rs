//! Commands about many machines: import and export of the allowlist, lists, and the gateway's status.

pub mod import;
mod list;
mod status;
