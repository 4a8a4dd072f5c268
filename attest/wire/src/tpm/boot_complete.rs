//! The door: the PCR that `attest-node` extends when a node has its config, so that whatever runs later has other PCRs than the boot had.
//!
//! Only a reset takes that back. Pools cannot choose the PCR: the node extends it before it knows of any pool, and on boots on which it
//! asks none. The reasons for this PCR are in `docs/explanation/evidence.md`.

use super::wire::HashAlg;

/// Boot-complete PCR: the one of system extensions (UAPI.7, Linux TPM PCR Registry). systemd-stub measures into it before the kernel
/// starts, so its value by then is in the firmware's log. No later software extends it, except with [`OS_SEPARATOR`].
pub const BOOT_COMPLETE_PCR: u8 = 13;

/// Word that ends the boot: the hash of these bytes is extended in each bank (`TPM2_PCR_Event`). `tpm2_pcrevent` does the same.
pub const CLOSING_WORD: &[u8] = b"attest-node-boot-is-over";

/// The word that systemd 261 and later extends into this and other PCRs when its userspace first sees the TPM (systemd-pcrosseparator.service(8)).
pub const OS_SEPARATOR: &[u8] = b"os-separator";

/// Computes the value of a PCR after the hash of a word was extended into it.
#[must_use]
pub fn extended(bank: HashAlg, value: &[u8], word: &[u8]) -> Vec<u8> {
    let word = bank.digest(&[word]);
    bank.digest(&[value, word.as_ref()]).as_ref().to_vec()
}

/// Returns whether a PCR that held `before` when the firmware was done was closed since, by [`CLOSING_WORD`] and nothing else but
/// [`OS_SEPARATOR`]. Other values may be those of a closed PCR, too: it cannot be known what else was extended.
#[must_use]
pub fn is_closed(bank: HashAlg, before: &[u8], value: &[u8]) -> bool {
    let after = |words: &[&[u8]]| words.iter().fold(before.to_vec(), |value, word| extended(bank, &value, word));
    [&[CLOSING_WORD][..], &[OS_SEPARATOR, CLOSING_WORD], &[CLOSING_WORD, OS_SEPARATOR]]
        .into_iter()
        .any(|words| after(words) == value)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    const BANKS: [HashAlg; 3] = [HashAlg::Sha256, HashAlg::Sha384, HashAlg::Sha512];

    fn check(words: &[&[u8]], closed: bool) {
        for bank in BANKS {
            for before in [vec![0; bank.digest_bytes()], vec![7; bank.digest_bytes()]] {
                let value = words.iter().fold(before.clone(), |value, word| extended(bank, &value, word));
                assert_eq!(value.len(), bank.digest_bytes());
                assert_eq!(is_closed(bank, &before, &value), closed, "{words:?} in {bank}");
            }
        }
    }

    #[test]
    fn os_separator_may_surround_the_closing_word() {
        check(&[CLOSING_WORD], true);
        check(&[OS_SEPARATOR, CLOSING_WORD], true);
        check(&[CLOSING_WORD, OS_SEPARATOR], true);
        check(&[], false);
        check(&[OS_SEPARATOR], false);
        check(&[b"another"], false);
        check(&[CLOSING_WORD, b"another"], false);
    }

    /// The expected value was computed with sha256sum(1).
    #[test]
    fn closing_word_digest_matches_sha256sum() {
        let digest = HashAlg::Sha256.digest(&[CLOSING_WORD]);
        assert_eq!(
            format!("{digest:?}"),
            "09fa4aaa8edd66e9ccd937b59fb216f8126152481d292bc65f798bb82d6d9bf2"
        );
    }
}
