//! `gateway.toml` and the pools' files, as a gateway on a control-plane host needs them: printed once, and the administrator's from then on.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use attest_pool::PoolError;

use super::evidence::CONTROL_PLANE;
use super::ingress_redirect::SERVER;
use super::monitoring;
use super::values::quoted;
use super::{ApiFeature, GATEWAY_PORT, Host, NAME, Namespace, PoolEvidence, PoolName};
use crate::settings::{Settings, SettingsError};

/// Name of the controller's objects.
const CONTROLLER: &str = "attest-controller";
/// Folder in the container with the gateway's configuration, a subfolder for each volume.
const CONFIGURATION: &str = "/etc/attest-gateway";
/// State folder in the container.
const STATE: &str = "/var/lib/attest-gateway";
/// Trust anchors that the administrator provides for TPMs and clouds: a folder, and a ConfigMap, for each.
const ANCHORS: [&str; 7] = [
    "ek-roots",
    "gcp-vtpm-roots",
    "aws-region-certificates",
    "aws-nitro-roots",
    "azure-roots",
    "azure-intermediates",
    "azure-vtpm-roots",
];

/// Values that a printed file cannot have.
#[derive(Debug, thiserror::Error)]
pub enum InitialSettingsError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Parameters of the initial settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialSettings {
    pub namespace: Namespace,
    /// Name of the control plane in pointers and in the Machine Config Server's certificate.
    pub host: Host,
    /// Each has a file of its own.
    pub pools: BTreeSet<PoolName>,
    pub evidence: PoolEvidence,
    /// Members of the etcd that has the store; empty: each host has a store of its own.
    pub etcd: Vec<String>,
    /// Uses of the cluster's API; empty: the gateway does not use the API.
    pub parts: BTreeSet<ApiFeature>,
    /// Set if the cluster's Prometheus is to read the metrics.
    pub metrics: bool,
}

/// Returns section `[cluster]` of `gateway.toml`, or nothing if the gateway does not use the API.
fn cluster(parts: &BTreeSet<ApiFeature>, pools: &BTreeSet<PoolName>) -> String {
    let mut cluster = String::new();
    if parts.iter().all(|part| part.is_of_controller()) {
        return cluster;
    }
    let pools = workers(pools);
    // Writing to a string cannot fail.
    let _ = write!(
        cluster,
        "
# What of this has no rights is refused by the API: `attest-gateway manifests render --only gateway` with the same --with.
[cluster]
api = \"in-cluster\"
configs = {}
machines = {}
client_ca = {}
mcs_certificate = {}
bootstrap_kubeconfig = {}
",
        parts.contains(&ApiFeature::Configs),
        parts.contains(&ApiFeature::Inventory),
        parts.contains(&ApiFeature::ClientCa),
        parts.contains(&ApiFeature::McsCertificate),
        parts.contains(&ApiFeature::BootstrapKubeconfig),
    );
    if parts.contains(&ApiFeature::Tokens) {
        let _ = writeln!(
            cluster,
            "# A pool gives something for them once its grants.token says so; as printed, none does.\nbootstrap_tokens = [{pools}]"
        );
    }
    if parts.contains(&ApiFeature::AttestedNodes) {
        // Whoever may edit them would decide about machines: that is the administrator's to say.
        cluster.push_str("# \"edit\" takes edits of the objects besides.\nattested_nodes = \"show\"\n");
    }
    cluster
}

/// Returns the pools that a part may let machines into, as TOML strings separated by commas.
fn workers(pools: &BTreeSet<PoolName>) -> String {
    let names = pools
        .iter()
        .map(ToString::to_string)
        .filter(|name| !CONTROL_PLANE.contains(&&**name));
    names.map(|name| quoted(&name)).collect::<Vec<_>>().join(", ")
}

/// Returns section `[store]` of one of the programs, without the key that only gateways have.
fn store(etcd: &[String], parts: &BTreeSet<ApiFeature>) -> String {
    if !etcd.is_empty() {
        let endpoints: Vec<String> = etcd.iter().map(|endpoint| quoted(endpoint)).collect();
        return format!(
            "[store]
engine = \"etcd\"
endpoints = [{}]
ca = \"{CONFIGURATION}/store/ca.crt\"
certificate = \"{CONFIGURATION}/store/tls.crt\"
key = \"{CONFIGURATION}/store/tls.key\"
",
            endpoints.join(", ")
        );
    }
    match parts.contains(&ApiFeature::Store) {
        true => "[store]\nengine = \"kubernetes\"\n".to_owned(),
        false => String::new(),
    }
}

/// Returns the text of `controller.toml`.
fn controller((namespace, host): (&Namespace, &Host), etcd: &[String], parts: &BTreeSet<ApiFeature>, pools: &BTreeSet<PoolName>) -> String {
    let mut text = format!(
        "# Settings that are missing here have their defaults: docs/reference/controller-toml.md. A change counts when the pods are restarted.
state = \"/var/lib/attest-controller\"
pools = \"{CONFIGURATION}/pools\"

[cluster]
api = \"in-cluster\"

{}",
        store(etcd, parts),
    );
    // Writing to a string cannot fail.
    if parts.contains(&ApiFeature::Approval) {
        let _ = write!(
            text,
            "
[approval]
enabled = true
pools = [{}]
# Only a CSR for the key that its machine has attested. \"any\" approves others for the name: docs/how-to/approve-csrs.md.
keys = \"attested\"
",
            workers(pools),
        );
    }
    if parts.contains(&ApiFeature::Pointers) || parts.contains(&ApiFeature::SecondStage) {
        let _ = write!(
            text,
            "
[pointers]
enabled = {}
authorities = \"{CONFIGURATION}/mcs-ca/ca-bundle.crt\"
certificate = \"{CONFIGURATION}/mcs-tls/tls.crt\"
",
            parts.contains(&ApiFeature::Pointers)
        );
    }
    if parts.contains(&ApiFeature::SecondStage) {
        let _ = write!(
            text,
            "
# Of pools with second_stage.machine_config_daemon: docs/how-to/second-stage.md.
[second_stage]
enabled = true
url = \"https://{host}:22623\"
# The Service of the gateways: pods do not reach the hosts' port 22623.
address = \"{NAME}.{namespace}.svc:{GATEWAY_PORT}\"
"
        );
    }
    text.push_str("\n[log]\nformat = \"json\"\n");
    text
}

/// Returns the text of `gateway.toml`, without the metrics.
fn settings(host: &Host, etcd: &[String], parts: &BTreeSet<ApiFeature>, pools: &BTreeSet<PoolName>) -> String {
    let cluster = cluster(parts, pools);
    let store = match store(etcd, parts) {
        text if text.is_empty() => text,
        text => format!(
            "
# Gateways on several hosts have one store. Its files are in Secret {NAME}-store.
{text}key_file = \"{CONFIGURATION}/store/store.key\"
"
        ),
    };
    let approval = match parts.contains(&ApiFeature::Approval) {
        true => format!(
            "
# What attest-controller approves: its own settings are in ConfigMap {CONTROLLER}.
[approval]
pools = [{}]
",
            workers(pools)
        ),
        false => String::new(),
    };
    let client_ca = format!("# client_ca = \"{CONFIGURATION}/kubelet-ca/ca-bundle.crt\"");
    let tls = if parts.contains(&ApiFeature::McsCertificate) {
        client_ca
    } else {
        format!(
            "ca = \"{CONFIGURATION}/mcs-ca/ca-bundle.crt\"
certificate = \"{CONFIGURATION}/mcs-tls/tls.crt\"
key = \"{CONFIGURATION}/mcs-tls/tls.key\"
{client_ca}"
        )
    };
    let [ek, gcp, region, nitro, azure, intermediates, azure_vtpm] = ANCHORS;
    format!(
        "# Settings that are missing here have their defaults: docs/reference/gateway-toml.md. A change counts when the pods are restarted.
listen = \"[::]:{GATEWAY_PORT}\"
# Nodes come to the Machine Config Server's port; the table of `attest-gateway manifests render --only nft` leads them here.
pointer_url = \"https://{host}:22623\"
state = \"{STATE}\"
pools = \"{CONFIGURATION}/pools\"
ek_roots = \"{CONFIGURATION}/{ek}\"
{store}{cluster}{approval}
[tls]
{tls}

[log]
format = \"json\"

[gcp]
vtpm_roots = \"{CONFIGURATION}/{gcp}\"

[aws]
region_certificates = \"{CONFIGURATION}/{region}\"
nitro_roots = \"{CONFIGURATION}/{nitro}\"

[azure]
roots = \"{CONFIGURATION}/{azure}\"
intermediates = \"{CONFIGURATION}/{intermediates}\"
vtpm_roots = \"{CONFIGURATION}/{azure_vtpm}\"
"
    )
}

/// Returns a pool's `pool.toml`: the sample with rules for this evidence, and with its full config from the host's own Machine Config Server.
/// It gives nothing to unauthenticated clients.
fn pool(name: &PoolName, host: &Host, parts: &BTreeSet<ApiFeature>, evidence: &PoolEvidence) -> String {
    let ca = match parts.contains(&ApiFeature::McsCertificate) {
        // As the cluster says it, kept by the gateway itself.
        true => format!("{STATE}/cluster/machine-config-server-ca.crt"),
        false => format!("{CONFIGURATION}/mcs-ca/ca-bundle.crt"),
    };
    let upstream = format!(
        "# This host's own Machine Config Server; the table of `attest-gateway manifests render --only nft` leads there.
[upstream]
url = \"https://{host}:22623\"
address = \"{SERVER}\"
ca = \"{ca}\"
# What of it is pre-approved, by name, if grants.nothing says so: docs/reference/pool-toml.md.
# [upstream.include]
# files = [\"/etc/kubernetes/kubeconfig\"]
"
    );
    let sample = attest_pool::SAMPLE.replacen(
        "# Anybody who can reach this port. Keep secrets out of the pre-approved config.\nnothing = \"pre-approved\"",
        "# Anybody who can reach this port.\nnothing = \"refuse\"",
        1,
    );
    let (rules, _) = sample.split_once("[source]\n").unwrap_or((&sample, ""));
    let rules = evidence.rules(rules, name, &format!("{CONFIGURATION}/settings"));
    format!("{rules}{upstream}")
}

impl InitialSettings {
    /// Returns whether a pool is not the control plane's.
    #[must_use]
    pub fn has_workers(&self) -> bool {
        !workers(&self.pools).is_empty()
    }

    /// Returns the ConfigMaps: `gateway.toml`, the pools, and `controller.toml` if a part is the controller's.
    ///
    /// # Errors
    /// [`InitialSettingsError`]: an argument is not valid as a setting.
    pub fn config_maps(&self) -> Result<Vec<String>, InitialSettingsError> {
        let mut settings = settings(&self.host, &self.etcd, &self.parts, &self.pools);
        if self.metrics {
            // Writing to a string cannot fail.
            let _ = write!(
                settings,
                "\n# For the proxy in the same pod, which asks each client for a token.\n[metrics]\nlisten = \"{}\"\n",
                monitoring::LISTEN
            );
        }
        Settings::parse(&settings, &Path::new(CONFIGURATION).join("settings/gateway.toml"))?;
        let mut files = vec![("gateway.toml".to_owned(), settings)];
        let mut pools = Vec::new();
        for name in &self.pools {
            let text = pool(name, &self.host, &self.parts, &self.evidence);
            let folder = Path::new(CONFIGURATION).join("pools").join(name.to_string());
            attest_pool::policy_of(&folder, &folder.join("pool.toml"), &text, Vec::new())?;
            pools.push((format!("{name}.toml"), text));
            let inventory = self.evidence.inventory_file(name);
            files.extend(inventory.map(|(file, text)| (file, text.to_owned())));
        }
        let mut maps = vec![
            config_map(&self.namespace, NAME, &files),
            config_map(&self.namespace, &format!("{NAME}-pools"), &pools),
        ];
        if self.parts.iter().any(|part| part.is_of_controller()) {
            let controller = controller((&self.namespace, &self.host), &self.etcd, &self.parts, &self.pools);
            maps.push(config_map(
                &self.namespace,
                CONTROLLER,
                &[("controller.toml".to_owned(), controller)],
            ));
        }
        Ok(maps)
    }
}

fn config_map(namespace: &Namespace, name: &str, files: &[(String, String)]) -> String {
    let mut object = format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: {namespace}\ndata:\n");
    for (file, text) in files {
        let _ = writeln!(object, "  {file}: |");
        for line in text.lines() {
            object.push_str(if line.is_empty() { "" } else { "    " });
            object.push_str(line);
            object.push('\n');
        }
    }
    object
}

#[cfg(all(test, feature = "cluster"))]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use attest_store::settings::EngineSettings;

    use super::*;
    use crate::settings::AttestedNodes;

    fn printed(etcd: &[&str], parts: &[ApiFeature]) -> Settings {
        let pools = ["worker", "master"].map(|name| name.parse().unwrap()).into();
        let etcd: Vec<String> = etcd.iter().map(|endpoint| (*endpoint).to_owned()).collect();
        let text = settings(
            &"api-int.example.com".parse().unwrap(),
            &etcd,
            &parts.iter().copied().collect(),
            &pools,
        );
        Settings::parse(&text, Path::new("/etc/attest-gateway/settings/gateway.toml")).unwrap()
    }

    #[test]
    fn each_feature_enables_only_its_own_settings() {
        assert_eq!(printed(&[], &[]).cluster, None);
        for part in ApiFeature::ALL {
            let settings = printed(&[], &[part]);
            let approves = settings.approval.notes_attested();
            assert_eq!(settings.cluster.is_none(), part.is_of_controller());
            let cluster = settings
                .cluster
                .unwrap_or_else(|| printed(&[], &[ApiFeature::Store]).cluster.unwrap());
            let on = [
                (ApiFeature::Configs, cluster.configs),
                (ApiFeature::Inventory, cluster.machines),
                (ApiFeature::Tokens, !cluster.bootstrap_tokens.is_empty()),
                (ApiFeature::ClientCa, cluster.client_ca),
                (
                    ApiFeature::McsCertificate,
                    cluster.mcs_certificate && settings.tls.serving_of_cluster,
                ),
                (ApiFeature::BootstrapKubeconfig, cluster.bootstrap_kubeconfig),
                (ApiFeature::Pointers, parse_controller_settings(&[], &[part]).pointers.enabled),
                (
                    ApiFeature::Approval,
                    approves && parse_controller_settings(&[], &[part]).approval.is_some(),
                ),
                (
                    ApiFeature::SecondStage,
                    parse_controller_settings(&[], &[part]).second_stage.is_some(),
                ),
                (ApiFeature::Store, matches!(settings.store.engine, EngineSettings::Kubernetes(_))),
                (ApiFeature::AttestedNodes, cluster.attested_nodes == AttestedNodes::Show),
            ];
            assert_eq!(on.map(|(of, _)| of), ApiFeature::ALL);
            for (of, is_on) in on {
                assert_eq!(is_on, of == part, "{of:?} with {part:?}");
            }
        }
    }

    #[test]
    fn features_default_to_the_worker_pool_only() {
        let settings = printed(&[], &[ApiFeature::Tokens, ApiFeature::Approval]);
        let workers = ["worker".to_owned()];
        assert_eq!(settings.cluster.unwrap().bootstrap_tokens, BTreeSet::from(workers.clone()));
        assert_eq!(settings.approval.pools, workers);
        assert_eq!(
            parse_controller_settings(&[], &[ApiFeature::Approval]).approval.unwrap().pools,
            workers
        );
    }

    fn controller_text(etcd: &[String], parts: &BTreeSet<ApiFeature>, pools: &BTreeSet<PoolName>) -> String {
        let (namespace, host) = (NAME.parse().unwrap(), "api-int.example.com".parse().unwrap());
        controller((&namespace, &host), etcd, parts, pools)
    }

    /// Parses the settings that are printed for the controller.
    fn parse_controller_settings(etcd: &[&str], parts: &[ApiFeature]) -> attest_controller::settings::ControllerSettings {
        let pools = ["worker", "master"].map(|name| name.parse().unwrap()).into();
        let etcd: Vec<String> = etcd.iter().map(|endpoint| (*endpoint).to_owned()).collect();
        let text = controller_text(&etcd, &parts.iter().copied().collect(), &pools);
        attest_controller::settings::ControllerSettings::parse(&text, Path::new("/etc/attest-controller/controller.toml")).unwrap()
    }

    #[test]
    fn gateway_and_controller_use_the_same_store() {
        for (etcd, parts) in [
            (&["https://etcd.example.com:2379"][..], &[ApiFeature::Approval][..]),
            (&[], &[ApiFeature::Approval, ApiFeature::Store]),
        ] {
            assert_eq!(
                parse_controller_settings(etcd, parts).store.engine,
                printed(etcd, parts).store.engine
            );
        }
    }

    #[test]
    fn attack_49_printed_settings_approve_only_attested_keys() {
        let text = controller_text(
            &[],
            &BTreeSet::from([ApiFeature::Approval]),
            &BTreeSet::from(["worker".parse().unwrap()]),
        );
        assert!(text.contains("\nkeys = \"attested\"\n"), "{text}");
        let approval = parse_controller_settings(&[], &[ApiFeature::Approval]).approval.unwrap();
        assert_eq!(approval.keys, attest_controller::settings::ApprovedKeys::Attested);
        assert!(printed(&[], &[ApiFeature::Approval]).approval.kubelet_keys);
    }

    #[test]
    fn controller_reaches_gateways_through_their_service() {
        let settings = parse_controller_settings(&[], &[ApiFeature::SecondStage]).second_stage.unwrap();
        assert_eq!(settings.url.as_str(), "https://api-int.example.com:22623/");
        assert_eq!(
            settings.address.unwrap(),
            format!("attest-gateway.attest-gateway.svc:{GATEWAY_PORT}")
        );
    }

    #[test]
    fn given_etcd_endpoints_select_the_etcd_engine() {
        let engine = printed(&["https://etcd.example.com:2379"], &[ApiFeature::Store]).store.engine;
        assert!(matches!(engine, EngineSettings::Etcd(_)));
    }
}
