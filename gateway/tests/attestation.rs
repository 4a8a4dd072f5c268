//! From challenge to ticket, with software TPMs: refusals, records, and a replay of the records with the same result.

use std::fs;

use crate::support::log_schema::LOG;
use crate::support::node::Node;
use crate::support::{Answer, Case, Gateway, POOL, SoftKey, bearer, challenge_request, digest, next_boot, now, tpm};
use attest::protocol::{CHALLENGE_BODY_LIMIT_BYTES, EVIDENCE_BODY_LIMIT_BYTES, HexDigest};
use attest::tpm::boot_complete::{BOOT_COMPLETE_PCR, CLOSING_WORD, extended};
use attest::{HashAlg, Reject, SpkiSha256};
use attest_audit::replay::{ReplayError, replay};
use attest_log::Blobs;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn attestation_earns_a_ticket_for_the_full_config() {
    let gateway = Gateway::start();
    let case = tpm();
    let ek = gateway.endorse(&case, &["--name", "worker-0"]);
    let ticket = gateway.attest(case, Some("worker-0")).await.ticket();
    let full = gateway.rendered("worker", "full");
    for _ in 0..4 {
        gateway.config("/config/worker", &[&bearer(&ticket)]).await.is_config(&full);
    }
    gateway
        .config("/config/worker", &[&bearer(&ticket)])
        .await
        .refused(403, "ticket-spent");

    let records = gateway.records();
    assert_eq!(records.len(), 6);
    assert_eq!(records[0]["verdict"], "trusted");
    assert_eq!(records[0]["identity"], format!("tpm:{ek}"));
    assert_eq!(records[0]["name"], "worker-0");
    assert_eq!(records[0]["grant"], "full");
    assert_eq!(records[0]["claims"]["tpm"]["reset_count"], 7);
    for (use_number, record) in (1..=4).zip(&records[1..5]) {
        assert_eq!(
            (&record["verdict"], &record["grant"], &record["use_number"]),
            (&json!("served"), &json!("full"), &json!(use_number))
        );
        assert_eq!(record["identity"], format!("tpm:{ek}"));
    }
    assert_eq!(records[5]["code"], "ticket-spent");
    let line = gateway.line(|line| line.contains("TRUSTED tpm:"));
    assert!(
        line.contains(&ek) && line.contains("pool=worker") && line.contains("(worker-0)"),
        "{line}"
    );

    // No secret is anywhere but with its owner.
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    assert!(!log.contains(&ticket) && !gateway.output().contains(&ticket));

    // Months later, from the line alone.
    let blobs = Blobs::open(&gateway.path("state/evidence")).unwrap();
    let again = replay(&gateway.record_lines()[0], &blobs).unwrap();
    assert_eq!(serde_json::to_value(again.claims()).unwrap(), records[0]["claims"]);
    // Not from an altered one.
    let code = |change: fn(&mut Value)| {
        let mut record = records[0].clone();
        change(&mut record);
        match replay(&record.to_string(), &blobs) {
            Err(ReplayError::Reject(reject)) => reject.code().to_owned(),
            other => format!("{other:?}"),
        }
    };
    assert_eq!(code(|record| record["at"] = json!(now() + 1000)), "challenge-expired");
    assert_eq!(code(|record| record["basis"]["allowlisted"] = json!(false)), "ek-not-endorsed");
    assert_eq!(code(|record| record["basis"]["server_keys"] = json!([])), "quote-extra-data");
    assert_eq!(
        code(|record| record["claims"]["tpm"]["pcrs"]["0"] = json!("ab".repeat(32))),
        "quote-pcr-digest"
    );
    assert_eq!(code(|record| record["claims"] = Value::Null), "pcr-missing");
    assert_eq!(
        code(|record| record["basis"]["policy"]["tpm"]["pcrs"]["0"] = json!({ "any_of": ["ab".repeat(32)] })),
        "pcr-mismatch"
    );
}

/// The node has no data of the gateway other than its answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_attests_from_the_gateways_answers_alone() {
    let gateway = Gateway::start();
    let (mut node, client, base) = (Node::new(), &gateway.client, gateway.url(""));
    gateway.command(&["ek", "add", &node.ek()]);
    let challenged = Answer::send(node.challenge(client, &base)).await;
    let key = SpkiSha256::from_certificate(&gateway.certificate()).unwrap();
    let evidence = node.evidence(&challenged, &key);
    let ticket = Answer::send(Node::send(client, &base, &evidence)).await.ticket();
    let config = Answer::send(Node::config(client, &base, &ticket)).await;
    config.is_config(&gateway.rendered(POOL, "full"));
    // Another node's secret is not this one's.
    let challenged = Answer::send(node.challenge(client, &base)).await;
    let mut evidence = node.evidence(&challenged, &key);
    evidence.evidence.tpm.as_mut().unwrap().secret_sha256 = HexDigest::from([0x55; 32]);
    Answer::send(Node::send(client, &base, &evidence))
        .await
        .refused(403, "credential-mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_of_refused_evidence_gives_the_same_refusal() {
    let mut gateway = Gateway::init();
    gateway.edit_pool(
        "worker",
        "\"0-7\" = \"not checked\"",
        &format!("\"0-6\" = \"not checked\"\n7 = [\"{}\"]", "ab".repeat(32)),
    );
    gateway.run();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let answer = gateway.attest(next_boot(&case), None).await;
    answer.refused(403, "pcr-mismatch");
    let told = answer.problem().detail.unwrap();
    assert!(
        !told.contains("abab"),
        "which digests a bought TPM would have to be extended with: {told}"
    );
    gateway.line(|line| line.contains("code=pcr-mismatch") && line.contains(&format!("the pool accepts {}", "ab".repeat(32))));
    let challenge = gateway.challenge(&case, None);
    let mut forged = gateway.answer(next_boot(&case).but(|next| next.ak_area = case.ak_area.clone()), &challenge);
    gateway.post("/v1/attest/evidence", &forged).await.refused(403, "quote-signature");
    // Who does not know the secret is not the TPM that was asked, and has proven nothing.
    let challenge = gateway.challenge(&case, None);
    forged = gateway.answer(case, &challenge);
    let evidence = forged.evidence.tpm.as_mut().unwrap();
    evidence.secret_sha256 = HexDigest::from([0; 32]);
    gateway
        .post("/v1/attest/evidence", &forged)
        .await
        .refused(403, "credential-mismatch");

    let blobs = Blobs::open(&gateway.path("state/evidence")).unwrap();
    let mut codes = Vec::new();
    for (line, record) in gateway.record_lines().iter().zip(gateway.records()).take(2) {
        let Err(ReplayError::Reject(reject)) = replay(line, &blobs) else {
            panic!("accepted: {line}")
        };
        assert_eq!(record["code"], Reject::code(&reject));
        codes.push(reject.code());
    }
    assert_eq!(codes, ["pcr-mismatch", "quote-signature"]);
    let record = &gateway.records()[2];
    assert_eq!(
        (&record["code"], record["basis"].get("evidence")),
        (&json!("credential-mismatch"), None)
    );
    assert_eq!(record["basis"]["digests"]["tpm.quoted"]["sha256"].as_str().unwrap().len(), 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_a_challenge_is_answered_once_and_in_time() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let challenge = gateway.challenge(&case, None);
    let evidence = gateway.answer(next_boot(&case).but(|next| next.ak_area = case.ak_area.clone()), &challenge);
    // A failed answer spends it as well: one challenge is one attempt.
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "quote-signature");
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "challenge-spent");

    let mut late = gateway.challenge(&case, None);
    late.expires = now() - 1;
    gateway
        .post("/v1/attest/evidence", &gateway.answer(case, &late))
        .await
        .refused(403, "challenge-expired");

    let case = tpm();
    gateway.endorse(&case, &[]);
    let challenge = gateway.challenge(&case, None);
    let good = gateway.answer(case, &challenge);
    let mut altered = good.clone();
    altered.challenge.insert(20, 'A');
    gateway
        .post("/v1/attest/evidence", &altered)
        .await
        .refused(403, "challenge-invalid");
    altered.challenge = good.challenge.chars().rev().collect();
    gateway
        .post("/v1/attest/evidence", &altered)
        .await
        .refused(403, "challenge-invalid");
    altered.challenge.clear();
    gateway
        .post("/v1/attest/evidence", &altered)
        .await
        .refused(403, "challenge-invalid");
    gateway.post("/v1/attest/evidence", &good).await.ticket();
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_replay_after_a_kill() {
    let mut gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let challenge = gateway.challenge(&case, None);
    let evidence = gateway.answer(case, &challenge);
    let ticket = bearer(&gateway.post("/v1/attest/evidence", &evidence).await.ticket());
    let full = gateway.rendered("worker", "full");
    for _ in 0..4 {
        gateway.config("/config/worker", &[&ticket]).await.is_config(&full);
    }
    let records = gateway.records();
    gateway.kill();
    gateway.run();
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "challenge-spent");
    gateway.config("/config/worker", &[&ticket]).await.refused(403, "ticket-spent");
    assert_eq!(gateway.records()[..records.len()], records[..], "what was acknowledged is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_one_challenge_answered_twice_at_once() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let challenge = gateway.challenge(&case, None);
    let evidence = gateway.answer(case, &challenge);
    let answering: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn(Answer::send(
                gateway.client.post(gateway.url("/v1/attest/evidence")).json(&evidence),
            ))
        })
        .collect();
    let mut won = 0;
    for answer in answering {
        let answer = answer.await.unwrap();
        if answer.status.as_u16() == 200 {
            won += 1;
        } else {
            answer.refused(403, "challenge-spent");
        }
    }
    assert_eq!(won, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_08_another_tpm_cannot_take_a_nodes_name() {
    let gateway = Gateway::start();
    let (node, other) = (tpm(), tpm());
    let ek = gateway.endorse(&node, &[]);
    gateway.endorse(&other, &[]);
    gateway.attest(next_boot(&node), Some("worker-0")).await.ticket();
    let taken = gateway.attest(next_boot(&other), Some("worker-0")).await;
    taken.refused(403, "node-name-taken");
    assert!(
        !String::from_utf8(taken.body).unwrap().contains(&ek),
        "whose the name is, is not for another node to know"
    );
    gateway.attest(next_boot(&node), Some("worker-0")).await.ticket();
    assert!(gateway.command(&["machines", "list"]).contains(&format!("tpm:{ek}")));
    // Nor does one TPM collect names.
    gateway
        .attest(next_boot(&node), Some("worker-1"))
        .await
        .refused(403, "node-name-taken");
    gateway.attest(next_boot(&other), Some("worker-1")).await.ticket();
    // The explicit re-enrolment: the machine has a new TPM.
    gateway.command(&["node", "forget", "worker-0"]);
    let third = tpm();
    gateway.endorse(&third, &[]);
    gateway.attest(next_boot(&third), Some("worker-0")).await.ticket();
    gateway
        .attest(next_boot(&node), Some("worker-0"))
        .await
        .refused(403, "node-name-taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_08_an_administrator_assigned_name_is_reserved() {
    let gateway = Gateway::start();
    let (named, other) = (tpm(), tpm());
    let ek = gateway.endorse(&named, &["--name", "worker-0"]);
    let other_ek = gateway.endorse(&other, &[]);
    gateway
        .attest(next_boot(&other), Some("worker-0"))
        .await
        .refused(403, "node-name-taken");
    let answer = gateway.attest(next_boot(&named), Some("worker-9")).await;
    // To forget the name would change nothing: the allowlist gives it.
    let next_step = answer.problem().next_step;
    assert!(
        next_step.contains("ek add EK --name worker-9 --replace") && !next_step.contains("node forget"),
        "{next_step}"
    );
    answer.refused(403, "node-name-taken");
    gateway.attest(next_boot(&named), None).await.ticket();
    assert_eq!(gateway.records().pop().unwrap()["name"], "worker-0");

    let taken = gateway.try_command(&["ek", "add", &other_ek, "--name", "worker-0"]);
    assert!(!taken.status.success());
    assert!(String::from_utf8_lossy(&taken.stderr).contains(&ek));
    gateway.command(&["ek", "add", &other_ek, "--name", "worker-0", "--replace"]);
    gateway.attest(next_boot(&other), Some("worker-0")).await.ticket();
    gateway
        .attest(next_boot(&named), Some("worker-0"))
        .await
        .refused(403, "node-name-taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_show_finds_refusals_by_node_name() {
    let gateway = Gateway::start();
    let (node, other) = (tpm(), tpm());
    gateway.endorse(&node, &["--name", "worker-2"]);
    gateway.endorse(&other, &["--name", "worker-3"]);
    gateway.attest(next_boot(&other), None).await.ticket();
    gateway.command(&["node", "revoke", &digest(&node)]);
    let request = challenge_request(&next_boot(&node), POOL);
    gateway.post("/v1/attest/challenge", &request).await.refused(403, "node-revoked");
    let record = gateway.records().pop().unwrap();
    assert!(record["name"].is_null() && record["claims"].is_null(), "{record}");
    let shown = gateway.command(&["log", "show", "--node", "worker-2", "--all"]);
    let row = shown.lines().find(|line| line.contains("node-revoked")).unwrap();
    assert!(row.contains("worker-2 (claimed)"), "{shown}");
    assert!(!shown.contains("worker-3"), "{shown}");
    let exported = gateway.command(&["log", "export", "--node", "worker-2", "--verdict", "refused"]);
    assert!(
        exported.contains(record["id"].as_str().unwrap()) && !exported.contains("(claimed)"),
        "{exported}"
    );
    assert!(
        !gateway
            .command(&["log", "show", "--node", "worker-3", "--all"])
            .contains("node-revoked")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_machine_is_listed_as_refused() {
    let gateway = Gateway::start();
    let (node, refused) = (tpm(), tpm());
    gateway.endorse(&node, &["--name", "worker-0"]);
    gateway.endorse(&refused, &[]);
    let row = || {
        let list = gateway.command(&["machines", "list"]);
        list.lines().find(|line| line.contains(&digest(&refused))).unwrap().to_owned()
    };
    assert!(row().contains(" Expected "), "{}", row());
    let answer = gateway.attest(next_boot(&refused), Some("worker-0")).await;
    answer.refused(403, "node-name-taken");
    assert!(row().contains(" Refused ") && row().contains(" node-name-taken "), "{}", row());
    gateway.attest(next_boot(&refused), None).await.ticket();
    assert!(row().contains(" Trusted ") && !row().contains("node-name-taken"), "{}", row());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_decreasing_tpm_counters_raise_an_alert() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let boot = |resets: u32| next_boot(&case).but(|next| next.quoted.clock.reset_count = resets);
    for (resets, alerts) in [(7, 0), (8, 0), (8, 0), (5, 1), (6, 0)] {
        gateway.attest(boot(resets), None).await.ticket();
        let record = gateway.records().pop().unwrap();
        assert_eq!(record["alerts"].as_array().map_or(0, Vec::len), alerts, "{record}");
    }
    gateway.line(|line| line.contains("ALERT") && line.contains("backwards"));
    // Also who is refused is looked at, each time: what it says of itself replaces nothing.
    gateway.endorse(&tpm(), &["--name", "worker-0"]);
    for _ in 0..2 {
        let answer = gateway.attest(boot(5), Some("worker-0")).await;
        answer.refused(403, "node-name-taken");
        let record = gateway.records().pop().unwrap();
        assert!(record["alerts"][0].as_str().unwrap().contains("backwards"), "{record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_07_a_tpm_firmware_downgrade_raises_an_alert() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    for (version, alerts) in [(7, 0), (8, 0), (8, 0), (5, 1), (5, 0), (6, 0)] {
        let boot = next_boot(&case).but(|next| next.quoted.firmware_version = version);
        gateway.attest(boot, None).await.ticket();
        let record = gateway.records().pop().unwrap();
        assert_eq!(record["alerts"].as_array().map_or(0, Vec::len), alerts, "{record}");
    }
    gateway
        .line(|line| line.contains("ALERT") && line.contains("firmware version decreased from 0x0000000000000008 to 0x0000000000000005"));
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_10_refuses_evidence_for_another_servers_key() {
    let mut gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let before = [0, 1].map(|_| {
        let boot = next_boot(&case);
        let challenge = gateway.challenge(&boot, None);
        gateway.answer(boot, &challenge)
    });
    let old_key = SpkiSha256::from_certificate(&gateway.certificate()).unwrap();
    // Another server with another key, to which the evidence is relayed.
    gateway.kill();
    let other = Gateway::init();
    for file in ["tls/mcs.crt", "tls/mcs.key"] {
        fs::copy(other.path(file), gateway.path(file)).unwrap();
    }
    fs::copy(other.path("tls/mcs-ca.crt"), gateway.path("tls/mcs-ca.crt")).unwrap();
    gateway.client = other.client.clone();
    gateway.run();
    gateway
        .post("/v1/attest/evidence", &before[0])
        .await
        .refused(403, "quote-extra-data");
    gateway.kill();
    gateway.settings(&format!("[tls]\nprevious_keys = [\"{old_key}\"]"));
    gateway.run();
    gateway.post("/v1/attest/evidence", &before[1]).await.ticket();
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_23_refuses_malformed_and_oversized_bodies() {
    let gateway = Gateway::start();
    let send = async |path: &str, body: Vec<u8>| Answer::send(gateway.client.post(gateway.url(path)).body(body)).await;
    let case = tpm();
    let mut unknown_field = serde_json::to_value(challenge_request(&case, "worker")).unwrap();
    unknown_field["extra"] = json!(1);
    for path in ["/v1/attest/challenge", "/v1/attest/evidence"] {
        let deep = "[".repeat(60_000);
        for body in [
            "",
            "{}",
            "null",
            "\u{0}",
            "{\"pool\":\"worker\"",
            deep.as_str(),
            &unknown_field.to_string(),
        ] {
            send(path, body.as_bytes().to_vec()).await.refused(400, "malformed-request");
        }
    }
    for (path, limit) in [
        ("/v1/attest/challenge", CHALLENGE_BODY_LIMIT_BYTES),
        ("/v1/attest/evidence", EVIDENCE_BODY_LIMIT_BYTES),
    ] {
        send(path, vec![b' '; limit]).await.refused(400, "malformed-request");
        let large = gateway.client.post(gateway.url(path)).body(vec![b' '; limit + 1]);
        Answer::send_large(large).await.refused(413, "body-too-large");
    }
    gateway
        .post("/v1/attest/challenge", &challenge_request(&case, "nowhere"))
        .await
        .refused(404, "pool-unknown");
    for pool in ["../worker", "w\u{1b}[2J\nINFO trusted", &"x".repeat(2000)] {
        gateway
            .post("/v1/attest/challenge", &challenge_request(&case, pool))
            .await
            .refused(404, "pool-unknown");
    }
    // A name that would be two lines, in a request that is refused before names are looked at.
    let mut forger = challenge_request(&case, "worker");
    forger.name = Some("x\nINFO TRUSTED tpm:00".to_owned());
    let attester = forger.attester.tpm.as_mut().unwrap();
    attester.ek_public.0.truncate(10);
    gateway.post("/v1/attest/challenge", &forger).await.refused(400, "tpm-malformed");
    gateway.line(|line| line.contains("NOT TRUSTED") && line.contains("x\\nINFO TRUSTED"));
    assert!(!gateway.output().contains('\u{1b}'));
    let mut no_key = challenge_request(&case, "worker");
    let attester = no_key.attester.tpm.as_mut().unwrap();
    attester.ek_public.0.truncate(10);
    gateway.post("/v1/attest/challenge", &no_key).await.refused(400, "tpm-malformed");
    let Answer { status, .. } = Answer::send(gateway.client.get(gateway.url("/readyz"))).await;
    assert_eq!(status.as_u16(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn attestation_survives_a_certificate_renewal() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let [early, late] = [next_boot(&case), case].map(|case| {
        let challenge = gateway.challenge(&case, None);
        gateway.answer(case, &challenge)
    });
    gateway.post("/v1/attest/evidence", &early).await.ticket();
    gateway.command(&["certificate", "renew"]);
    gateway.line(|line| line.contains("the MCS certificate is now"));
    gateway.post("/v1/attest/evidence", &late).await.ticket();
    let keys = gateway.records().pop().unwrap()["basis"]["server_keys"].clone();
    assert_eq!(keys.as_array().unwrap().len(), 2, "{keys}");
    let new = SpkiSha256::from_certificate(&gateway.certificate()).unwrap();
    assert_eq!(keys[0], json!(new.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_change_applies_to_a_running_attestation() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let (challenge, next) = (gateway.challenge(&case, None), next_boot(&case));
    let evidence = gateway.answer(case, &challenge);
    gateway.edit_pool("worker", "\"0-7\" = \"not checked\"", "\"0-8\" = \"not checked\"");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "quote-selection");
    // It is one attempt all the same, also when the pool asks for what it asked for before.
    gateway.edit_pool("worker", "\"0-8\" = \"not checked\"", "\"0-7\" = \"not checked\"");
    gateway.lines(2, |line| line.contains("pool worker: serving a new state"));
    gateway.post("/v1/attest/evidence", &evidence).await.refused(403, "challenge-spent");
    gateway.attest(next, None).await.ticket();
}

/// A machine whose boot is over, at both ends: the answer, and a record whose replay gives the same.
#[tokio::test(flavor = "multi_thread")]
async fn attack_47_only_while_booting_refuses_booted_machines() {
    let mut gateway = Gateway::init();
    let says = "endorsement = \"allowlist\"\nonly_while_booting = true";
    gateway.edit_pool("worker", "endorsement = \"allowlist\"", says);
    gateway.run();
    let machine = |word: Option<&[u8]>| {
        let door = word.map_or_else(|| vec![0; 32], |word| extended(HashAlg::Sha256, &[0; 32], word));
        let pcrs = (0..8).map(|pcr| (pcr, vec![pcr; 32])).chain([(BOOT_COMPLETE_PCR, door)]);
        Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, pcrs.collect())
    };
    let booting = machine(None);
    gateway.endorse(&booting, &[]);
    gateway.attest(booting.but(|_| {}), None).await.ticket();
    let record = gateway.records().pop().unwrap();
    assert_eq!(record["basis"]["policy"]["tpm"]["only_while_booting"], true);
    for word in [CLOSING_WORD, b"another"] {
        let over = machine(Some(word));
        gateway.endorse(&over, &[]);
        let answer = gateway.attest(over, None).await;
        answer.refused(403, "tpm-boot-is-over");
        assert!(answer.problem().next_step.contains("Reset the machine"), "{answer:?}");
        let record = gateway.records().pop().unwrap();
        assert_eq!(
            (&record["verdict"], &record["code"]),
            (&json!("refused"), &json!("tpm-boot-is-over"))
        );
    }
    gateway.records().iter().for_each(|record| LOG.check(record).unwrap());
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}

/// A pool's setting for event logs shows at both ends: in the answer, and in a record that states it again.
#[tokio::test(flavor = "multi_thread")]
async fn event_log_setting_decides_whether_it_is_required() {
    let mut gateway = Gateway::init();
    let says = |word: &str| format!("endorsement = \"allowlist\"\nevent_log = \"{word}\"");
    gateway.edit_pool("worker", "endorsement = \"allowlist\"", &says("recorded"));
    gateway.edit_pool("infra", "endorsement = \"allowlist\"", &says("required"));
    gateway.run();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let sending = |pool: &str, log: Option<&[u8]>| {
        next_boot(&case).but(|boot| {
            boot.pool = pool.to_owned();
            boot.event_log = log.map(<[u8]>::to_vec);
        })
    };
    gateway.attest(sending("worker", Some(b"no log")), None).await.ticket();
    let record = gateway.records().pop().unwrap();
    let log = json!({"events": 0, "explained_pcrs": [], "problem": "event-log-malformed"});
    assert_eq!(record["claims"]["tpm"]["event_log"], log);
    assert!(
        record["reason"]
            .as_str()
            .unwrap()
            .contains("matches none of them (event-log-malformed)")
    );
    gateway.attest(sending("worker", None), None).await.ticket();
    gateway.attest(sending("infra", None), None).await.refused(403, "event-log-missing");
    let malformed = gateway.attest(sending("infra", Some(b"no log")), None).await;
    malformed.refused(403, "event-log-malformed");
    assert!(malformed.problem().next_step.contains("event_log = \"recorded\""), "{malformed:?}");
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}
