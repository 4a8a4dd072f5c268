//! Evidence from Microsoft Azure for its virtual machines.

pub mod attested_document;
pub mod vtpm;
