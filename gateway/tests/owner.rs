//! Root's commands on a gateway of another user, and the secrets that this user's process keeps private. Changing the user needs root.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use crate::support;
use crate::support::{Gateway, LIMIT, POOL, digest, program, tpm};
use rustix::process::geteuid;

/// User id 65534, an unprivileged user on most systems; any but root's works.
const USER: u32 = 65_534;

/// Creates a gateway whose folder belongs to that user, and a copy of the program that the user can run. Returns `None` without root.
fn other_user_gateway() -> Option<(Gateway, PathBuf)> {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: this test must be run by root");
        return None;
    }
    let gateway = Gateway::init();
    let (folder, copy) = (gateway.path(""), gateway.path("../attest-gateway"));
    // By another process: one that another test forks meanwhile would have the copy open for writing, and nobody can run it then.
    let copied = Command::new("cp").arg(program().get_program()).arg(&copy).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(folder.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    give(&folder);
    Some((gateway, copy))
}

fn give(path: &Path) {
    chown(path, Some(USER), Some(USER)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path()));
    }
}

/// Returns all paths in a folder that do not belong to the user.
fn strange(path: &Path) -> Vec<PathBuf> {
    let mut strange = Vec::new();
    if fs::symlink_metadata(path).unwrap().uid() != USER {
        strange.push(path.to_owned());
    }
    if path.is_dir() {
        strange.extend(fs::read_dir(path).unwrap().flat_map(|entry| self::strange(&entry.unwrap().path())));
    }
    strange
}

/// Returns a command of the program, run by the user.
fn as_user(gateway: &Gateway, copy: &Path, command: &str) -> Command {
    let mut program = Command::new(copy);
    program.uid(USER).gid(USER).arg("--config").arg(gateway.path("gateway.toml"));
    program.args(command.split(' '));
    program
}

fn output_text(output: &Output) -> String {
    String::from_utf8([output.stdout.clone(), output.stderr.clone()].concat()).unwrap()
}

#[test]
fn check_names_state_files_of_another_user() {
    let Some((gateway, copy)) = other_user_gateway() else { return };
    for file in ["state/attestation.lock", "state/attestation.jsonl"] {
        let file = gateway.path(file);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        for command in ["check", "serve"] {
            let output = as_user(&gateway, &copy, command).output().unwrap();
            let said = output_text(&output);
            assert_eq!(output.status.code(), Some(1), "{command}: {said}");
            assert!(said.contains(&file.display().to_string()), "{command}: {said}");
            assert!(
                said.contains(&format!("it belongs to user 0, but this is user {USER}")),
                "{command}: {said}"
            );
        }
        fs::remove_file(&file).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_commands_leave_the_state_usable_by_serve() {
    let Some((mut gateway, copy)) = other_user_gateway() else { return };
    gateway.command(&["check"]);
    assert_eq!(fs::read_dir(gateway.path("state")).unwrap().count(), 0);
    let case = tpm();
    let digest = digest(&case);
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.command(&["ek", "add", &digest]);
    let token = gateway.token(&[]);
    for command in [&["token", "list"][..], &["machines", "list"], &["machines", "export"], &["check"]] {
        gateway.command(command);
    }
    assert!(strange(&gateway.path("state")).is_empty(), "{:?}", strange(&gateway.path("state")));
    let list = as_user(&gateway, &copy, "machines list").output().unwrap();
    assert!(output_text(&list).contains(&digest), "{}", output_text(&list));
    gateway.run_as(as_user(&gateway, &copy, "serve"));
    assert_eq!(gateway.attest(case, None).await.status, 200);
    // Beside the service, too.
    gateway.command(&["ek", "remove", &digest]);
    gateway.command(&["check"]);
    assert!(strange(&gateway.path("state")).is_empty(), "{:?}", strange(&gateway.path("state")));
    let config = gateway.config("/config/worker", &[&support::bearer(&token)]).await;
    assert_eq!(config.status, 200);
    // Nobody but root may look into the process: its files in /proc are root's.
    let environment = fs::metadata(format!("/proc/{}/environ", gateway.process_id())).unwrap();
    assert_eq!(environment.uid(), 0);
    gateway.kill();
    // Root starts it by hand: as the service would.
    gateway.run();
    assert!(strange(&gateway.path("state")).is_empty(), "{:?}", strange(&gateway.path("state")));
}

#[test]
fn root_commands_create_no_state_folder() {
    let Some((gateway, copy)) = other_user_gateway() else { return };
    fs::remove_dir(gateway.path("state")).unwrap();
    assert!(output_text(&gateway.try_command(&["check"])).contains("does not exist yet"));
    for command in [
        &["machines", "list"][..],
        &["token", "create", "--pool", POOL],
        &["machines", "export"],
    ] {
        let refused = gateway.try_command(command);
        assert!(
            !refused.status.success() && output_text(&refused).contains("state create"),
            "{}",
            output_text(&refused)
        );
        assert!(!gateway.path("state").exists());
    }
    let made = as_user(&gateway, &copy, "machines list").output().unwrap();
    assert!(
        made.status.success() && strange(&gateway.path("state")).is_empty(),
        "{}",
        output_text(&made)
    );
}

#[test]
fn check_as_root_judges_by_the_service_user() {
    let Some((mut gateway, copy)) = other_user_gateway() else { return };
    let both_refuse = |path: &str, change: &dyn Fn(&Path), back: &dyn Fn(&Path)| {
        let path = gateway.path(path);
        change(&path);
        let checked = gateway.try_command(&["check"]);
        assert!(!checked.status.success(), "{}: {}", path.display(), output_text(&checked));
        let served = as_user(&gateway, &copy, "serve").output().unwrap();
        assert!(!served.status.success(), "{}: {}", path.display(), output_text(&served));
        back(&path);
    };
    let mode = |mode: u32| move |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let roots = |path: &Path| chown(path, Some(0), Some(0)).unwrap();
    both_refuse("tls/mcs.key", &roots, &give);
    both_refuse("gateway.toml", &mode(0o200), &mode(0o644));
    both_refuse("pools", &mode(0), &mode(0o755));
    both_refuse("state", &mode(0o500), &mode(0o700));
    // Another's folder that everybody can write to is not made private by who may not.
    let shared = |path: &Path| {
        roots(path);
        mode(0o777)(path);
        chown(path, Some(1), Some(1)).unwrap();
    };
    let private = |path: &Path| {
        give(path);
        mode(0o700)(path);
    };
    let path = gateway.path("state");
    shared(&path);
    let served = as_user(&gateway, &copy, "serve").output().unwrap();
    assert!(
        !served.status.success() && output_text(&served).contains("mode 0777 lets all users read keys and log"),
        "{}",
        output_text(&served)
    );
    private(&path);
    // What was made by root's hand is found.
    gateway.run_as(as_user(&gateway, &copy, "serve"));
    gateway.kill();
    chown(gateway.path("state/gateway.db"), Some(0), Some(0)).unwrap();
    let checked = gateway.try_command(&["check"]);
    assert!(
        output_text(&checked).contains("its folder to user 65534"),
        "{}",
        output_text(&checked)
    );
    let served = as_user(&gateway, &copy, "serve").output().unwrap();
    assert!(!served.status.success(), "{}", output_text(&served));
}

/// The gateway's user can put links into its folders. Root's commands follow none to find out whom to act as, or to write settings.
#[test]
fn root_commands_follow_no_links_of_the_gateways_user() {
    let Some((gateway, _)) = other_user_gateway() else { return };
    let elsewhere = tempfile::tempdir().unwrap();
    let roots = elsewhere.path().join("roots");
    fs::create_dir(&roots).unwrap();
    fs::write(roots.join("file"), "root's").unwrap();
    fs::set_permissions(roots.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    let link = |to: &Path, name: &str| {
        let path = gateway.path(name);
        std::os::unix::fs::symlink(to, &path).unwrap();
        rustix::fs::chownat(
            rustix::fs::CWD,
            &path,
            Some(rustix::fs::Uid::from_raw(USER)),
            None,
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
        path
    };
    let backup = gateway.path("../a.backup").display().to_string();
    gateway.command(&["ek", "add", &"1".repeat(64)]);
    // In a folder that only root can write, and to be read by root alone.
    gateway.command(&["backup", &backup, "--with-settings"]);
    let made = fs::metadata(&backup).unwrap();
    assert_eq!((made.uid(), made.permissions().mode() & 0o777), (0, 0o600));
    let is_untouched = |what: &str| {
        assert_eq!(fs::read_dir(&roots).unwrap().count(), 1, "{what}");
        assert_eq!(fs::read_to_string(roots.join("file")).unwrap(), "root's", "{what}");
        assert_eq!(fs::metadata(roots.join("file")).unwrap().uid(), 0, "{what}");
    };

    // The store's file, and the seal's.
    for name in ["gateway.db", "gateway.db-wal", "gateway.db-shm"] {
        drop(fs::remove_file(gateway.path("state").join(name)));
    }
    let store = link(&roots.join("file"), "state/gateway.db");
    for command in [&["machines", "list"][..], &["check"], &["restore", &backup, "--replace"]] {
        let output = gateway.try_command(command);
        assert!(
            !output.status.success() || output_text(&output).contains("running as user 65534"),
            "{command:?}: {}",
            output_text(&output)
        );
        is_untouched(&command.join(" "));
    }
    drop(fs::remove_file(&store));
    let restored = gateway.try_command(&["restore", &backup, "--replace"]);
    assert!(restored.status.success(), "{}", output_text(&restored));
    assert!(strange(&gateway.path("state")).is_empty(), "{:?}", strange(&gateway.path("state")));

    // The state folder.
    fs::rename(gateway.path("state"), gateway.path("state-before")).unwrap();
    let state = link(&roots, "state");
    for command in [&["machines", "list"][..], &["ek", "add", &"2".repeat(64)], &["restore", &backup]] {
        let output = gateway.try_command(command);
        assert!(!output.status.success(), "{command:?}: {}", output_text(&output));
        is_untouched(&command.join(" "));
    }
    fs::remove_file(state).unwrap();
    fs::rename(gateway.path("state-before"), gateway.path("state")).unwrap();

    // A folder of settings that are missing.
    for name in ["gateway.toml", "ek-roots/README"] {
        fs::remove_file(gateway.path(name)).unwrap();
    }
    fs::remove_dir(gateway.path("ek-roots")).unwrap();
    let folder = link(&roots, "ek-roots");
    let output = gateway.try_command(&["restore", &backup, "--replace"]);
    assert!(
        !output.status.success() && output_text(&output).contains("ek-roots is a link or not a folder"),
        "{}",
        output_text(&output)
    );
    is_untouched("settings");
    assert!(!gateway.path("gateway.toml").exists());
    fs::remove_file(folder).unwrap();
    let restored = gateway.try_command(&["restore", &backup, "--replace"]);
    assert!(restored.status.success(), "{}", output_text(&restored));
    assert!(strange(&gateway.path("")).is_empty(), "{:?}", strange(&gateway.path("")));
}

#[test]
fn init_and_serve_as_root_make_nothing_of_roots_for_the_gateways_user() {
    let Some((mut gateway, copy)) = other_user_gateway() else { return };
    fs::remove_dir(gateway.path("state")).unwrap();
    gateway.run();
    gateway.kill();
    assert!(strange(&gateway.path("state")).is_empty(), "{:?}", strange(&gateway.path("state")));
    let new = gateway.path("../new");
    fs::create_dir(&new).unwrap();
    give(&new);
    let made = Command::new(&copy)
        .arg("init")
        .arg(&new)
        .args(["--host", "gateway.example"])
        .output()
        .unwrap();
    assert!(made.status.success() && strange(&new).is_empty(), "{}", output_text(&made));
}

/// Returns how many times a text is in the writable memory of a process.
fn in_memory(process: u32, text: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
    let mut found = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let (from, to) = (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
        let mut region = vec![0; usize::try_from(to - from).unwrap()];
        // What is mapped may be gone by now.
        if memory.read_exact_at(&mut region, from).is_ok() {
            let finder = region.windows(text.len());
            found += finder.filter(|window| *window == text.as_bytes()).count();
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_does_not_stay_in_memory_after_its_use() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: this test must be run by root");
        return;
    }
    let mut gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let (token, wrong) = (gateway.token(&[]), "wrong-token-of-somebody-who-does-not-know-it");
    let ticket = gateway.ticket().await;
    for (path, authorization) in [
        ("/config/worker".to_owned(), support::bearer(&token)),
        (format!("/config/worker?token={token}"), String::new()),
        ("/config/worker".to_owned(), support::bearer(wrong)),
        ("/config/worker".to_owned(), support::bearer(&ticket)),
    ] {
        let authorization = Some(authorization.as_str()).filter(|text| !text.is_empty());
        gateway.config(&path, authorization.as_slice()).await;
    }
    // Its connections end with it.
    gateway.client = reqwest::Client::new();
    let (process, state) = (gateway.process_id(), gateway.path("state").display().to_string());
    assert!(in_memory(process, &state) > 0, "this test would see it");
    for text in [&token, wrong, &ticket] {
        let deadline = Instant::now() + LIMIT;
        loop {
            let found = in_memory(process, text);
            if found == 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{found} times in memory: {text}");
        }
    }
}
