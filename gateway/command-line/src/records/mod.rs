//! Records of an attestation log: which files are read, which records are asked for, and what of each is looked at.

mod filter;
mod selector;
mod source;

pub use filter::{Fields, Filter, Place, Said, WouldRefuse};
pub use selector::{Record, record};
pub use source::{Opened, Read, Source, Unread, say_counted};
