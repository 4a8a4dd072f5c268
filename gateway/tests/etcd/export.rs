//! Migration of a store: from a file to etcd, and back.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use attest_store::{Embedded, EntryKind, Store, StoreEntry};

use super::*;
use crate::support::{Gateway, POOL, bearer};

/// Creates a gateway with the embedded store. `embedded.toml` has these settings, and `etcd.toml` those for this etcd.
pub(super) fn gateway(site: &Site) -> Gateway {
    let gateway = Gateway::init();
    gateway.settings(&on(&site.etcd));
    gateway.command(&["store", "create-key"]);
    std::fs::copy(gateway.path("gateway.toml"), gateway.path("etcd.toml")).unwrap();
    gateway.settings("");
    std::fs::copy(gateway.path("gateway.toml"), gateway.path("embedded.toml")).unwrap();
    gateway
}

fn on(etcd: &etcd::EtcdServer) -> String {
    format!(
        "[store]\nengine = \"etcd\"\nendpoints = [\"{}\"]\nprefix = \"a/gateway\"\nkey_file = \"store.key\"\n",
        etcd.endpoint()
    )
}

pub(super) fn program(gateway: &Gateway, settings: &str, arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_attest-gateway"));
    program.arg("--config").arg(gateway.path(settings)).args(arguments);
    program
}

pub(super) fn copy(gateway: &Gateway, from: &str, to: &str) -> Output {
    let to = gateway.path(to);
    program(gateway, from, &["store", "copy", "--to", to.to_str().unwrap()])
        .output()
        .unwrap()
}

/// Returns the number of keys and their digest.
fn contents(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    said.lines()
        .filter(|line| line.starts_with("entries: "))
        .map(str::to_owned)
        .collect()
}

pub(super) fn refusal(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(super) fn backup(gateway: &Gateway, settings: &str, name: &str) -> Output {
    let file = gateway.path(name);
    program(gateway, settings, &["backup", file.to_str().unwrap()]).output().unwrap()
}

pub(super) fn remove(gateway: &Gateway) {
    for file in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        drop(std::fs::remove_file(gateway.path("state").join(file)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn migrates_a_store_to_etcd_and_back() {
    let site = Site::start();
    let mut gateway = gateway(&site);
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let once = gateway.token(&["--name", "once", "--uses", "1"]);
    let twice = gateway.token(&["--name", "twice", "--uses", "2"]);
    gateway.run();
    let full = gateway.rendered(POOL, "full");
    for token in [&once, &twice] {
        gateway.config("/config/worker", &[&bearer(token)]).await.is_config(&full);
    }
    assert!(refusal(&copy(&gateway, "embedded.toml", "etcd.toml")).contains("a gateway is writing"));
    gateway.terminate();
    gateway.wait();
    let before = contents(&backup(&gateway, "embedded.toml", "before.jsonl"));
    assert_eq!(before.len(), 1);
    assert_eq!(contents(&copy(&gateway, "embedded.toml", "etcd.toml")), before);
    let line = gateway.records().pop().unwrap();
    assert_eq!(line["decision"], "store_accepted");
    assert_eq!(line["admin"]["verb"], "store.copy");
    assert!(
        String::from_utf8(copy(&gateway, "embedded.toml", "etcd.toml").stdout)
            .unwrap()
            .contains("complete already"),
        "once more is nothing more"
    );

    gateway.settings(&on(&site.etcd));
    gateway.run();
    gateway
        .config("/config/worker", &[&bearer(&once)])
        .await
        .refused(403, "token-spent");
    gateway.config("/config/worker", &[&bearer(&twice)]).await.is_config(&full);
    // While it serves it is written down, and not moved; also by whoever has another state.
    let served = contents(&backup(&gateway, "etcd.toml", "served.jsonl"));
    assert_ne!(served, before);
    let other = Gateway::init();
    other.settings(&on(&site.etcd));
    std::fs::copy(gateway.path("store.key"), other.path("store.key")).unwrap();
    let said = other.command(&["backup", other.path("other.backup").to_str().unwrap()]);
    assert!(said.contains("entries:"), "{said}");
    gateway.terminate();
    gateway.wait();

    let moved = contents(&backup(&gateway, "etcd.toml", "moved.jsonl"));
    assert!(refusal(&copy(&gateway, "etcd.toml", "embedded.toml")).contains("an import requires an empty store"));
    remove(&gateway);
    assert_eq!(contents(&copy(&gateway, "etcd.toml", "embedded.toml")), moved);
    gateway.settings("");
    gateway.run();
    for token in [&once, &twice] {
        gateway
            .config("/config/worker", &[&bearer(token)])
            .await
            .refused(403, "token-spent");
    }
}

/// Returns the number of the store's keys in etcd.
fn count(etcd: &etcd::EtcdServer) -> u64 {
    let said = etcd.ctl(&["get", "--prefix", "--keys-only", "--limit", "1", "-w", "json", "a/gateway/kv/"]);
    let (_, count) = said.split_once("\"count\":").unwrap_or(("", "0"));
    count.trim_end().trim_end_matches('}').parse().unwrap()
}

async fn fill(file: &Path, entries: u32) {
    let store = Embedded::open(file).unwrap();
    for first in (0..entries).step_by(2500) {
        let names = (first..(first + 2500).min(entries)).map(|number| StoreEntry {
            id: format!("worker-{number}"),
            value: format!("{{\"number\":{number}}}"),
        });
        assert!(store.change(EntryKind::Name, Vec::new(), names.collect()).await.unwrap());
    }
    Store::keep_mark(&store).await.unwrap();
}

/// Kills the copying process when this number of keys has arrived.
fn kill_at(mut copying: Child, etcd: &etcd::EtcdServer, keys: u64) {
    while count(etcd) < keys {
        assert!(copying.try_wait().unwrap().is_none(), "it is done already");
    }
    copying.kill().unwrap();
    copying.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_migration_can_be_repeated() {
    const ENTRIES: u32 = 30_000;
    let site = Site::start();
    let gateway = gateway(&site);
    std::fs::create_dir_all(gateway.path("state")).unwrap();
    fill(&gateway.path("state/gateway.db"), ENTRIES).await;
    let whole = contents(&backup(&gateway, "embedded.toml", "whole.jsonl"));
    for keys in [1, 6_000, 18_000] {
        let to = gateway.path("etcd.toml");
        let copying = program(&gateway, "embedded.toml", &["store", "copy", "--to", to.to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        kill_at(copying, &site.etcd, keys);
        assert!(count(&site.etcd) < u64::from(ENTRIES));
        let refused = site.try_open("one").unwrap_err();
        assert!(matches!(refused, StoreError::Unfinished(_)), "{refused}");
        let said = refusal(&program(&gateway, "etcd.toml", &["store", "accept"]).output().unwrap());
        assert!(said.contains("is incomplete"), "{said}");
    }
    let begun = Instant::now();
    let copied = contents(&copy(&gateway, "embedded.toml", "etcd.toml"));
    println!("{ENTRIES} entries were copied in {:?}", begun.elapsed());
    assert_eq!(copied, whole);
    // And the checkpoint that holds the line that says so.
    assert_eq!(count(&site.etcd), u64::from(ENTRIES) + 1);
    assert!(begun.elapsed() < Duration::from_secs(72), "{:?}", begun.elapsed());
    let store = site.open("one");
    assert_eq!(store.list(EntryKind::Name).await.unwrap().len(), ENTRIES as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn imports_a_backup_into_an_empty_etcd_only() {
    let site = Site::start();
    let gateway = gateway(&site);
    gateway.command(&["ek", "add", &"a".repeat(64), "--name", "worker-1"]);
    let written = contents(&backup(&gateway, "embedded.toml", "store.jsonl"));
    let import = |file: &str| {
        program(&gateway, "etcd.toml", &["restore", gateway.path(file).to_str().unwrap()])
            .output()
            .unwrap()
    };
    let whole = std::fs::read(gateway.path("store.jsonl")).unwrap();
    std::fs::write(gateway.path("torn.jsonl"), &whole[..whole.len() - 10]).unwrap();
    refusal(&import("torn.jsonl"));
    assert_eq!(site.etcd.ctl(&["get", "--prefix", ""]), "", "nothing was begun");
    assert_eq!(contents(&import("store.jsonl")), written);
    assert!(refusal(&import("store.jsonl")).contains("etcdctl del --prefix"));
    let listed = program(&gateway, "etcd.toml", &["machines", "list"]).output().unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains("worker-1"));
    // Another's, below the same prefix.
    site.etcd.ctl(&["del", "--prefix", "a/gateway/"]);
    site.etcd.ctl(&["put", "a/gateway/other", "somebody else's"]);
    let said = refusal(&import("store.jsonl"));
    assert!(said.contains("not a store") || said.contains("exists"), "{said}");
    assert_eq!(
        site.etcd.ctl(&["get", "--print-value-only", "a/gateway/other"]),
        "somebody else's\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_to_migrate_a_store_written_to_meanwhile() {
    let site = Site::start();
    let gateway = gateway(&site);
    std::fs::create_dir_all(gateway.path("state")).unwrap();
    fill(&gateway.path("state/gateway.db"), 50_000).await;
    let to = gateway.path("etcd.toml");
    let copying = program(&gateway, "embedded.toml", &["store", "copy", "--to", to.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while count(&site.etcd) == 0 {}
    gateway.command(&["ek", "add", &"a".repeat(64), "--name", "other"]);
    let said = refusal(&copying.wait_with_output().unwrap());
    assert!(said.contains("written to during the command"), "{said}");
    let refused = site.try_open("one").unwrap_err();
    assert!(matches!(refused, StoreError::Unfinished(_)), "{refused}");
}

/// Writer that makes etcd compact its history at the first bytes.
struct Compacting<'e> {
    etcd: &'e etcd::EtcdServer,
    done: bool,
}

impl std::io::Write for Compacting<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !std::mem::replace(&mut self.done, true) {
            self.etcd.ctl(&["put", "another", "one"]);
            let state = self.etcd.ctl(&["get", "none", "-w", "json"]);
            let (_, revision) = state.split_once("\"revision\":").unwrap();
            self.etcd.ctl(&["compact", revision.split(',').next().unwrap()]);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn export_names_a_compaction_of_etcd() {
    let site = Site::start();
    let gateway = gateway(&site);
    let settings = attest_gateway::settings::Settings::load(&gateway.path("etcd.toml")).unwrap();
    let below = EtcdSettings {
        prefix: "a/gateway".to_owned(),
        ..site.settings()
    };
    let store = Etcd::open(&below, &settings.store.file).unwrap();
    put(&store, "entry/name/n", "{\"v\":1,\"value\":\"x\"}").await.unwrap();
    drop(store);
    let refused = attest_store::export(
        &settings.store,
        &mut Compacting {
            etcd: &site.etcd,
            done: false,
        },
    );
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("compacted") && refused.contains("retry") && !refused.contains("check that most members"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn restores_a_store_on_etcd_and_repeats_acts() {
    let site = Site::start();
    let mut gateway = gateway(&site);
    gateway.settings(&on(&site.etcd));
    gateway.run();
    gateway.command(&["ek", "add", &"a".repeat(64), "--name", "worker-1"]);
    gateway.wait_for_acts(1, "ek.add");
    let file = gateway.path("a.backup").to_str().unwrap().to_owned();
    gateway.command(&["backup", &file]);
    gateway.command(&["node", "revoke", "worker-1"]);
    gateway.terminate();
    assert!(gateway.wait().success());
    site.etcd.ctl(&["del", "--prefix", "a/gateway/"]);
    let restored = gateway.command(&["restore", &file]);
    let command = |line: &str| line.starts_with("    attest-gateway ") && line.contains("node revoke") && line.contains("--anyway");
    assert!(restored.contains("  node.revoke  ") && restored.lines().any(command), "{restored}");
    assert!(restored.contains("store accept"), "{restored}");
    assert!(!restored.contains("ek.add"), "{restored}");
    gateway.run();
    assert!(gateway.command(&["machines", "list"]).contains("worker-1"));
    gateway.command(&["log", "audit", "--checkpoints", &gateway.checkpoints()]);
}
