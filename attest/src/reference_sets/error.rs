use super::{GENERATIONS_LIMIT, SET_LIMIT_BYTES, VALUES_LIMIT};
use crate::values::HexDigest;
use attest_wire::HashAlg;

/// Reason why a file is not a set of reference values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceSetError {
    /// More bytes than are read.
    #[error("{found} bytes, at most {SET_LIMIT_BYTES} are read")]
    TooLarge { found: usize },
    /// No JSON of this format.
    #[error("{0}")]
    Json(String),
    /// More generations than are read.
    #[error("{found} generations, at most {GENERATIONS_LIMIT} are read")]
    TooManyGenerations { found: usize },
    /// Two generations of one name.
    #[error("two generations are named {0:?}")]
    Repeated(String),
    /// A name is empty, too long, or has control characters.
    #[error("generation {generation:?}: {field} has to have 1 to {limit} bytes, and no control characters")]
    Name {
        generation: String,
        field: &'static str,
        /// Most bytes that it may have.
        limit: usize,
    },
    /// A generation expires before it was added.
    #[error("generation {generation:?} expires before it was added")]
    Expires { generation: String },
    /// A generation without a value.
    #[error("generation {generation:?} has no values")]
    Empty { generation: String },
    /// More values than are read.
    #[error("generation {generation:?} has {found} values, at most {VALUES_LIMIT} are read")]
    TooManyValues { generation: String, found: usize },
    /// A value without a digest, or with one of another length.
    #[error("generation {generation:?}: {digest} is not a {bank} digest")]
    Digest {
        generation: String,
        bank: HashAlg,
        digest: HexDigest,
    },
    /// A value without any digest.
    #[error("generation {generation:?}: a value has no digest")]
    NoDigest { generation: String },
    /// A PCR that there is not.
    #[error("generation {generation:?}: PCR {pcr} does not exist")]
    NoSuchPcr { generation: String, pcr: u8 },
}
