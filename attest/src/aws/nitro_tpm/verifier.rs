//! From bytes to what they prove; cheap refusals first, and nothing used before it is verified.

use rustls_pki_types::UnixTime;

use super::chain::NitroRoots;
use super::cose::Unverified;
use super::document::{AuthenticDocument, NitroTpmDocument, NitroTpmInstance, VerifiedNitroTpm};
use super::error::NitroTpmError;
use super::{DOCUMENT_LIMIT_BYTES, expected_user_data};
use crate::nonce::{EvidenceBinding, SpkiSha256};
use crate::values::Blob;
use crate::verified::Verified;

/// Verifies that AWS has signed a document, and that it answers the challenge.
///
/// # Errors
/// [`NitroTpmError`]: one variant for each thing that can be wrong.
pub fn verify(bytes: &[u8], roots: &NitroRoots, expected: &EvidenceBinding<'_>, now: UnixTime) -> Result<VerifiedNitroTpm, NitroTpmError> {
    authenticate(bytes, roots, now)?.answering(expected)
}

/// Verifies that AWS has signed a document, at any time and for any recipient. By itself that is not evidence: see [`verify`].
///
/// # Errors
/// [`NitroTpmError`].
pub fn authenticate(bytes: &[u8], roots: &NitroRoots, now: UnixTime) -> Result<AuthenticDocument, NitroTpmError> {
    if bytes.len() > DOCUMENT_LIMIT_BYTES {
        return Err(NitroTpmError::TooLarge {
            found: bytes.len(),
            limit: DOCUMENT_LIMIT_BYTES,
        });
    }
    let (envelope, unverified) = Unverified::read(bytes)?;
    let leaf = roots.validate(&unverified, now)?;
    let payload = envelope.verify(&leaf.key)?;
    NitroTpmDocument::parse(&payload, &leaf.common_name, leaf.root_sha256).map(Verified::new)
}

impl Verified<NitroTpmDocument> {
    /// Checks that it holds the nonce and what binds it to purpose, pool and server.
    fn answering(self, expected: &EvidenceBinding<'_>) -> Result<VerifiedNitroTpm, NitroTpmError> {
        let hex = |said: Option<&Blob>| said.map_or_else(|| "none".to_owned(), |said| data_encoding::HEXLOWER.encode(said.as_ref()));
        // An empty nonce would be answered by a document without one.
        if expected.nonce.is_empty() || self.nonce.as_ref().map(AsRef::as_ref) != Some(expected.nonce) {
            return Err(NitroTpmError::Nonce {
                found: hex(self.nonce.as_ref()),
                expected: data_encoding::HEXLOWER.encode(expected.nonce),
            });
        }
        let binds = |key: &&SpkiSha256| {
            let user_data = expected_user_data(expected.nonce, expected.purpose, expected.pool, key);
            self.user_data.as_ref().is_some_and(|said| said.as_ref() == user_data)
        };
        let Some(server_key) = expected.server_keys.iter().find(binds).copied() else {
            let first = expected.server_keys.first();
            let wanted = first.map(|key| expected_user_data(expected.nonce, expected.purpose, expected.pool, key));
            return Err(NitroTpmError::UserData {
                found: hex(self.user_data.as_ref()),
                expected: wanted.map_or_else(|| "none".to_owned(), |wanted| data_encoding::HEXLOWER.encode(&wanted)),
            });
        };
        Ok(Verified::new(NitroTpmInstance {
            document: self,
            server_key,
            account: None,
        }))
    }
}
