//! The MCS CA and the MCS certificate: how they are made, and whether what is there holds.

mod create;
mod inspect;

pub use create::{CreateError, Names, create};
pub use inspect::{Finding, inspect};
