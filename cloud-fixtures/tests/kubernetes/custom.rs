//! Kinds that a CustomResourceDefinition makes.

use cloud_fixtures::kubernetes::KubernetesApi;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Client, MERGE};

const NODES: &str = "/apis/attest-gateway.internal/v1alpha1/attestednodes";

pub fn definition() -> Value {
    let text = |more: Value| {
        let mut schema = json!({"type": "string", "maxLength": 5});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let names = json!({"type": "array", "maxItems": 2, "items": text(json!({}))});
    let spec = json!({"type": "object", "required": ["name"], "properties": {"name": text(json!({"pattern": "^[a-z]+$"})), "names": names, "on": {"type": "boolean"}}});
    let conditions = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "properties": {"type": text(json!({"enum": ["A", "B"]}))}}});
    let status = json!({"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}, "count": {"type": "integer"}, "conditions": conditions}});
    let columns = json!([
        {"name": "Of", "type": "string", "jsonPath": ".spec.name"},
        {"name": "At", "type": "date", "jsonPath": ".status.at"},
        {"name": "Count", "type": "integer", "jsonPath": ".status.count", "priority": 1},
    ]);
    let version = json!({"name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}}, "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "attestednodes.attest-gateway.internal"},
        "spec": {"group": "attest-gateway.internal", "scope": "Cluster", "names": {"kind": "AttestedNode", "plural": "attestednodes", "shortNames": ["an"]}, "versions": [version]},
    })
}

#[tokio::test]
async fn crd_serves_its_kind_and_validates_objects() {
    let api = KubernetesApi::start();
    let admin = Client::admin(&api);
    let node = |name: &str, spec: Value| {
        let metadata = json!({"name": name});
        json!({"apiVersion": "attest-gateway.internal/v1alpha1", "kind": "AttestedNode", "metadata": metadata, "spec": spec})
    };
    assert_eq!(admin.get(NODES).await.0, 404);
    assert!(!admin.get("/apis").await.1.to_string().contains("attest-gateway"));
    api.put(definition());
    assert!(admin.get("/apis").await.1.to_string().contains("attest-gateway"));
    let (status, made) = admin
        .write(
            Method::POST,
            NODES,
            &node("a", json!({"name": "abc", "unknown": 1, "names": ["x"]})),
        )
        .await;
    assert_eq!(
        (status, &made["spec"]),
        (201, &json!({"name": "abc", "names": ["x"]})),
        "what the schema does not name is dropped"
    );
    assert_eq!(made["metadata"]["generation"], 1);
    for spec in [
        json!({}),
        json!({"name": "abcdef"}),
        json!({"name": "ABC"}),
        json!({"name": 7}),
        json!({"name": "a", "on": "true"}),
        json!({"name": "a", "names": ["1", "2", "3"]}),
        json!({"name": "a", "names": ["123456"]}),
        json!({"name": "a", "names": "x"}),
        json!([]),
    ] {
        let (status, answer) = admin.write(Method::POST, NODES, &node("b", spec.clone())).await;
        assert_eq!((status, &answer["reason"]), (422, &json!("Invalid")), "{spec}: {answer}");
    }
    let path = format!("{NODES}/a");
    for status in [
        json!({"at": "yesterday"}),
        json!({"count": "1"}),
        json!({"conditions": [{"type": "C"}]}),
        json!({"conditions": [{"type": "A"}, {"type": "A"}]}),
    ] {
        let patched = admin
            .send(Method::PATCH, &format!("{path}/status"), MERGE, Some(&json!({"status": status})))
            .await;
        assert_eq!(patched.0, 422, "{status}");
    }
    // The status is written by itself, and is no new generation; the spec is one.
    let patch = json!({"spec": {"name": "other"}, "status": {"count": 3, "conditions": [{"type": "A"}, {"type": "B"}]}});
    let (status, found) = admin.send(Method::PATCH, &format!("{path}/status"), MERGE, Some(&patch)).await;
    assert_eq!(
        (status, &found["spec"]["name"], &found["metadata"]["generation"]),
        (200, &json!("abc"), &json!(1))
    );
    let (_, found) = admin
        .send(Method::PATCH, &format!("{path}?fieldManager=by-hand"), MERGE, Some(&patch))
        .await;
    assert_eq!(
        (&found["spec"]["name"], &found["metadata"]["generation"]),
        (&json!("other"), &json!(2))
    );
    assert_eq!(found["status"]["count"], 3);
    let managers: Vec<&str> = found["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|entry| entry["manager"].as_str())
        .collect();
    assert!(managers.contains(&"by-hand"), "{managers:?}");
    api.remove("customresourcedefinitions", "", "attestednodes.attest-gateway.internal");
    assert_eq!(admin.get(&path).await.0, 404);
}
