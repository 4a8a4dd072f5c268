//! Tests of the stand-in of a Kubernetes API, over TLS and with `kubectl`.

mod custom;
mod kubectl;

use std::time::{Duration, Instant};

use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, RestartHistory};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Time limit: operations take milliseconds, but a loaded machine may need seconds.
const LIMIT: Duration = Duration::from_secs(30);
const POOLS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const MERGE: &str = "application/merge-patch+json";

struct Client<'a> {
    api: &'a KubernetesApi,
    token: String,
    client: reqwest::Client,
}

impl<'a> Client<'a> {
    fn new(api: &'a KubernetesApi, token: &str) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let ca = reqwest::Certificate::from_pem(api.ca_pem().as_bytes()).unwrap();
        let client = reqwest::Client::builder()
            .tls_certs_only([ca])
            .no_proxy()
            // A restart ends connections that nobody uses.
            .pool_max_idle_per_host(0)
            .timeout(LIMIT)
            .build()
            .unwrap();
        Self {
            api,
            token: token.to_owned(),
            client,
        }
    }

    fn admin(api: &'a KubernetesApi) -> Self {
        Self::new(api, api.admin())
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client
            .request(method, format!("{}{path}", self.api.url()))
            .bearer_auth(&self.token)
    }

    async fn send(&self, method: Method, path: &str, media_type: &str, body: Option<&Value>) -> (u16, Value) {
        let mut request = self.request(method, path).header("content-type", media_type);
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, "", None).await
    }

    async fn write(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        self.send(method, path, "application/json", Some(body)).await
    }

    async fn watch(&self, path: &str, query: &str) -> Watch {
        let response = self
            .request(Method::GET, &format!("{path}?watch=true&{query}"))
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Watch {
            response,
            held: Vec::new(),
        }
    }
}

struct Watch {
    response: reqwest::Response,
    held: Vec<u8>,
}

impl Watch {
    /// Returns the next event's type, and its object; `None` after the end of the watch.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.held.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.held.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).unwrap();
                return Some((event["type"].as_str().unwrap().to_owned(), event["object"].take()));
            }
            let chunk = tokio::time::timeout(LIMIT, self.response.chunk()).await.unwrap();
            self.held.extend_from_slice(&chunk.ok().flatten()?);
        }
    }

    async fn is(&mut self, of: &str, name: &str) -> Value {
        let (found, object) = self.next().await.unwrap();
        assert_eq!((found.as_str(), &object["metadata"]["name"]), (of, &json!(name)), "{object}");
        object
    }
}

fn pool(name: &str, paused: bool) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
        "metadata": {"name": name, "labels": {"of": name}}, "spec": {"paused": paused},
    })
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn writes_require_the_current_resource_version() {
    let api = KubernetesApi::start();
    let admin = Client::admin(&api);
    let (status, made) = admin.write(Method::POST, POOLS, &pool("worker", false)).await;
    assert_eq!((status, &made["metadata"]["generation"]), (201, &json!(1)));
    let (status, said) = admin.write(Method::POST, POOLS, &pool("worker", false)).await;
    assert_eq!((status, &said["reason"]), (409, &json!("AlreadyExists")));
    assert_eq!(
        said["message"],
        "machineconfigpools.machineconfiguration.openshift.io \"worker\" already exists"
    );

    let path = format!("{POOLS}/worker");
    let mut changed = made.clone();
    changed["spec"]["paused"] = json!(true);
    // What is not the status' own does not change it, and the other way round.
    changed["status"] = json!({"machineCount": 3});
    let (status, new) = admin.write(Method::PUT, &path, &changed).await;
    assert_eq!((status, &new["spec"]["paused"], &new["status"]), (200, &json!(true), &Value::Null));
    assert_eq!((version(&new) > version(&made), &new["metadata"]["generation"]), (true, &json!(2)));
    let (status, said) = admin.write(Method::PUT, &path, &changed).await;
    assert_eq!((status, &said["reason"]), (409, &json!("Conflict")));
    assert!(said["message"].as_str().unwrap().contains("the object has been modified"));
    changed["metadata"]["resourceVersion"] = new["metadata"]["resourceVersion"].clone();
    changed["spec"]["paused"] = json!(false);
    let (_, with_status) = admin.write(Method::PUT, &format!("{path}/status"), &changed).await;
    assert_eq!(
        (&with_status["spec"]["paused"], &with_status["status"]["machineCount"]),
        (&json!(true), &json!(3))
    );
    assert_eq!(with_status["metadata"]["generation"], 2);
    // What changes nothing is no change.
    let (_, same) = admin
        .send(Method::PATCH, &path, MERGE, Some(&json!({"spec": {"paused": true}})))
        .await;
    assert_eq!(version(&same), version(&with_status));
    let steps =
        json!([{"op": "test", "path": "/spec/paused", "value": true}, {"op": "add", "path": "/metadata/labels/a~1b", "value": "c"}]);
    let (status, labelled) = admin.send(Method::PATCH, &path, "application/json-patch+json", Some(&steps)).await;
    assert_eq!((status, &labelled["metadata"]["labels"]["a/b"]), (200, &json!("c")));
    let (status, _) = admin.send(Method::PATCH, &path, "text/plain", Some(&json!({}))).await;
    assert_eq!(status, 415);

    // Who is held goes when nobody holds it.
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    admin.send(Method::PATCH, &path, MERGE, Some(&hold)).await;
    let (status, going) = admin.send(Method::DELETE, &path, "", None).await;
    assert!(status == 200 && going["metadata"]["deletionTimestamp"].is_string(), "{going}");
    assert_eq!(admin.get(&path).await.0, 200);
    admin
        .send(Method::PATCH, &path, MERGE, Some(&json!({"metadata": {"finalizers": null}})))
        .await;
    assert_eq!(admin.get(&path).await.0, 404);
    let (status, said) = admin.send(Method::DELETE, &path, "", None).await;
    assert_eq!((status, &said["reason"]), (404, &json!("NotFound")));
    assert_eq!(admin.get("/apis/example.com/v1/nothing").await.0, 404);
}

#[tokio::test]
async fn lists_are_paged_from_one_snapshot_by_label() {
    let api = KubernetesApi::start();
    let admin = Client::admin(&api);
    for number in 0..10 {
        api.put(pool(&format!("pool-{number}"), false));
    }
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let (_, first) = admin.get(&format!("{POOLS}?limit=4")).await;
    assert_eq!((names(&first).len(), &first["metadata"]["remainingItemCount"]), (4, &json!(6)));
    // What comes and goes meanwhile is of another state.
    api.put(pool("pool-55", false));
    api.remove("machineconfigpools", "", "pool-6");
    let next = |list: &Value| format!("{POOLS}?limit=4&continue={}", list["metadata"]["continue"].as_str().unwrap());
    let (_, second) = admin.get(&next(&first)).await;
    assert_eq!(names(&second), ["pool-4", "pool-5", "pool-6", "pool-7"]);
    assert_eq!(version(&second), version(&first));
    api.compact();
    let (status, said) = admin.get(&next(&second)).await;
    assert_eq!((status, &said["reason"]), (410, &json!("Expired")));
    assert_eq!(admin.get(&format!("{POOLS}?continue=x")).await.0, 400);
    for (selector, count) in [
        ("labelSelector=of%3Dpool-1", 1),
        ("labelSelector=of!%3Dpool-1", 9),
        ("labelSelector=of+in+(pool-1,pool-2)", 2),
        ("labelSelector=of+notin+(pool-1,pool-2)", 8),
        ("labelSelector=of,other", 0),
        ("labelSelector=!other", 10),
        ("fieldSelector=metadata.name%3Dpool-3", 1),
    ] {
        assert_eq!(names(&admin.get(&format!("{POOLS}?{selector}")).await.1).len(), count, "{selector}");
    }
    assert_eq!(admin.get(&format!("{POOLS}?fieldSelector=spec.paused%3Dtrue")).await.0, 400);
}

#[tokio::test]
async fn watch_reports_each_change_once_including_label_loss() {
    let api = KubernetesApi::start();
    let admin = Client::admin(&api);
    api.put(pool("worker", false));
    let (_, list) = admin.get(POOLS).await;
    let from = format!("resourceVersion={}", version(&list));
    let mut watch = admin.watch(POOLS, &from).await;
    let mut of_worker = admin.watch(POOLS, "labelSelector=of%3Dworker").await;
    of_worker.is("ADDED", "worker").await;
    api.put(pool("infra", false));
    let mut other = pool("worker", true);
    other["metadata"]["labels"]["of"] = json!("nobody");
    api.put(other);
    watch.is("ADDED", "infra").await;
    watch.is("MODIFIED", "worker").await;
    of_worker.is("DELETED", "worker").await;
    api.remove("machineconfigpools", "", "infra");
    let gone = watch.is("DELETED", "infra").await;
    // Whoever comes back goes on where he was.
    api.break_watches();
    assert!(watch.next().await.is_none());
    api.put(pool("later", false));
    let mut again = admin.watch(POOLS, &format!("resourceVersion={}", version(&gone))).await;
    again.is("ADDED", "later").await;

    api.bookmark_every(Duration::from_millis(50));
    let from = format!("{from}&allowWatchBookmarks=true&timeoutSeconds=1");
    let mut marked = admin.watch(SECRETS, &from).await;
    let (of, bookmark) = marked.next().await.unwrap();
    assert_eq!(
        (of.as_str(), version(&bookmark)),
        ("BOOKMARK", version(&api.get("machineconfigpools", "", "later").unwrap()))
    );
    let began = Instant::now();
    while marked.next().await.is_some() {}
    assert!(began.elapsed() < LIMIT);

    // Too far back: it is said in the stream.
    api.restart(RestartHistory::Lost);
    let mut old = admin.watch(POOLS, &from).await;
    let (of, said) = old.next().await.unwrap();
    assert_eq!(
        (of.as_str(), &said["code"], &said["reason"]),
        ("ERROR", &json!(410), &json!("Expired"))
    );
    assert!(old.next().await.is_none());
}

#[tokio::test]
async fn rbac_limits_a_service_account_to_its_roles() {
    let api = KubernetesApi::start();
    let token = api.token("gateway", "reader");
    let reader = Client::new(&api, &token);
    let (status, said) = reader.get(POOLS).await;
    assert_eq!((status, &said["reason"]), (403, &json!("Forbidden")));
    assert_eq!(
        said["message"],
        "machineconfigpools.machineconfiguration.openshift.io is forbidden: User \"system:serviceaccount:gateway:reader\" cannot list resource \"machineconfigpools\" in API group \"machineconfiguration.openshift.io\" at the cluster scope"
    );
    let group = "machineconfiguration.openshift.io";
    api.grant(
        "gateway",
        "reader",
        &json!([{"apiGroups": [group], "resources": ["machineconfigpools"], "verbs": ["list"]}]),
    );
    assert_eq!(reader.get(POOLS).await.0, 200);
    for (method, path) in [
        (Method::GET, format!("{POOLS}?watch=true")),
        (Method::GET, format!("{POOLS}/worker")),
        (Method::POST, POOLS.to_owned()),
        (Method::PUT, format!("{POOLS}/worker/status")),
        (Method::DELETE, format!("{POOLS}/worker")),
        (Method::GET, SECRETS.to_owned()),
    ] {
        assert_eq!(reader.write(method.clone(), &path, &json!({})).await.0, 403, "{method} {path}");
    }
    // A role of a namespace, for one name.
    let rbac = "rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get"]}]);
    let metadata = json!({"name": "one", "namespace": "kube-system"});
    api.put(json!({"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": rules}));
    let subjects = json!([{"kind": "ServiceAccount", "namespace": "gateway", "name": "reader"}]);
    api.put(json!({"apiVersion": rbac, "kind": "RoleBinding", "metadata": metadata, "roleRef": {"kind": "Role", "name": "one"}, "subjects": subjects}));
    let (status, said) = reader.get(&format!("{SECRETS}/two")).await;
    assert!(
        status == 403 && said["message"].as_str().unwrap().starts_with("secrets \"two\" is forbidden"),
        "{said}"
    );
    assert_eq!(reader.get(&format!("{SECRETS}/one")).await.0, 404);
    assert_eq!(reader.get("/api/v1/namespaces/other/secrets/one").await.0, 403);
    // A new token of the same account, and then the old one is nobody's.
    let newer = api.token("gateway", "reader");
    api.expire(&token);
    assert_eq!(reader.get(POOLS).await.0, 401);
    assert_eq!(Client::new(&api, &newer).get(POOLS).await.0, 200);
    let asked = api.asked();
    assert!(asked.iter().any(|asked| (asked.verb, asked.status) == ("watch", 403)), "{asked:?}");
}

#[tokio::test]
async fn csr_records_its_requester_and_needs_separate_approval() {
    const CSRS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let api = KubernetesApi::start();
    let rules = json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create", "update"]}]);
    api.grant("gateway", "kubelet", &rules);
    let kubelet = Client::new(&api, &api.token("gateway", "kubelet"));
    let csr = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"generateName": "csr-"},
        "spec": {"request": "LS0=", "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": ["client auth"], "username": "system:admin"},
        "status": {"conditions": [{"type": "Approved"}]},
    });
    let (status, made) = kubelet.write(Method::POST, CSRS, &csr).await;
    assert_eq!(
        (status, &made["spec"]["username"]),
        (201, &json!("system:serviceaccount:gateway:kubelet"))
    );
    assert_eq!(made["status"], Value::Null);
    let path = format!("{CSRS}/{}/approval", made["metadata"]["name"].as_str().unwrap());
    let mut approved = made.clone();
    approved["status"] = json!({"conditions": [{"type": "Approved", "status": "True"}], "certificate": "eA=="});
    assert_eq!(kubelet.write(Method::PUT, &path, &approved).await.0, 403);
    // The right to approve is that for the signer, too.
    let mut rules =
        json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval"], "verbs": ["update"]}]);
    let signers =
        |name: &str| json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": [name], "verbs": ["approve"]});
    api.grant("gateway", "approver", &rules);
    let approver = Client::new(&api, &api.token("gateway", "approver"));
    for name in ["kubernetes.io/kubelet-serving", "example.com/signer"] {
        rules.as_array_mut().unwrap().push(signers(name));
        api.grant("gateway", "approver", &rules);
        let (status, said) = approver.write(Method::PUT, &path, &approved).await;
        assert!(status == 403 && said["message"].as_str().unwrap().contains("signerName"), "{said}");
    }
    let (status, now) = Client::admin(&api).write(Method::PUT, &path, &approved).await;
    assert_eq!((status, &now["status"]["conditions"][0]["type"]), (200, &json!("Approved")));
    assert_eq!(now["status"]["certificate"], Value::Null, "a signer writes that");
}

#[tokio::test]
async fn api_outages_and_faults_keep_its_state() {
    let api = KubernetesApi::start();
    let admin = Client::admin(&api);
    api.put(pool("worker", false));
    let mut watch = admin.watch(POOLS, "").await;
    let worker = watch.is("ADDED", "worker").await;
    api.disturb(Disturbance::Down);
    assert!(watch.next().await.is_none());
    assert!(admin.request(Method::GET, POOLS).send().await.unwrap_err().is_connect());
    api.put(pool("infra", false));
    api.recover();
    let mut watch = admin.watch(POOLS, &format!("resourceVersion={}", version(&worker))).await;
    watch.is("ADDED", "infra").await;
    api.disturb(Disturbance::Status(429));
    let busy = admin.request(Method::GET, POOLS).send().await.unwrap();
    assert_eq!(
        (busy.status().as_u16(), &busy.headers()["retry-after"]),
        (429, &"1".parse().unwrap())
    );
    api.disturb(Disturbance::Silent);
    let silent = admin.request(Method::GET, POOLS).timeout(Duration::from_millis(200)).send().await;
    assert!(silent.unwrap_err().is_timeout());
    api.recover();
    api.restart(RestartHistory::Kept);
    assert_eq!(admin.get(POOLS).await.0, 200);
}

#[tokio::test]
async fn write_latency_applies_to_concurrent_writes() {
    const WRITE: Duration = Duration::from_millis(100);
    let api = KubernetesApi::start();
    let admin = Client::admin(&api);
    api.takes(WRITE);
    let begun = Instant::now();
    let bodies = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| pool(name, false));
    let writes = bodies.iter().map(|body| admin.write(Method::POST, POOLS, body));
    for (status, _) in futures_util::future::join_all(writes).await {
        assert_eq!(status, 201);
    }
    assert!((WRITE..WRITE * 8).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let asked = api.asked();
    assert!(asked.iter().all(|asked| asked.bytes == bodies[0].to_string().len()), "{asked:?}");
}

#[tokio::test]
async fn lists_thousands_of_large_and_hostile_objects() {
    let api = KubernetesApi::start();
    let admin = Client::admin(&api);
    let config = |name: &str, spec: Value| {
        let metadata = json!({"name": name});
        json!({"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": metadata, "spec": spec})
    };
    let text = "x".repeat(4096);
    for number in 0..5000 {
        api.put(config(&format!("{number:04}"), json!({"config": text})));
    }
    api.put(config("large", json!("x".repeat(4 * 1024 * 1024))));
    api.put(config("wrong", json!([1, {"config": 7}])));
    let path = "/apis/machineconfiguration.openshift.io/v1/machineconfigs";
    let (mut found, mut next) = (0, String::new());
    loop {
        let (status, list) = admin.get(&format!("{path}?limit=500&continue={next}")).await;
        assert_eq!(status, 200);
        found += list["items"].as_array().unwrap().len();
        match list["metadata"]["continue"].as_str() {
            Some(token) => next = token.to_owned(),
            None => break,
        }
    }
    assert_eq!(found, 5002);
}
