//! The token itself, and its hash.

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::{constant_time, digest};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use zeroize::Zeroizing;

use super::import;

/// Length of a token before encoding.
const TOKEN_BYTES: usize = 32;

/// Makes a new token: its text, and the hash under which the store has it. `None` if the system's random generator fails.
pub(super) fn generate() -> Option<(Zeroizing<String>, String)> {
    let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
    SystemRandom::new().fill(&mut *bytes).ok()?;
    Some((Zeroizing::new(BASE64URL_NOPAD.encode(&*bytes)), hash(&*bytes)))
}

/// Prefix that is hashed before the text of a token that was made elsewhere, so that it cannot equal another token's bytes.
const IMPORTED: &[u8] = b"attestation-gateway/v1/imported-token\0";

/// Returns the hash of a token's text: of its bytes, if it has the form of those that are made here, otherwise of the text. `None` if it
/// cannot be a token at all.
pub(super) fn hash_of_text(text: &str) -> Option<String> {
    import::could_be(text).then(|| hash_of_imported(text))
}

/// Like [`hash_of_text`], for a text that is a token.
pub(super) fn hash_of_imported(text: &str) -> String {
    match BASE64URL_NOPAD.decode(text.as_bytes()).map(Zeroizing::new) {
        Ok(bytes) if bytes.len() == TOKEN_BYTES => hash(&bytes),
        _ => hash_with(IMPORTED, text.as_bytes()),
    }
}

/// Hashes a token, so that nothing is compared byte by byte with a guess.
fn hash(bytes: &[u8]) -> String {
    hash_with(&[], bytes)
}

fn hash_with(domain: &[u8], bytes: &[u8]) -> String {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(domain);
    hash.update(bytes);
    HEXLOWER.encode(hash.finish().as_ref())
}

/// Returns whether two hashes are equal, in a time that does not depend on where they differ.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    constant_time::verify_slices_are_equal(one.as_bytes(), other.as_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_only_well_formed_token_text() {
        let (text, hash) = generate().unwrap();
        assert_eq!((text.len(), hash.len()), (43, 64));
        assert_eq!(hash_of_text(&text).as_deref(), Some(hash.as_str()));
        let (other, other_hash) = generate().unwrap();
        assert!(*other != *text && is_same(&hash, &hash) && !is_same(&hash, &other_hash) && !is_same(&hash, &hash[1..]));
        for none in ["", "null", &text[..21], &text.repeat(12)] {
            assert_eq!(hash_of_text(none), None, "{none:?}");
        }
        // They might be somebody's, and are not this one.
        let mut hashes = std::collections::BTreeSet::from([
            hash.clone(),
            HEXLOWER.encode(digest::digest(&digest::SHA256, text.as_bytes()).as_ref()),
        ]);
        for other in [
            &text[1..],
            &format!("{}=", *text),
            &format!("{}A", *text),
            &text.replace(&text[..1], "+"),
        ] {
            assert!(hashes.insert(hash_of_text(other).unwrap()), "{other:?}");
        }
    }
}
