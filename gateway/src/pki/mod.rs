//! The MCS CA and the MCS certificate: how they are made, read and checked, and what is shown to nodes at the moment.

mod certificate;
mod create;
mod inspect;
pub mod live;
mod manifest;
mod serving;
pub mod source;

pub use certificate::{Certificate, Fingerprint};
pub use create::{CreateError, Names, create};
pub use inspect::{Finding, inspect};
pub use live::{LiveTls, TlsError};
pub use serving::{Serving, ServingError};
