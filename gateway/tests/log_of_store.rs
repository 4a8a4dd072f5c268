//! The audited logs must contain all lines that were signed according to the store, by whatever gateway and key.

use std::fs;
use std::path::Path;
use std::process::Output;

use attest_log::codes::decided_by;
use attest_log::{Blobs, CheckpointSigner, Decision, Journal, LineHash, LogKey, Record, SegmentLimits, ShownEvidence, link_of};
use attest_recording::keep;
use data_encoding::BASE64;
use serde_json::Value;

use crate::support::kubelet::embedded;
use crate::support::{Gateway, POOL};

fn output_text(output: &Output) -> String {
    String::from_utf8([output.stdout.as_slice(), &output.stderr].concat()).unwrap()
}

/// Returns whether `audit` finds all sound, and its output.
fn audit(gateway: &Gateway, options: &[&str]) -> (bool, String) {
    let output = gateway.try_command(&[&["log", "audit"], options].concat());
    (output.status.success(), output_text(&output))
}

/// Returns a stopped gateway that has served a client.
async fn stopped() -> Gateway {
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\nname = \"gw-1\"");
    gateway.run();
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.terminate();
    gateway.wait();
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_detects_a_log_replaced_with_its_key() {
    let mut gateway = stopped().await;
    let (sound, text) = audit(&gateway, &[]);
    assert!(sound, "{text}");
    let log = gateway.path("state/attestation.jsonl");
    let old = fs::read(&log).unwrap();
    fs::remove_file(&log).unwrap();
    fs::remove_file(gateway.path("state/log.key")).unwrap();
    gateway.run();
    gateway.terminate();
    gateway.wait();
    for options in [&[][..], &["--replica", "gw-1"]] {
        let (sound, text) = audit(&gateway, options);
        assert!(!sound && text.contains("missing, up to line"), "{text}");
    }
    // Nothing but the log itself makes up for it.
    let kept = gateway.path("old.jsonl");
    fs::write(&kept, old).unwrap();
    let (sound, text) = audit(
        &gateway,
        &[
            "--checkpoints",
            &gateway.checkpoints(),
            "--log",
            kept.to_str().unwrap(),
            "--log",
            log.to_str().unwrap(),
        ],
    );
    assert!(!sound && text.contains("by an unknown key") && !text.contains("missing"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_abandon_gives_up_a_lost_chain() {
    let mut gateway = stopped().await;
    let log = gateway.path("state/attestation.jsonl");
    let chain = |log: &Path| {
        let text = fs::read_to_string(log).unwrap();
        let link = attest_log::link_of(text.lines().last().unwrap().as_bytes());
        link.unwrap().unwrap().id
    };
    let old = chain(&log);
    fs::remove_file(&log).unwrap();
    fs::remove_file(gateway.path("state/log.key")).unwrap();
    gateway.run();
    gateway.line(|line| line.contains("WARN") && line.contains("by another key") && line.contains(&format!("log abandon {old}")));
    let own = chain(&log);
    for (chain, why) in [
        (&own[..8], "belongs to this gateway"),
        (&old[..7], "too short"),
        ("00000000", "the store has no chain that begins with"),
    ] {
        let refused = gateway.try_command(&["log", "abandon", chain]);
        assert!(
            !refused.status.success() && output_text(&refused).contains(why),
            "{}",
            output_text(&refused)
        );
    }
    assert!(audit(&gateway, &[]).1.contains("missing, up to line"));
    gateway.command(&["log", "abandon", &old[..8]]);
    let acts = gateway.wait_for_acts(4, "log.abandon");
    let done = acts.iter().find(|act| act["admin"]["refused"].is_null()).unwrap();
    let thing = &done["admin"]["things"][0];
    assert!(thing["id"].as_str().unwrap().starts_with(&old), "{done}");
    assert!(thing["before"]["checkpoint"].as_str().unwrap().contains("\"signature\""), "{done}");
    assert_eq!(thing["after"]["checkpoint"], thing["before"]["checkpoint"]);
    assert!(thing["after"]["abandoned"]["by"].as_str().unwrap().contains("uid"), "{done}");
    let again = gateway.try_command(&["log", "abandon", &old]);
    assert!(
        !again.status.success() && output_text(&again).contains("was abandoned already, on "),
        "{}",
        output_text(&again)
    );
    gateway.terminate();
    gateway.wait();
    let (sound, text) = audit(&gateway, &[]);
    assert!(
        sound && text.contains("log.abandon") && !text.contains("missing, up to line"),
        "{text}"
    );
    // What was abandoned is shown for ever.
    let shown = format!("chain {old} of gateway gw-1, signed up to line");
    assert!(text.contains(&shown) && text.contains("was abandoned on"), "{text}");
    let status = gateway.command(&["log", "status"]);
    assert!(
        status.contains(&old) && status.contains("abandoned on") && status.contains("required"),
        "{status}"
    );
    gateway.run();
    assert!(!gateway.output().contains("by another key"));
}

/// Recomputes a log's hash chain, with checkpoints that this key signs: the chain keeps its name.
fn resigned(text: &str, key: &LogKey) -> String {
    let (mut again, mut before) = (String::new(), None::<String>);
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        let mut line = match &before {
            Some(hash) => line.replace(value["chain"]["previous"].as_str().unwrap(), hash),
            None => line.to_owned(),
        };
        let value: Value = serde_json::from_str(&line).unwrap();
        if let Some(checkpoint) = value["checkpoint"].as_object() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let found = checkpoint.get("found");
            let found = found
                .map(|found| format!("{} {}\n", found["first"], found["last"]))
                .unwrap_or_default();
            let signed = format!(
                "attest-gateway/v1/log-checkpoint\n{}\n{}\n{}\n{}\n{}\n{found}",
                text(&checkpoint["replica"]),
                text(&value["chain"]["id"]),
                checkpoint["count"],
                text(&checkpoint["head"]),
                value["at"]
            );
            let signature = BASE64.encode(&key.sign(signed.as_bytes()));
            line = line.replace(&text(&checkpoint["key"]), &key.public().to_string());
            line = line.replace(&text(&checkpoint["signature"]), &signature);
        }
        before = Some(LineHash::of(line.as_bytes()).to_string());
        again += &(line + "\n");
    }
    again
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_52_detects_a_log_re_signed_by_another_key() {
    let mut gateway = stopped().await;
    let log = gateway.path("state/attestation.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    let altered = text.replace("\"peer\":\"127.0.0.1", "\"peer\":\"127.0.0.9");
    assert_ne!(altered, text);
    fs::remove_file(gateway.path("state/log.key")).unwrap();
    let key = LogKey::open(&gateway.path("state/log.key")).unwrap();
    fs::write(&log, resigned(&altered, &key)).unwrap();
    let (sound, text) = audit(&gateway, &["--without-checkpoints"]);
    assert!(sound, "by itself it holds: {text}");
    let chain = |line: &str| link_of(line.as_bytes()).unwrap().unwrap().id;
    let forged = chain(fs::read_to_string(&log).unwrap().lines().next().unwrap());
    gateway.run();
    gateway.line(|line| line.contains("ERROR") && line.contains("lacks line") && line.contains(&forged));
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway.terminate();
    gateway.wait();
    let last = fs::read_to_string(&log).unwrap();
    assert_ne!(chain(last.lines().last().unwrap()), forged, "another chain has begun");
    for options in [&[][..], &["--checkpoints", &gateway.checkpoints()]] {
        let (sound, text) = audit(&gateway, options);
        assert!(
            !sound && text.contains(&forged[..8]) && text.contains("is known to have been signed"),
            "{text}"
        );
    }
    // The store knows it, whatever else becomes of the log.
    gateway.run();
    gateway.command(&["log", "abandon", &forged]);
    gateway.wait_for_acts(1, "log.abandon");
    gateway.terminate();
    gateway.wait();
    let (_, text) = audit(&gateway, &["--checkpoints", &gateway.checkpoints()]);
    assert!(
        text.contains(&format!("chain {forged} of gateway gw-1")) && text.contains("was abandoned on"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn warns_of_a_replaced_log_key_until_abandoned() {
    let mut gateway = stopped().await;
    let log = gateway.path("state/attestation.jsonl");
    let chain = link_of(fs::read_to_string(&log).unwrap().lines().last().unwrap().as_bytes());
    let chain = chain.unwrap().unwrap().id;
    let old = gateway.path("old.pub");
    fs::write(&old, gateway.command(&["log", "show-key"])).unwrap();
    fs::remove_file(gateway.path("state/log.key")).unwrap();
    let accepts = format!("log abandon {chain}");
    for _ in 0..2 {
        gateway.run();
        gateway.line(|line| line.contains("WARN") && line.contains("log.key was replaced") && line.contains(&accepts));
        assert!(!gateway.output().contains("lacks line"));
        gateway.terminate();
        gateway.wait();
    }
    let new = gateway.path("new.pub");
    fs::write(&new, gateway.command(&["log", "show-key"])).unwrap();
    let keys = [format!("gw-1={}", old.display()), format!("gw-1={}", new.display())];
    let keys = ["--log-key", &keys[0], "--log-key", &keys[1]];
    let (sound, text) = audit(&gateway, &keys);
    assert!(sound && text.contains("log.key was replaced") && text.contains(&accepts), "{text}");
    gateway.command(&["log", "abandon", &chain]);
    gateway.run();
    assert!(!gateway.output().contains("log.key was replaced"));
    gateway.wait_for_acts(1, "log.abandon");
    gateway.terminate();
    gateway.wait();
    let (sound, text) = audit(&gateway, &keys);
    assert!(sound && text.contains("was abandoned on") && !text.contains(&accepts), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_requires_the_log_of_each_known_gateway() {
    let gateway = stopped().await;
    let other = gateway.path("gw-2");
    fs::create_dir(&other).unwrap();
    let checkpoint = signed(&other).await;
    keep(&embedded(&gateway), &checkpoint).await.unwrap();
    let (sound, text) = audit(&gateway, &[]);
    assert!(!sound && text.contains("missing, up to line 1 at least"), "{text}");
    let (sound, text) = audit(&gateway, &["--replica", "gw-1"]);
    assert!(sound, "{text}");
    let (sound, text) = audit(&gateway, &["--replica", "gw-2"]);
    assert!(!sound && text.contains("of gateway gw-2: missing, up to line 1 at least"), "{text}");
    assert!(text.contains("give its log, too (--log, --log-key)"), "{text}");
    // Of a name that nobody has nothing is known.
    for names in [&["--replica", "gw-3"][..], &["--replica", "gw-1", "--replica", "gw-3"]] {
        let (sound, text) = audit(&gateway, names);
        assert!(
            !sound && text.contains("no checkpoint of gateway gw-3; the file has checkpoints of: gw-1, gw-2"),
            "{names:?}: {text}"
        );
    }
    let key = |name: &str, text: String| {
        let file = gateway.path(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let own = key("1.pub", gateway.command(&["log", "show-key"]));
    let others = key("2.pub", LogKey::read(&other.join("log.key")).unwrap().public().pem());
    let (log, state) = (other.join("attestation.jsonl"), gateway.path("state"));
    let logs = ["--log", log.to_str().unwrap(), "--log", state.to_str().unwrap()];
    let keys = ["--log-key", &own, "--log-key", &others];
    let (sound, text) = audit(&gateway, &[&logs[..], &keys, &["--checkpoints", &gateway.checkpoints()]].concat());
    assert!(sound && text.contains("gw-2"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_accepts_tickets_issued_by_an_unread_gateway() {
    let gateway = stopped().await;
    let folder = gateway.path("gw-2");
    fs::create_dir(&folder).unwrap();
    let own = "cd".repeat(16);
    let lines = |earned_by: String| {
        let mut record = Record::new(
            own.clone(),
            Decision::Config,
            1_700_000_001,
            "192.0.2.1:7".to_owned(),
            POOL.to_owned(),
        );
        record.shown = ShownEvidence::Ticket;
        record.code = Some("ticket-spent".to_owned());
        record.decided_by = decided_by("ticket-spent");
        record.earned_by = Some(earned_by);
        record.reason = "spent".to_owned();
        record
    };
    let key = |folder: &Path| {
        let file = folder.join("log.pub");
        fs::write(&file, LogKey::read(&folder.join("log.key")).unwrap().public().pem()).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let journal = journal(&folder);
    journal.checkpoint(1_700_000_000).await.unwrap();
    let record = lines("ab".repeat(16));
    journal.record(&record, Vec::new(), ()).await.unwrap().into_inner();
    journal.checkpoint(1_700_000_002).await.unwrap();
    let checkpoint = journal.checkpoints().borrow().clone().unwrap();
    keep(&embedded(&gateway), &checkpoint).await.unwrap();
    let log = folder.join("attestation.jsonl");
    let given = ["--log", log.to_str().unwrap(), "--log-key", &key(&folder)];
    let audited = |options: &[&str]| audit(&gateway, &[&given[..], options].concat());
    for options in [
        &["--checkpoints", &gateway.checkpoints(), "--replica", "gw-2"][..],
        &["--replica", "gw-2"],
    ] {
        let (sound, text) = audited(options);
        assert!(
            sound && text.contains("warning: ") && text.contains("is not in these logs"),
            "{options:?}: {text}"
        );
    }
    let (sound, text) = audited(&["--checkpoints", &gateway.checkpoints()]);
    assert!(!sound && text.contains("0 different") && text.contains("gw-1: missing"), "{text}");
    // Where nothing says that there is another gateway, somebody has invented it.
    let (sound, text) = audited(&[]);
    assert!(
        !sound && text.contains("which is not an earlier decision that earned a ticket"),
        "{text}"
    );
    // What is read is no other gateway's.
    let text = fs::read_to_string(&log).unwrap().replace(&"ab".repeat(16), &own);
    fs::write(&log, text).unwrap();
    let (_, text) = audited(&["--replica", "gw-2"]);
    assert!(text.contains("which is not an earlier decision that earned a ticket"), "{text}");
}

/// Opens the log of another gateway.
fn journal(folder: &Path) -> Journal {
    let signer = CheckpointSigner::new(LogKey::open(&folder.join("log.key")).unwrap(), Some("gw-2"), 1000);
    let blobs = Blobs::open(&folder.join("evidence")).unwrap();
    let log = folder.join("attestation.jsonl");
    Journal::open(&log, signer, SegmentLimits::NEVER, blobs, std::sync::Arc::new(()))
        .unwrap()
        .0
}

/// Returns the checkpoint at the beginning of another gateway's log.
async fn signed(folder: &Path) -> String {
    journal(folder).checkpoint(1_700_000_000).await.unwrap();
    fs::read_to_string(folder.join("attestation.jsonl")).unwrap().trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_without_the_store_cannot_confirm_completeness() {
    let gateway = stopped().await;
    for file in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        drop(fs::remove_file(gateway.path("state").join(file)));
    }
    let (sound, text) = audit(&gateway, &[]);
    assert!(
        !sound && text.contains("completeness cannot be verified") && text.contains("--without-checkpoints"),
        "{text}"
    );
    let (sound, text) = audit(&gateway, &["--without-checkpoints"]);
    assert!(sound && text.contains("no signed checkpoints were given"), "{text}");
    // Whoever names a log and does not say that it is all there needs no checkpoints.
    let log = gateway.path("state/attestation.jsonl");
    let (sound, text) = audit(&gateway, &["--log", log.to_str().unwrap()]);
    assert!(sound && !text.contains("no signed checkpoints"), "{text}");
    let refused = gateway.try_command(&["log", "list-checkpoints"]);
    assert!(
        !refused.status.success() && output_text(&refused).contains("gateway.db is missing or empty"),
        "{}",
        output_text(&refused)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_rejects_an_empty_log() {
    let gateway = stopped().await;
    let path = |name: &str| gateway.path(name).to_str().unwrap().to_owned();
    let (log, empty) = (path("state/attestation.jsonl"), path("empty.jsonl"));
    fs::write(&empty, "").unwrap();
    let (sound, text) = audit(&gateway, &["--log", &empty]);
    assert!(!sound && text.contains("the log has no record"), "{text}");
    let (sound, text) = audit(&gateway, &["--log", &empty, "--continued"]);
    assert!(sound, "{text}");
    // As a shell lists them.
    let (sound, text) = audit(&gateway, &["--log", &empty, &log]);
    assert!(sound && text.contains("1 as recorded"), "{text}");
    let id = "0123456789abcdef0123456789abcdef";
    let (sound, text) = audit(&gateway, &["--decision", id]);
    assert!(!sound && text.contains(&format!("decision {id} is not in the log")), "{text}");
    let known = gateway.records()[0]["id"].as_str().unwrap().to_owned();
    let (sound, text) = audit(&gateway, &["--decision", &known]);
    assert!(sound && text.contains("1 as recorded"), "{text}");
}
