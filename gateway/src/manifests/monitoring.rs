//! Objects with which the cluster's Prometheus scrapes the gateways and the controller, and alerts.

use super::GatewayImage;

const OBJECTS: &str = include_str!("../../dist/kubernetes/parts/monitoring/monitoring.yaml");
const RULES: &str = include_str!("../../dist/prometheus-rules.yaml");
/// Patch of the DaemonSet, by JSON Patch.
const PROXY: &str = include_str!("../../dist/kubernetes/overlays/openshift-monitoring/proxy.yaml");
/// The image in the patch, of a registry that cannot exist.
const NO_IMAGE: &str = "registry.invalid/kube-rbac-proxy:unset";

/// Address of the metrics in the pods, as the proxy names it.
pub(super) const LISTEN: &str = "127.0.0.1:9464";

/// Returns the objects apart from the pods' proxy.
pub(super) fn objects() -> [String; 2] {
    [OBJECTS.to_owned(), prometheus_rule()]
}

/// Returns the rules as an object for the Prometheus operator.
#[must_use]
pub fn prometheus_rule() -> String {
    let head = "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: attest-gateway\n  namespace: attest-gateway\nspec:\n";
    let rules = RULES.lines().map(|line| match line.is_empty() {
        true => "\n".to_owned(),
        false => format!("  {line}\n"),
    });
    format!("{head}{}", rules.collect::<String>())
}

/// Adds the proxy to the text of the DaemonSet.
pub(super) fn with_proxy(daemon_set: &str, image: &GatewayImage) -> String {
    let (containers, volumes) = (items("containers"), items("volumes"));
    let text = daemon_set.replacen("\n      volumes:\n", &format!("\n{containers}      volumes:\n"), 1);
    format!("{text}{volumes}").replace(NO_IMAGE, &image.to_string())
}

/// Returns the values that the patch appends to a list of the pod, as items of the list.
fn items(list: &str) -> String {
    let path = format!("path: /spec/template/spec/{list}/-\n  value:\n");
    let mut items = String::new();
    for operation in PROXY
        .split("- op: add\n")
        .filter_map(|operation| operation.trim_start().strip_prefix(&path))
    {
        let lines = operation.lines().take_while(|line| line.starts_with("    "));
        for (number, line) in lines.enumerate() {
            let line = line.get(4..).unwrap_or_default();
            items.push_str(if number == 0 { "        - " } else { "          " });
            items.push_str(line);
            items.push('\n');
        }
    }
    items
}
