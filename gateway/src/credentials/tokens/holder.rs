//! Identity of the node that shows a token. A machine whose first boot starts again, because its kernel arguments change, fetches its
//! config again, and is one machine.

use attest::NodeIdentity;
use attest::protocol::CLAIMANT_BYTES;
use aws_lc_rs::digest;
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use zeroize::Zeroizing;

/// Time after a use in which a node can show the token again without another use, in seconds. A first boot takes minutes; one that hangs
/// overnight, and is switched off and on, is still the same first boot. The place where a node keeps its claimant is a secret for no
/// longer.
pub const AGAIN_SECONDS: u64 = 24 * 3600;
/// Maximum number of times that a node can show a token again for one use. Three boots, for FIPS and then for kernel arguments, are the
/// known maximum, and the fetch of each may be cut off once. A thief of both token and claimant gets so many configs more, and no others.
pub const REPEATS_LIMIT: u32 = 5;

/// SHA-256 of the secret that a node keeps over the boots of its first boot, to be recognized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimant(pub(super) String);

impl Claimant {
    /// Reads the header's value; returns `None` if it is not a claimant.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Self> {
        let claimant = Zeroizing::new(BASE64URL_NOPAD.decode(value).ok()?);
        let digest = || HEXLOWER.encode(digest::digest(&digest::SHA256, &claimant).as_ref());
        (claimant.len() == CLAIMANT_BYTES).then(|| Self(digest()))
    }
}

/// Node that shows a token.
#[derive(Debug, Clone, Copy)]
pub enum TokenHolder<'n> {
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
    fn attack_09_accepts_only_canonical_32_byte_first_boot_secrets() {
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
