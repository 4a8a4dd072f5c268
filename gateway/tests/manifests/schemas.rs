//! Objects, converted to the API's types and back, which loses unknown fields.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;

/// Converts an object to a type and back. Fails if the type rejects or changes it.
fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Result<(), String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let again = serde_json::to_value(typed).unwrap();
    match &again == object {
        true => Ok(()),
        false => Err(format!("{again:#}\nis not\n{object:#}")),
    }
}

/// `SecurityContextConstraints` of `security.openshift.io/v1`, by openshift/api, `security/v1/types.go`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SecurityContextConstraints {
    api_version: String,
    kind: String,
    metadata: Metadata,
    allow_host_dir_volume_plugin: bool,
    #[serde(rename = "allowHostIPC")]
    allow_host_ipc: bool,
    allow_host_network: bool,
    #[serde(rename = "allowHostPID")]
    allow_host_pid: bool,
    allow_host_ports: bool,
    allow_privilege_escalation: bool,
    allow_privileged_container: bool,
    allowed_capabilities: Vec<String>,
    default_add_capabilities: Option<Vec<String>>,
    default_allow_privilege_escalation: bool,
    forbidden_sysctls: Vec<String>,
    fs_group: Strategy,
    groups: Vec<String>,
    priority: u32,
    read_only_root_filesystem: bool,
    required_drop_capabilities: Vec<String>,
    run_as_user: Strategy,
    #[serde(rename = "seLinuxContext")]
    se_linux_context: Strategy,
    seccomp_profiles: Vec<String>,
    supplemental_groups: Strategy,
    users: Vec<String>,
    volumes: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Strategy {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ranges: Vec<Range>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    min: u32,
    max: u32,
}

/// `MachineConfig` of `machineconfiguration.openshift.io/v1`, with the used fields only: openshift/api, `machineconfiguration/v1/types.go`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MachineConfig {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: MachineConfigSpec,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineConfigSpec {
    config: Value,
}

/// `ServiceMonitor` and `PrometheusRule` of `monitoring.coreos.com/v1`, with the used fields only:
/// <https://github.com/prometheus-operator/prometheus-operator/blob/main/Documentation/api-reference/api.md>.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Monitored<S> {
    api_version: String,
    kind: String,
    metadata: NamespacedMetadata,
    spec: S,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespacedMetadata {
    name: String,
    namespace: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ServiceMonitorSpec {
    job_label: String,
    selector: MatchLabels,
    endpoints: Vec<ScrapedEndpoint>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MatchLabels {
    match_labels: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScrapedEndpoint {
    port: String,
    interval: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scheme: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authorization: Option<SafeAuthorization>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls_config: Option<SafeTlsConfig>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SafeAuthorization {
    #[serde(rename = "type")]
    kind: String,
    credentials: KeySelector,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SafeTlsConfig {
    ca: SecretOrConfigMap,
    server_name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SecretOrConfigMap {
    config_map: KeySelector,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeySelector {
    name: String,
    key: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrometheusRuleSpec {
    groups: Vec<RuleGroup>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleGroup {
    name: String,
    rules: Vec<AlertRule>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertRule {
    alert: String,
    expr: String,
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    lasts: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn checked(object: &Value) -> Result<(), String> {
    match object["kind"].as_str().unwrap() {
        "Namespace" => through::<Namespace>(object),
        "NetworkPolicy" => through::<NetworkPolicy>(object),
        "Service" => through::<Service>(object),
        "ServiceAccount" => through::<ServiceAccount>(object),
        "ConfigMap" => through::<ConfigMap>(object),
        "DaemonSet" => through::<DaemonSet>(object),
        "Deployment" => through::<Deployment>(object),
        "Role" => through::<Role>(object),
        "RoleBinding" => through::<RoleBinding>(object),
        "ClusterRole" => through::<ClusterRole>(object),
        "ClusterRoleBinding" => through::<ClusterRoleBinding>(object),
        "ValidatingAdmissionPolicy" => through::<ValidatingAdmissionPolicy>(object),
        "ValidatingAdmissionPolicyBinding" => through::<ValidatingAdmissionPolicyBinding>(object),
        "SecurityContextConstraints" => through::<SecurityContextConstraints>(object),
        "CustomResourceDefinition" => through::<CustomResourceDefinition>(object),
        "MachineConfig" => through::<MachineConfig>(object),
        "Secret" => through::<Secret>(object),
        "ServiceMonitor" => through::<Monitored<ServiceMonitorSpec>>(object),
        "PrometheusRule" => through::<Monitored<PrometheusRuleSpec>>(object),
        other => Err(format!("{other}: no schema is known")),
    }
}

#[test]
fn objects_have_only_fields_that_the_api_knows() {
    let parts = attest_gateway::manifests::ApiFeature::ALL.map(attest_gateway::manifests::ApiFeature::name);
    let monitored = ["--only", "gateway", "--image", IMAGE, "--metrics-proxy", IMAGE];
    for object in objects(&all(&parts)).into_iter().chain(objects(&printed(&monitored))) {
        if let Err(problem) = checked(&object) {
            panic!("{}: {problem}", name(&object));
        }
    }
}

/// The schema fulfils the API's requirements
/// (<https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>):
/// each part has a type. It also fulfils ours: each part has a limit.
#[test]
fn the_schema_of_attested_nodes_is_structural_and_has_limits() {
    fn check(schema: &Value, path: &str) {
        for word in [
            "$ref",
            "definitions",
            "dependencies",
            "additionalProperties",
            "x-kubernetes-preserve-unknown-fields",
        ] {
            assert!(schema[word].is_null(), "{path}: {word}");
        }
        match schema["type"].as_str() {
            Some("object") => {
                for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                    check(schema, &format!("{path}.{name}"));
                }
            }
            Some("array") => {
                assert!(schema["maxItems"].is_u64(), "{path}");
                check(&schema["items"], &format!("{path}[]"));
            }
            Some("string") => {
                let has_end = schema["maxLength"].is_u64() || schema["enum"].is_array() || schema["format"] == "date-time";
                assert!(has_end || [".apiVersion", ".kind"].contains(&path), "{path}");
            }
            Some("integer" | "boolean") => {}
            other => panic!("{path}: type {other:?}"),
        }
    }
    let definition = object(
        &objects(&all(&["attested-nodes"])),
        "CustomResourceDefinition",
        "attestednodes.attest-gateway.internal",
    );
    let versions = definition["spec"]["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 1);
    check(&versions[0]["schema"]["openAPIV3Schema"], "");
    // Of an object's metadata a schema may say nothing but name and generateName.
    assert_eq!(
        versions[0]["schema"]["openAPIV3Schema"]["properties"]["metadata"],
        json!({"type": "object"})
    );
}

#[test]
fn schema_check_detects_unknown_fields() {
    let objects = objects(&all(&[]));
    let daemon_set = object(&objects, "DaemonSet", "attest-gateway");
    let check = |object: &Value, pointer: &str, key: &str, value: Value| {
        let mut altered = object.clone();
        altered.pointer_mut(pointer).unwrap()[key] = value;
        assert!(checked(&altered).is_err(), "{pointer}/{key}");
    };
    check(&daemon_set, "/spec/template/spec", "hostNetworks", json!(true));
    check(&daemon_set, "/spec/template/spec", "hostNetwork", json!("true"));
    check(
        &daemon_set,
        "/spec/template/spec/containers/0/securityContext",
        "readonlyRootFilesystem",
        json!(true),
    );
    check(&daemon_set, "/spec/template/spec/containers/0/livenessProbe", "period", json!(1));
    check(&daemon_set, "/spec/updateStrategy/rollingUpdate", "maxUnavailable", json!(1.5));
    check(&object(&objects, "Namespace", "attest-gateway"), "/metadata", "label", json!({}));
    check(
        &object(&objects, "Role", "attest-gateway-scc"),
        "/rules/0",
        "resourceName",
        json!(["x"]),
    );
    check(
        &object(&objects, "NetworkPolicy", "attest-gateway-nothing-else"),
        "/spec",
        "policyType",
        json!([]),
    );
    check(
        &object(&objects, "SecurityContextConstraints", "attest-gateway"),
        "",
        "allowHostPort",
        json!(true),
    );
}
