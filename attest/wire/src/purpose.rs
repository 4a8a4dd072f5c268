//! Purposes of evidence. A purpose goes into the signed data, with its length, so that evidence for one is worth nothing for another.

use crate::nonce::{PURPOSE_CONFIG, SpkiSha256};
use crate::values::is_lower_hex;

/// Purpose of evidence that is decided about as evidence for a config is, and earns nothing.
pub const REHEARSAL: &str = "ignition-config.rehearsal";
/// Separator between [`PURPOSE_CONFIG`] and the digest of a key: without characters that a URL has to escape, since Google's audience
/// contains it.
const KUBELET_KEY: &str = ".kubelet-key.";
/// Length of a digest in it.
const HEX_CHARACTERS: usize = 64;

/// Returns the purpose of evidence that earns an Ignition config and also names the key for which the node's kubelet will request a
/// certificate: SHA-256 of its SubjectPublicKeyInfo, in hexadecimal, in lower case. So every signature over a purpose covers the key.
#[must_use]
pub fn with_kubelet_key(key: &SpkiSha256) -> String {
    format!("{PURPOSE_CONFIG}{KUBELET_KEY}{key}")
}

/// The key that a purpose names. `None` for every other text, also for one that names a key in another spelling: there is one.
#[must_use]
pub fn kubelet_key(purpose: &str) -> Option<SpkiSha256> {
    let digest = purpose.strip_prefix(PURPOSE_CONFIG)?.strip_prefix(KUBELET_KEY)?;
    if digest.len() != HEX_CHARACTERS || !is_lower_hex(digest) {
        return None;
    }
    let bytes = data_encoding::HEXLOWER.decode(digest.as_bytes()).ok()?;
    bytes.try_into().ok().map(SpkiSha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SpkiSha256 = SpkiSha256([0xab; 32]);

    #[test]
    fn kubelet_key_purpose_has_one_spelling() {
        let purpose = with_kubelet_key(&KEY);
        assert_eq!(purpose, format!("ignition-config.kubelet-key.{}", "ab".repeat(32)));
        assert_eq!(kubelet_key(&purpose), Some(KEY));
        for other in [
            PURPOSE_CONFIG.to_owned(),
            REHEARSAL.to_owned(),
            String::new(),
            "ignition-config.kubelet-key.".to_owned(),
            purpose.to_uppercase(),
            purpose.replace("ab", "AB"),
            purpose.replace("ignition-config", "report"),
            format!("{purpose}a"),
            format!("{purpose} "),
            format!(" {purpose}"),
            format!("{purpose}.kubelet-key.{KEY}"),
            purpose[..purpose.len() - 1].to_owned(),
            purpose[..purpose.len() - 2].to_owned(),
            format!("{}zz", &purpose[..purpose.len() - 2]),
        ] {
            assert_eq!(kubelet_key(&other), None, "{other:?}");
        }
    }
}
