//! How long who boots waits, and for what: of `attest-node` by its own code, of Ignition as it was measured. Where this stands in a program, so do
//! `attest-node`'s modules `deadline`, `failure` and `patience`.

#![allow(dead_code, reason = "each benchmark uses its part")]

pub mod attest_node;
pub mod ignition;
