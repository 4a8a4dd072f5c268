//! Pauses and timeouts of a booting machine: those of `attest-node` by its own code, those of Ignition as measured. A program with this
//! module also has the modules `deadline`, `failure` and `patience` of `attest-node`.

#![allow(dead_code, reason = "each benchmark uses its part")]

pub mod attest_node;
pub mod ignition;
