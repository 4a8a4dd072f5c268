//! Rehearsals: the decision of a boot, of which only the record is kept.

use attest::nonce::PURPOSE_CONFIG;
use attest::protocol::{Blob, ChallengeRequest, ChallengeResponse, Evidence, EvidenceRequest, RehearsalResponse};
use attest::purpose::REHEARSAL;
use attest::tpm::boot_complete::{BOOT_COMPLETE_PCR, CLOSING_WORD, extended};
use attest::{HashAlg, Kind, SpkiSha256};
use attest_gateway::credentials::challenges;
use attest_gateway::credentials::seal::SealKeyRing;
use serde_json::{Value, json};

use crate::cloud_evidence::machine::{Machine, REGION};
use crate::cloud_evidence::site::{self, DOCUMENT};
use crate::support::node::Node;
use crate::support::soft_tpm::SoftKey;
use crate::support::{Answer, Case, Gateway, POOL, next_boot, tpm};
use crate::waiting::{SECTION, pending, set_waiting, strict, updated};

/// Rehearses a boot of this machine, by the challenge that the gateway gives for it.
async fn rehearses(gateway: &Gateway, node: &mut Node) -> RehearsalResponse {
    let key = SpkiSha256::from_certificate(&gateway.certificate()).unwrap();
    let request = ChallengeRequest {
        rehearsal: true,
        ..node.challenge_request()
    };
    let challenged = gateway.post("/v1/attest/challenge", &request).await;
    assert_eq!(challenged.status, 200, "{challenged:?}");
    let evidence = node.evidence(&challenged, &key);
    let answer = gateway.post("/v1/attest/evidence", &evidence).await;
    assert!(!String::from_utf8_lossy(&answer.body).contains("ticket."));
    let rehearsed = said(&answer);
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "challenge-spent");
    rehearsed
}

/// Rehearses with a challenge that the test seals.
async fn rehearses_as(gateway: &Gateway, case: Case, name: Option<&str>) -> Answer {
    let mut challenge = gateway.challenge(&case, name);
    REHEARSAL.clone_into(&mut challenge.purpose);
    gateway.post("/v1/attest/evidence", &gateway.answer(case, &challenge)).await
}

fn said(answer: &Answer) -> RehearsalResponse {
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap()
}

fn records(gateway: &Gateway) -> Vec<Value> {
    let all = gateway.records().into_iter();
    all.filter(|line| line["decision"] == "rehearsal").collect()
}

/// Audits the log; returns the result.
fn audited(gateway: &Gateway) -> String {
    let output = gateway.try_command(&["log", "audit"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// Returns what the store and the metrics say of machines.
fn traces(gateway: &Gateway) -> String {
    let list = gateway.command(&["machines", "list", "--output", "json"]);
    let status: Value = serde_json::from_str(&gateway.command(&["status", "--output", "json"])).unwrap();
    format!("{list}{}{}", status["waiting"], status["today"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rehearsal_says_what_a_boot_would_get_and_keeps_nothing() {
    let gateway = Gateway::start();
    let (mut node, case) = (Node::new(), tpm());
    gateway.command(&["ek", "add", &node.ek()]);
    gateway.endorse(&case, &[]);
    let before = traces(&gateway);
    let rehearsed = rehearses(&gateway, &mut node).await;
    assert_eq!((rehearsed.grant.as_deref(), &rehearsed.refusal), (Some("full"), &None));
    assert!(
        !rehearsed.requirements.is_empty() && rehearsed.requirements.iter().all(|one| one.code.is_none() && one.section == "tpm"),
        "{rehearsed:?}"
    );
    // A name that it asks for stays free.
    let answer = said(&rehearses_as(&gateway, next_boot(&case), Some("worker-7")).await);
    assert_eq!(answer.name.as_deref(), Some("worker-7"));
    assert_eq!(traces(&gateway), before);
    let all = records(&gateway);
    let record = &all[0];
    assert_eq!(
        (all.len(), &record["verdict"], &record["grant"]),
        (3, &json!("trusted"), &json!("full"))
    );
    assert_eq!(all[1]["code"], "challenge-spent");
    assert_eq!(record["id"].as_str(), rehearsed.decision.as_deref());
    assert!(record["ticket"].is_null() && record["basis"]["evidence"].is_object());
    gateway.command(&["ek", "add", &node.ek(), "--name", "worker-7"]);
    gateway.attest(case, Some("worker-7")).await.refused(403, "node-name-taken");
    let audit = audited(&gateway);
    assert!(audit.contains(" whole"), "{audit}");
}

/// Evidence for one purpose is worth nothing for the other.
#[tokio::test(flavor = "multi_thread")]
async fn evidence_of_a_rehearsal_earns_no_ticket() {
    let gateway = Gateway::start();
    let seal = SealKeyRing::open(&gateway.path("state/seal.key")).unwrap();
    for (signed, sealed) in [(REHEARSAL, PURPOSE_CONFIG), (PURPOSE_CONFIG, REHEARSAL)] {
        let case = tpm();
        gateway.endorse(&case, &[]);
        let mut challenge = gateway.challenge(&case, None);
        signed.clone_into(&mut challenge.purpose);
        let mut asks = gateway.answer(case, &challenge);
        sealed.clone_into(&mut challenge.purpose);
        asks.challenge = challenges::seal(&seal, &challenge).unwrap();
        let answer = gateway.post("/v1/attest/evidence", &asks).await;
        match sealed {
            REHEARSAL => assert_eq!(said(&answer).refusal.unwrap().code, "quote-extra-data"),
            _ => answer.refused(403, "quote-extra-data"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_booted_machine_can_rehearse() {
    let gateway = Gateway::init();
    let says = "endorsement = \"allowlist\"\nonly_while_booting = true";
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", says);
    let mut gateway = gateway;
    gateway.run();
    let door = extended(HashAlg::Sha256, &[0; 32], CLOSING_WORD);
    let pcrs = |with_door: bool| {
        let door = with_door.then(|| (BOOT_COMPLETE_PCR, door.clone()));
        (0..8).map(|pcr| (pcr, vec![pcr; 32])).chain(door).collect()
    };
    let case = Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, pcrs(false));
    gateway.endorse(&case, &[]);
    let booted = Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, pcrs(true)).but(|booted| booted.ek_area = case.ek_area.clone());
    gateway.attest(booted, None).await.refused(403, "tpm-boot-is-over");
    let rehearsed = said(&rehearses_as(&gateway, case, None).await);
    assert_eq!(rehearsed.grant.as_deref(), Some("full"), "{rehearsed:?}");
    // What decided is in the record.
    assert_eq!(records(&gateway)[0]["basis"]["policy"]["tpm"]["only_while_booting"], Value::Null);
    let audit = audited(&gateway);
    assert!(audit.contains(" whole"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_values_are_named_and_nobody_is_asked() {
    let mut gateway = Gateway::start();
    let mut node = Node::new();
    gateway.command(&["ek", "add", &node.ek()]);
    let known = updated("loader 1");
    strict(&mut gateway, &mut node, &known, SECTION).await;
    let new = updated("loader 2");
    node.has_booted(new.build(), &new.pcrs(HashAlg::Sha256));
    let rehearsed = rehearses(&gateway, &mut node).await;
    assert!(rehearsed.acceptable && rehearsed.grant.is_none(), "{rehearsed:?}");
    assert_eq!(rehearsed.refusal.unwrap().code, "boot-not-accepted");
    let unmet: Vec<_> = rehearsed.requirements.iter().filter(|one| one.code.is_some()).collect();
    assert!(
        unmet.len() == 1 && unmet[0].code.as_deref() == Some("boot-not-accepted"),
        "{unmet:?}"
    );
    // No accepted value is told.
    let told = serde_json::to_string(&rehearsed.requirements).unwrap();
    let digits = |text: &str| text.split(|c: char| !c.is_ascii_hexdigit()).any(|word| word.len() >= 32);
    assert!(!digits(&told), "{told}");
    assert!(pending(&gateway).is_empty());
    let record = &records(&gateway)[0];
    assert!(record["acceptable"]["values"].is_array(), "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_revoked_machines_are_refused_before_they_show_anything() {
    let mut gateway = Gateway::init();
    set_waiting(&gateway, "\n[waiting]\nmachines = 1\nunknown = \"wait\"\n");
    gateway.run();
    let (revoked, unknown) = (Node::new(), Node::new());
    gateway.command(&["ek", "add", &revoked.ek()]);
    gateway.command(&["node", "revoke", &revoked.ek(), "--reason", "sold"]);
    let before = traces(&gateway);
    for (node, code) in [(&revoked, "node-revoked"), (&unknown, "ek-not-endorsed")] {
        let request = ChallengeRequest {
            rehearsal: true,
            ..node.challenge_request()
        };
        gateway.post("/v1/attest/challenge", &request).await.refused(403, code);
    }
    assert!(pending(&gateway).is_empty());
    let (all, rehearsals) = (gateway.records(), records(&gateway));
    let codes: Vec<_> = rehearsals.iter().map(|record| (&record["verdict"], &record["code"])).collect();
    let refused = json!("refused");
    assert_eq!(codes, [(&refused, &json!("node-revoked")), (&refused, &json!("ek-not-endorsed"))]);
    assert!(all.iter().all(|record| record["decision"] != "challenge"), "{all:?}");
    gateway.line(|line| line.contains("REHEARSED ") && line.contains("code=ek-not-endorsed: would be refused"));
    let shown = gateway.command(&["log", "show"]);
    assert!(
        shown.contains("rehearsal refused") && !shown.contains("challenge refused"),
        "{shown}"
    );
    let audit = audited(&gateway);
    assert!(audit.contains("by digest"), "{audit}");
    assert_eq!(traces(&gateway), before);
    // It attests no key, and guesses no token.
    let node = Node::new();
    gateway.command(&["ek", "add", &node.ek()]);
    let plain = ChallengeRequest {
        rehearsal: true,
        ..node.challenge_request()
    };
    let (mut with_key, mut with_token) = (plain.clone(), plain);
    with_key.kubelet_key_sha256 = Some([7; 32].into());
    with_token.attester.token = Some(attest::protocol::Nothing {});
    for request in [with_key, with_token] {
        gateway
            .post("/v1/attest/challenge", &request)
            .await
            .refused(400, "malformed-request");
    }
}

/// Shows the identity document of an instance. Returns the answer.
async fn shows_document(gateway: &Gateway, machine: &Machine, rehearsal: bool) -> Answer {
    let request = ChallengeRequest {
        rehearsal,
        ..machine.request(&[Kind::AwsIdentityDocument])
    };
    let challenged = gateway.post("/v1/attest/challenge", &request).await;
    let ChallengeResponse { challenge, .. } = serde_json::from_slice(&challenged.body).unwrap();
    let evidence = Evidence {
        aws_identity_document: Some(machine.document(REGION.sign(&machine.aws.identity_document()))),
        claimant: Some(Blob(machine.claimant.to_vec())),
        ..Evidence::default()
    };
    gateway
        .post(
            "/v1/attest/evidence",
            &EvidenceRequest {
                challenge,
                evidence,
                config: None,
            },
        )
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rehearsal_claims_no_instance() {
    let mut gateway = site::init(r#"[["aws-identity-document"]]"#, &[DOCUMENT]);
    gateway.run();
    let (one, other) = (Machine::another(), Machine::another());
    assert_eq!(said(&shows_document(&gateway, &one, true).await).grant.as_deref(), Some("full"));
    // Whoever reads the log could claim the instance by its document.
    assert!(records(&gateway)[0]["basis"]["evidence"].is_null());
    shows_document(&gateway, &other, false).await.ticket();
    let rehearsed = said(&shows_document(&gateway, &one, true).await);
    assert_eq!(rehearsed.refusal.unwrap().code, "instance-claimed");
    let audit = audited(&gateway);
    assert!(audit.contains(" whole"), "{audit}");
}
