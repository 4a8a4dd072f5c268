//! Who shows a token: a machine whose first boot begins anew, because its kernel arguments change, fetches once more, and is one machine.

use attest::NodeIdentity;
use attest::protocol::CLAIMANT_BYTES;
use aws_lc_rs::digest;
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use zeroize::Zeroizing;

/// How long after it has used a token a node can show it again without using it once more, seconds. A first boot takes minutes; one that hangs
/// overnight, and is switched off and on, is the same first boot still. What a node keeps its claimant in is a secret for no longer.
pub const AGAIN_SECONDS: u64 = 24 * 3600;
/// How often a node can show a token again for one use. Three boots, for FIPS and for kernel arguments one after the other, are the most that is known, and
/// the fetch of each may be cut off once. Whoever has both token and claimant has so many configs more, and not as many as he likes.
pub const REPEATS_LIMIT: u32 = 5;

/// What a node is known by that keeps a secret over the boots of its first boot: its SHA-256.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant(pub(super) String);

impl Claimant {
    /// Reads the header's value. `None` if it is no claimant.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Self> {
        let claimant = Zeroizing::new(BASE64URL_NOPAD.decode(value).ok()?);
        let digest = || HEXLOWER.encode(digest::digest(&digest::SHA256, &claimant).as_ref());
        (claimant.len() == CLAIMANT_BYTES).then(|| Self(digest()))
    }
}

/// Who shows a token.
#[derive(Debug, Clone, Copy)]
pub enum Node<'n> {
    /// A node that says by its claimant that it is the same.
    Claimant(&'n Claimant),
    /// A node whose evidence has proven who it is.
    Attested(&'n NodeIdentity),
    /// A node of which nothing is known but its address.
    Unknown,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn attack_09_a_claimant_is_32_bytes_in_one_form_or_none() {
        let text = BASE64URL_NOPAD.encode(&[0xfb; 32]);
        let claimant = Claimant::read(text.as_bytes()).unwrap();
        assert!(text.contains('-') && !format!("{claimant:?}").contains(&text));
        assert_ne!(claimant, Claimant::read(BASE64URL_NOPAD.encode(&[0xfa; 32]).as_bytes()).unwrap());
        let last = |last: char| format!("{}{last}", text.get(..42).unwrap());
        for bad in [
            String::new(),
            text.replace('-', "+"),
            format!("{text}="),
            format!(" {text}"),
            last('t'), // bits that no byte has
            BASE64URL_NOPAD.encode(&[0xfb; 31]),
            BASE64URL_NOPAD.encode(&[0xfb; 33]),
        ] {
            assert_eq!(Claimant::read(bad.as_bytes()), None, "{bad}");
        }
    }
}
