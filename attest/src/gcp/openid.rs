//! Use of openidconnect: issuer, audience and expiry of a token, and its claims. Nothing else imports it. It only gets tokens whose Google
//! signature aws-lc-rs has verified ([`SignedToken`]); its own libraries for that are never called.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use openidconnect::core::{CoreGenderClaim, CoreJsonWebKeyType, CoreJsonWebKeyUse, CoreJwsSigningAlgorithm};
use openidconnect::{
    AdditionalClaims, ClaimsVerificationError, ClientId, IdToken, IdTokenClaims, IdTokenVerifier, IssuerUrl, JsonWebKey,
    JsonWebKeyAlgorithm, JsonWebKeyId, JsonWebKeySet, JweContentEncryptionAlgorithm, Nonce, SignatureVerificationError,
};
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Deserializer, Serialize};

use crate::gcp::error::printable;
use crate::gcp::profile::{AGE_LIMIT_SECONDS, CLOCK_SKEW_SECONDS, LIFETIME_LIMIT_SECONDS};
use crate::gcp::{Audience, GceIdentity, GceInstance, GcpError, ISSUER, ServiceAccount, VerifiedIdentity};
use crate::nonce::sha256;

type GoogleIdToken = IdToken<GoogleClaims, CoreGenderClaim, NoEncryption, CoreJwsSigningAlgorithm>;
type GoogleIdTokenClaims = IdTokenClaims<GoogleClaims, CoreGenderClaim>;

/// Google's additions to the claims of OpenID Connect. All of it is optional here, so that a missing claim is reported by name, and only
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

/// Issuer of the keys in openidconnect's type, parsed once.
#[derive(Debug, Clone)]
pub(super) struct Issuer(IssuerUrl);

impl Issuer {
    pub(super) fn google() -> Result<Self, String> {
        IssuerUrl::new(ISSUER.to_owned()).map(Self).map_err(|error| error.to_string())
    }
}

/// A token that a key of Google's has signed. Only [`crate::gcp::keys::RsaKey::verify`] makes one.
pub(super) struct SignedToken<'t> {
    pub(super) text: &'t str,
    pub(super) kid: &'t str,
    pub(super) issuer: &'t Issuer,
    pub(super) signature: Vec<u8>,
}

/// A token as openidconnect verifies it.
struct TokenClaims<'t> {
    key: JwtVerifiedKey,
    issuer: &'t Issuer,
}

/// Reads a token that must be for one of `audiences`.
pub(super) fn read(token: SignedToken<'_>, audiences: &[Audience], now: UnixTime) -> Result<VerifiedIdentity, GcpError> {
    let id_token: GoogleIdToken = token.text.parse().map_err(|error: serde_json::Error| GcpError::malformed(error))?;
    let kid = token.kid.to_owned();
    let taken = TokenClaims {
        issuer: token.issuer,
        key: JwtVerifiedKey::new(token),
    };

    let mut refused = ClaimsVerificationError::InvalidAudience(String::new());
    for audience in audiences {
        match id_token.claims(&verifier(&taken, audience.as_str(), now), no_nonce) {
            Ok(claims) => return verified(claims, kid, now),
            // The signature is not verified anew for each of them.
            Err(ClaimsVerificationError::InvalidAudience(problem)) => refused = ClaimsVerificationError::InvalidAudience(problem),
            Err(error) => return Err(reason(error, &id_token, &taken, audiences, now)),
        }
    }
    Err(reason(refused, &id_token, &taken, audiences, now))
}

/// A key that takes the one signature that was verified, and no other.
#[derive(Clone, Serialize, Deserialize)]
struct JwtVerifiedKey {
    kid: JsonWebKeyId,
    /// A key without it takes nothing: openidconnect's traits demand that such ones can be made. Each verifier of openidconnect's wants a key of its
    /// own.
    #[serde(skip)]
    verified: Option<Arc<SignedMessage>>,
}

struct SignedMessage {
    message: Vec<u8>,
    signature: Vec<u8>,
}

impl JwtVerifiedKey {
    fn new(token: SignedToken<'_>) -> Self {
        let message = token.text.rsplit_once('.').map_or("", |(signed, _)| signed);
        Self {
            kid: JsonWebKeyId::new(token.kid.to_owned()),
            verified: Some(Arc::new(SignedMessage {
                message: message.as_bytes().to_vec(),
                signature: token.signature,
            })),
        }
    }
}

impl std::fmt::Debug for JwtVerifiedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneSignature").field("kid", &self.kid).finish_non_exhaustive()
    }
}

impl JsonWebKey for JwtVerifiedKey {
    type KeyUse = CoreJsonWebKeyUse;
    type SigningAlgorithm = CoreJwsSigningAlgorithm;

    fn key_id(&self) -> Option<&JsonWebKeyId> {
        Some(&self.kid)
    }

    fn key_type(&self) -> &CoreJsonWebKeyType {
        &CoreJsonWebKeyType::RSA
    }

    fn key_use(&self) -> Option<&CoreJsonWebKeyUse> {
        Some(&CoreJsonWebKeyUse::Signature)
    }

    fn signing_alg(&self) -> JsonWebKeyAlgorithm<&CoreJwsSigningAlgorithm> {
        JsonWebKeyAlgorithm::Algorithm(&CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256)
    }

    /// Makes a key for HMAC by a client secret, which no verifier here has: no signature verifies under that key.
    fn new_symmetric(_secret: Vec<u8>) -> Self {
        Self {
            kid: JsonWebKeyId::new(String::new()),
            verified: None,
        }
    }

    fn verify_signature(
        &self,
        algorithm: &CoreJwsSigningAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), SignatureVerificationError> {
        if *algorithm != CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256 {
            return Err(SignatureVerificationError::DisallowedAlg("only RS256".to_owned()));
        }
        let verified = self.verified.as_deref().ok_or(SignatureVerificationError::NoMatchingKey)?;
        if verified.message == message && verified.signature == signature {
            return Ok(());
        }
        Err(SignatureVerificationError::CryptoError(
            "another signature than was verified".to_owned(),
        ))
    }

    fn hash_bytes(&self, bytes: &[u8], _algorithm: &CoreJwsSigningAlgorithm) -> Result<Vec<u8>, String> {
        Ok(sha256(&[bytes]).to_vec())
    }
}

/// openidconnect's verifier with one key, for one audience, at one time.
fn verifier(taken: &TokenClaims<'_>, audience: &str, now: UnixTime) -> IdTokenVerifier<'static, JwtVerifiedKey> {
    // A time that chrono cannot express is past every expiry.
    let seconds = i64::try_from(now.as_secs()).ok();
    let now = seconds
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0))
        .unwrap_or(DateTime::<Utc>::MAX_UTC);
    let keys = JsonWebKeySet::new(vec![taken.key.clone()]);
    let verifier = IdTokenVerifier::new_public_client(ClientId::new(audience.to_owned()), taken.issuer.0.clone(), keys);
    verifier
        .set_allowed_algs([CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256])
        .set_time_fn(move || now)
}

/// The `nonce` claim belongs to browsers' logins. Identity tokens have none: the challenge is in the audience.
fn no_nonce(_nonce: Option<&Nonce>) -> Result<(), String> {
    Ok(())
}

/// Converts openidconnect's refusal, with the values from the claims.
fn reason(
    error: ClaimsVerificationError,
    id_token: &GoogleIdToken,
    taken: &TokenClaims<'_>,
    audiences: &[Audience],
    now: UnixTime,
) -> GcpError {
    if let ClaimsVerificationError::SignatureVerification(_) = error {
        return GcpError::Signature;
    }
    let signature_only = verifier(taken, "", now)
        .require_issuer_match(false)
        .require_audience_match(false)
        .set_time_fn(|| DateTime::<Utc>::MIN_UTC);
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
    let instance = GceInstance::new(
        text(&machine.project_id, "project_id")?,
        machine.project_number.ok_or_else(|| missing("project_number"))?,
        text(&machine.zone, "zone")?,
        text(&machine.instance_id, "instance_id")?,
        text(&machine.instance_name, "instance_name")?,
    )?;
    if let Some(license) = machine.license_id.iter().find(|license| !is_number(license)) {
        return Err(GcpError::claim_form("license_id", license));
    }
    Ok(crate::Verified::new(GceIdentity {
        instance,
        created,
        confidentiality: machine.instance_confidentiality,
        licenses: machine.license_id.clone(),
        service_account,
        issued,
        expires,
        key_id: kid,
    }))
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
