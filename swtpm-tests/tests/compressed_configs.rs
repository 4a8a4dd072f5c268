//! Debian's Ignition on this machine, with pointers by attest-node whose config is compressed and has a hash.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use attest::protocol::{ConfigCompression, ConfigForm, HexDigest};
use attest_node::pointer::Pointer;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use swtpm_tests::stand_in::{StandIn, response};
use swtpm_tests::{IGNITION_SPEC, Images, TestFolder};

const CONFIG: &str = r#"{"ignition":{"version":"3.3.0"},"storage":{"files":[{"path":"/etc/state","contents":{"source":"data:,full"}}]}}"#;

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn sha256(bytes: &[u8]) -> Option<HexDigest> {
    HexDigest::new(digest(&SHA256, bytes).as_ref())
}

fn form(compressed: bool, sha256: Option<HexDigest>) -> ConfigForm {
    ConfigForm {
        compression: compressed.then_some(ConfigCompression::Gzip),
        sha256,
    }
}

fn ok(body: &[u8]) -> Vec<u8> {
    response("200 OK", "application/gzip", body)
}

/// Runs Ignition's fetch stage by a pointer with a ticket and this form. The server gives these answers, and then the last one again.
/// Returns whether Ignition has the config, and the number of its requests.
fn fetch(form: &ConfigForm, replaces: bool, answers: Vec<Vec<u8>>) -> (bool, usize) {
    let folder = TestFolder::new().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &Issuer::from_params(&params, &ca_key)).unwrap();
    fs::write(file("server.crt"), leaf.pem()).unwrap();
    fs::write(file("server.key"), key.serialize_pem()).unwrap();

    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let script = move |_: &str| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        answers[number.min(answers.len() - 1)].clone()
    };
    let server = StandIn::tls(&[file("server.crt"), file("server.key")], Box::new(script)).unwrap();
    let source = json!({"source": format!("https://127.0.0.1:{}/config/worker", server.port())});
    let config = if replaces {
        json!({"replace": source})
    } else {
        json!({"merge": [source]})
    };
    let authority = format!("data:;base64,{}", BASE64.encode(ca.pem().as_bytes()));
    let security = json!({"tls": {"certificateAuthorities": [{"source": authority}]}});
    let pointer = json!({"ignition": {"version": IGNITION_SPEC, "config": config, "security": security}});
    let mut pointer = Pointer::parse(pointer.to_string().as_bytes()).unwrap();
    let place = pointer.sources()[0].place;
    pointer.set_ticket(place, "ticket.x", Some(form));
    fs::write(file("pointer.ign"), &*pointer.to_bytes()).unwrap();

    let output = Command::new(Images::fast().unwrap().ignition().unwrap())
        .args(["--platform=file", "--stage=fetch", "--log-to-stdout"])
        .arg(format!("--config-cache={}", file("cache.json").display()))
        .arg(format!("--state-file={}", file("state").display()))
        .arg(format!("--root={}", folder.path().display()))
        .env("IGNITION_CONFIG_FILE", file("pointer.ign"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let has_config = output.status.success() && {
        let cache: Value = serde_json::from_slice(&fs::read(file("cache.json")).unwrap()).unwrap();
        assert_eq!(cache["storage"]["files"][0]["path"], "/etc/state");
        true
    };
    (has_config, requests.load(Ordering::Relaxed))
}

#[track_caller]
fn check(form: &ConfigForm, answers: &[Vec<u8>], expected: (bool, usize)) {
    for replaces in [false, true] {
        assert_eq!(fetch(form, replaces, answers.to_vec()), expected, "replaces: {replaces}");
    }
}

#[test]
fn ignition_takes_the_agreed_form() {
    let (compressed, hash) = (gzip(CONFIG), sha256(CONFIG.as_bytes()));
    check(&form(true, hash.clone()), &[ok(&compressed)], (true, 1));
    check(&form(true, None), &[ok(&compressed)], (true, 1));
    check(&form(false, hash), &[ok(CONFIG.as_bytes())], (true, 1));
}

#[test]
fn ignition_refuses_any_other_form() {
    let (compressed, hash) = (gzip(CONFIG), sha256(CONFIG.as_bytes()));
    let other = CONFIG.replace("data:,full", "data:,evil");
    for body in [CONFIG.as_bytes(), gzip(&other).as_slice(), &compressed[..compressed.len() - 9], b""] {
        check(&form(true, hash.clone()), &[ok(body)], (false, 1));
    }
    check(&form(false, hash.clone()), &[ok(other.as_bytes())], (false, 1));
    check(&form(false, hash), &[ok(&compressed)], (false, 1));
    // The hash is that of the config, not of the compressed bytes.
    check(&form(true, sha256(&compressed)), &[ok(&compressed)], (false, 1));
}

#[test]
fn ignition_treats_refusals_as_without_compression() {
    let agreed = form(true, sha256(CONFIG.as_bytes()));
    let problem = response("403 Forbidden", "application/problem+json", b"{}");
    check(&agreed, &[problem, ok(&gzip(CONFIG))], (false, 1));
    let later = response("503 Service Unavailable", "text/plain", b"");
    check(&agreed, &[later.clone(), later, ok(&gzip(CONFIG))], (true, 3));
}
