//! A backup in one file, and its restore: half a backup and those of other sites are refused, and the acts since are listed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use aws_lc_rs::digest::{SHA256, digest as sha256};
use data_encoding::{BASE64, HEXLOWER};
use serde_json::Value;

use crate::support::{Gateway, program, tpm};

fn stop(gateway: &mut Gateway) {
    gateway.terminate();
    assert!(gateway.wait().success());
}

fn lose_store(gateway: &Gateway) {
    for file in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        drop(fs::remove_file(gateway.path("state").join(file)));
    }
}

fn lose_state(gateway: &Gateway) {
    fs::remove_dir_all(gateway.path("state")).unwrap();
    fs::create_dir(gateway.path("state")).unwrap();
}

fn back_up(gateway: &Gateway, name: &str, more: &[&str]) -> String {
    let file = gateway.path(name).to_str().unwrap().to_owned();
    gateway.command(&[&["backup", &file], more].concat());
    file
}

fn restore(gateway: &Gateway, file: &str, more: &[&str]) -> Output {
    gateway.try_command(&[&["restore", file], more].concat())
}

/// Returns the error of a restore, which must have this exit code and change no file of the state folder.
fn refusal(gateway: &Gateway, file: &str, more: &[&str], code: i32) -> String {
    let before = contents(gateway);
    let output = restore(gateway, file, more);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(contents(gateway), before, "{said}");
    said
}

/// Returns the names and contents of the files in the state folder.
fn contents(gateway: &Gateway) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(gateway.path("state")).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .filter(|entry| entry.path().is_file())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        // A reader of the store makes and removes these.
        .filter(|(name, _)| !name.ends_with("-wal") && !name.ends_with("-shm"))
        .collect();
    files.sort();
    files
}

fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn is_whole(gateway: &Gateway) {
    let audit = gateway.command(&["log", "audit", "--checkpoints", &gateway.checkpoints()]);
    assert!(audit.contains("whole") && !audit.contains("NOT"), "{audit}");
}

/// Returns a backup with this change, and a correct digest.
fn altered(file: &str, alter: impl FnOnce(&mut Vec<String>)) -> Vec<u8> {
    let text = fs::read_to_string(file).unwrap();
    let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
    lines.pop();
    alter(&mut lines);
    let body = lines.concat();
    let digest = HEXLOWER.encode(sha256(&SHA256, body.as_bytes()).as_ref());
    format!("{body}{{\"lines\":{},\"sha256\":\"{digest}\"}}\n", lines.len()).into_bytes()
}

#[test]
fn refuses_half_an_altered_and_a_foreign_backup() {
    let mut gateway = Gateway::start();
    gateway.endorse(&tpm(), &["--name", "worker-1"]);
    let file = back_up(&gateway, "a.backup", &[]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(refusal(&gateway, &file, &[], 1).contains("a gateway is writing"));
    stop(&mut gateway);
    assert!(refusal(&gateway, &file, &[], 1).contains("--replace"));
    lose_store(&gateway);

    let whole = fs::read(&file).unwrap();
    let bad = gateway.path("bad.backup").to_str().unwrap().to_owned();
    let lines = whole.iter().filter(|byte| **byte == b'\n').count();
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut flipped = whole.clone();
    let key = whole.windows(8).position(|bytes| bytes == b"worker-1").unwrap();
    flipped[key] = b'x';
    for (number, case) in [
        whole[..0].to_vec(),
        whole[..1].to_vec(),
        whole[..first].to_vec(),
        whole[..whole.len() / 2].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        whole[..whole.len() - 10].to_vec(),
        [&whole[..], &whole[..]].concat(),
        [&whole[..], b"\n"].concat(),
        whole[first..].to_vec(),
        flipped,
        altered(&file, |lines| lines.truncate(lines.len() / 2)),
        altered(&file, |lines| drop(lines.remove(lines.len() - 2))),
        altered(&file, |lines| lines.swap(0, 1)),
        fs::read(gateway.path("state/attestation.jsonl")).unwrap(),
        fs::read(gateway.path("gateway.toml")).unwrap(),
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(&bad, &case).unwrap();
        let said = refusal(&gateway, &bad, &[], 1);
        assert!(said.contains("nothing was restored"), "{number} of {lines} lines: {said}");
    }
    // A folder, and no file at all.
    assert!(refusal(&gateway, gateway.path("state").to_str().unwrap(), &[], 1).contains("a folder"));
    assert!(refusal(&gateway, "/none", &[], 1).contains("No such file"));
    // Of a newer release.
    let newer = altered(&file, |lines| {
        lines[0] = lines[0]
            .replace("\"version\":1", "\"more\":{},\"version\":7")
            .replace("\"release\":\"", "\"release\":\"9.");
    });
    fs::write(&bad, newer).unwrap();
    let said = refusal(&gateway, &bad, &[], 2);
    assert!(
        said.contains("attest-gateway backup 7, and release") && said.contains("run release 9."),
        "{said}"
    );
    // With a store of a newer release.
    let newer = altered(&file, |lines| {
        let head = lines.iter_mut().find(|line| line.contains("attest-gateway store")).unwrap();
        *head = head.replace("\"schema\":1,\"release\":\"", "\"schema\":2,\"release\":\"9.");
    });
    fs::write(&bad, newer).unwrap();
    let said = refusal(&gateway, &bad, &[], 2);
    assert!(
        said.contains("store schema 2, and release") && said.contains("run release 9."),
        "{said}"
    );

    // Altered with a correct digest: an unknown version, another key than the first line names, and a name with terminal commands.
    let refuses = |alter: &dyn Fn(&mut Vec<String>), expect: &str| {
        fs::write(&bad, altered(&file, alter)).unwrap();
        let said = refusal(&gateway, &bad, &[], 1);
        assert!(said.contains(expect) && !said.contains('\x1b'), "{said}");
    };
    refuses(
        &|lines| lines[0] = lines[0].replacen("\"version\":1", "\"version\":0", 1),
        "no release writes backups of version 0",
    );
    let stranger = Gateway::start();
    let key = BASE64.encode(&fs::read(stranger.path("state/log.key")).unwrap());
    refuses(
        &|lines| {
            let line = lines.iter_mut().find(|line| line.contains("\"log.key\"")).unwrap();
            *line = format!("{{\"file\":\"log.key\",\"mode\":384,\"base64\":\"{key}\"}}\n");
        },
        "another log.key",
    );

    // Of another site.
    let mut other = Gateway::start();
    stop(&mut other);
    lose_store(&other);
    let said = refusal(&other, &file, &[], 1);
    assert!(said.contains("another site") && said.contains("--another-site"), "{said}");
    let coloured = altered(&file, |lines| {
        let name = serde_json::from_str::<Value>(&lines[0]).unwrap()["site"]["gateway"].to_string();
        lines[0] = lines[0].replace(&format!("\"gateway\":{name}"), "\"gateway\":\"\\u001b[31mred\"");
    });
    fs::write(&bad, coloured).unwrap();
    let coloured = refusal(&other, &bad, &[], 1);
    assert!(coloured.contains("[31mred") && !coloured.contains('\x1b'), "{coloured}");
    self::said(&restore(&other, &file, &["--another-site"]));
    assert!(other.command(&["machines", "list"]).contains("worker-1"));
    // A secret of the file is in no message.
    let secret = fs::read_to_string(gateway.path("state/log.key")).unwrap();
    assert!(!said.contains(secret.lines().nth(1).unwrap()));
}

#[test]
fn a_state_folder_that_cannot_be_written_stays_as_it_is() {
    let mut gateway = Gateway::start();
    let file = back_up(&gateway, "a.backup", &[]);
    stop(&mut gateway);
    lose_state(&gateway);
    // A file in the place of the log's folder, because root can write everywhere.
    fs::remove_dir(gateway.path("state")).unwrap();
    fs::write(gateway.path("state"), "").unwrap();
    let output = restore(&gateway, &file, &[]);
    assert!(!output.status.success());
    assert_eq!(fs::read(gateway.path("state")).unwrap(), b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_the_acts_since_a_backup_and_repeats_them() {
    let mut gateway = Gateway::start();
    let (old, new) = (tpm(), tpm());
    let known = gateway.endorse(&old, &["--name", "worker-1"]);
    gateway.token(&["--name", "rack"]);
    gateway.token(&["--name", "gone"]);
    gateway.wait_for_acts(2, "token.create");
    stop(&mut gateway);
    // Acts in the outbox of the backup, which no log has yet.
    gateway.command(&["node", "revoke", "worker-2", "--anyway"]);
    gateway.command(&["node", "restore", "worker-2"]);
    let file = back_up(&gateway, "a.backup", &[]);
    gateway.run();
    gateway.wait_for_acts(1, "node.restore");
    // Acts that the backup lacks.
    gateway.command(&["node", "revoke", "worker-1", "--reason", "it's sold"]);
    let added = gateway.endorse(&new, &["--name", "worker-3"]);
    gateway.command(&["token", "rotate", "rack"]);
    gateway.command(&["token", "revoke", "gone"]);
    gateway.token(&["--name", "later"]);
    stop(&mut gateway);
    // And one that waits in the store that is replaced.
    gateway.command(&["node", "revoke", "worker-9", "--anyway"]);
    assert!(refusal(&gateway, &file, &[], 1).contains("--replace"));

    let output = restore(&gateway, &file, &["--replace", "--output", "json"]);
    let report: Value = serde_json::from_str(&said(&output)).unwrap();
    assert_eq!(report["younger"]["complete"], true, "{report}");
    let acts = report["younger"]["acts"].as_array().unwrap();
    let verbs: Vec<&str> = acts.iter().map(|act| act["act"].as_str().unwrap()).collect();
    let expected = [
        "node.revoke",
        "ek.add",
        "token.rotate",
        "token.revoke",
        "token.create",
        "node.revoke",
    ];
    assert_eq!(verbs, expected, "{report}");
    let aside = report["replaced"].as_str().unwrap();
    assert!(fs::metadata(format!("{aside}/gateway.db")).unwrap().len() > 0);
    let list = gateway.command(&["machines", "list"]);
    assert!(!list.contains("Banned"), "{list}");

    // Each command runs as printed.
    for command in acts.iter().flat_map(|act| act["commands"].as_array().unwrap()) {
        let mut shell = std::process::Command::new("sh");
        let own = program();
        let path = std::path::Path::new(own.get_program()).parent().unwrap().to_owned();
        let path = format!("{}:{}", path.display(), std::env::var("PATH").unwrap());
        let output = shell
            .args(["-c", command.as_str().unwrap()])
            .env("PATH", path)
            .env("ATTEST_GATEWAY_CONFIG", gateway.path("gateway.toml"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
    let list = gateway.command(&["machines", "list"]);
    let shown = gateway.command(&["machines", "list", "--state", "banned", "--output", "json"]);
    assert!(
        shown.contains("it's sold") && list.lines().any(|line| line.contains("worker-9")),
        "{shown}"
    );
    let eks = gateway.command(&["machines", "list"]);
    assert!(eks.contains(&known) && eks.contains(&added) && eks.contains("worker-3"), "{eks}");
    assert!(!gateway.command(&["token", "list"]).contains("gone"));

    gateway.run();
    gateway.wait_for_acts(1, "token.revoke");
    // Once each, although the backup had them in its outbox.
    let told = |what: &str| {
        gateway
            .acts(what)
            .iter()
            .filter(|act| act["admin"]["things"][0]["id"] == "worker-2")
            .count()
    };
    assert_eq!((told("node.revoke"), told("node.restore")), (1, 1));
    is_whole(&gateway);
    assert!(!gateway.command(&["check"]).contains("ERROR"));
}

#[test]
fn a_chain_begins_after_a_restore_onto_an_empty_state_folder() {
    let mut gateway = Gateway::start();
    let ek = gateway.endorse(&tpm(), &["--name", "worker-1"]);
    let file = back_up(&gateway, "a.backup", &[]);
    let key = gateway.command(&["log", "show-key"]);
    gateway.command(&["node", "revoke", "worker-1"]);
    stop(&mut gateway);
    let chain = gateway.log_lines()[0]["chain"]["id"].clone();
    lose_state(&gateway);
    let text = said(&restore(&gateway, &file, &[]));
    assert!(text.contains("There is no attestation log here: acts since"), "{text}");
    assert_eq!(gateway.command(&["log", "show-key"]), key);
    gateway.run();
    assert!(gateway.command(&["machines", "list"]).contains(&ek));
    assert_ne!(gateway.log_lines()[0]["chain"]["id"], chain);
    is_whole(&gateway);
    assert!(!gateway.command(&["check"]).contains("ERROR"));
    // Once more, onto the state with its log.
    stop(&mut gateway);
    let text = said(&restore(&gateway, &file, &["--replace"]));
    assert!(text.contains("does not continue the log of the backup"), "{text}");
    gateway.run();
    is_whole(&gateway);
}

#[test]
fn settings_are_restored_where_there_are_none() {
    let mut gateway = Gateway::start();
    gateway.endorse(&tpm(), &["--name", "worker-1"]);
    let plain = back_up(&gateway, "plain.backup", &[]);
    stop(&mut gateway);
    let backups = tempfile::tempdir().unwrap();
    let file = backups.path().join("a.backup").to_str().unwrap().to_owned();
    // Links that lead in circles.
    std::os::unix::fs::symlink("..", gateway.path("tls/up")).unwrap();
    std::os::unix::fs::symlink("../pools", gateway.path("pools/again")).unwrap();
    // What an editor leaves, a device, and the other backup are no settings.
    std::os::unix::fs::symlink("root@host.1234:1700000000", gateway.path(".#gateway.toml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", gateway.path("pools/zero")).unwrap();
    let output = gateway.try_command(&["backup", &file, "--with-settings"]);
    let skipped = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{skipped}");
    assert_eq!(skipped.matches("is not in the backup").count(), 3, "{skipped}");
    assert!(skipped.contains("plain.backup"), "{skipped}");
    for link in ["tls/up", "pools/again", ".#gateway.toml", "pools/zero"] {
        fs::remove_file(gateway.path(link)).unwrap();
    }
    let new = tempfile::tempdir().unwrap();
    let config = new.path().join("new/gateway.toml");
    fs::create_dir_all(new.path().join("new/state")).unwrap();
    let run = |file: &str| program().arg("--config").arg(&config).args(["restore", file]).output().unwrap();
    let refused = run(&plain);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("--with-settings"));
    assert!(!config.exists());
    said(&run(&file));
    for name in ["gateway.toml", "tls/mcs-ca.crt", "tls/mcs.key", "pools/worker/pool.toml"] {
        let (old, restored) = (gateway.path(name), new.path().join("new").join(name));
        assert_eq!(fs::read(&old).unwrap(), fs::read(&restored).unwrap(), "{name}");
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(old), mode(restored), "{name}");
    }
    let check = program().arg("--config").arg(&config).arg("check").output().unwrap();
    assert!(!said(&check).contains("ERROR"));
    // The folder of the settings is made, too.
    let state = tempfile::tempdir().unwrap();
    let toml = fs::read_to_string(gateway.path("gateway.toml")).unwrap();
    let toml = BASE64.encode(format!("state = {:?}\n{toml}", state.path()).as_bytes());
    let elsewhere = altered(&file, |lines| {
        let line = lines.iter_mut().find(|line| line.contains("settings/gateway.toml")).unwrap();
        *line = format!("{{\"file\":\"settings/gateway.toml\",\"mode\":416,\"base64\":\"{toml}\"}}\n");
    });
    let moved = backups.path().join("moved.backup");
    fs::write(&moved, elsewhere).unwrap();
    let made = new.path().join("made");
    let mut restoring = program();
    restoring.arg("--config").arg(made.join("gateway.toml")).arg("restore").arg(&moved);
    said(&restoring.output().unwrap());
    assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o750);
    assert!(state.path().join("gateway.db").exists() && made.join("tls/mcs.key").exists());
    // A path that leads out of the folder.
    let evil = altered(&file, |lines| {
        let line = lines.iter_mut().find(|line| line.contains("settings/tls/mcs.key")).unwrap();
        *line = line.replace("settings/tls/mcs.key", "settings/../../mcs.key");
    });
    fs::remove_file(&config).unwrap();
    fs::write(&file, evil).unwrap();
    let refused = run(&file);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("not a path below"));
    assert!(!config.exists());
}

#[test]
fn says_that_the_last_acts_of_an_unreadable_store_are_lost() {
    let mut gateway = Gateway::start();
    let file = back_up(&gateway, "a.backup", &[]);
    stop(&mut gateway);
    let store = gateway.path("state/gateway.db");
    let lost = |gateway: &Gateway| lose_store(gateway);
    let damaged = |_: &Gateway| fs::write(&store, "no database".repeat(1000)).unwrap();
    let newer = |gateway: &Gateway| {
        let mut commit = program();
        commit
            .arg("--config")
            .arg(gateway.path("gateway.toml"))
            .args(["upgrade", "--commit"]);
        assert!(commit.env("ATTEST_TEST_NEXT_SCHEMA", "1").output().unwrap().status.success());
    };
    for (number, lose) in [&lost as &dyn Fn(&Gateway), &damaged, &newer].into_iter().enumerate() {
        // It waits in the store: no gateway serves.
        gateway.command(&["node", "revoke", "worker-1", "--anyway"]);
        lose(&gateway);
        let output = match number {
            0 => restore(&gateway, &file, &["--quiet"]),
            _ => restore(&gateway, &file, &["--quiet", "--replace"]),
        };
        let text = said(&output);
        assert!(
            text.contains("The replaced store could not be read: acts since"),
            "{number}: {text}"
        );
        assert!(!text.contains("No act since"), "{number}: {text}");
        lose(&gateway);
        let more = if number == 0 {
            &["--output", "json"][..]
        } else {
            &["--output", "json", "--replace"]
        };
        let report: Value = serde_json::from_str(&said(&restore(&gateway, &file, more))).unwrap();
        assert_eq!(report["younger"]["complete"], false, "{number}: {report}");
    }
    // Without a word of it, a newer store is left as it is.
    newer(&gateway);
    let said = refusal(&gateway, &file, &[], 2);
    assert!(said.contains("schema 2") && said.contains("--replace"), "{said}");
}

#[test]
fn files_of_a_newer_release_are_set_aside() {
    let mut gateway = Gateway::start();
    let ek = gateway.endorse(&tpm(), &["--name", "worker-1"]);
    let file = back_up(&gateway, "a.backup", &[]);
    stop(&mut gateway);
    let (seal, snapshot) = (gateway.path("state/seal.key"), gateway.path("state/standing.json"));
    let newer = fs::read_to_string(&seal).unwrap().replacen("seal 2", "seal 3", 1);
    fs::write(&seal, &newer).unwrap();
    fs::write(&snapshot, "{\"v\":9,\"release\":\"9.0.0\"}").unwrap();
    let report: Value = serde_json::from_str(&said(&restore(&gateway, &file, &["--replace", "--output", "json"]))).unwrap();
    let aside = report["replaced"].as_str().unwrap();
    assert_eq!(fs::read_to_string(format!("{aside}/seal.key")).unwrap(), newer);
    assert!(fs::metadata(format!("{aside}/standing.json")).is_ok());
    gateway.run();
    assert!(gateway.command(&["machines", "list"]).contains(&ek));
    is_whole(&gateway);
    assert!(!gateway.command(&["check"]).contains("ERROR"));
}

/// Returns a new folder with the state of this gateway, and nothing else of it; and the command that restores a backup there.
fn only_state(gateway: &Gateway) -> (tempfile::TempDir, impl Fn(&[&str]) -> Output) {
    let new = tempfile::tempdir().unwrap();
    let state = new.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    for name in ["gateway.db", "store.mark", "log.key", "seal.key", "attestation.jsonl"] {
        fs::copy(gateway.path("state").join(name), state.join(name)).unwrap();
    }
    let config = new.path().join("gateway.toml");
    let run = move |arguments: &[&str]| program().arg("--config").arg(&config).args(arguments).output().unwrap();
    (new, run)
}

#[test]
fn settings_of_another_site_are_not_written() {
    let (mut here, mut other) = (Gateway::start(), Gateway::start());
    stop(&mut here);
    stop(&mut other);
    let backups = tempfile::tempdir().unwrap();
    let file = backups.path().join("a.backup").to_str().unwrap().to_owned();
    other.command(&["backup", &file, "--with-settings"]);
    let (new, run) = only_state(&here);
    for more in [&[][..], &["--replace"]] {
        let refused = run(&[&["restore", &file], more].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("another site"), "{said}");
        assert_eq!(fs::read_dir(new.path()).unwrap().count(), 1);
    }
}

#[test]
fn no_gateway_serves_after_half_a_restore() {
    let mut gateway = Gateway::start();
    let ek = gateway.endorse(&tpm(), &["--name", "worker-1"]);
    stop(&mut gateway);
    let backups = tempfile::tempdir().unwrap();
    let file = backups.path().join("a.backup").to_str().unwrap().to_owned();
    gateway.command(&["backup", &file, "--with-settings"]);
    let new = tempfile::tempdir().unwrap();
    let config = new.path().join("gateway.toml");
    let run = |arguments: &[&str]| program().arg("--config").arg(&config).args(arguments).output().unwrap();
    // Something in the place of the seal, which is made last.
    fs::create_dir_all(new.path().join("state/seal.key/x")).unwrap();
    assert!(!run(&["restore", &file]).status.success());
    assert!(!config.exists() && new.path().join("tls/mcs.key").exists());
    assert!(!run(&["serve"]).status.success());
    fs::remove_dir_all(new.path().join("state/seal.key")).unwrap();
    let again = run(&["restore", &file]);
    let again = match again.status.success() {
        true => again,
        false => run(&["restore", &file, "--replace"]),
    };
    said(&again);
    assert!(said(&run(&["machines", "list"])).contains(&ek));
}

#[test]
fn a_killed_restore_is_finished_by_the_next() {
    let mut gateway = Gateway::start();
    let ek = gateway.endorse(&tpm(), &["--name", "worker-1"]);
    let file = back_up(&gateway, "a.backup", &[]);
    stop(&mut gateway);
    let mut killed = 0;
    for milliseconds in (0..60).step_by(3) {
        let mut restoring = program()
            .arg("--config")
            .arg(gateway.path("gateway.toml"))
            .args(["restore", &file, "--replace"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        restoring.kill().unwrap();
        killed += usize::from(!restoring.wait().unwrap().success());
        said(&restore(&gateway, &file, &["--replace"]));
        assert!(gateway.command(&["machines", "list"]).contains(&ek));
    }
    assert!(killed > 0);
    gateway.run();
    is_whole(&gateway);
}

#[test]
fn a_restore_on_a_full_disk_can_be_repeated() {
    let mut gateway = Gateway::start();
    for number in 0..40 {
        gateway.endorse(&tpm(), &["--name", &format!("worker-{number}")]);
    }
    let file = back_up(&gateway, "a.backup", &[]);
    stop(&mut gateway);
    // The store's file may have fewer bytes than it needs.
    let limited = || {
        let mut limited = std::process::Command::new("sh");
        limited
            .args([
                "-c",
                "trap '' XFSZ; ulimit -f 24; exec \"$0\" --config \"$1\" restore \"$2\" --replace",
            ])
            .arg(program().get_program())
            .arg(gateway.path("gateway.toml"))
            .arg(&file)
            .output()
            .unwrap()
    };
    // A seal of a newer release is set aside, and put back with the store.
    let seal = fs::read_to_string(gateway.path("state/seal.key")).unwrap();
    fs::write(gateway.path("state/seal.key"), seal.replacen("seal 2", "seal 3", 1)).unwrap();
    let before = contents(&gateway);
    let refused = limited();
    let said_now = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said_now.contains("nothing was restored"), "{said_now}");
    assert_eq!(gateway.command(&["machines", "list"]).matches("worker-").count(), 40);
    let names = |files: &[(String, Vec<u8>)]| files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&contents(&gateway)), names(&before), "{said_now}");
    assert!(fs::read_to_string(gateway.path("state/seal.key")).unwrap().contains("seal 3"));
    fs::write(gateway.path("state/seal.key"), seal).unwrap();
    lose_store(&gateway);
    let refused = limited();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a.backup"), "{refused:?}");
    said(&restore(&gateway, &file, &[]));
    assert_eq!(gateway.command(&["machines", "list"]).matches("worker-").count(), 40);
    gateway.run();
    is_whole(&gateway);
}
