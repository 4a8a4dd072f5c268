//! Identifiers that are given by their beginning. A node's name is always whole: `worker-1` is not `worker-10`.

use std::collections::BTreeSet;

use anyhow::bail;
use attest_machines::{enrolment, instances, revocations};
use attest_store::Store;

/// Fewest characters of a beginning.
const LEAST: usize = 8;

/// Returns the one identifier that begins so, or `given` if none does or it is too short.
///
/// # Errors
/// If several do.
pub(super) fn completed(given: &str, ids: impl IntoIterator<Item = String>) -> anyhow::Result<String> {
    let ids: BTreeSet<String> = ids.into_iter().filter(|id| id.starts_with(given)).collect();
    let mut found = ids.iter();
    match (found.next(), found.next()) {
        (Some(one), _) if one == given => Ok(given.to_owned()),
        (Some(one), None) if given.len() >= LEAST => Ok(one.clone()),
        (Some(one), Some(other)) if given.len() >= LEAST => {
            bail!("several identifiers begin with {given:?}, as {one} and {other}: give more characters")
        }
        _ => Ok(given.to_owned()),
    }
}

/// Returns the identity that the store has of a machine, where `given` is the beginning of one (also a TPM's without `tpm:`); `given` itself
/// otherwise.
///
/// # Errors
/// If the store cannot be read, or several identities begin so.
pub(super) async fn machine(store: &dyn Store, given: &str) -> anyhow::Result<String> {
    let names = enrolment::names(store).await?;
    if names.iter().any(|(name, _)| name == given) {
        return Ok(given.to_owned());
    }
    let mut ids: BTreeSet<String> = names.into_iter().map(|(_, identity)| identity).collect();
    ids.extend(enrolment::attested_tpms(store).await?);
    ids.extend(enrolment::allowlist(store).await?.into_iter().map(|(identity, _)| identity));
    ids.extend(instances::list(store).await?.into_iter().map(|(instance, _)| instance));
    ids.extend(revocations::list(store).await?.into_keys());
    // A revoked name may look like a TPM's beginning.
    if ids.contains(given) {
        return Ok(given.to_owned());
    }
    let is_tpm = given.len() >= LEAST && given.bytes().all(|byte| byte.is_ascii_hexdigit());
    let identity = if is_tpm {
        format!("tpm:{}", given.to_ascii_lowercase())
    } else {
        given.to_owned()
    };
    let completed = completed(&identity, ids.iter().filter(|id| id.contains(':')).cloned())?;
    Ok(if ids.contains(&completed) { completed } else { given.to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn completes_a_beginning_that_is_unique() {
        let ids = || ["tpm:0123456789", "tpm:0123456abc", "aws:eu-1/i-1"].map(str::to_owned);
        let completed = |given| completed(given, ids());
        assert_eq!(completed("tpm:01234567").unwrap(), "tpm:0123456789");
        assert_eq!(completed("aws:eu-1").unwrap(), "aws:eu-1/i-1");
        assert_eq!(completed("tpm:0123456abc").unwrap(), "tpm:0123456abc");
        // Too short, and unknown.
        assert_eq!(completed("aws:eu").unwrap(), "aws:eu");
        assert_eq!(completed("tpm:ffffffff").unwrap(), "tpm:ffffffff");
        let several = completed("tpm:0123456").unwrap_err().to_string();
        assert!(several.contains("tpm:0123456789 and tpm:0123456abc"), "{several}");
    }

    #[test]
    fn a_whole_identifier_wins_over_a_longer_one() {
        let ids = ["aws:a/i-1234", "aws:a/i-12345"].map(str::to_owned);
        assert_eq!(completed("aws:a/i-1234", ids).unwrap(), "aws:a/i-1234");
    }
}
