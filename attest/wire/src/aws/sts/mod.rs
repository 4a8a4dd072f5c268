//! AWS STS, GetCallerIdentity: the request that the node signs, and how it travels.

mod kind;
mod messages;
mod request;

pub use kind::Sts;
pub use messages::StsEvidence;
pub use request::{
    BODY, HEADERS, SECURITY_TOKEN_LIMIT_BYTES, SERVER_ID_HEADER, SIGNED_HEADERS, SignedHeader, SignedRequest, expected_server_id,
    is_security_token, is_signature,
};
