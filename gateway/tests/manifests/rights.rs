//! Rights of the gateway's account: all that each part needs, and no others.

use std::collections::BTreeSet;

use attest_gateway::manifests::ApiFeature;
use cloud_fixtures::kubernetes::{KubernetesApi, ResourceKind};
use reqwest::Method;

use super::*;

/// Right: verbs, a resource, and the namespace, or `*` for the cluster.
type Right = (&'static str, &'static str, &'static str);
/// Complete table of the rights that each part gives.
const PARTS: [(&str, &[Right]); 11] = [
    (
        "configs",
        &[
            ("list watch", "controllerconfigs", "*"),
            ("list watch", "machineconfigpools", "*"),
            ("get list watch", "machineconfigs", "*"),
            ("list watch", "machineosbuilds", "*"),
            ("list watch", "machineosconfigs", "*"),
        ],
    ),
    (
        "inventory",
        &[("list watch", "machines", "openshift-machine-api"), ("list watch", "nodes", "*")],
    ),
    ("tokens", &[("list watch", "secrets", "kube-system")]),
    // One object by its name, which is below.
    ("client-ca", &[]),
    ("mcs-certificate", &[]),
    ("bootstrap-kubeconfig", &[]),
    // So are the Secrets.
    (
        "pointers",
        &[
            ("list", "machinesets", "openshift-machine-api"),
            ("list", "controlplanemachinesets", "openshift-machine-api"),
        ],
    ),
    (
        "approval",
        &[
            ("get list watch", "certificatesigningrequests", "*"),
            ("update", "certificatesigningrequests/approval", "*"),
            ("list watch", "machines", "openshift-machine-api"),
            ("get list watch", "nodes", "*"),
            ("list", "egressips", "*"),
            ("create", "events", "default"),
        ],
    ),
    (
        "second-stage",
        &[
            ("create delete get list update", "machineconfigs", "*"),
            ("get", "machineconfigpools", "*"),
            ("list", "nodes", "*"),
        ],
    ),
    ("store", &[("create delete get list patch", "secrets", "attest-gateway")]),
    (
        "attested-nodes",
        &[
            ("create get list patch watch", "attestednodes", "*"),
            ("patch", "attestednodes/status", "*"),
            ("create", "events", "default"),
        ],
    ),
];

const VERBS: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];
/// Namespaces that a role names, the gateway's own, that of the Machine Config Operator, and none.
const NAMESPACES: [&str; 6] = [
    "",
    "attest-gateway",
    "default",
    "kube-system",
    "openshift-machine-api",
    "openshift-machine-config-operator",
];

/// Service accounts of the two programs.
const GATEWAY: &str = "attest-gateway";
const CONTROLLER: &str = "attest-controller";
/// Parts that belong to the controller.
const OF_CONTROLLER: [&str; 3] = ["pointers", "approval", "second-stage"];
/// Right of the controller to create its lease, which has its name.
const LEASE: Right = ("create", "leases", "attest-gateway");

/// Returns an API that has the roles of these parts, and the token of the gateway's account there.
fn api(parts: &[&str]) -> (KubernetesApi, String) {
    api_of(GATEWAY, parts)
}

/// Returns the same, with the token of this account.
fn api_of(account: &str, parts: &[&str]) -> (KubernetesApi, String) {
    let api = KubernetesApi::start();
    for object in objects(&all(parts)) {
        api.put(object);
    }
    let token = api.token("attest-gateway", account);
    (api, token)
}

/// Returns all rights of an account, by trying every possible request.
fn allowed(account: &str, parts: &[&str]) -> BTreeSet<(&'static str, String, &'static str)> {
    let (api, token) = api_of(account, parts);
    let mut allowed = BTreeSet::new();
    for kind in ResourceKind::all() {
        for subresource in std::iter::once(None).chain(kind.subresources.iter().map(|sub| Some(*sub))) {
            let resource = subresource.map_or(kind.plural.to_owned(), |sub| format!("{}/{sub}", kind.plural));
            for namespace in NAMESPACES.iter().filter(|namespace| kind.namespaced || namespace.is_empty()) {
                for verb in VERBS {
                    let name = if matches!(verb, "list" | "watch" | "create") { "" } else { "any" };
                    if api.may(&token, verb, *kind, subresource, namespace, name) {
                        let place = if namespace.is_empty() { "*" } else { namespace };
                        allowed.insert((verb, resource.clone(), place));
                    }
                }
            }
        }
    }
    allowed
}

fn table_rules(part: &str) -> BTreeSet<(&'static str, String, &'static str)> {
    let (_, rights) = PARTS.iter().find(|(name, _)| *name == part).unwrap();
    let mut all = BTreeSet::new();
    for (verbs, resource, place) in *rights {
        // What may be done everywhere may be done in each namespace.
        let is_everywhere = *place == "*" && ResourceKind::by_plural(resource.split('/').next().unwrap()).namespaced;
        let places = NAMESPACES.iter().filter(|namespace| is_everywhere && !namespace.is_empty());
        for place in std::iter::once(place).chain(places) {
            all.extend(verbs.split(' ').map(|verb| (verb, (*resource).to_owned(), *place)));
        }
    }
    all
}

#[test]
fn each_part_has_exactly_its_rights() {
    let of_code: Vec<&str> = attest_gateway::manifests::ApiFeature::ALL
        .map(attest_gateway::manifests::ApiFeature::name)
        .into();
    assert_eq!(PARTS.map(|(part, _)| part).to_vec(), of_code);
    let lease = || BTreeSet::from([(LEASE.0, LEASE.1.to_owned(), LEASE.2)]);
    for account in [GATEWAY, CONTROLLER] {
        assert_eq!(allowed(account, &[]), BTreeSet::new(), "{account}");
    }
    for (part, _) in PARTS {
        let (own, other) = match OF_CONTROLLER.contains(&part) {
            true => (CONTROLLER, GATEWAY),
            false => (GATEWAY, CONTROLLER),
        };
        let mut expected = table_rules(part);
        expected.extend((own == CONTROLLER).then(lease).into_iter().flatten());
        assert_eq!(allowed(own, &[part]), expected, "{part}");
        assert_eq!(allowed(other, &[part]), BTreeSet::new(), "{part}");
    }
    let every: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
    let of = |controller: bool| every.iter().filter(move |part| OF_CONTROLLER.contains(part) == controller);
    assert_eq!(allowed(GATEWAY, &every), of(false).flat_map(|part| table_rules(part)).collect());
    // Both have one store.
    let of_controller = of(true).chain(["store"].iter()).flat_map(|part| table_rules(part));
    assert_eq!(allowed(CONTROLLER, &every), of_controller.chain(lease()).collect());
}

#[test]
fn the_document_lists_each_parts_rights() {
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/install-openshift.md")).unwrap();
    let (_, section) = document.split_once("\n## Rights\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), ApiFeature::ALL.len());
    for (part, row) in ApiFeature::ALL.into_iter().zip(rows) {
        assert!(row.starts_with(&format!("| `{}` | {} |", part.name(), part.purpose())), "{row}");
        for object in objects(&printed(&["--only", "gateway", "--image", IMAGE, "--with", part.name()])) {
            // The roles of the part, and neither of the constraints nor of the editors of AttestedNodes.
            let program = if part.is_of_controller() { CONTROLLER } else { GATEWAY };
            if object["metadata"]["name"] != format!("{program}-{}", part.name()) {
                continue;
            }
            for rule in object["rules"].as_array().into_iter().flatten() {
                let words = |field: &str| rule[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
                // What is written by itself is named without its object; signers, by what they sign.
                let resources = words("resources").map(|resource| resource.rsplit('/').next().unwrap());
                for word in resources.filter(|resource| *resource != "signers").chain(words("verbs")) {
                    assert!(row.contains(word), "{}: {word} is not in {row}", part.name());
                }
            }
        }
    }
}

#[test]
fn other_accounts_get_no_rights() {
    let every: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
    let (api, _) = api(&every);
    let others = [("attest-gateway", "default"), ("default", "attest-gateway")];
    for (namespace, name) in others {
        let token = api.token(namespace, name);
        for kind in ResourceKind::all() {
            assert!(!api.may(&token, "list", *kind, None, "", ""), "{namespace}/{name} {}", kind.plural);
        }
        assert!(!api.may(&token, "list", ResourceKind::by_plural("secrets"), None, "kube-system", ""));
    }
}

/// Objects that are readable by name only, while no others of their kind are: the part, then resource, namespace and name.
const BY_NAME: [(&str, &str, &str, &str); 7] = [
    ("client-ca", "configmaps", "openshift-config-managed", "csr-controller-ca"),
    ("mcs-certificate", "secrets", OPERATOR, "machine-config-server-tls"),
    ("mcs-certificate", "configmaps", OPERATOR, "machine-config-server-ca"),
    ("mcs-certificate", "configmaps", "kube-system", "root-ca"),
    ("bootstrap-kubeconfig", "secrets", OPERATOR, "node-bootstrapper-token"),
    (
        "bootstrap-kubeconfig",
        "configmaps",
        "openshift-config-managed",
        "kube-apiserver-server-ca",
    ),
    ("bootstrap-kubeconfig", "infrastructures", "", "cluster"),
];
const OPERATOR: &str = "openshift-machine-config-operator";

#[test]
fn named_objects_are_the_only_readable_ones() {
    let names = BY_NAME.map(|(_, _, _, name)| name);
    let others = ["", "machine-config-server-ca", "kube-apiserver-client-ca", "any"];
    for part in ["client-ca", "mcs-certificate", "bootstrap-kubeconfig"] {
        let (api, token) = api(&[part]);
        for resource in ["secrets", "configmaps", "infrastructures"] {
            let kind = ResourceKind::by_plural(resource);
            let namespaces = NAMESPACES.into_iter().chain(["openshift-config-managed"]);
            for namespace in namespaces.filter(|namespace| kind.namespaced || namespace.is_empty()) {
                for name in names.into_iter().chain(others) {
                    for verb in VERBS {
                        // A list or a watch by this field selector has its name.
                        let expected = matches!(verb, "list" | "watch") && BY_NAME.contains(&(part, resource, namespace, name));
                        assert_eq!(
                            api.may(&token, verb, kind, None, namespace, name),
                            expected,
                            "{part}: {verb} {resource} {namespace}/{name}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn pointer_rights_cover_two_user_data_secrets() {
    let (api, token) = api_of(CONTROLLER, &["pointers"]);
    let may = |verb: &str, namespace: &str, name: &str| api.may(&token, verb, ResourceKind::by_plural("secrets"), None, namespace, name);
    for verb in VERBS {
        let expected = matches!(verb, "get" | "patch");
        for name in ["worker-user-data", "master-user-data"] {
            assert_eq!(may(verb, "openshift-machine-api", name), expected, "{verb} {name}");
            assert!(!may(verb, "openshift-machine-config-operator", name), "{verb} {name}");
        }
        for name in ["worker-user-data-managed", "master-user-data-managed"] {
            assert_eq!(may(verb, "openshift-machine-api", name), verb == "get", "{verb} {name}");
        }
        for name in ["", "infra-user-data", "any"] {
            assert!(!may(verb, "openshift-machine-api", name), "{verb} {name}");
        }
    }
}

#[test]
fn the_controller_renews_its_own_lease_and_no_other() {
    let (api, token) = api_of(CONTROLLER, &["approval"]);
    for verb in VERBS {
        for (namespace, name) in [
            ("attest-gateway", "attest-controller"),
            ("attest-gateway", "any"),
            ("default", "attest-controller"),
        ] {
            let is_own = namespace == "attest-gateway" && name == "attest-controller";
            let expected = match verb {
                "get" | "update" => is_own,
                // It has no name yet.
                "create" => namespace == "attest-gateway",
                _ => false,
            };
            let may = api.may(&token, verb, ResourceKind::by_plural("leases"), None, namespace, name);
            assert_eq!(may, expected, "{verb} {namespace}/{name}");
        }
    }
}

/// The API's admission does RBAC's check of signers; here the roles alone determine whose certificates are approved.
#[test]
fn approval_rights_name_exactly_two_signers() {
    for part in PARTS.map(|(part, _)| part) {
        let objects = objects(&all(&[part]));
        let rules = objects.iter().filter_map(|object| object["rules"].as_array()).flatten();
        let signers: Vec<&Value> = rules
            .filter(|rule| rule["resources"].as_array().unwrap().contains(&"signers".into()))
            .collect();
        if part != "approval" {
            assert!(signers.is_empty(), "{part}");
            continue;
        }
        let names = ["kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"];
        assert_eq!(signers.len(), 1);
        assert_eq!(signers[0]["resourceNames"], serde_json::json!(names));
        assert_eq!(signers[0]["verbs"], serde_json::json!(["approve"]));
    }
}

/// The policy states that it was tested with an implementation of CEL. This test verifies that it is unchanged since then, and that it
/// applies to the account with the role.
#[test]
fn admission_policy_limits_second_stage_machine_config_writes() {
    for (part, _) in PARTS {
        let objects = objects(&all(&[part]));
        let writes = objects.iter().any(|object| {
            let rules = object["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
            let of = |rule: &Value, list: &str, word: &str| rule[list].as_array().unwrap().contains(&word.into());
            rules.iter().any(|rule| {
                of(rule, "resources", "machineconfigs") && ["create", "update", "delete"].iter().any(|verb| of(rule, "verbs", verb))
            })
        });
        let policies: Vec<&Value> = objects
            .iter()
            .filter(|object| object["kind"] == "ValidatingAdmissionPolicy")
            .collect();
        assert_eq!(policies.len(), usize::from(writes), "{part}");
        let Some(policy) = policies.first() else { continue };
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let condition = &spec["matchConditions"][0]["expression"];
        assert_eq!(
            condition,
            "request.userInfo.username == 'system:serviceaccount:attest-gateway:attest-controller'"
        );
        let rule = &spec["matchConstraints"]["resourceRules"][0];
        assert_eq!(rule["resources"], serde_json::json!(["machineconfigs"]));
        assert_eq!(rule["operations"], serde_json::json!(["CREATE", "UPDATE", "DELETE"]));
        let expression = spec["validations"][0]["expression"].as_str().unwrap();
        for words in [
            "[object, oldObject].all(config, config == null || (",
            "matches('^rendered-.+-pre-approved-[0-9a-f]+$') &&",
            "['app.kubernetes.io/component'] == 'second-stage' &&",
            "!('machineconfiguration.openshift.io/role' in config.metadata.labels)))",
        ] {
            assert!(expression.contains(words), "{words} is not in {expression}");
        }
        let binding = object(&objects, "ValidatingAdmissionPolicyBinding", "attest-controller-second-stage");
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        assert_eq!(binding["spec"]["validationActions"], serde_json::json!(["Deny"]));
    }
}

/// `kubectl apply` continues after a kind that the API does not know. The role would then be effective without the policy.
#[test]
fn render_warns_of_rights_that_need_admission_policies() {
    let said = |part: &str, only: &str| {
        let output = manifests(&["--only", only, "--image", IMAGE, "--host", "api-int.example.com", "--with", part]);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let second_stage = said("second-stage", "gateway");
    for words in [
        "Kubernetes 1.30",
        "can write any MachineConfig",
        "kubectl api-resources --api-group=admissionregistration.k8s.io",
    ] {
        assert!(second_stage.contains(words), "{words} is not in {second_stage}");
    }
    assert!(!said("configs", "gateway").contains("ValidatingAdmissionPolicy"));
    // Bootstrap tokens are followed, and what they earn is the pools' to say.
    let tokens = said("tokens", "settings");
    assert!(
        tokens.contains("the printed pools accept no tokens") && tokens.contains("token = \"full\""),
        "{tokens}"
    );
    assert!(!said("configs", "settings").contains("the printed pools accept no tokens"));
}

/// The administrator decides who may edit the machines' objects: the role exists, and no account has it. It gives no right to write an
/// object's status.
#[test]
fn attested_nodes_editor_role_is_unbound_by_default() {
    const EDITORS: &str = "attest-gateway-attested-nodes-editors";
    let objects = objects(&all(&["attested-nodes"]));
    object(&objects, "ClusterRole", EDITORS);
    assert!(objects.iter().all(|object| object["roleRef"]["name"] != EDITORS));
    let (api, _) = api(&["attested-nodes"]);
    let group = "rbac.authorization.k8s.io";
    let role = serde_json::json!({"apiGroup": group, "kind": "ClusterRole", "name": EDITORS});
    let subjects = serde_json::json!([{"kind": "ServiceAccount", "namespace": "default", "name": "editor"}]);
    let metadata = serde_json::json!({"name": "editors"});
    let version = format!("{group}/v1");
    api.put(
        serde_json::json!({"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role, "subjects": subjects}),
    );
    let (token, nodes) = (api.token("default", "editor"), ResourceKind::by_plural("attestednodes"));
    for verb in VERBS {
        assert_eq!(api.may(&token, verb, nodes, None, "", "any"), verb != "delete", "{verb}");
        assert!(!api.may(&token, verb, nodes, Some("status"), "", "any"), "{verb}");
    }
}

/// The rules of all roles have no wildcard.
#[test]
fn no_role_has_a_wildcard() {
    let every: Vec<&str> = PARTS.iter().map(|(part, _)| *part).collect();
    for object in objects(&all(&every)) {
        let rules = object["rules"].to_string();
        assert!(!rules.contains('*'), "{}", name(&object));
    }
}

#[tokio::test]
async fn rbac_allows_exactly_the_expected_requests() {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let (api, token) = api(&["tokens", "inventory"]);
    let ca = reqwest::Certificate::from_pem(api.ca_pem().as_bytes()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([ca]).no_proxy().build().unwrap();
    for (method, path, expected) in [
        (Method::GET, "/api/v1/namespaces/kube-system/secrets", 200),
        (Method::GET, "/api/v1/namespaces/kube-system/secrets/any", 403),
        (Method::GET, "/api/v1/secrets", 403),
        (Method::GET, "/api/v1/namespaces/attest-gateway/secrets", 403),
        (Method::DELETE, "/api/v1/namespaces/kube-system/secrets/any", 403),
        (Method::GET, "/api/v1/nodes", 200),
        (Method::GET, "/api/v1/nodes/any", 403),
        (Method::GET, "/apis/machine.openshift.io/v1beta1/machines", 403),
        (
            Method::GET,
            "/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api/machines",
            200,
        ),
    ] {
        let request = client.request(method.clone(), format!("{}{path}", api.url())).bearer_auth(&token);
        assert_eq!(request.send().await.unwrap().status().as_u16(), expected, "{method} {path}");
    }
}
