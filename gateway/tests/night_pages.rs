//! The commands of `docs/night` run as printed, in the order of each page, against a gateway with the page's symptom.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use attest::protocol::REPORT_PATH;

use crate::reports;
use crate::support::{Gateway, POOL, auditor, bearer, challenge_request, digest, serving_within, tpm};

/// Folder of the settings, whose file is the default of every command.
const FOLDER: &str = "/etc/attest-gateway/";
/// The state folder that the systemd unit makes.
const STATE: &str = "/var/lib/attest-gateway";
/// The folder for the files that commands write.
const HOME: &str = "~/";

const PAGES: [&str; 12] = [
    "a-first-boot-failed",
    "a-machine-is-stolen",
    "a-node-was-refused",
    "a-token-leaked",
    "boot-storm",
    "certificate-expires",
    "clock-wrong",
    "config-stale",
    "disk-full",
    "gateway-lost",
    "restore",
    "store-unavailable",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/night")
}

fn page(name: &str) -> String {
    let path = folder().join(name).with_extension("md");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of a page's `sh` blocks.
fn commands(page: &str) -> Vec<&str> {
    let blocks = page
        .split("```sh\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap_or_default());
    blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// The exit codes that the comment of a command announces; success without one.
fn exit_codes(comment: &str) -> Vec<i32> {
    let Some((_, codes)) = comment.split_once("exit code ") else {
        return vec![0];
    };
    let codes = codes.split(" if ").next().unwrap_or_default();
    codes.split(" or ").map(|code| code.trim().parse().unwrap()).collect()
}

/// A gateway and the real values of a page's placeholders.
struct Scene {
    gateway: Gateway,
    placeholders: BTreeMap<&'static str, String>,
}

impl Scene {
    /// A serving gateway that accepts tokens.
    fn start() -> Self {
        let mut gateway = Gateway::init();
        gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
        gateway.run();
        Self {
            gateway,
            placeholders: BTreeMap::new(),
        }
    }

    fn with(mut self, placeholder: &'static str, value: impl Into<String>) -> Self {
        self.placeholders.insert(placeholder, value.into());
        self
    }

    /// A file that no command has written yet.
    fn file(&self, name: &str) -> String {
        self.gateway.path(name).to_str().unwrap().to_owned()
    }

    fn stop(&mut self) {
        self.gateway.terminate();
        assert!(self.gateway.wait().success());
    }

    /// Replaces paths and placeholders in a word of a command.
    fn word(&self, word: &str) -> String {
        let word = self.placeholders.get(word).map_or(word, String::as_str);
        let at = |path: &str| self.gateway.path(path).to_str().unwrap().to_owned();
        word.replace(FOLDER, &at("")).replace(STATE, &at("state")).replace(HOME, &at(""))
    }

    /// Runs a command of this repository by the shell, as an administrator does.
    fn shell(&self, line: &str) -> Output {
        let words: Vec<String> = line.split(' ').map(|word| self.word(word)).collect();
        // The programs of this build come before installed ones.
        let program = auditor();
        let programs = Path::new(program.get_program()).parent().unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        Command::new("bash")
            .args(["-c", &words.join(" ")])
            .env("PATH", path)
            .env("ATTEST_GATEWAY_CONFIG", self.gateway.path("gateway.toml"))
            .current_dir("/")
            .output()
            .unwrap()
    }

    /// Runs the commands of a page in order. `systemctl` acts on the test's gateway; other programs' commands are left out, unless they
    /// copy or move files of the gateway.
    fn follow(&mut self, name: &str) {
        let text = page(name);
        let mut count = 0;
        for line in commands(&text) {
            let (command, comment) = line.split_once(" # ").unwrap_or((line, ""));
            let program = command.split(' ').next().unwrap_or_default();
            match program {
                "attest-gateway" | "attest-audit" => {
                    assert!(!command.contains("--config"), "{name}: {line}");
                    let output = self.shell(command);
                    let code = output.status.code().unwrap();
                    assert!(
                        exit_codes(comment).contains(&code),
                        "{name}: {line}: exit code {code}\n{}{}",
                        String::from_utf8_lossy(&output.stdout),
                        String::from_utf8_lossy(&output.stderr)
                    );
                    count += 1;
                }
                "systemctl" if command == "systemctl stop attest-gateway" => self.stop(),
                "systemctl" => {
                    assert_eq!(command, "systemctl start attest-gateway", "{name}");
                    self.gateway.run();
                }
                "cp" | "mkdir" | "mv" => assert!(self.shell(command).status.success(), "{name}: {line}"),
                "chown" | "chronyc" | "curl" | "df" | "etcdctl" | "install" | "journalctl" | "oc" | "openssl" | "timedatectl" | "umask" => {
                }
                _ => panic!("{name}: {line}"),
            }
        }
        assert!(count > 0, "{name}: no command");
    }
}

#[test]
fn pages_are_listed_and_start_with_a_command() {
    let mut pages: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    pages.sort();
    assert_eq!(pages, PAGES.map(|page| format!("{page}.md")));
    let list = fs::read_to_string(folder().join("README.md")).unwrap();
    for name in PAGES {
        assert!(list.contains(&format!("]({name}.md)")), "{name} is not in README.md");
        let text = page(name);
        let first = text.lines().position(|line| line == "```sh").unwrap();
        assert!(first < 14, "{name}: the first command is in line {}", first + 2);
        assert!(text.split_whitespace().count() <= 400, "{name} has more than 400 words");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_node_is_found_and_endorsed() {
    let scene = Scene::start();
    let case = tpm();
    let asked = challenge_request(&case, POOL);
    scene
        .gateway
        .post("/v1/attest/challenge", &asked)
        .await
        .refused(403, "ek-not-endorsed");
    let refused = scene.gateway.records().pop().unwrap();
    let mut scene = scene
        .with("RECORD", refused["id"].as_str().unwrap())
        .with("DIGEST", digest(&case))
        .with("NODE", "worker-7");
    let told = scene.shell("attest-gateway log show --record RECORD");
    let ek_add = format!("`attest-gateway ek add {} --name NODE`", digest(&case));
    assert!(String::from_utf8_lossy(&told.stdout).contains(&ek_add), "{told:?}");
    scene.follow("a-node-was-refused");
    scene.gateway.attest(case, None).await.ticket();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_first_boot_is_read() {
    let scene = Scene::start();
    let report = reports::id(&scene.gateway.post(REPORT_PATH, &reports::report()).await);
    scene.with("REPORT", report).follow("a-first-boot-failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_steps_revoke_and_replace_a_stolen_machine() {
    let scene = Scene::start();
    let (stolen, new) = (tpm(), tpm());
    scene.gateway.endorse(&stolen, &["--name", "worker-7"]);
    let mut scene = scene
        .with("NODE", "worker-7")
        .with("DIGEST", digest(&new))
        .with("OLD-DIGEST", digest(&stolen));
    scene.follow("a-machine-is-stolen");
    // It is off the allowlist, and revoked should its manufacturer be trusted.
    let list = scene.gateway.command(&["machines", "list"]);
    let is_revoked = |line: &str| line.contains(&digest(&stolen)) && line.contains("Banned");
    assert!(list.lines().any(is_revoked), "{list}");
    scene.gateway.attest(stolen, None).await.refused(403, "ek-not-endorsed");
    scene.gateway.attest(new, None).await.ticket();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leaked_token_is_refused() {
    let scene = Scene::start();
    let token = bearer(&scene.gateway.token(&["--name", "rack7"]));
    let full = scene.gateway.rendered(POOL, "full");
    scene.gateway.config("/config/worker", &[&token]).await.is_config(&full);
    let mut scene = scene.with("TOKEN", "rack7");
    scene.follow("a-token-leaked");
    scene
        .gateway
        .config("/config/worker", &[&token])
        .await
        .refused(403, "token-invalid");
}

#[test]
fn an_expiring_certificate_is_renewed() {
    let mut scene = Scene::start();
    scene.gateway.command(&["certificate", "renew", "--days", "1"]);
    assert!(scene.gateway.command(&["certificate", "list"]).contains("expires soon"));
    scene.follow("certificate-expires");
    assert!(!scene.gateway.command(&["certificate", "list"]).contains("expires soon"));
}

#[test]
fn read_only_pages_run_with_a_serving_gateway() {
    for page in ["boot-storm", "clock-wrong"] {
        Scene::start().follow(page);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_steps_verify_the_log_after_disk_full() {
    /// Room for the log, in kibibytes, and for more requests than that.
    const ROOM: usize = 400;
    const REQUESTS: usize = 2000;
    let mut scene = Scene::start();
    scene.stop();
    let full = serving_within(&scene.gateway, ROOM);
    scene.gateway.run_as(full);
    let mut is_full = false;
    for _ in 0..REQUESTS {
        is_full = scene.gateway.config("/config/worker", &[]).await.status == 503;
        if is_full {
            break;
        }
    }
    assert!(is_full, "{}", scene.gateway.output());
    scene.gateway.line(|line| line.contains("cannot write to the attestation log"));
    scene.gateway.kill();
    scene.gateway.run();
    scene.follow("disk-full");
}

#[test]
fn a_broken_pool_is_corrected() {
    let mut scene = Scene::start();
    let file = scene.gateway.path("pools/infra/pool.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, "[grants\n").unwrap();
    let line = scene.gateway.line(|line| line.contains("pool infra: "));
    assert!(line.contains("pool.toml"), "{line}");
    scene.gateway.line(|line| line.contains("still serving the last good state"));
    scene.follow("config-stale");
    fs::write(&file, good).unwrap();
    scene.gateway.line(|line| line.contains("pool infra: its source can be read again"));
    scene.gateway.command(&["check"]);
}

#[test]
fn a_lost_store_is_accepted() {
    let mut scene = Scene::start();
    for file in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        fs::remove_file(scene.gateway.path("state").join(file)).unwrap();
    }
    scene.follow("store-unavailable");
    assert_eq!(scene.gateway.command(&["machines", "list"]).lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_backed_up_and_restored() {
    let scene = Scene::start();
    let digest = scene.gateway.endorse(&tpm(), &["--name", "worker-7"]);
    let file = scene.file("a.backup");
    let mut scene = scene.with("FILE", file);
    scene.follow("restore");
    assert!(scene.gateway.command(&["machines", "list"]).contains(&digest));
}

#[test]
fn a_lost_gateway_is_replaced_by_its_backup() {
    let mut lost = Scene::start();
    let digest = lost.gateway.endorse(&tpm(), &["--name", "worker-7"]);
    lost.stop();
    let file = lost.file("a.backup");
    lost.gateway.command(&["backup", &file]);
    // Another host: the same files without the state folder.
    fs::remove_dir_all(lost.gateway.path("state")).unwrap();
    fs::create_dir(lost.gateway.path("state")).unwrap();
    let mut new = lost.with("FILE", file);
    new.follow("gateway-lost");
    assert!(new.gateway.command(&["machines", "list"]).contains(&digest));
    let audit = new.gateway.command(&["log", "audit", "--checkpoints", &new.gateway.checkpoints()]);
    assert!(audit.contains("whole"), "{audit}");
}
