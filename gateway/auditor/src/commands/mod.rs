//! Commands of the auditor: each is a file, or a folder. `gateway_files` has the paths of a gateway's files.

pub(crate) mod gateway_files;
pub(crate) mod log;
pub(crate) mod policy;
pub(crate) mod reference_values;
