//! Tests for the reading of pointers.

use attest_certificates::secret_manifest;
use data_encoding::HEXLOWER;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::PointerOptions;

fn authority() -> Certificate {
    let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
    Certificate::parse(made.cert.der().clone()).unwrap()
}

fn rendered(authority: &Certificate, spec: &str) -> String {
    let pointer = PointerOptions {
        base: &Url::parse("https://a.example:22623").unwrap(),
        pool: "worker",
        authorities: std::slice::from_ref(authority),
        token: Some("secret-token"),
    };
    pointer.render_as(spec.parse().unwrap()).unwrap().to_string()
}

#[track_caller]
fn is_ours(reading: &ReadPointer, authority: &Certificate) {
    assert!(reading.refused.is_none() && !reading.cut);
    assert_eq!(reading.certificates().collect::<Vec<_>>(), [authority]);
    let [source] = &reading.sources[..] else { panic!("one source") };
    assert_eq!(source.pool.as_deref(), Some("worker"));
    let [PointerCredential::Token(token)] = &source.credentials[..] else {
        panic!("{:?}", source.credentials)
    };
    assert_eq!(**token, "secret-token");
}

#[test]
fn written_pointer_round_trips() {
    let authority = authority();
    for spec in ["2.2.0", "3.1.0", "3.6.0"] {
        let config = rendered(&authority, spec);
        let reading = ReadPointer::parse(config.as_bytes()).unwrap();
        assert_eq!((reading.version.as_str(), &reading.form), (spec, &PointerForm::Config));
        is_ours(&reading, &authority);
        let secret = secret_manifest::secret("openshift-machine-api", "worker-user-data", &[(USER_DATA, config.as_bytes())]);
        let json = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "worker-user-data"},
            "data": {"userData": BASE64.encode(config.as_bytes())}});
        let plain = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "worker-user-data"},
            "data": {"userData": "old"}, "stringData": {"userData": config}});
        for secret in [secret.to_string(), json.to_string(), plain.to_string()] {
            let reading = ReadPointer::parse(secret.as_bytes()).unwrap();
            let name = "worker-user-data".to_owned();
            assert_eq!((reading.version.as_str(), &reading.form), (spec, &PointerForm::Secret { name }));
            is_ours(&reading, &authority);
        }
    }
}

#[test]
fn rejects_a_non_pointer_without_quoting_it() {
    let check = |text: &str, expected: &str| {
        let error = ReadPointer::parse(text.as_bytes())
            .err()
            .unwrap_or_else(|| panic!("{text}"))
            .to_string();
        assert!(error.contains(expected) && !error.contains("hunter2"), "{text}: {error}");
    };
    check("", "it");
    check("hunter2", "neither an Ignition config");
    check("[hunter2]", "neither an Ignition config");
    check("{", "cannot be read");
    check("{\"a\": hunter2}", "cannot be read");
    check("a: b: hunter2", "cannot be read");
    check("- *hunter2", "cannot be read");
    check("!hunter2 {a: b}", "it");
    check("null", "neither an Ignition config");
    check("7", "neither an Ignition config");
    check("{}", "neither an Ignition config");
    check(r#"{"ignition": "hunter2"}"#, "ignition.version");
    check(r#"{"ignition": {}}"#, "ignition.version");
    check(r#"{"ignition": {"version": 3}}"#, "ignition.version");
    check(r#"{"ignition": {"version": "1.0.0"}}"#, "\"1.0.0\"");
    check("kind: ConfigMap\napiVersion: v1\n", "ConfigMap");
    check("kind: Secret\napiVersion: v2\n", "v2");
    check("kind: Secret\napiVersion: v1\n", "there is none");
    check("kind: Secret\napiVersion: v1\ndata: hunter2\n", "there is none");
    check("kind: Secret\napiVersion: v1\ndata: {userData: 7}\n", "no text");
    check("kind: Secret\napiVersion: v1\ndata: {userData: hunter2}\n", "no base64");
    check("kind: Secret\napiVersion: v1\ndata: {userData: aGk=}\n", "no JSON");
    check("kind: Secret\napiVersion: v1\nstringData: {userData: hunter2}\n", "no JSON");
    check("kind: Secret\napiVersion: v1\nstringData: {userData: '{}'}\n", "no Ignition config");
    check(&"x".repeat(READING_LIMIT_BYTES + 1), "at most");
    check(&"[".repeat(100_000), "cannot be read");
    check(&format!("{{\"a\":{}", "[".repeat(100_000)), "cannot be read");
    let bomb: String = (1..30)
        .map(|n| format!("a{n}: &a{n} [{}]\n", format!("*a{},", n - 1).repeat(10)))
        .collect();
    check(&format!("a0: &a0 [lol]\n{bomb}"), "cannot be read");
}

fn with_authority(entry: &Value) -> ReadPointer {
    let config = json!({"ignition": {"version": "3.1.0", "security": {"tls": {"certificateAuthorities": [entry]}}}});
    ReadPointer::parse(config.to_string().as_bytes()).unwrap()
}

#[test]
fn reads_certificate_authorities() {
    let one = authority();
    let text = one.pem();
    let data = |text: &str| format!("data:text/plain;charset=utf-8;base64,{}", BASE64.encode(text.as_bytes()));
    let sum = |function, text: &str| HEXLOWER.encode(digest::digest(function, text.as_bytes()).as_ref());
    let good = |entry: &Value, count: usize| {
        let reading = with_authority(entry);
        assert_eq!(reading.certificates().count(), count, "{:?}", reading.authorities);
        assert_eq!(reading.authorities.len(), count);
    };
    good(&json!({"source": data(&text)}), 1);
    good(&json!({"source": data_url::encode(text.as_bytes())}), 1);
    good(&json!({"source": data(&text.repeat(2)), "compression": ""}), 2);
    good(
        &json!({"source": data(&text), "verification": {"hash": format!("sha256-{}", sum(&digest::SHA256, &text))}}),
        1,
    );
    good(
        &json!({"source": data(&text), "verification": {"hash": format!("sha512-{}", sum(&digest::SHA512, &text))}}),
        1,
    );
    let broken = |entry: &Value, expected: &str| {
        let reading = with_authority(entry);
        let [PointerCa::Broken(problem)] = &reading.authorities[..] else {
            panic!("{:?}", reading.authorities)
        };
        assert!(problem.contains(expected), "{problem}");
    };
    broken(&json!({}), "no source");
    broken(&json!(7), "no source");
    broken(&json!({"source": null}), "no source");
    broken(&json!({"source": "nonsense"}), "no source");
    broken(&json!({"source": "data:"}), "damaged");
    broken(&json!({"source": "data:;base64,a"}), "damaged");
    broken(&json!({"source": "data:,hello"}), "no PEM");
    broken(
        &json!({"source": data("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")}),
        "not an X.509",
    );
    broken(&json!({"source": data("-----BEGIN CERTIFICATE-----\nAA")}), "PEM");
    broken(
        &json!({"source": data(&text), "verification": {"hash": format!("sha256-{}", sum(&digest::SHA256, "x"))}}),
        "hash",
    );
    broken(&json!({"source": data(&text), "verification": {"hash": "md5-00"}}), "hash");
    broken(&json!({"source": data(&text), "verification": {"hash": "x"}}), "hash");
    let skipped = |entry: &Value, expected: &str| {
        let reading = with_authority(entry);
        let [PointerCa::NotLookedAt(why)] = &reading.authorities[..] else {
            panic!("{:?}", reading.authorities)
        };
        assert!(why.contains(expected), "{why}");
    };
    skipped(&json!({"source": "http://a/ca.pem"}), "by http at boot");
    skipped(&json!({"source": "https://a/ca.pem"}), "by https at boot");
    skipped(&json!({"source": data(&text), "compression": "gzip"}), "compressed (gzip)");
    let many = with_authority(&json!({"source": data(&text.repeat(CERTIFICATES_LIMIT + 3))}));
    assert!(many.cut && many.authorities.len() == CERTIFICATES_LIMIT);
}

#[test]
fn reads_pool_and_credentials_of_a_source() {
    let check = |entry: Value, pool: Option<&str>, credentials: &str| {
        let config = json!({"ignition": {"version": "3.1.0", "config": {"replace": entry}}});
        let reading = ReadPointer::parse(config.to_string().as_bytes()).unwrap();
        let [source] = &reading.sources[..] else { panic!("one source") };
        assert_eq!(
            (source.pool.as_deref(), format!("{:?}", source.credentials).as_str()),
            (pool, credentials)
        );
    };
    let header = |value: &str| json!({"source": "https://a/config/worker", "httpHeaders": [{"name": "authorization", "value": value}]});
    let malformed = "[the token is empty, too long, or has other than printable ASCII characters]";
    check(json!({"source": "https://a/config/worker"}), Some("worker"), "[]");
    check(json!({"source": "https://a/config/worker/"}), Some("worker"), "[]");
    check(json!({"source": "https://a/x/config/worker"}), None, "[]");
    check(json!({"source": "https://a/config/"}), None, "[]");
    check(json!({"source": "https://a/config/a%2fb"}), None, "[]");
    check(json!({"source": "nonsense"}), None, "[]");
    check(json!({"source": null}), None, "[]");
    check(json!("x"), None, "[]");
    check(json!({"source": "https://a/config/worker?token=abc"}), Some("worker"), "[Token]");
    check(
        json!({"source": "https://a/config/worker?ca=x&token=abc&token=def"}),
        Some("worker"),
        "[Token, Token]",
    );
    check(json!({"source": "https://a/config/worker?token="}), Some("worker"), malformed);
    check(header("Bearer abc"), Some("worker"), "[Token]");
    check(header("bearer ticket.abc"), Some("worker"), "[Ticket]");
    check(
        header("Basic abc"),
        Some("worker"),
        "[the Authorization header is not `Bearer` and a token]",
    );
    check(header("Bearer a b"), Some("worker"), malformed);
    let many = json!({"ignition": {"version": "2.2.0", "config": {"append": vec![json!({"source": "https://a/config/worker"}); 20]}}});
    let many = ReadPointer::parse(many.to_string().as_bytes()).unwrap();
    assert!(many.cut && many.sources.len() == SOURCES_LIMIT);
    assert_eq!(many.sources[0].place, "ignition.config.append.0");
}

#[test]
fn reports_pointers_that_ignition_refuses() {
    let refused = |text: &str| {
        ReadPointer::parse(text.as_bytes())
            .unwrap()
            .refused
            .map(|refused| refused.to_string())
    };
    assert_eq!(refused(r#"{"ignition":{"version":"3.1.0"}}"#), None);
    assert!(refused(r#"{"ignition":{"version":"3.9.0"}}"#).unwrap().contains("3.9.0"));
    let dropped = r#"{"ignition":{"version":"3.0.0","config":{"merge":[{"source":"https://a/config/b","httpHeaders":[{"name":"Authorization","value":"Bearer hunter2"}]}]}}}"#;
    let dropped = refused(dropped).unwrap();
    assert!(dropped.contains("httpHeaders") && !dropped.contains("hunter2"), "{dropped}");
}

proptest! {
    #[test]
    fn attack_23_garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        drop(ReadPointer::parse(&bytes));
    }

    #[test]
    fn attack_23_damaged_pointers_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let good = r#"{"ignition":{"version":"3.1.0","config":{"merge":[{"source":"https://[::1]:2/config/worker?ca=1&token=b","httpHeaders":[{"name":"Authorization","value":"Bearer a"}]}]},"security":{"tls":{"certificateAuthorities":[{"source":"data:;base64,LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BPT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="}]}}}}"#;
        let mut bytes = good.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        drop(ReadPointer::parse(&bytes));
        bytes.truncate(cut.index(bytes.len()));
        drop(ReadPointer::parse(&bytes));
    }
}
