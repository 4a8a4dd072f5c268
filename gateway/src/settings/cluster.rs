//! The cluster that the gateway is a part of, and what it does there.

use std::collections::BTreeSet;
use std::path::Path;

use attest::challenge::is_pool_name;
use attest_store::section::is_label;
use attest_store::settings::{ClusterAccess, ClusterApi};
use serde::Deserialize;

use super::Fault;

/// Settings for the use of the cluster's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Access to the API, and the namespace of the gateway's own objects.
    pub access: ClusterAccess,
    /// Set if the API is watched for changes after which pools with `[upstream]` are fetched again.
    pub configs: bool,
    /// Namespace of the Machine objects.
    pub machine_namespace: String,
    /// Set if the Machine objects there say which machines belong to pools.
    pub machines: bool,
    /// Pools that the cluster's bootstrap tokens are for. Empty: bootstrap tokens are not accepted as provisioning tokens.
    pub bootstrap_tokens: BTreeSet<String>,
    /// Set if the cluster provides the CAs that sign kubelets' client certificates.
    pub client_ca: bool,
    /// Set if the cluster provides the MCS certificate, its key and the MCS CA.
    pub mcs_certificate: bool,
    /// Set if the kubelets' bootstrap kubeconfig is made from the cluster's data.
    pub bootstrap_kubeconfig: bool,
    /// Use of the machines' objects in the cluster.
    pub attested_nodes: AttestedNodes,
}

/// Use of the objects that represent machines in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttestedNodes {
    /// The cluster has no such objects.
    #[default]
    Off,
    /// The objects show the machines' state.
    Show,
    /// The objects show the state, and edits of them are carried out.
    Edit,
}

/// Namespace in which OpenShift has Machine objects.
const MACHINES: &str = "openshift-machine-api";

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ClusterSection {
    api: Option<String>,
    namespace: Option<String>,
    configs: bool,
    machine_namespace: String,
    machines: bool,
    bootstrap_tokens: BTreeSet<String>,
    client_ca: bool,
    mcs_certificate: bool,
    bootstrap_kubeconfig: bool,
    attested_nodes: AttestedNodes,
}

impl Default for ClusterSection {
    fn default() -> Self {
        Self {
            api: None,
            namespace: None,
            configs: true,
            machine_namespace: MACHINES.to_owned(),
            machines: false,
            bootstrap_tokens: BTreeSet::new(),
            client_ca: false,
            mcs_certificate: false,
            bootstrap_kubeconfig: false,
            attested_nodes: AttestedNodes::Off,
        }
    }
}

/// Value of `cluster.api` for the pod's own service account.
const IN_CLUSTER: &str = "in-cluster";

pub(super) fn checked(section: ClusterSection, folder: &Path) -> Result<Option<ClusterSettings>, Fault> {
    let Some(api) = section.api else {
        let said = [
            ("cluster.namespace", section.namespace.is_some()),
            ("cluster.machines", section.machines),
            ("cluster.bootstrap_tokens", !section.bootstrap_tokens.is_empty()),
            ("cluster.client_ca", section.client_ca),
            ("cluster.mcs_certificate", section.mcs_certificate),
            ("cluster.bootstrap_kubeconfig", section.bootstrap_kubeconfig),
            ("cluster.attested_nodes", section.attested_nodes != AttestedNodes::Off),
        ];
        return match said.into_iter().find(|(_, said)| *said) {
            None => Ok(None),
            Some((key, _)) => Err((key, "set".to_owned(), "it needs cluster.api: set cluster.api, or remove this key")),
        };
    };
    if !cfg!(feature = "cluster") {
        let allowed = "this attest-gateway was built without the cluster's API: build it with the feature `cluster`, or remove the section";
        return Err(("cluster.api", format!("{api:?}"), allowed));
    }
    let api = match api.as_str() {
        "" => return Err(("cluster.api", "\"\"".to_owned(), "\"in-cluster\", or the path of a kubeconfig")),
        IN_CLUSTER => ClusterApi::InCluster,
        path => ClusterApi::Kubeconfig(folder.join(path)),
    };
    let namespaces = [
        ("cluster.namespace", section.namespace.as_deref()),
        ("cluster.machine_namespace", Some(&*section.machine_namespace)),
    ];
    for (key, namespace) in namespaces {
        if let Some(namespace) = namespace.filter(|namespace| !is_label(namespace)) {
            let allowed = "a namespace: 1 to 63 of a-z, 0-9 and '-', no '-' first or last";
            return Err((key, format!("{namespace:?}"), allowed));
        }
    }
    if let Some(pool) = section.bootstrap_tokens.iter().find(|pool| !is_pool_name(pool)) {
        let allowed = "names of pools: lower-case letters, digits, '-' and '.' only, at most 63";
        return Err(("cluster.bootstrap_tokens", format!("{pool:?}"), allowed));
    }
    Ok(Some(ClusterSettings {
        access: ClusterAccess {
            api,
            namespace: section.namespace,
        },
        configs: section.configs,
        machine_namespace: section.machine_namespace,
        machines: section.machines,
        bootstrap_tokens: section.bootstrap_tokens,
        client_ca: section.client_ca,
        mcs_certificate: section.mcs_certificate,
        bootstrap_kubeconfig: section.bootstrap_kubeconfig,
        attested_nodes: section.attested_nodes,
    }))
}

#[cfg(all(test, feature = "cluster"))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<ClusterSettings>, String> {
        let section: ClusterSection = toml::from_str(text).map_err(|error| error.to_string())?;
        checked(section, Path::new("/gw")).map_err(|(key, found, allowed)| format!("{key} is {found}; {allowed}"))
    }

    #[test]
    fn cluster_access_needs_the_api_setting() {
        assert_eq!(parse(""), Ok(None));
        let api = |text: &str| parse(text).unwrap().unwrap().access.api;
        assert_eq!(api("api = \"in-cluster\""), ClusterApi::InCluster);
        assert_eq!(api("api = \"kubeconfig\""), ClusterApi::Kubeconfig("/gw/kubeconfig".into()));
        assert_eq!(api("api = \"/etc/kubeconfig\""), ClusterApi::Kubeconfig("/etc/kubeconfig".into()));
    }

    #[test]
    fn refuses_invalid_cluster_settings() {
        let check = |text: &str, expected: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("api = \"\"", "cluster.api is");
        check("namespace = \"a\"", "cluster.namespace is set");
        check("machines = true", "cluster.machines is set");
        check("bootstrap_tokens = [\"a\"]", "cluster.bootstrap_tokens is set");
        check("bootstrap_tokens = true", "invalid type");
        check("client_ca = true", "cluster.client_ca is set");
        check("mcs_certificate = true", "cluster.mcs_certificate is set");
        check("bootstrap_kubeconfig = true", "cluster.bootstrap_kubeconfig is set");
        check("attested_nodes = \"show\"", "cluster.attested_nodes is set");
        check("attested_nodes = \"write\"", "unknown variant");
        check("attested_nodes = true", "wanted string");
        check("api = \"in-cluster\"\nbootstrap_tokens = [\"A/b\"]", "cluster.bootstrap_tokens is");
        check("apis = \"a\"", "unknown field");
        for namespace in ["", "-a", "a-", "A", "a.b", "a/b", &"a".repeat(64)] {
            check(&format!("api = \"in-cluster\"\nnamespace = {namespace:?}"), "cluster.namespace is");
            check(
                &format!("api = \"in-cluster\"\nmachine_namespace = {namespace:?}"),
                "cluster.machine_namespace is",
            );
        }
        assert!(parse(&format!("api = \"in-cluster\"\nnamespace = {:?}", "a".repeat(63))).is_ok());
    }
}
