//! Configs that were served, found again by their digest: sealed, redacted, or not at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use flate2::read::GzDecoder;
use serde_json::Value;

use crate::support::{Gateway, POOL};

/// What stands in the full config, and nowhere else.
const SECRETS: [&str; 3] = ["MARKED-FILE", "MARKED-UNIT", "MARKED-HASH"];

const REDACTED: &str = "[attestation_log]\nconfigs = \"redacted\"";
const SEALED: &str = "[attestation_log]\nconfigs = \"sealed\"\nconfigs_key = \"configs.pub\"";

fn openssl(folder: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("openssl").args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A key as the documents say that it is made: `NAME.key`, and `NAME.pub` beside it.
pub fn make_key(gateway: &Gateway, name: &str) -> PathBuf {
    let [key, public] = ["key", "pub"].map(|half| format!("{name}.{half}"));
    let folder = gateway.path("");
    openssl(&folder, &["genpkey", "-algorithm", "X25519", "-out", &key]);
    openssl(&folder, &["pkey", "-in", &key, "-pubout", "-out", &public]);
    gateway.path(&key)
}

/// A gateway whose full config has secrets, and a key for what is sealed.
fn init(settings: &str) -> (Gateway, PathBuf) {
    let gateway = Gateway::init();
    let key = make_key(&gateway, "configs");
    let [file, unit, hash] = SECRETS;
    let config = format!(
        r#"{{"ignition":{{"version":"3.4.0"}},"storage":{{"files":[{{"path":"/etc/marked","mode":384,"contents":{{"source":"data:,{file}"}}}}]}},
        "systemd":{{"units":[{{"name":"marked.service","contents":"[Unit]\nDescription={unit}\n"}}]}},
        "passwd":{{"users":[{{"name":"core","passwordHash":"{hash}"}}]}}}}"#
    );
    fs::write(gateway.path("pools/worker/full/90-marked.ign"), config).unwrap();
    gateway.settings(settings);
    (gateway, key)
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, bytes).as_ref())
}

/// A node that attests, and one that shows nothing: what they got.
async fn serve_two(gateway: &Gateway) -> [Vec<u8>; 2] {
    let ticket = gateway.ticket().await;
    let full = gateway.config("/config/worker", &[&format!("Bearer {ticket}")]).await;
    full.is_config(&gateway.rendered(POOL, "full"));
    let pre_approved = gateway.config("/config/worker", &[]).await;
    pre_approved.is_config(&gateway.rendered(POOL, "pre-approved"));
    [full.body, pre_approved.body]
}

/// The copy's file that the last record of a config names.
fn copy_of(gateway: &Gateway, config: &[u8], form: &str) -> PathBuf {
    let records = gateway.records().into_iter().rev();
    let record = records
        .filter(|record| record["config_sha256"] == sha256(config))
        .find(|record| record["config_copy"]["form"] == form);
    let name = record.unwrap()["config_copy"]["sha256"].as_str().unwrap().to_owned();
    gateway.path("state/configs").join(format!("{name}.gz"))
}

fn log_config(gateway: &Gateway, digest: &str, key: Option<&Path>) -> Output {
    let mut arguments = vec!["log", "config", digest];
    if let Some(key) = key {
        arguments.extend(["--key", key.to_str().unwrap()]);
    }
    gateway.try_command(&arguments)
}

#[track_caller]
fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(output.stdout.is_empty() && said.contains(why), "{why:?}: {said}");
}

#[track_caller]
fn audited(gateway: &Gateway, finding: Option<&str>) {
    let output = gateway.try_command(&["audit"]);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(output.status.success(), finding.is_none(), "{said}");
    assert!(said.contains(finding.unwrap_or("0 different")), "{said}");
}

/// Everything that lies in the folder of copies, unpacked.
fn unpacked(gateway: &Gateway) -> String {
    let files = fs::read_dir(gateway.path("state/configs")).unwrap();
    let text = |entry: std::io::Result<fs::DirEntry>| {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        std::io::read_to_string(GzDecoder::new(file)).unwrap()
    };
    files.map(text).collect()
}

#[track_caller]
fn has_no_secret(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}

/// Opens a copy by what the document says, without this program.
fn opened_by_document(gateway: &Gateway, key: &Path, copy: &Path) -> Output {
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/attestation-log.md")).unwrap();
    let begin = document.find("#!/bin/sh\n# sh open.sh").unwrap();
    let end = document[begin..].find("```\n").unwrap();
    let script = gateway.path("open.sh");
    fs::write(&script, &document[begin..begin + end]).unwrap();
    Command::new("sh").arg(script).arg(key).arg(copy).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sealed_is_opened_by_its_key_alone() {
    let (mut gateway, key) = init(SEALED);
    gateway.run();
    let configs = serve_two(&gateway).await;
    for config in &configs {
        let output = log_config(&gateway, &sha256(config), Some(&key));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(&output.stdout, config);
        let copy = copy_of(&gateway, config, "sealed");
        let output = opened_by_document(&gateway, &key, &copy);
        assert_eq!(&output.stdout, config, "{}", String::from_utf8_lossy(&output.stderr));
    }
    has_no_secret(&unpacked(&gateway));
    audited(&gateway, None);
    let [full, _] = &configs;
    let digest = sha256(full);
    refused(&log_config(&gateway, &digest, None), "give the private key with --key");
    let other = make_key(&gateway, "other");
    refused(&log_config(&gateway, &digest, Some(&other)), "it is sealed to the key ");
    let copy = copy_of(&gateway, full, "sealed");
    assert!(!opened_by_document(&gateway, &other, &copy).status.success());
    refused(
        &log_config(&gateway, &digest, Some(&gateway.path("configs.pub"))),
        "holds no X25519 private key",
    );
    refused(
        &log_config(&gateway, &sha256(b"never served"), Some(&key)),
        "no record of the log says",
    );
    assert_eq!(gateway.try_command(&["log", "config", &digest[1..]]).status.code(), Some(2));
    // One thousand nodes get one copy.
    serve_two(&gateway).await;
    assert_eq!(fs::read_dir(gateway.path("state/configs")).unwrap().count(), 2);

    let whole = fs::read(&copy).unwrap();
    fs::write(&copy, &whole[..whole.len() / 2]).unwrap();
    refused(&log_config(&gateway, &digest, Some(&key)), copy.to_str().unwrap());
    audited(&gateway, Some("the copy of the config: "));
    fs::copy(copy_of(&gateway, &configs[1], "sealed"), &copy).unwrap();
    refused(
        &log_config(&gateway, &digest, Some(&key)),
        "the content does not have the SHA-256 of its name",
    );
    audited(&gateway, Some("the content does not have the SHA-256 of its name"));
    fs::remove_file(&copy).unwrap();
    refused(&log_config(&gateway, &digest, Some(&key)), "No such file");
    audited(&gateway, Some("the copy of the config: "));
    fs::write(&copy, whole).unwrap();
    audited(&gateway, None);
    // An auditor elsewhere has log, copies and key.
    let output = gateway.try_command(&[
        "log",
        "config",
        &digest,
        "--key",
        key.to_str().unwrap(),
        "--log",
        gateway.path("state/attestation.jsonl").to_str().unwrap(),
        "--configs",
        gateway.path("state").to_str().unwrap(),
    ]);
    refused(&output, "No such file");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_redacted_has_no_secret_and_says_what_can_be_compared() {
    let (mut gateway, key) = init(REDACTED);
    gateway.run();
    let [full, _] = serve_two(&gateway).await;
    has_no_secret(&unpacked(&gateway));
    audited(&gateway, None);
    let output = log_config(&gateway, &sha256(&full), None);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("redacted"));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let files = shown["storage"]["files"].as_array().unwrap();
    let marked = files.iter().find(|file| file["path"] == "/etc/marked").unwrap();
    assert_eq!(marked["contents"]["source"]["bytes"], SECRETS[0].len());
    // As the document says it: whoever has the key and a file can compare.
    fs::write(gateway.path("marked"), SECRETS[0]).unwrap();
    let redaction_key = fs::read_to_string(gateway.path("state/redaction.key")).unwrap();
    let hexkey = format!("hexkey:{}", redaction_key.trim());
    let said = openssl(
        &gateway.path(""),
        &["dgst", "-sha256", "-mac", "HMAC", "-macopt", &hexkey, "-r", "marked"],
    );
    let hmac = marked["contents"]["source"]["hmac_sha256"].as_str().unwrap();
    assert!(String::from_utf8(said).unwrap().starts_with(hmac));
    assert_ne!(hmac, sha256(SECRETS[0].as_bytes()), "a digest that anybody can make");
    refused(&log_config(&gateway, &sha256(&full), Some(&key)), "it was redacted, not sealed");

    // Altered by whoever knows how they are named: the record has its digest.
    let copy = copy_of(&gateway, &full, "redacted");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut GzDecoder::new(fs::File::open(&copy).unwrap()), &mut text).unwrap();
    let altered = text.replace("/etc/marked", "/etc/Marked");
    assert_ne!(altered, text);
    let mut encoder = flate2::write::GzEncoder::new(fs::File::create(&copy).unwrap(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, altered.as_bytes()).unwrap();
    encoder.finish().unwrap();
    let why = "the content does not have the SHA-256 of its name";
    refused(&log_config(&gateway, &sha256(&full), None), why);
    audited(&gateway, Some(why));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_unless_somebody_says_so() {
    let (mut gateway, key) = init("");
    gateway.run();
    let [full, _] = serve_two(&gateway).await;
    for path in ["state/configs", "state/redaction.key"] {
        assert!(!gateway.path(path).exists(), "{path}");
    }
    assert!(gateway.records().iter().all(|record| record.get("config_copy").is_none()));
    for key in [None, Some(key.as_path())] {
        refused(&log_config(&gateway, &sha256(&full), key), "no copy of it was kept");
    }
    audited(&gateway, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_kept_in_another_form_before_is_found_still_and_who_changed_that_is_recorded() {
    let (mut gateway, key) = init(SEALED);
    gateway.run();
    let [full, _] = serve_two(&gateway).await;
    let digest = sha256(&full);
    for settings in [SEALED, REDACTED] {
        gateway.terminate();
        gateway.wait();
        gateway.settings(settings);
        gateway.run();
        serve_two(&gateway).await;
    }
    // Sealed twice, redacted once, each of two configs.
    assert_eq!(fs::read_dir(gateway.path("state/configs")).unwrap().count(), 6);
    assert_eq!(log_config(&gateway, &digest, Some(&key)).stdout, full);
    assert!(log_config(&gateway, &digest, None).status.success());
    // What was sealed last is gone: what was sealed before is as good, and `audit` says that one is missing.
    fs::remove_file(copy_of(&gateway, &full, "sealed")).unwrap();
    assert_eq!(log_config(&gateway, &digest, Some(&key)).stdout, full);
    audited(&gateway, Some("the copy of the config: "));
    let acts = gateway.wait_for_acts(1, "gateway.start");
    let things = acts.last().unwrap()["admin"]["things"].as_array().unwrap();
    let setting = things.iter().find(|thing| thing["id"] == "attestation_log.configs").unwrap();
    assert_eq!((&setting["before"], &setting["after"]), (&"sealed".into(), &"redacted".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_copy_can_be_kept_nothing_is_served_and_nothing_used_up() {
    let (mut gateway, key) = init(SEALED);
    gateway.run();
    let ticket = format!("Bearer {}", gateway.ticket().await);
    let (folder, aside) = (gateway.path("state/configs"), gateway.path("aside"));
    fs::rename(&folder, &aside).unwrap();
    fs::write(&folder, "no folder").unwrap();
    let before = gateway.records().len();
    gateway.config("/config/worker", &[&ticket]).await.try_again();
    gateway.config("/config/worker", &[]).await.try_again();
    assert_eq!(gateway.records().len(), before);
    fs::remove_file(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    let full = gateway.config("/config/worker", &[&ticket]).await;
    full.is_config(&gateway.rendered(POOL, "full"));
    assert_eq!(gateway.records().last().unwrap()["use_number"], 1);
    assert_eq!(log_config(&gateway, &sha256(&full.body), Some(&key)).stdout, full.body);
    audited(&gateway, None);
}

#[test]
fn what_cannot_be_kept_as_it_is_said_is_said_before_anybody_is_served() {
    let (gateway, _) = init("");
    let check = |settings: &str, why: &str| {
        gateway.settings(settings);
        for command in [["check"].as_slice(), &["serve"]] {
            let output = gateway.try_command(command);
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(!output.status.success() && said.contains(why), "{settings}: {said}");
        }
    };
    let sealed_to = |file: &str| format!("[attestation_log]\nconfigs = \"sealed\"\nconfigs_key = \"{file}\"");
    check("[attestation_log]\nconfigs = \"sealed\"", "attestation_log.configs_key is not set");
    check("[attestation_log]\nconfigs_key = \"configs.pub\"", "for configs = \"sealed\" only");
    check(
        "[attestation_log]\nconfigs = \"redacted\"\nconfigs_key = \"configs.pub\"",
        "for configs = \"sealed\" only",
    );
    check("[attestation_log]\nconfigs = \"plain\"", "plain");
    check(&sealed_to("missing.pub"), "missing.pub");
    check(&sealed_to("configs.key"), "holds a private key");
    check(&sealed_to("tls/mcs.crt"), "holds no X25519 public key");
    openssl(&gateway.path(""), &["genpkey", "-algorithm", "ED25519", "-out", "ed25519.key"]);
    openssl(&gateway.path(""), &["pkey", "-in", "ed25519.key", "-pubout", "-out", "ed25519.pub"]);
    check(&sealed_to("ed25519.pub"), "holds no X25519 public key");
    fs::create_dir_all(gateway.path("state")).unwrap();
    fs::write(gateway.path("state/redaction.key"), "short").unwrap();
    check(REDACTED, "state/redaction.key");
}
