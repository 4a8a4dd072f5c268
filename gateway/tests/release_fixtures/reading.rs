//! Reading of fixtures by this build.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use attest::protocol::{
    ChallengeRequest, ChallengeResponse, Discovery, EvidenceRequest, EvidenceResponse, Problem, ReportRequest, ReportResponse,
};
use attest_gateway::credentials::seal::Sealed;
use attest_gateway::settings::Settings;
use attest_store::AnyStore;
use attest_system::clock::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;

use super::life::Message;
use super::{BACKUP, Engine, FACTS, Facts, Place, copy, read_json};
use crate::support::served::bind;
use crate::support::{Gateway, LIMIT, POOL, auditor, bearer};

/// Opens a gateway's state by the commands and by the server.
pub(super) async fn gateway(fixture: &Path, engine: Engine) {
    let name = fixture.display();
    let facts: Facts = read_json(&fixture.join(FACTS));
    let gateway = Gateway::from_folder(|folder| copy(fixture, folder));
    let place = Place::start(engine);
    place.load(fixture);
    // Only addresses are those of today.
    let settings = place.settings(&gateway);
    let endpoints = settings.lines().find(|line| line.starts_with("endpoints = "));
    let text = fs::read_to_string(gateway.path("gateway.toml")).unwrap();
    let lines = text.lines().map(|line| match line.split(' ').next() {
        Some("listen") => format!("listen = \"{}\"\n", gateway.address()),
        Some("endpoints") => format!("{}\n", endpoints.unwrap()),
        _ => format!("{line}\n"),
    });
    fs::write(gateway.path("gateway.toml"), lines.collect::<String>()).unwrap();

    let checked = gateway.command(&["check"]);
    assert!(!checked.contains("ERROR") && !checked.contains("DEGRADED"), "{name}: {checked}");
    let nodes = gateway.command(&["machines", "list"]);
    let row = |node: &String| {
        nodes
            .lines()
            .find(|line| line.contains(node.as_str()))
            .unwrap_or_else(|| panic!("{name}: no {node} in {nodes}"))
    };
    for node in &facts.nodes {
        assert_eq!(row(node).contains("Banned"), facts.revoked.contains(node), "{name}: {nodes}");
    }
    let tokens = gateway.command(&["token", "list"]);
    assert!(facts.tokens.iter().all(|token| tokens.contains(token)), "{name}: {tokens}");
    assert!(gateway.command(&["machines", "list"]).contains(&facts.nodes[0]));
    let records = gateway.command(&["log", "show", "--all"]);
    assert!(facts.nodes.iter().all(|node| records.contains(node)), "{name}: {records}");
    is_whole(&gateway, &fixture.display().to_string());

    // A node whose gateway was upgraded between its attestation and its boot.
    let settings = || Settings::load(&gateway.path("gateway.toml")).unwrap();
    let server = bind(&gateway, Clock::Fixed(facts.at + 1), || {
        Arc::new(AnyStore::open(&settings().store).unwrap())
    })
    .await;
    let served = Arc::clone(server.gateway());
    assert!(
        served.seal.unseal(Sealed::Challenge, &facts.challenge).is_ok(),
        "{name}: the challenge"
    );
    let (stop, stopped) = oneshot::channel::<()>();
    let done = tokio::spawn(server.serve(async { drop(stopped.await) }));
    let full = gateway.rendered(POOL, "full");
    gateway.config("/config/worker", &[&bearer(&facts.ticket)]).await.is_config(&full);
    if let Place::Cluster(api) = &place {
        let record = gateway.records().pop().unwrap()["id"].clone();
        let is_shown = || {
            api.all("attestednodes")
                .iter()
                .any(|node| node["status"]["config"]["record"] == record)
        };
        assert!(api.comes_to(LIMIT, is_shown).await, "{name}: {:#?}", api.all("attestednodes"));
        let banned = api
            .all("attestednodes")
            .iter()
            .filter(|node| node["status"]["state"] == "Banned")
            .count();
        assert_eq!(banned, facts.revoked.len(), "{name}");
    }
    stop.send(()).unwrap();
    done.await.unwrap();
    drop(served);
    is_whole(&gateway, &format!("{name}, served on"));
    let backup = gateway.path(BACKUP);
    if backup.exists() {
        let restored = gateway.command(&["restore", backup.to_str().unwrap(), "--replace"]);
        assert!(restored.contains("accepted store"), "{name}: {restored}");
        let nodes = gateway.command(&["machines", "list"]);
        assert!(facts.nodes.iter().all(|node| nodes.contains(node)), "{name}: {nodes}");
        is_whole(&gateway, &format!("{name}, restored"));
    }
}

fn is_whole(gateway: &Gateway, name: &str) {
    let audited = gateway.command(&["log", "audit"]);
    assert!(
        audited.contains(" whole") && !audited.contains("NOT WHOLE") && !audited.contains("DIFFERENT"),
        "{name}: {audited}"
    );
}

/// Reads a log with removed segments.
pub(super) fn segments(fixture: &Path) {
    let mut audit: Command = auditor();
    audit
        .args(["log", "audit", "--log"])
        .arg(fixture)
        .arg("--log-key")
        .arg(fixture.join("log.pub"));
    let output = audit.output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(
        output.status.success() && said.contains("removed by rule: lines 1 to "),
        "{}: {said}",
        fixture.display()
    );
}

/// Decodes and encodes each message: nothing of it is lost.
pub(super) fn messages(fixture: &Path) {
    for Message { name, body } in read_json::<Vec<Message>>(fixture) {
        let again = match name.as_str() {
            "discovery" => again::<Discovery>(&body),
            "challenge request" => again::<ChallengeRequest>(&body),
            "challenge response" => again::<ChallengeResponse>(&body),
            "evidence request" => again::<EvidenceRequest>(&body),
            "evidence response" => again::<EvidenceResponse>(&body),
            "report request" => again::<ReportRequest>(&body),
            "report response" => again::<ReportResponse>(&body),
            "problem" => again::<Problem>(&body),
            other => panic!("{}: no message {other}", fixture.display()),
        };
        assert_eq!(again, body, "{}: {name}", fixture.display());
    }
}

fn again<T: DeserializeOwned + Serialize>(body: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(body.clone()).unwrap()).unwrap()
}
