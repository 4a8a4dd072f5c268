//! Settings for the approval of kubelets' CSRs.

use std::time::Duration;

use serde::Deserialize;

use attest_store::section::Fault;

/// Longest time between an attestation and an approval for it, in minutes: a day. A machine that comes later has to attest again.
const WITHIN_LIMIT_MINUTES: u64 = 1440;
/// Most pools, and groups, that can be named.
const NAMED_LIMIT: usize = 100;

/// Settings of the approver, if it approves at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalSettings {
    /// Time after a machine's attestation in which its request is approved.
    pub within: Duration,
    /// The pools whose machines are approved.
    pub pools: Vec<String>,
    /// Those of them that are the control plane's.
    pub control_plane_pools: Vec<String>,
    /// User that asks for certificates of new nodes; it has to be in exactly these groups.
    pub requester: String,
    pub requester_groups: Vec<String>,
    /// Set if each node has a Machine object.
    pub machine_objects: bool,
    /// Set if a name counts that a machine has asked for when it attested.
    pub asked_names: bool,
    /// Kubelet keys that are approved.
    pub keys: ApprovedKeys,
    /// Set if serving certificates are approved.
    pub serving: bool,
}

/// The keys for which client certificates are approved. A machine that has attested a key is held to it in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApprovedKeys {
    /// Only one that its machine has attested.
    #[default]
    Attested,
    /// Any key, if its machine has attested none.
    Any,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ApprovalSection {
    enabled: bool,
    within_minutes: u64,
    pools: Vec<String>,
    control_plane_pools: Vec<String>,
    requester: String,
    requester_groups: Vec<String>,
    machine_objects: bool,
    asked_names: bool,
    keys: ApprovedKeys,
    serving: bool,
}

impl Default for ApprovalSection {
    fn default() -> Self {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self {
            enabled: false,
            within_minutes: 60,
            pools: texts(&["worker"]),
            control_plane_pools: texts(&["master"]),
            // That of OpenShift, as cluster-machine-approver knows it (`pkg/controller/csr_check.go`).
            requester: "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper".to_owned(),
            requester_groups: texts(&[
                "system:serviceaccounts:openshift-machine-config-operator",
                "system:serviceaccounts",
                "system:authenticated",
            ]),
            machine_objects: true,
            asked_names: false,
            keys: ApprovedKeys::default(),
            serving: true,
        }
    }
}

pub(super) fn checked(section: ApprovalSection) -> Result<Option<ApprovalSettings>, Fault> {
    if !section.enabled {
        return Ok(None);
    }
    if !(1..=WITHIN_LIMIT_MINUTES).contains(&section.within_minutes) {
        return Err(("approval.within_minutes", section.within_minutes.to_string(), "1 to 1440"));
    }
    if !(1..=NAMED_LIMIT).contains(&section.pools.len()) {
        let found = format!("{} pools", section.pools.len());
        return Err(("approval.pools", found, "allowed are 1 to 100 pools"));
    }
    if let Some(pool) = section
        .pools
        .iter()
        .enumerate()
        .find_map(|(at, pool)| section.pools.iter().take(at).find(|other| *other == pool))
    {
        return Err(("approval.pools", format!("{pool:?} twice"), "each pool once"));
    }
    if section.control_plane_pools.len() > NAMED_LIMIT {
        let found = format!("{} pools", section.control_plane_pools.len());
        return Err(("approval.control_plane_pools", found, "100 pools at most"));
    }
    if section.requester.is_empty() {
        return Err((
            "approval.requester",
            "\"\"".to_owned(),
            "the user that requests certificates of new nodes is required",
        ));
    }
    // As the API does with whoever has a certificate of its own.
    if section.requester.starts_with("system:node:") {
        let allowed = "it must be the user for new nodes: a node's own user requests only its own certificate";
        return Err(("approval.requester", format!("{:?}", section.requester), allowed));
    }
    if !(1..=NAMED_LIMIT).contains(&section.requester_groups.len()) {
        let found = format!("{} groups", section.requester_groups.len());
        return Err(("approval.requester_groups", found, "list all 1 to 100 groups of the requester"));
    }
    Ok(Some(ApprovalSettings {
        within: Duration::from_secs(60 * section.within_minutes),
        pools: section.pools,
        control_plane_pools: section.control_plane_pools,
        requester: section.requester,
        requester_groups: section.requester_groups,
        machine_objects: section.machine_objects,
        asked_names: section.asked_names,
        keys: section.keys,
        serving: section.serving,
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<ApprovalSettings>, String> {
        let section: ApprovalSection = toml::from_str(text).map_err(|error| error.to_string())?;
        checked(section).map_err(|(key, found, allowed)| format!("{key} is {found}; {allowed}"))
    }

    #[test]
    fn approval_is_disabled_by_default() {
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("within_minutes = 10\npools = [\"worker\"]"), Ok(None));
        let settings = parse("enabled = true").unwrap().unwrap();
        assert_eq!(settings.pools, ["worker"]);
        assert!(!settings.asked_names && settings.machine_objects);
        assert_eq!(settings.keys, ApprovedKeys::Attested);
        assert_eq!(parse("enabled = true\nkeys = \"any\"").unwrap().unwrap().keys, ApprovedKeys::Any);
    }

    #[test]
    fn rejects_invalid_approval_settings() {
        let check = |text: &str, expected: &str| {
            let error = parse(&format!("enabled = true\n{text}")).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("within_minutes = 0", "within_minutes is 0");
        check("within_minutes = 1441", "within_minutes is 1441");
        check("pools = []", "approval.pools is 0 pools");
        check("pools = [\"a\", \"b\", \"a\"]", "approval.pools is \"a\" twice");
        check("requester = \"\"", "approval.requester is");
        check("requester = \"system:node:a\"", "approval.requester is");
        check("requester_groups = []", "approval.requester_groups is 0 groups");
        check("enable = true", "unknown field");
        check("keys = \"some\"", "unknown variant");
        check("keys = true", "keys = true");
        assert!(parse("enabled = true\nwithin_minutes = 1440").is_ok());
    }
}
