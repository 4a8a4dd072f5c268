//! From bytes to what they prove; cheap refusals first, and nothing used before it is verified.

use rustls_pki_types::UnixTime;

use super::chain::NitroRoots;
use super::cose::Unverified;
use super::document::{AuthenticDocument, VerifiedNitroTpm};
use super::error::NitroTpmError;
use super::{DOCUMENT_LIMIT_BYTES, expected_user_data};
use crate::nonce::{Binding, SpkiSha256};

/// Verifies that AWS has signed a document, and that it answers the challenge.
///
/// # Errors
/// [`NitroTpmError`]: one variant for each thing that can be wrong.
pub fn verify(bytes: &[u8], roots: &NitroRoots, expected: &Binding<'_>, now: UnixTime) -> Result<VerifiedNitroTpm, NitroTpmError> {
    authenticate(bytes, roots, now)?.answering(expected)
}

/// Verifies that AWS has signed a document, whenever and for whomever. By itself that is no evidence: see [`verify`].
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
    AuthenticDocument::parse(&payload, &leaf.common_name, leaf.root_sha256)
}

impl AuthenticDocument {
    /// Checks that it holds the nonce and what binds it to purpose, pool and server.
    fn answering(self, expected: &Binding<'_>) -> Result<VerifiedNitroTpm, NitroTpmError> {
        let hex = |bytes: Option<&[u8]>| bytes.map_or_else(|| "none".to_owned(), |bytes| data_encoding::HEXLOWER.encode(bytes));
        // An empty nonce would be answered by a document without one.
        if expected.nonce.is_empty() || self.nonce() != Some(expected.nonce) {
            return Err(NitroTpmError::Nonce {
                found: hex(self.nonce()),
                expected: hex(Some(expected.nonce)),
            });
        }
        let binds = |key: &&SpkiSha256| {
            let user_data = expected_user_data(expected.nonce, expected.purpose, expected.pool, key);
            self.user_data() == Some(user_data.as_slice())
        };
        let Some(server_key) = expected.server_keys.iter().find(binds).copied() else {
            let first = expected.server_keys.first();
            let wanted = first.map(|key| expected_user_data(expected.nonce, expected.purpose, expected.pool, key));
            return Err(NitroTpmError::UserData {
                found: hex(self.user_data()),
                expected: hex(wanted.as_ref().map(<[u8; 32]>::as_slice)),
            });
        };
        Ok(VerifiedNitroTpm {
            document: self,
            server_key,
            account: None,
        })
    }
}
