//! `[approval]`: what `attest-controller`, which approves CSRs of kubelets, needs from the gateway.

use attest::challenge::is_pool_name;
use serde::Deserialize;

use super::Fault;

/// Most pools that can be named.
const POOLS_LIMIT: usize = 100;

/// The part of the gateway in the approval of CSRs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletApprovalSettings {
    /// Pools whose machines `attest-controller` approves. Empty: attestations are not kept for it.
    pub pools: Vec<String>,
    /// Set if nodes of these pools attest the key of their kubelet.
    pub kubelet_keys: bool,
}

impl KubeletApprovalSettings {
    /// Returns whether attestations are kept in the store for `attest-controller`. Those of all pools are, so that it can tell a machine of
    /// another pool.
    #[must_use]
    pub const fn notes_attested(&self) -> bool {
        !self.pools.is_empty()
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct KubeletApprovalSection {
    pools: Vec<String>,
    kubelet_keys: bool,
}

impl Default for KubeletApprovalSection {
    fn default() -> Self {
        Self {
            pools: Vec::new(),
            kubelet_keys: true,
        }
    }
}

pub(super) fn checked(section: KubeletApprovalSection) -> Result<KubeletApprovalSettings, Fault> {
    let KubeletApprovalSection { pools, kubelet_keys } = section;
    if pools.len() > POOLS_LIMIT {
        return Err(("approval.pools", format!("{} pools", pools.len()), "100 pools at most"));
    }
    if let Some(pool) = pools.iter().find(|pool| !is_pool_name(pool)) {
        let allowed = "names of pools: lower-case letters, digits, '-' and '.' only, at most 63";
        return Err(("approval.pools", format!("{pool:?}"), allowed));
    }
    Ok(KubeletApprovalSettings { pools, kubelet_keys })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<KubeletApprovalSettings, String> {
        let section: KubeletApprovalSection = toml::from_str(text).map_err(|error| error.to_string())?;
        checked(section).map_err(|(key, found, allowed)| format!("{key} is {found}; {allowed}"))
    }

    #[test]
    fn stores_attested_keys_only_for_approval_pools() {
        assert!(!parse("").unwrap().notes_attested());
        let settings = parse("pools = [\"worker\"]").unwrap();
        assert!(settings.notes_attested() && settings.kubelet_keys);
    }

    #[test]
    fn refuses_invalid_approval_settings() {
        for (text, expected) in [
            ("pools = [\"A/b\"]", "approval.pools is"),
            ("pools = true", "invalid type"),
            ("enabled = true", "unknown field"),
            ("kubelet_keys = \"any\"", "invalid type"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
