//! Schema of the log, `docs/attestation-log.schema.json`: all that is written is in it, and all that is in it is written. Every test's
//! gateway has its log checked at its end. These tests write one record of each kind.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use attest::protocol::{BOOT_ID_HEADER, Blob, Evidence, HexDigest, NOT_ATTESTED_HEADER, REPORT_PATH};
use attest::reference_sets::{Is, NewValue, ReferenceQuery};
use attest::tpm::wire::HashAlg;
use attest::{Kind, NodeIdentity, SpkiSha256, UnixTime, purpose};
use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::credentials::tickets::{self, TicketConfig, TicketGrant};
use attest_gateway::settings::TicketSettings;
use attest_log::admin::{Act, By, ByObject, ValueChange, Verb};
use attest_log::{Acceptable, Decision, Record};
use attest_store::{Store, StoreError, Transact};
use cloud_fixtures::aws::StsServer;
use serde_json::{Value, json};

use super::machine::{Asked, Machine};
use super::machines;
use super::site::{self, AZURE_RULES, AZURE_VTPM_RULES, DOCUMENT, GCP, NITRO_TPM, STS, TPM};
use crate::log_builder::{self, BuiltEvent, EV_IPL, SHA1, SHA256, SHA384};
use crate::reports;
use crate::support::kubelet::{self, CLIENT_CA, Cluster, embedded, in_process};
use crate::support::log_schema::{LOG, Schema};
use crate::support::pending;
use crate::support::soft_tpm::maker::Maker;
use crate::support::{Case, Gateway, POOL, SoftKey, bearer, challenge_request, digest, next_boot, now, tpm};
use crate::waiting::set_waiting;

/// Makes the pool require a reference value for PCR 0 (zeros, or this one), and a condition that the claims meet.
fn by_reference_values(gateway: &Gateway, pcr_0: &str) {
    let set = json!({
        "format": "attest-reference-values/1",
        "generations": [{
            "name": "firmware", "added": "2026-05-03T10:00:00Z", "by": "root", "from": "by_hand",
            "values": {"pcrs": [{"pcr": 0, "digests": {"sha256": pcr_0}}, {"pcr": 0, "digests": {"sha256": "0".repeat(64)}}]},
        }],
    });
    site::write(gateway, &format!("pools/{POOL}/reference-values/firmware.json"), set.to_string());
    let values = "\n0 = \"reference values\"\n\"1-7\" = \"not checked\"\n";
    gateway.edit_pool(POOL, "\n\"0-7\" = \"not checked\"\n", values);
    let sections = "\n[attestation]\ncondition = \"has(claims.tpm)\"\n\n[reference_values]\nfolder = \"reference-values\"\n\n[kubelet]\n";
    gateway.edit_pool(POOL, "\n[kubelet]\n", sections);
}

/// Returns records of accepted config requests, and of refusals of unauthenticated clients.
async fn configs() -> Vec<Value> {
    let cluster = Cluster::new();
    let mut gateway = kubelet::init(&cluster);
    gateway.edit_pool(POOL, "\ntoken = \"refuse\"", "\ntoken = \"full\"");
    let maker = Maker::new("A maker of TPMs");
    // Its name says that it is a root: it is not self-issued.
    site::write(&gateway, "ek-roots/maker.root.der", maker.root_by(&Maker::new("A CA above it")));
    let by_maker = "endorsement = \"any-tpm-of-a-trusted-maker\"";
    gateway.edit_pool("infra", "endorsement = \"allowlist\"", by_maker);
    gateway.settings(CLIENT_CA);
    let (event_log, pcrs) = log_builder::like_a_server();
    by_reference_values(&gateway, &data_encoding::HEXLOWER.encode(&pcrs[&0]));
    gateway.run();
    let (case, stranger) = (tpm(), tpm());
    gateway.endorse(&case, &["--name", "worker-0"]);
    let measured = |event_log: Vec<u8>| {
        Case::with_pcrs(SoftKey::p256(), HashAlg::Sha256, pcrs.clone()).but(|boot| {
            boot.ek_area = case.ek_area.clone();
            boot.event_log = Some(event_log);
        })
    };
    let ticket = gateway.attest(measured(event_log.clone()), Some("worker-0")).await.ticket();
    gateway.config("/config/worker", &[&bearer(&ticket)]).await;
    // The next boot has measured more in PCR 14.
    let more = BuiltEvent {
        pcr: 14,
        event_type: EV_IPL,
        digests: [SHA1, SHA256, SHA384]
            .map(|bank| (bank, log_builder::digest(bank, b"more")))
            .to_vec(),
        data: b"more".to_vec(),
    };
    let keyed = measured([event_log, more.build()].concat()).but(|case| case.purpose = purpose::with_kubelet_key(&SpkiSha256([7; 32])));
    gateway.attest(keyed, None).await.ticket();
    let bought = tpm().but(|case| {
        let (area, certificate) = maker.ek();
        case.ek_area = area;
        case.ek_certificate = Some(certificate);
        case.pool = "infra".to_owned();
    });
    gateway.attest(bought, None).await.ticket();
    // Its counters run backwards: an alert.
    let set_back = next_boot(&case).but(|boot| boot.quoted.clock.reset_count = 0);
    gateway.attest(set_back, None).await.ticket();
    gateway.config("/config/worker", &[&late_ticket(&gateway)]).await;
    let token = bearer(&gateway.token(&["--name", "rack", "--uses", "1", "--again", "15m"]));
    for _ in 0..2 {
        gateway.config("/config/worker", &[&token]).await;
    }
    let by_pointer = gateway.url("/config/worker?ca=0000000000000000");
    gateway
        .client
        .get(by_pointer)
        .header("user-agent", "Ignition/2.26.0")
        .header(NOT_ATTESTED_HEADER, format!("ek-not-endorsed {}", "0".repeat(32)))
        .send()
        .await
        .unwrap();
    kubelet::get(&gateway, &cluster.kubelet("worker-1"), kubelet::PATH).await;
    let challenge = gateway.challenge(&case, None);
    let mut answer = gateway.answer(next_boot(&case), &challenge);
    answer.challenge.insert(0, 'A');
    let evidence = "/v1/attest/evidence";
    gateway.post(evidence, &answer).await.refused(403, "challenge-invalid");
    gateway
        .attest(next_boot(&case), Some("worker-9"))
        .await
        .refused(403, "node-name-taken");
    let request = challenge_request(&stranger, POOL);
    gateway.post("/v1/attest/challenge", &request).await.refused(403, "ek-not-endorsed");
    gateway.records()
}

/// Returns records of a machine whose boot its pool accepts, then refuses, and then only observes.
async fn booted_something_else() -> Vec<Value> {
    let mut gateway = Gateway::init();
    let case = tpm();
    gateway.endorse(&case, &[]);
    gateway.run();
    gateway.attest(next_boot(&case), None).await.ticket();
    gateway.terminate();
    assert!(gateway.wait().success());
    let other = "7".repeat(64);
    gateway.edit_pool(
        POOL,
        "\"0-7\" = \"not checked\"",
        &format!("\"0-6\" = \"not checked\"\n7 = [\"{other}\"]"),
    );
    gateway.run();
    gateway.attest(next_boot(&case), None).await.refused(403, "pcr-mismatch");
    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.edit_pool(POOL, "[grants]\n", "observe = true\n[grants]\n");
    gateway.run();
    gateway.attest(next_boot(&case), None).await.ticket();
    gateway.records()
}

/// Returns a log with aggregated records of many refused requests.
async fn counted() -> Vec<Value> {
    let gateway = Gateway::init();
    let running = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let peer = format!("{}:1", Ipv4Addr::LOCALHOST);
    let mut refusal = Record::new(
        "d".repeat(32),
        Decision::Challenge,
        running.clock.now().as_secs(),
        peer,
        POOL.to_owned(),
    );
    refusal.reason = "x".repeat(1024 * 1024);
    for _ in 0..20 {
        running.recorder.record(&refusal, Vec::new(), ()).await.unwrap().into_inner();
    }
    gateway.records()
}

/// Returns records of an accepted store in place of another, and those of the next start.
fn accepted() -> Vec<Value> {
    let mut gateway = Gateway::init();
    gateway.endorse(&tpm(), &[]);
    // A log that an older release has begun.
    site::write(&gateway, "state/attestation.jsonl", "{\"filler\":\"\"}\n");
    std::fs::remove_file(gateway.path("state/store.mark")).unwrap();
    let wrote = json!({ "replica": "1".repeat(32), "commits": 3 });
    let mark = json!({ "id": "0".repeat(32), "mark": 7, "wrote": wrote });
    site::write(&gateway, "state/store.mark", mark.to_string());
    gateway.command(&["store", "accept"]);
    gateway.run();
    // What it goes by nobody has signed when it is killed.
    gateway.wait_for_acts(1, "gateway.start");
    gateway.kill();
    gateway.run();
    gateway.log_lines().split_off(1)
}

/// Returns the log of a gateway that has lost signed lines.
fn incomplete() -> Vec<Value> {
    let mut gateway = Gateway::start();
    gateway.kill();
    std::fs::remove_file(gateway.path("state/attestation.jsonl")).unwrap();
    gateway.run();
    gateway.log_lines()
}

/// Returns a log with the removal of an expired segment.
async fn removed() -> Vec<Value> {
    let gateway = Gateway::init();
    let running = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let removal = json!({
        "segment": "20261122T204412Z-6f0c51d2-000000000001", "rule": "age", "lines": 2, "bytes": 7, "sha256": "0".repeat(64),
        "chains": [{ "id": "0".repeat(32), "first": 1, "last": 2, "head": "0".repeat(64) }],
        "kept": { "lines": 2, "sha256": "0".repeat(64) }
    });
    running.journal.removes(serde_json::from_value(removal).unwrap(), 8).await.unwrap();
    gateway.log_lines()
}

/// Returns a log with an administrator's act that has all optional fields.
async fn administered() -> Vec<Value> {
    let gateway = Gateway::init();
    let by = By {
        uid: 0,
        user: Some("root".to_owned()),
        login_uid: Some(1000),
        sudo_uid: Some(1000),
        sudo_user: Some("alice".to_owned()),
        host: "control-1".to_owned(),
        pid: 2,
        gateway: Some("gateway-1".to_owned()),
        controller: Some("controller-1".to_owned()),
        object: Some(ByObject::new("tpm-00", "17", Some("kubectl-edit"))),
    };
    let thing = ValueChange {
        kind: "ek".to_owned(),
        id: "0".repeat(64),
        before: Some(json!({ "name": null })),
        after: Some(json!("gone")),
    };
    let store = embedded(&gateway);
    for refused in [None, Some("it was not there".to_owned())] {
        let act = Act {
            refused,
            ..Act::done(Verb::TokenCreate, 7, by.clone(), vec![thing.clone(); 100])
        };
        store.append_to_outbox(serde_json::to_string(&act).unwrap()).await.unwrap();
    }
    let running = in_process(&gateway, Arc::new(store)).await;
    attest_recording::take(&running.journal, &*running.store, 8).await.unwrap();
    gateway.log_lines()
}

/// Returns records of evidence of each kind.
async fn evidence() -> Vec<Value> {
    let inventory = "[inventory]\ninstances = \"instances.txt\"\n";
    let mut gateway = site::init(r#"[["tpm", "gcp"]]"#, &[&TPM.replace("allowlist", "gcp-instance"), GCP, inventory]);
    site::write(&gateway, "pools/worker/instances.txt", "gcp:example-project/152986662232938449\n");
    let pools: [(&str, &str, &[&str], &[Kind]); 4] = [
        ("worker", "", &[], &[Kind::Tpm, Kind::Gcp]),
        ("caller", r#"[["aws-sts"]]"#, &[STS], &[Kind::AwsSts]),
        (
            "documents",
            r#"[["aws-identity-document", "aws-nitro-tpm", "token"]]"#,
            &[DOCUMENT, NITRO_TPM],
            &[Kind::AwsIdentityDocument, Kind::AwsNitroTpm, Kind::Token],
        ),
        (
            "microsoft",
            r#"[["azure", "azure-vtpm"]]"#,
            &[AZURE_RULES, AZURE_VTPM_RULES],
            &[Kind::Azure, Kind::AzureVtpm],
        ),
    ];
    for (name, accepts, rules, _) in &pools[1..] {
        site::pool(&gateway, name, accepts, rules);
        site::configs(&gateway, name);
    }
    let recorded = AZURE_VTPM_RULES.replace("[azure_vtpm]", "[azure_vtpm]\nevent_log = \"recorded\"");
    site::pool(&gateway, "twice", r#"[["tpm", "azure-vtpm"]]"#, &[TPM, &recorded]);
    site::configs(&gateway, "twice");
    let mut machine = site::with_vtpm(Machine::new());
    let sts = StsServer::start("eu-central-1", vec![machine.session.clone()]);
    site::reach_sts(&gateway, &sts);
    gateway.run();
    let token = gateway.command(&["token", "create", "--pool", "documents", "--name", "rack-7"]);
    machine.token = token.trim().to_owned();
    for (pool, _, _, kinds) in pools {
        machine.pool = pool.to_owned();
        machine.attest(&gateway, kinds).await.ticket();
    }
    // A client that sends an event log with each quote.
    let twice = Machine::new().but(|machine| {
        machine.pool = "twice".to_owned();
        machine.tpm = Some(tpm());
    });
    gateway.endorse(twice.tpm.as_ref().unwrap(), &[]);
    for log in [b"log".repeat(1000), b"log".repeat(1001)] {
        let two = |evidence: &mut Evidence, _: &Asked| evidence.azure_vtpm.as_mut().unwrap().event_log = Some(Blob(log));
        drop(twice.attest_altered(&gateway, &[Kind::Tpm, Kind::AzureVtpm], two).await);
    }
    gateway.records()
}

/// Returns a ticket that has expired, and was not used.
fn late_ticket(gateway: &Gateway) -> String {
    let seal = SealKeyRing::open(&gateway.path("state/seal.key")).unwrap();
    let settings = TicketSettings {
        lifetime: Duration::from_secs(600),
        late: Duration::from_secs(3600),
        uses: 1,
    };
    let earned = TicketGrant {
        identity: &NodeIdentity::from_ek(digest(&tpm()).parse().unwrap()),
        instance: None,
        holder: None,
        name: None,
        pool: POOL,
        decision: "dddddddddddddddddddddddddddddddd",
        endorsed_by: None,
        object: None,
        config: &TicketConfig::default(),
    };
    let issued = UnixTime::since_unix_epoch(Duration::from_secs(now() - 700));
    bearer(&tickets::issue(&seal, &settings, &earned, issued).unwrap().text)
}

/// Returns a log with a decision that its gateway had not recorded when it ended.
async fn recorded_late() -> Vec<Value> {
    let mut gateway = Gateway::init();
    gateway.run();
    gateway.terminate();
    assert!(gateway.wait().success());
    let decided = pending::evidence(&"e1".repeat(16), now() + 1, "ab".repeat(32).parse().unwrap());
    let store = embedded(&gateway);
    let kept = store.decide("d", move |transaction| transaction.decide(decided.clone()));
    kept.await.unwrap_or_else(|error: StoreError| panic!("{error}"));
    store.keep_mark().await.unwrap();
    drop(store);
    gateway.run();
    gateway.records()
}

/// Returns the record of a report that proves an attestation.
async fn reported() -> Vec<Value> {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-7"]);
    let mut report = reports::report();
    report["proof"] = json!(reports::proof(&gateway, case).await.0);
    reports::id(&gateway.post(REPORT_PATH, &report).await);
    gateway.records()
}

/// Returns records of refusals that an administrator may accept, of each form; and one of a client that names its boot.
async fn acceptable() -> Vec<Value> {
    let mut gateway = Gateway::init();
    set_waiting(&gateway, "\n[waiting]\nunknown = \"wait\"\n");
    gateway.run();
    gateway.attest(tpm(), None).await.refused(503, "answer-pending");
    let request = gateway.client.get(gateway.url("/config/worker"));
    let boot_id = "0a1b2c3d-0000-4000-8000-0123456789ab";
    request.header(BOOT_ID_HEADER, boot_id).send().await.unwrap();
    let mut records = gateway.records();
    let other = Gateway::init();
    let running = in_process(&other, Arc::new(embedded(&other))).await;
    let value = |wanted, is| NewValue {
        wanted,
        is,
        name: Some("a".to_owned()),
        proven: true,
    };
    let section = Is::Digest {
        bank: HashAlg::Sha256,
        digest: HexDigest::from([1; 32]),
        section: Some("cmdline".to_owned()),
    };
    let values = vec![
        value(ReferenceQuery::UkiSections, section),
        NewValue::digest(ReferenceQuery::Pcr(4), HashAlg::Sha256, HexDigest::from([2; 32])),
        value(ReferenceQuery::FirmwareVersions, Is::Text("1.0".to_owned())),
    ];
    let identity = format!("tpm:{}", "0".repeat(64));
    for about in [
        Acceptable::Values(values),
        Acceptable::Machine {
            identity: "gcp:example-project/1".to_owned(),
            tpm: Some(identity.clone()),
        },
        Acceptable::Name {
            name: "worker-7".to_owned(),
            identity: identity.clone(),
        },
        Acceptable::History {
            tpm: identity.clone(),
            change: "resets 2 to 1, restarts 1 to 1".to_owned(),
        },
    ] {
        let peer = format!("{}:1", Ipv4Addr::LOCALHOST);
        let at = running.clock.now().as_secs();
        let mut refusal = Record::new("d".repeat(32), Decision::Evidence, at, peer, POOL.to_owned());
        refusal.acceptable = Some(about);
        running.recorder.record(&refusal, Vec::new(), ()).await.unwrap().into_inner();
    }
    records.extend(other.records());
    records
}

/// Returns the fields of an object in any of the records.
fn written<'r>(records: &'r [Value], pointer: &str) -> BTreeSet<&'r str> {
    let objects = records.iter().filter_map(|record| record.pointer(pointer)?.as_object());
    objects.flat_map(|object| object.keys().map(String::as_str)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_written_record_matches_the_schema() {
    let records = [
        configs().await,
        counted().await,
        accepted(),
        incomplete(),
        evidence().await,
        machines::records().await,
        administered().await,
        removed().await,
        booted_something_else().await,
        recorded_late().await,
        reported().await,
        acceptable().await,
    ]
    .concat();
    for record in &records {
        LOG.check(record).unwrap_or_else(|error| panic!("{error}\n{record}"));
    }
    // One of each kind.
    for (field, known) in [
        (
            "decision",
            &[
                "challenge",
                "evidence",
                "config",
                "counted",
                "store_accepted",
                "checkpoint",
                "admin",
                "removed",
                "report",
            ][..],
        ),
        ("verdict", &["trusted", "served", "refused"]),
        ("shown", &["tpm", "cloud", "ticket", "token", "kubelet", "nothing", "unreadable"]),
        ("decided_by", &["evidence", "store", "request"]),
    ] {
        let found: BTreeSet<&str> = records.iter().filter_map(|record| record[field].as_str()).collect();
        for known in known {
            assert!(found.contains(known), "no record has {field} {known}");
        }
    }
    // No field of the schema is one that nothing writes.
    for (definition, pointer) in [
        ("", ""),
        ("accepted_store", "/accepted_store"),
        ("chain", "/chain"),
        ("begins", "/chain/begins"),
        ("checkpoint", "/checkpoint"),
        ("admin", "/admin"),
        ("removed", "/removed"),
        ("report", "/report"),
        ("acceptable", "/acceptable"),
        ("span", "/removed/chains/0"),
        ("by", "/admin/by"),
        ("thing", "/admin/things/0"),
        ("basis", "/basis"),
        ("difference", "/basis/event_log_difference"),
        ("cloud", "/basis/cloud"),
        ("machine", "/basis/machine"),
        ("machine_sets", "/basis/machine/of"),
        ("machine_object", "/basis/machine/objects/0"),
        ("challenge", "/basis/challenge"),
        ("evidence", "/basis/evidence"),
        ("policy", "/basis/policy"),
        ("claims", "/claims"),
    ] {
        assert_eq!(written(&records, pointer), LOG.fields(definition), "{definition:?}");
    }
}

#[test]
fn schema_checker_refuses_deviations() {
    let schema = json!({
        "type": "object",
        "required": ["a"],
        "additionalProperties": false,
        "properties": {
            "a": { "$ref": "#/$defs/hex" },
            "b": { "oneOf": [{ "type": "null" }, { "const": 1 }] },
            "c": { "type": "array", "items": { "type": "integer", "minimum": 0 } },
            "d": { "type": "object", "propertyNames": { "pattern": "^[a-z]$" }, "additionalProperties": { "type": "boolean" } },
            "e": { "type": "string", "deprecated": true },
            "f": { "enum": ["x"] }
        },
        "$defs": { "hex": { "type": "string", "pattern": "^[0-9a-f]+$" } }
    });
    let checked = Schema::read(schema).unwrap();
    let good = json!({ "a": "0f", "b": 1, "c": [0], "d": { "x": true }, "f": "x" });
    checked.check(&good).unwrap();
    for (field, value) in [
        ("a", json!("0F")),
        ("a", json!(7)),
        ("b", json!(2)),
        ("c", json!([0, -1])),
        ("c", json!({})),
        ("d", json!({ "X": true })),
        ("d", json!({ "x": 1 })),
        ("e", json!("as older releases wrote")),
        ("f", json!("y")),
        ("unknown", json!(null)),
    ] {
        let mut bad = good.clone();
        bad[field] = value;
        let error = checked.check(&bad).unwrap_err();
        assert!(error.starts_with(&format!("/{field}")), "{error}");
    }
    checked.check(&json!({ "b": 1 })).unwrap_err();
    checked.check(&json!([])).unwrap_err();
    // What would not be checked is no schema, wherever it stands.
    for unknown in [
        json!({ "maxLength": 3 }),
        json!({ "items": { "format": "date-time" } }),
        json!({ "type": "object" }),
    ] {
        Schema::read(json!({ "properties": { "a": { "oneOf": [unknown] } } })).unwrap_err();
    }
}
