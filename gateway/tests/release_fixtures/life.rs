//! The life of a gateway, in a few minutes of which it writes each of its files: nodes attest by a token, a TPM and a document of a cloud.

use std::fs;
use std::path::Path;

use attest::protocol::{ChallengeRequest, ChallengeResponse, Evidence, EvidenceRequest, EvidenceResponse, REPORT_PATH};
use attest::{Kind, SpkiSha256};
use cloud_fixtures::kubernetes::KubernetesApi;
use serde::Serialize;
use serde_json::{Value, json};

use super::{BACKUP, ENGINES, Engine, FACTS, Facts, Place, RELEASE, copy, formats, write_json};
use crate::cloud_evidence::machine::{Machine, REGION};
use crate::cloud_evidence::site::{self, DOCUMENT, TPM};
use crate::support::node::Node;
use crate::support::{Answer, Gateway, LIMIT, POOL, bearer, now};
use crate::{log_retention, reports};

/// A message of the protocol, by its name.
#[derive(Debug, Clone, Serialize, serde::Deserialize)]
pub(super) struct Message {
    pub(super) name: String,
    pub(super) body: Value,
}

/// The gateway, and the messages so far.
struct Life {
    gateway: Gateway,
    key: SpkiSha256,
    messages: Vec<Message>,
}

impl Life {
    fn said(&mut self, name: &str, body: &impl Serialize) {
        self.messages.push(Message {
            name: name.to_owned(),
            body: serde_json::to_value(body).unwrap(),
        });
    }

    fn heard(&mut self, name: &str, answer: &Answer) {
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        self.said(name, &body);
    }

    async fn challenge(&mut self, request: &ChallengeRequest) -> ChallengeResponse {
        self.said("challenge request", request);
        let answer = self.gateway.post("/v1/attest/challenge", request).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        self.heard("challenge response", &answer);
        serde_json::from_slice(&answer.body).unwrap()
    }

    async fn show(&mut self, evidence: &EvidenceRequest) -> Answer {
        self.said("evidence request", evidence);
        let answer = self.gateway.post("/v1/attest/evidence", evidence).await;
        self.heard(if answer.status == 200 { "evidence response" } else { "problem" }, &answer);
        answer
    }

    /// Attests by a TPM.
    async fn attest(&mut self, node: &mut Node) -> Answer {
        let challenged = self.challenge(&node.challenge_request()).await;
        let evidence = node.answer(challenged, &self.key);
        self.show(&evidence).await
    }

    /// Asks for a challenge in vain.
    async fn is_refused(&mut self, node: &Node, code: &str) {
        let answer = self.gateway.post("/v1/attest/challenge", &node.challenge_request()).await;
        answer.refused(403, code);
        self.heard("problem", &answer);
    }

    /// Attests by a cloud's document.
    async fn attest_in_cloud(&mut self) -> Answer {
        let machine = Machine::new();
        let request = machine.request(&[Kind::AwsIdentityDocument]);
        let challenge = self.challenge(&request).await.challenge;
        let evidence = Evidence {
            aws_identity_document: Some(machine.document(REGION.sign(&machine.aws.identity_document()))),
            claimant: Some(attest::protocol::Blob(machine.claimant.to_vec())),
            ..Evidence::default()
        };
        self.show(&EvidenceRequest {
            challenge,
            evidence,
            config: None,
        })
        .await
    }

    /// Reports a failed boot, with the proof of this attestation.
    async fn report(&mut self, attested: &Answer) {
        let response: EvidenceResponse = serde_json::from_slice(&attested.body).unwrap();
        let mut report = reports::report();
        report["proof"] = json!(response.report);
        let answer = self.gateway.post(REPORT_PATH, &report).await;
        self.said("report request", &report);
        self.heard("report response", &answer);
    }

    async fn boot(&self, credential: &str) {
        let answer = self.gateway.config("/config/worker", &[&bearer(credential)]).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// Lets a gateway live, and saves its folder and its store there. Returns the messages.
pub(super) async fn live(engine: Engine, folder: &Path) -> Vec<Message> {
    assert!(ENGINES.contains(&engine));
    let gateway = site::init(r#"[["tpm"], ["aws-identity-document"]]"#, &[TPM, DOCUMENT]);
    gateway.edit_pool(POOL, "[grants]\n", "[grants]\ntoken = \"full\"\n");
    fs::remove_dir_all(gateway.path("pools/infra")).unwrap();
    let place = Place::start(engine);
    gateway.settings(&format!(
        "[attestation_log]\nname = \"gateway-1\"\n{}{}",
        site::KEYS_OF_FILE,
        place.settings(&gateway)
    ));
    if engine != Engine::Embedded {
        gateway.command(&["store", "create-key"]);
    }
    let key = SpkiSha256::from_certificate(&gateway.certificate()).unwrap();
    let mut life = Life {
        gateway,
        key,
        messages: Vec::new(),
    };
    life.gateway.run();
    let request = life.gateway.client.get(life.gateway.url("/v1/attest?pool=worker"));
    let discovery = Answer::send(request).await;
    life.heard("discovery", &discovery);
    // By a token, and by one that is revoked.
    let token = life.gateway.token(&["--name", "rack7", "--uses", "9"]);
    life.boot(&token).await;
    let revoked = life.gateway.token(&["--name", "rack8"]);
    life.gateway.command(&["token", "revoke", "rack8"]);
    let refused = life.gateway.config("/config/worker", &[&bearer(&revoked)]).await;
    refused.refused(403, "token-invalid");
    life.heard("problem", &refused);
    // By TPMs: one that goes on, one that is revoked, and one that nobody knows.
    let (mut one, mut two, stranger) = (Node::new(), Node::new(), Node::new());
    life.gateway.command(&["ek", "add", &one.ek(), "--name", "worker-1"]);
    life.gateway.command(&["ek", "add", &two.ek(), "--name", "worker-2"]);
    for node in [&mut one, &mut two] {
        let ticket = life.attest(node).await.ticket();
        life.boot(&ticket).await;
    }
    life.is_refused(&stranger, "ek-not-endorsed").await;
    let challenged = life.challenge(&two.challenge_request()).await;
    let evidence = two.answer(challenged, &life.key);
    life.gateway.command(&["node", "revoke", "worker-2", "--reason", "disk sold"]);
    life.show(&evidence).await.refused(403, "node-revoked");
    let ticket = life.attest_in_cloud().await.ticket();
    life.boot(&ticket).await;
    // What a node has in its hands during an upgrade.
    let answer = life.attest(&mut one).await;
    let ticket = answer.ticket();
    life.report(&answer).await;
    let challenge = life.challenge(&one.challenge_request()).await.challenge;
    life.gateway.command(&["seal", "rotate"]);
    for (count, verb) in [
        (2, "token.create"),
        (1, "token.revoke"),
        (2, "ek.add"),
        (1, "node.revoke"),
        // The gateway has made the keys that replicas share.
        (if engine == Engine::Embedded { 1 } else { 2 }, "seal.rotate"),
    ] {
        life.gateway.wait_for_acts(count, verb);
    }
    if let Place::Cluster(api) = &place {
        shown(api, &one, &two).await;
    }
    let at = now();
    life.gateway.terminate();
    assert!(life.gateway.wait().success());
    if engine == Engine::Embedded {
        life.gateway.command(&["backup", life.gateway.path(BACKUP).to_str().unwrap()]);
    }
    copy(&life.gateway.path(""), folder);
    place.save(folder);
    let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let facts = Facts {
        release: RELEASE.to_owned(),
        formats: formats(),
        at,
        nodes: text(&["worker-1", "worker-2"]),
        revoked: text(&["worker-2"]),
        tokens: text(&["rack7"]),
        ticket,
        challenge,
    };
    write_json(&folder.join(FACTS), &facts);
    life.messages
}

/// Waits until the machines' objects say what has become of them.
async fn shown(api: &KubernetesApi, one: &Node, two: &Node) {
    let state = |node: &Node| {
        api.get("attestednodes", "", &format!("tpm-{}", node.ek()))
            .map(|node| node["status"].clone())
    };
    let is_shown = || {
        let (one, two) = (state(one).unwrap_or_default(), state(two).unwrap_or_default());
        let has = |status: &Value, condition: &str| {
            status["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| one["type"] == condition))
        };
        let all = |status: &Value| {
            ["Attested", "ConfigServed", "Banned", "Approved"]
                .iter()
                .all(|condition| has(status, condition))
        };
        one["state"] == "Trusted"
            && one["report"].is_object()
            && two["state"] == "Banned"
            && two["code"].is_string()
            && all(&one)
            && all(&two)
            && api.all("attestednodes").len() == 3
    };
    assert!(api.comes_to(LIMIT, is_shown).await, "{:#?}", api.all("attestednodes"));
}

/// Writes a log of which two segments were removed, and the public half of its key.
pub(super) async fn segments(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    log_retention::with_removed_segments(folder, || ()).await;
    fs::remove_file(folder.join("attestation.lock")).unwrap();
}
