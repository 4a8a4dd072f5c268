//! The EC2 instance identity document: its source, and its message.

mod kind;
mod messages;

pub use kind::IdentityDocument;
pub use messages::IdentityDocumentEvidence;

/// Path of the evidence: a GET at IMDSv2 (`http://169.254.169.254`) with a session token. The answer is the Base64 of the PKCS#7 message,
/// in lines; the document is inside of it. Neither `…/document` with `…/signature` (RSA-1024) nor `…/pkcs7` (DSA) will do.
pub const IMDS_PATH: &str = "/latest/dynamic/instance-identity/rsa2048";
