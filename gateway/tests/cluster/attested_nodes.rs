//! Machines as objects of the API, maintained by the real program, and edited by `kubectl`.

use std::fs;
use std::process::{Command, Output};

use attest::protocol::REPORT_PATH;
use attest_gateway::machine_status::object_name::object_name;
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi, Mishap, RestartHistory};
use serde_json::{Value, json};

use super::{NAMESPACE, shown};
use crate::reports;
use crate::support::{Case, Gateway, LIMIT, bearer, digest, next_boot, tpm};

const NODES: &str = "attestednodes";
const API_VERSION: &str = "attest-gateway.internal/v1alpha1";

/// Returns the objects that the administrator applies: the kind, and the rights.
fn part() -> Vec<Value> {
    let text = include_str!("../../dist/kubernetes/parts/attested-nodes/roles.yaml");
    text.split("---\n").map(|object| serde_saphyr::from_str(object).unwrap()).collect()
}

struct Site {
    api: KubernetesApi,
    gateway: Gateway,
}

impl Site {
    fn with(mode: &str) -> Self {
        let api = KubernetesApi::start();
        part().into_iter().for_each(|object| api.put(object));
        let gateway = Gateway::init();
        fs::write(gateway.path("kubeconfig"), api.kubeconfig(&api.token(NAMESPACE, "attest-gateway"))).unwrap();
        fs::write(gateway.path("admin"), api.kubeconfig(api.admin())).unwrap();
        let site = Self { api, gateway };
        site.mode(mode);
        site
    }

    fn mode(&self, mode: &str) {
        let cluster = format!("[cluster]\napi = \"kubeconfig\"\nconfigs = false\nattested_nodes = \"{mode}\"\n");
        self.gateway.settings(&cluster);
    }

    fn start(mode: &str) -> Self {
        let mut site = Self::with(mode);
        site.gateway.run();
        site
    }

    fn try_kubectl(&self, arguments: &[&str]) -> Output {
        let mut kubectl = Command::new("kubectl");
        kubectl
            .env("HOME", self.gateway.path(""))
            .arg("--kubeconfig")
            .arg(self.gateway.path("admin"));
        let output = kubectl.args(arguments).output();
        output.unwrap_or_else(|error| panic!("kubectl (.ci/debian-packages): {error}"))
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    fn patch(&self, name: &str, spec: &Value) {
        let patch = json!({ "spec": spec }).to_string();
        self.kubectl(&["patch", "attestednode", name, "--type=merge", "-p", &patch]);
    }

    fn node(&self, name: &str) -> Option<Value> {
        self.api.get(NODES, "", name)
    }

    /// Returns status and reason of a condition of an object.
    fn says(&self, name: &str, question: &str) -> Option<(String, String)> {
        let node = self.node(name)?;
        let conditions = node["status"]["conditions"].as_array()?;
        let said = conditions.iter().find(|condition| condition["type"] == question)?;
        Some((said["status"].as_str()?.to_owned(), said["reason"].as_str()?.to_owned()))
    }

    /// Waits until an object meets this condition.
    async fn wait(&self, what: &str, name: &str, is_so: impl FnMut() -> bool) {
        let told = || format!("{:#?}\n{}", self.node(name), self.gateway.output());
        let is_so = self.api.comes_to(LIMIT, is_so).await;
        assert!(is_so, "{what}: not within {} s: {}", LIMIT.as_secs(), told());
    }

    async fn wait_says(&self, name: &str, question: &str, status: &str, reason: &str) {
        let expected = Some((status.to_owned(), reason.to_owned()));
        self.wait(&format!("{name} says of {question}: {status}, {reason}"), name, || {
            self.says(name, question) == expected
        })
        .await;
    }

    async fn wait_state(&self, name: &str, state: &str) {
        self.wait(&format!("{name} is {state}"), name, || {
            self.node(name).is_some_and(|node| node["status"]["state"] == state)
        })
        .await;
    }

    /// Names and attests a machine. Returns it with the name of its object.
    async fn attested(&self, name: &str) -> (Case, String) {
        let case = tpm();
        self.gateway.endorse(&case, &["--name", name]);
        self.boots(&case).await;
        let object = named(&case);
        self.wait_state(&object, "Trusted").await;
        (case, object)
    }

    /// Attests, and fetches the config like Ignition.
    async fn boots(&self, case: &Case) {
        let ticket = self.gateway.attest(next_boot(case), None).await.ticket();
        let answer = self.gateway.config("/config/worker", &[&bearer(&ticket)]).await;
        assert_eq!(answer.status, 200);
    }

    async fn refused(&self, case: &Case) -> String {
        self.gateway.attest(next_boot(case), None).await.code()
    }

    fn events(&self, name: &str) -> Vec<(String, String)> {
        let all = self.api.all("events").into_iter();
        let about = all.filter(|event| event["involvedObject"]["name"] == name && event["involvedObject"]["kind"] == "AttestedNode");
        about
            .map(|event| {
                assert_eq!(event["metadata"]["namespace"], "default");
                let text = |field: &str| event[field].as_str().unwrap().to_owned();
                (text("reason"), text("message"))
            })
            .collect()
    }

    fn event_notes(&self, name: &str, reason: &str) -> Vec<String> {
        let all = self.events(name).into_iter();
        all.filter(|(found, _)| found == reason).map(|(_, message)| message).collect()
    }
}

fn named(case: &Case) -> String {
    format!("tpm-{}", digest(case))
}

fn object(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "AttestedNode", "metadata": {"name": name}, "spec": spec})
}

/// Returns the columns of one machine's row.
fn row(table: &str, name: &str) -> Vec<String> {
    let line = table
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("{name} is not in {table}"));
    line.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_lists_attested_nodes_with_evidence_and_config() {
    let mut site = Site::start("show");
    let (case, object) = site.attested("worker-7").await;
    shown(&site.api, "its config is shown", || site.says(&object, "ConfigServed").is_some()).await;
    let table = site.kubectl(&["get", "attestednodes"]);
    let head: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        head,
        [
            "NAME", "NODE", "POOL", "BY", "ATTESTED", "CONFIG", "STATE", "CODE", "WAITING", "AGE"
        ]
    );
    let found = row(&table, &object);
    assert_eq!(
        (&found[1..4], &found[5..7]),
        (
            &["worker-7", "worker", "tpm"].map(str::to_owned)[..],
            &["full", "Trusted"].map(str::to_owned)[..]
        )
    );
    for age in [&found[4], &found[7]] {
        assert!(age.ends_with('s') || age.ends_with('m'), "{age}");
    }
    let records = site.gateway.records();
    let of = |decision: &str| records.iter().find(|record| record["decision"] == decision).unwrap().clone();
    let (evidence, config) = (of("evidence"), of("config"));
    let wide = row(&site.kubectl(&["get", "an", "-o", "wide"]), &object);
    assert_eq!(
        wide[8..],
        [
            format!("tpm:{}", digest(&case)),
            evidence["id"].as_str().unwrap().to_owned(),
            config["config_sha256"].as_str().unwrap().to_owned()
        ]
    );
    let node = site.node(&object).unwrap();
    assert_eq!(node["status"]["config"]["specVersion"], config["spec_version"]);
    assert_eq!(node["status"]["attestation"]["at"], evidence["time"]);
    assert_eq!(site.says(&object, "Attested"), Some(("True".to_owned(), "Trusted".to_owned())));
    site.wait_says(&object, "Banned", "False", "NotBanned").await;
    site.wait_says(&object, "Approved", "True", "Allowlisted").await;
    shown(&site.api, "events say so", || {
        site.event_notes(&object, "Attested").len() == 1 && site.event_notes(&object, "ConfigServed").len() == 1
    })
    .await;
    let described = site.kubectl(&["describe", "attestednode", &object]);
    assert!(described.contains("Trusted") && described.contains("ConfigServed"), "{described}");

    // Booted once more, it has what it had, and no event more; a stranger has nothing.
    let stranger = tpm();
    assert_eq!(site.refused(&stranger).await, "ek-not-endorsed");
    site.boots(&case).await;
    let last = |site: &Site| site.gateway.records().last().unwrap()["id"].clone();
    shown(&site.api, "the last boot is shown", || {
        site.node(&object).unwrap()["status"]["config"]["record"] == last(&site)
    })
    .await;
    assert_eq!(site.api.all(NODES).len(), 1);
    assert_eq!(site.event_notes(&object, "Attested").len(), 1);
    // A failed boot that the machine reports is an event, once; one that a stranger reports of it is none.
    let mut report = reports::report();
    reports::id(&site.gateway.post(REPORT_PATH, &report).await);
    report["error"] = json!("no \u{202e}disk");
    report["proof"] = json!(reports::proof(&site.gateway, next_boot(&case)).await.0);
    let reported = reports::id(&site.gateway.post(REPORT_PATH, &report).await);
    shown(&site.api, "the report is an event", || {
        site.event_notes(&object, "BootFailed")
            == [format!(
                "the node reports that its first boot failed in stage disks (ignition-disks.service): no \\u{{202e}}disk (record {reported})"
            )]
    })
    .await;
    assert_eq!(site.node(&object).unwrap()["status"]["report"]["record"], reported);
    // What is edited is not done here, and it is said.
    site.patch(&object, &json!({"banned": true, "forget": "worker-7"}));
    site.wait_says(&object, "Accepted", "False", "EditsAreOff").await;
    site.boots(&case).await;
    assert!(site.gateway.acts("node.revoke").is_empty());
    let checked = site.gateway.command(&["check"]);
    assert!(checked.contains("cluster: the API serves attested nodes"), "{checked}");
    // Nor is it done later, but for a ban, which counts for as long as it stands there.
    site.gateway.kill();
    site.mode("edit");
    site.gateway.run();
    site.wait_says(&object, "Banned", "True", "ByThisObject").await;
    assert!(site.gateway.acts("node.forget").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_46_only_an_object_edit_bans_and_unbans() {
    let site = Site::start("edit");
    let (case, object) = site.attested("worker-7").await;
    site.patch(&object, &json!({"banned": true, "reason": "disk sold"}));
    site.wait_state(&object, "Banned").await;
    site.wait_says(&object, "Banned", "True", "ByThisObject").await;
    assert_eq!(site.refused(&case).await, "node-revoked");
    // It is recorded as what a command does, and as whose.
    let act = site.gateway.wait_for_acts(1, "node.revoke").remove(0);
    let by = &act["admin"]["by"];
    assert_eq!(
        (&by["object"]["name"], &by["object"]["manager"]),
        (&json!(object), &json!("kubectl-patch"))
    );
    assert!(by["gateway"].is_string() && by["object"]["resource_version"].is_string(), "{by}");
    let things: Vec<&str> = act["admin"]["things"]
        .as_array()
        .unwrap()
        .iter()
        .map(|thing| thing["id"].as_str().unwrap())
        .collect();
    assert_eq!(things, [format!("tpm:{}", digest(&case)).as_str(), "worker-7"]);
    shown(&site.api, "an event says so", || site.event_notes(&object, "Banned").len() == 1).await;

    // Whoever deletes the object resets nothing: it is there again.
    let uid = site.node(&object).unwrap()["metadata"]["uid"].clone();
    site.kubectl(&["delete", "attestednode", &object, "--wait=false"]);
    shown(&site.api, "it is made again", || {
        site.node(&object).is_some_and(|node| node["metadata"]["uid"] != uid)
    })
    .await;
    site.wait_says(&object, "Banned", "True", "ByThisObject").await;
    assert_eq!(site.refused(&case).await, "node-revoked");
    // Nor does whoever says nothing.
    site.patch(&object, &json!({"banned": null, "reason": null}));
    let generation = |site: &Site| site.node(&object).unwrap()["metadata"]["generation"].clone();
    let seen = |site: &Site| site.node(&object).unwrap()["status"]["observedGeneration"] == generation(site);
    shown(&site.api, "it is seen", || seen(&site)).await;
    assert_eq!(site.refused(&case).await, "node-revoked");
    // What the object has revoked it takes back.
    site.patch(&object, &json!({"banned": false}));
    site.wait_says(&object, "Banned", "False", "NotBanned").await;
    site.wait_says(&object, "Accepted", "True", "Done").await;
    site.boots(&case).await;
    site.gateway.wait_for_acts(1, "node.restore");
    // What a command has revoked it does not.
    site.gateway.command(&["node", "revoke", "worker-7", "--reason", "stolen"]);
    site.patch(&object, &json!({"banned": true}));
    site.wait_says(&object, "Banned", "True", "ByCommand").await;
    site.patch(&object, &json!({"banned": false}));
    site.wait_says(&object, "Accepted", "False", "RevokedByCommand").await;
    assert_eq!(site.refused(&case).await, "node-revoked");
    assert_eq!(site.gateway.wait_for_acts(2, "node.revoke").len(), 2);
    site.gateway.command(&["log", "audit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_edit_approves_and_forgets_once() {
    let site = Site::start("edit");
    let case = tpm();
    let (name, file) = (named(&case), site.gateway.path("object.json"));
    let create = |object: &Value| {
        fs::write(&file, object.to_string()).unwrap();
        site.kubectl(&["create", "--validate=false", "-f", &file.display().to_string()]);
    };
    assert_eq!(site.refused(&case).await, "ek-not-endorsed");
    create(&object(&name, &json!({"approved": {"pools": ["worker"], "nodeName": "worker-9"}})));
    site.wait_says(&name, "Approved", "True", "Allowlisted").await;
    site.wait_state(&name, "Expected").await;
    site.boots(&case).await;
    site.wait_state(&name, "Trusted").await;
    assert_eq!(site.node(&name).unwrap()["status"]["nodeName"], "worker-9");
    let act = site.gateway.wait_for_acts(1, "ek.add").remove(0);
    assert_eq!(act["admin"]["by"]["object"]["name"], json!(name));

    // Its name is freed once, however long that stands there.
    site.patch(&name, &json!({"forget": "worker-9"}));
    shown(&site.api, "the name is free", || {
        site.node(&name).unwrap()["status"]["nodeName"].is_null()
    })
    .await;
    site.gateway.wait_for_acts(1, "node.forget");
    site.boots(&case).await;
    shown(&site.api, "it has its name again", || {
        site.node(&name).unwrap()["status"]["nodeName"] == "worker-9"
    })
    .await;
    // What a command has taken away is not given back: by what stands there, nor by what is written anew.
    site.gateway.command(&["ek", "remove", &digest(&case)]);
    site.patch(&name, &json!({"reason": "none"}));
    site.wait_says(&name, "Approved", "False", "Removed").await;
    site.patch(&name, &json!({"approved": {"pools": ["worker", "infra"]}}));
    site.wait_says(&name, "Accepted", "False", "RemovedByCommand").await;
    assert_eq!(site.refused(&case).await, "ek-not-endorsed");
    assert_eq!(site.gateway.acts("node.forget").len(), 1);

    // What cannot be done is said, and not done.
    let other = |spec: Value| {
        let name = named(&tpm());
        create(&object(&name, &spec));
        name
    };
    for (spec, reason) in [
        (json!({"approved": {"pools": ["nowhere"]}}), "PoolUnknown"),
        (json!({"approved": {"pools": ["worker"], "nodeName": "worker-9"}}), "NameTaken"),
    ] {
        let name = other(spec);
        site.wait_says(&name, "Accepted", "False", reason).await;
        shown(&site.api, "an event says so", || site.event_notes(&name, "EditNotDone").len() == 1).await;
    }
    assert_eq!(site.gateway.acts("ek.add").len(), 1);
    // The API itself takes nothing that the schema does not.
    for spec in [
        json!({"approved": {"pools": []}}),
        json!({"banned": "true"}),
        json!({"reason": "x".repeat(101)}),
        json!({"forget": "A"}),
        json!({"approved": {"pools": vec!["worker"; 33]}}),
    ] {
        let patch = json!({ "spec": spec }).to_string();
        let output = site.try_kubectl(&["patch", "attestednode", &name, "--type=merge", "-p", &patch]);
        assert!(!output.status.success(), "{spec}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("is invalid"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_46_invalid_attested_node_objects_are_ignored() {
    let site = Site::with("edit");
    // Past the schema, as if it were another: of any shape and size, and more than are looked at at once.
    let strange = |name: &str, spec: Value| site.api.put(object(name, &spec));
    strange(
        "worker-1",
        json!({"banned": true, "approved": {"pools": ["worker"]}, "forget": "worker-7"}),
    );
    strange(&object_name("gcp:nobody/1").unwrap(), json!({"banned": true}));
    strange("tpm-0000", json!({"approved": {"pools": ["worker"]}}));
    let misfit = named(&tpm());
    strange(&misfit, json!([1, {"banned": true}]));
    strange("large", json!({"reason": "x".repeat(1024 * 1024)}));
    for number in 0..40 {
        strange(&format!("many-{number}"), json!({"banned": true}));
    }
    let mut status = object("of-another", &json!({}));
    status["status"] = json!({"conditions": "none", "identity": 7});
    site.api.put(status);
    // One that pretends to be another machine.
    let victim = tpm();
    let mut pretends = object(&object_name("aws:1/i-1").unwrap(), &json!({"banned": true}));
    pretends["status"] = json!({"identity": format!("tpm:{}", digest(&victim)), "attestation": {"at": "2026-01-01T00:00:00Z", "by": "tpm", "pool": "worker", "record": "0"}});
    site.api.put(pretends);
    // One of a machine that will come, too large to be written once more.
    let late = tpm();
    let mut large = object(&named(&late), &json!({}));
    large["metadata"]["annotations"] = json!({"a": "x".repeat(2 * 1024 * 1024)});
    site.api.put(large);
    let mut site = site;
    site.gateway.run();
    site.gateway.endorse(&late, &[]);
    site.boots(&late).await;
    let (_, object) = site.attested("worker-7").await;
    site.patch(&object, &json!({"banned": true}));
    site.wait_says(&object, "Banned", "True", "ByThisObject").await;
    site.wait_says("worker-1", "Accepted", "False", "NotAMachine").await;
    shown(&site.api, "it is said once", || {
        site.event_notes("worker-1", "EditNotDone").len() == 1
    })
    .await;
    site.gateway.endorse(&victim, &[]);
    site.boots(&victim).await;
    assert_eq!(site.gateway.wait_for_acts(1, "node.revoke").len(), 1);
    // All by the test's own command.
    for act in site.gateway.wait_for_acts(3, "ek.add") {
        assert!(act["admin"]["by"]["object"].is_null(), "{act}");
    }
    assert!(site.gateway.acts("node.forget").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn attested_nodes_catch_up_after_an_api_outage() {
    let mut site = Site::start("edit");
    let (case, object) = site.attested("worker-7").await;
    let at = |site: &Site| site.node(&object).unwrap()["status"]["config"]["record"].clone();
    let last = |site: &Site| site.gateway.records().last().unwrap()["id"].clone();
    // The API is away, and the gateway is killed meanwhile: no boot waits for it, and nothing is lost.
    site.api.disturb(Disturbance::Down);
    site.boots(&case).await;
    let second = tpm();
    site.gateway.endorse(&second, &["--name", "worker-8"]);
    site.boots(&second).await;
    site.gateway.kill();
    site.api.recover();
    site.api.restart(RestartHistory::Lost);
    // Edited while no gateway is there.
    site.patch(&object, &json!({"banned": true}));
    site.gateway.run();
    site.wait_state(&named(&second), "Trusted").await;
    site.wait_state(&object, "Banned").await;
    let of_case = |record: &Value| record["identity"] == format!("tpm:{}", digest(&case)) && record["decision"] == "config";
    let expected = site.gateway.records().into_iter().rfind(of_case).unwrap()["id"].clone();
    shown(&site.api, "the boot is shown that was before", || at(&site) == expected).await;
    assert_eq!(site.refused(&case).await, "node-revoked");
    // Answers are lost, and others write in between: it comes to the same.
    site.patch(&object, &json!({"banned": false}));
    site.wait_says(&object, "Banned", "False", "NotBanned").await;
    site.api.befall([Mishap::Done, Mishap::NotDone, Mishap::Done]);
    site.boots(&case).await;
    shown(&site.api, "it is shown nonetheless", || at(&site) == last(&site)).await;
    site.api.recover();
    // A write that comes late is of a version that there is no more.
    site.api.befall([Mishap::Late]);
    site.boots(&case).await;
    shown(&site.api, "it is shown, and was sent once more", || {
        at(&site) == last(&site) && site.api.is_over()
    })
    .await;
    site.boots(&case).await;
    shown(&site.api, "the next one is shown", || at(&site) == last(&site)).await;
    let told = |site: &Site| site.node(&object).unwrap()["status"].clone();
    let before = told(&site);
    site.api.let_through();
    for number in 0..5 {
        site.kubectl(&["annotate", "attestednode", &object, "--overwrite", &format!("a={number}")]);
    }
    assert_eq!(told(&site), before);
    site.boots(&case).await;
    shown(&site.api, "it is shown though others write", || at(&site) == last(&site)).await;
    // No right, and no such kind: said, and the gateway serves on.
    site.api
        .remove("customresourcedefinitions", "", "attestednodes.attest-gateway.internal");
    site.api.break_watches();
    site.boots(&case).await;
    let (gateway, checked) = (&site.gateway, || site.gateway.command(&["check"]));
    gateway.line(|line| line.contains("cluster: watch of attested nodes lost, using cached state"));
    let said = checked();
    assert!(said.contains("DEGRADED") && said.contains("cluster: attested nodes: "), "{said}");
    // The kind of another release alone.
    let mut other = part().remove(0);
    other["spec"]["versions"][0]["name"] = "v1beta1".into();
    site.api.put(other);
    let said = checked();
    let version = format!(
        "the API serves version v1beta1, and release {} reads v1alpha1",
        env!("CARGO_PKG_VERSION")
    );
    assert!(said.contains(&format!("DEGRADED cluster: attested nodes: {version}")), "{said}");
    part().into_iter().for_each(|object| site.api.put(object));
    shown(&site.api, "it is shown when the kind is back", || {
        site.node(&object).is_some() && at(&site) == last(&site)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attested_nodes_are_labelled_with_node_and_pool() {
    const NODE: &str = "attest-gateway.internal/node";
    const POOL: &str = "attest-gateway.internal/pool";
    let site = Site::start("edit");
    let (_, object) = site.attested("worker-7").await;
    let (_, other) = site.attested("worker-8").await;
    let label = |name: &str, label: &str| site.node(name).unwrap()["metadata"]["labels"][label].clone();
    shown(&site.api, "they are labelled", || {
        label(&object, NODE) == "worker-7" && label(&other, NODE) == "worker-8" && label(&object, POOL) == "worker"
    })
    .await;
    let found = site.kubectl(&["get", "an", "-l", &format!("{NODE}=worker-7"), "-o", "name"]);
    assert_eq!(found.trim(), format!("attestednode.attest-gateway.internal/{object}"));
    let found = site.kubectl(&["get", "an", "-l", &format!("{POOL}=worker"), "-o", "name"]);
    assert_eq!(found.lines().count(), 2);
    // What somebody else writes there is put back; what is theirs stays.
    let generation = site.node(&object).unwrap()["metadata"]["generation"].clone();
    site.kubectl(&["label", "an", &other, "--overwrite", &format!("{NODE}=worker-7"), "rack=a"]);
    shown(&site.api, "the label is put back", || label(&other, NODE) == "worker-8").await;
    assert_eq!(label(&other, "rack"), "a");
    assert_eq!(site.node(&object).unwrap()["metadata"]["generation"], generation);
    // A name that is freed is none to be found by.
    site.patch(&object, &json!({"forget": "worker-7"}));
    shown(&site.api, "the label is gone", || label(&object, NODE).is_null()).await;
    assert_eq!(site.kubectl(&["get", "an", "-l", &format!("{NODE}=worker-7"), "-o", "name"]), "");
}
