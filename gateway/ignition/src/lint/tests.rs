//! Tests that secrets are found in every place and encoding.

mod text;

use std::io::Write as _;

use data_encoding::{BASE64, BASE64URL_NOPAD};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::json;

use super::*;

// No secret stands here as such: each is put together when a test runs, so that scanners of repositories stay quiet.

fn pem(label: &str) -> String {
    format!(
        "-----BEGIN {label}-----\nMAoGCCqGSM49BAMC\n-----END {label}-----\n",
        label = label.replace('+', " PRIVATE KEY")
    )
}

fn jwt(header: &str) -> String {
    format!(
        "{}.{}.c2lnbmF0dXJlLW9mLW5vdGhpbmc",
        BASE64URL_NOPAD.encode(header.as_bytes()),
        BASE64URL_NOPAD.encode(b"{\"sub\":\"nobody\"}")
    )
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn base64_url(bytes: &[u8]) -> String {
    format!("data:;base64,{}", BASE64.encode(bytes))
}

/// Returns a config with these fields, also one that Ignition would refuse: the lint must not rely on that.
fn config(value: Value) -> Config {
    let Value::Object(fields) = value else {
        unreachable!("a config is an object")
    };
    Config::held(fields)
}

fn names(value: Value) -> Vec<String> {
    lint(&config(value), &[]).iter().map(ToString::to_string).collect()
}

fn file(source: &str) -> Value {
    json!({"storage": {"files": [{"path": "/f", "contents": {"source": source}}]}})
}

fn kinds(text: &str) -> Vec<String> {
    names(file(&data_url::encode(text.as_bytes())))
        .iter()
        .map(|name| name.strip_suffix(" /f").unwrap().to_owned())
        .collect()
}

#[track_caller]
fn found(text: &str, expected: SecretKind) {
    let name = expected.to_string();
    assert!(kinds(text).contains(&name), "{text}\n{:?}", kinds(text));
}

#[track_caller]
fn clean(text: &str) {
    assert_eq!(kinds(text), Vec::<String>::new(), "{text}");
}

/// Returns a secret and a harmless twin of every kind that text can have.
fn samples() -> Vec<(SecretKind, String, String)> {
    let sample = |kind, secret: &str, harmless: &str| (kind, secret.to_owned(), harmless.to_owned());
    let hash = format!("${}$rounds=5000$saltsalt${}", 6, "a".repeat(86));
    vec![
        sample(SecretKind::PrivateKey, &pem("EC+"), &pem("EC PUBLIC KEY")),
        sample(
            SecretKind::KubeconfigCredential,
            "kind: Config\nusers:\n- name: a\n  user:\n    token: abcdef0123\n",
            "kind: Config\nusers:\n- name: a\n  user:\n    tokenFile: /var/lib/token\n    client-certificate: /a.pem\n    client-key: /a.key\n",
        ),
        sample(
            SecretKind::SecretManifest,
            "apiVersion: v1\nkind: Secret\ndata:\n  a: aHVudGVyMg==\n",
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\n",
        ),
        sample(SecretKind::Token, &jwt("{\"alg\":\"RS256\"}"), &jwt("{\"a\":\"b\",\"c\":1}")),
        sample(
            SecretKind::RegistryPassword,
            "{\"auths\":{\"quay.io\":{\"auth\":\"dXNlcjpodW50ZXIy\"}}}",
            "{\"auths\":{\"quay.io\":{\"auth\":\"\"}}}",
        ),
        sample(
            SecretKind::CloudKey,
            &format!("[default]\nid = {}{}\n", "AKIA", "ABCDEFGHIJKLMNOP"),
            "[default]\nid = AKIAabc\n",
        ),
        sample(
            SecretKind::PasswordHash,
            &format!("root:{hash}:1::::::\n"),
            "root:!!:1::::::\nbin:*:1::::::\n",
        ),
        sample(SecretKind::Password, "db_password = hunter2\n", "db_password = ${DB_PASSWORD}\n"),
        sample(
            SecretKind::UrlPassword,
            "HTTP_PROXY=http://me:hunter2@proxy:3128\n",
            "HTTP_PROXY=http://me@proxy:3128\n",
        ),
        sample(
            SecretKind::UrlToken,
            "wget 'https://example.com/a?se=1&sig=abcdefghijklmnop%3D'\n",
            "wget 'https://example.com/a?se=1&sig=$SIG'\n",
        ),
        sample(
            SecretKind::AuthorizationHeader,
            "curl -H \"Authorization: Basic dXNlcjpodW50ZXIy\" x\n",
            "curl -H \"Authorization: Basic $AUTH\" x\n",
        ),
    ]
}

#[test]
fn every_pattern_compiles() {
    PATTERNS.as_ref().unwrap();
}

#[test]
fn finds_every_secret_kind_in_every_encoding() {
    for (kind, secret, harmless) in samples() {
        let carried = |text: &str| {
            let bytes = text.as_bytes();
            let compressed = json!({"source": base64_url(&gzip(bytes)), "compression": "gzip"});
            vec![
                ("plain", file(&data_url::encode(bytes))),
                ("base64", file(&base64_url(bytes))),
                ("gzip", json!({"storage": {"files": [{"path": "/f", "contents": compressed}]}})),
                ("gzip that is not said", file(&base64_url(&gzip(bytes)))),
                (
                    "appended",
                    json!({"storage": {"files": [{"path": "/f", "append": [{"source": "data:,"}, compressed]}]}}),
                ),
                ("unit", json!({"systemd": {"units": [{"name": "/f", "contents": text}]}})),
                ("kernel argument", json!({"kernelArguments": {"shouldExist": [text]}})),
                (
                    "encoded within",
                    file(&data_url::encode(
                        format!("a: {}\n", BASE64.encode(format!("{text:80}").as_bytes())).as_bytes(),
                    )),
                ),
                (
                    "in JSON",
                    file(&data_url::encode(json!({"a": [{"b": text}]}).to_string().as_bytes())),
                ),
                (
                    "a data URL within",
                    file(&data_url::encode(format!("{{\"a\":\"{}\"}}", data_url::encode(bytes)).as_bytes())),
                ),
            ]
        };
        for (how, value) in carried(&secret) {
            let names = names(value);
            assert!(
                names.iter().any(|name| name.starts_with(&format!("{kind} "))),
                "{kind}, {how}: {names:?}"
            );
        }
        for (how, value) in carried(&harmless) {
            assert_eq!(names(value), Vec::<String>::new(), "{kind}, {how}: {harmless}");
        }
    }
}

#[test]
fn findings_name_their_location() {
    let secret = "token=abcdef0123456789";
    let source = data_url::encode(secret.as_bytes());
    let check = |value: Value, expected: &[&str]| assert_eq!(names(value), expected);
    check(file(&source), &["token /f"]);
    check(json!({"storage": {"links": [{"path": "/l", "target": secret}]}}), &["token /l"]);
    check(
        json!({"systemd": {"units": [{"name": "a.service", "contents": secret}]}}),
        &["token a.service"],
    );
    check(
        json!({"systemd": {"units": [{"name": "a.service", "dropins": [{"name": "b.conf", "contents": secret}]}]}}),
        &["token a.service/b.conf"],
    );
    check(json!({"kernelArguments": {"shouldExist": [secret]}}), &["token kernel-arguments"]);
    check(
        json!({"kernelArguments": {"shouldNotExist": [secret]}}),
        &["token kernel-arguments"],
    );
    check(
        json!({"passwd": {"users": [{"name": "core", "gecos": secret}]}}),
        &["token user core"],
    );
    check(
        json!({"storage": {"filesystems": [{"device": "/dev/a", "mountOptions": [secret]}]}}),
        &["token filesystem /dev/a"],
    );
    check(
        json!({"storage": {"files": [{"path": "/a\nb", "contents": {"source": source}}]}}),
        &["token /a\\nb"],
    );
    let nested = |inner: Value| json!({"ignition": {"config": {"merge": [{"source": data_url::encode(&serde_json::to_vec(config(inner).value()).unwrap())}]}}});
    check(nested(file(&source)), &["token /f"]);
    check(nested(nested(file(&source))), &["token /f"]);
    check(nested(file("data:,a")), &[]);
    check(
        (0..6).fold(file("data:,a"), |inner, _| nested(inner)),
        &["unreadable ignition.config"],
    );
    let finding = lint(&config(file(&source)), &[]).pop_first().unwrap();
    assert!(!format!("{finding} {finding:?}").contains("abcdef"));
    assert!(lint(&config(file(&source)), &["/f"]).is_empty());
    assert!(!lint(&config(file(&source)), &["/g"]).is_empty());
}

#[test]
fn finds_secrets_of_users_disks_and_headers() {
    let check = |value: Value, expected: &[&str]| assert_eq!(names(value), expected);
    let user =
        |hash: &str| json!({"passwd": {"users": [{"name": "core", "passwordHash": hash}], "groups": [{"name": "g", "passwordHash": "*"}]}});
    check(user("$6$a$b"), &["password-hash user core"]);
    check(user("!$6$a$b"), &["password-hash user core"]);
    for locked in ["", "*", "!", "!!", "!*"] {
        check(user(locked), &[]);
    }
    check(
        json!({"passwd": {"groups": [{"name": "g", "passwordHash": "abc"}]}}),
        &["password-hash group g"],
    );
    let luks = |luks: Value| json!({"storage": {"luks": [luks]}});
    check(
        luks(json!({"name": "r", "device": "/d", "keyFile": {"source": "data:,a"}})),
        &["disk-key luks r"],
    );
    check(
        luks(json!({"name": "r", "device": "/d", "keyFile": {"source": "https://a/key"}})),
        &[],
    );
    check(
        luks(json!({"name": "r", "device": "/d", "clevis": {"tpm2": true, "tang": [{"url": "http://a:b@c", "thumbprint": "x"}]}})),
        &["url-password luks r"],
    );
    check(
        luks(json!({"name": "r", "device": "/d", "clevis": {"tang": [{"url": "http://c", "thumbprint": "x"}]}})),
        &[],
    );
    let custom = |config: &str| luks(json!({"name": "r", "device": "/d", "clevis": {"custom": {"pin": "sss", "config": config}}}));
    check(custom("{\"kty\":\"oct\",\"k\":\"abc\"}"), &["private-key luks r"]);
    check(custom("{\"t\":1,\"pins\":{\"tang\":[{\"url\":\"http://a\"}]}}"), &[]);
    let source = |source: &str, headers: Value| json!({"ignition": {"config": {"merge": [{"source": source, "httpHeaders": headers}]}}});
    for header in ["Authorization", "cookie", "X-Auth-Token", "Private-Token", "x-api-key"] {
        check(
            source("https://a/", json!([{"name": header, "value": "a"}])),
            &["authorization-header ignition.config"],
        );
    }
    for header in ["Accept", "User-Agent", "Metadata-Flavor", "X-aws-ec2-metadata-token-ttl-seconds"] {
        check(source("https://a/", json!([{"name": header, "value": "a"}])), &[]);
    }
    for url in ["https://a/?token=b", "https://a/b?X-Amz-Signature=c", "https://a/b?sv=1&sig=c"] {
        check(source(url, json!([])), &["url-token ignition.config"]);
    }
    check(source("https://a:b@c/", json!([])), &["url-password ignition.config"]);
    check(source("https://a/?version=b&token=", json!([])), &[]);
    check(
        json!({"ignition": {"proxy": {"httpsProxy": "https://a:b@c", "noProxy": ["d"]}}}),
        &["url-password ignition.proxy"],
    );
    check(json!({"ignition": {"proxy": {"httpsProxy": "https://c"}}}), &[]);
    let authority = |label: &str| json!({"ignition": {"security": {"tls": {"certificateAuthorities": [{"source": data_url::encode(pem(label).as_bytes())}]}}}});
    check(authority("EC+"), &["private-key ignition.security"]);
    check(authority("CERTIFICATE"), &[]);
}

#[test]
fn unreadable_content_is_a_finding() {
    let unreadable = |value: Value| assert_eq!(names(value), ["unreadable /f"]);
    let gzipped = |source: &str| json!({"storage": {"files": [{"path": "/f", "contents": {"source": source, "compression": "gzip"}}]}});
    unreadable(file("data:;base64,YQ="));
    unreadable(file("data:,%zz"));
    unreadable(gzipped("data:,a"));
    unreadable(gzipped(&base64_url(&gzip(&vec![b'a'; 17 * 1024 * 1024]))));
    unreadable(file(&base64_url(b"PK\x03\x04abc")));
    unreadable(file(&base64_url(b"\x1f\x8b\x08abc")));
    assert!(names(gzipped(&base64_url(&gzip(&vec![b'a'; 1024])))).is_empty());
    assert!(names(file("https://example.com/a.zip")).is_empty());
}

#[test]
fn a_budget_bounds_the_work() {
    let patterns = PATTERNS.as_ref().unwrap();
    let mut look = ContentScan::new(patterns);
    look.spend_all_but(10);
    assert!(look.text(b"password").is_empty());
    assert_eq!(look.text(b"password"), BTreeSet::from([SecretKind::Unreadable]));
}

#[test]
fn scans_large_contents_in_linear_time() {
    // Each is the worst case of some step: if one were quadratic, this test would not end.
    const LENGTH: usize = 1024 * 1024;
    for piece in [
        "a",
        "token ",
        "password=",
        "://:",
        "eyJ",
        "A.",
        "-",
        "\"",
        "/",
        "\n",
        "data:",
        "kind: Secret\n",
        "[",
        "token: {",
        "$6$",
        "echo a:",
    ] {
        let text = piece.repeat(LENGTH / piece.len());
        let patterns = PATTERNS.as_ref().unwrap();
        _ = ContentScan::new(patterns).contents(text.as_bytes());
    }
}

#[test]
fn the_sample_is_clean() {
    let sample = Config::parse(include_bytes!("../../../dist/pre-approved.ign")).unwrap();
    assert!(lint(&sample, &[]).is_empty());
}

#[test]
fn kinds_have_names() {
    let names: BTreeSet<&str> = SecretKind::ALL.iter().map(|kind| kind.as_str()).collect();
    assert_eq!(names.len(), SecretKind::ALL.len());
    assert!(SecretKind::ALL.iter().all(|kind| !kind.what().is_empty()));
}

proptest! {
    #[test]
    fn arbitrary_contents_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        names(file(&base64_url(&bytes)));
        names(file(&data_url::encode(&bytes)));
    }

    #[test]
    fn secret_like_text_never_panics(
        text in r#"((pass|token|[a-z]{1,3}|secret: |kind: (Config|Secret)\n|eyJ|://|@|=|:|"|'|\\|\||\$|%|\n| |#|[A-Za-z0-9+/]{40,50}|data:,)){0,40}"#
    ) {
        kinds(&text);
    }
}
