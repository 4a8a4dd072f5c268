use data_encoding::BASE64URL_NOPAD;
use rustls_pki_types::UnixTime;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::gcp::error::printable;
use crate::gcp::{Audience, GcpError, GoogleKeys, IDENTITY_TOKEN_LIMIT_BYTES, VerifiedIdentity, openid};

/// The only accepted signature algorithm.
const RS256: &str = "RS256";

/// Header fields by which the sender would choose the key, or how the token is to be read.
const REFUSED_HEADER_FIELDS: [&str; 11] = ["jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256", "crit", "b64", "cty", "zip", "enc"];

/// Verifies an identity token that must be for one of `audiences`: one for each server key that the node may have seen.
///
/// The order is: size and form; algorithm and key, which only Google chooses; the signature; issuer, audience and expiry, by openidconnect;
/// then its open points. Claims are parsed from the very bytes that are signed, after the signature has verified.
///
/// A token that a service account's owner signs (`signJwt`), with whatever claims, is signed by the service account's own key, which
/// is not among [`GoogleKeys`]. A token that Google signs for a service account outside an instance (`generateIdToken`) has no
/// `google.compute_engine`.
///
/// # Errors
/// [`GcpError`]. [`GcpError::KeyUnknown`] is the one after which to fetch the keys again, at a bounded rate.
pub fn verify(identity_token: &[u8], keys: &GoogleKeys, audiences: &[Audience], now: UnixTime) -> Result<VerifiedIdentity, GcpError> {
    let UnverifiedToken { text, kid, signature } = check_form(identity_token)?;
    let key = keys.get(&kid).ok_or_else(|| GcpError::KeyUnknown { kid: printable(&kid) })?;
    // openidconnect parses a token whole before it looks at the signature. Nothing of the payload is parsed before that has verified.
    let token = key.verify(text, signature).ok_or(GcpError::Signature)?;
    openid::read(token, audiences, now)
}

/// Refuses a token that cannot be for one of `audiences`, regardless of its signer: by its size, form and header. It also searches the
/// payload, without parsing it, for the value that binds an audience to its challenge.
pub(crate) fn screen(identity_token: &[u8], audiences: &[Audience]) -> Result<(), GcpError> {
    let UnverifiedToken { text, .. } = check_form(identity_token)?;
    let payload = text
        .split('.')
        .nth(1)
        .and_then(|payload| BASE64URL_NOPAD.decode(payload.as_bytes()).ok());
    // What cannot be decoded is refused by its signature, if by nothing else.
    let Some(payload) = payload else { return Ok(()) };
    let names = |audience: &Audience| {
        let binding = audience.binding().as_bytes();
        payload.windows(binding.len().max(1)).any(|part| part == binding)
    };
    match audiences.iter().any(names) {
        true => Ok(()),
        // The challenge can be answered still: nothing is said of what would fit it.
        false => Err(GcpError::Audience {
            found: "something else".to_owned(),
            expected: "this challenge alone".to_owned(),
        }),
    }
}

/// A token of which only the header was read.
struct UnverifiedToken<'t> {
    text: &'t str,
    kid: String,
    signature: Vec<u8>,
}

/// Checks what does not depend on the signature: size, three parts, strict base64url, the header.
///
/// openidconnect decodes base64url without looking at the bits that are left over, so that one signature would have several
/// spellings; it also ignores header fields that it does not know.
fn check_form(identity_token: &[u8]) -> Result<UnverifiedToken<'_>, GcpError> {
    if identity_token.len() > IDENTITY_TOKEN_LIMIT_BYTES {
        return Err(GcpError::TooLarge {
            bytes: identity_token.len(),
        });
    }
    let text = std::str::from_utf8(identity_token).map_err(GcpError::malformed)?;
    let parts: Vec<&str> = text.split('.').collect();
    let [header, _payload, signature] = parts.as_slice() else {
        return Err(GcpError::Parts { found: parts.len() });
    };
    let decode = |part: &'static str, text: &str| {
        let decoded = BASE64URL_NOPAD.decode(text.as_bytes());
        decoded.map_err(|error| GcpError::malformed(format!("its {part}: {error}")))
    };
    let header = decode("header", header)?;
    // The payload's spelling is signed.
    let signature = decode("signature", signature)?;

    let header: JoseHeader = serde_json::from_slice(&header).map_err(GcpError::malformed)?;
    match header.alg {
        Some(Value::String(alg)) if alg == RS256 => {}
        other => {
            return Err(GcpError::Algorithm {
                found: other.map_or_else(|| "none at all".to_owned(), |alg| printable(&alg.to_string())),
            });
        }
    }
    if let Some(field) = header.refused {
        return Err(GcpError::HeaderField { field });
    }
    match header.kid {
        Some(Value::String(kid)) => Ok(UnverifiedToken { text, kid, signature }),
        _ => Err(GcpError::KeyIdMissing),
    }
}

/// The relevant fields of a JOSE header. openidconnect refuses a header with a repeated field.
#[derive(Default)]
struct JoseHeader {
    alg: Option<Value>,
    kid: Option<Value>,
    /// The first of [`REFUSED_HEADER_FIELDS`] that is there.
    refused: Option<&'static str>,
}

impl<'de> Deserialize<'de> for JoseHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = JoseHeader;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JOSE header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<JoseHeader, A::Error> {
        let mut header = JoseHeader::default();
        while let Some(name) = fields.next_key::<String>()? {
            match name.as_str() {
                "alg" => header.alg = Some(fields.next_value()?),
                "kid" => header.kid = Some(fields.next_value()?),
                name => {
                    fields.next_value::<IgnoredAny>()?;
                    let refused = REFUSED_HEADER_FIELDS.into_iter().find(|refused| *refused == name);
                    header.refused = header.refused.or(refused);
                }
            }
        }
        Ok(header)
    }
}
