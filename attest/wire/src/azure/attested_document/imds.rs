use serde::Deserialize;

use super::ImdsNonce;

/// The encoding that IMDS names in its answer, and the only one that is read.
pub const ENCODING: &str = "pkcs7";

/// The header that IMDS wants to see, name and value.
pub const IMDS_HEADER: (&str, &str) = ("Metadata", "true");

/// Returns the path of the evidence: a GET at `http://169.254.169.254`, past any proxy, with [`IMDS_HEADER`]. IMDS keeps answers for a
/// while, and may give one for an earlier nonce: the node checks the nonce in the document, and asks again.
#[must_use]
pub fn imds_path(nonce: &ImdsNonce) -> String {
    format!("/metadata/attested/document?api-version=2021-02-01&nonce={nonce}")
}

/// Answer of IMDS. The node sends `signature` unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ImdsAnswer {
    /// Encoding of the signature: [`ENCODING`].
    pub encoding: String,
    /// The PKCS#7 message in Base64, with the document in it.
    pub signature: String,
}
