//! Credentials of nodes by their issuers: challenges and tickets by the gateway, under its seal; tokens by an administrator; a kubelet's
//! certificate by the cluster.

pub mod challenges;
pub mod kubelet;
pub mod report_proofs;
pub mod seal;
pub mod tickets;
pub mod tokens;
