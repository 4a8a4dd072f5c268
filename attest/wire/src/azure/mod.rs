//! Evidence that Microsoft Azure gives to its virtual machines.

pub mod attested_document;
pub mod vtpm;
