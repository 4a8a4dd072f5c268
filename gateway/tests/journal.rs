//! The attestation log: no answer is sent that is not in it.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::support;
use crate::support::kubelet::embedded;
use crate::support::soft_tpm::maker::Maker;
use crate::support::{Answer, Case, Gateway, POOL, next_boot, now, serving_within, tpm};
use attest_gateway::server::Server;
use attest_gateway::settings::Settings;
use attest_log::{Decision, LineHash, Record, link_of};
use attest_system::clock::Clock;

#[tokio::test(flavor = "multi_thread")]
async fn a_torn_last_line_is_cut_off_and_the_others_stay() {
    let mut gateway = Gateway::start();
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.kill();
    let log = gateway.path("state/attestation.jsonl");
    let whole = fs::read(&log).unwrap();
    OpenOptions::new()
        .append(true)
        .open(&log)
        .unwrap()
        .write_all(b"{\"time\":\"2026-")
        .unwrap();
    gateway.run();
    gateway.line(|line| line.contains("14 bytes") && line.contains("attestation log"));
    assert!(fs::read(&log).unwrap().starts_with(&whole));
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    assert_eq!(gateway.records().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_nothing_that_cannot_be_recorded() {
    const LIMIT_BLOCKS: usize = 400;
    let mut gateway = Gateway::init();
    let case = tpm();
    gateway.endorse(&case, &[]);
    // The kernel refuses to let any file grow beyond 400 blocks; the log is filled up to just below that.
    let filler = format!("{{\"filler\":\"{}\"}}\n", "x".repeat(LIMIT_BLOCKS * 1024 - 14 - 100));
    let log = gateway.path("state/attestation.jsonl");
    fs::write(&log, &filler).unwrap();
    gateway.run_as(serving_within(&gateway, LIMIT_BLOCKS));
    gateway.config("/config/worker", &[]).await.check_retry();
    gateway.config("/config/worker", &["Basic x"]).await.check_retry();
    gateway.attest(case, None).await.refused(503, "unavailable");
    assert_eq!(fs::read_to_string(&log).unwrap(), filler, "no half a line is left");
    gateway.kill();
    // With room again, it goes on.
    gateway.run();
    gateway
        .config("/config/worker", &[])
        .await
        .is_config(&gateway.rendered(POOL, "pre-approved"));
}

#[tokio::test(flavor = "multi_thread")]
async fn is_not_ready_while_the_log_is_full() {
    const LIMIT_BLOCKS: usize = 400;
    let mut gateway = Gateway::init();
    // The store is made without that limit; what the gateway goes by was recorded before.
    gateway.run();
    gateway.terminate();
    gateway.wait();
    let log = gateway.path("state/attestation.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let last = text.lines().last().unwrap().as_bytes();
    let place = link_of(last).unwrap().unwrap();
    let filled = |filler: &str| {
        let (id, number, previous) = (&place.id, place.number + 1, LineHash::of(last));
        let place = format!("{{\"id\":\"{id}\",\"number\":{number},\"previous\":\"{previous}\"}}");
        format!("{text}{{\"filler\":\"{filler}\",\"chain\":{place}}}\n")
    };
    // There is room for the checkpoint of a start.
    let room = LIMIT_BLOCKS * 1024 - filled("").len() - 1300;
    let filler = filled(&"x".repeat(room));
    fs::write(&log, &filler).unwrap();
    gateway.run_as(serving_within(&gateway, LIMIT_BLOCKS));
    let begun = fs::read_to_string(&log).unwrap();
    assert!(begun.starts_with(&filler) && begun.lines().count() == filler.lines().count() + 1);
    let ready = async || Answer::send(gateway.client.get(gateway.url("/readyz"))).await;
    assert_eq!(ready().await.status.as_u16(), 200);
    gateway.config("/config/worker", &[]).await.check_retry();
    let unready = ready().await;
    assert_eq!(
        (unready.status.as_u16(), String::from_utf8(unready.body).unwrap().trim()),
        (503, "the attestation log cannot be written")
    );
    assert_eq!(fs::read_to_string(&log).unwrap(), begun);
    // As `copytruncate` does it: the file is shorter than it was, and stays without a gap.
    OpenOptions::new().write(true).truncate(true).open(&log).unwrap();
    gateway
        .config("/config/worker", &[])
        .await
        .is_config(&gateway.rendered(POOL, "pre-approved"));
    assert_eq!(ready().await.status.as_u16(), 200);
    assert_eq!(gateway.records().len(), 1);
    assert!(!fs::read(&log).unwrap().contains(&0));
    assert!(!gateway.path("state/attestation.probe").exists());
}

/// Returns the number of a file's records about nodes, without checkpoints and acts of commands.
fn records(log: &Path) -> usize {
    let text = fs::read_to_string(log).unwrap();
    let aside = ["\"decision\":\"checkpoint\"", "\"decision\":\"admin\""];
    text.lines().filter(|line| aside.iter().all(|aside| !line.contains(aside))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_rotated_by_rename_and_sighup() {
    let gateway = Gateway::start();
    let ticket = support::bearer(&gateway.ticket().await);
    gateway.config("/config/worker", &[&ticket]).await;
    let (log, old) = (gateway.path("state/attestation.jsonl"), gateway.path("state/attestation.jsonl.1"));
    fs::rename(&log, &old).unwrap();
    gateway.hang_up();
    gateway.line(|line| line.contains("the attestation log was moved"));
    gateway.config("/config/worker", &[&ticket]).await;
    assert_eq!((records(&old), records(&log)), (2, 1));
    let [log, old] = [&log, &old].map(|path| path.to_str().unwrap());
    let table = gateway.command(&["log", "audit", "--log", old, "--log", log]);
    assert!(table.contains("3 as recorded, 0 different"), "{table}");
    gateway.command(&["log", "audit"]);
    gateway.command(&["log", "audit", "--log", log, "--continued"]);
    let said = gateway.try_command(&["log", "audit", "--log", log]);
    assert!(!said.status.success());
    assert!(String::from_utf8(said.stdout).unwrap().contains("missing before line "));
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_reports_a_moved_log_until_reopened() {
    let gateway = Gateway::start();
    let ready = async || {
        let answer = Answer::send(gateway.client.get(gateway.url("/readyz"))).await;
        (answer.status.as_u16(), String::from_utf8(answer.body).unwrap())
    };
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    assert_eq!(ready().await, (200, "ready\n".to_owned()));
    let (log, old) = (gateway.path("state/attestation.jsonl"), gateway.path("state/attestation.jsonl.1"));
    fs::rename(&log, &old).unwrap();
    // Something is in the way.
    fs::create_dir(&log).unwrap();
    let moved = (200, "ready\nthe attestation log was moved, and no new one is begun\n".to_owned());
    assert_eq!(ready().await, moved);
    gateway.hang_up();
    gateway.line(|line| line.contains("cannot start a new attestation log") && line.contains("retrying in"));
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    assert_eq!(ready().await, moved);
    // It is tried again without another signal.
    fs::remove_dir(&log).unwrap();
    gateway.line(|line| line.contains("the attestation log was moved; started a new file"));
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    assert_eq!(ready().await, (200, "ready\n".to_owned()));
    assert_eq!((records(&old), records(&log)), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_a_new_file_after_log_deletion() {
    let gateway = Gateway::start();
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    fs::remove_file(gateway.path("state/attestation.jsonl")).unwrap();
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.line(|line| line.contains("the attestation log was deleted; started a new file"));
    assert_eq!(gateway.records().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn state_files_are_private_to_their_owner() {
    let gateway = Gateway::start();
    gateway.ticket().await;
    let mode = |path: &str| fs::metadata(gateway.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("state"), mode("state/evidence")), (0o700, 0o700));
    for file in [
        "state/gateway.db",
        "state/seal.key",
        "state/log.key",
        "state/attestation.jsonl",
        "tls/mcs.key",
        "tls/mcs-ca.key",
    ] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_do_not_write_one_log() {
    let gateway = Gateway::start();
    let settings = fs::read_to_string(gateway.path("gateway.toml")).unwrap();
    let other = gateway.path("other.toml");
    fs::write(&other, settings.replace(&gateway.address().port().to_string(), "0")).unwrap();
    let second = support::program().args(["serve", "--config"]).arg(&other).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        said.contains("a gateway is writing ") && said.contains("attestation.jsonl"),
        "{said}"
    );
}

/// TPMs of a manufacturer that a pool trusts are available to anyone, and so are genuine documents of a cloud.
#[tokio::test(flavor = "multi_thread")]
async fn attack_37_unknown_genuine_machines_do_not_fill_the_disk() {
    let gateway = Gateway::init();
    let maker = Maker::new("A maker of TPMs");
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    let by_maker = "endorsement = \"any-tpm-of-a-trusted-maker\"";
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", by_maker);
    let ours = tpm();
    gateway.endorse(&ours, &["--name", "worker-0"]);
    // Its budgets do not recover meanwhile.
    let settings = Settings::load(&gateway.path("gateway.toml")).unwrap();
    let store = Arc::new(embedded(&gateway));
    let server = Server::bind_with(settings, Clock::Fixed(now()), store).await.unwrap();
    let running = Arc::clone(server.gateway());
    tokio::spawn(server.serve(std::future::pending()));
    let bought = || {
        tpm().but(|case| {
            let (area, certificate) = maker.ek();
            case.ek_area = area;
            case.ek_certificate = Some(certificate);
        })
    };
    let refused = async |case: Case, name: &str| gateway.attest(case, Some(name)).await.refused(403, "node-name-taken");
    refused(bought(), "worker-0").await;
    assert!(gateway.records().pop().unwrap()["claims"].is_object());
    // As if it had been refused for half an hour.
    let (at, peer) = (running.clock.now().as_secs(), "127.0.0.1:1".to_owned());
    let mut refusal = Record::new(String::new(), Decision::Evidence, at, peer, POOL.to_owned());
    refusal.code = Some("node-name-taken".to_owned());
    refusal.claims = Some(tpm().verify().unwrap().into());
    let filler = [(80, 1024 * 1024), (20, 64 * 1024), (100, 1)];
    let sizes: Vec<usize> = filler.iter().flat_map(|(times, bytes)| vec![*bytes; *times]).collect();
    for (number, bytes) in sizes.iter().enumerate() {
        refusal.id = format!("{number:032x}");
        refusal.reason = "x".repeat(*bytes);
        running.recorder.record(&refusal, Vec::new(), ()).await.unwrap().into_inner();
    }
    let bytes = || fs::metadata(gateway.path("state/attestation.jsonl")).unwrap().len();
    assert!((30_000_000..40_000_000).contains(&bytes()), "{} bytes", bytes());
    let lines = || gateway.records().len();
    let before = lines();
    for _ in 0..3 {
        refused(bought(), "worker-0").await;
    }
    assert_eq!(lines(), before);
    // Who proved nothing has a budget of its own, and what is known here has none.
    gateway
        .config("/config/worker", &["Bearer no-such-token"])
        .await
        .refused(403, "token-not-accepted");
    for _ in 0..3 {
        refused(next_boot(&ours), "worker-9").await;
    }
    assert_eq!(lines(), before + 4);
    // But nobody has to read again and again that a machine is revoked.
    gateway.command(&["node", "revoke", "worker-0"]);
    gateway.attest(next_boot(&ours), None).await.refused(403, "node-revoked");
    assert_eq!(lines(), before + 4);
    running.recorder.sum_up(at, true).await.unwrap();
    let sum = gateway.records().pop().unwrap();
    assert_eq!(sum["counted"], 1 + sizes.len() + 3 + 1 - lines_about_genuine(&gateway));
    assert!(sum["reason"].as_str().unwrap().contains("genuine but unknown machines"), "{sum}");
}

/// Returns the number of individual records of [`attack_37_unknown_genuine_machines_do_not_fill_the_disk`] about genuine machines
/// other than ours.
fn lines_about_genuine(gateway: &Gateway) -> usize {
    let records = gateway.records().into_iter();
    let about = records.filter(|record| record["claims"].is_object() && record["name"] != "worker-9");
    about.count()
}
