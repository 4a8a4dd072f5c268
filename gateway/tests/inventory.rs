//! `certificates`: every certificate and key in use.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::Gateway;
use attest_certificates::source;
use serde_json::Value;

/// Returns whether `certificates` succeeds, and its JSON output.
fn certificates(gateway: &Gateway) -> (bool, Vec<Value>) {
    let output = gateway.try_command(&["certificate", "list", "--output", "json"]);
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status.success(), serde_json::from_slice(&output.stdout).unwrap())
}

fn names(items: &[Value]) -> Vec<&str> {
    items.iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[test]
fn every_certificate_and_key_in_play_is_listed() {
    let gateway = Gateway::init();
    let ca = source::certificates(&gateway.path("tls/mcs-ca.crt")).unwrap()[0]
        .fingerprint
        .short();
    let mcs_ca = format!("MCS CA {ca}");
    let (good, items) = certificates(&gateway);
    assert!(good, "{items:?}");
    assert_eq!(
        names(&items),
        [&mcs_ca, "MCS certificate", "MCS key", "CA key", "seal key", "log key"]
    );
    for item in &items {
        for field in ["purpose", "made", "place", "fails", "rotates"] {
            assert!(item[field].as_str().is_some_and(|text| text.len() > 8), "{field} in {item}");
        }
    }
    assert!(items[0]["made"].as_str().unwrap().contains("self-signed") && items[0]["made"].as_str().unwrap().contains("mcs-ca.key"));
    assert!(items[1]["made"].as_str().unwrap().contains("localhost") && items[1]["place"].as_str().unwrap().contains("0644"));
    assert_eq!((&items[3]["state"], &items[4]["state"]), (&"good".into(), &"not here".into()));

    let text = gateway.command(&["certificate", "list"]);
    let table: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert!(
        table[0].starts_with("NAME") && table[0].ends_with("STATE") && table.len() == 7,
        "{text}"
    );
    assert!(
        table[1].starts_with(&mcs_ca) && table[1].contains("years") && table[1].ends_with("good"),
        "{text}"
    );
    for word in ["for ", "made ", "lies ", "fails ", "expires ", "rotates "] {
        assert_eq!(text.lines().filter(|line| line.trim_start().starts_with(word)).count(), 6, "{word}");
    }
    assert!(!text.contains("PRIVATE KEY"));

    // The CA's key is put away; a second CA is introduced; kubelets, makers of TPMs and another server come into play.
    let other = Gateway::init();
    fs::remove_file(gateway.path("tls/mcs-ca.key")).unwrap();
    let bundle = [
        fs::read(gateway.path("tls/mcs-ca.crt")).unwrap(),
        fs::read(other.path("tls/mcs-ca.crt")).unwrap(),
    ]
    .concat();
    fs::write(gateway.path("tls/mcs-ca.crt"), &bundle).unwrap();
    fs::copy(other.path("tls/mcs-ca.key"), gateway.path("tls/mcs-ca-next.key")).unwrap();
    fs::copy(other.path("tls/mcs-ca.crt"), gateway.path("tls/kubelet.crt")).unwrap();
    fs::copy(other.path("tls/mcs-ca.crt"), gateway.path("ek-roots/maker.crt")).unwrap();
    fs::copy(other.path("tls/mcs-ca.crt"), gateway.path("pools/worker/upstream.crt")).unwrap();
    gateway.settings("[tls]\nclient_ca = \"tls/kubelet.crt\"");
    let pin = "ab".repeat(32);
    let upstream = format!("\n[upstream]\nurl = \"https://mcs.example:22623\"\nca = \"upstream.crt\"\nkeys_sha256 = [\"{pin}\"]\n");
    let pool = gateway.path("pools/worker/pool.toml");
    fs::write(&pool, fs::read_to_string(&pool).unwrap() + &upstream).unwrap();
    let next = source::certificates(&other.path("tls/mcs-ca.crt")).unwrap()[0].fingerprint.short();
    let (good, items) = certificates(&gateway);
    assert!(good, "{items:?}");
    let expected = [
        mcs_ca,
        format!("MCS CA {next}"),
        "MCS certificate".to_owned(),
        "MCS key".to_owned(),
        "CA key".to_owned(),
        "next CA key".to_owned(),
        "seal key".to_owned(),
        "log key".to_owned(),
        format!("kubelet client CA {next}"),
        format!("EK root {next}"),
        format!("upstream CA of pool worker {next}"),
        format!("upstream key of pool worker {}", &pin[..16]),
    ];
    assert_eq!(names(&items), expected);
    let says = |index: usize, field: &str, expected: &str| {
        let text = items[index][field].as_str().unwrap();
        assert!(text.contains(expected), "{expected:?} is not in {text:?}");
    };
    says(0, "rotates", "being replaced");
    says(0, "made", "not on this machine");
    says(1, "rotates", "introduced");
    says(1, "made", "mcs-ca-next.key");
    says(4, "state", "not here");
    says(5, "made", &next);
}

#[test]
fn certificate_list_reports_broken_files() {
    let broken = |change: &dyn Fn(&Gateway), name: &str, problem: &str| {
        let gateway = Gateway::init();
        change(&gateway);
        let (good, items) = certificates(&gateway);
        assert!(!good && items.len() >= 5, "{items:?}");
        let item = items
            .iter()
            .find(|item| item["name"] == name)
            .unwrap_or_else(|| panic!("{items:?}"));
        assert_eq!(item["state"], "broken");
        assert!(item["problem"].as_str().unwrap().contains(problem), "{item}");
        let text = String::from_utf8(gateway.try_command(&["certificate", "list"]).stdout).unwrap();
        assert!(
            text.lines().any(|line| line.starts_with("  BROKEN ") && line.contains(problem)),
            "{text}"
        );
    };
    let write = |path: &'static str, text: &'static str| move |gateway: &Gateway| fs::write(gateway.path(path), text).unwrap();
    let remove = |path: &'static str| move |gateway: &Gateway| fs::remove_file(gateway.path(path)).unwrap();
    let chmod =
        |path: &'static str| move |gateway: &Gateway| fs::set_permissions(gateway.path(path), fs::Permissions::from_mode(0o640)).unwrap();
    broken(&write("tls/mcs-ca.crt", "garbage"), "MCS CA", "is neither PEM nor a manifest");
    broken(&remove("tls/mcs-ca.crt"), "MCS CA", "mcs-ca.crt");
    broken(&write("tls/mcs.crt", ""), "MCS certificate", "is empty");
    broken(&remove("tls/mcs.crt"), "MCS certificate", "mcs.crt");
    broken(&remove("tls/mcs.key"), "MCS key", "mcs.key");
    broken(&write("tls/mcs.key", "garbage"), "MCS key", "is neither PEM nor a manifest");
    broken(&chmod("tls/mcs.key"), "MCS key", "0640");
    broken(&chmod("tls/mcs-ca.key"), "CA key", "0640");
    broken(&write("tls/mcs-ca.key", "garbage"), "CA key", "is neither PEM nor a manifest");
    broken(&write("state/seal.key", "short"), "seal key", "seal.key");
    broken(&write("state/log.key", "short"), "log key", "log.key");
    broken(
        &|gateway| gateway.settings("[store]\nkey_file = \"store.key\""),
        "store key",
        "store.key",
    );
    broken(&write("ek-roots/maker.der", "garbage"), "EK root", "certificate");
    broken(
        &write("pools/infra/pool.toml", "[upstream]\nurl = 7"),
        "upstream of pool infra",
        "expected a string",
    );
    broken(
        &|gateway| gateway.settings("[tls]\nclient_ca = \"nowhere\""),
        "kubelet client CA",
        "nowhere",
    );
    let another = |gateway: &Gateway| {
        fs::copy(Gateway::init().path("tls/mcs.key"), gateway.path("tls/mcs.key")).unwrap();
    };
    broken(&another, "MCS certificate", "mcs.key does not hold the private key of");
    let untrusted = |gateway: &Gateway| {
        fs::copy(Gateway::init().path("tls/mcs-ca.crt"), gateway.path("tls/mcs-ca.crt")).unwrap();
    };
    broken(&untrusted, "MCS certificate", "refuse");
}

#[test]
fn certificate_list_reports_expired_and_expiring_certificates() {
    let gateway = Gateway::init();
    let state = |from: i64, until: i64| {
        let day = |days: i64| time::OffsetDateTime::now_utc() + time::Duration::days(days);
        let (ca_key, key) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        let mut ca = rcgen::CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let mut leaf = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (leaf.not_before, leaf.not_after) = (day(from), day(until));
        let made = leaf.signed_by(&key, &rcgen::Issuer::from_params(&ca, &ca_key)).unwrap();
        fs::write(gateway.path("tls/mcs-ca.crt"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
        fs::write(gateway.path("tls/mcs.crt"), made.pem()).unwrap();
        fs::write(gateway.path("tls/mcs.key"), key.serialize_pem()).unwrap();
        let (good, items) = certificates(&gateway);
        (good, items[1]["state"].as_str().unwrap().to_owned())
    };
    assert_eq!(state(-2, 100), (true, "good".to_owned()));
    assert_eq!(state(-2, 59), (true, "expires soon".to_owned()));
    assert_eq!(state(-2, -1), (false, "expired".to_owned()));
    assert_eq!(state(1, 100), (false, "not yet valid".to_owned()));
}
