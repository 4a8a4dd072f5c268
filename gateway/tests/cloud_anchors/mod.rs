//! Trust anchors for clouds' evidence: folders, and the services that the gateway asks, with all faults that they can have.

mod azure;
mod folders;
mod google;
mod setup;
mod sts;
