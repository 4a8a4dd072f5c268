//! Records of an attestation log: the files, the filter, and the fields of a record that are read.

mod filter;
mod selector;
mod source;

pub use filter::{Fields, Filter, Place, Said, WouldRefuse};
pub use selector::{Record, record};
pub use source::{Opened, Read, Source, Unread, say_counted};
