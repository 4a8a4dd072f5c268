//! Three gateways, set up according to `docs/how-to/replicas.md`.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::support::Gateway;

/// Returns the section of the document.
fn section() -> String {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/replicas.md")).unwrap();
    let (_, section) = document.split_once("\n## Set up three on etcd\n").unwrap();
    section.split("\n## ").next().unwrap().to_owned()
}

/// Returns the text between backticks in the step that begins with these words, up to its first full stop.
fn named(section: &str, step: &str) -> Vec<String> {
    let (_, step) = section.split_once(step).unwrap();
    let (sentence, _) = step.split_once(". ").unwrap();
    sentence.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg("-T").args([from, to]).status();
    assert!(copied.unwrap().success(), "{}", from.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn three_gateways_are_set_up_as_the_document_says() {
    let (site, section) = (Site::start(), section());
    // 1. With a password: this etcd speaks no TLS, and so knows nobody by a certificate.
    let commands: Vec<&str> = section.lines().filter_map(|line| line.trim().strip_prefix("etcdctl ")).collect();
    assert_eq!(commands.len(), 4, "{section}");
    for command in commands {
        let command = command.replace("user add attest-gateway --no-password", "user add attest-gateway:password");
        site.etcd.ctl(&command.split(' ').collect::<Vec<_>>());
    }
    for command in ["user add root:secret", "user grant-role root root", "auth enable"] {
        site.etcd.ctl(&command.split(' ').collect::<Vec<_>>());
    }
    // 2. On one host only.
    let mut hosts = [(); 3].map(|()| Gateway::init());
    let [first, others @ ..] = &mut hosts;
    let settings = format!(
        "[store]\nengine = \"etcd\"\nendpoints = [{:?}]\nkey_file = \"store.key\"\nuser = \"attest-gateway\"\npassword_file = \"etcd.password\"",
        site.etcd.endpoint()
    );
    first.settings(&settings);
    fs::write(first.path("etcd.password"), "password\n").unwrap();
    first.command(&["store", "create-key"]);
    // 3. What is named, and nothing else.
    let copied = named(&section, "3. **Copy**");
    assert!(copied.contains(&"tls/".to_owned()) && copied.len() == 5, "{copied:?}");
    for other in others {
        for name in copied.iter().map(|name| name.trim_end_matches('/')).chain(["etcd.password"]) {
            drop(fs::remove_dir_all(other.path(name)));
            copy(&first.path(name), &other.path(name));
        }
        // Three on one machine: each has a port of its own.
        other.settings(&settings);
    }
    // 4. On each.
    for host in &mut hosts {
        let said = host.command(&["check"]);
        assert!(!said.contains("ERROR") && !said.contains("DEGRADED"), "{said}");
        host.run();
        let ready = host.client_of_new_connections().get(host.url("/readyz")).send();
        assert_eq!(ready.await.unwrap().status(), 200);
    }
    // One truth: what one is told the others know. 6. Each log has its own key.
    hosts[1].token(&["--name", "rack7", "--uses", "3"]);
    for host in &hosts {
        assert!(host.command(&["token", "list"]).contains("rack7"));
    }
    let keys: std::collections::BTreeSet<String> = hosts.iter().map(|host| host.command(&["log", "show-key"])).collect();
    assert_eq!(keys.len(), 3);
}
