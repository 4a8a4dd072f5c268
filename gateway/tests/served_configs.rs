//! `log config`: renders a served config again from the pool's earlier folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::support::{Gateway, POOL, SPEC};

/// Path of a file that only the full config has.
const FULL: &str = "pools/worker/full/90-marked.ign";

/// Gateway that has served both configs of a pool: the full one for a ticket, the other one to an unauthenticated client.
struct Served {
    gateway: Gateway,
    full: Vec<u8>,
    pre_approved: Vec<u8>,
}

fn marked(text: &str) -> String {
    format!(
        r#"{{"ignition":{{"version":"3.4.0"}},"storage":{{"files":[{{"path":"/etc/marked","mode":384,"contents":{{"source":"data:,{text}"}}}}]}}}}"#
    )
}

impl Served {
    async fn new() -> Self {
        let mut gateway = Gateway::init();
        fs::write(gateway.path(FULL), marked("first")).unwrap();
        gateway.run();
        let ticket = gateway.ticket().await;
        let full = gateway.config("/config/worker", &[&format!("Bearer {ticket}")]).await;
        full.is_config(&gateway.rendered(POOL, "full"));
        let pre_approved = gateway.config("/config/worker", &[]).await;
        pre_approved.is_config(&gateway.rendered(POOL, "pre-approved"));
        Self {
            full: full.body,
            pre_approved: pre_approved.body,
            gateway,
        }
    }

    /// Returns the record of the config of this set.
    fn record(&self, set: &str) -> Value {
        let served = |record: &Value| record["decision"] == "config" && record["grant"] == set;
        self.gateway.records().into_iter().find(served).unwrap()
    }

    fn id(&self, set: &str) -> String {
        self.record(set)["id"].as_str().unwrap().to_owned()
    }

    /// Copies the pool's folder.
    fn copied(&self, name: &str) -> PathBuf {
        let folder = self.gateway.path(name);
        copy(&self.gateway.path("pools/worker"), &folder);
        folder
    }

    fn run(&self, record: &str, folder: &Path, more: &[&str]) -> Output {
        let arguments = ["log", "show-config", record, "--folder", folder.to_str().unwrap()];
        self.gateway.try_command(&[&arguments, more].concat())
    }

    #[track_caller]
    fn prints(&self, record: &str, folder: &Path, config: &[u8]) {
        let output = self.run(record, folder, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, config, "{record}");
    }

    /// Returns the message of a command that prints no config.
    #[track_caller]
    fn refused(&self, record: &str, folder: &Path, more: &[&str]) -> String {
        let output = self.run(record, folder, more);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(output.stdout.is_empty(), "{record}");
        said
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renders_the_served_config_from_the_earlier_folder() {
    let served = Served::new().await;
    let then = served.copied("then");
    // What is served meanwhile is another one.
    fs::write(served.gateway.path(FULL), marked("second")).unwrap();
    for (set, config) in [("full", &served.full), ("pre-approved", &served.pre_approved)] {
        let (record, id) = (served.record(set), served.id(set));
        assert_eq!(record["spec_version"], SPEC);
        served.prints(&id, &then, config);
        served.prints(&id[..8], &then, config);
        served.prints(&record["chain"]["number"].to_string(), &then, config);
    }

    let (id, out) = (served.id("full"), served.gateway.path("worker.ign"));
    let output = served.run(&id, &then, &["--out", out.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(fs::read(&out).unwrap(), served.full);
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    let said = served.refused(&id, &then, &["--out", out.to_str().unwrap()]);
    assert!(said.contains("worker.ign exists"), "{said}");

    // A log that was copied elsewhere.
    let log = served.gateway.path("log.jsonl");
    fs::copy(served.gateway.path("state/attestation.jsonl"), &log).unwrap();
    let output = served.run(&id, &then, &["--log", log.to_str().unwrap()]);
    assert_eq!(output.stdout, served.full);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_folder_whose_configs_come_from_a_server() {
    let served = Served::new().await;
    let then = served.copied("then");
    for set in ["full", "pre-approved"] {
        fs::remove_dir_all(then.join(set)).unwrap();
    }
    let pool = fs::read_to_string(then.join("pool.toml")).unwrap();
    let upstream = "\n[upstream]\nurl = \"https://mcs.example.com:22623\"\nca = \"ca.crt\"\n[upstream.include]\nfiles = [\"/a\"]\n";
    fs::write(then.join("pool.toml"), pool + upstream).unwrap();
    let said = served.refused(&served.id("full"), &then, &[]);
    assert!(
        said.contains("https://mcs.example.com:22623") && said.contains("[upstream]"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn names_both_digests_if_the_folder_differs() {
    let served = Served::new().await;
    let altered = served.copied("altered");
    fs::write(altered.join("full/90-marked.ign"), marked("second")).unwrap();
    let id = served.id("full");
    let out = served.gateway.path("worker.ign");
    for more in [&[][..], &["--out", out.to_str().unwrap()]] {
        let said = served.refused(&id, &altered, more);
        let recorded = served.record("full")["config_sha256"].as_str().unwrap().to_owned();
        assert!(said.contains(&format!("recorded: {recorded}\n")), "{said}");
        let rendered = said.split_once("rendered: ").unwrap().1.lines().next().unwrap();
        assert!(rendered.len() == 64 && rendered != recorded, "{said}");
        for cause in ["the folder has changed since", "a kubeconfig", "another release"] {
            assert!(said.contains(cause), "{cause}: {said}");
        }
        assert!(said.contains(served.record("full")["time"].as_str().unwrap()), "{said}");
        assert!(!said.contains("second"), "{said}");
    }
    assert!(!out.exists());
    // What only the full config has does not touch the other one.
    served.prints(&served.id("pre-approved"), &altered, &served.pre_approved);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_record_without_a_config() {
    let served = Served::new().await;
    let then = served.copied("then");
    served.gateway.config("/config/worker", &["Bearer wrong"]).await;
    for (decision, verdict) in [("evidence", "trusted"), ("config", "refused")] {
        let records = served.gateway.records().into_iter();
        let mut records = records.filter(|record| record["decision"] == decision && record["verdict"] == verdict);
        let id = records.next().unwrap()["id"].as_str().unwrap().to_owned();
        let said = served.refused(&id, &then, &[]);
        let why = format!("record {id} has no config_sha256: decision={decision} verdict={verdict}");
        assert!(said.contains(&why), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_an_unknown_or_ambiguous_record() {
    let served = Served::new().await;
    let then = served.copied("then");
    let id = served.id("full");
    for unknown in [if id.starts_with("00000000") { "11111111" } else { "00000000" }, "9999"] {
        let said = served.refused(unknown, &then, &[]);
        assert!(said.contains("the log has no such record"), "{said}");
    }
    for usage in ["", "worker-7", "7f"] {
        assert_eq!(served.run(usage, &then, &[]).status.code(), Some(2), "{usage:?}");
    }
    assert_eq!(served.gateway.try_command(&["log", "show-config", &id]).status.code(), Some(2));

    // Of another gateway's log: the same beginning of an id, and the same number in its chain.
    let other = {
        let mut record = served.record("full");
        record["id"] = format!("{}{}", &id[..31], if id.ends_with('0') { "1" } else { "0" }).into();
        record["chain"]["id"] = "c".repeat(32).into();
        record
    };
    let (own, log) = (served.gateway.path("state/attestation.jsonl"), served.gateway.path("other.jsonl"));
    fs::write(&log, format!("{other}\n")).unwrap();
    let logs = ["--log", own.to_str().unwrap(), log.to_str().unwrap()];
    for several in [id[..31].to_owned(), other["chain"]["number"].to_string()] {
        let said = served.refused(&several, &then, &logs);
        let ids = [&id, other["id"].as_str().unwrap()];
        assert!(ids.iter().all(|id| said.contains(*id)), "{said}");
    }
    let output = served.run(&id, &then, &logs);
    assert_eq!(output.stdout, served.full);
    // One record in two files is one record.
    let logs = ["--log", own.to_str().unwrap(), own.to_str().unwrap()];
    assert_eq!(served.run(&id, &then, &logs).stdout, served.full);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_record_with_control_characters() {
    let served = Served::new().await;
    let (then, log) = (served.copied("then"), served.gateway.path("forged.jsonl"));
    for field in ["grant", "pool", "spec_version"] {
        for forged in ["\u{1b}[2J", "../x"] {
            let mut record = served.record("full");
            record[field] = forged.into();
            fs::write(&log, format!("{record}\n")).unwrap();
            let said = served.refused(&served.id("full"), &then, &["--log", log.to_str().unwrap()]);
            assert!(said.contains(&format!(": {field}: ")) && !said.contains('\u{1b}'), "{said:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_folder_that_is_no_pool() {
    let served = Served::new().await;
    let id = served.id("full");
    let said = served.refused(&id, &served.gateway.path("none"), &[]);
    assert!(said.contains("none/pool.toml"), "{said}");
    let broken = served.copied("broken");
    fs::write(broken.join("full/90-marked.ign"), "{").unwrap();
    let said = served.refused(&id, &broken, &[]);
    assert!(said.contains("90-marked.ign"), "{said}");
    fs::write(broken.join("pool.toml"), "grants = 1").unwrap();
    let said = served.refused(&id, &broken, &[]);
    assert!(said.contains("broken/pool.toml"), "{said}");
}
