//! State of each machine, as `attest-gateway machines` and `kubectl get attestednodes` show it: what the store has of it, and the last
//! decisions about it in the attestation log.

pub mod columns;
pub mod facts;
pub mod object_name;
pub mod status;
pub mod stored;
