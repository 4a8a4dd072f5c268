//! Gateways that share a store and its key. Here they run in this process, each in a folder of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::kubelet::{PATH, embedded, in_process};
use crate::support::{Answer, Gateway, LIMIT, POOL, SPEC, accept, bearer, now, served, tpm};
use attest_gateway::credentials::seal::SealKeyRing;
use attest_store::{Embedded, Store};
use attest_system::clock::Clock;
use cloud_fixtures::haproxy::{BALANCER, Haproxy};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Starts two gateways with one store, that of the first one, and one key file.
async fn two() -> ([Gateway; 2], Arc<Embedded>) {
    let [one, other] = [Gateway::init(), Gateway::init()];
    let shared = format!("[store]\nkey_file = {:?}", one.path("store.key"));
    one.settings(&shared);
    other.settings(&shared);
    one.command(&["store", "create-key"]);
    let store = Arc::new(embedded(&one));
    for gateway in [&one, &other] {
        gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
        in_process(gateway, Arc::<Embedded>::clone(&store)).await;
    }
    ([one, other], store)
}

pub async fn seal(gateway: &Gateway, store: &Arc<Embedded>) -> SealKeyRing {
    let store: Arc<dyn Store> = Arc::<Embedded>::clone(store);
    SealKeyRing::open_shared(store, &gateway.path("store.key"), now()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn challenges_and_tickets_work_at_any_replica_once() {
    let ([one, other], store) = two().await;
    let case = tpm();
    one.endorse(&case, &[]);
    // A challenge of one of them, answered to the other, whose certificate the node has seen; and once more to the first.
    let challenge = one.challenge(&case, None);
    let answer = other.answer_sealed(case, &challenge, &seal(&one, &store).await);
    let ticket = other.post("/v1/attest/evidence", &answer).await.ticket();
    one.post("/v1/attest/evidence", &answer).await.refused(403, "challenge-spent");
    // Four uses of the ticket, wherever.
    let full = one.rendered(POOL, "full");
    for gateway in [&one, &other, &one, &other] {
        gateway.config(PATH, &[&bearer(&ticket)]).await.is_config(&full);
    }
    for gateway in [&one, &other] {
        gateway.config(PATH, &[&bearer(&ticket)]).await.refused(403, "ticket-spent");
        assert!(!gateway.path("state/seal.key").exists());
    }
    // What one of them revokes the other refuses.
    let case = tpm();
    one.endorse(&case, &["--name", "worker-7"]);
    one.command(&["node", "revoke", "worker-7"]);
    let challenge = one.challenge(&case, None);
    let answer = other.answer_sealed(case, &challenge, &seal(&one, &store).await);
    other.post("/v1/attest/evidence", &answer).await.refused(403, "node-revoked");
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_is_bound_to_the_replicas_certificate() {
    let ([one, other], store) = two().await;
    let case = tpm();
    one.endorse(&case, &[]);
    let challenge = one.challenge(&case, None);
    let answer = one.answer_sealed(case, &challenge, &seal(&one, &store).await);
    // They have a certificate each, and neither knows the other's key.
    other.post("/v1/attest/evidence", &answer).await.refused(403, "quote-extra-data");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_replica_limits_failed_attempts_per_source() {
    let ([one, other], _store) = two().await;
    let guess = async |gateway: &Gateway| gateway.config(PATH, &[&bearer(&"A".repeat(43))]).await;
    let mut refused = 0;
    while guess(&one).await.status == 403 {
        refused += 1;
        assert!(refused < 1000, "guesses are not counted");
    }
    guess(&one).await.check_retry();
    guess(&other).await.refused(403, "token-invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn looks_up_seal_keys_of_another_replica() {
    let ([one, other], store) = two().await;
    // As the other one would after a month in which this one has not looked.
    let newer = seal(&one, &store).await;
    let month = now() + 30 * 24 * 3600;
    newer.maintain(month, std::time::Duration::ZERO).await.unwrap();
    newer.maintain(month + 3600, std::time::Duration::ZERO).await.unwrap();
    let case = tpm();
    one.endorse(&case, &[]);
    let challenge = one.challenge(&case, None);
    let answer = other.answer_sealed(case, &challenge, &newer);
    let ticket = other.post("/v1/attest/evidence", &answer).await;
    drop(ticket.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn store_create_key_makes_and_replaces_key_files() {
    let mut gateway = Gateway::init();
    let said = |arguments: &[&str], gateway: &Gateway| {
        let output = gateway.try_command(arguments);
        (
            output.status.success(),
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap(),
        )
    };
    let (made, why) = said(&["store", "create-key"], &gateway);
    assert!(!made && why.contains("store.key_file"), "{why}");
    gateway.settings("[store]\nkey_file = \"store.key\"");
    let (made, text) = said(&["store", "create-key"], &gateway);
    let file = gateway.path("store.key");
    let key = || fs::read_to_string(&file).unwrap().lines().nth(1).unwrap().to_owned();
    let first = key();
    assert!(made && !text.contains(&first), "{text}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!said(&["store", "create-key"], &gateway).0, "it is there");
    assert_eq!(key(), first);
    gateway.run();
    // Nothing secret is told by anybody.
    let secret = gateway.how_often(|line| line.contains(&first));
    assert_eq!(secret, 0);
    let (replaced, text) = said(&["store", "create-key", "--rotate"], &gateway);
    assert!(replaced && key() != first && !text.contains(&key()), "{text}");
    assert!(said(&["seal", "rotate"], &gateway).0);
    gateway.kill();
    gateway.run();
    gateway.kill();
    // The one before is not good any longer.
    fs::write(&file, format!("attestation-gateway store key 1\n{first}\n")).unwrap();
    let (served, text) = said(&["serve"], &gateway);
    assert!(!served && text.contains("store.key") && !text.contains(&first), "{text}");
    // Whoever has lost the file begins anew.
    assert!(!said(&["seal", "rotate"], &gateway).0);
    let (dropped, why) = said(&["seal", "rotate", "--drop"], &gateway);
    assert!(!dropped && why.contains("--key-lost"), "{why}");
    assert!(said(&["seal", "rotate", "--drop", "--key-lost"], &gateway).0);
    gateway.run();
    assert_eq!(Answer::send(gateway.client.get(gateway.url("/readyz"))).await.status, 200);
}

/// Gateway that a test can stop, as by SIGTERM.
struct Stoppable {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Stoppable {
    async fn start(gateway: &Gateway, store: &Arc<Embedded>) -> Self {
        let server = served::bind(gateway, Clock::System, || Arc::<Embedded>::clone(store)).await;
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(server.serve(async { drop(stopped.await) }));
        Self { stop, ended }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(LIMIT, self.ended).await.unwrap().unwrap();
    }
}

fn copy_files(from: &Path, to: &Path) {
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_behind_a_balancer_are_served_while_replicas_are_restarted_one_by_one() {
    let [one, other] = [Gateway::init(), Gateway::init()];
    // One certificate: a node does not know which of them it meets.
    copy_files(&one.path("tls"), &other.path("tls"));
    for gateway in [&one, &other] {
        gateway.settings(&format!(
            "proxy_protocol_from = [\"{BALANCER}\"]\n[store]\nkey_file = {:?}",
            one.path("store.key")
        ));
        gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    }
    one.command(&["store", "create-key"]);
    // A gateway that has served looks, before it does so again, for the store that it knows.
    symlink(one.path("state/gateway.db"), other.path("state/gateway.db")).unwrap();
    let (store, full) = (Arc::new(embedded(&one)), one.rendered(POOL, "full"));
    let token = one.token(&[]);
    let mut running = Vec::new();
    for gateway in [&one, &other] {
        running.push(Stoppable::start(gateway, &store).await);
    }
    let haproxy = Haproxy::before(&[one.address(), other.address()], "");
    let client = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&fs::read(one.path("tls/mcs-ca.crt")).unwrap()).unwrap()])
        .no_proxy()
        // Each fetch is a node's: it has a connection of its own.
        .pool_max_idle_per_host(0)
        .timeout(LIMIT)
        .build()
        .unwrap();
    let url = haproxy.url(PATH);
    let fetch = || client.get(&url).header("accept", accept(SPEC)).bearer_auth(&token);
    // Nodes that come all the time, and come again as Ignition does if a connection breaks.
    let (over, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let nodes = {
        let (over, served, request) = (Arc::clone(&over), Arc::clone(&served), fetch());
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                if let Ok(answer) = request.try_clone().unwrap().send().await {
                    assert_eq!(answer.status(), 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    for gateway in [&one, &other] {
        running.remove(0).stop().await;
        // With one of them away, nobody notices.
        for _ in 0..20 {
            Answer::send(fetch()).await.is_config(&full);
        }
        running.push(Stoppable::start(gateway, &store).await);
        for _ in 0..4 {
            Answer::send(fetch()).await.is_config(&full);
        }
    }
    over.store(true, Ordering::Relaxed);
    nodes.await.unwrap();
    let recorded = [&one, &other].map(|gateway| {
        let records = gateway.records();
        let served = records.iter().filter(|record| record["verdict"] == "served");
        let nodes = served.filter(|record| record["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
        nodes.count()
    });
    // Each decision stands in the log of the one that made it, with the node's address.
    assert!(recorded[0] > 20 && recorded[1] > 20, "{recorded:?}");
    assert!(recorded[0] + recorded[1] >= 48 + served.load(Ordering::Relaxed), "{recorded:?}");
}
