//! What an auditor can ask for: each command is a file, or a folder; `gateway_files` says where a gateway's files are.

pub(crate) mod audit;
pub(crate) mod gateway_files;
pub(crate) mod log;
pub(crate) mod policy;
pub(crate) mod reference_values;
