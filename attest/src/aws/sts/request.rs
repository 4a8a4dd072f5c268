//! The request that the node signs: what it has to be, byte by byte.

use std::fmt;

use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::document::expected_server_id;
use super::error::StsError;
use super::rules::StsRules;
use super::time;
use crate::aws::names::{is_lower_hex, printable};
use crate::nonce::{Binding, SpkiSha256, sha256};
use crate::withheld::Withheld;

/// The header that ties the request to this gateway and its challenge. AWS does not know it, but its signature covers it.
pub const SERVER_ID_HEADER: &str = "x-attestation-gateway-server-id";

/// The body of the request.
pub const BODY: &str = "Action=GetCallerIdentity&Version=2011-06-15";

/// What the request signs: every header that it has, `authorization` aside, in the order of Signature Version 4.
pub const SIGNED_HEADERS: &str = "accept;content-type;host;x-amz-date;x-amz-security-token;x-attestation-gateway-server-id";

/// How far the time of signing may be from the gateway's clock, in seconds. AWS itself takes 15 minutes; a node signs when it has
/// the challenge, so 5 are plenty.
pub const DATE_SKEW_LIMIT_SECONDS: u64 = 300;

/// Longest session token, in bytes. AWS promises no limit; today's have under 2 KiB.
pub const SECURITY_TOKEN_LIMIT_BYTES: usize = 8 * 1024;

const METHOD: &str = "POST";
const ACCEPT: &str = "application/json";
const CONTENT_TYPE: &str = "application/x-www-form-urlencoded; charset=utf-8";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// Characters of an access key id: AWS's specification says 16 to 128.
const ACCESS_KEY_CHARS: std::ops::RangeInclusive<usize> = 16..=128;
/// HMAC-SHA256, hexadecimal.
const SIGNATURE_CHARS: usize = 64;

/// The headers, each once.
const HEADERS: [&str; 7] = [
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
    /// `POST`.
    pub method: String,
    /// `https://sts.<region>.amazonaws.com/`.
    pub url: String,
    /// The headers, names in lower case.
    pub headers: Vec<Header>,
    /// [`BODY`].
    pub body: String,
}

/// A header.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Its name, in lower case.
    pub name: String,
    /// Its value.
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
    /// How much of it a node has chosen, in bytes.
    pub(super) fn size(&self) -> usize {
        let headers = self.headers.iter().map(|header| header.name.len() + header.value.len());
        headers.sum::<usize>() + self.method.len() + self.url.len() + self.body.len()
    }

    /// The request for a record: in the place of the signature and the session token stand their SHA-256, so that it cannot be sent
    /// any more, and what no accepted request has is left out: a secret may be in it. [`check`] takes it or refuses it as before, for
    /// AWS alone can tell signatures.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let digest = |text: &str| data_encoding::HEXLOWER.encode(&sha256(&[text.as_bytes()]));
        let digest_if = |formed: bool, text: &str| if formed { digest(text) } else { String::new() };
        let mut redacted = self.clone();
        for Header { name, value } in &mut redacted.headers {
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

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Header({})", printable(&self.name))
    }
}

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
    /// The method: `POST`.
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

    /// The body.
    #[must_use]
    pub const fn body(&self) -> &'static str {
        BODY
    }
}

/// Checks that a request is the one that is accepted, and nothing else.
///
/// # Errors
/// [`StsError`]: one variant for each part that can be wrong.
pub fn check(request: &SignedRequest, rules: &StsRules, expected: &Binding<'_>, now: UnixTime) -> Result<CheckedRequest, StsError> {
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
    fn sort(headers: &'a [Header]) -> Result<Self, StsError> {
        let mut sorted = Self([None; HEADERS.len()]);
        for Header { name, value } in headers {
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

fn is_security_token(text: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    (1..=SECURITY_TOKEN_LIMIT_BYTES).contains(&text.len()) && text.bytes().all(is_base64)
}

fn is_signature(text: &str) -> bool {
    text.len() == SIGNATURE_CHARS && is_lower_hex(text)
}
