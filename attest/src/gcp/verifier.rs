use chrono::{DateTime, Utc};
use data_encoding::BASE64URL_NOPAD;
use openidconnect::core::{CoreGenderClaim, CoreJsonWebKeyType, CoreJwsSigningAlgorithm};
use openidconnect::{
    AdditionalClaims, ClaimsVerificationError, ClientId, IdToken, IdTokenClaims, IdTokenVerifier, JsonWebKeySet,
    JweContentEncryptionAlgorithm, Nonce,
};
use rustls_pki_types::UnixTime;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::gcp::error::printable;
use crate::gcp::keys::RsaKey;
use crate::gcp::{Audience, GcpError, GoogleKeys, Instance, ServiceAccount, VerifiedIdentity};

/// Who signs identity tokens: the `iss` claim, exactly.
pub const ISSUER: &str = "https://accounts.google.com";

/// Largest identity token that is read, in bytes. Real ones have about 1200.
pub const IDENTITY_TOKEN_LIMIT_BYTES: usize = 8 * 1024;

/// How far Google's clock and the gateway's may differ, in seconds.
pub const CLOCK_SKEW_SECONDS: u64 = 60;

/// Longest time for which a token may be valid, in seconds: Google's are for one hour.
pub const LIFETIME_LIMIT_SECONDS: u64 = 3600;

/// Oldest token that is accepted, in seconds. A node asks for it after it was given the challenge, and sends it at once.
pub const AGE_LIMIT_SECONDS: u64 = 600;

/// The only algorithm.
const RS256: &str = "RS256";

/// Header fields by which the sender would choose the key, or how the token is to be read.
const REFUSED_HEADER_FIELDS: [&str; 11] = ["jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256", "crit", "b64", "cty", "zip", "enc"];

type GoogleIdToken = IdToken<GoogleClaims, CoreGenderClaim, NoEncryption, CoreJwsSigningAlgorithm>;
type GoogleIdTokenClaims = IdTokenClaims<GoogleClaims, CoreGenderClaim>;

/// What Google adds to the claims of OpenID Connect. All of it is optional here, so that what is missing is said by name, and only
/// after the signature was verified.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct GoogleClaims {
    google: Option<Google>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Google {
    compute_engine: Option<ComputeEngine>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ComputeEngine {
    project_id: Option<String>,
    project_number: Option<u64>,
    zone: Option<String>,
    instance_id: Option<String>,
    instance_name: Option<String>,
    instance_creation_timestamp: Option<u64>,
    instance_confidentiality: Option<u64>,
    #[serde(default)]
    license_id: Vec<String>,
}

impl AdditionalClaims for GoogleClaims {}

/// The algorithms by which identity tokens are encrypted: none.
#[derive(Debug, Clone, Serialize)]
enum NoEncryption {}

impl<'de> Deserialize<'de> for NoEncryption {
    /// openidconnect tries each token's algorithm as one of these first. A derived implementation would make a long error of it.
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("none"))
    }
}

impl JweContentEncryptionAlgorithm for NoEncryption {
    type KeyType = CoreJsonWebKeyType;

    fn key_type(&self) -> Result<CoreJsonWebKeyType, String> {
        match *self {}
    }
}

/// Verifies an identity token that must be for one of `audiences`: one for each server key that the node may have seen.
///
/// In this order: size and form; algorithm and key, which are Google's and nobody else's to choose; the signature; issuer, audience and
/// expiry, by openidconnect; then what openidconnect leaves open. Claims are parsed from the very bytes that are signed, after the signature has
/// verified.
///
/// A token that a service account's owner signs (`signJwt`), with whatever claims, is signed by the service account's own key, which
/// is not among [`GoogleKeys`]. A token that Google signs for a service account outside an instance (`generateIdToken`) has no
/// `google.compute_engine`.
///
/// # Errors
/// [`GcpError`]. [`GcpError::KeyUnknown`] is the one after which to fetch the keys again, at a bounded rate.
pub fn verify(identity_token: &[u8], keys: &GoogleKeys, audiences: &[Audience], now: UnixTime) -> Result<VerifiedIdentity, GcpError> {
    let Form { text, kid, signature } = check_form(identity_token)?;
    let key = keys.get(&kid).ok_or_else(|| GcpError::KeyUnknown { kid: printable(&kid) })?;
    // openidconnect parses a token whole before it looks at the signature. Nothing of the payload is parsed here before that has verified.
    let signed = text.rsplit_once('.').map_or("", |(signed, _)| signed);
    let key = &key.having_verified(signed.as_bytes(), signature).ok_or(GcpError::Signature)?;
    let id_token: GoogleIdToken = text.parse().map_err(|error: serde_json::Error| GcpError::malformed(error))?;

    let mut refused = ClaimsVerificationError::InvalidAudience(String::new());
    for audience in audiences {
        let verifier = verifier(key, audience.as_str(), now)?;
        match id_token.claims(&verifier, no_nonce) {
            Ok(claims) => return verified(claims, kid, now),
            // The signature is not verified anew for each of them.
            Err(ClaimsVerificationError::InvalidAudience(problem)) => refused = ClaimsVerificationError::InvalidAudience(problem),
            Err(error) => return Err(reason(error, &id_token, key, audiences, now)),
        }
    }
    Err(reason(refused, &id_token, key, audiences, now))
}

/// A token of which only the header was read.
struct Form<'t> {
    text: &'t str,
    kid: String,
    signature: Vec<u8>,
}

/// Checks what does not depend on the signature: size, three parts, strict base64url, the header.
///
/// openidconnect decodes base64url without looking at the bits that are left over, so that one signature would have several
/// spellings; it also ignores header fields that it does not know.
fn check_form(identity_token: &[u8]) -> Result<Form<'_>, GcpError> {
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

    let header: Header = serde_json::from_slice(&header).map_err(GcpError::malformed)?;
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
        Some(Value::String(kid)) => Ok(Form { text, kid, signature }),
        _ => Err(GcpError::KeyIdMissing),
    }
}

/// What matters of a JOSE header. One that has a field twice is refused by openidconnect.
#[derive(Default)]
struct Header {
    alg: Option<Value>,
    kid: Option<Value>,
    /// The first of [`REFUSED_HEADER_FIELDS`] that is there.
    refused: Option<&'static str>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JOSE header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
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

/// openidconnect's verifier with one key, for one audience, at one time.
fn verifier(key: &RsaKey, audience: &str, now: UnixTime) -> Result<IdTokenVerifier<'static, RsaKey>, GcpError> {
    let issuer = key.issuer().cloned().ok_or(GcpError::Signature)?;
    // A time that chrono cannot express is past every expiry.
    let seconds = i64::try_from(now.as_secs()).ok();
    let now = seconds
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0))
        .unwrap_or(DateTime::<Utc>::MAX_UTC);
    let keys = JsonWebKeySet::new(vec![key.clone()]);
    let verifier = IdTokenVerifier::new_public_client(ClientId::new(audience.to_owned()), issuer, keys);
    Ok(verifier
        .set_allowed_algs([CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256])
        .set_time_fn(move || now))
}

/// The `nonce` claim belongs to browsers' logins. Identity tokens have none: the challenge is in the audience.
fn no_nonce(_nonce: Option<&Nonce>) -> Result<(), String> {
    Ok(())
}

/// Why openidconnect refuses, with the values, from the claims.
fn reason(error: ClaimsVerificationError, id_token: &GoogleIdToken, key: &RsaKey, audiences: &[Audience], now: UnixTime) -> GcpError {
    if let ClaimsVerificationError::SignatureVerification(_) = error {
        return GcpError::Signature;
    }
    let signature_only = match verifier(key, "", now) {
        Ok(verifier) => verifier
            .require_issuer_match(false)
            .require_audience_match(false)
            .set_time_fn(|| DateTime::<Utc>::MIN_UTC),
        Err(error) => return error,
    };
    let claims = match id_token.claims(&signature_only, no_nonce) {
        Ok(claims) => claims,
        Err(ClaimsVerificationError::SignatureVerification(_)) => return GcpError::Signature,
        Err(error) => return GcpError::malformed(error),
    };
    match error {
        ClaimsVerificationError::InvalidIssuer(_) => GcpError::Issuer {
            found: printable(claims.issuer().as_str()),
        },
        ClaimsVerificationError::InvalidAudience(_) => wrong_audience(claims, audiences),
        ClaimsVerificationError::Expired(_) => GcpError::Expired {
            expires: seconds(claims.expiration()),
            now: now.as_secs(),
        },
        other => GcpError::malformed(other),
    }
}

fn wrong_audience(claims: &GoogleIdTokenClaims, audiences: &[Audience]) -> GcpError {
    let list = |all: Vec<&str>| printable(&all.join(", "));
    GcpError::Audience {
        found: list(claims.audiences().iter().map(|audience| audience.as_str()).collect()),
        expected: list(audiences.iter().map(Audience::as_str).collect()),
    }
}

/// From claims of which openidconnect has verified signature, issuer, audience and expiry: what it leaves open.
fn verified(claims: &GoogleIdTokenClaims, kid: String, now: UnixTime) -> Result<VerifiedIdentity, GcpError> {
    if claims.audiences().len() != 1 {
        return Err(GcpError::AudienceCount {
            found: claims.audiences().len(),
        });
    }
    let (issued, expires) = (seconds(claims.issue_time()), seconds(claims.expiration()));
    check_times(issued, expires, now.as_secs())?;
    let service_account = service_account(claims)?;

    let missing = |claim: &'static str| GcpError::ClaimMissing { claim };
    let google = claims.additional_claims().google.as_ref();
    let machine = google
        .and_then(|google| google.compute_engine.as_ref())
        .ok_or(GcpError::NotAnInstance)?;
    let created = machine
        .instance_creation_timestamp
        .ok_or_else(|| missing("instance_creation_timestamp"))?;
    if created > issued.saturating_add(CLOCK_SKEW_SECONDS) {
        return Err(GcpError::CreatedAfterIssue { created, issued });
    }
    let text = |field: &Option<String>, claim| field.clone().ok_or_else(|| missing(claim));
    let instance = Instance::new(
        text(&machine.project_id, "project_id")?,
        machine.project_number.ok_or_else(|| missing("project_number"))?,
        text(&machine.zone, "zone")?,
        text(&machine.instance_id, "instance_id")?,
        text(&machine.instance_name, "instance_name")?,
    )?;
    if let Some(license) = machine.license_id.iter().find(|license| !is_number(license)) {
        return Err(GcpError::claim_form("license_id", license));
    }
    Ok(VerifiedIdentity {
        instance,
        created,
        confidentiality: machine.instance_confidentiality,
        licenses: machine.license_id.clone(),
        service_account,
        issued,
        expires,
        key_id: kid,
    })
}

fn check_times(issued: u64, expires: u64, now: u64) -> Result<(), GcpError> {
    if issued > now.saturating_add(CLOCK_SKEW_SECONDS) {
        return Err(GcpError::IssuedInFuture { issued, now });
    }
    if now.saturating_sub(issued) > AGE_LIMIT_SECONDS {
        return Err(GcpError::TooOld { issued, now });
    }
    if expires <= issued || expires - issued > LIFETIME_LIMIT_SECONDS + CLOCK_SKEW_SECONDS {
        return Err(GcpError::Lifetime { issued, expires });
    }
    Ok(())
}

/// On an instance, Google issues the token to the service account about itself: subject and authorized party are the same account,
/// and Google has verified its address, since it gave it.
fn service_account(claims: &GoogleIdTokenClaims) -> Result<ServiceAccount, GcpError> {
    let missing = |claim: &'static str| GcpError::ClaimMissing { claim };
    let id = claims.subject().as_str();
    let party = claims.authorized_party().ok_or_else(|| missing("azp"))?;
    if party.as_str() != id {
        return Err(GcpError::AuthorizedParty {
            subject: printable(id),
            party: printable(party.as_str()),
        });
    }
    if !is_number(id) {
        return Err(GcpError::claim_form("sub", id));
    }
    let email = claims.email().ok_or_else(|| missing("email"))?.as_str();
    if claims.email_verified() != Some(true) {
        return Err(GcpError::EmailNotVerified { email: printable(email) });
    }
    if !is_email(email) {
        return Err(GcpError::claim_form("email", email));
    }
    Ok(ServiceAccount {
        id: id.to_owned(),
        email: email.to_owned(),
    })
}

/// Longest decimal number that is taken over, in digits: a u64 has 20, service accounts' ids have 21.
const NUMBER_LIMIT_DIGITS: usize = 32;

/// Longest email address, in bytes (RFC 5321, 4.5.3.1.3).
const EMAIL_LIMIT_BYTES: usize = 254;

fn is_number(text: &str) -> bool {
    (1..=NUMBER_LIMIT_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_email(text: &str) -> bool {
    text.len() <= EMAIL_LIMIT_BYTES && text.contains('@') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Seconds since 1970; times before that are 0.
fn seconds(time: DateTime<Utc>) -> u64 {
    u64::try_from(time.timestamp()).unwrap_or(0)
}
