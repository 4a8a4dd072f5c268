//! A node that the administrator has revoked gets nothing under its name, whatever it presents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support;
use crate::support::kubelet::{Cluster, Connection, PATH, embedded, get, in_process, init, last, start};
use crate::support::{Answer, Case, Gateway, POOL, SoftKey, bearer, challenge_request, digest, next_boot, soft_tpm, tpm};
use async_trait::async_trait;
use attest::protocol::Blob;
use attest_store::engine::{Engine, KeyRange, Transaction, Work, WorkInterrupted};
use attest_store::engine_layer::EngineLayer;
use attest_store::{Embedded, StoreError};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use reqwest::StatusCode;

#[tokio::test]
async fn attack_20_a_node_that_is_revoked_is_refused_on_its_open_connection() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let full = gateway.rendered(POOL, "full");
    let mut connection = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    let mut other = Connection::open(&gateway, Some(&cluster.kubelet("worker-2"))).await;
    connection.get(PATH, &[]).await.is_config(&full);
    gateway.command(&["node", "revoke", "worker-1", "--reason", "disk sold"]);
    let answer = connection.get(PATH, &[]).await;
    answer.refused(403, "node-revoked");
    assert!(
        !String::from_utf8(answer.body).unwrap().contains("disk sold"),
        "why is for the administrator"
    );
    let record = last(&gateway);
    assert!(record["reason"].as_str().unwrap().contains(": disk sold; next: "), "{record}");
    assert_eq!(
        (&record["identity"], &record["name"]),
        (&"kubelet:worker-1".into(), &"worker-1".into())
    );
    other.get(PATH, &[]).await.is_config(&full);
    get(&gateway, &cluster.kubelet("worker-1"), PATH).await.refused(403, "node-revoked");
    gateway.command(&["node", "restore", "worker-1"]);
    connection.get(PATH, &[]).await.is_config(&full);
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
}

/// Engine that can fail, so that revocations cannot be read.
#[derive(Debug)]
struct Failing {
    engine: Embedded,
    fails: AtomicBool,
}

#[async_trait]
impl EngineLayer for Failing {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact(&self, mut work: Work) -> Result<(), StoreError> {
        if !self.fails.load(Ordering::Relaxed) {
            return self.engine.transact(work).await;
        }
        let work: Work = Box::new(move |transaction| work(&mut WithoutRevocations(transaction)));
        self.engine.transact(work).await
    }
}

struct WithoutRevocations<'t>(&'t mut dyn Transaction);

impl Transaction for WithoutRevocations<'_> {
    fn get(&mut self, key: &str) -> Result<Option<String>, WorkInterrupted> {
        match key.starts_with("entry/revoked/") {
            true => Err(StoreError::Closed.into()),
            false => self.0.get(key),
        }
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), WorkInterrupted> {
        self.0.put(key, value)
    }

    fn delete(&mut self, key: &str) -> Result<(), WorkInterrupted> {
        self.0.delete(key)
    }

    fn delete_range(&mut self, range: &KeyRange) -> Result<(), WorkInterrupted> {
        self.0.delete_range(range)
    }
}

#[tokio::test]
async fn a_store_failure_is_answered_503_not_trust() {
    let cluster = Cluster::new();
    let gateway = init(&cluster);
    let store = Arc::new(Failing {
        engine: embedded(&gateway),
        fails: AtomicBool::new(true),
    });
    in_process(&gateway, Arc::<Failing>::clone(&store)).await;
    let mut connection = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    connection.get(PATH, &[]).await.check_retry();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let attest = || gateway.attest(support::next_boot(&case), Some("worker-1"));
    assert_eq!(attest().await.status, StatusCode::SERVICE_UNAVAILABLE);
    store.fails.store(false, Ordering::Relaxed);
    let ticket = bearer(&attest().await.ticket());
    store.fails.store(true, Ordering::Relaxed);
    gateway.config(PATH, &[&ticket]).await.check_retry();
    store.fails.store(false, Ordering::Relaxed);
    let full = gateway.rendered(POOL, "full");
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
    connection.get(PATH, &[]).await.is_config(&full);
}

#[tokio::test]
async fn a_revoked_name_gets_nothing_by_attestation_or_ticket() {
    let gateway = start(&Cluster::new());
    let (named, other) = (tpm(), tpm());
    gateway.endorse(&named, &[]);
    gateway.endorse(&other, &["--name", "worker-9"]);
    let ticket = bearer(&gateway.attest(support::next_boot(&named), Some("worker-1")).await.ticket());
    let full = gateway.rendered(POOL, "full");
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
    gateway.command(&["node", "revoke", "worker-1"]);
    gateway.config(PATH, &[&ticket]).await.refused(403, "node-revoked");
    gateway
        .attest(support::next_boot(&named), Some("worker-1"))
        .await
        .refused(403, "node-revoked");
    // A machine is known by its name, also if it does not say it.
    gateway.attest(support::next_boot(&named), None).await.refused(403, "node-revoked");
    gateway.attest(support::next_boot(&other), None).await.ticket();
    gateway.command(&["node", "revoke", "worker-9"]);
    gateway.attest(support::next_boot(&other), None).await.refused(403, "node-revoked");
    let table = gateway.command(&["log", "audit"]);
    assert!(table.contains(" node-revoked ") && !table.contains("DIFFERENT"), "{table}");
    gateway.command(&["node", "restore", "worker-1"]);
    gateway.attest(support::next_boot(&named), None).await.ticket();
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
}

#[tokio::test]
async fn revocations_are_listed() {
    let gateway = start(&Cluster::new());
    let case = tpm();
    let digest = gateway.endorse(&case, &["--name", "worker-1"]);
    gateway.command(&["node", "revoke", "worker-7", "--anyway", "--reason", "disk sold"]);
    let rows = |table: String| -> Vec<String> {
        table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    let table = rows(gateway.command(&["machines", "list"]));
    assert_eq!(
        table,
        [
            "NODE POOL BY ATTESTED CONFIG STATE CODE WAITING IDENTITY".to_owned(),
            format!("worker-1 - - - - Expected - - tpm:{digest}"),
            "worker-7 - - - - Banned - - -".to_owned()
        ]
    );
    let shown = gateway.command(&["machines", "show", "worker-7"]);
    assert!(
        shown.contains("revoked    worker-7 at 20") && shown.ends_with("Z: disk sold\n"),
        "{shown}"
    );
    let said = gateway.command(&["node", "revoke", "worker-1"]);
    assert_eq!(said, format!("revoked: tpm:{digest}, worker-1\n"));
    let table = rows(gateway.command(&["machines", "list"]));
    assert_eq!(table.len(), 3, "one machine, one row");
    assert_eq!(table[1], format!("worker-1 - - - - Banned - - tpm:{digest}"));
    // The machine is revoked still, and has one row.
    gateway.command(&["node", "restore", "--only", "worker-1"]);
    let table = rows(gateway.command(&["machines", "list"]));
    assert_eq!((table.len(), &table[1]), (3, &format!("worker-1 - - - - Banned - - tpm:{digest}")));
    gateway.command(&["node", "restore", "worker-7"]);
    assert_eq!(gateway.command(&["machines", "list"]).lines().count(), 2);
    for wrong in [
        &["node", "restore", "worker-7"][..],
        &["node", "revoke", "tpm:00"],
        &["node", "revoke", "system:node:worker-1"],
        &["node", "revoke", ""],
        &["node", "revoke", "worker-1", "--reason", &"x".repeat(201)],
    ] {
        assert!(!gateway.try_command(wrong).status.success(), "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_28_a_machine_without_a_name_is_revoked_by_its_digest_at_once() {
    let gateway = Gateway::start();
    let (case, other) = (tpm(), tpm());
    let digest = gateway.endorse(&case, &[]);
    gateway.endorse(&other, &[]);
    let full = gateway.rendered(POOL, "full");
    let ticket = bearer(&gateway.attest(next_boot(&case), None).await.ticket());
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
    let list = gateway.command(&["machines", "list"]);
    let row = list.lines().find(|line| line.contains(&digest)).unwrap();
    assert!(
        row.starts_with("- ") && row.contains(" full ") && row.contains(" Trusted "),
        "{list}"
    );
    let said = gateway.command(&["node", "revoke", &digest, "--reason", "disk sold"]);
    assert_eq!(said, format!("revoked: tpm:{digest}\n"));
    // Its ticket, its evidence, and the challenge before that: nothing is begun with it.
    let answer = gateway.config(PATH, &[&ticket]).await;
    answer.refused(403, "node-revoked");
    assert!(
        !String::from_utf8(answer.body).unwrap().contains("disk sold"),
        "why is for the administrator"
    );
    let record = last(&gateway);
    assert_eq!(record["identity"], format!("tpm:{digest}"));
    assert!(
        record["reason"]
            .as_str()
            .unwrap()
            .starts_with(&format!("tpm:{digest} was revoked at ")),
        "{record}"
    );
    gateway.attest(next_boot(&case), None).await.refused(403, "node-revoked");
    gateway
        .attest(next_boot(&case), Some("worker-1"))
        .await
        .refused(403, "node-revoked");
    let request = challenge_request(&next_boot(&case), POOL);
    gateway.post("/v1/attest/challenge", &request).await.refused(403, "node-revoked");
    gateway.attest(next_boot(&other), None).await.ticket();
    // It is listed, and taking it off or putting it on the allowlist changes nothing about it.
    assert!(gateway.command(&["machines", "list"]).contains(&format!("tpm:{digest}")));
    gateway.command(&["ek", "remove", &digest, "--leave-to-roots"]);
    gateway.endorse(&case, &["--name", "worker-7"]);
    gateway.attest(next_boot(&case), None).await.refused(403, "node-revoked");
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
    gateway.command(&["node", "restore", &format!("tpm:{digest}")]);
    gateway.config(PATH, &[&ticket]).await.is_config(&full);
    gateway.attest(next_boot(&case), None).await.ticket();
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_28_a_revoked_machine_cannot_return_under_another_name() {
    let gateway = Gateway::start();
    let case = tpm();
    let digest = gateway.endorse(&case, &[]);
    gateway.attest(next_boot(&case), Some("worker-1")).await.ticket();
    assert_eq!(
        gateway.command(&["node", "revoke", "worker-1"]),
        format!("revoked: tpm:{digest}, worker-1\n")
    );
    gateway.command(&["node", "forget", "worker-1"]);
    for name in [None, Some("worker-1"), Some("worker-2")] {
        gateway.attest(next_boot(&case), name).await.refused(403, "node-revoked");
    }
    // Its name is free for the machine that takes its place.
    gateway.command(&["node", "restore", "--only", "worker-1"]);
    let other = tpm();
    gateway.endorse(&other, &["--name", "worker-1"]);
    gateway.attest(next_boot(&other), None).await.ticket();
    gateway.attest(next_boot(&case), None).await.refused(403, "node-revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_28_revoking_an_unknown_node_fails() {
    let gateway = Gateway::start();
    let digest = digest(&tpm());
    for unknown in ["worker-7", &digest, &digest[1..], "aws:123456789012/i-0123456789abcdef0"] {
        let output = gateway.try_command(&["node", "revoke", unknown]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{unknown}");
        assert!(
            said.contains(unknown) && said.contains("nothing was revoked") && said.contains("--anyway"),
            "{said}"
        );
    }
    assert_eq!(gateway.command(&["machines", "list"]).lines().count(), 1);
    // One that has yet to come.
    gateway.command(&["node", "revoke", "--anyway", &digest]);
    gateway.command(&["node", "revoke", &digest, "--anyway"]);
    assert!(gateway.command(&["machines", "list"]).contains(&digest));
}

/// TPM with its manufacturer's certificate.
struct Made {
    case: Case,
    certificate: Vec<u8>,
}

fn maker() -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Maker");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    (params, KeyPair::generate().unwrap())
}

fn made((params, maker): &(CertificateParams, KeyPair)) -> Made {
    let key = KeyPair::generate().unwrap();
    let soft = SoftKey::P256(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der()).unwrap());
    let mut ek = CertificateParams::default();
    ek.distinguished_name.push(DnType::CommonName, "EK");
    ek.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1])];
    ek.key_usages = vec![KeyUsagePurpose::KeyAgreement];
    let certificate = ek.signed_by(&key, &Issuer::from_params(params, maker)).unwrap();
    Made {
        case: tpm().but(|case| case.ek_area = soft_tpm::ek_area(&soft)),
        certificate: certificate.der().to_vec(),
    }
}

impl Made {
    async fn attest(&self, gateway: &Gateway, pool: &str) -> Answer {
        let case = next_boot(&self.case);
        let mut challenge = gateway.challenge(&case, None);
        challenge.pool = pool.to_owned();
        challenge.subject.tpm.as_mut().unwrap().attester.ek_certificate = Some(Blob(self.certificate.clone()));
        gateway.post("/v1/attest/evidence", &gateway.answer(case, &challenge)).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_28_ek_remove_never_widens_pool_access() {
    let mut gateway = Gateway::init();
    for pool in [POOL, "infra"] {
        let any = "endorsement = \"any-tpm-of-a-trusted-maker\"";
        gateway.edit_pool(pool, "endorsement = \"allowlist\"", any);
    }
    let maker = maker();
    let root = maker.0.self_signed(&maker.1).unwrap().pem();
    std::fs::write(gateway.path("ek-roots/maker.pem"), root).unwrap();
    gateway.run();
    let machine = made(&maker);
    let digest = digest(&machine.case);
    machine.attest(&gateway, "infra").await.ticket();
    gateway.endorse(&machine.case, &["--pool", POOL]);
    let ticket = bearer(&machine.attest(&gateway, POOL).await.ticket());
    machine.attest(&gateway, "infra").await.refused(403, "ek-not-endorsed");
    gateway.command(&["ek", "remove", &digest]);
    for pool in [POOL, "infra"] {
        machine.attest(&gateway, pool).await.refused(403, "ek-not-endorsed");
    }
    // What it has earned is worth nothing from then on.
    gateway.config(PATH, &[&ticket]).await.refused(403, "ticket-withdrawn");
    let shown = gateway.command(&["machines", "show", &digest]);
    assert!(shown.contains(", removed at 20"), "{shown}");
    assert!(
        !gateway.try_command(&["ek", "remove", &digest]).status.success(),
        "it is off the list"
    );
    let table = gateway.command(&["log", "audit"]);
    assert!(!table.contains("DIFFERENT"), "{table}");
    for (by, sound) in [("store", true), ("evidence", false), ("request", false)] {
        let mut records = gateway.records();
        let withdrawn = |record: &&mut serde_json::Value| record["code"] == "ticket-withdrawn";
        records.iter_mut().find(withdrawn).unwrap()["decided_by"] = by.into();
        let lines: Vec<String> = records.iter().map(ToString::to_string).collect();
        std::fs::write(gateway.path("earlier.jsonl"), lines.join("\n") + "\n").unwrap();
        let earlier = gateway.path("earlier.jsonl");
        let audited = gateway.try_command(&["log", "audit", "--unchained", "--log", earlier.to_str().unwrap()]);
        assert_eq!(audited.status.success(), sound, "{by}");
    }
    // Only who says so leaves it to its maker.
    let said = gateway.command(&["ek", "remove", &digest, "--leave-to-roots"]);
    assert!(said.contains("every pool"), "{said}");
    machine.attest(&gateway, "infra").await.ticket();
}
