//! Evidence that is appraised again after a concurrent change. Another node cannot take the node's claims even for a moment, and no cloud
//! is asked twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use attest::{EkDigest, Kind};
use attest_machines::enrolment::{self, EkRecord};
use attest_machines::instances;
use attest_store::{EntryKind, Mode, Store, StoreEntry, Transact};
use cloud_fixtures::aws::StsServer;
use serde_json::json;

use super::machine::Machine;
use super::site::{self, GCP, STS, TPM};
use crate::support::interleaving::interleave;
use crate::support::kubelet::{embedded, in_process};
use crate::support::stand_in::{Beside, StandIn};
use crate::support::{Answer, Gateway, digest, tpm};

const IDENTITY: &str = "gcp:example-project/152986662232938449";
const NAME: &str = "worker-0";

/// Writes another allowlist entry that lets the machine join as before, as `name`.
async fn note(store: &dyn Store, ek: EkDigest, name: Option<&str>) {
    let found = store
        .read(move |transaction| enrolment::allowlisted(transaction, ek))
        .await
        .unwrap();
    let added = found.map_or(0, |record| record.added + 1);
    let name = name.map(str::to_owned);
    let (pools, removed) = (Vec::new(), None);
    let record = EkRecord {
        name,
        added,
        pools,
        note: None,
        removed,
    };
    enrolment::allow(store, ek, record, true).await.unwrap();
}

/// Store that changes the list before one transaction of a request. Before each transaction it tries to take the node's instance and name,
/// like another node.
#[derive(Debug)]
struct Copying {
    store: Arc<dyn Store>,
    ek: EkDigest,
    /// Name in the EK allowlist after the change.
    renamed: Option<&'static str>,
    /// Number of the transaction before which the change is made.
    at: usize,
    steps: AtomicUsize,
    /// Claims, as bits, that belonged to the node and later to no node.
    free: AtomicUsize,
    held: AtomicUsize,
}

impl Copying {
    /// Takes each claim that is free after the node has had it.
    async fn claim_free(&self) {
        let named = self.renamed.unwrap_or(NAME);
        for (bit, kind, id) in [(1, EntryKind::Instance, IDENTITY), (2, EntryKind::Name, named)] {
            let is_held = self.store.get(kind, id).await.unwrap().is_some();
            if is_held {
                self.held.fetch_or(bit, Ordering::Relaxed);
            } else if self.held.load(Ordering::Relaxed) & bit != 0 {
                self.free.fetch_or(bit, Ordering::Relaxed);
                let entry = StoreEntry {
                    id: id.to_owned(),
                    value: json!({ "holder": "tpm:copy", "at": 1, "peer": "::1" }).to_string(),
                };
                assert_eq!(self.store.insert(kind, entry).await.unwrap(), None);
            }
        }
    }
}

#[async_trait]
impl Beside for Copying {
    async fn transacts(&self, _: Mode) {
        self.claim_free().await;
        if self.steps.fetch_add(1, Ordering::Relaxed) == self.at {
            note(&*self.store, self.ek, self.renamed).await;
        }
    }

    async fn reads(&self, _: EntryKind) {
        self.claim_free().await;
    }
}

/// Attests with instance, name and token, while the list is changed before transaction `at`. Also returns whether that transaction was
/// reached.
async fn attest(at: usize, renamed: Option<&'static str>) -> (Gateway, Arc<dyn Store>, Answer, bool) {
    let gateway = site::init(r#"[["tpm", "gcp", "token"]]"#, &[TPM, GCP]);
    let case = tpm();
    gateway.endorse(&case, &[]);
    let ek: EkDigest = digest(&case).parse().unwrap();
    let node = Machine::new().but(|machine| {
        machine.token = gateway.token(&["--name", "t", "--uses", "1"]);
        machine.name = renamed.is_none().then(|| NAME.to_owned());
        machine.tpm = Some(case);
    });
    let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
    let beside = Copying {
        store: Arc::clone(&store),
        ek,
        renamed,
        at,
        steps: AtomicUsize::new(0),
        free: AtomicUsize::new(0),
        held: AtomicUsize::new(0),
    };
    let stand_in = Arc::new(StandIn::over(Arc::clone(&store), beside));
    in_process(&gateway, Arc::<StandIn<Copying>>::clone(&stand_in)).await;
    let answer = node.attest(&gateway, &[Kind::Tpm, Kind::Gcp, Kind::Token]).await;
    let beside = &stand_in.beside;
    assert_eq!(
        beside.free.load(Ordering::Relaxed),
        0,
        "step {at}: what it had was another's to take"
    );
    (gateway, store, answer, beside.steps.load(Ordering::Relaxed) > at)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_retried_transaction_keeps_instance_and_name() {
    let mut at = 0;
    loop {
        let (gateway, store, answer, done) = attest(at, None).await;
        site::gets_the_full_config(&gateway, &answer).await;
        assert_eq!(store.pending().await.unwrap(), []);
        let held = instances::list(&*store).await.unwrap();
        assert!(matches!(held.as_slice(), [(instance, _)] if instance == IDENTITY), "{held:?}");
        if !done {
            break;
        }
        at += 1;
    }
    assert!(at >= 4, "{at} transactions");
}

#[tokio::test(flavor = "multi_thread")]
async fn name_assigned_during_attestation_is_the_only_name() {
    for at in 0.. {
        let (gateway, store, answer, done) = attest(at, Some("given")).await;
        site::gets_the_full_config(&gateway, &answer).await;
        if !done {
            break;
        }
        let names = enrolment::names(&*store).await.unwrap();
        assert!(matches!(names.as_slice(), [(name, _)] if name == "given"), "step {at}: {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_15_transaction_retries_send_one_sts_request() {
    let gateway = site::init(r#"[["tpm", "aws-sts"]]"#, &[TPM, STS]);
    let sts = StsServer::start("eu-central-1", Vec::new());
    site::reach_sts(&gateway, &sts);
    let case = tpm();
    gateway.endorse(&case, &[]);
    let ek: EkDigest = digest(&case).parse().unwrap();
    let node = Machine::new().but(|machine| machine.tpm = Some(case));
    sts.add(node.session.clone());
    let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
    let stand_in = interleave(&store, 2, move |store| async move { note(&*store, ek, None).await });
    in_process(&gateway, Arc::new(stand_in)).await;
    drop(node.attest(&gateway, &[Kind::Tpm, Kind::AwsSts]).await.ticket());
    assert_eq!(sts.requests().len(), 1);
    let audit = gateway.command(&["log", "audit"]);
    assert!(audit.contains("1 as recorded, 0 different"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_27_a_retry_still_reports_the_previous_owner() {
    let of_google = TPM.replace("allowlist", "gcp-instance");
    let mut gateway = site::init(r#"[["tpm", "gcp"], ["gcp"]]"#, &[&of_google, GCP]);
    gateway.run();
    drop(Machine::another().attest(&gateway, &[Kind::Gcp]).await.ticket());
    gateway.kill();
    let machine = site::with_vtpm(Machine::new());
    let ek: EkDigest = digest(machine.tpm.as_ref().unwrap()).parse().unwrap();
    let store: Arc<dyn Store> = Arc::new(embedded(&gateway));
    let stand_in = interleave(&store, 1, move |store| async move { note(&*store, ek, None).await });
    in_process(&gateway, Arc::new(stand_in)).await;
    drop(machine.attest(&gateway, &[Kind::Tpm, Kind::Gcp]).await.ticket());
    let record = gateway.records().pop().unwrap();
    assert!(record["alerts"][0].as_str().unwrap().contains("attests by its own TPM"), "{record}");
}
