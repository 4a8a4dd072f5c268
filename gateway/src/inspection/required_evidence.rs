//! Evidence that the pools require, whether they are served or not.

use std::collections::BTreeSet;
use std::path::Path;

use attest::Kind;
use attest_pool::{Endorsement, PoolFile};

/// Evidence that a pool requires, by its `pool.toml` alone: it is known even if the pool's configs cannot be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredEvidence {
    /// Name of the pool.
    pub name: String,
    /// Kinds of evidence that any of its combinations has.
    pub kinds: BTreeSet<Kind>,
    /// Required endorsement of a TPM.
    pub endorsement: Endorsement,
}

impl RequiredEvidence {
    /// Returns the evidence that a `pool.toml` requires.
    #[must_use]
    pub fn new(name: &str, file: &PoolFile) -> Self {
        let accepted = file.policy.accepts().iter();
        Self {
            name: name.to_owned(),
            kinds: accepted.flat_map(|kinds| kinds.kinds().iter().copied()).collect(),
            endorsement: file.endorsement.unwrap_or_default(),
        }
    }
}

/// Reads the evidence of the pools in a folder. Leaves out pools whose `pool.toml` cannot be read: they are not served, and reported for that.
pub(super) fn required(folder: &Path) -> Vec<RequiredEvidence> {
    let pools = attest_pool::folders(folder)
        .map(|folders| folders.pools)
        .unwrap_or_default()
        .into_iter();
    pools
        .filter_map(|(name, folder)| Some(RequiredEvidence::new(&name, &attest_pool::pool_file(&folder).ok()?)))
        .collect()
}
