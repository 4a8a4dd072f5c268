//! The same objects as folders for kustomize, for whoever keeps a cluster in files: what `gateway/dist/kubernetes` has.
//!
//! `bases` and `patchesStrategicMerge` are the words that every release of it knows, from kubectl 1.14 on.

use std::collections::BTreeSet;

use super::{
    BadDoor, BadValue, Door, InCluster, NAME, Part, Platform, USER, daemon_set, documents, machine_config, namespace, roles,
    security_context,
};

/// Where no registry can be, so that nobody's image is taken for ours: `images` of an overlay says the right one.
const NOWHERE: &str = "registry.invalid/attest-gateway";

/// Why it could not be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KustomizeError {
    #[error(transparent)]
    Value(#[from] BadValue),
    #[error(transparent)]
    Door(#[from] BadDoor),
}

/// Each file's path, and what is in it.
///
/// # Errors
/// None: what it is made of is valid.
pub fn files() -> Result<Vec<(String, String)>, KustomizeError> {
    let gateway = InCluster {
        namespace: NAME.parse()?,
        image: format!("{NOWHERE}:unset").parse()?,
        pools: BTreeSet::from(["worker".parse()?]),
        parts: BTreeSet::new(),
    };
    let namespace = &gateway.namespace;
    let mut files = vec![
        ("base/namespace.yaml".to_owned(), namespace::namespace(namespace)),
        ("base/network-policy.yaml".to_owned(), namespace::network_policy(namespace)),
        ("base/service-account.yaml".to_owned(), roles::account(namespace)),
        ("base/daemon-set.yaml".to_owned(), daemon_set::daemon_set(&gateway)),
        (
            "overlays/openshift/security-context.yaml".to_owned(),
            documents(&security_context::constraints(namespace)),
        ),
        ("overlays/openshift-api/token.yaml".to_owned(), token(&gateway)),
    ];
    let base = ["namespace.yaml", "network-policy.yaml", "service-account.yaml", "daemon-set.yaml"];
    files.push(kustomization(
        "base",
        "The gateway on control-plane hosts, without its settings, which are yours.",
        &[],
        &base,
        &[],
    ));
    let openshift = "The base, and what OpenShift lets its pods have of their hosts.";
    files.push(kustomization(
        "overlays/openshift",
        openshift,
        &["../../base"],
        &["security-context.yaml"],
        &[],
    ));
    let parts: Vec<String> = Part::ALL.iter().map(|part| format!("../../parts/{}", part.name())).collect();
    let bases: Vec<&str> = std::iter::once("../openshift").chain(parts.iter().map(String::as_str)).collect();
    let all = "With everything that a gateway can ask the API. Take out the parts that yours does not use.";
    files.push(kustomization("overlays/openshift-api", all, &bases, &[], &["token.yaml"]));
    for part in Part::ALL {
        let folder = format!("parts/{}", part.name());
        files.push((format!("{folder}/roles.yaml"), documents(&roles::of_part(part, namespace))));
        files.push(kustomization(&folder, part.purpose(), &[], &["roles.yaml"], &[]));
    }
    let door = machine_config(&Door::new(Platform::BareMetal, &[], USER)?);
    files.push(("door/machine-config.yaml".to_owned(), door));
    let after = "Not before each control-plane host has a gateway. Where a balancer leaves its own address in packets, as on Google Cloud: `attest-gateway manifests`.";
    files.push(kustomization("door", after, &[], &["machine-config.yaml"], &[]));
    Ok(files)
}

/// What gives the pods their account's token.
fn token(gateway: &InCluster) -> String {
    format!(
        "apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {NAME}
  namespace: {}
spec:
  template:
    spec:
      automountServiceAccountToken: true
",
        gateway.namespace
    )
}

fn kustomization(folder: &str, what: &str, bases: &[&str], resources: &[&str], patches: &[&str]) -> (String, String) {
    let mut text = format!("# {what}\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n");
    for (field, names) in [("bases", bases), ("resources", resources), ("patchesStrategicMerge", patches)] {
        if !names.is_empty() {
            let lines: Vec<String> = names.iter().map(|name| format!("  - {name}\n")).collect();
            text.push_str(&format!("{field}:\n{}", lines.concat()));
        }
    }
    (format!("{folder}/kustomization.yaml"), text)
}
