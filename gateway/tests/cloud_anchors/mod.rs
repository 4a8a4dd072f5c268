//! What evidence of clouds is verified against: folders, and whom the gateway asks, with everything that can be wrong with them.

mod azure;
mod folders;
mod google;
mod setup;
mod sts;
