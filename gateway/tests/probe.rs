//! `check --probe`: an unauthenticated client's answers from an open Machine Config Server, and from this gateway.

use std::sync::Arc;

use crate::support::{Gateway, POOL};
use cloud_fixtures::server::{HttpRequest, ServerAnswer, ServerFault, TestServer, loopback};
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::PrivateKeyDer;

/// Returns a TLS configuration with an untrusted certificate for another name.
fn tls() -> Arc<rustls::ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["elsewhere.example".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    Arc::new(
        builder
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap(),
    )
}

/// Starts a server that answers like a Machine Config Server (machine-config-operator, pkg/server/api.go). Requests for a later version get
/// this config in spec 3.4, those without a version get `old`. An unknown pool gets 500.
fn machine_config_server(with_tls: bool, pool: &'static str, newest: Vec<u8>, old: Option<Vec<u8>>) -> TestServer {
    TestServer::start(loopback(), with_tls.then(tls), move |request: &HttpRequest| {
        let json = |body: &[u8]| ServerAnswer::new(200, "application/json", body);
        match request.path() {
            "/healthz" => ServerAnswer::new(200, "text/plain", ""),
            path if path.strip_prefix("/config/") != Some(pool) => ServerAnswer::new(500, "text/plain", ""),
            _ if request.header("accept").is_some_and(|accept| accept.contains("version=3.")) => json(&newest),
            _ => old
                .as_ref()
                .map_or_else(|| ServerAnswer::new(400, "text/plain", ""), |old| json(old)),
        }
    })
}

/// Runs the probe. Returns whether it succeeded, and its output.
fn probe(gateway: &Gateway, addresses: &[&str]) -> (bool, String) {
    let output = gateway.try_command(&[["check", "--probe"].as_slice(), addresses].concat());
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("SECRET"), "{said}");
    (output.status.success(), said)
}

#[track_caller]
fn check(gateway: &Gateway, server: &TestServer, good: bool, lines: &[&[&str]]) {
    let (success, said) = probe(gateway, &[&server.address().to_string()]);
    assert_eq!(success, good, "{said}");
    for parts in lines {
        assert!(
            said.lines().any(|line| parts.iter().all(|part| line.contains(part))),
            "{parts:?} are not on one line of\n{said}"
        );
    }
}

fn spec2(path: &str) -> Vec<u8> {
    format!(r#"{{"ignition":{{"version":"2.2.0"}},"storage":{{"files":[{{"filesystem":"root","path":"{path}","contents":{{"source":"data:,SECRET"}}}}]}}}}"#)
        .into_bytes()
}

#[test]
fn probe_finds_an_open_machine_config_server() {
    let gateway = Gateway::init();
    let full = gateway.rendered(POOL, "full");
    for (with_tls, port) in [(true, "TLS"), (false, "plain")] {
        let server = machine_config_server(with_tls, "worker", full.clone(), None);
        check(
            &gateway,
            &server,
            false,
            &[
                &[port, "worker", "OPEN", "beyond the pre-approved config: "],
                &[port, "master", "closed", "answers 500"],
                &[
                    "get more than the pre-approved config in 1 cases",
                    "close-the-machine-config-server.md",
                ],
            ],
        );
        // It shows nothing, and asks as Ignition does.
        for request in server.requests().iter().filter(|request| request.path() == "/config/worker") {
            assert!(
                request.header("authorization").is_none() && !request.target.contains('?'),
                "{request:?}"
            );
            assert!(request.header("user-agent").unwrap().starts_with("Ignition/"));
        }
    }
    // What this gateway does not serve is asked for all the same.
    let masters = machine_config_server(true, "master", full.clone(), None);
    check(
        &gateway,
        &masters,
        false,
        &[&["TLS", "master", "OPEN"], &["TLS", "worker", "closed"]],
    );
    // A server may be careful with new nodes only.
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    let old = machine_config_server(true, "worker", pre_approved.clone(), Some(spec2("/etc/kubernetes/kubeconfig")));
    check(
        &gateway,
        &old,
        false,
        &[&["TLS", "worker", "OPEN", "file /etc/kubernetes/kubeconfig"]],
    );
    let careful = machine_config_server(true, "worker", pre_approved, None);
    check(
        &gateway,
        &careful,
        true,
        &[&["TLS", "worker", "pre-approved"], &["unauthenticated clients get no more"]],
    );
    // Who says no version is asked for, too: curl, and the oldest nodes.
    let asked = careful.requests();
    let unversioned = |request: &&HttpRequest| request.path() == "/config/worker" && request.header("accept") == Some("*/*");
    assert_eq!(asked.iter().filter(unversioned).count(), 1);
    // One open port among others is enough.
    let server = machine_config_server(false, "worker", full, None);
    let (success, said) = probe(&gateway, &[&careful.address().to_string(), &server.address().to_string()]);
    assert!(!success && said.contains("OPEN") && said.contains("pre-approved "), "{said}");
}

#[test]
fn probe_reports_a_server_without_configs_as_closed() {
    let gateway = Gateway::init();
    let server = machine_config_server(false, "worker", gateway.rendered(POOL, "full"), None);
    let address = server.address().to_string();
    server.fail(ServerFault::Status(403));
    check(
        &gateway,
        &server,
        true,
        &[&["plain", "worker", "closed", "answers 403"], &["TLS", "*", "closed"]],
    );
    server.fail(ServerFault::Garbage);
    check(&gateway, &server, true, &[&["plain", "worker", "closed", "are no Ignition config"]]);
    // What does not end might be anything.
    server.fail(ServerFault::Huge);
    check(&gateway, &server, false, &[&["plain", "worker", "OPEN"]]);
    // A stranger goes where he is sent.
    let elsewhere = machine_config_server(false, "worker", gateway.rendered(POOL, "full"), None);
    server.fail(ServerFault::Redirect(format!("{}/config/worker", elsewhere.url())));
    check(
        &gateway,
        &server,
        false,
        &[&["plain", "worker", "OPEN", "beyond the pre-approved config"]],
    );
    server.fail(ServerFault::Down);
    let (success, said) = probe(&gateway, &[&address]);
    assert!(success && said.contains("refused"), "{said}");
}

#[test]
fn probe_says_what_it_could_not_ask() {
    let gateway = Gateway::start();
    let address = gateway.address().to_string();
    // No host has a multicast address.
    for (unknown, why) in [
        ("nowhere.invalid", "cannot be resolved: "),
        ("224.0.0.1", "nor at other ports of the host"),
    ] {
        let (success, said) = probe(&gateway, &[unknown, &address]);
        let row = said.lines().find(|line| line.starts_with(&format!("{unknown} ")));
        assert!(row.is_some_and(|row| row.contains("  unknown  ") && row.contains(why)), "{said}");
        assert!(!success && said.contains("no answer in "), "{said}");
        assert!(said.contains("pre-approved "), "the other address was not asked:\n{said}");
    }
}

#[test]
fn probe_accepts_the_gateways_own_pre_approved_config() {
    let gateway = Gateway::start();
    let address = gateway.address().to_string();
    let (success, said) = probe(&gateway, &[&address]);
    assert!(
        success && said.contains("gives nothing beyond the pre-approved config of pool worker"),
        "{said}"
    );
    assert!(
        said.lines().any(|line| line.contains("master") && line.contains("answers 404")),
        "{said}"
    );
    // Unless its administrator wants it so.
    gateway.edit_pool(POOL, "nothing = \"pre-approved\"", "nothing = \"full\"");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    let (success, said) = probe(&gateway, &[&address]);
    assert!(!success && said.contains("OPEN"), "{said}");
}

#[test]
fn probe_compares_with_given_pre_approved_configs() {
    let gateway = Gateway::init();
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("worker.ign");
    std::fs::write(&file, gateway.rendered(POOL, "pre-approved")).unwrap();
    let ask = |known: &str, server: &TestServer| {
        let address = server.address().to_string();
        let output = crate::support::program()
            .current_dir(elsewhere.path())
            .args(["check", "--pre-approved", known, "--probe", &address])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let careful = machine_config_server(true, "worker", gateway.rendered(POOL, "pre-approved"), None);
    let (code, said) = ask("worker=worker.ign", &careful);
    assert!(code == Some(0) && said.contains("pre-approved"), "{said}");
    // What is known of one pool says nothing of another.
    let (code, said) = ask("infra=worker.ign", &careful);
    assert!(code == Some(1) && said.contains("OPEN"), "{said}");
    // The same in an older version is no more, and other things are.
    let old = br#"{"ignition":{"version":"2.2.0"}}"#.to_vec();
    let older = machine_config_server(true, "worker", gateway.rendered(POOL, "pre-approved"), Some(old));
    assert_eq!(ask("worker=worker.ign", &older).0, Some(0));
    let open = machine_config_server(true, "worker", gateway.rendered(POOL, "full"), None);
    assert_eq!(ask("worker=worker.ign", &open).0, Some(1));
    std::fs::write(elsewhere.path().join("broken.ign"), "{").unwrap();
    for (known, part) in [
        ("worker", "expected POOL=FILE"),
        ("../a=worker.ign", "expected POOL=FILE"),
        ("worker=missing.ign", "missing.ign"),
        ("worker=broken.ign", "broken.ign"),
    ] {
        let (code, said) = ask(known, &careful);
        assert!(code != Some(0) && said.contains(part), "{known}: {said}");
    }
}

#[test]
fn probe_refuses_an_invalid_address() {
    let gateway = Gateway::init();
    let (success, said) = probe(&gateway, &["https://a"]);
    assert!(!success && said.contains("is not an address"), "{said}");
}

/// Returns the blocks of a document in this language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let rest = document.split(&fence).skip(1);
    rest.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_documented_machine_config_holds_the_documented_table() {
    let document = include_str!("../../docs/how-to/close-the-machine-config-server.md");
    let table = blocks(document, "nft").pop().unwrap();
    let apply = blocks(document, "sh").into_iter().find(|block| block.contains("oc apply")).unwrap();
    let (_, manifest) = apply.split_once("<<EOF\n").unwrap();
    let (manifest, _) = manifest.split_once("\nEOF\n").unwrap();
    let encode = "$(base64 -w0 old-machine-config-server.nft)";
    assert!(manifest.contains(encode));
    // What the shell makes of it, in a pool of its own: rendered, and then as a node would get it.
    let manifest = manifest.replace(encode, &data_encoding::BASE64.encode(table.as_bytes()));
    let object: serde_json::Value = serde_saphyr::from_str(&manifest).unwrap();
    let config = attest_ignition::Config::from_value(object["spec"]["config"].clone()).unwrap();
    let [file] = config.list(["storage", "files"]) else {
        panic!("one file")
    };
    let source = file["contents"]["source"].as_str().unwrap();
    assert_eq!(attest_ignition::data_url::decode(source).unwrap(), table.as_bytes());
    let path = file["path"].as_str().unwrap();
    let [unit] = config.list(["systemd", "units"]) else {
        panic!("one unit")
    };
    assert!(unit["contents"].as_str().unwrap().contains(&format!("nft -f {path}")), "{unit}");
    for part in [
        "22623, 22624",
        "iifname \"lo\" accept",
        "delete table inet old-machine-config-server\n",
    ] {
        assert!(table.contains(part), "{part:?} is not in {table}");
    }
}
