//! Records of an attestation log: the files, the filter, and the fields of a record that are read.

mod filter;
mod selector;
mod source;

pub use filter::{ChainPosition, Filter, NoEvidenceReason, RecordFields, ReportFilter, WouldRefuseFields, when};
pub use selector::{RecordSelector, record};
pub use source::{LogSource, OpenedSource, ReadLine, UnreadFiles, report_aggregated};
