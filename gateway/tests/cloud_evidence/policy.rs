//! Kinds of evidence that a node is asked for, and the fate of a challenge after a change of the pool.

use attest::Kind;
use serde_json::json;

use super::machine::{Machine, gcp_evidence};
use super::site::{self, AZURE_RULES, DOCUMENT, GCP, TPM};
use crate::support::{Answer, Gateway, tpm};

/// Returns a machine with a TPM, endorsed or not.
fn with_tpm(gateway: &Gateway, endorsed: bool) -> Machine {
    let case = tpm();
    if endorsed {
        gateway.endorse(&case, &[]);
    }
    Machine::new().but(|machine| machine.tpm = Some(case))
}

#[tokio::test(flavor = "multi_thread")]
async fn asks_for_the_first_evidence_combination_offered() {
    let gateway = site::start(
        r#"[["tpm", "gcp"], ["azure"], ["gcp"], ["aws-identity-document", "token"], ["tpm"]]"#,
        &[TPM, GCP, AZURE_RULES, DOCUMENT],
    );
    let asked = async |endorsed: bool, offer: &[Kind], expect: &[Kind]| {
        let machine = with_tpm(&gateway, endorsed);
        let task = machine.ask(&gateway, offer).await.task;
        assert_eq!(task.kinds().into_iter().collect::<Vec<_>>(), expect, "{offer:?}");
    };
    use Kind::{AwsIdentityDocument, Azure, Gcp, Token, Tpm};
    asked(true, &[Tpm, Gcp], &[Tpm, Gcp]).await;
    asked(true, &[Tpm, Gcp, Azure, Token], &[Tpm, Gcp]).await;
    asked(true, &[Gcp], &[Gcp]).await;
    asked(true, &[Gcp, Azure], &[Azure]).await;
    asked(true, &[Tpm], &[Tpm]).await;
    asked(true, &[AwsIdentityDocument, Token, Tpm], &[AwsIdentityDocument, Token]).await;
    // A TPM that nobody vouches for is as good as none.
    asked(false, &[Tpm, Gcp], &[Gcp]).await;
    asked(false, &[Tpm, Gcp, Azure], &[Azure]).await;

    let refused = async |endorsed: bool, offer: &[Kind], code: &str| {
        let machine = with_tpm(&gateway, endorsed);
        let answer = gateway.post("/v1/attest/challenge", &machine.request(offer)).await;
        site::refused(&gateway, &answer, code)
    };
    refused(false, &[Tpm], "ek-not-endorsed").await;
    let record = refused(true, &[AwsIdentityDocument], "evidence-not-accepted").await;
    assert_eq!(record["shown"], "cloud");
    let reason = record["reason"].as_str().unwrap();
    assert!(
        reason.contains("the node offers aws-identity-document, which no combination that the pool accepts covers; the pool accepts tpm + gcp, or azure, or gcp"),
        "{reason}"
    );
    refused(true, &[Token], "evidence-not-accepted").await;
    refused(true, &[Kind::AwsSts, Kind::AwsNitroTpm], "evidence-not-accepted").await;
    // What such a node then shows is accepted.
    let machine = with_tpm(&gateway, false);
    drop(machine.attest(&gateway, &[Tpm, Gcp]).await.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_malformed_tpm_despite_other_offers() {
    let gateway = site::start(r#"[["tpm", "gcp"], ["gcp"]]"#, &[TPM, GCP]);
    let machine = with_tpm(&gateway, true);
    let mut request = machine.request(&[Kind::Tpm, Kind::Gcp]);
    request.attester.tpm.as_mut().unwrap().ak_public.0.truncate(8);
    let answer = gateway.post("/v1/attest/challenge", &request).await;
    answer.refused(400, "tpm-malformed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_challenge_follows_the_current_pool() {
    let gateway = site::start(r#"[["gcp"], ["azure"]]"#, &[GCP, AZURE_RULES]);
    let machine = Machine::new();
    let (google, azure) = (
        machine.ask(&gateway, &[Kind::Gcp]).await,
        machine.ask(&gateway, &[Kind::Azure]).await,
    );
    let others = GCP.replace("example-project", "other-project");
    site::pool(&gateway, "worker", r#"[["gcp"]]"#, &[&others]);
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    let answer = google.show(&gateway, machine.evidence(&google)).await;
    site::refused(&gateway, &answer, "gcp-project-refused");
    let answer = azure.show(&gateway, machine.evidence(&azure)).await;
    site::refused(&gateway, &answer, "evidence-not-accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_without_evidence_section_accepts_tpms_only() {
    let gateway = Gateway::start();
    let machine = with_tpm(&gateway, true);
    let answer = gateway
        .post("/v1/attest/challenge", &machine.request(&[Kind::Gcp, Kind::Azure]))
        .await;
    site::refused(&gateway, &answer, "evidence-not-accepted");
    let offer = [Kind::Tpm, Kind::Gcp, Kind::Azure, Kind::Token];
    let asked = machine.ask(&gateway, &offer).await;
    assert!(asked.task.kinds().into_iter().eq([Kind::Tpm]));
    let identity = format!("tpm:{}", crate::support::digest(machine.tpm.as_ref().unwrap()));
    let answer = asked.show(&gateway, machine.evidence(&asked)).await;
    site::trusted(&gateway, &answer, &identity, &[Kind::Tpm]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_23_refuses_malformed_evidence_offers_cheaply() {
    let gateway = site::start(r#"[["gcp"], ["aws-identity-document"], ["aws-sts"]]"#, &[GCP, DOCUMENT, site::STS]);
    let challenge = async |attester: serde_json::Value| {
        let body = json!({"pool": "worker", "attester": attester});
        gateway.post("/v1/attest/challenge", &body).await.refused(400, "malformed-request");
    };
    challenge(json!({"gcp": {"token": "x"}})).await;
    challenge(json!({"gcp": true})).await;
    challenge(json!({"sgx": {}})).await;
    challenge(json!({"aws_identity_document": {}, "claimant_sha256": "00"})).await;
    challenge(json!({"aws_identity_document": {"claimant_sha256": "00".repeat(32)}, "claimant_sha256": "11".repeat(32)})).await;
    challenge(json!({"gcp": {}, "claimant_sha256": "00".repeat(48)})).await;
    challenge(json!({"aws_identity_document": {"claimant_sha256": "00"}})).await;
    challenge(json!({"aws_identity_document": {"claimant_sha256": "00".repeat(48)}})).await;
    let machine = Machine::new();
    let asked = machine.ask(&gateway, &[Kind::Gcp]).await;
    let good = serde_json::to_value(asked.body(machine.evidence(&asked))).unwrap();
    for evidence in [
        json!({"gcp": {}}),
        json!({"gcp": {"token": 1}}),
        json!({"gcp": {"token": "x", "keys": []}}),
        json!({"gcp": {"token": "x"}, "other": {}}),
        json!({"aws_sts": {"request": {"method": "POST"}}}),
    ] {
        let mut body = good.clone();
        body["evidence"] = evidence;
        gateway.post("/v1/attest/evidence", &body).await.refused(400, "malformed-request");
    }
    // None of that has spent the challenge, or asked anybody.
    drop(asked.show(&gateway, machine.evidence(&asked)).await.ticket());
    // Documents have a limit of their own, below that of the body. That is looked at before the challenge is spent.
    for (evidence, kind) in [
        (json!({"gcp": {"token": "a".repeat(65 << 10)}}), "gcp"),
        (json!({"azure": {"signature": "A".repeat(65 << 10)}}), "azure"),
        (
            json!({"aws_identity_document": {"pkcs7": "A".repeat(65 << 10)}}),
            "aws-identity-document",
        ),
        (json!({"aws_nitro_tpm": {"document": "A".repeat(88 << 10)}}), "aws-nitro-tpm"),
        (
            json!({"aws_sts": {"request": {"method": "", "url": "", "headers": [{"name": "", "value": "A".repeat(65 << 10)}], "body": ""}}}),
            "aws-sts",
        ),
        (json!({"token": {"token": "A".repeat(65 << 10)}}), "token"),
    ] {
        let asked = machine.ask(&gateway, &[Kind::Gcp]).await;
        let mut body = good.clone();
        body["challenge"] = json!(asked.body(machine.evidence(&asked)).challenge);
        body["evidence"] = evidence;
        let answer = gateway.post("/v1/attest/evidence", &body).await;
        let detail = answer.problem().detail.unwrap_or_default();
        assert!(detail.contains(&format!("kind {kind} ")), "{kind}: {detail}");
        answer.refused(400, "malformed-request");
        drop(asked.show(&gateway, machine.evidence(&asked)).await.ticket());
    }
    let large = gcp_evidence("a".repeat(3 << 20));
    let asked = machine.ask(&gateway, &[Kind::Gcp]).await;
    let mut evidence = machine.evidence(&asked);
    evidence.gcp = Some(large);
    let large = gateway.client.post(gateway.url("/v1/attest/evidence")).json(&asked.body(evidence));
    Answer::send_large(large).await.refused(413, "body-too-large");
}
