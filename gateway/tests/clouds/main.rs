//! What evidence of clouds is verified against: folders, and whom the gateway asks, with everything that can be wrong with them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]

mod azure;
mod folders;
mod google;
mod setup;
mod sts;
