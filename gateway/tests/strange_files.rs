//! Special files, or files that are far too large, in the place of regular ones: nothing waits for them, and messages name them.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::{Gateway, LIMIT, POOL, auditor, program, program_of};

/// Size beyond that of any such file.
const LARGE_BYTES: u64 = 20 * 1024 * 1024;

fn pipe(path: &Path) {
    drop(fs::remove_file(path));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Running process, killed if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns the exit code and the output of a command. Fails if it does not end.
#[track_caller]
fn ends(command: &mut Command) -> (Option<i32>, String) {
    let (mut output, written) = std::io::pipe().unwrap();
    command.stdin(Stdio::null()).stdout(written.try_clone().unwrap()).stderr(written);
    let mut child = Running(command.spawn().unwrap());
    // What it was given is closed here.
    *command = Command::new("true");
    let deadline = Instant::now() + LIMIT;
    while child.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it waits for something");
        std::thread::yield_now();
    }
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    (child.0.wait().unwrap().code(), said)
}

fn run(gateway: &Gateway, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = program_of(arguments);
    command.env("ATTEST_GATEWAY_CONFIG", "gateway.toml");
    ends(command.current_dir(gateway.path("")).args(arguments))
}

/// Files of the settings, the settings, and whether nothing is served without the file.
const FILES: [(&str, &str, bool); 17] = [
    ("gateway.toml", "", true),
    ("tls/mcs-ca.crt", "", true),
    ("tls/mcs.crt", "", true),
    ("tls/mcs.key", "", true),
    ("client.crt", "[tls]\nclient_ca = \"client.crt\"", true),
    ("ek-roots/maker.pem", "", false),
    ("azure-roots/root.pem", "", false),
    ("pools/infra/pool.toml", "", false),
    ("pools/infra/full/config.ign", "", false),
    ("keys.json", "[gcp]\njwks = \"keys.json\"", true),
    ("outgoing.crt", "[outgoing]\nca = \"outgoing.crt\"", true),
    ("store.key", "[store]\nkey_file = \"store.key\"", true),
    ("state/log.key", "", true),
    (NEXT, "", true),
    (LOG, "", true),
    (LOCK, "", true),
    ("state/store.mark", "", true),
];
/// File that is removed unread.
const NEXT: &str = "state/attestation.next";
/// File of unlimited size.
const LOG: &str = "state/attestation.jsonl";
/// File that is locked, and not read.
const LOCK: &str = "state/attestation.lock";

#[test]
fn named_pipes_in_place_of_files_never_block() {
    for (file, settings, fails) in FILES {
        let gateway = Gateway::init();
        gateway.settings(settings);
        pipe(&gateway.path(file));
        let (code, said) = run(&gateway, &["check"]);
        assert_eq!(code, Some(i32::from(fails)), "{file}: {said}");
        let name = file.rsplit('/').next().unwrap();
        assert!(
            said.contains(name) && (said.contains("a named pipe") || said.contains("only files are read")),
            "{file}: {said}"
        );
        if fails {
            let (code, said) = run(&gateway, &["serve"]);
            assert!(code == Some(1) && said.contains(name), "{file}: {said}");
        }
        // Whoever looks at its log afterwards does not wait either.
        fs::remove_file(gateway.path(file)).unwrap();
    }
}

#[test]
fn serves_with_named_pipes_in_root_folders() {
    let mut gateway = Gateway::init();
    for folder in [
        "ek-roots",
        "azure-roots",
        "azure-intermediates",
        "aws-nitro-roots",
        "gcp-vtpm-roots",
        "azure-vtpm-roots",
    ] {
        pipe(&gateway.path(folder).join("maker.pem"));
        fs::create_dir(gateway.path(folder).join("folder.crt")).unwrap();
    }
    gateway.run();
    gateway.terminate();
    assert!(gateway.wait().success());
}

#[test]
fn refuses_oversized_files_without_reading_them() {
    for (file, settings) in FILES
        .into_iter()
        .filter(|(file, _, fails)| *fails && ![NEXT, LOG, LOCK].contains(file))
        .map(|(file, settings, _)| (file, settings))
    {
        let gateway = Gateway::init();
        gateway.settings(settings);
        let path = gateway.path(file);
        drop(fs::remove_file(&path));
        let large = fs::File::create(&path).unwrap();
        large.set_len(LARGE_BYTES).unwrap();
        large.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let (code, said) = run(&gateway, &["check"]);
        let name = file.rsplit('/').next().unwrap();
        assert!(code == Some(1) && said.contains(name) && said.contains("bytes"), "{file}: {said}");
    }
}

#[test]
fn commands_refuse_pipes_and_oversized_files() {
    let mut gateway = Gateway::start();
    gateway.terminate();
    gateway.wait();
    pipe(&gateway.path("pipe"));
    fs::File::create(gateway.path("large")).unwrap().set_len(LARGE_BYTES).unwrap();
    for arguments in [
        &["ek", "add", "--certificate"][..],
        &["ek", "add", "--public"],
        &["log", "audit", "--log-key"],
        &["log", "audit", "--holds"],
        &["log", "audit", "--from"],
        &["pointer", "inspect"],
        &["pointer", "create", "--pool", POOL, "--token-file"],
        &["token", "create", "--pool", POOL, "--from-file"],
        &["certificate", "renew", "--ca-key"],
        &["restore"],
        &["check", "--config"],
    ] {
        for (file, expected) in [("pipe", "named pipe"), ("tls", "a folder"), ("large", "bytes")] {
            // A backup is read line by line, however large.
            let expected = if arguments.contains(&"restore") && file == "large" {
                "incomplete"
            } else {
                expected
            };
            let (code, said) = run(&gateway, &[arguments, &[file]].concat());
            assert!(
                code == Some(1) && said.contains(file) && said.contains(expected),
                "{arguments:?} {file}: {said}"
            );
        }
    }
    // What a shell hands over is read: `--log-key <(ssh gateway-1 attest-gateway log show-key)`.
    let script = "\"$0\" log audit --without-checkpoints --log-key <(\"$1\" log show-key)";
    let mut handed = Command::new("bash");
    handed
        .args(["-c", script])
        .arg(auditor().get_program())
        .arg(program().get_program())
        .env("ATTEST_GATEWAY_CONFIG", "gateway.toml")
        .current_dir(gateway.path(""));
    let (code, said) = ends(&mut handed);
    assert_eq!(code, Some(0), "{said}");
}
