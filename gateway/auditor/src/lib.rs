//! The auditor of an attestation gateway: decisions that are made again from their records, also by another policy, and rules that fit what was recorded.
//!
//! It links no store and no server: all that it needs from a gateway are files.

#![deny(unreachable_pub)]

pub mod proposal;
pub mod replay;
