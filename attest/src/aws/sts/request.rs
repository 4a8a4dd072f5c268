//! The request that the node signs: what it has to be, byte by byte.

use std::fmt;

use attest_wire::aws::sts::{HEADERS, is_security_token, is_signature};
use rustls_pki_types::UnixTime;
use zeroize::Zeroizing;

use super::error::StsError;
use super::rules::StsRules;
use super::{BODY, SECURITY_TOKEN_LIMIT_BYTES, SERVER_ID_HEADER, SIGNED_HEADERS, SignedHeader, SignedRequest, expected_server_id, time};
use crate::aws::names::printable;
use crate::nonce::{EvidenceBinding, SpkiSha256};
use crate::withheld::Withheld;

/// Maximum difference between the time of signing and the gateway's clock, in seconds. AWS itself accepts 15 minutes; a node signs when it
/// has the challenge, so 5 are plenty.
pub const DATE_SKEW_LIMIT_SECONDS: u64 = 300;

const METHOD: &str = "POST";
const ACCEPT: &str = "application/json";
const CONTENT_TYPE: &str = "application/x-www-form-urlencoded; charset=utf-8";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Characters of an access key id: AWS's specification says 16 to 128.
const ACCESS_KEY_CHARS: std::ops::RangeInclusive<usize> = 16..=128;
/// A request that may be sent: only [`check`] makes one, and there is nothing in it that was not compared or spelled out there.
pub struct CheckedRequest {
    url: String,
    region: String,
    authorization: Zeroizing<String>,
    date: String,
    security_token: Zeroizing<String>,
    server_id: String,
    server_key: SpkiSha256,
}

impl fmt::Debug for CheckedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckedRequest({})", self.url)
    }
}

impl CheckedRequest {
    /// Returns the method, always `POST`.
    #[must_use]
    pub const fn method(&self) -> &'static str {
        METHOD
    }

    /// The URL. Its host is the signed one; the HTTP client derives the header `host` from it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The region whose STS is asked.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// The server key that the node saw.
    #[must_use]
    pub const fn server_key(&self) -> &SpkiSha256 {
        &self.server_key
    }

    /// The headers to be sent, `host` aside. The client must add none that is signed.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("accept", ACCEPT),
            ("authorization", self.authorization.as_str()),
            ("content-type", CONTENT_TYPE),
            ("x-amz-date", self.date.as_str()),
            ("x-amz-security-token", self.security_token.as_str()),
            (SERVER_ID_HEADER, self.server_id.as_str()),
        ]
        .into_iter()
    }

    #[must_use]
    pub const fn body(&self) -> &'static str {
        BODY
    }
}

/// Checks that a request is the one that is accepted, and nothing else.
///
/// # Errors
/// [`StsError`]: one variant for each part that can be wrong.
pub fn check(request: &SignedRequest, rules: &StsRules, expected: &EvidenceBinding<'_>, now: UnixTime) -> Result<CheckedRequest, StsError> {
    if request.method != METHOD {
        return Err(StsError::Method {
            found: printable(&request.method),
            accepted: METHOD,
        });
    }
    // Compared as a whole with every URL that is accepted: there is nothing to parse, so nothing to be parsed in two ways.
    let endpoint = rules
        .endpoints()
        .find(|endpoint| endpoint.url() == request.url)
        .ok_or_else(|| StsError::Url {
            // A presigned URL has its signature, a secret, in the query.
            found: printable(request.url.split('?').next().unwrap_or_default()),
            accepted: Withheld::one_of(&rules.endpoints().map(|endpoint| endpoint.url()).collect::<Vec<_>>()),
        })?;
    if request.body != BODY {
        return Err(StsError::Body {
            found: printable(&request.body),
            accepted: BODY,
        });
    }
    let headers = Headers::sort(&request.headers)?;
    headers.is("accept", ACCEPT)?;
    headers.is("content-type", CONTENT_TYPE)?;
    headers.is("host", &endpoint.host())?;

    let date = headers.get("x-amz-date")?;
    let signed = time::parse(date).ok_or_else(|| StsError::DateForm { found: printable(date) })?;
    if signed.abs_diff(now.as_secs()) > DATE_SKEW_LIMIT_SECONDS {
        return Err(StsError::Date {
            signed,
            now: now.as_secs(),
            limit_seconds: DATE_SKEW_LIMIT_SECONDS,
        });
    }

    let server_id = headers.get(SERVER_ID_HEADER)?;
    let id_of = |key: &SpkiSha256| expected_server_id(expected.nonce, expected.purpose, expected.pool, key);
    let found = expected.server_keys.iter().find(|key| id_of(key) == *server_id);
    let server_key = found.filter(|_| !expected.nonce.is_empty()).ok_or_else(|| StsError::ServerId {
        found: printable(server_id),
        expected: expected.server_keys.first().map_or_else(|| "none".to_owned(), id_of),
    })?;

    let security_token = headers.get("x-amz-security-token")?;
    if !is_security_token(security_token) {
        return Err(StsError::SecurityToken {
            bytes: security_token.len(),
            limit: SECURITY_TOKEN_LIMIT_BYTES,
        });
    }
    let authorization = headers.get("authorization")?;
    check_authorization(authorization, date, endpoint.region)?;

    Ok(CheckedRequest {
        url: endpoint.url(),
        region: endpoint.region.to_owned(),
        authorization: Zeroizing::new(authorization.to_owned()),
        date: date.to_owned(),
        security_token: Zeroizing::new(security_token.to_owned()),
        server_id: server_id.to_owned(),
        server_key: *server_key,
    })
}

/// The headers, known to be those of [`HEADERS`], each at most once.
struct Headers<'a>([Option<&'a str>; HEADERS.len()]);

impl<'a> Headers<'a> {
    fn sort(headers: &'a [SignedHeader]) -> Result<Self, StsError> {
        let mut sorted = Self([None; HEADERS.len()]);
        for SignedHeader { name, value } in headers {
            let slot = HEADERS.iter().position(|known| known == name);
            let slot = slot
                .and_then(|slot| sorted.0.get_mut(slot))
                .ok_or_else(|| StsError::HeaderUnknown { name: printable(name) })?;
            if slot.replace(value.as_str()).is_some() {
                return Err(StsError::HeaderRepeated { name: printable(name) });
            }
        }
        Ok(sorted)
    }

    fn get(&self, name: &'static str) -> Result<&'a str, StsError> {
        let slot = HEADERS.iter().position(|known| *known == name);
        slot.and_then(|slot| self.0.get(slot).copied().flatten())
            .ok_or(StsError::HeaderMissing { name })
    }

    fn is(&self, name: &'static str, accepted: &str) -> Result<(), StsError> {
        let found = self.get(name)?;
        if found == accepted {
            return Ok(());
        }
        Err(StsError::HeaderValue {
            name,
            found: printable(found),
            accepted: accepted.to_owned(),
        })
    }
}

/// `AWS4-HMAC-SHA256 Credential=<key>/<day>/<region>/sts/aws4_request, SignedHeaders=<names>, Signature=<hex>`
fn check_authorization(authorization: &str, date: &str, region: &str) -> Result<(), StsError> {
    let form = |part: &'static str| StsError::Authorization { part };
    let rest = authorization.strip_prefix(ALGORITHM).ok_or(form("the algorithm"))?;
    let rest = rest.strip_prefix(" Credential=").ok_or(form("Credential"))?;
    let (credential, rest) = rest.split_once(", SignedHeaders=").ok_or(form("SignedHeaders"))?;
    let (signed_headers, signature) = rest.split_once(", Signature=").ok_or(form("Signature"))?;

    let (access_key, scope) = credential.split_once('/').ok_or(form("Credential"))?;
    let is_key = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    if !ACCESS_KEY_CHARS.contains(&access_key.len()) || !access_key.bytes().all(is_key) {
        return Err(form("the access key id"));
    }
    let day = date.split('T').next().unwrap_or_default();
    let accepted = format!("{day}/{region}/sts/aws4_request");
    if scope != accepted {
        return Err(StsError::Scope {
            found: printable(scope),
            accepted,
        });
    }
    if !signed_headers.split(';').any(|name| name == SERVER_ID_HEADER) {
        return Err(StsError::ServerIdNotSigned {
            signed: printable(signed_headers),
        });
    }
    if signed_headers != SIGNED_HEADERS {
        return Err(StsError::SignedHeaders {
            found: printable(signed_headers),
            accepted: SIGNED_HEADERS,
        });
    }
    if !is_signature(signature) {
        return Err(form("the signature"));
    }
    Ok(())
}
