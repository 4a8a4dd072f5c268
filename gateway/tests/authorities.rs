//! Commands that make and rotate CAs and certificates, with a check of all their files by openssl.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Gateway, now, program};
use attest_certificates::{Certificate, source};
use attest_gateway::pki::issue::{self, SigningKey};
use attest_gateway::pki::{Algorithm, CertificateRequest, GatewayNames};
use attest_gateway::sightings::Sighting;
use attest_store::{Embedded, EntryKind, Store, StoreEntry};
use attest_system::clock::Clock;

fn openssl(arguments: &[&str]) -> String {
    let output = Command::new("openssl").args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("openssl, the command line tool (.ci/debian-packages): {error}"));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "openssl {arguments:?}: {said}");
    said
}

/// Verifies that openssl, at its strictest, accepts the CA and the certificate for each of these names, and the key for the certificate.
fn verify(ca: &Path, certificate: &Path, key: &Path, hosts: &[&str], addresses: &[&str]) {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (ca, certificate, key) = (text(ca), text(certificate), text(key));
    let strict = ["verify", "-x509_strict", "-check_ss_sig", "-CAfile", &ca];
    openssl(&[&strict[..], &[ca.as_str()]].concat());
    let server = [&strict[..], &["-purpose", "sslserver"]].concat();
    for (flag, names) in [("-verify_hostname", hosts), ("-verify_ip", addresses)] {
        for name in names {
            openssl(&[&server[..], &[flag, name, certificate.as_str()]].concat());
        }
    }
    openssl(&["pkey", "-check", "-noout", "-in", &key]);
    assert_eq!(
        openssl(&["pkey", "-pubout", "-in", &key]),
        openssl(&["x509", "-pubkey", "-noout", "-in", &certificate])
    );
    let extensions = openssl(&["x509", "-noout", "-text", "-in", &certificate]);
    for wanted in [
        "Subject Key Identifier",
        "Authority Key Identifier",
        "TLS Web Server Authentication",
        "CA:FALSE",
        "Digital Signature",
    ] {
        assert!(extensions.contains(wanted), "no {wanted} in {extensions}");
    }
    assert_eq!(
        extensions.contains("Key Encipherment"),
        extensions.contains("rsaEncryption"),
        "{extensions}"
    );
}

#[test]
fn openssl_verifies_every_issued_certificate_algorithm() {
    let folder = tempfile::tempdir().unwrap();
    let now = Clock::System.now();
    let names = GatewayNames {
        hosts: vec!["api-int.example.com".to_owned()],
        addresses: vec![IpAddr::from(Ipv4Addr::new(192, 0, 2, 5)), IpAddr::from(Ipv6Addr::LOCALHOST)],
    };
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    for of_ca in Algorithm::ALL {
        let ca = issue::authority(&issue::authority_name(now), SigningKey::generate(of_ca).unwrap(), 30, now).unwrap();
        assert_eq!(ca.certificate.key_kind, of_ca.key_kind());
        let ca_file = file("ca.crt", &ca.certificate.pem());
        for algorithm in Algorithm::ALL {
            // RSA keys take seconds to find: each kind once with its own and with another.
            if of_ca != Algorithm::EcdsaP256 && algorithm != Algorithm::EcdsaP256 && algorithm != of_ca {
                continue;
            }
            let made = issue::serving(&ca.certificate, &ca.key, &names, &CertificateRequest { algorithm, days: 20 }, now).unwrap();
            assert_eq!(made.certificate.key_kind, algorithm.key_kind());
            let certificate = file("leaf.crt", &made.certificate.pem());
            let key = file("leaf.key", &made.key.pem());
            verify(&ca_file, &certificate, &key, &["api-int.example.com"], &["192.0.2.5", "::1"]);
        }
    }
}

/// Verifies that openssl accepts the certificates in the gateway's folder.
fn verify_folder(gateway: &Gateway) {
    let path = |name: &str| gateway.path(name);
    verify(
        &path("tls/mcs-ca.crt"),
        &path("tls/mcs.crt"),
        &path("tls/mcs.key"),
        &["localhost"],
        &["127.0.0.1"],
    );
    gateway.command(&["check"]);
}

fn authorities(gateway: &Gateway) -> Vec<Certificate> {
    source::authorities(&gateway.path("tls/mcs-ca.crt")).unwrap()
}

fn refused(gateway: &Gateway, arguments: &[&str], expected: &str) {
    let output = gateway.try_command(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(expected), "{arguments:?}: {said}");
}

#[test]
fn rotates_the_ca_by_commands() {
    let gateway = Gateway::init();
    verify_folder(&gateway);
    let status = |stage: &str, next: &str| {
        let said = gateway.command(&["ca", "status"]);
        assert!(said.starts_with(&format!("stage: {stage}")) && said.contains(next), "{said}");
    };
    let mode = |name: &str| fs::metadata(gateway.path(name)).unwrap().permissions().mode() & 0o777;
    status("settled", "ca introduce`, at any time");
    refused(&gateway, &["ca", "switch"], "add a second CA first");
    refused(&gateway, &["ca", "retire"], "there is no CA to retire");

    let said = gateway.command(&["certificate", "renew", "--algorithm", "rsa-2048", "--days", "400"]);
    assert!(said.contains("RSA 2048") && said.contains("localhost, 127.0.0.1"), "{said}");
    verify_folder(&gateway);

    let old = authorities(&gateway)[0].clone();
    refused(
        &gateway,
        &["ca", "introduce", "--name", old.subject.trim_start_matches("CN=")],
        "use another --name",
    );
    gateway.command(&["ca", "introduce", "--days", "500"]);
    let new = authorities(&gateway)[1].clone();
    assert_ne!(old.subject, new.subject);
    assert_eq!(mode("tls/mcs-ca-next.key"), 0o600);
    verify_folder(&gateway);
    status("introduced", "unknown whether safe");
    refused(&gateway, &["ca", "introduce"], "holds 2 CAs already");
    refused(&gateway, &["ca", "retire"], "the older CA still signs the certificate");
    // The older CA signs still.
    gateway.command(&["certificate", "renew"]);
    assert_eq!(source::certificates(&gateway.path("tls/mcs.crt")).unwrap()[0].issuer, old.subject);

    gateway.command(&["ca", "switch"]);
    verify_folder(&gateway);
    status("switched", "ca retire`");
    let leaf = source::certificates(&gateway.path("tls/mcs.crt")).unwrap()[0].clone();
    // As it was: the names and the kind of key.
    assert_eq!((leaf.issuer, leaf.key_kind.as_str()), (new.subject.clone(), "RSA 2048"));
    assert_eq!(leaf.names, ["localhost", "127.0.0.1"]);
    refused(&gateway, &["ca", "switch"], "the newest CA signs the certificate already");

    let said = gateway.command(&["ca", "retire"]);
    assert!(said.contains("mcs-ca-old.key") && said.contains("mcs-ca.key"), "{said}");
    verify_folder(&gateway);
    status("settled", "ca introduce`, at any time");
    assert_eq!(authorities(&gateway), [new]);
    assert!(!gateway.path("tls/mcs-ca-next.key").exists());
    // By the key in its new place.
    gateway.command(&["certificate", "renew", "--host", "api-int.example.com"]);
    let names = source::certificates(&gateway.path("tls/mcs.crt")).unwrap()[0].names.clone();
    assert_eq!(names, ["api-int.example.com"]);
    // More than these commands have made.
    let stray = Gateway::init();
    let all: String = [&gateway, &stray, &Gateway::init()]
        .map(|gateway| authorities(gateway)[0].pem())
        .concat();
    fs::write(gateway.path("tls/mcs-ca.crt"), all).unwrap();
    status("foreign", "holds 3 CAs");
    refused(&gateway, &["ca", "retire"], "--force");
    gateway.command(&["ca", "retire", "--force"]);
    assert_eq!(authorities(&gateway).len(), 1);
}

fn add_sighting(gateway: &Gateway, id: &str, authorities: Option<&[&str]>, accepted: &str, ago: u64) {
    let sighting = Sighting {
        pool: "worker".to_owned(),
        authorities: authorities.map(|all| all.iter().map(|ca| (*ca).to_owned()).collect()),
        accepted: accepted.to_owned(),
        first: now() - ago,
        last: now() - ago,
        peer: format!("192.0.2.{id}"),
    };
    let entry = StoreEntry {
        id: id.to_owned(),
        value: serde_json::to_string(&sighting).unwrap(),
    };
    let store = Embedded::open(&gateway.path("state/gateway.db")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(store.put(EntryKind::Pointer, entry)).unwrap();
}

#[test]
fn ca_status_names_pointers_that_block_the_switch() {
    let gateway = Gateway::init();
    gateway.command(&["ca", "introduce"]);
    let [old, new] = [0, 1].map(|number: usize| authorities(&gateway)[number].fingerprint.short());
    add_sighting(&gateway, "1", Some(&[&old, &new]), &old, 0);
    let said = gateway.command(&["ca", "status"]);
    assert!(said.contains(" ca switch`, safe: ") && said.contains("192.0.2.1"), "{said}");
    add_sighting(&gateway, "2", Some(&[&old]), &old, 3 * 86_400);
    let said = gateway.command(&["ca", "status"]);
    assert!(
        said.contains("NOT SAFE") && said.split("NOT SAFE").nth(1).unwrap().contains("192.0.2.2"),
        "{said}"
    );
    refused(&gateway, &["ca", "switch"], "192.0.2.2");
    assert!(gateway.command(&["ca", "status", "--within", "2d"]).contains(" ca switch`, safe: "));
    add_sighting(&gateway, "3", None, &old, 40 * 86_400);
    gateway.command(&["ca", "switch", "--within", "2d"]);
    // Nobody knows what has become of that one.
    refused(&gateway, &["ca", "retire"], "192.0.2.2");
    add_sighting(&gateway, "2", None, &new, 0);
    gateway.command(&["ca", "retire"]);
    assert_eq!(authorities(&gateway).len(), 1);
    add_sighting(&gateway, "4", None, &old, 0);
    assert!(gateway.command(&["ca", "status"]).contains("everything keeps working"));
}

/// Creates a CA with `ca create`.
fn created(folder: &Path, arguments: &[&str]) -> (PathBuf, PathBuf) {
    let (certificate, key) = (folder.join("ca.crt"), folder.join("ca.key"));
    let output = program()
        .args(["ca", "create", "--out"])
        .arg(&certificate)
        .arg("--key-out")
        .arg(&key)
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (certificate, key)
}

fn init(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let output = program().arg("init").arg(folder).args(arguments).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.success(), said)
}

#[test]
fn init_uses_a_given_ca_and_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, ca_key) = created(
        folder.path(),
        &["--algorithm", "rsa-3072", "--name", "Example MCS CA", "--days", "900"],
    );
    assert_eq!(fs::metadata(&ca_key).unwrap().permissions().mode() & 0o777, 0o600);
    let (ca, ca_key) = (ca.to_str().unwrap(), ca_key.to_str().unwrap());
    let check = |name: &str, arguments: &[&str], expected: Result<&str, &str>| {
        let path = folder.path().join(name);
        let (success, said) = init(&path, arguments);
        let (wanted, text) = match expected {
            Ok(text) => (true, text),
            Err(text) => (false, text),
        };
        assert!(success == wanted && said.contains(text), "{arguments:?}: {said}");
        assert_eq!(path.join("gateway.toml").exists(), wanted);
        path
    };
    let by_key = check(
        "by-key",
        &["--ca", ca, "--ca-key", ca_key, "--host", "localhost", "--algorithm", "rsa-2048"],
        Ok("private key was not copied"),
    );
    let tls = |name: &str| by_key.join("tls").join(name);
    verify(&tls("mcs-ca.crt"), &tls("mcs.crt"), &tls("mcs.key"), &["localhost"], &[]);
    assert!(!tls("mcs-ca.key").exists());
    let (certificate, key) = (tls("mcs.crt"), tls("mcs.key"));
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let brought = check(
        "brought",
        &["--ca", ca, "--certificate", certificate, "--key", key],
        Ok("cannot sign certificates"),
    );
    let tls = |name: &str| brought.join("tls").join(name);
    verify(&tls("mcs-ca.crt"), &tls("mcs.crt"), &tls("mcs.key"), &["localhost"], &[]);
    let out = folder.path().join("out.key");
    let out = out.to_str().unwrap();
    let elsewhere = check(
        "elsewhere",
        &["--host", "localhost", "--ca-key-out", out],
        Ok("out.key. To renew the certificate"),
    );
    assert!(!elsewhere.join("tls/mcs-ca.key").exists());
    check(
        "kept",
        &["--host", "localhost", "--ca-name", "Mine"],
        Ok("an intruder on this machine could sign certificates"),
    );

    // The key of elsewhere renews, others do not.
    let renew_in = |folder: &Path, arguments: &[&str]| {
        let output = program()
            .arg("--config")
            .arg(folder.join("gateway.toml"))
            .args(["certificate", "renew"])
            .args(arguments)
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let renew = |arguments: &[&str]| renew_in(&elsewhere, arguments);
    let (success, said) = renew(&[]);
    assert!(!success && said.contains("--ca-key FILE") && said.contains("mcs-ca.key"), "{said}");
    assert!(!renew(&["--ca-key", ca_key]).0);
    assert!(renew(&["--ca-key", out]).0);
    let (success, said) = renew(&["--certificate", certificate, "--key", key]);
    assert!(!success && said.contains("nodes that trust"), "{said}");
    assert!(renew_in(&by_key, &["--ca-key", ca_key]).0);
    assert!(renew_in(&brought, &["--certificate", certificate, "--key", key]).0);
    assert_eq!(fs::read(certificate).unwrap(), fs::read(brought.join("tls/mcs.crt")).unwrap());

    check("key-exists", &["--host", "localhost", "--ca-key-out", out], Err("exists"));
    check("no-key", &["--ca", ca], Err("--ca needs"));
    check(
        "other-key",
        &["--ca", ca, "--ca-key", out, "--host", "localhost"],
        Err("is in none of"),
    );
    check(
        "other-ca",
        &["--ca", certificate, "--certificate", certificate, "--key", out],
        Err("no key in it"),
    );
    check("key-only", &["--key", key], Err("--certificate"));
    check("key-of-nothing", &["--ca-key", ca_key], Err("--ca"));
    check(
        "both",
        &["--ca", ca, "--ca-key", ca_key, "--ca-key-out", "x"],
        Err("cannot be used"),
    );
    check("bad-algorithm", &["--algorithm", "rsa-1024"], Err("rsa-2048"));
    check("bad-days", &["--days", "0"], Err("0 is not in"));
    check("bad-host", &["--host", "ä"], Err("cannot create"));
    let again = program()
        .args(["ca", "create", "--out", ca, "--key-out", "unused"])
        .output()
        .unwrap();
    assert!(!again.status.success() && !Path::new("unused").exists());
}

#[test]
fn introduces_and_switches_to_an_external_ca() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, ca_key) = created(folder.path(), &["--name", "Offline CA"]);
    let (ca, ca_key) = (ca.to_str().unwrap(), ca_key.to_str().unwrap());
    let gateway = Gateway::init();
    let leaf = gateway.path("tls/mcs.crt");
    refused(
        &gateway,
        &["ca", "introduce", "--certificate", leaf.to_str().unwrap()],
        "is not a CA",
    );
    gateway.command(&["ca", "introduce", "--certificate", ca]);
    refused(&gateway, &["ca", "switch"], "CN=Offline CA is in none of");
    // Signed by the CA that is in use, and not by the one that is to be.
    let key = gateway.path("tls/mcs.key");
    refused(
        &gateway,
        &[
            "ca",
            "switch",
            "--certificate",
            leaf.to_str().unwrap(),
            "--key",
            key.to_str().unwrap(),
        ],
        "nodes that trust",
    );
    gateway.command(&["ca", "switch", "--ca-key", ca_key]);
    verify_folder(&gateway);
    let said = gateway.command(&["ca", "retire", "--discard-key"]);
    assert!(said.contains("private key is no longer on this machine"), "{said}");
    assert!(!gateway.path("tls/mcs-ca.key").exists());
    assert!(gateway.command(&["ca", "status"]).contains("elsewhere"));
    verify_folder(&gateway);
}
