//! Ownership of an instance that has no TPM to identify it: it belongs to the first claimant.

use attest::Kind;
use attest::protocol::{Blob, Evidence};
use attest_store::{DecisionRecord, Embedded, EntryKind, StoreEntry, StoreError, Transact};
use serde_json::{Value, json};

use super::machine::{Asked, Machine, sha256};
use super::site::{self, AZURE_RULES, DOCUMENT, GCP, NITRO_TPM};

use crate::support::pending::{evidence, is_recorded_late};
use crate::support::{Gateway, bearer, now, serving_within, tpm};

const GCP_IDENTITY: &str = "gcp:example-project/152986662232938449";
const AZURE_IDENTITY: &str = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
const AWS_IDENTITY: &str = "aws:123456789012/i-0123456789abcdef0";
/// Setting that switches instance claims off.
const MEANS_NOTHING: &str = "first_use = \"any process on an instance may attest, at any time\"\n";

/// Starts a gateway for instances of Google's and Azure's.
fn start() -> Gateway {
    site::start(r#"[["gcp"], ["azure"]]"#, &[GCP, AZURE_RULES])
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_refuses_a_pod_after_the_nodes_claim() {
    let gateway = start();
    for (kind, identity) in [(Kind::Gcp, GCP_IDENTITY), (Kind::Azure, AZURE_IDENTITY)] {
        let node = Machine::new();
        let record = site::trusted(&gateway, &node.attest(&gateway, &[kind]).await, identity, &[kind]);
        // The node itself may come again: its answer was lost.
        site::trusted(&gateway, &node.attest(&gateway, &[kind]).await, identity, &[kind]);

        let pod = Machine::another();
        let answer = pod.attest(&gateway, &[kind]).await;
        let refused = site::refused(&gateway, &answer, "instance-claimed");
        let alert = refused["alerts"][0].as_str().unwrap();
        let first = format!("claimant:{}", sha256(&node.claimant));
        assert!(
            alert.contains(identity) && alert.contains("another claimant presents") && alert.contains(&first),
            "{alert}"
        );
        gateway.line(|line| line.contains("ALERT") && line.contains(identity));
        assert!(!String::from_utf8_lossy(&answer.body).contains(&first));

        // Nobody learns from the log what would make him the node: only the digest is there.
        let secret = serde_json::to_value(Blob(node.claimant.to_vec())).unwrap();
        let log = std::fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
        assert!(!log.contains(secret.as_str().unwrap()));
        assert_eq!(record["basis"]["cloud"]["claimant_sha256"], json!(sha256(&node.claimant)));
        let replay = |change: fn(&mut Value)| {
            let mut record = record.clone();
            change(&mut record["basis"]);
            site::replay_code(&gateway, &record)
        };
        let other = |basis: &mut Value| basis["cloud"]["claimant_sha256"] = json!("11".repeat(32));
        assert_eq!(replay(other), "claimant-mismatch");
        let unclaimed = |basis: &mut Value| {
            drop(basis["cloud"].as_object_mut().unwrap().remove("claimant_sha256"));
            drop(basis["challenge"]["subject"].as_object_mut().unwrap().remove("claimant_sha256"));
        };
        assert_eq!(replay(unclaimed), "claimant-missing");

        gateway.command(&["node", "release", identity]);
        site::trusted(&gateway, &pod.attest(&gateway, &[kind]).await, identity, &[kind]);
        site::refused(&gateway, &node.attest(&gateway, &[kind]).await, "instance-claimed");
    }
}

/// Tickets of the first claimant, used or not, are worthless once the administrator has released the instance.
#[tokio::test(flavor = "multi_thread")]
async fn attack_27_releasing_an_instance_invalidates_first_claimants_tickets() {
    let gateway = start();
    let pod = Machine::another();
    let ticket = async |machine: &Machine| bearer(&machine.attest(&gateway, &[Kind::Gcp]).await.ticket());
    let (used, unused) = (ticket(&pod).await, ticket(&pod).await);
    let fetch = async |ticket: &String| gateway.config("/config/worker", &[ticket]).await;
    assert_eq!(fetch(&used).await.status, 200);
    gateway.command(&["node", "release", GCP_IDENTITY]);
    for ticket in [&used, &unused] {
        fetch(ticket).await.refused(403, "ticket-withdrawn");
    }
    let node = Machine::new();
    let its = ticket(&node).await;
    for ticket in [&used, &unused] {
        fetch(ticket).await.refused(403, "ticket-withdrawn");
    }
    assert_eq!(fetch(&its).await.status, 200);
}

/// They stay worthless after the same machine has claimed the instance again, although the identity of its NitroTPM never changes.
#[tokio::test(flavor = "multi_thread")]
async fn attack_27_reclaiming_revives_no_ticket_from_before_release() {
    let unchecked = NITRO_TPM.replace("[\"123456789012\"]", "\"not checked\"");
    let gateway = site::start(r#"[["aws-nitro-tpm"]]"#, &[&unchecked]);
    let (_, instance) = AWS_IDENTITY.split_once('/').unwrap();
    let ticket = async || bearer(&Machine::new().attest(&gateway, &[Kind::AwsNitroTpm]).await.ticket());
    let fetch = async |ticket: &String| gateway.config("/config/worker", &[ticket]).await;
    let (used, unused) = (ticket().await, ticket().await);
    assert_eq!(fetch(&used).await.status, 200);
    gateway.command(&["node", "release", &format!("aws-nitrotpm:{instance}")]);
    // Since when it is whose is known by the second.
    let released = now();
    while now() == released {
        tokio::task::yield_now().await;
    }
    let its = ticket().await;
    for ticket in [&used, &unused] {
        fetch(ticket).await.refused(403, "ticket-withdrawn");
    }
    assert_eq!(fetch(&its).await.status, 200);
    // It may come again meanwhile: that is no other's.
    let again = ticket().await;
    for ticket in [&its, &again] {
        assert_eq!(fetch(ticket).await.status, 200);
    }
}

/// Verifies that the instance is unclaimed: another machine can claim it.
async fn is_free(gateway: &Gateway, kind: Kind, identity: &str) {
    let list = gateway.command(&["machines", "list"]);
    assert!(!list.contains(identity), "{list}");
    site::trusted(gateway, &Machine::another().attest(gateway, &[kind]).await, identity, &[kind]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_a_refused_machine_claims_no_instance() {
    let gateway = site::start(
        r#"[["gcp"], ["aws-identity-document"], ["aws-identity-document", "token"]]"#,
        &[GCP, DOCUMENT],
    );
    gateway.endorse(&tpm(), &["--name", "master-0"]);
    for (kind, identity) in [(Kind::Gcp, GCP_IDENTITY), (Kind::AwsIdentityDocument, AWS_IDENTITY)] {
        // Its name is another's.
        let pod = Machine::another().but(|machine| machine.name = Some("master-0".to_owned()));
        let record = site::refused(&gateway, &pod.attest(&gateway, &[kind]).await, "node-name-taken");
        // Whoever reads the document of an instance that is nobody's could claim it.
        assert_eq!(record["basis"].get("digests").is_some(), kind == Kind::AwsIdentityDocument);
        is_free(&gateway, kind, identity).await;
        // Refused later, who has it keeps it.
        gateway.command(&["node", "release", identity]);
        let node = Machine::new();
        site::trusted(&gateway, &node.attest(&gateway, &[kind]).await, identity, &[kind]);
        let renamed = Machine::new().but(|machine| machine.name = Some("master-0".to_owned()));
        site::refused(&gateway, &renamed.attest(&gateway, &[kind]).await, "node-name-taken");
        site::refused(&gateway, &Machine::another().attest(&gateway, &[kind]).await, "instance-claimed");
    }
}

/// Claims an instance for a decision that is not recorded.
async fn claim_for(store: &Embedded, decided: DecisionRecord, instance: &'static str, holder: &'static str) {
    let id = decided.decision.clone();
    let claimed = store.decide(&id, move |transaction| {
        let value = json!({ "holder": holder, "at": now(), "peer": "::1" }).to_string();
        let id = instance.to_owned();
        transaction.put(EntryKind::Instance, StoreEntry { id, value })?;
        transaction.decide(decided.clone())
    });
    let claimed: Result<(), StoreError> = claimed.await;
    claimed.unwrap();
}

fn decided(id: &str) -> DecisionRecord {
    evidence(id, now() + 1, "ab".repeat(32).parse().unwrap())
}

/// Verifies that the log has this decision once, recorded late, and whether its node has got the answer.
fn has_late(gateway: &Gateway, answered: &str, is_it: impl Fn(&Value) -> bool) {
    let records = gateway.records();
    let late: Vec<_> = records.iter().filter(|record| is_it(record)).collect();
    assert_eq!(late.len(), 1, "{records:?}");
    is_recorded_late(late[0], answered);
}

/// Instance and name belong to the node from the decision on: it remains valid, and the next start records it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_27_claims_survive_an_unanswered_decision() {
    const LIMIT_BLOCKS: usize = 400;
    let mut gateway = site::init(r#"[["gcp"]]"#, &[GCP]);
    // There is a store before there is a log.
    gateway.command(&["machines", "list"]);
    let filler = format!("{{\"filler\":\"{}\"}}\n", "x".repeat(LIMIT_BLOCKS * 1024 - 14 - 100));
    std::fs::write(gateway.path("state/attestation.jsonl"), &filler).unwrap();
    gateway.run_as(serving_within(&gateway, LIMIT_BLOCKS));
    let node = Machine::new().but(|machine| machine.name = Some("worker-0".to_owned()));
    node.attest(&gateway, &[Kind::Gcp]).await.refused(503, "unavailable");
    gateway.kill();
    gateway.run();
    has_late(&gateway, "unknown", |record| record["decision"] == "evidence");
    let list = gateway.command(&["machines", "list"]);
    assert!(list.contains("worker-0") && list.contains(GCP_IDENTITY), "{list}");
    let pod = Machine::another();
    site::refused(&gateway, &pod.attest(&gateway, &[Kind::Gcp]).await, "instance-claimed");
    // It comes again with the secret that it has kept, and is the same one.
    drop(node.attest(&gateway, &[Kind::Gcp]).await.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_claims_survive_a_crash_and_are_recorded() {
    let mut gateway = start();
    let azure = [Kind::Azure];
    site::trusted(&gateway, &Machine::new().attest(&gateway, &azure).await, AZURE_IDENTITY, &azure);
    gateway.kill();
    // As if it had been killed between the two: the claim is there, the record is not.
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    let decision = "00".repeat(16);
    claim_for(&store, decided(&decision), GCP_IDENTITY, "claimant:00").await;
    drop(store);
    gateway.run();
    gateway.line(|line| line.contains("1 recorded, 0 uses of tickets and tokens given back"));
    has_late(&gateway, "unanswered", |record| record["id"] == *decision);
    site::refused(
        &gateway,
        &Machine::another().attest(&gateway, &[Kind::Gcp]).await,
        "instance-claimed",
    );
    site::refused(&gateway, &Machine::another().attest(&gateway, &azure).await, "instance-claimed");
    // Who has it is told by the log, and the administrator decides.
    gateway.command(&["node", "release", GCP_IDENTITY]);
    is_free(&gateway, Kind::Gcp, GCP_IDENTITY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_records_documents_of_claimed_instances() {
    let gateway = site::start(r#"[["aws-identity-document"]]"#, &[DOCUMENT]);
    let kinds = [Kind::AwsIdentityDocument];
    gateway.command(&["machines", "list"]);
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    claim_for(&store, decided(&"00".repeat(16)), AWS_IDENTITY, "claimant:00").await;
    drop(store);
    let record = site::refused(&gateway, &Machine::new().attest(&gateway, &kinds).await, "instance-claimed");
    assert!(record["basis"].get("evidence").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_refuses_a_missing_or_wrong_first_boot_secret() {
    let gateway = start();
    let node = Machine::new();
    site::trusted(&gateway, &node.attest(&gateway, &[Kind::Gcp]).await, GCP_IDENTITY, &[Kind::Gcp]);
    let mut request = Machine::another().request(&[Kind::Gcp]);
    request.attester.claimant_sha256 = None;
    let answer = gateway.post("/v1/attest/challenge", &request).await;
    site::refused(&gateway, &answer, "claimant-missing");
    // The digest is in the log, and is not enough.
    let knows_the_digest = Machine::new();
    for claimant in [
        None,
        Some(Blob(vec![0x34; 32])),
        Some(Blob(sha256(&node.claimant).as_bytes().to_vec())),
    ] {
        let alter = |evidence: &mut Evidence, _: &Asked| evidence.claimant = claimant;
        let answer = knows_the_digest.attest_altered(&gateway, &[Kind::Gcp], alter).await;
        site::refused(&gateway, &answer, "claimant-mismatch");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disabling_instance_claims_prints_a_warning() {
    let gateway = site::start(
        &format!("[[\"gcp\"], [\"aws-identity-document\"]]\n{MEANS_NOTHING}"),
        &[GCP, DOCUMENT],
    );
    let warning = "pool worker: any process that reaches an instance's metadata server gets the attested grant";
    gateway.line(|line| line.contains(warning));
    assert!(String::from_utf8_lossy(&gateway.try_command(&["check"]).stdout).contains(warning));
    for machine in [Machine::new(), Machine::another()] {
        site::trusted(&gateway, &machine.attest(&gateway, &[Kind::Gcp]).await, GCP_IDENTITY, &[Kind::Gcp]);
    }
    // What can be copied is bound all the same.
    let kinds = [Kind::AwsIdentityDocument];
    site::trusted(&gateway, &Machine::new().attest(&gateway, &kinds).await, AWS_IDENTITY, &kinds);
    site::refused(&gateway, &Machine::another().attest(&gateway, &kinds).await, "instance-claimed");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_an_unrecorded_claim_transfer_invalidates_tickets() {
    let gateway = site::start(r#"[["gcp"]]"#, &[GCP]);
    let ticket = bearer(&Machine::new().attest(&gateway, &[Kind::Gcp]).await.ticket());
    let fetch = async || gateway.config("/config/worker", &[&ticket]).await;
    assert_eq!(fetch().await.status, 200);
    // As the instance's own TPM does.
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    claim_for(&store, decided(&"00".repeat(16)), GCP_IDENTITY, "tpm:00").await;
    fetch().await.refused(403, "ticket-withdrawn");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_claiming_an_instance_invalidates_its_unclaimed_tickets() {
    let gateway = site::init(&format!("[[\"gcp\"]]\n{MEANS_NOTHING}"), &[GCP]);
    site::pool(&gateway, "binds", r#"[["gcp"]]"#, &[GCP]);
    site::configs(&gateway, "binds");
    let mut gateway = gateway;
    gateway.run();
    let [first, second] = [Machine::new(), Machine::another()];
    let mut tickets = Vec::new();
    for machine in [&first, &second] {
        tickets.push(bearer(&machine.attest(&gateway, &[Kind::Gcp]).await.ticket()));
    }
    let fetch = async |ticket: &str| gateway.config("/config/worker", &[ticket]).await;
    for ticket in &tickets {
        assert_eq!(fetch(ticket).await.status, 200);
    }
    // The node shows who it is, in a pool where that binds.
    let binding = Machine::new().but(|machine| machine.pool = "binds".to_owned());
    drop(binding.attest(&gateway, &[Kind::Gcp]).await.ticket());
    for ticket in &tickets {
        fetch(ticket).await.refused(403, "ticket-withdrawn");
    }
    // From now on it stands on what belongs to the node, and ends with that.
    let ticket = bearer(&first.attest(&gateway, &[Kind::Gcp]).await.ticket());
    assert_eq!(fetch(&ticket).await.status, 200);
    gateway.command(&["node", "release", GCP_IDENTITY]);
    fetch(&ticket).await.refused(403, "ticket-withdrawn");
}
