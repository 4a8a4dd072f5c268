//! The certificates change while the gateway serves: valid ones are presented to nodes at once, invalid ones change nothing.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Gateway, LIMIT, accept, now, program};
use attest::UnixTime;
use attest_certificates::Certificate;
use attest_gateway::pki::issue::{self, IssuedCertificate, SigningKey};
use attest_gateway::pki::{Algorithm, CertificateRequest, GatewayNames};
use cloud_fixtures::port::ReservedPort;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const DAY: u64 = 86_400;

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn names() -> GatewayNames {
    GatewayNames {
        hosts: vec!["localhost".to_owned()],
        addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
    }
}

/// Creates a CA that is older than all certificates that it signs here.
fn ca(name: &str) -> IssuedCertificate {
    let key = SigningKey::generate(Algorithm::EcdsaP256).unwrap();
    issue::authority(name, key, 400, at(now() - 100 * DAY)).unwrap()
}

/// Creates a certificate that is valid for 30 days from `days` days after the present.
fn signed(ca: &IssuedCertificate, days: i64) -> IssuedCertificate {
    let wanted = CertificateRequest {
        days: 30,
        ..CertificateRequest::default()
    };
    let from = now().checked_add_signed(days * 86_400).unwrap();
    issue::serving(&ca.certificate, &ca.key, &names(), &wanted, at(from)).unwrap()
}

/// Returns a certificate for server authentication without any names, and its key.
fn nameless(ca: &IssuedCertificate) -> (String, String) {
    let ca_key = KeyPair::try_from(&PrivateKeyDer::from_pem_slice(ca.key.pem().as_bytes()).unwrap()).unwrap();
    let issuer = Issuer::from_ca_cert_der(&ca.certificate.der, ca_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
}

/// Starts a gateway with this CA and this certificate.
fn start(ca: &IssuedCertificate, made: &IssuedCertificate) -> Gateway {
    let mut gateway = Gateway::init();
    fs::write(gateway.path("tls/mcs-ca.crt"), ca.certificate.pem()).unwrap();
    write(&gateway, made);
    gateway.run();
    gateway
}

/// Writes the files without regard to the running gateway.
fn write(gateway: &Gateway, made: &IssuedCertificate) {
    fs::write(gateway.path("tls/mcs.key"), made.key.pem().as_bytes()).unwrap();
    fs::write(gateway.path("tls/mcs.crt"), made.certificate.pem()).unwrap();
}

async fn connect(address: SocketAddr, trusted: &[Certificate]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for ca in trusted {
        roots.add(ca.der.clone()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config))
        .connect("localhost".try_into().unwrap(), stream)
        .await
}

fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// Requests the pre-approved config, over a connection that stays open.
async fn ask(stream: &mut TlsStream<TcpStream>) {
    let request = format!(
        "GET /config/worker HTTP/1.1\r\nHost: localhost\r\nAccept: {}\r\n\r\n",
        accept("3.4.0")
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tokio::time::timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
}

/// Verifies that new connections get this certificate.
async fn serves(gateway: &Gateway, trusted: &IssuedCertificate, expected: &IssuedCertificate) {
    let mut stream = connect(gateway.address(), std::slice::from_ref(&trusted.certificate))
        .await
        .unwrap();
    assert_eq!(shown(&stream), expected.certificate.der);
    ask(&mut stream).await;
}

fn is_used(gateway: &Gateway, made: &IssuedCertificate) {
    let wanted = format!("the MCS certificate is now {}", made.certificate.fingerprint.short());
    gateway.line(|line| line.contains(&wanted));
}

/// Name of a case, the change that breaks the files, and a part of the message.
type Broken<'a> = (&'a str, &'a dyn Fn(&Gateway), &'a str);

#[tokio::test(flavor = "multi_thread")]
async fn refuses_broken_certificates_at_start_and_reload() {
    let (ca, other) = (ca("mcs"), ca("other"));
    let first = signed(&ca, -1);
    let (stranger, expired, early, second) = (signed(&other, -1), signed(&ca, -60), signed(&ca, 10), signed(&ca, -1));
    let half = first.certificate.pem();
    let (nameless_certificate, nameless_key) = nameless(&ca);
    let put = |gateway: &Gateway, name: &str, text: &str| fs::write(gateway.path(name), text).unwrap();
    let key = "tls/mcs.key";
    let cases: [Broken<'_>; 15] = [
        ("wrong chain", &|gateway| write(gateway, &stranger), "nodes that trust"),
        ("expired", &|gateway| write(gateway, &expired), "is valid from"),
        ("not yet valid", &|gateway| write(gateway, &early), "is valid from"),
        (
            "wrong key",
            &|gateway| put(gateway, key, &second.key.pem()),
            "does not hold the private key of",
        ),
        ("missing key", &|gateway| fs::remove_file(gateway.path(key)).unwrap(), "mcs.key"),
        (
            "key is a folder",
            &|gateway| {
                fs::remove_file(gateway.path(key)).unwrap();
                fs::create_dir(gateway.path(key)).unwrap();
            },
            "mcs.key",
        ),
        ("empty key", &|gateway| put(gateway, key, ""), "mcs.key: is empty"),
        ("garbage key", &|gateway| put(gateway, key, "garbage"), "mcs.key: is neither PEM"),
        ("empty certificate", &|gateway| put(gateway, "tls/mcs.crt", ""), "mcs.crt: is empty"),
        (
            "garbage certificate",
            &|gateway| put(gateway, "tls/mcs.crt", "{"),
            "mcs.crt: is not a manifest",
        ),
        (
            "half a certificate",
            &|gateway| put(gateway, "tls/mcs.crt", &half[..300]),
            "mcs.crt",
        ),
        (
            "no names",
            &|gateway| {
                put(gateway, key, &nameless_key);
                put(gateway, "tls/mcs.crt", &nameless_certificate);
            },
            "names no host",
        ),
        (
            "missing CA",
            &|gateway| fs::remove_file(gateway.path("tls/mcs-ca.crt")).unwrap(),
            "mcs-ca.crt",
        ),
        (
            "another CA",
            &|gateway| put(gateway, "tls/mcs-ca.crt", &other.certificate.pem()),
            "nodes that trust",
        ),
        (
            "unreadable key",
            &|gateway| fs::set_permissions(gateway.path(key), fs::Permissions::from_mode(0o000)).unwrap(),
            "mcs.key",
        ),
    ];
    let probe = Gateway::init();
    fs::set_permissions(probe.path(key), fs::Permissions::from_mode(0o000)).unwrap();
    // Nothing is unreadable to root.
    let root = fs::read(probe.path(key)).is_ok();
    let gateway = start(&ca, &first);
    let mut current = first;
    for (case, change, expected) in cases {
        if root && case == "unreadable key" {
            continue;
        }
        let mut open = connect(gateway.address(), std::slice::from_ref(&ca.certificate)).await.unwrap();
        ask(&mut open).await;
        let kept = |text: &str| text.matches("cannot reload the certificates").count();
        let before = kept(&gateway.output());
        change(&gateway);
        // A change of two files may be seen half done; what counts is what is said in the end.
        gateway.lines(before + 1, |line| line.contains("cannot reload the certificates"));
        gateway.line(|line| line.contains("cannot reload the certificates") && line.contains(expected));
        serves(&gateway, &ca, &current).await;
        // At a start there is no old state.
        let refused = program()
            .args(["serve", "--config"])
            .arg(gateway.path("gateway.toml"))
            .output()
            .unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(expected), "{case}: {said}");
        let check = gateway.try_command(&["check"]);
        let said = String::from_utf8(check.stdout).unwrap();
        assert!(!check.status.success() && said.contains(expected), "{case}: {said}");
        // Put right, it is used without a restart, and who is connected notices nothing.
        if gateway.path(key).is_dir() {
            fs::remove_dir(gateway.path(key)).unwrap();
        } else if gateway.path(key).exists() {
            fs::set_permissions(gateway.path(key), fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::write(gateway.path("tls/mcs-ca.crt"), ca.certificate.pem()).unwrap();
        let next = signed(&ca, -1);
        write(&gateway, &next);
        is_used(&gateway, &next);
        serves(&gateway, &ca, &next).await;
        ask(&mut open).await;
        assert_eq!(shown(&open), current.certificate.der, "{case}");
        current = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_a_certificate_problem_once_and_exports_metrics() {
    let port = ReservedPort::reserve();
    let metrics = port.address();
    let (ca, stranger) = (ca("mcs"), ca("stranger"));
    let first = signed(&ca, -1);
    let mut gateway = Gateway::init();
    fs::write(gateway.path("tls/mcs-ca.crt"), ca.certificate.pem()).unwrap();
    fs::write(gateway.path("tls/client-ca.crt"), stranger.certificate.pem()).unwrap();
    write(&gateway, &first);
    gateway.settings(&format!(
        "[metrics]\nlisten = \"{metrics}\"\n[tls]\nclient_ca = \"tls/client-ca.crt\""
    ));
    gateway.run();
    let measured = async || {
        reqwest::get(format!("http://{metrics}/metrics"))
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
    };
    let expiry = |role: &str, certificate: &Certificate| {
        format!(
            "attest_gateway_certificate_expiry_timestamp_seconds{{certificate=\"{role}\",fingerprint=\"{}\"}} {}",
            certificate.fingerprint.short(),
            certificate.not_after
        )
    };
    let key = |text: &str| {
        fs::write(gateway.path("tls/new"), text).unwrap();
        fs::rename(gateway.path("tls/new"), gateway.path("tls/mcs.key")).unwrap();
    };
    key("garbage");
    gateway.line(|line| line.contains("cannot reload the certificates"));
    // The same again.
    gateway.hang_up();
    gateway.line(|line| line.contains("SIGHUP: reloading the certificates"));
    let text = measured().await;
    for line in [
        "attest_gateway_certificates_broken 1".to_owned(),
        expiry("mcs", &first.certificate),
        expiry("mcs-ca", &ca.certificate),
        expiry("kubelet-client-ca", &stranger.certificate),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
    }
    // What was there before.
    key(&first.key.pem());
    gateway.line(|line| line.contains("the certificates can be read again, and are unchanged"));
    assert_eq!(
        gateway.output().matches("cannot reload the certificates").count(),
        1,
        "{}",
        gateway.output()
    );
    assert!(measured().await.contains("attest_gateway_certificates_broken 0"));
    // Who does not trust the CA is counted, and named once a minute.
    for _ in 0..3 {
        assert!(
            connect(gateway.address(), std::slice::from_ref(&stranger.certificate))
                .await
                .is_err()
        );
    }
    gateway.line(|line| line.contains("127.0.0.1") && line.contains("refuses the MCS certificate"));
    serves(&gateway, &ca, &first).await;
    let counted = async || while !measured().await.contains("attest_gateway_tls_refused_by_client_total 3") {};
    tokio::time::timeout(LIMIT, counted()).await.unwrap();
    assert_eq!(gateway.output().matches("refuses the MCS certificate").count(), 1);
    // A certificate that takes the place of another is measured in its stead.
    let second = signed(&ca, -1);
    write(&gateway, &second);
    is_used(&gateway, &second);
    gateway.hang_up();
    gateway.lines(2, |line| line.contains("SIGHUP: reloading the certificates"));
    serves(&gateway, &ca, &second).await;
    let text = measured().await;
    assert!(
        text.contains(&expiry("mcs", &second.certificate)) && !text.contains(&expiry("mcs", &first.certificate)),
        "{text}"
    );
}

/// Lays out a Secret's volume, as the kubelet mounts and changes it.
fn mount(volume: &Path, generation: &str, made: &IssuedCertificate, ca: &IssuedCertificate) {
    let folder = volume.join(generation);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tls.crt"), made.certificate.pem()).unwrap();
    fs::write(folder.join("tls.key"), made.key.pem().as_bytes()).unwrap();
    fs::set_permissions(folder.join("tls.key"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(folder.join("ca.crt"), ca.certificate.pem()).unwrap();
    symlink(generation, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key", "ca.crt"] {
        drop(symlink(format!("..data/{name}"), volume.join(name)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_a_changed_mounted_secret() {
    let ca = ca("mcs");
    let (first, second) = (signed(&ca, -1), signed(&ca, -1));
    let mut gateway = Gateway::init();
    let volume = gateway.path("volume");
    mount(&volume, "..1", &first, &ca);
    gateway.settings("[tls]\nca = \"volume/ca.crt\"\ncertificate = \"volume/tls.crt\"\nkey = \"volume/tls.key\"");
    gateway.run();
    serves(&gateway, &ca, &first).await;
    mount(&volume, "..2", &second, &ca);
    fs::remove_dir_all(volume.join("..1")).unwrap();
    is_used(&gateway, &second);
    serves(&gateway, &ca, &second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_certificates_from_manifests_without_changing_them() {
    let ca = ca("root-ca");
    let (first, second) = (signed(&ca, -1), signed(&ca, -1));
    let base64 = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    let secret = |made: &IssuedCertificate| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: machine-config-server-tls\ntype: kubernetes.io/tls\ndata:\n  tls.crt: {}\n  tls.key: {}\n",
            base64(&made.certificate.pem()),
            base64(&made.key.pem())
        )
    };
    let config_map = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "root-ca"}, "data": {"ca.crt": ca.certificate.pem()},
    });
    let mut gateway = Gateway::init();
    fs::write(gateway.path("tls/secret.yaml"), secret(&first)).unwrap();
    fs::set_permissions(gateway.path("tls/secret.yaml"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(gateway.path("tls/root-ca.json"), config_map.to_string()).unwrap();
    gateway.settings("[tls]\nca = \"tls/root-ca.json\"\ncertificate = \"tls/secret.yaml\"\nkey = \"tls/secret.yaml\"");
    gateway.run();
    serves(&gateway, &ca, &first).await;
    gateway.command(&["check"]);
    assert!(gateway.command(&["ca", "status"]).contains("is a manifest"));
    for arguments in [
        ["certificate", "renew", "--days", "9"].as_slice(),
        &["ca", "introduce"],
        &["ca", "switch", "--force"],
        &["ca", "retire", "--force"],
    ] {
        let refused = gateway.try_command(arguments);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains("root-ca.json is a manifest"), "{said}");
    }
    fs::write(gateway.path("tls/secret.yaml"), secret(&second)).unwrap();
    is_used(&gateway, &second);
    serves(&gateway, &ca, &second).await;
    // What is missing is named; nothing that is there is quoted.
    let half = secret(&first).replace("tls.key", "other.key");
    fs::write(gateway.path("tls/secret.yaml"), half).unwrap();
    let line = gateway.line(|line| line.contains("cannot reload the certificates"));
    assert!(line.contains("the Secret has no tls.key"), "{line}");
    serves(&gateway, &ca, &second).await;
}

/// Returns the entry of this name in the JSON list.
fn listed(gateway: &Gateway, name: &str) -> Option<serde_json::Value> {
    let output = gateway.try_command(&["certificate", "list", "--output", "json"]);
    let all: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    all.into_iter().find(|item| item["name"].as_str().unwrap().starts_with(name))
}

#[test]
fn certificate_list_shows_every_configured_key() {
    let gateway = Gateway::init();
    let state = |name: &str| listed(&gateway, name).map(|item| item["state"].as_str().unwrap().to_owned());
    let good = Some("good".to_owned());
    for none in ["etcd", "outgoing CA", "GCP vTPM root"] {
        assert_eq!(state(none), None, "{none}");
    }
    let ca = fs::read(gateway.path("tls/mcs-ca.crt")).unwrap();
    let of_clouds = [
        ("GCP vTPM root", "gcp-vtpm-roots"),
        ("AWS region certificate", "aws-region-certificates"),
        ("AWS Nitro root", "aws-nitro-roots"),
        ("Azure root", "azure-roots"),
        ("Azure intermediate", "azure-intermediates"),
        ("Azure vTPM root", "azure-vtpm-roots"),
    ];
    for (name, folder) in of_clouds {
        fs::create_dir(gateway.path(folder)).unwrap();
        fs::write(gateway.path(folder).join("a.pem"), &ca).unwrap();
        assert_eq!(state(name), good, "{name}");
        fs::write(
            gateway.path(folder).join("a.pem"),
            "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        )
        .unwrap();
        assert_eq!(state(name), Some("broken".to_owned()), "{name}");
        fs::remove_dir_all(gateway.path(folder)).unwrap();
    }
    gateway.settings("[outgoing]\nca = \"tls/mcs-ca.crt\"");
    assert_eq!(state("outgoing CA"), good);
    gateway.settings(
        "[store]\nengine = \"etcd\"\nendpoints = [\"https://127.0.0.1:9\"]\nca = \"tls/mcs-ca.crt\"\ncertificate = \"tls/mcs.crt\"\nkey = \"tls/mcs.key\"\nkey_file = \"store.key\"",
    );
    for name in ["etcd CA", "etcd client certificate", "etcd client key"] {
        assert_eq!(state(name), good, "{name}");
    }
    fs::set_permissions(gateway.path("tls/mcs.key"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(state("etcd client key"), Some("broken".to_owned()));
}
