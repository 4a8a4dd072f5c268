//! Disk space of boots' event logs, and their unchanged content.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use attest::{HashAlg, SpkiSha256};
use attest_log::{Blobs, closed_segments};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::firmware::Firmware;
use crate::support::node::Node;
use crate::support::soft_tpm::maker::Maker;
use crate::support::{Answer, Gateway, POOL};

/// Number of machines of the model, and of those that boot at the same time.
const MACHINES: usize = 40;
const TOGETHER: usize = 8;
/// Maximum disk space of a machine's first boot. It includes a kilobyte that is kept of each machine, whatever it boots later.
const BOOT_BYTES: u64 = 9 * 1024;
/// Minimum size of a file, and the unit to which sizes are rounded up.
const BLOCK_BYTES: u64 = 4096;

/// Gateway that accepts all TPMs of a manufacturer, and machines of one model with such TPMs.
struct Site {
    gateway: Gateway,
    maker: Maker,
    model: Arc<Firmware>,
}

impl Site {
    fn new() -> Self {
        let (gateway, maker) = (Gateway::init(), Maker::new("A maker of TPMs"));
        fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
        gateway.edit_pool(POOL, "endorsement = \"allowlist\"", "endorsement = \"any-tpm-of-a-trusted-maker\"");
        Self {
            gateway,
            maker,
            model: Arc::new(Firmware::new()),
        }
    }

    /// Boots this number of machines, some of them concurrently, until each has its config.
    async fn boot(&self, machines: usize) {
        let key = SpkiSha256::from_certificate(&self.gateway.certificate()).unwrap();
        let (client, url) = (self.gateway.client.clone(), self.gateway.url(""));
        let mut under_way = JoinSet::new();
        for number in 0..machines {
            if under_way.len() == TOGETHER {
                under_way.join_next().await.unwrap().unwrap();
            }
            let (mut node, client, url) = (Node::made_by(&self.maker), client.clone(), url.clone());
            let log = self.model.event_log(node.ek().as_bytes(), number);
            node.has_booted(log.build(), &log.pcrs(HashAlg::Sha256));
            under_way.spawn(async move {
                let challenged = Answer::send(node.challenge(&client, &url)).await;
                let evidence = node.evidence(&challenged, &key);
                let ticket = Answer::send(Node::send(&client, &url, &evidence)).await.ticket();
                assert_eq!(Answer::send(Node::config(&client, &url, &ticket)).await.status, 200);
            });
        }
        under_way.join_all().await;
    }

    fn stop(&mut self) {
        self.gateway.terminate();
        assert!(self.gateway.wait().success());
    }

    fn evidence(&self) -> PathBuf {
        self.gateway.path("state/evidence")
    }

    /// Returns the disk space of the log, the blobs and the store, after the gateway has stopped: its write-ahead log is empty.
    fn bytes(&self) -> u64 {
        let log = self.gateway.path("state/attestation.jsonl");
        let mut files = closed_segments(&log).unwrap();
        files.extend([log, self.gateway.path("state/gateway.db")]);
        files.extend(fs::read_dir(self.evidence()).unwrap().map(|entry| entry.unwrap().path()));
        assert!(!self.gateway.path("state/gateway.db-wal").exists());
        let lengths = files.iter().map(|file| fs::metadata(file).unwrap().len());
        lengths.map(|length| length.next_multiple_of(BLOCK_BYTES)).sum()
    }

    /// Returns the records of evidence.
    fn evidence_records(&self) -> Vec<Value> {
        let records = self.gateway.records().into_iter();
        records.filter(|record| record["decision"] == "evidence").collect()
    }
}

/// Returns the output of the document's commands for a record.
fn by_document(site: &Site, record: &Value) -> Output {
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/audit.md")).unwrap();
    let begin = document.find("#!/bin/sh\n# sh event-log.sh").unwrap();
    let end = document[begin..].find("```\n").unwrap();
    let script = site.gateway.path("event-log.sh");
    fs::write(&script, &document[begin..begin + end]).unwrap();
    let mut command = Command::new("sh");
    command.arg(script).arg(site.evidence());
    let mut running = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(running.stdin.take().unwrap(), "{record}").unwrap();
    running.wait_with_output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn event_logs_take_9_kilobytes_per_boot() {
    let mut site = Site::new();
    site.gateway.run();
    site.stop();
    let before = site.bytes();
    site.gateway.run();
    site.boot(MACHINES).await;
    site.stop();
    let each = (site.bytes() - before) / u64::try_from(MACHINES).unwrap();
    assert!(each <= BOOT_BYTES, "{each} bytes");
    println!("{each} bytes a boot");
    // One log is kept, and all the others by what they have that it has not.
    let records = site.evidence_records();
    assert_eq!(records.len(), MACHINES);
    let whole = |record: &&Value| record["basis"]["event_log_difference"].is_null();
    let whole: Vec<&Value> = records.iter().filter(whole).collect();
    assert_eq!(whole.len(), 1);
    let base = whole[0]["basis"]["event_log_sha256"].as_str().unwrap();
    assert!(site.evidence().join(format!("{base}.gz")).exists());
    for record in &records {
        let (log, sha256) = (by_document(&site, record), record["basis"]["event_log_sha256"].as_str().unwrap());
        assert!(log.status.success() && log.stdout.len() > 30_000, "{log:?}");
        assert_eq!(Blobs::name(&log.stdout), sha256);
        let from = &record["basis"]["event_log_difference"]["from"];
        assert!(sha256 == base || from == base, "{from}");
    }
    site.gateway.command(&["log", "audit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_finds_event_logs_that_cannot_be_restored() {
    let mut site = Site::new();
    site.gateway.run();
    site.boot(2).await;
    site.stop();
    let records = site.evidence_records();
    let (base, record) = match records[0]["basis"]["event_log_difference"].is_null() {
        true => (&records[0], &records[1]),
        false => (&records[1], &records[0]),
    };
    let sha256 = |record: &Value| record["basis"]["event_log_sha256"].as_str().unwrap().to_owned();
    let (base, own) = (sha256(base), sha256(record));
    let audit = |alter: &dyn Fn(&mut Value)| {
        let mut record = record.clone();
        record.as_object_mut().unwrap().remove("chain");
        alter(&mut record["basis"]["event_log_difference"]);
        let file = site.gateway.path("altered.jsonl");
        fs::write(&file, format!("{record}\n")).unwrap();
        let output = site
            .gateway
            .try_command(&["log", "audit", "--unchained", "--log", file.to_str().unwrap()]);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), said, by_document(&site, &record).status.success())
    };
    let found = |alter: &dyn Fn(&mut Value), what: &[&str]| {
        let (sound, said, read) = audit(alter);
        assert!(!sound && !read && what.iter().all(|what| said.contains(what)), "{what:?}: {said}");
    };
    let (sound, said, read) = audit(&|_| {});
    assert!(sound && read, "{said}");
    let difference = record["basis"]["event_log_difference"]["zstd"].as_str().unwrap();
    // The frame's last bytes are the log's own: another character there is another log, or none.
    let other = if &difference[difference.len() - 8..][..1] == "A" {
        "B"
    } else {
        "A"
    };
    let altered = format!(
        "{}{other}{}",
        &difference[..difference.len() - 8],
        &difference[difference.len() - 7..]
    );
    found(&|difference| difference["zstd"] = json!(altered), &[&own, &base]);
    found(&|difference| difference["zstd"] = json!("no base64"), &["line 1: cannot be read"]);
    found(&|difference| *difference = Value::Null, &[&own, "No such file"]);
    // Another blob that is there: a certificate.
    let blobs = fs::read_dir(site.evidence()).unwrap().map(|entry| entry.unwrap().path());
    let names = blobs.map(|path| path.file_name().unwrap().to_str().unwrap().trim_end_matches(".gz").to_owned());
    let another = names.into_iter().find(|name| *name != base).unwrap();
    found(&|difference| difference["from"] = json!(another), &[&own, &another]);
    // The log that it is like is another's, and gone.
    let path = |name: &str| site.evidence().join(format!("{name}.gz"));
    fs::copy(path(&another), path(&base)).unwrap();
    found(&|_| {}, &[&base, "the content does not have the SHA-256 of its name"]);
    fs::remove_file(path(&base)).unwrap();
    found(&|_| {}, &[&base, "No such file"]);
}

/// Runs `log compare-boots` on records and on files.
#[tokio::test(flavor = "multi_thread")]
async fn compare_boots_shows_two_event_logs() {
    let mut site = Site::new();
    site.gateway.run();
    site.boot(2).await;
    site.stop();
    let ids: Vec<String> = site
        .evidence_records()
        .iter()
        .map(|record| record["id"].as_str().unwrap().to_owned())
        .collect();
    let diff = |first: &str, second: &str, more: &[&str]| {
        let output = site.gateway.try_command(&[&["log", "compare-boots", first, second], more].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), said)
    };
    let (code, text, said) = diff(&ids[0], &ids[1], &[]);
    assert!(
        code == Some(1) && text.contains('≠') && text.contains("PCR 7: the same"),
        "{text}{said}"
    );
    let (code, text, _) = diff(&ids[0][..12], &ids[0], &[]);
    assert!(code == Some(0) && !text.contains('≠'), "{text}");
    let (code, html, _) = diff(&ids[0], &ids[1], &["--html"]);
    assert!(code == Some(1) && html.contains("<tr class=\"changed\">") && html.ends_with("</html>\n"));

    let file = |name: &str, boot: usize| {
        let path = site.gateway.path(name);
        fs::write(&path, site.model.event_log(b"a machine", boot).build()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) = (file("first.bin", 1), file("second.bin", 2));
    let (code, text, _) = diff(&first, &second, &[]);
    assert!(code == Some(1) && text.contains('≠'), "{text}");
    assert_eq!(diff(&first, &first, &[]).0, Some(0));
    assert_eq!(diff(&ids[0], &first, &[]).0, Some(1));

    let path = |name: &str| site.gateway.path(name).to_str().unwrap().to_owned();
    let wrong = [
        ("0123456789abcdef".to_owned(), "the log has no such record"),
        (path("none"), "No such file"),
        (path("gateway.toml"), "the header's"),
    ];
    for (wrong, expected) in wrong {
        let (code, text, said) = diff(&ids[0], &wrong, &[]);
        assert!(code == Some(1) && text.is_empty() && said.contains(expected), "{wrong}: {said}");
    }
}
