//! What a node shows, and what of it was given by whom: challenges and tickets by the gateway, under its seal; tokens by an administrator; a
//! kubelet's certificate by the cluster.

pub mod challenges;
pub mod kubelet;
pub mod seal;
pub mod tickets;
pub mod tokens;
