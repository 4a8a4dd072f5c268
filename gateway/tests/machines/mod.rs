//! Commands about many machines: import and export of the allowlist, and lists.

pub mod import;
mod list;
