//! Uses are not spent if nothing is served: after a refusal, a failed write to the log, or a crash.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::conformance::use_for;
use crate::support::held::{Held, held};
use crate::support::kubelet::{client, embedded, in_process};
use crate::support::pending::{config_by_token, evidence, is_recorded_late};
use crate::support::{Answer, Gateway, POOL, accept, bearer, next_boot, now, serving_within, tpm};
use async_trait::async_trait;
use attest::NodeIdentity;
use attest::protocol::CLAIMANT_HEADER;
use attest_gateway::credentials::tokens::REPEATS_LIMIT;
use attest_gateway::server::Server;
use attest_gateway::settings::Settings;
use attest_machines::enrolment::{self, EnrolmentError};
use attest_store::engine::{Engine, Work};
use attest_store::engine_layer::EngineLayer;
use attest_store::{Embedded, EntryKind, Spend, Spendable, Store, StoreError, Transact, UseOccasion};
use attest_system::clock::Clock;
use rustls::version::TLS13;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Requests the pool's config like a node whose Ignition is too old for it.
async fn ask_as_an_old_node(gateway: &Gateway, credential: &str) -> Answer {
    let request = gateway.client.get(gateway.url("/config/worker"));
    Answer::send(
        request
            .header("accept", accept("3.3.0"))
            .header("authorization", bearer(credential)),
    )
    .await
}

/// Creates a gateway that accepts tokens.
fn init() -> Gateway {
    let gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway
}

/// Starts a gateway whose full config cannot be expressed in specs older than 3.4.
fn too_new() -> Gateway {
    let mut gateway = init();
    let luks = r#"{"ignition":{"version":"3.4.0"},"storage":{"luks":[{"name":"data","device":"/dev/sdb","discard":true}]}}"#;
    fs::write(gateway.path("pools/worker/full/config.ign"), luks).unwrap();
    gateway.run();
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_an_untranslatable_config_spends_no_use() {
    let gateway = too_new();
    let token = gateway.token(&["--name", "once", "--uses", "1"]);
    let ticket = gateway.ticket().await;
    for credential in [&token, &ticket] {
        for _ in 0..5 {
            ask_as_an_old_node(&gateway, credential).await.refused(406, "spec-version-too-old");
        }
    }
    let full = gateway.rendered(POOL, "full");
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    for _ in 0..4 {
        gateway.config("/config/worker", &[&bearer(&ticket)]).await.is_config(&full);
    }
    gateway
        .config("/config/worker", &[&bearer(&token)])
        .await
        .refused(403, "token-spent");
    gateway
        .config("/config/worker", &[&bearer(&ticket)])
        .await
        .refused(403, "ticket-spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_a_node_that_is_revoked_for_a_while_keeps_its_ticket() {
    let gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-0"]);
    let ticket = bearer(&gateway.attest(case, Some("worker-0")).await.ticket());
    gateway.command(&["node", "revoke", "worker-0"]);
    for _ in 0..5 {
        gateway.config("/config/worker", &[&ticket]).await.refused(403, "node-revoked");
    }
    gateway.command(&["node", "restore", "worker-0"]);
    let full = gateway.rendered(POOL, "full");
    for _ in 0..4 {
        gateway.config("/config/worker", &[&ticket]).await.is_config(&full);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_gives_back_uses_that_cannot_be_recorded() {
    const LIMIT_BLOCKS: usize = 400;
    let mut gateway = init();
    let token = bearer(&gateway.token(&["--name", "once", "--uses", "1"]));
    let filler = format!("{{\"filler\":\"{}\"}}\n", "x".repeat(LIMIT_BLOCKS * 1024 - 14 - 100));
    fs::write(gateway.path("state/attestation.jsonl"), &filler).unwrap();
    gateway.run_as(serving_within(&gateway, LIMIT_BLOCKS));
    // Not even the second time: it was not spent by the first.
    gateway.config("/config/worker", &[&token]).await.check_retry();
    gateway.config("/config/worker", &[&token]).await.check_retry();
    // The two have changed nothing, and nothing is kept of them.
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    let is_empty = async || store.pending().await.unwrap().is_empty();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_empty().await {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(store);
    gateway.kill();
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    gateway.config("/config/worker", &[&token]).await.is_config(&full);
    gateway.config("/config/worker", &[&token]).await.refused(403, "token-spent");
    // The two have no lines.
    let records = gateway.records();
    assert_eq!(records[1]["use_number"], 1);
    assert_eq!(
        records.iter().filter(|record| record["decision"] == "config").count(),
        2,
        "{records:?}"
    );
}

/// A decision about evidence remains valid although it cannot be recorded at once: its line comes with the next start.
#[tokio::test(flavor = "multi_thread")]
async fn attack_33_unrecordable_evidence_frees_its_use_until_recorded() {
    const LIMIT_BLOCKS: usize = 400;
    let mut gateway = init();
    let case = tpm();
    let ek = gateway.endorse(&case, &[]);
    let filler = format!("{{\"filler\":\"{}\"}}\n", "x".repeat(LIMIT_BLOCKS * 1024 - 14 - 100));
    fs::write(gateway.path("state/attestation.jsonl"), &filler).unwrap();
    gateway.run_as(serving_within(&gateway, LIMIT_BLOCKS));
    gateway.attest(next_boot(&case), Some("worker-0")).await.refused(503, "unavailable");
    gateway.kill();
    gateway.run();
    gateway.line(|line| line.contains("1 recorded, 0 uses of tickets and tokens given back"));
    let records = gateway.records();
    let about_evidence: Vec<_> = records.iter().filter(|record| record["decision"] == "evidence").collect();
    assert_eq!(about_evidence.len(), 1, "{records:?}");
    is_recorded_late(about_evidence[0], "unknown");
    assert_eq!(
        (
            &about_evidence[0]["verdict"],
            &about_evidence[0]["identity"],
            &about_evidence[0]["name"]
        ),
        (&"trusted".into(), &format!("tpm:{ek}").into(), &"worker-0".into())
    );
    gateway.attest(next_boot(&case), Some("worker-0")).await.ticket();
}

/// Uses each token, as if the gateway had been killed right after: the use exists, the record does not.
async fn begin_uses(gateway: &Gateway) {
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    for entry in store.list(EntryKind::Token).await.unwrap() {
        let thing = Spendable {
            kind: EntryKind::TokenUse,
            id: entry.id.clone(),
            limit: 2,
            remember_until: now() + 10_000,
        };
        let decided = config_by_token(&entry.id[..32], now() + 1, "one", 1);
        let spent = use_for(&store, thing, UseOccasion::Any, decided).await;
        assert!(matches!(spent, Spend::Granted { .. }), "{spent:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_gives_back_uses_lost_in_a_crash() {
    let mut gateway = init();
    gateway.run();
    let tokens = [("a", 1), ("b", 2)].map(|(name, uses)| bearer(&gateway.token(&["--name", name, "--uses", &uses.to_string()])));
    let full = gateway.rendered(POOL, "full");
    gateway.config("/config/worker", &[&tokens[1]]).await.is_config(&full);
    gateway.kill();
    begin_uses(&gateway).await;
    gateway.run();
    gateway.line(|line| line.contains("2 uses of tickets and tokens given back"));
    gateway.config("/config/worker", &[&tokens[0]]).await.is_config(&full);
    gateway.config("/config/worker", &[&tokens[0]]).await.refused(403, "token-spent");
    gateway.config("/config/worker", &[&tokens[1]]).await.is_config(&full);
    gateway.config("/config/worker", &[&tokens[1]]).await.refused(403, "token-spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_gives_back_nothing_if_the_log_was_cut() {
    let mut gateway = init();
    for _ in 0..2 {
        gateway.run();
        gateway.terminate();
        assert!(gateway.wait().success());
    }
    let token = bearer(&gateway.token(&["--name", "a", "--uses", "1"]));
    begin_uses(&gateway).await;
    // The log comes back from a copy that is older than what the store says was signed, and than the use.
    let log = gateway.path("state/attestation.jsonl");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.lines().next().unwrap().to_owned() + "\n").unwrap();
    gateway.run();
    gateway.line(|line| line.contains("1 recorded, 0 uses of tickets and tokens given back"));
    gateway.config("/config/worker", &[&token]).await.refused(403, "token-spent");
    // Its use counts, and has its line.
    let late: Vec<_> = gateway.records().into_iter().filter(|record| record["use_number"] == 1).collect();
    assert_eq!(late.len(), 1, "{late:?}");
    is_recorded_late(&late[0], "unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_records_a_pending_decision_once_after_a_crash() {
    for is_cut in [false, true] {
        let mut gateway = init();
        for _ in 0..2 {
            gateway.run();
            gateway.terminate();
            assert!(gateway.wait().success());
        }
        let case = tpm();
        let ek = gateway.endorse(&case, &[]);
        let token = bearer(&gateway.token(&["--name", "once", "--uses", "1"]));
        let id = "e1".repeat(16);
        {
            let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
            let used = store.list(EntryKind::Token).await.unwrap().remove(0).id;
            let decided = evidence(&id, now() + 1, ek.parse().unwrap());
            let identity = NodeIdentity::from_ek(ek.parse().unwrap());
            let written = store.decide(&id, move |transaction| {
                enrolment::settle_name(transaction, None, Some("worker-0"), &identity)?;
                let thing = Spendable {
                    kind: EntryKind::TokenUse,
                    id: used.clone(),
                    limit: 1,
                    remember_until: now() + 10_000,
                };
                let found = transaction.spend(&thing, &UseOccasion::Any, decided.at)?;
                transaction.decide(decided.clone())?;
                Ok::<_, EnrolmentError>(found)
            });
            assert_eq!(written.await.unwrap(), Spend::Granted { use_number: 1 });
            Store::keep_mark(&store).await.unwrap();
        }
        let log = gateway.path("state/attestation.jsonl");
        if is_cut {
            let text = fs::read_to_string(&log).unwrap();
            fs::write(&log, text.lines().next().unwrap().to_owned() + "\n").unwrap();
        }
        for start in 0..2 {
            gateway.run();
            let records = gateway.records();
            let late: Vec<_> = records.iter().filter(|record| record["id"] == *id).collect();
            assert_eq!(late.len(), 1, "start {start}: {records:?}");
            is_recorded_late(late[0], if is_cut { "unknown" } else { "unanswered" });
            assert_eq!(late[0]["verdict"], "trusted");
            if start == 0 {
                gateway.line(|line| line.contains(&format!("1 recorded, {} uses", u32::from(!is_cut))));
                gateway.terminate();
                assert!(gateway.wait().success());
            }
        }
        // What it has written stands: the name is this TPM's, and no other's.
        let another = tpm();
        gateway.endorse(&another, &[]);
        gateway.attest(another, Some("worker-0")).await.refused(403, "node-name-taken");
        gateway.attest(case, Some("worker-0")).await.ticket();
        let answer = gateway.config("/config/worker", &[&token]).await;
        match is_cut {
            true => answer.refused(403, "token-spent"),
            false => answer.is_config(&gateway.rendered(POOL, "full")),
        }
        let audit = gateway.try_command(&["log", "audit"]);
        let table = String::from_utf8(audit.stdout).unwrap();
        assert!(is_cut || !table.contains("DIFFERENT"), "{table}");
    }
}

/// Each decision waits in the store for its line in the log. If the log stays full, further decisions stop.
#[tokio::test(flavor = "multi_thread")]
async fn refuses_decisions_while_too_many_are_pending() {
    const LIMIT_BLOCKS: usize = 16 * 1024;
    const WAITING_LIMIT: usize = 100;
    let mut gateway = init();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let line = format!("{{\"filler\":\"{}\"}}\n", "x".repeat(256 * 1024 - 14));
    let mut filler = line.repeat(LIMIT_BLOCKS / 256);
    filler.truncate(filler.len() - 103);
    filler.push_str("\"}\n");
    fs::write(gateway.path("state/attestation.jsonl"), &filler).unwrap();
    gateway.run_as(serving_within(&gateway, LIMIT_BLOCKS));
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    let refused = async || gateway.attest(next_boot(&case), Some("worker-0")).await.refused(503, "unavailable");
    for _ in 0..WAITING_LIMIT {
        refused().await;
    }
    assert_eq!(store.pending().await.unwrap().len(), WAITING_LIMIT);
    for _ in 0..3 {
        refused().await;
    }
    assert_eq!(store.pending().await.unwrap().len(), WAITING_LIMIT);
    // With a log that can be written each gets its line.
    drop(store);
    gateway.kill();
    gateway.run();
    gateway.line(|line| line.contains("100 recorded, 0 uses of tickets and tokens given back"));
    gateway.attest(case, Some("worker-0")).await.ticket();
}

/// Engine that commits the next decision, but loses its answer.
#[derive(Debug)]
struct Losing {
    engine: Embedded,
    lost: AtomicBool,
}

#[async_trait]
impl EngineLayer for Losing {
    fn engine(&self) -> &dyn Engine {
        &self.engine
    }

    async fn transact_for_record(&self, work: Work) -> Result<(), StoreError> {
        Engine::transact_for_record(&self.engine, work).await?;
        let is_decision = !Store::pending(&self.engine).await?.is_empty();
        match is_decision && self.lost.swap(false, Ordering::Relaxed) {
            false => Ok(()),
            true => Err(StoreError::Engine {
                engine: "losing",
                place: "here".to_owned(),
                problem: "it is unknown whether the transaction was committed".to_owned(),
                advice: String::new(),
            }),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_records_a_decision_with_lost_answer_without_restart() {
    let gateway = init();
    let case = tpm();
    gateway.endorse(&case, &[]);
    let store = Arc::new(Losing {
        engine: embedded(&gateway),
        lost: AtomicBool::new(false),
    });
    in_process(&gateway, Arc::<Losing>::clone(&store)).await;
    store.lost.store(true, Ordering::Relaxed);
    gateway.attest(next_boot(&case), Some("worker-0")).await.refused(503, "unavailable");
    let late = || {
        let mut records = gateway.records();
        records.retain(|record| record["verdict"] == "trusted");
        records
    };
    assert!(late().is_empty());
    let deadline = Instant::now() + Duration::from_secs(40);
    while late().is_empty() || !store.pending().await.unwrap().is_empty() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_recorded_late(&late()[0], "unanswered");
    gateway.attest(case, Some("worker-0")).await.ticket();
    assert_eq!(late().len(), 2);
}

/// Gateway in this process whose store holds each decision before its transaction, and that a test can stop.
struct Running {
    store: Arc<Held>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Running {
    async fn start(gateway: &Gateway) -> Self {
        let store = Arc::new(held(embedded(gateway)));
        let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
        let server = Server::bind_with(settings, Clock::System, Arc::<Held>::clone(&store))
            .await
            .unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(server.serve(async move { drop(stopped.await) }));
        Self { store, stop, served }
    }

    /// Stops it while a decision is held, and then continues that: started requests are completed.
    async fn stop(mut self) -> Arc<Held> {
        self.stop.send(()).unwrap();
        let early = tokio::time::timeout(Duration::from_millis(200), &mut self.served).await;
        assert!(early.is_err(), "it has not waited for a request that was begun");
        self.store.beside.let_go(1);
        self.served.await.unwrap();
        self.store
    }
}

/// Sends a request on a connection of its own.
async fn send(gateway: &Gateway, request: &[u8]) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    let tls = TlsConnector::from(Arc::new(client(gateway, &[&TLS13], None)));
    let mut stream = tls.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    stream.write_all(request).await.unwrap();
    stream
}

/// Closes the connection, and waits until the gateway has noticed. This is reliable on one thread only: on another one the request may
/// still count as awaited for a moment.
async fn hang_up(mut stream: TlsStream<TcpStream>) {
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}

/// Returns the number of uses of the only token.
async fn uses(store: &Held) -> u32 {
    let token = store.list(EntryKind::Token).await.unwrap().remove(0);
    store.uses(EntryKind::TokenUse, &token.id).await.unwrap()
}

#[tokio::test]
async fn attack_33_a_disconnected_client_spends_no_use() {
    let gateway = init();
    let token = gateway.token(&["--name", "once", "--uses", "1"]);
    let running = Running::start(&gateway).await;
    let request = format!("GET /config/worker HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n");
    let stream = send(&gateway, request.as_bytes()).await;
    running.store.beside.came().await;
    assert_eq!(uses(&running.store).await, 0);
    hang_up(stream).await;
    let store = running.stop().await;
    assert_eq!((uses(&store).await, store.pending().await.unwrap()), (0, Vec::new()));
    let records = gateway.records();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(
        (&records[0]["verdict"], &records[0]["code"], &records[0]["use_number"]),
        (&"refused".into(), &"client-gone".into(), &serde_json::Value::Null)
    );
    let table = gateway.command(&["log", "audit"]);
    assert!(table.contains("1 as recorded, 0 different"), "{table}");
}

#[tokio::test]
async fn attack_33_a_disconnect_in_a_second_boot_spends_nothing() {
    let gateway = init();
    let token = gateway.token(&["--name", "once", "--uses", "1"]);
    let running = Running::start(&gateway).await;
    let hold = &running.store.beside;
    let claimant = "A".repeat(43);
    let fetch = async || {
        hold.let_go(1);
        let request = gateway.client.get(gateway.url("/config/worker")).header("accept", accept("3.4.0"));
        let answer = Answer::send(request.header("authorization", bearer(&token)).header(CLAIMANT_HEADER, &claimant)).await;
        hold.came().await;
        answer
    };
    assert_eq!(fetch().await.status, 200);
    let request =
        format!("GET /config/worker HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{CLAIMANT_HEADER}: {claimant}\r\n\r\n");
    for gone in 1..=usize::try_from(REPEATS_LIMIT).unwrap() + 1 {
        let stream = send(&gateway, request.as_bytes()).await;
        hold.came().await;
        hang_up(stream).await;
        hold.let_go(1);
        while gateway.records().len() == gone {
            tokio::task::yield_now().await;
        }
        let record = gateway.records().pop().unwrap();
        assert_eq!((&record["code"], record.get("again")), (&"client-gone".into(), None));
    }
    for _ in 0..REPEATS_LIMIT {
        assert_eq!(fetch().await.status, 200);
    }
    fetch().await.refused(403, "token-spent");
    let table = gateway.command(&["log", "audit"]);
    assert!(table.contains("0 different"), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_33_a_timed_out_request_spends_no_use() {
    let gateway = init();
    gateway.settings("[limits]\nrequest_seconds = 1");
    let token = bearer(&gateway.token(&["--name", "once", "--uses", "1"]));
    let running = Running::start(&gateway).await;
    gateway.config("/config/worker", &[&token]).await.check_retry();
    running.store.beside.came().await;
    assert_eq!(uses(&running.store).await, 0);
    let store = running.stop().await;
    assert_eq!((uses(&store).await, store.pending().await.unwrap()), (0, Vec::new()));
    let codes: Vec<_> = gateway.records().into_iter().map(|record| record["code"].clone()).collect();
    assert_eq!(codes, ["client-gone"]);
}

#[tokio::test]
async fn attack_33_records_evidence_of_a_disconnected_client() {
    let gateway = init();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-0"]);
    let running = Running::start(&gateway).await;
    let challenge = gateway.challenge(&case, None);
    let body = serde_json::to_string(&gateway.answer(case, &challenge)).unwrap();
    let head = format!(
        "POST /v1/attest/evidence HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let stream = send(&gateway, (head + &body).as_bytes()).await;
    running.store.beside.came().await;
    hang_up(stream).await;
    running.stop().await;
    let records = gateway.records();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(
        (&records[0]["code"], &records[0]["name"], &records[0]["ticket"]),
        (&"client-gone".into(), &"worker-0".into(), &serde_json::Value::Null)
    );
    assert!(records[0]["claims"].is_object());
    let table = gateway.command(&["log", "audit"]);
    assert!(table.contains("1 as recorded, 0 different"), "{table}");
}
