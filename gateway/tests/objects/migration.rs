//! Migration of a store from a file to objects, and back, with the administrator's commands.

use std::path::Path;
use std::process::{Command, Output};

use super::*;
use crate::support::{Gateway, POOL, bearer};

/// Creates a gateway with the embedded store. `embedded.toml` has these settings, and `objects.toml` those for this API.
fn gateway(site: &Site) -> Gateway {
    let gateway = Gateway::init();
    let kubeconfig = site.settings("program").cluster.api;
    let ClusterApi::Kubeconfig(kubeconfig) = kubeconfig else { panic!() };
    let cluster = format!("[cluster]\napi = {kubeconfig:?}\nnamespace = \"{NAMESPACE}\"\nconfigs = false\n");
    gateway.settings(&format!(
        "{cluster}[store]\nengine = \"kubernetes\"\nprefix = \"{HEAD}\"\nkey_file = \"store.key\"\n"
    ));
    gateway.command(&["store", "create-key"]);
    std::fs::copy(gateway.path("gateway.toml"), gateway.path("objects.toml")).unwrap();
    gateway.settings("");
    std::fs::copy(gateway.path("gateway.toml"), gateway.path("embedded.toml")).unwrap();
    gateway
}

fn program(gateway: &Gateway, settings: &str, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_attest-gateway"));
    program
        .arg("--config")
        .arg(gateway.path(settings))
        .args(arguments)
        .output()
        .unwrap()
}

fn copy(gateway: &Gateway, from: &str, to: &str, more: &[&str]) -> Output {
    let to = gateway.path(to);
    program(gateway, from, &[&["store", "copy", "--to", to.to_str().unwrap()], more].concat())
}

/// Returns the number of keys and their digest.
fn contents(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    let is_one = |line: &&str| line.starts_with("entries: ");
    said.lines().filter(is_one).map(str::to_owned).collect()
}

fn refusal(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn use_settings(gateway: &Gateway, settings: &str) {
    std::fs::copy(gateway.path(settings), gateway.path("gateway.toml")).unwrap();
}

fn remove(file: &Path) {
    for end in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(format!("{}{end}", file.display())));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn migrates_a_store_to_objects_and_back() {
    let site = Site::start();
    let mut gateway = gateway(&site);
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let thrice = gateway.token(&["--name", "thrice", "--uses", "3"]);
    let full = gateway.rendered(POOL, "full");
    gateway.run();
    gateway.config("/config/worker", &[&bearer(&thrice)]).await.is_config(&full);
    gateway.terminate();
    gateway.wait();
    let copied = contents(&copy(&gateway, "embedded.toml", "objects.toml", &[]));
    assert_eq!(copied.len(), 1);
    assert!(refusal(&program(&gateway, "embedded.toml", &["token", "list"])).contains("was migrated to"));
    use_settings(&gateway, "objects.toml");
    let checked = program(&gateway, "objects.toml", &["check"]);
    assert!(String::from_utf8_lossy(&checked.stdout).contains("opens"), "{checked:?}");
    gateway.run();
    gateway.config("/config/worker", &[&bearer(&thrice)]).await.is_config(&full);
    let served = refusal(&copy(&gateway, "objects.toml", "embedded.toml", &[]));
    assert!(served.contains("serves") || served.contains("a gateway is writing"), "{served}");
    gateway.terminate();
    gateway.wait();
    remove(&gateway.path("state/gateway.db"));
    let backed_up = program(&gateway, "objects.toml", &["backup", gateway.path("b.jsonl").to_str().unwrap()]);
    assert_eq!(
        contents(&copy(&gateway, "objects.toml", "embedded.toml", &[])),
        contents(&backed_up)
    );
    use_settings(&gateway, "embedded.toml");
    gateway.run();
    gateway.config("/config/worker", &[&bearer(&thrice)]).await.is_config(&full);
    gateway
        .config("/config/worker", &[&bearer(&thrice)])
        .await
        .refused(403, "token-spent");
}

#[test]
fn migration_overwrites_nothing_and_undoes_a_failed_copy() {
    let site = Site::start();
    let gateway = gateway(&site);
    gateway.token(&["--name", "kept"]);
    drop(site.open("another"));
    assert!(refusal(&copy(&gateway, "embedded.toml", "objects.toml", &[])).contains("an import requires an empty store"));
    site.api.remove("secrets", NAMESPACE, HEAD);
    // The head, a leaf, and nothing that would make a store of it.
    use cloud_fixtures::kubernetes::Mishap;
    site.api
        .befall([Mishap::None, Mishap::None].into_iter().chain([Mishap::NotDone; 400]));
    drop(refusal(&copy(&gateway, "embedded.toml", "objects.toml", &[])));
    site.api.recover();
    let unfinished = refusal(&program(&gateway, "objects.toml", &["token", "list"]));
    assert!(unfinished.contains("is incomplete"), "{unfinished}");
    assert!(refusal(&program(&gateway, "embedded.toml", &["token", "list"])).contains("was migrated to"));
    let undone = copy(&gateway, "embedded.toml", "objects.toml", &["--undo"]);
    assert!(undone.status.success(), "{undone:?}");
    assert!(site.api.all("secrets").is_empty(), "nothing of it is left");
    let listed = program(&gateway, "embedded.toml", &["token", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("kept"));
    let copied = copy(&gateway, "embedded.toml", "objects.toml", &[]);
    assert_eq!(contents(&copied).len(), 1);
    let listed = program(&gateway, "objects.toml", &["token", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("kept"));
}

#[test]
fn restores_a_store_of_objects() {
    let site = Site::start();
    let mut gateway = gateway(&site);
    use_settings(&gateway, "objects.toml");
    gateway.run();
    gateway.command(&["ek", "add", &"a".repeat(64), "--name", "worker-1"]);
    gateway.wait_for_acts(1, "ek.add");
    let file = gateway.path("a.backup").to_str().unwrap().to_owned();
    gateway.command(&["backup", &file]);
    gateway.command(&["node", "revoke", "worker-1"]);
    gateway.terminate();
    assert!(gateway.wait().success());
    assert!(refusal(&program(&gateway, "objects.toml", &["restore", &file])).contains("kubectl delete secret"));
    for secret in site.api.all("secrets") {
        site.api.remove("secrets", NAMESPACE, secret["metadata"]["name"].as_str().unwrap());
    }
    let restored = gateway.command(&["restore", &file]);
    assert!(restored.contains("node.revoke") && !restored.contains("ek.add"), "{restored}");
    gateway.run();
    assert!(gateway.command(&["machines", "list"]).contains("worker-1"));
    gateway.command(&["log", "audit", "--checkpoints", &gateway.checkpoints()]);
}
