//! Attested documents of Azure that must be refused, and the certificates that may be fetched for them.

use std::net::SocketAddr;

use attest::protocol::Evidence;
use attest::{Kind, SpkiSha256};
use cloud_fixtures::azure::attested_document::{ISSUER_URL, access};
use cloud_fixtures::azure::{Aia, AzureAuthority, metadata_params};
use cloud_fixtures::clock::{self, american};
use cloud_fixtures::pkcs7::{OTHER, Pkcs7Key, TestMessage};
use cloud_fixtures::server::{ServerAnswer as Said, ServerFault, TestServer, loopback};
use cloud_fixtures::tampering::{self, each_member_removed, each_value};
use serde_json::{Value, json};

use super::machine::{AZURE, Asked, Machine, azure_evidence};
use super::site::{self, AZURE_RULES};
use crate::support::{Answer, Gateway};

const KINDS: [Kind; 1] = [Kind::Azure];

fn start() -> Gateway {
    site::start(r#"[["azure"]]"#, &[AZURE_RULES])
}

/// Presents this instead of the machine's document.
async fn show(gateway: &Gateway, make: impl FnOnce(Value) -> String) -> Answer {
    let machine = Machine::new();
    let alter = |evidence: &mut Evidence, asked: &Asked| {
        evidence.azure = Some(azure_evidence(make(machine.attested_document(asked))));
    };
    machine.attest_altered(gateway, &KINDS, alter).await
}

async fn check(gateway: &Gateway, make: impl FnOnce(Value) -> String, code: &str) {
    let answer = show(gateway, make).await;
    site::refused(gateway, &answer, code);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_11_refuses_an_altered_attested_document() {
    let gateway = start();
    type Alter = fn(&Value) -> Vec<(String, Value)>;
    let document = Machine::new().azure.document(Some("1234567890"), clock::now());
    let alters: [Alter; 2] = [each_value, each_member_removed];
    for alter in alters {
        for (path, _) in alter(&document) {
            let shown = |signed: &Value| alter(signed).into_iter().find(|(found, _)| *found == path).unwrap().1;
            let make = |signed: Value| tampering::unsigned_attested_document(&AZURE, &signed, &shown(&signed));
            check(&gateway, make, "azure-document-signature").await;
        }
    }
    for part in 0..24 {
        let flipped = |signed: Value| site::flipped(&AZURE.sign(&signed), part);
        let answer = show(&gateway, flipped).await;
        assert_ne!(answer.status.as_u16(), 200, "{part}");
        site::refused(&gateway, &answer, &answer.code());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_signed_azure_documents_outside_the_pools_rules() {
    let gateway = start();
    let signed = async |path: &str, value: Value, code: &str| {
        let make = |mut document: Value| {
            *document.pointer_mut(path).unwrap() = value;
            AZURE.sign(&document)
        };
        check(&gateway, make, code).await;
    };
    let now = clock::now();
    signed("/nonce", json!("1234567890"), "azure-document-nonce").await;
    signed("/nonce", json!(""), "azure-document-nonce").await;
    let uuid = "00000000-0000-0000-0000-000000000000";
    signed("/subscriptionId", json!(uuid), "azure-subscription-not-accepted").await;
    signed("/subscriptionId", json!("x"), "azure-document-malformed").await;
    signed("/vmId", json!(uuid), "azure-vm-not-accepted").await;
    signed("/sku", json!("other"), "azure-sku-not-accepted").await;
    signed("/timeStamp/createdOn", json!(american(now - 1200)), "azure-document-expired").await;
    signed("/timeStamp/createdOn", json!(american(now + 1200)), "azure-document-expired").await;
    signed("/timeStamp/expiresOn", json!(american(now - 100)), "azure-document-expired").await;
    signed("/timeStamp/createdOn", json!("yesterday"), "azure-document-malformed").await;
    for field in ["/nonce", "/subscriptionId", "/vmId", "/timeStamp"] {
        signed(field, Value::Null, "azure-document-malformed").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_10_an_attested_document_for_another_gateway_challenge_or_pool_is_refused() {
    let gateway = start();
    let other = async |change: fn(&mut Asked)| {
        let machine = Machine::new();
        let asked = machine.ask(&gateway, &KINDS).await;
        let evidence = machine.evidence(&asked.but(change));
        site::refused(&gateway, &asked.show(&gateway, evidence).await, "azure-document-nonce");
    };
    other(|asked| asked.key = SpkiSha256([1; 32])).await;
    other(|asked| asked.nonce = vec![1; 32]).await;
    other(|asked| asked.pool = "infra".to_owned()).await;
    other(|asked| asked.purpose = "other".to_owned()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_26_refuses_azure_documents_with_short_nonces() {
    let gateway = start();
    let machine = Machine::new();
    let asked = machine.ask(&gateway, &KINDS).await;
    let with_nonce = |nonce: &str| Evidence {
        azure: Some(azure_evidence(AZURE.sign(&machine.azure.document(Some(nonce), clock::now())))),
        ..machine.evidence(&asked)
    };
    let answer = asked.show(&gateway, with_nonce("2105770942")).await;
    site::refused(&gateway, &answer, "azure-document-nonce");

    let asked = machine.ask(&gateway, &KINDS).await;
    let evidence = machine.evidence(&asked);
    drop(asked.show(&gateway, evidence).await.ticket());
    assert_eq!(
        site::record(&gateway)["basis"]["challenge"]["subject"]["azure"],
        json!({"nonce": "alphanumeric-32"})
    );
}

/// Signs the document in a message that is altered before.
fn message(document: &Value, key: &Pkcs7Key, alter: impl FnOnce(TestMessage) -> TestMessage) -> String {
    let message = alter(AZURE.message(document.to_string().as_bytes()));
    data_encoding::BASE64.encode(&message.sign(key))
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_12_accepts_only_documents_signed_by_azures_leaf() {
    let gateway = start();
    check(
        &gateway,
        |document| tampering::foreign_attested_document(&AZURE, &OTHER, &document),
        "azure-document-signature",
    )
    .await;
    // Somebody who calls himself Azure.
    let stranger = AzureAuthority::new("eastus");
    check(&gateway, |document| stranger.sign(&document), "azure-document-certificate").await;
    // Azure's own certificate in the bag, and another one's signature.
    let bag = |certificates: &[&[u8]]| certificates.iter().map(|certificate| certificate.to_vec()).collect::<Vec<_>>();
    let both = bag(&[stranger.leaf(), AZURE.leaf()]);
    for certificates in [both.clone(), both.into_iter().rev().collect()] {
        let forged = |document: Value| {
            let message = stranger.message(document.to_string().as_bytes());
            let message = message.but(|message| message.certificates = certificates);
            data_encoding::BASE64.encode(&message.sign(stranger.signer()))
        };
        let answer = show(&gateway, forged).await;
        assert_ne!(answer.status.as_u16(), 200);
        site::refused(&gateway, &answer, &answer.code());
    }
    let no_certificate = |document: Value| {
        message(&document, AZURE.signer(), |message| {
            message.but(|message| message.certificates = vec![])
        })
    };
    check(&gateway, no_certificate, "azure-document-signer").await;
    let other_certificate = bag(&[stranger.leaf()]);
    let only_anothers = |document: Value| {
        message(&document, AZURE.signer(), |message| {
            message.but(|message| message.certificates = other_certificate)
        })
    };
    check(&gateway, only_anothers, "azure-document-certificate").await;
    let two_signers = |document: Value| {
        let second = stranger.message(document.to_string().as_bytes()).signer_info(stranger.signer());
        message(&document, AZURE.signer(), |message| {
            message.but(|message| message.extra_signers = vec![second])
        })
    };
    check(&gateway, two_signers, "azure-document-signer").await;
    let detached = |document: Value| message(&document, AZURE.signer(), |message| message.but(|message| message.detached = true));
    check(&gateway, detached, "azure-document-malformed").await;
    // A certificate by Azure's CA for something else than its metadata service.
    let web = AzureAuthority::with(&["www.example.com"], &[]);
    let mut other = site::init(r#"[["azure"]]"#, &[AZURE_RULES]);
    site::write(&other, "azure-roots/web.pem", web.root_pem());
    site::write(&other, "azure-intermediates/web.pem", web.intermediate_pem());
    other.run();
    check(&other, |document| web.sign(&document), "azure-document-certificate").await;
    let elsewhere = AzureAuthority::new("westus");
    let mut west = site::init(r#"[["azure"]]"#, &[AZURE_RULES]);
    site::write(&west, "azure-roots/west.pem", elsewhere.root_pem());
    site::write(&west, "azure-intermediates/west.pem", elsewhere.intermediate_pem());
    west.run();
    check(&west, |document| elsewhere.sign(&document), "azure-location-not-accepted").await;
}

/// Starts a gateway that has Azure's roots only, and reaches these hosts at one address.
fn fetching(authority: &AzureAuthority, hosts: &[&str], address: SocketAddr) -> Gateway {
    let mut gateway = site::init(r#"[["azure"]]"#, &[AZURE_RULES]);
    std::fs::remove_dir_all(gateway.path("azure-intermediates")).unwrap();
    site::write(&gateway, "azure-roots/root.pem", authority.root_pem());
    let hosts: String = hosts.iter().map(|host| format!("\"{host}\" = \"{address}\"\n")).collect();
    gateway.settings(&format!("[outgoing.connect]\n{hosts}"));
    gateway.run();
    gateway
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_19_fetches_a_microsoft_intermediate_once() {
    let aia = Aia::start(AZURE.intermediate());
    let gateway = fetching(&AZURE, &["www.microsoft.com"], aia.address());
    let identity = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
    for _ in 0..3 {
        let answer = Machine::new().attest(&gateway, &KINDS).await;
        let record = site::trusted(&gateway, &answer, identity, &KINDS);
        assert_eq!(record["basis"]["cloud"]["azure_certificates"].as_array().unwrap().len(), 2);
    }
    assert_eq!(aia.requests().len(), 1);
    let sent = aia.requests().pop().unwrap();
    assert_eq!(format!("http://{}{}", sent.host(), sent.target), ISSUER_URL);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_19_fetches_azure_intermediates_from_allowed_hosts_only() {
    // Whoever is asked would give the right certificate.
    let (authority, certificate) = (&*AZURE, AZURE.intermediate().to_vec());
    let everybody = TestServer::start(loopback(), None, move |_| {
        Said::new(200, "application/pkix-cert", certificate.clone())
    });
    let address = everybody.address();
    let gateway = fetching(
        authority,
        &["www.microsoft.com", "evil.example", "metadata.google.internal", "localhost"],
        address,
    );
    let file = |url: &str| format!("http://{url}/pkiops/certs/x.crt");
    let urls = [
        file("evil.example"),
        file("metadata.google.internal"),
        file("localhost"),
        file(&address.to_string()),
        file("169.254.169.254"),
        file("www.microsoft.com.evil.example"),
        file("www.microsoft.com@evil.example"),
        file("www.microsoft.com:8080"),
        "https://www.microsoft.com/pkiops/certs/x.crt".to_owned(),
        "ftp://www.microsoft.com/pkiops/certs/x.crt".to_owned(),
        "file:///etc/passwd".to_owned(),
        "http://www.microsoft.com/evil".to_owned(),
        "http://www.microsoft.com/pkiops/certs/../../evil".to_owned(),
        "http://www.microsoft.com/pkiops/certs/%2e%2e/%2e%2e/evil".to_owned(),
        "http://www.microsoft.com/pkiops/certs/x.crt?redirect=evil".to_owned(),
    ];
    for url in &urls {
        let mut leaf = metadata_params(&["eastus.metadata.azure.com", "metadata.azure.com"]);
        leaf.custom_extensions = vec![access(&[url])];
        let leaf = authority.issue(&leaf);
        let make = |document: Value| {
            let message = TestMessage::azure(document.to_string().as_bytes(), &leaf);
            data_encoding::BASE64.encode(&message.sign(authority.signer()))
        };
        check(&gateway, make, "azure-document-issuer").await;
        assert!(everybody.requests().is_empty(), "{url}: {:?}", everybody.requests());
    }
    drop(Machine::new().attest(&gateway, &KINDS).await.ticket());
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_19_limits_and_verifies_fetched_azure_intermediates() {
    let aia = Aia::start(AZURE.intermediate());
    for fault in [
        ServerFault::Down,
        ServerFault::Garbage,
        ServerFault::Huge,
        ServerFault::Status(404),
        ServerFault::Redirect("http://www.microsoft.com/pkiops/certs/other.crt".to_owned()),
    ] {
        aia.forget_requests();
        let gateway = fetching(&AZURE, &["www.microsoft.com"], aia.address());
        aia.fail(fault.clone());
        for _ in 0..5 {
            let answer = Machine::new().attest(&gateway, &KINDS).await;
            site::refused(&gateway, &answer, "azure-document-issuer");
        }
        // Whoever sends documents has it asked for once in a while.
        assert!(aia.requests().len() <= 1, "{fault:?}: {:?}", aia.requests().len());
        aia.recover();
    }
    // A certificate that leads to no root that is trusted.
    let stranger = AzureAuthority::new("eastus");
    let aia = Aia::start(stranger.intermediate());
    let gateway = fetching(&AZURE, &["www.microsoft.com"], aia.address());
    let answer = show(&gateway, |document| stranger.sign(&document)).await;
    assert_ne!(answer.status.as_u16(), 200);
    site::refused(&gateway, &answer, &answer.code());
}
