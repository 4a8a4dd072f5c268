//! Tests of Azure's stand-ins: the verifier accepts their signatures, and they refuse the requests that Azure refuses.

use crate::client;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Answered, ask};
use attest::UnixTime;
use attest::azure::attested_document::{self, AttestedDocumentRules, AzureCloud, AzureTrust, ImdsNonce, IssuerUrls};
use cloud_fixtures::azure::attested_document::ISSUER_URL;
use cloud_fixtures::azure::{Aia, AzureAuthority, AzureMachine, AzureMetadataServer};
use cloud_fixtures::server::ServerFault;
use cloud_fixtures::tampering;
use data_encoding::BASE64;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

/// 2027-01-15, 08:00 UTC, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const METADATA: &[(&str, &str)] = &[("Metadata", "true")];

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn nonce() -> ImdsNonce {
    ImdsNonce::derive(&[7; 32])
}

fn trust(authority: &AzureAuthority, intermediates: Vec<CertificateDer<'static>>) -> AzureTrust {
    AzureTrust::new(vec![AzureCloud::Public], std::slice::from_ref(authority.root()), intermediates).unwrap()
}

fn metadata() -> (AzureMetadataServer, Arc<AzureAuthority>) {
    let authority = Arc::new(AzureAuthority::new("eastus"));
    let server = AzureMetadataServer::start(AzureMachine::default(), authority.clone());
    server.clock().set(NOW);
    (server, authority)
}

fn signature(answer: &Answered) -> String {
    let value: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((answer.status, &value["encoding"]), (200, &json!("pkcs7")));
    value["signature"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_attested_document_is_verified() {
    let (server, authority) = metadata();
    let signature = signature(&ask(&server, "GET", &attested_document::imds_path(&nonce()), METADATA).await);
    let trust = trust(&authority, vec![authority.intermediate().clone()]);
    let document = attested_document::verify(signature.as_bytes(), &trust, &nonce(), at(NOW)).unwrap();
    let identity = "azure:8a205152-b25a-417f-a676-80465535a6c9/b1310a36-d400-46f6-82cb-6217df846586";
    assert_eq!(
        (document.node_identity().as_str(), document.location.as_deref()),
        (identity, Some("eastus"))
    );
    assert_eq!((document.created_on, document.expires_on), (NOW, NOW + 6 * 3600));

    // The issuer that the certificate names is one that may be fetched.
    let urls = IssuerUrls::from_certificate(authority.leaf());
    assert_eq!(
        urls.allowed.iter().map(attested_document::AllowedUrl::as_str).collect::<Vec<_>>(),
        [ISSUER_URL]
    );
    assert!(urls.refused.is_empty());
}

#[tokio::test]
async fn imds_repeats_its_answer_if_configured() {
    let (server, authority) = metadata();
    let trust = trust(&authority, vec![authority.intermediate().clone()]);
    let code = async |nonce: &ImdsNonce| {
        let signature = signature(&ask(&server, "GET", &attested_document::imds_path(nonce), METADATA).await);
        attested_document::verify(signature.as_bytes(), &trust, nonce, at(NOW))
            .map_err(|error| error.code())
            .map(drop)
    };
    let other = ImdsNonce::derive(&[8; 32]);
    server.set_repeating(true);
    assert_eq!((code(&nonce()).await, code(&other).await), (Ok(()), Err("azure-document-nonce")));
    server.set_repeating(false);
    assert_eq!(code(&other).await, Ok(()));
    server.set_authority(Arc::new(AzureAuthority::new("eastus")));
    assert_eq!(code(&other).await, Err("azure-document-certificate"));
}

#[tokio::test]
async fn serves_vm_metadata_and_user_data() {
    let (server, _authority) = metadata();
    let text = async |path: &str| {
        ask(
            &server,
            "GET",
            &format!("/metadata/instance/compute/{path}?api-version=2021-01-01&format=text"),
            METADATA,
        )
        .await
    };
    assert_eq!(text("userData").await.body, "");
    server.set_user_data(Some(b"{\"ignition\":{}}"));
    assert_eq!(BASE64.decode(text("userData").await.body.as_bytes()).unwrap(), b"{\"ignition\":{}}");
    assert_eq!(text("location").await.body, "eastus");
    assert_eq!(text("vmId").await.body, "b1310a36-d400-46f6-82cb-6217df846586");
    assert_eq!(text("other").await.status, 404);
    let all = ask(&server, "GET", "/metadata/instance?api-version=2021-02-01", METADATA).await;
    let all: Value = serde_json::from_str(&all.body).unwrap();
    assert_eq!(
        (&all["compute"]["name"], &all["compute"]["azEnvironment"]),
        (&json!("worker-7"), &json!("AzurePublicCloud"))
    );
    server.change_machine(|machine| machine.location = "westus".to_owned());
    assert_eq!(text("location").await.body, "westus");
}

#[tokio::test]
async fn imds_rejects_invalid_requests() {
    let (server, _authority) = metadata();
    let check = async |method: &str, target: &str, headers: &[(&str, &str)], expect: u16| {
        let answer = ask(&server, method, target, headers).await;
        assert_eq!(answer.status, expect, "{method} {target} {headers:?}: {}", answer.body);
        answer
    };
    let attested = "/metadata/attested/document?api-version=2020-09-01";
    check("GET", attested, METADATA, 200).await;
    check("GET", attested, &[], 400).await;
    check("GET", attested, &[("Metadata", "false")], 400).await;
    check("GET", attested, &[("Metadata", "true"), ("X-Forwarded-For", "10.0.0.1")], 400).await;
    check("POST", attested, METADATA, 405).await;
    for nonce in ["", "12345-7890", "1234%2067890", "%C3%A4", &"a".repeat(33)] {
        check("GET", &format!("{attested}&nonce={nonce}"), METADATA, 400).await;
    }
    for nonce in ["1", "1234567890", "aB3", &"Z".repeat(32)] {
        check("GET", &format!("{attested}&nonce={nonce}"), METADATA, 200).await;
    }
    for version in ["/metadata/instance", "/metadata/instance?api-version=latest"] {
        let answer = check("GET", version, METADATA, 400).await;
        assert!(answer.body.contains("newest-versions"), "{}", answer.body);
    }
    // A single value is given as text only.
    check("GET", "/metadata/instance/compute/vmId?api-version=2021-01-01", METADATA, 400).await;
    check("GET", "/metadata/other?api-version=2021-01-01", METADATA, 404).await;
    check("GET", "/latest/user-data", METADATA, 404).await;
}

#[test]
fn verifier_rejects_each_altered_attested_document_value() {
    let (authority, other) = (AzureAuthority::new("eastus"), AzureAuthority::new("eastus"));
    let trust = trust(&authority, vec![authority.intermediate().clone()]);
    let document = AzureMachine::default().document(Some(nonce().as_str()), NOW);
    let rules: AttestedDocumentRules = serde_json::from_value(json!({
        "subscriptions": ["8a205152-b25a-417f-a676-80465535a6c9"],
        "vm_ids": ["b1310a36-d400-46f6-82cb-6217df846586"],
        "skus": ["20_04-lts-gen2"],
    }))
    .unwrap();
    let verify = |text: &str| attested_document::verify(text.as_bytes(), &trust, &nonce(), at(NOW));
    let accepted = |text: &str| verify(text).is_ok_and(|document| attested_document::appraise(&document, &rules, at(NOW)).is_ok());
    let code = |text: String| verify(&text).unwrap_err().code();
    assert!(accepted(&authority.sign(&document)));
    for (path, altered) in tampering::each_value(&document) {
        assert_eq!(
            code(tampering::unsigned_attested_document(&authority, &document, &altered)),
            "azure-document-signature",
            "{path}"
        );
        assert_eq!(
            code(tampering::foreign_attested_document(&authority, other.signer(), &altered)),
            "azure-document-signature",
            "{path}"
        );
        assert_eq!(code(other.sign(&altered)), "azure-document-certificate", "{path}");
        // Azure itself says it. No rule is about these:
        let free = path == "/licenseType" || path.starts_with("/plan/");
        assert_eq!(accepted(&authority.sign(&altered)), free, "{path}");
    }
}

#[tokio::test]
async fn serves_the_issuer_certificate() {
    let (authority, other) = (AzureAuthority::new("eastus"), AzureAuthority::new("eastus"));
    let server = Aia::start(authority.intermediate());
    let client = client::client(&server, None, &["www.microsoft.com"]);
    let get = async |host: &str, path: &str| {
        let url = format!("http://{host}:{}{path}", server.address().port());
        client.get(url).send().await.unwrap()
    };
    let path = ISSUER_URL.strip_prefix("http://www.microsoft.com").unwrap();
    let fetched = async || {
        let answer = get("www.microsoft.com", path).await;
        assert_eq!(answer.status(), 200);
        CertificateDer::from(answer.bytes().await.unwrap().to_vec())
    };
    let text = authority.sign(&AzureMachine::default().document(Some(nonce().as_str()), NOW));
    let verify = |trust: &AzureTrust| attested_document::verify(text.as_bytes(), trust, &nonce(), at(NOW));
    let without = trust(&authority, vec![]);
    assert!(verify(&without).unwrap_err().is_unknown_issuer());
    let complete = without.clone().with_intermediates(vec![fetched().await]).unwrap();
    assert!(verify(&complete).is_ok());

    server.set_certificate(other.intermediate());
    let foreign = without.with_intermediates(vec![fetched().await]).unwrap();
    assert!(verify(&foreign).is_err());
    assert_eq!(get("www.microsoft.com", "/pkiops/certs/other.crt").await.status(), 404);
    assert_eq!(get("127.0.0.1", path).await.status(), 404);
    server.fail(ServerFault::Status(404));
    assert_eq!(get("www.microsoft.com", path).await.status(), 404);
}
