//! Pointers: written, inspected, and reported when nodes use them.

use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Instant;

use crate::support;
use crate::support::{Gateway, LIMIT, POOL, bearer, program};
use attest_certificates::source;
use attest_gateway::sightings::{self, Sighting};
use attest_ignition::Config;
use attest_pointers::ReadPointer;
use attest_store::Embedded;
use data_encoding::BASE64;
use serde_json::Value;

/// Returns a pointer to this gateway's address.
fn pointer(gateway: &Gateway, arguments: &[&str]) -> String {
    gateway.command(&[&["pointer", "create", "--pool", POOL, "--url", &gateway.url("")], arguments].concat())
}

fn with_input(gateway: &Gateway, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = program()
        .arg("--config")
        .arg(gateway.path("gateway.toml"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Whoever reads only so much closes the pipe.
    drop(child.stdin.take().unwrap().write_all(input));
    child.wait_with_output().unwrap()
}

/// Returns whether `pointer inspect` succeeds, and its output.
fn inspect(gateway: &Gateway, pointer: &str) -> (bool, String) {
    let output = with_input(gateway, &["pointer", "inspect", "-"], pointer.as_bytes());
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
    (output.status.success(), said)
}

#[track_caller]
fn satisfied(gateway: &Gateway, pointer: &str, expected: &[&str]) {
    let (satisfied, said) = inspect(gateway, pointer);
    assert!(
        satisfied && said.trim_end().lines().last().unwrap().starts_with("satisfied"),
        "{said}"
    );
    for expected in expected {
        assert!(said.contains(expected), "{expected:?} is not in:\n{said}");
    }
}

#[track_caller]
fn unsatisfied(gateway: &Gateway, pointer: &str, expected: &str) {
    let (satisfied, said) = inspect(gateway, pointer);
    assert!(!satisfied, "{said}");
    let reason = said
        .lines()
        .any(|line| line.starts_with("NOT satisfied: ") && line.contains(expected));
    assert!(reason, "{expected:?} is no reason in:\n{said}");
}

fn edited(pointer: &str, edit: impl FnOnce(&mut Value)) -> String {
    let mut value: Value = serde_json::from_str(pointer).unwrap();
    edit(&mut value);
    value.to_string()
}

#[test]
fn inspect_accepts_every_pointer_format() {
    let gateway = Gateway::init();
    let ca = source::certificates(&gateway.path("tls/mcs-ca.crt")).unwrap()[0]
        .fingerprint
        .short();
    for spec in ["2.2.0", "3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0", "3.6.0"] {
        let config = pointer(&gateway, &["--spec", spec]);
        Config::parse(config.as_bytes()).unwrap();
        let secret = pointer(&gateway, &["--spec", spec, "--format", "secret"]);
        for form in [&config, &secret] {
            let expected = [
                spec,
                "worker",
                "127.0.0.1",
                &ca,
                "pre-approved",
                "the pointer carries the newest CA",
            ];
            if spec == "2.2.0" {
                // Nodes with it would never get what the pool gives to nodes that attest.
                unsatisfied(&gateway, form, "spec 2.2.0 has no place for a ticket");
                continue;
            }
            satisfied(&gateway, form, &expected);
        }
    }
    // Settings are named before or after a command.
    let (config, file) = (gateway.path("gateway.toml"), gateway.path("worker.ign"));
    fs::write(&file, pointer(&gateway, &[])).unwrap();
    let (config, file) = (config.to_str().unwrap(), file.to_str().unwrap());
    for arguments in [
        ["--config", config, "pointer", "inspect", file],
        ["pointer", "--config", config, "inspect", file],
        ["pointer", "inspect", file, "--config", config],
    ] {
        let output = program().args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let neither = gateway.try_command(&["pointer", "create"]);
    assert!(neither.status.code() == Some(2) && String::from_utf8_lossy(&neither.stderr).contains("--pool"));
    // The certificate's first name and the port of `listen`, unless it is said.
    let own = gateway.command(&["pointer", "create", "--pool", POOL]);
    assert!(
        own.contains(&format!("https://localhost:{}/config/worker?ca={ca}", gateway.address().port())),
        "{own}"
    );
    satisfied(&gateway, &own, &["localhost"]);
    let elsewhere = gateway.command(&["pointer", "create", "--pool", POOL, "--url", "https://localhost"]);
    satisfied(&gateway, &elsewhere, &["redirect port 443 to it"]);
}

#[test]
fn pointer_secret_matches_the_machine_api() {
    let gateway = Gateway::init();
    let secret: Value = serde_saphyr::from_str(&pointer(&gateway, &["--format", "secret"])).unwrap();
    assert_eq!((&secret["apiVersion"], &secret["kind"]), (&"v1".into(), &"Secret".into()));
    assert_eq!(secret["metadata"]["name"], "worker-user-data");
    assert_eq!(secret["metadata"]["namespace"], "openshift-machine-api");
    // So that the operator leaves the CA as it is.
    let label = "machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap";
    assert_eq!(secret["metadata"]["labels"], serde_json::json!({ label: "" }));
    let data = |key: &str| BASE64.decode(secret["data"][key].as_str().unwrap().as_bytes()).unwrap();
    assert_eq!(data("disableTemplating"), b"true");
    let config: Value = serde_json::from_slice(&data("userData")).unwrap();
    assert_eq!(config, serde_json::from_str::<Value>(&pointer(&gateway, &[])).unwrap());
    // A name that YAML would take for something else.
    for name in ["123", "true", "gpu-user-data"] {
        let named: Value = serde_saphyr::from_str(&pointer(&gateway, &["--format", "secret", "--secret-name", name])).unwrap();
        assert_eq!(named["metadata"]["name"], name);
    }
    let refused = |arguments: &[&str]| {
        let output = gateway.try_command(&[&["pointer", "create", "--pool", POOL], arguments].concat());
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for name in ["", "-a", "a-", "A", "a\nb: c", "a\"", "a_b", &"a".repeat(254)] {
        let name = format!("--secret-name={name}");
        assert!(
            refused(&["--format", "secret", &name]).contains("is not a name of a Secret"),
            "{name:?}"
        );
    }
    assert!(refused(&["--secret-name", "a"]).contains("--format secret"));
    assert!(refused(&["--spec", "3.0.0"]).contains("httpHeaders"));
    assert!(refused(&["--spec", "3.7.0"]).contains("is not a supported spec version"));
    assert!(refused(&["--url", "https://a/b"]).contains("more than"));
    assert!(refused(&["--token", "a", "--token-file", "b"]).contains("--token-file"));
}

#[tokio::test]
async fn pointer_tokens_come_from_file_or_stdin() {
    let mut gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let token = gateway.token(&["--name", "rack7", "--uses", "1"]);
    let file = gateway.path("rack7.token");
    fs::write(&file, format!("{token}\n")).unwrap();
    let by_file = pointer(&gateway, &["--token-file", file.to_str().unwrap()]);
    let url = gateway.url("");
    let arguments = ["pointer", "create", "--pool", POOL, "--url", &url, "--token-file", "-"];
    let by_input = with_input(&gateway, &arguments, format!("\n{token}\n\n").as_bytes());
    assert_eq!(String::from_utf8(by_input.stdout).unwrap(), by_file);
    assert_eq!(pointer(&gateway, &["--token", &token]), by_file);
    let header = serde_json::from_str::<Value>(&by_file).unwrap()["ignition"]["config"]["merge"][0]["httpHeaders"][0]["value"].clone();
    assert_eq!(header, bearer(&token).as_str());
    let old = pointer(&gateway, &["--token", &token, "--spec", "2.2.0"]);
    for form in [&by_file, &old, &pointer(&gateway, &["--token", &token, "--format", "secret"])] {
        satisfied(&gateway, form, &["token \"rack7\" is current"]);
        assert!(!inspect(&gateway, form).1.contains(&token[..8]));
    }
    unsatisfied(
        &gateway,
        &pointer(&gateway, &["--token", "guessed"]),
        "the store does not know the token",
    );
    for bad in ["", "a b", "\u{e9}"] {
        let output = with_input(&gateway, &arguments, bad.as_bytes());
        assert!(!output.status.success() && output.stdout.is_empty(), "{bad:?}");
    }
    let output = with_input(&gateway, &arguments, &[b'x'; 10_000]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("more than"));

    // Inspecting has not used it up; a node does.
    gateway.run();
    let source = serde_json::from_str::<Value>(&old).unwrap()["ignition"]["config"]["append"][0]["source"].clone();
    let path = source.as_str().unwrap().strip_prefix(&url).unwrap().to_owned();
    assert!(path.contains("?ca=") && path.contains("&token="), "{path}");
    gateway.config(&path, &[]).await.is_config(&gateway.rendered(POOL, "full"));
    unsatisfied(&gateway, &by_file, "all 1 uses of token \"rack7\" are spent");
    gateway.command(&["token", "revoke", "rack7"]);
    unsatisfied(&gateway, &by_file, "the store does not know the token");
    gateway.edit_pool(POOL, "token = \"full\"", "token = \"refuse\"");
    unsatisfied(&gateway, &by_file, "grants.token");
}

#[test]
fn inspect_explains_an_unusable_pointer() {
    let gateway = Gateway::init();
    let other = Gateway::init();
    let good = pointer(&gateway, &[]);
    let merge = |edit: &dyn Fn(&mut Value)| edited(&good, |config| edit(&mut config["ignition"]["config"]["merge"][0]));
    let source = |source: &str| merge(&|entry| entry["source"] = source.into());
    let port = gateway.address().port();
    unsatisfied(&gateway, &pointer(&other, &[]), "none of the pointer's CAs has signed it");
    unsatisfied(&gateway, &source(&format!("https://192.0.2.7:{port}/config/worker")), "192.0.2.7");
    unsatisfied(
        &gateway,
        &source(&format!("https://api-int.example:{port}/config/worker")),
        "api-int.example",
    );
    unsatisfied(
        &gateway,
        &source(&format!("https://localhost:{port}/config/nowhere")),
        "no pool \"nowhere\"",
    );
    unsatisfied(&gateway, &source(&format!("http://localhost:{port}/config/worker")), "TLS only");
    unsatisfied(
        &gateway,
        &source(&format!("https://localhost:{port}/ignition/worker")),
        "no source of a gateway",
    );
    unsatisfied(&gateway, &source("data:,%7B%7D"), "no source of a gateway");
    unsatisfied(&gateway, &source("not a URL"), "Ignition rejects the config");
    unsatisfied(
        &gateway,
        &source(&format!("https://localhost:{port}/config/worker?token=a&token=b")),
        "credential-ambiguous",
    );
    unsatisfied(
        &gateway,
        &source(&format!("https://localhost:{port}/config/worker?token=")),
        "the token is empty",
    );
    unsatisfied(
        &gateway,
        &source(&format!("https://localhost:{port}/config/worker?token=ticket.x")),
        "ticket",
    );
    let authorities = |authorities: Value| {
        edited(&good, |config| {
            config["ignition"]["security"]["tls"]["certificateAuthorities"] = authorities
        })
    };
    unsatisfied(&gateway, &authorities(serde_json::json!([])), "no CA");
    unsatisfied(
        &gateway,
        &authorities(serde_json::json!([{"source": "data:,x"}])),
        "no PEM certificate",
    );
    unsatisfied(&gateway, &authorities(serde_json::json!([{"source": "http://a/ca.pem"}])), "no CA");
    unsatisfied(
        &gateway,
        &edited(&good, |config| config["ignition"]["version"] = "3.9.0".into()),
        "3.9.0",
    );
    unsatisfied(
        &gateway,
        &edited(&good, |config| config["ignition"]["unknown"] = 1.into()),
        "unknown",
    );
    let dropped = edited(&pointer(&gateway, &["--token", "hunter2"]), |config| {
        config["ignition"]["version"] = "3.0.0".into()
    });
    unsatisfied(&gateway, &dropped, "httpHeaders");
    // What was not looked at, and what is only strange, is said and no reason.
    let ca = serde_json::from_str::<Value>(&good).unwrap()["ignition"]["security"]["tls"]["certificateAuthorities"][0].clone();
    satisfied(
        &gateway,
        &authorities(serde_json::json!([ca, {"source": "http://a/ca.pem"}])),
        &["by http at boot"],
    );
    satisfied(
        &gateway,
        &source(&format!("https://localhost:{port}/config/worker")),
        &["does not list its CAs"],
    );
    satisfied(
        &gateway,
        &source(&format!("https://localhost:{port}/config/worker?ca={}", "0".repeat(16))),
        &["shows wrong ones"],
    );
    gateway.edit_pool(POOL, "nothing = \"pre-approved\"", "nothing = \"refuse\"");
    satisfied(&gateway, &good, &["only nodes that attest"]);
    gateway.edit_pool(POOL, "attested = \"full\"", "attested = \"refuse\"");
    unsatisfied(&gateway, &good, "grants nothing without");
    fs::remove_file(gateway.path("tls/mcs.key")).unwrap();
    unsatisfied(&gateway, &good, "mcs.key");
}

#[test]
fn inspect_considers_the_stage_of_a_ca_rotation() {
    let gateway = Gateway::init();
    let before = pointer(&gateway, &[]);
    // A second CA is introduced: it signs nothing yet.
    let next = Gateway::init();
    let bundle = [
        fs::read(gateway.path("tls/mcs-ca.crt")).unwrap(),
        fs::read(next.path("tls/mcs-ca.crt")).unwrap(),
    ]
    .concat();
    fs::write(gateway.path("tls/mcs-ca.crt"), &bundle).unwrap();
    let both = pointer(&gateway, &[]);
    assert_eq!(ReadPointer::parse(both.as_bytes()).unwrap().certificates().count(), 2);
    satisfied(&gateway, &before, &["the pointer lacks the newest CA", "it stops working after"]);
    satisfied(&gateway, &both, &["it also works after"]);
    // The next CA signs.
    for file in ["mcs.crt", "mcs.key"] {
        fs::copy(next.path("tls").join(file), gateway.path("tls").join(file)).unwrap();
    }
    unsatisfied(&gateway, &before, "none of the pointer's CAs has signed it");
    satisfied(&gateway, &both, &["which signs the certificate in use"]);
    // The old one goes.
    fs::copy(next.path("tls/mcs-ca.crt"), gateway.path("tls/mcs-ca.crt")).unwrap();
    satisfied(&gateway, &both, &["which signs the certificate in use"]);
    satisfied(&gateway, &pointer(&gateway, &[]), &[]);
}

#[test]
fn attack_23_inspect_refuses_malformed_pointers() {
    let gateway = Gateway::init();
    let large = vec![b' '; 1024 * 1024 + 1];
    let deep = "[".repeat(200_000);
    for garbage in [
        &b""[..],
        b"\0",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"kind: Secret",
        b"&a [*a]",
        b"\x1b[2J",
        deep.as_bytes(),
        &large,
    ] {
        let output = with_input(&gateway, &["pointer", "inspect", "-"], garbage);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("attest-gateway: ") && !said.contains('\x1b'), "{said}");
    }
    let missing = gateway.try_command(&["pointer", "inspect", "/nowhere"]);
    assert!(String::from_utf8(missing.stderr).unwrap().contains("/nowhere"));
}

/// Returns a client without connections.
fn client(gateway: &Gateway) -> reqwest::Client {
    let ca = reqwest::Certificate::from_pem(&fs::read(gateway.path("tls/mcs-ca.crt")).unwrap()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([ca])
        .no_proxy()
        .timeout(LIMIT)
        .build()
        .unwrap()
}

/// Waits until the store has these sightings, which a background task of the gateway writes.
async fn wait_for_sightings(gateway: &Gateway, wanted: impl Fn(&[Sighting]) -> bool) -> Vec<Sighting> {
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut found = sightings::list(&store).await.unwrap();
        found.sort_by(|a, b| a.authorities.cmp(&b.authorities));
        if wanted(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn pointers_in_use_are_known_after_a_restart() {
    let mut gateway = Gateway::start();
    let ca = source::certificates(&gateway.path("tls/mcs-ca.crt")).unwrap()[0]
        .fingerprint
        .short();
    let unknown = "0".repeat(16);
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    gateway
        .config(&format!("/config/worker?ca={ca},{unknown}"), &[])
        .await
        .is_config(&pre_approved);
    // Whatever comes of it.
    gateway
        .config(&format!("/config/infra?ca={unknown}&token=guessed"), &[])
        .await
        .refused(403, "token-not-accepted");
    gateway
        .config(&format!("/config/worker?ca={ca}&token=a&token=b"), &[])
        .await
        .refused(403, "credential-ambiguous");
    gateway
        .config(&format!("/config/nowhere?ca={ca}"), &[])
        .await
        .refused(404, "pool-unknown");
    let first = wait_for_sightings(&gateway, |found| found.len() == 3).await;
    let said: Vec<_> = first.iter().map(|one| (one.pool.as_str(), one.authorities.clone())).collect();
    assert_eq!(
        said,
        [("worker", None), ("infra", Some(vec![])), ("worker", Some(vec![ca.clone()]))]
    );
    for one in &first {
        assert_eq!((&one.accepted, one.peer.as_str()), (&ca, "127.0.0.1"));
        assert!(one.first <= one.last && one.last <= support::now());
    }
    let records = gateway.records();
    let recorded: Vec<&Value> = records.iter().map(|record| &record["pointer_authorities"]).collect();
    assert_eq!(
        recorded,
        [
            &Value::Null,
            &serde_json::json!([ca]),
            &serde_json::json!([]),
            &serde_json::json!([ca])
        ]
    );

    gateway.terminate();
    gateway.wait();
    gateway.run();
    // The connections of the one before are gone.
    gateway.client = client(&gateway);
    gateway
        .config(&format!("/config/worker?ca={ca}"), &[])
        .await
        .is_config(&pre_approved);
    // At the end, too, without waiting for a minute.
    gateway.terminate();
    gateway.wait();
    let again = wait_for_sightings(&gateway, |_| true).await;
    assert_eq!(again.len(), 3);
    for (before, after) in first.iter().zip(&again) {
        assert_eq!(
            (before.first, &before.pool, &before.authorities),
            (after.first, &after.pool, &after.authorities)
        );
    }
    assert!(again[2].last >= first[2].last);
}

#[test]
fn pointer_url_comes_from_the_settings() {
    let gateway = Gateway::init();
    let base = |arguments: &[&str]| {
        let pointer = gateway.command(&[&["pointer", "create", "--pool", POOL], arguments].concat());
        let pointer: Value = serde_json::from_str(&pointer).unwrap();
        let source = pointer["ignition"]["config"]["merge"][0]["source"].as_str().unwrap().to_owned();
        source.split("/config/").next().unwrap().to_owned()
    };
    let port = gateway.address().port();
    assert!(base(&[]).ends_with(&format!(":{port}")));
    // Behind the table of `manifests`, the gateway listens on a port that nobody else knows.
    gateway.settings("pointer_url = \"https://api-int.example.com:22623\"");
    assert_eq!(base(&[]), "https://api-int.example.com:22623");
    assert_eq!(base(&["--url", "https://other.example.com"]), "https://other.example.com");
    let (_, said) = inspect(&gateway, &gateway.command(&["pointer", "create", "--pool", POOL]));
    assert!(!said.contains("redirect port"), "{said}");
    let (_, said) = inspect(
        &gateway,
        &gateway.command(&["pointer", "create", "--pool", POOL, "--url", "https://api-int.example.com:9999"]),
    );
    assert!(said.contains("redirect port 9999 to it"), "{said}");
}
