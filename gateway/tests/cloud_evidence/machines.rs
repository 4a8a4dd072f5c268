//! Machine objects of the cluster as a pool's inventory, read by the real program from a Kubernetes API. They say which of an account's
//! machines belong to the cluster.

use std::time::Instant;

use attest::Kind;
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use serde_json::{Value, json};

use super::machine::Machine;
use super::site::{self, AZURE_RULES, DOCUMENT, GCP, TPM};
use crate::support::{Answer, Gateway, LIMIT, bearer, digest, tpm};

const GCP_IDENTITY: &str = "gcp:example-project/152986662232938449";
const AWS_IDENTITY: &str = "aws:123456789012/i-0123456789abcdef0";
pub const GCP_PROVIDER_ID: &str = "gce://example-project/europe-west3-a/worker-7";
pub const AWS_PROVIDER_ID: &str = "aws:///eu-central-1a/i-0123456789abcdef0";
const NAMESPACE: &str = "openshift-machine-api";
/// Pool section that accepts machines of the cluster, and refuses others at once.
const MACHINES: &str = "[inventory]\nmachines = { machine_sets = [\"worker-*\"], wait_seconds = 0 }\n";
const PATIENT: &str = "[inventory]\nmachines = { machine_sets = [\"worker-*\"] }\n";
const CONTROL_PLANE: &str = "[inventory]\nmachines = { control_plane = true, wait_seconds = 0 }\n";
const BOTH: &str = r#"[["gcp"], ["aws-identity-document"]]"#;

/// Starts a cluster's API, which the gateway may ask for Machine objects of one namespace and for Nodes, and for nothing else.
pub fn api() -> KubernetesApi {
    let api = KubernetesApi::start();
    let (rbac, gateway) = (
        "rbac.authorization.k8s.io",
        json!([{"kind": "ServiceAccount", "name": "gateway", "namespace": "attest-gateway"}]),
    );
    let role = |kind: &str, namespace: Value, group: &str, resource: &str| {
        let metadata = json!({"name": "attest-gateway-machines", "namespace": namespace});
        let rules = json!([{"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]}]);
        let role_ref = json!({"apiGroup": rbac, "kind": kind, "name": "attest-gateway-machines"});
        api.put(json!({"apiVersion": format!("{rbac}/v1"), "kind": kind, "metadata": metadata, "rules": rules}));
        let kind = format!("{kind}Binding");
        api.put(json!({"apiVersion": format!("{rbac}/v1"), "kind": kind, "metadata": metadata, "roleRef": role_ref, "subjects": gateway}));
    };
    role("Role", json!(NAMESPACE), "machine.openshift.io", "machines");
    role("ClusterRole", Value::Null, "", "nodes");
    api
}

/// Returns a gateway that watches this API for machines, not yet started.
pub fn init(api: &KubernetesApi, accepts: &str, rules: &[&str]) -> Gateway {
    let gateway = site::init(accepts, rules);
    site::write(&gateway, "kubeconfig", api.kubeconfig(&api.token("attest-gateway", "gateway")));
    let cluster = "[cluster]\napi = \"kubeconfig\"\nconfigs = false\nmachines = true\n";
    gateway.settings(&format!("{}{cluster}", site::KEYS_OF_FILE));
    gateway
}

/// Returns a Machine object whose instance runs and has not joined.
fn object(name: &str, provider_id: &str) -> Value {
    json!({
        "apiVersion": "machine.openshift.io/v1beta1",
        "kind": "Machine",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"machine.openshift.io/cluster-api-machine-role": "worker", "machine.openshift.io/cluster-api-machine-type": "worker"},
            "ownerReferences": [
                {"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", "name": "worker-a", "uid": "s", "controller": true},
            ],
        },
        "spec": {"providerID": provider_id},
        "status": {"phase": "Provisioned"},
    })
}

pub fn put(api: &KubernetesApi, name: &str, provider_id: &str, change: impl Fn(&mut Value)) {
    let mut object = object(name, provider_id);
    change(&mut object);
    api.put(object);
}

fn make_control_plane(object: &mut Value) {
    let metadata = &mut object["metadata"];
    metadata["labels"]["machine.openshift.io/cluster-api-machine-role"] = json!("master");
    metadata["ownerReferences"][0]["kind"] = json!("ControlPlaneMachineSet");
    metadata["ownerReferences"][0]["apiVersion"] = json!("machine.openshift.io/v1");
}

/// Attests until the gateway has received the change and answers with this code or `trusted`.
async fn comes_to(gateway: &Gateway, machine: &Machine, kind: Kind, expect: &str) -> Answer {
    let begun = Instant::now();
    loop {
        let answer = machine.attest(gateway, &[kind]).await;
        let found = if answer.status == 200 {
            "trusted".to_owned()
        } else {
            answer.code()
        };
        if found == expect {
            return answer;
        }
        assert!(begun.elapsed() < LIMIT, "{found} in place of {expect}");
    }
}

/// Returns records with all fields that come from a Machine object.
pub async fn records() -> Vec<Value> {
    let api = api();
    let any = "[inventory]\nmachines = { machine_sets = [\"worker-*\"], control_plane = true, wait_seconds = 0 }\n";
    let mut gateway = init(&api, r#"[["gcp"]]"#, &[GCP, any]);
    site::pool(&gateway, "master", r#"[["gcp"]]"#, &[GCP, CONTROL_PLANE]);
    site::configs(&gateway, "master");
    gateway.run();
    put(&api, "worker-7", GCP_PROVIDER_ID, |object| {
        object["status"] = json!({"phase": "Failed", "nodeRef": {"name": "worker-7"}});
    });
    comes_to(&gateway, &Machine::new(), Kind::Gcp, "instance-machine-ends").await;
    put(&api, "worker-7", GCP_PROVIDER_ID, make_control_plane);
    comes_to(&gateway, &Machine::new(), Kind::Gcp, "instance-of-two-pools").await;
    gateway.records()
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_accepts_unjoined_instances_with_a_machine_object() {
    let api = api();
    let mut gateway = init(&api, BOTH, &[GCP, DOCUMENT, MACHINES]);
    put(&api, "worker-7", GCP_PROVIDER_ID, |_| {});
    put(&api, "worker-8", AWS_PROVIDER_ID, |_| {});
    gateway.run();
    for (kind, identity, name) in [
        (Kind::Gcp, GCP_IDENTITY, "worker-7"),
        (Kind::AwsIdentityDocument, AWS_IDENTITY, "worker-8"),
    ] {
        let answer = comes_to(&gateway, &Machine::new(), kind, "trusted").await;
        let record = site::trusted(&gateway, &answer, identity, &[kind]);
        assert!(
            record["reason"]
                .as_str()
                .unwrap()
                .ends_with(&format!("the cluster's Machine object {name} names it")),
            "{record}"
        );
        assert_eq!(record["basis"]["machine"]["objects"][0]["name"], name);
        site::gets_the_full_config(&gateway, &answer).await;
        // It is decided again by what the cluster said then: by anything else it comes out otherwise.
        for (pointer, value, code) in [
            (
                "/objects/0/provider_id",
                json!("aws:///eu-central-1a/i-1"),
                "instance-not-in-inventory",
            ),
            ("/objects/0/machine_set", json!("infra"), "instance-of-another-set"),
            ("/objects/0/ends", json!(true), "instance-machine-ends"),
            ("/objects/0/node", json!("n"), "instance-has-node"),
            ("/other_pool", json!("infra"), "instance-of-two-pools"),
            ("/of/machine_sets", json!(["infra"]), "instance-of-another-set"),
            ("/objects", json!([]), "instance-not-in-inventory"),
        ] {
            let mut altered = record.clone();
            let (member, name) = pointer.rsplit_once('/').unwrap();
            altered["basis"]["machine"].pointer_mut(member).unwrap()[name] = value;
            assert_eq!(site::replay_code(&gateway, &altered), code, "{pointer}");
        }
        let other = Machine::new().but(|machine| {
            machine.google.instance_name = "worker-9".to_owned();
            machine.google.instance_id = 7;
            machine.aws.instance_id = "i-00000000000000007".to_owned();
        });
        let answer = other.attest(&gateway, &[kind]).await;
        site::refused(&gateway, &answer, "instance-not-in-inventory");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_each_disqualifying_machine_object_field_refuses() {
    let api = api();
    let mut gateway = init(&api, r#"[["gcp"]]"#, &[GCP, MACHINES]);
    gateway.run();
    let machine = Machine::new();
    let check = async |expect: &str, change: &dyn Fn(&mut Value)| {
        put(&api, "worker-7", GCP_PROVIDER_ID, change);
        let answer = comes_to(&gateway, &machine, Kind::Gcp, expect).await;
        site::refused(&gateway, &answer, expect);
        put(&api, "worker-7", GCP_PROVIDER_ID, |_| {});
        comes_to(&gateway, &machine, Kind::Gcp, "trusted").await;
    };
    comes_to(&gateway, &machine, Kind::Gcp, "instance-not-in-inventory").await;
    check("instance-not-in-inventory", &|object| {
        object["spec"]["providerID"] = json!("gce://example-project/europe-west3-b/worker-7")
    })
    .await;
    check("instance-not-in-inventory", &|object| object["spec"] = json!({})).await;
    check("instance-of-another-set", &|object| {
        object["metadata"]["ownerReferences"][0]["name"] = json!("infra-a")
    })
    .await;
    check("instance-of-another-set", &|object| {
        object["metadata"]["ownerReferences"] = json!([])
    })
    .await;
    check("instance-of-another-set", &|object| {
        object["metadata"]["labels"]["machine.openshift.io/cluster-api-machine-role"] = json!("master");
    })
    .await;
    check("instance-machine-ends", &|object| {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z")
    })
    .await;
    check("instance-machine-ends", &|object| object["status"]["phase"] = json!("Failed")).await;
    check("instance-has-node", &|object| {
        object["status"]["nodeRef"] = json!({"kind": "Node", "name": "worker-7"})
    })
    .await;
    check("instance-older-than-machine", &|object| {
        object["metadata"]["creationTimestamp"] = json!("2100-01-01T00:00:00Z")
    })
    .await;

    // A Node that the object does not say yet.
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"providerID": GCP_PROVIDER_ID}}));
    let answer = comes_to(&gateway, &machine, Kind::Gcp, "instance-has-node").await;
    site::refused(&gateway, &answer, "instance-has-node");
    api.remove("nodes", "", "n");
    comes_to(&gateway, &machine, Kind::Gcp, "trusted").await;

    put(&api, "worker-7-again", GCP_PROVIDER_ID, |_| {});
    let answer = comes_to(&gateway, &machine, Kind::Gcp, "instance-named-twice").await;
    let record = site::refused(&gateway, &answer, "instance-named-twice");
    assert_eq!(record["basis"]["machine"]["objects"].as_array().unwrap().len(), 2);
    // One of another namespace is nobody's.
    put(&api, "worker-7-again", GCP_PROVIDER_ID, |object| {
        object["metadata"]["namespace"] = json!("default")
    });
    api.remove("machines", NAMESPACE, "worker-7-again");
    comes_to(&gateway, &machine, Kind::Gcp, "trusted").await;
    api.remove("machines", NAMESPACE, "worker-7");
    let answer = comes_to(&gateway, &machine, Kind::Gcp, "instance-not-in-inventory").await;
    site::refused(&gateway, &answer, "instance-not-in-inventory");
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_while_the_machine_object_is_pending() {
    let api = api();
    let mut gateway = init(&api, r#"[["gcp"]]"#, &[GCP, PATIENT]);
    gateway.run();
    let answer = comes_to(&gateway, &Machine::new(), Kind::Gcp, "machine-pending").await;
    answer.refused(503, "machine-pending");
    assert_eq!(answer.header("retry-after"), Some("5"));
    // Nothing is decided by that: nothing is recorded, and nobody has the instance.
    assert_eq!(gateway.records(), Vec::<Value>::new());
    assert!(!gateway.command(&["machines", "list"]).contains(GCP_IDENTITY));
    // Copies of what was verified are not verified again.
    let machine = Machine::new();
    let asked = machine.ask(&gateway, &[Kind::Gcp]).await;
    let evidence = machine.evidence(&asked);
    asked.show(&gateway, evidence.clone()).await.refused(503, "machine-pending");
    for _ in 0..20 {
        asked.show(&gateway, evidence.clone()).await.refused(403, "challenge-spent");
    }
    put(&api, "worker-7", GCP_PROVIDER_ID, |_| {});
    let answer = comes_to(&gateway, &Machine::another(), Kind::Gcp, "trusted").await;
    site::trusted(&gateway, &answer, GCP_IDENTITY, &[Kind::Gcp]);
}

#[tokio::test(flavor = "multi_thread")]
async fn uses_cached_machine_objects_during_an_api_outage() {
    let api = api();
    let mut gateway = init(&api, r#"[["gcp"]]"#, &[GCP, MACHINES]);
    put(&api, "worker-7", GCP_PROVIDER_ID, |_| {});
    gateway.run();
    let machine = Machine::new();
    let answer = comes_to(&gateway, &machine, Kind::Gcp, "trusted").await;
    let ticket = bearer(&answer.ticket());
    api.disturb(Disturbance::Down);
    gateway.line(|line| line.contains("cluster: watch of ") && line.contains(" lost, using cached state"));
    let answer = machine.attest(&gateway, &[Kind::Gcp]).await;
    site::trusted(&gateway, &answer, GCP_IDENTITY, &[Kind::Gcp]);

    // A gateway that has been told nothing gives nothing, and nothing less either.
    gateway.terminate();
    gateway.wait();
    gateway.run();
    let answer = machine.attest(&gateway, &[Kind::Gcp]).await;
    answer.refused(503, "machines-unavailable");
    gateway.config("/config/worker", &[&ticket]).await.check_retry();
    for history in [RestartHistory::Kept, RestartHistory::Lost] {
        api.restart(history);
        comes_to(&gateway, &machine, Kind::Gcp, "trusted").await;
    }
    let full = gateway.rendered("worker", "full");
    gateway.config("/config/worker", &[&ticket]).await.is_config(&full);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_deleted_or_joined_machines_lose_their_tickets() {
    let api = api();
    let mut gateway = init(&api, r#"[["gcp"]]"#, &[GCP, MACHINES]);
    put(&api, "worker-7", GCP_PROVIDER_ID, |_| {});
    gateway.run();
    let machine = Machine::new();
    let ticket = bearer(&comes_to(&gateway, &machine, Kind::Gcp, "trusted").await.ticket());
    let withdrawn = async || {
        gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-withdrawn");
    };
    put(&api, "worker-7", GCP_PROVIDER_ID, |object| {
        object["status"]["nodeRef"] = json!({"name": "worker-7"})
    });
    comes_to(&gateway, &machine, Kind::Gcp, "instance-has-node").await;
    withdrawn().await;
    // An object of the same name is another machine's.
    api.remove("machines", NAMESPACE, "worker-7");
    comes_to(&gateway, &machine, Kind::Gcp, "instance-not-in-inventory").await;
    withdrawn().await;
    put(&api, "worker-7", GCP_PROVIDER_ID, |_| {});
    comes_to(&gateway, &machine, Kind::Gcp, "trusted").await;
    withdrawn().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_30_a_machine_object_matches_one_pool() {
    let api = api();
    let mut gateway = init(&api, r#"[["gcp"]]"#, &[GCP, MACHINES]);
    for (pool, machines) in [
        ("master", CONTROL_PLANE),
        ("infra", "[inventory]\nmachines = { machine_sets = [\"*-b\"], wait_seconds = 0 }\n"),
    ] {
        site::pool(&gateway, pool, r#"[["gcp"]]"#, &[GCP, machines]);
        site::configs(&gateway, pool);
    }
    gateway.run();
    let of = |pool: &str| Machine::new().but(|machine| machine.pool = pool.to_owned());
    let check = async |change: &dyn Fn(&mut Value), expect: [(&str, &str); 3]| {
        put(&api, "worker-7", GCP_PROVIDER_ID, change);
        for (pool, code) in expect {
            comes_to(&gateway, &of(pool), Kind::Gcp, code).await;
        }
    };
    let (yes, another, two) = ("trusted", "instance-of-another-set", "instance-of-two-pools");
    check(&|_| {}, [("worker", yes), ("master", another), ("infra", another)]).await;
    let set = |object: &mut Value, name: &str| object["metadata"]["ownerReferences"][0]["name"] = json!(name);
    check(
        &|object| set(object, "infra-b"),
        [("infra", yes), ("worker", another), ("master", another)],
    )
    .await;
    check(
        &|object| set(object, "worker-b"),
        [("infra", two), ("worker", two), ("master", another)],
    )
    .await;
    check(&make_control_plane, [("master", yes), ("worker", another), ("infra", another)]).await;
    // What another pool's file names is that pool's.
    let by_file = "[inventory]\ninstances = \"instances.txt\"\n";
    site::write(&gateway, "pools/infra/instances.txt", GCP_IDENTITY);
    site::pool(&gateway, "infra", r#"[["gcp"]]"#, &[GCP, by_file]);
    check(&|_| {}, [("worker", two), ("infra", yes), ("master", another)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inventory_combines_file_and_machine_objects() {
    let api = api();
    let either = "[inventory]\ninstances = \"instances.txt\"\nmachines = { machine_sets = [\"worker-*\"], wait_seconds = 0 }\n";
    let mut gateway = init(&api, BOTH, &[GCP, DOCUMENT, either]);
    site::write(&gateway, "pools/worker/instances.txt", GCP_IDENTITY);
    put(&api, "worker-8", AWS_PROVIDER_ID, |_| {});
    // Of what the file names no cluster is asked.
    api.disturb(Disturbance::Down);
    gateway.run();
    let answer = Machine::new().attest(&gateway, &[Kind::Gcp]).await;
    let record = site::trusted(&gateway, &answer, GCP_IDENTITY, &[Kind::Gcp]);
    assert_eq!(record["basis"]["machine"], Value::Null);
    site::gets_the_full_config(&gateway, &answer).await;
    let document = [Kind::AwsIdentityDocument];
    Machine::new()
        .attest(&gateway, &document)
        .await
        .refused(503, "machines-unavailable");
    api.recover();
    let answer = comes_to(&gateway, &Machine::new(), document[0], "trusted").await;
    site::trusted(&gateway, &answer, AWS_IDENTITY, &document);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_29_a_machine_object_binds_no_tpm() {
    let gateway = site::init(
        r#"[["tpm", "gcp"]]"#,
        &[&TPM.replace("allowlist", "any-tpm-of-a-trusted-maker"), GCP, MACHINES],
    );
    let said = String::from_utf8_lossy(&gateway.try_command(&["check"]).stdout).into_owned();
    assert!(
        said.contains("this evidence does not prove that the TPM belongs to the instance"),
        "{said}"
    );
    let api = api();
    let mut gateway = init(&api, r#"[["tpm", "gcp"]]"#, &[TPM, GCP, MACHINES]);
    let own = tpm();
    gateway.endorse(&own, &[]);
    let identity = format!("tpm:{}", digest(&own));
    put(&api, "worker-7", GCP_PROVIDER_ID, |_| {});
    gateway.run();
    let machine = Machine::new().but(|machine| machine.tpm = Some(own));
    let both = [Kind::Tpm, Kind::Gcp];
    let begun = Instant::now();
    let answer = loop {
        let answer = machine.attest(&gateway, &both).await;
        if answer.status == 200 || begun.elapsed() > LIMIT {
            break answer;
        }
    };
    site::trusted(&gateway, &answer, &identity, &both);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_warns_about_unusable_machine_object_inventories() {
    let check = |gateway: &Gateway| String::from_utf8_lossy(&gateway.try_command(&["check"]).stdout).into_owned();
    let gateway = site::init(r#"[["gcp"]]"#, &[GCP, MACHINES]);
    let said = check(&gateway);
    assert!(
        said.contains("pool worker: its inventory is the cluster's Machine objects, but cluster.machines is not enabled"),
        "{said}"
    );
    assert!(!said.contains("any instance of the account"), "{said}");
    for (accepts, rules) in [(r#"[["azure"]]"#, AZURE_RULES), (r#"[["tpm"]]"#, TPM)] {
        site::pool(&gateway, "worker", accepts, &[rules, MACHINES]);
        let said = check(&gateway);
        assert!(
            said.contains("no Machine object of a cluster names what this evidence is about"),
            "{said}"
        );
    }
}
