//! The request that the node signs.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::nonce::{SpkiSha256, qualifying_data, sha256};
use crate::values::{is_lower_hex, printable};

/// The header that ties the request to this gateway and its challenge. AWS does not know it, but its signature covers it.
pub const SERVER_ID_HEADER: &str = "x-attestation-gateway-server-id";

/// The body of the request.
pub const BODY: &str = "Action=GetCallerIdentity&Version=2011-06-15";

/// Signed headers: every header of the request, except `authorization`, in the order of Signature Version 4.
pub const SIGNED_HEADERS: &str = "accept;content-type;host;x-amz-date;x-amz-security-token;x-attestation-gateway-server-id";

/// Longest session token, in bytes. AWS promises no limit; today's have under 2 KiB.
pub const SECURITY_TOKEN_LIMIT_BYTES: usize = 8 * 1024;

/// Length of a signature: HMAC-SHA256, hexadecimal.
const SIGNATURE_CHARS: usize = 64;

/// Number of characters of a header's name that `Debug` shows.
const NAME_LIMIT_CHARS: usize = 200;

/// The headers, each once.
pub const HEADERS: [&str; 7] = [
    "accept",
    "authorization",
    "content-type",
    "host",
    "x-amz-date",
    "x-amz-security-token",
    SERVER_ID_HEADER,
];

/// A request as the node hands it over. It is worth a call in the node's name for some minutes, so `Debug` shows no values.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedRequest {
    /// HTTP method, expected to be `POST`.
    pub method: String,
    /// URL, of the form `https://sts.<region>.amazonaws.com/`.
    pub url: String,
    /// The headers, names in lower case.
    pub headers: Vec<SignedHeader>,
    /// Body, expected to be [`BODY`].
    pub body: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedHeader {
    /// Its name, in lower case.
    pub name: String,
    #[serde(with = "secret_text")]
    pub value: Zeroizing<String>,
}

/// A secret text in messages: zeroize has no serde of its own here.
mod secret_text {
    use serde::{Deserialize, Deserializer, Serializer};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(text: &Zeroizing<String>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(deserializer).map(Zeroizing::new)
    }
}

impl SignedRequest {
    /// Returns the size of the parts that a node has chosen, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let headers = self.headers.iter().map(|header| header.name.len() + header.value.len());
        headers.sum::<usize>() + self.method.len() + self.url.len() + self.body.len()
    }

    /// Returns the request for a record. SHA-256 digests replace the signature and the session token, so that the request cannot be sent
    /// any more. Parts that no accepted request has are left out: a secret may be in them. The verifier's result is unchanged, for only AWS
    /// can verify signatures.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let digest = |text: &str| data_encoding::HEXLOWER.encode(&sha256(&[text.as_bytes()]));
        let digest_if = |formed: bool, text: &str| if formed { digest(text) } else { String::new() };
        let mut redacted = self.clone();
        for SignedHeader { name, value } in &mut redacted.headers {
            if name == "x-amz-security-token" {
                *value = Zeroizing::new(digest_if(is_security_token(value), value));
            } else if name == "authorization" {
                *value = Zeroizing::new(match value.rsplit_once('=') {
                    Some((before, signature)) => format!("{before}={}", digest_if(is_signature(signature), signature)),
                    None => digest(value),
                });
            } else if !HEADERS.contains(&name.as_str()) {
                value.zeroize();
            }
        }
        if let Some((before, _)) = self.url.split_once('?') {
            redacted.url = format!("{before}?");
        }
        if self.body != BODY {
            redacted.body.zeroize();
        }
        redacted
    }
}

impl fmt::Debug for SignedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignedRequest({} headers)", self.headers.len())
    }
}

impl fmt::Debug for SignedHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Header({})", printable(&self.name, NAME_LIMIT_CHARS))
    }
}

/// Computes the value of the header [`SERVER_ID_HEADER`]: a TPM quote's extraData, hexadecimal.
#[must_use]
pub fn expected_server_id(nonce: &[u8], purpose: &str, pool: &str, server_key: &SpkiSha256) -> String {
    data_encoding::HEXLOWER.encode(&qualifying_data(nonce, purpose, pool, server_key))
}

/// Returns whether a text has the form of a session token.
#[must_use]
pub fn is_security_token(text: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    (1..=SECURITY_TOKEN_LIMIT_BYTES).contains(&text.len()) && text.bytes().all(is_base64)
}

/// Returns whether a text has the form of a signature.
#[must_use]
pub fn is_signature(text: &str) -> bool {
    text.len() == SIGNATURE_CHARS && is_lower_hex(text)
}
