//! The program against a test double of the cluster's API, with a store of its own and no real gateway.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

mod approval;
mod controller;
mod pointers;
mod second_stage;
