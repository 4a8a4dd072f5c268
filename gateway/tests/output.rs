//! Output of commands to a full disk, or to a reader that is gone.

use std::fs::{self, OpenOptions};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::support::{Gateway, LIMIT, POOL, digest, program_of, rotating, tpm};

/// Standard output that accepts nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taker {
    Full,
    /// Closed pipe, as with `| true`.
    Gone,
}

impl Taker {
    fn stdio(self) -> Stdio {
        match self {
            Self::Full => OpenOptions::new().write(true).open("/dev/full").unwrap().into(),
            Self::Gone => std::io::pipe().unwrap().1.into(),
        }
    }
}

fn command(gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut command = program_of(arguments);
    command
        .current_dir(gateway.path(""))
        .env("ATTEST_GATEWAY_CONFIG", "gateway.toml")
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    command
}

fn run(gateway: &Gateway, arguments: &[&str], taker: Taker) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command(gateway, arguments).stdout(taker.stdio()).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Creates a gateway's folder with data for each command.
fn folder() -> Gateway {
    let mut gateway = Gateway::start();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.terminate();
    gateway.wait();
    let settings = fs::read_to_string(gateway.path("gateway.toml")).unwrap();
    for state in ["second", "third"] {
        fs::create_dir(gateway.path(state)).unwrap();
    }
    fs::write(gateway.path("second.toml"), format!("state = \"second\"\n{settings}")).unwrap();
    fs::write(gateway.path("third.toml"), format!("state = \"third\"\n{settings}")).unwrap();
    fs::write(
        gateway.path("keyed.toml"),
        format!("{settings}\n[store]\nkey_file = \"store.key\"\n"),
    )
    .unwrap();
    fs::write(gateway.path("worker.ign"), gateway.command(&["pointer", "create", "--pool", POOL])).unwrap();
    gateway
}

/// Returns each command that prints something, in an order in which each has something to do, and its exit code.
fn table() -> Vec<(Vec<&'static str>, i32)> {
    let good = [
        "--help",
        "--version",
        "token create --help",
        "init other --host localhost",
        "check",
        "check --output json",
        "certificate list",
        "certificate list --output json",
        "config diff --pool worker",
        "config render --pool worker --set full",
        "pointer create --pool worker",
        "pointer create --pool worker --format secret",
        "pointer inspect worker.ign",
        "machines list",
        "machines export",
        "node revoke worker-1 --anyway",
        "machines show worker-1",
        "node restore worker-1",
        "token list",
        "seal rotate",
        "seal rotate --drop",
        "log show-key",
        "log show",
        "log show --record 1",
        "log export",
        "log list-checkpoints",
        "log audit --without-checkpoints",
        "backup a.backup",
        "--config second.toml restore a.backup",
        "--config second.toml store copy --to third.toml",
        "--config second.toml store accept",
        "--config keyed.toml store create-key",
        "ca status",
        "ca create --out ca.crt --key-out ca.key",
        "certificate renew",
        "ca introduce",
        "ca switch --force",
        "ca retire --force",
    ];
    let mut table: Vec<(Vec<&str>, i32)> = good.iter().map(|line| (line.split(' ').collect(), 0)).collect();
    // Its port is closed.
    table.push((vec!["check", "--probe", "127.0.0.1:9"], 0));
    table
}

/// Lists, statuses and reports, which have `--output`.
const LISTS: [&str; 13] = [
    "check",
    "certificate list",
    "ca status",
    "config diff --pool worker",
    "machines list",
    "log show",
    "log status",
    "machines show worker-1",
    "pointer inspect worker.ign",
    "policy explain worker",
    "waiting list",
    "token list",
    "log audit --without-checkpoints",
];

#[tokio::test(flavor = "multi_thread")]
async fn lists_print_json_and_nothing_else_on_standard_output() {
    let gateway = folder();
    gateway.command(&["token", "create", "--pool", POOL, "--name", "rack7"]);
    gateway.command(&["node", "revoke", "worker-1", "--anyway"]);
    for list in LISTS {
        let arguments: Vec<&str> = list.split(' ').chain(["--output", "json"]).collect();
        let output = command(&gateway, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{list}: {}", String::from_utf8_lossy(&output.stderr));
        let mut values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>();
        assert!(
            values.all(|value| value.is_ok()),
            "{list}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    let tokens = gateway.command(&["token", "list", "--output", "json"]);
    let tokens: serde_json::Value = serde_json::from_str(&tokens).unwrap();
    assert_eq!(
        (&tokens[0]["name"], &tokens[0]["rotates"]),
        (&"rack7".into(), &serde_json::Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_leaves_results_and_errors() {
    let gateway = folder();
    let said = |arguments: &[&str]| {
        let output = command(&gateway, arguments).output().unwrap();
        let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, error)
    };
    let ek = digest(&tpm());
    assert_eq!(said(&["--quiet", "ek", "add", &ek]), (Some(0), String::new(), String::new()));
    let (code, token, notes) = said(&["token", "create", "--pool", POOL, "--quiet"]);
    assert_eq!((code, token.trim().len(), notes.as_str()), (Some(0), 43, ""));
    let (code, _, error) = said(&["--quiet", "ek", "remove", &"0".repeat(64)]);
    assert!(code == Some(1) && error.contains("not on the allowlist"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_report_unwritable_output_but_not_closed_pipes() {
    for taker in [Taker::Full, Taker::Gone] {
        let gateway = folder();
        let ek = digest(&tpm());
        let mut table = table();
        for arguments in [
            vec!["ek", "add", &ek, "--name", "worker-2"],
            vec!["ek", "remove", &ek],
            vec!["node", "forget", "worker-2"],
        ] {
            table.push((arguments, 0));
        }
        for (arguments, code) in table {
            if arguments.contains(&"accept") {
                fs::remove_file(gateway.path("second/gateway.db")).unwrap();
            }
            let (found, said) = run(&gateway, &arguments, taker);
            assert!(!said.contains("panicked"), "{taker:?} {arguments:?}: {said}");
            match taker {
                Taker::Full => {
                    assert_eq!(found, Some(1), "{arguments:?}: {said}");
                    assert!(said.contains("standard output: No space left on device"), "{arguments:?}: {said}");
                }
                Taker::Gone => {
                    assert_eq!(found, Some(code), "{arguments:?}: {said}");
                    assert!(!said.contains("Broken pipe"), "{arguments:?}: {said}");
                }
            }
        }
        // What was done is done, and is told of as what it is: no step of it was refused.
        let mut gateway = gateway;
        gateway.run();
        let acts: Vec<Value> = [
            "ca.introduce",
            "ca.switch",
            "ca.retire",
            "certificate.renew",
            "ek.add",
            "node.forget",
        ]
        .map(|verb| gateway.wait_for_acts(1, verb).remove(0))
        .into();
        for act in acts {
            assert!(act["admin"]["refused"].is_null(), "{act}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unwritable_output_reports_that_the_command_succeeded() {
    let gateway = folder();
    let (code, said) = run(&gateway, &["node", "revoke", "worker-1", "--anyway"], Taker::Full);
    assert_eq!(code, Some(1));
    assert!(said.contains("the command succeeded"), "{said}");
    assert!(gateway.command(&["machines", "list"]).contains("worker-1"));
    // What was only asked for was not.
    let (_, said) = run(&gateway, &["machines", "list"], Taker::Full);
    assert!(!said.contains("done"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn revokes_a_token_that_could_not_be_shown() {
    for taker in [Taker::Full, Taker::Gone] {
        for output in ["token", "secret", "pointer"] {
            let mut gateway = folder();
            let create = ["token", "create", "--pool", POOL, "--name", "rack7", "--format", output];
            let (code, said) = run(&gateway, &create, taker);
            assert_eq!(code, Some(1), "{taker:?} {output}: {said}");
            assert!(said.contains("token \"rack7\"; it was revoked"), "{said}");
            assert!(!gateway.command(&["token", "list"]).contains("rack7"));
            // Whoever did it is who revoked it.
            gateway.run();
            let [made, revoked] = ["token.create", "token.revoke"].map(|verb| gateway.wait_for_acts(1, verb).remove(0));
            assert_eq!(made["admin"]["by"], revoked["admin"]["by"]);
            assert!(revoked["admin"]["things"][0]["id"] == made["admin"]["things"][0]["id"], "{revoked}");
            // The name is free.
            gateway.command(&create);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_kept_in_files_survives_unwritable_output() {
    for taker in [Taker::Full, Taker::Gone] {
        let gateway = folder();
        let into = gateway.path("tokens");
        fs::create_dir(&into).unwrap();
        let into = into.display().to_string();
        let rotating = rotating("1d", &into);
        let (code, said) = run(&gateway, &rotating, taker);
        assert!(code == Some(1) && said.contains("its files are in"), "{said}");
        assert!(gateway.path("tokens/fleet.token").exists());
        fs::write(gateway.path("mine"), "0123456789abcdefghijklmnopqrstuv").unwrap();
        let brought = [
            "token",
            "create",
            "--pool",
            POOL,
            "--name",
            "mine",
            "--from-file",
            "mine",
            "--format",
            "secret",
        ];
        let (code, said) = run(&gateway, &brought, taker);
        assert!(code == Some(1) && said.contains("the token was imported"), "{said}");
        let rotate = ["token", "rotate", "mine", "--grace", "1h"];
        let (code, said) = run(&gateway, &rotate, taker);
        assert!(code == Some(1) && said.contains("attest-gateway token rotate mine"), "{said}");
        gateway.command(&rotate);
        let list = gateway.command(&["token", "list"]);
        assert!(list.contains("fleet") && list.contains("mine"), "{list}");
        let (code, said) = run(&gateway, &["token", "list"], taker);
        assert_eq!(
            (code, said.contains("No space")),
            (Some(i32::from(taker == Taker::Full)), taker == Taker::Full),
            "{said}"
        );
        let (code, said) = run(&gateway, &["token", "revoke", "mine"], taker);
        assert_eq!(
            (code, said.contains("the command succeeded")),
            (Some(i32::from(taker == Taker::Full)), taker == Taker::Full),
            "{said}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unwritable_stderr_causes_no_panic() {
    let gateway = folder();
    for taker in [Taker::Full, Taker::Gone] {
        for arguments in [&["token", "revoke", "nobody"][..], &["ek"], &["no-such-command"]] {
            let status = command(&gateway, arguments)
                .stdout(Stdio::null())
                .stderr(taker.stdio())
                .status()
                .unwrap();
            assert!(matches!(status.code(), Some(1 | 2)), "{taker:?} {arguments:?}: {status}");
        }
    }
}

/// Running gateway, killed when dropped.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A console without a reader, like that of `serve 2>&1 | tee` after `tee` was killed.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_served_while_nobody_reads_the_console() {
    for taker in [Taker::Full, Taker::Gone] {
        let gateway = Gateway::init();
        let arguments = ["serve", "--config", "gateway.toml"];
        let child = command(&gateway, &arguments).stdout(Stdio::null()).stderr(taker.stdio()).spawn();
        let mut serving = Serving(child.unwrap());
        let deadline = Instant::now() + LIMIT;
        while std::net::TcpStream::connect(gateway.address()).is_err() {
            assert!(Instant::now() < deadline && serving.0.try_wait().unwrap().is_none());
            tokio::task::yield_now().await;
        }
        let answer = gateway.config("/config/worker", &[]).await;
        assert_eq!(answer.status, 200, "{taker:?}");
        assert!(serving.0.try_wait().unwrap().is_none());
    }
}
