//! Client certificates of kubelets at the gateway: the real program, with requests over connections of the test's own.

use std::fs;
use std::sync::Arc;

use crate::support::kubelet::{Cluster, Connection, PATH, blobs, client, embedded, get, in_process, init, last, start};
use crate::support::{POOL, bearer};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use reqwest::StatusCode;
use rustls::HandshakeKind;
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::aws_lc_rs;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};

#[tokio::test]
async fn a_kubelet_gets_the_full_config_of_its_pool() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let full = gateway.rendered(POOL, "full");
    for versions in [&[&TLS13][..], &[&TLS12]] {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_RSA_SHA256] {
            let kubelet = cluster.sign(algorithm, "system:node:worker-1", |_| ());
            let config = Arc::new(client(&gateway, versions, Some(&kubelet)));
            let mut connection = Connection::by(&gateway, config).await.unwrap();
            connection.get(PATH, &[]).await.is_config(&full);
            connection.get("/config/worker/", &[]).await.is_config(&full);
        }
    }
    let record = last(&gateway);
    for (field, value) in [
        ("decision", "config"),
        ("verdict", "served"),
        ("shown", "kubelet"),
        ("identity", "kubelet:worker-1"),
        ("name", "worker-1"),
        ("grant", "full"),
        ("pool", POOL),
    ] {
        assert_eq!(record[field], value, "{record}");
    }
    let reason = record["reason"].as_str().unwrap();
    for part in [
        "subject O=system:nodes, CN=system:node:worker-1",
        "issuer CN=kube-csr-signer",
        "serial ",
        "valid until ",
    ] {
        assert!(reason.contains(part), "{part:?} is not in {reason:?}");
    }
    assert_eq!(record["basis"]["client_chain"].as_array().unwrap().len(), 1);
    assert_eq!(record["basis"]["client_chain"][0], record["basis"]["client_certificate_sha256"]);
    gateway.line(|line| line.contains("SERVED full config") && line.contains("client certificate of kubelet:worker-1"));
    let table = gateway.command(&["log", "audit"]);
    assert_eq!(table.matches(" same").count(), 8, "{table}");
    let check = gateway.command(&["check"]);
    assert!(check.contains("a kubelet full"), "{check}");
}

#[tokio::test]
async fn clients_without_a_certificate_are_unaffected() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    Connection::open(&gateway, None).await.get(PATH, &[]).await.is_config(&pre_approved);
    gateway.config(PATH, &[]).await.is_config(&pre_approved);
    assert_eq!(last(&gateway)["shown"], "nothing");
    let ticket = gateway.ticket().await;
    gateway
        .config(PATH, &[&bearer(&ticket)])
        .await
        .is_config(&gateway.rendered(POOL, "full"));
    // Elsewhere a certificate is of no interest, whatever it is worth.
    let mut connection = Connection::open(&gateway, Some(&Cluster::new().kubelet("worker-1"))).await;
    for path in ["/healthz", "/readyz", "/v1/attest"] {
        assert_eq!(connection.get(path, &[]).await.status, StatusCode::OK, "{path}");
    }
    connection.get("/config/none", &[]).await.refused(404, "pool-unknown");
}

#[tokio::test]
async fn a_gateway_without_a_client_ca_asks_for_no_certificate() {
    let cluster = Cluster::new();
    let mut gateway = init(&cluster);
    gateway.settings("");
    gateway.run();
    let warning = "pool worker: grants.kubelet has no effect without tls.client_ca";
    gateway.line(|line| line.contains(warning));
    assert!(gateway.command(&["check"]).contains(warning));
    let answer = get(&gateway, &cluster.kubelet("worker-1"), PATH).await;
    answer.is_config(&gateway.rendered(POOL, "pre-approved"));
    assert_eq!(last(&gateway)["shown"], "nothing");
}

#[tokio::test]
async fn attack_09_refuses_an_invalid_kubelet_certificate() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let past = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let node = "system:node:worker-1";
    let algorithm = &PKCS_ECDSA_P256_SHA256;
    let before = blobs(&gateway);
    for (identity, code) in [
        (Cluster::new().kubelet("worker-1"), "kubelet-certificate-invalid"),
        (
            cluster.sign(algorithm, node, |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]
            }),
            "kubelet-certificate-invalid",
        ),
        (cluster.sign(algorithm, node, past), "kubelet-certificate-expired"),
    ] {
        get(&gateway, &identity, PATH).await.refused(403, code);
        let record = last(&gateway);
        assert_eq!(
            (&record["verdict"], &record["shown"], &record["code"]),
            (&"refused".into(), &"kubelet".into(), &code.into())
        );
        assert_eq!((record.get("identity"), record.get("name")), (None, None), "{record}");
        assert!(record["basis"]["client_certificate_sha256"].is_string());
        assert_eq!(record["basis"].get("client_chain"), None);
    }
    assert_eq!(blobs(&gateway), before, "what a stranger shows is not kept");
    for common_name in ["worker-1", "system:node:", "system:node:Worker-1", "system:admin"] {
        let identity = cluster.sign(algorithm, common_name, |_| ());
        get(&gateway, &identity, PATH).await.refused(403, "kubelet-certificate-not-a-node");
        assert_eq!(last(&gateway)["basis"]["client_chain"].as_array().unwrap().len(), 1);
    }
    assert!(blobs(&gateway) > before, "what the cluster's CA has signed is");
    let table = gateway.command(&["log", "audit"]);
    assert_eq!(
        (table.matches(" unread ").count(), table.matches(" same").count()),
        (3, 4),
        "{table}"
    );
}

#[tokio::test]
async fn strangers_certificates_do_not_fill_the_log() {
    /// Number of attempts, more than a source may fail at once.
    const ATTEMPTS: usize = 40;
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let mut stranger = Connection::open(&gateway, Some(&Cluster::new().kubelet("worker-1"))).await;
    let mut refused = 0;
    for _ in 0..ATTEMPTS {
        let answer = stranger.get(PATH, &[]).await;
        if answer.status == StatusCode::FORBIDDEN {
            answer.refused(403, "kubelet-certificate-invalid");
            refused += 1;
        } else {
            answer.check_retry();
        }
    }
    assert!(refused < ATTEMPTS, "it was listened to each time");
    assert_eq!(gateway.records().len(), refused);
}

#[tokio::test]
async fn attack_09_a_certificate_without_its_key_opens_no_connection() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let (theirs, ours) = (cluster.kubelet("worker-1"), cluster.kubelet("worker-2"));
    for versions in [&[&TLS13][..], &[&TLS12]] {
        let mut config = client(&gateway, versions, None);
        let key = aws_lc_rs::sign::any_supported_type(&ours.key).unwrap();
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(CertifiedKey::new(theirs.chain.clone(), key)));
        // In TLS 1.3 the client is done before the server has looked.
        if let Ok(mut connection) = Connection::by(&gateway, Arc::new(config)).await {
            assert!(connection.try_get(PATH, &[]).await.is_err());
        }
    }
    assert!(gateway.records().is_empty());
}

#[tokio::test]
async fn refuses_a_request_with_two_credentials() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let ticket = bearer(&gateway.ticket().await);
    let before = gateway.records().len();
    let mut connection = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    for (path, headers) in [
        (PATH, vec![format!("Authorization: {ticket}")]),
        (PATH, vec!["Authorization: Bearer abc".to_owned()]),
        ("/config/worker?token=abc", vec![]),
    ] {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        connection.get(path, &headers).await.refused(403, "credential-ambiguous");
    }
    assert_eq!(gateway.records().len(), before + 3);
    assert_eq!(last(&gateway)["shown"], "unreadable");
    gateway.config(PATH, &[&ticket]).await.is_config(&gateway.rendered(POOL, "full"));
    assert_eq!(last(&gateway)["use_number"], 1, "no use was taken");
}

#[tokio::test]
async fn attack_21_a_node_of_one_pool_gets_nothing_of_another() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let mut worker = Connection::open(&gateway, Some(&cluster.kubelet("worker-1"))).await;
    worker.get("/config/infra", &[]).await.refused(403, "kubelet-wrong-pool");
    let record = last(&gateway);
    assert_eq!(
        (&record["identity"], &record["verdict"]),
        (&"kubelet:worker-1".into(), &"refused".into())
    );
    let told = worker.get("/config/infra", &[]).await.problem();
    assert!(!format!("{told:?}").contains("infra-*"), "{told:?}");
    get(&gateway, &cluster.kubelet("infra-1"), "/config/infra")
        .await
        .is_config(&gateway.rendered("infra", "full"));
    get(&gateway, &cluster.kubelet("infra-1"), PATH)
        .await
        .refused(403, "kubelet-wrong-pool");
    let table = gateway.command(&["log", "audit"]);
    assert_eq!(
        (table.matches(" kubelet-wrong-pool ").count(), table.matches(" same").count()),
        (6, 4),
        "{table}"
    );
}

#[tokio::test]
async fn a_pool_accepts_kubelet_certificates_only_if_configured() {
    let cluster = Cluster::new();
    let gateway = init(&cluster);
    let (on, off) = ("\nkubelet = \"full\"", "\nkubelet = \"refuse\"");
    gateway.edit_pool(POOL, on, "");
    gateway.edit_pool(POOL, "[kubelet]\n", "");
    gateway.edit_pool(POOL, "names = [\"worker-*\"]\n", "");
    gateway.edit_pool("infra", on, "\nkubelet = \"pre-approved\"");
    let mut gateway = gateway;
    gateway.run();
    get(&gateway, &cluster.kubelet("worker-1"), PATH)
        .await
        .refused(403, "kubelet-not-accepted");
    let answer = get(&gateway, &cluster.kubelet("infra-1"), "/config/infra").await;
    answer.is_config(&gateway.rendered("infra", "pre-approved"));
    gateway.kill();
    gateway.edit_pool("infra", "\nkubelet = \"pre-approved\"", off);
    gateway.run();
    get(&gateway, &cluster.kubelet("infra-1"), "/config/infra")
        .await
        .refused(403, "kubelet-not-accepted");
    get(&gateway, &cluster.kubelet("other-1"), "/config/infra")
        .await
        .refused(403, "kubelet-wrong-pool");
}

#[test]
fn a_pool_with_kubelet_grants_needs_node_names() {
    let gateway = init(&Cluster::new());
    let refused = |said: &str| {
        // The other pool is served, so it is no error for `check`, as it is none for `serve`.
        let check = gateway.try_command(&["check", "--strict"]);
        let text = String::from_utf8(check.stdout).unwrap();
        let said = |line: &str| line.starts_with("DEGRADED pool worker") && line.contains(said);
        assert!(!check.status.success() && text.lines().any(said), "{text}");
    };
    gateway.edit_pool(POOL, "names = [\"worker-*\"]", "names = []");
    refused("[kubelet]: grants.kubelet grants a config, so names must list this pool's nodes");
    gateway.edit_pool(POOL, "names = []", "names = [\"worker-?\"]");
    refused("\"worker-?\" is not a pattern of node names");
}

#[test]
fn refuses_to_start_with_an_invalid_client_ca() {
    let cluster = Cluster::new();
    let gateway = init(&cluster);
    let file = gateway.path("tls/kubelet-client-ca.crt");
    let refused = |said: &str| {
        let serve = gateway.try_command(&["serve"]);
        let text = String::from_utf8(serve.stderr).unwrap();
        assert!(
            !serve.status.success() && text.contains("tls.client_ca: ") && text.contains(said),
            "{said:?} is not in {text}"
        );
    };
    fs::write(&file, "").unwrap();
    refused("is empty");
    fs::copy(gateway.path("tls/mcs.crt"), &file).unwrap();
    refused("is not the certificate of a CA");
    fs::remove_file(&file).unwrap();
    refused("kubelet-client-ca.crt");
}

#[tokio::test]
async fn attack_20_a_client_that_would_resume_makes_a_full_handshake_each_time() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    let full = gateway.rendered(POOL, "full");
    for version in [&TLS13, &TLS12] {
        let mut config = client(&gateway, &[version], Some(&cluster.kubelet("worker-1")));
        config.resumption = Resumption::in_memory_sessions(16).tls12_resumption(Tls12Resumption::SessionIdOrTickets);
        let config = Arc::new(config);
        for _ in 0..3 {
            let mut connection = Connection::by(&gateway, Arc::clone(&config)).await.unwrap();
            connection.get(PATH, &[]).await.is_config(&full);
            let kind = connection.0.get_ref().1.handshake_kind().unwrap();
            assert!(
                matches!(kind, HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest),
                "{version:?}: {kind:?}"
            );
            let tickets = connection.0.get_ref().1.tls13_tickets_received();
            assert_eq!(tickets, 0, "{version:?}");
        }
    }
}

#[tokio::test]
async fn attack_20_a_replaced_client_ca_applies_to_open_connections() {
    let (before, after) = (Cluster::new(), Cluster::new());
    let gateway = init(&before);
    let inner = in_process(&gateway, Arc::new(embedded(&gateway))).await;
    let full = gateway.rendered(POOL, "full");
    let (old, new) = (before.kubelet("worker-1"), after.kubelet("worker-1"));
    let mut old_connection = Connection::open(&gateway, Some(&old)).await;
    let mut new_connection = Connection::open(&gateway, Some(&new)).await;
    old_connection.get(PATH, &[]).await.is_config(&full);
    // The CA's name is the same, so what is wrong is the signature.
    new_connection.get(PATH, &[]).await.refused(403, "kubelet-certificate-invalid");
    after.install(&gateway);
    inner.tls.reload().unwrap();
    old_connection.get(PATH, &[]).await.refused(403, "kubelet-certificate-invalid");
    new_connection.get(PATH, &[]).await.is_config(&full);
    // A broken bundle leaves everything as it is.
    fs::write(gateway.path("tls/kubelet-client-ca.crt"), "").unwrap();
    assert!(inner.tls.reload().is_err());
    new_connection.get(PATH, &[]).await.is_config(&full);
    get(&gateway, &old, PATH).await.refused(403, "kubelet-certificate-invalid");
}

#[tokio::test]
async fn audit_detects_altered_kubelet_records() {
    let cluster = Cluster::new();
    let gateway = start(&cluster);
    get(&gateway, &cluster.kubelet("worker-1"), PATH)
        .await
        .is_config(&gateway.rendered(POOL, "full"));
    let record = last(&gateway);
    let log = gateway.path("altered.jsonl");
    let line = record.to_string();
    let audit = |line: &str| {
        fs::write(&log, format!("{line}\n")).unwrap();
        let output = gateway.try_command(&["log", "audit", "--unchained", "--log", log.to_str().unwrap()]);
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (same, table) = audit(&line);
    assert!(same && table.contains(" same"), "{table}");
    let sha256 = record["basis"]["client_chain"][0].as_str().unwrap();
    let at = record["at"].as_u64().unwrap();
    for (from, to) in [
        ("kubelet:worker-1", "kubelet:worker-2".to_owned()),
        ("\"served\"", "\"refused\",\"code\":\"kubelet-certificate-invalid\"".to_owned()),
        ("worker-*", "worker-x*".to_owned()),
        (&format!("\"at\":{at}"), format!("\"at\":{}", 1)),
        (&format!("[\"{sha256}\"]"), "[]".to_owned()),
        (&format!("[\"{sha256}\"]"), format!("[\"{}\"]", "0".repeat(64))),
    ] {
        assert!(line.contains(from), "{from:?} is not in {line}");
        let (same, table) = audit(&line.replace(from, &to));
        assert!(!same && table.contains("DIFFERENT"), "{from:?}: {table}");
    }
    // One byte of the chain that is kept.
    let blob = gateway.path("state/evidence").join(format!("{sha256}.gz"));
    let mut bytes = fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let (same, table) = audit(&line);
    assert!(!same && table.contains("DIFFERENT"), "{table}");
}
