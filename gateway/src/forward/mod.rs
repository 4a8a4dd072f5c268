//! The attestation log, read from a position in it that is on disk.

mod batch;
mod kept;

pub(crate) use batch::Reader;
pub(crate) use kept::{Kept, Place};
