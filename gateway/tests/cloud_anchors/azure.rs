//! Fetched CAs of Azure: certificates that complete a chain, and others.

use std::sync::Arc;

use attest::azure::attested_document::{AttestedDocumentError, ImdsNonce, verify};
use attest_gateway::cloud::{AzureTrustInUse, Clouds};
use cloud_fixtures::azure::attested_document::{ISSUER_URL, access};
use cloud_fixtures::azure::{Aia, AzureAuthority, AzureMachine, metadata_params};
use cloud_fixtures::pkcs7::{Pkcs7Key, TestMessage, ca_params, issued};
use cloud_fixtures::server::{ServerAnswer, ServerFault, TestServer, loopback};
use futures_util::future::join_all;
use rcgen::RsaKeySize;
use rustls_pki_types::CertificateDer;

use super::setup::{NOW, Setup, at};

const NONCE: &str = "1234567890";
/// Hosts from which these tests fetch intermediates.
const HOSTS: [&str; 2] = ["www.microsoft.com", "cacerts.digicert.com"];
const NAMES: [&str; 1] = ["eastus.metadata.azure.com"];

struct Azure {
    authority: AzureAuthority,
    aia: Aia,
    setup: Setup,
}

impl Azure {
    fn start() -> Self {
        Self::new(AzureAuthority::new("eastus"))
    }

    fn new(authority: AzureAuthority) -> Self {
        let aia = Aia::start(authority.intermediate());
        let mut setup = Setup::new();
        setup.connect(&HOSTS, aia.address(), None);
        setup.write("azure-roots/root.pem", authority.root_pem());
        Self { authority, aia, setup }
    }

    fn signature(&self) -> String {
        signature(&self.authority)
    }

    /// Returns the number of requests to Microsoft since the last call.
    fn fetches(&self) -> usize {
        let requests = self.aia.requests().len();
        self.aia.forget_requests();
        requests
    }
}

fn signature(authority: &AzureAuthority) -> String {
    authority.sign(&AzureMachine::default().document(Some(NONCE), NOW))
}

fn holds(signature: &str, trust: &AzureTrustInUse) -> Result<(), AttestedDocumentError> {
    let nonce = ImdsNonce::recorded(NONCE).unwrap();
    verify(signature.as_bytes(), &trust.trust, &nonce, at(NOW)).map(drop)
}

/// Returns whether the document is valid with the intermediates that are fetched at this time.
async fn completed(clouds: &Clouds, signature: &str, now: u64) -> bool {
    match clouds.completed_azure_trust(signature.as_bytes(), at(now)).await {
        Some(trust) => {
            holds(signature, &trust).unwrap();
            true
        }
        None => false,
    }
}

#[tokio::test]
async fn an_intermediate_is_fetched_once_and_kept() {
    let azure = Azure::start();
    let clouds = azure.setup.open();
    let signature = azure.signature();
    let error = holds(&signature, &clouds.azure_trust()).unwrap_err();
    assert!(error.is_unknown_issuer(), "{error}");
    let all = join_all((0..50).map(|_| completed(&clouds, &signature, NOW))).await;
    assert!(all.into_iter().all(|done| done));
    assert_eq!(azure.fetches(), 1);
    let trust = clouds.azure_trust();
    holds(&signature, &trust).unwrap();
    assert_eq!(
        trust.certificates.as_ref(),
        [azure.authority.root().clone(), azure.authority.intermediate().clone()]
    );
    // Without a network, and long after.
    azure.aia.fail(ServerFault::Down);
    assert!(completed(&clouds, &signature, NOW + 100).await);
    azure
        .setup
        .measured(r#"attest_gateway_cloud_fetches_total{what="azure-issuer",result="answered"} 1"#);
}

#[tokio::test]
async fn an_intermediate_may_be_pem() {
    let azure = Azure::start();
    azure.aia.set_certificate(azure.authority.intermediate_pem().as_bytes());
    assert!(completed(&azure.setup.open(), &azure.signature(), NOW).await);
}

#[tokio::test]
async fn fetches_no_unneeded_or_disabled_intermediate() {
    let check = async |change: &dyn Fn(&mut Azure), done: bool| {
        let mut azure = Azure::start();
        change(&mut azure);
        assert_eq!(completed(&azure.setup.open(), &azure.signature(), NOW).await, done);
        assert_eq!(azure.fetches(), 0);
    };
    let intermediate = |azure: &mut Azure| {
        azure.setup.write("azure-intermediates/a.pem", azure.authority.intermediate_pem());
    };
    check(&intermediate, true).await;
    check(&|azure| azure.setup.settings.azure.fetch_intermediates = false, false).await;
    check(
        &|azure| std::fs::remove_file(azure.setup.path("azure-roots/root.pem")).unwrap(),
        false,
    )
    .await;
    check(&|azure| azure.setup.settings.azure.clouds = Vec::new(), false).await;
    let azure = Azure::start();
    for nonsense in ["", "AAAA", "no base64!"] {
        assert!(!completed(&azure.setup.open(), nonsense, NOW).await);
    }
    assert_eq!(azure.fetches(), 0);
}

#[tokio::test]
async fn attack_19_fetches_intermediates_only_from_allowed_urls() {
    for url in [
        "http://evil.example/pkiops/certs/a.crt",
        "http://www.microsoft.com/other/a.crt",
        "http://127.0.0.1/pkiops/certs/a.crt",
        "http://www.microsoft.com:8080/pkiops/certs/a.crt",
    ] {
        let mut azure = Azure::new(AzureAuthority::with(&NAMES, &[url]));
        azure.setup.connect(&["evil.example"], azure.aia.address(), None);
        assert!(!completed(&azure.setup.open(), &azure.signature(), NOW).await, "{url}");
        assert_eq!(azure.fetches(), 0, "{url}");
    }
    // The second place may be better.
    let azure = Azure::new(AzureAuthority::with(
        &NAMES,
        &["http://evil.example/a.crt", "http://cacerts.digicert.com/a.crt", ISSUER_URL],
    ));
    assert!(completed(&azure.setup.open(), &azure.signature(), NOW).await);
    assert_eq!(azure.fetches(), 2);
}

#[tokio::test]
async fn attack_19_refuses_an_intermediate_outside_the_chain() {
    let somebody = AzureAuthority::new("eastus");
    let check = async |alter: &dyn Fn(&Azure)| {
        let azure = Azure::start();
        let clouds = azure.setup.open();
        alter(&azure);
        assert!(!completed(&clouds, &azure.signature(), NOW).await);
        assert!(azure.fetches() <= 1, "no redirect, no second attempt");
        // For a while nobody is asked again, and nothing of it is kept.
        assert!(!completed(&clouds, &azure.signature(), NOW + 59).await);
        assert_eq!(azure.fetches(), 0);
        assert_eq!(clouds.azure_trust().certificates.len(), 1);
    };
    check(&|azure| azure.aia.fail(ServerFault::Status(404))).await;
    check(&|azure| azure.aia.fail(ServerFault::Garbage)).await;
    check(&|azure| azure.aia.fail(ServerFault::Huge)).await;
    check(&|azure| azure.aia.fail(ServerFault::Redirect(ISSUER_URL.to_owned()))).await;
    check(&|azure| azure.aia.fail(ServerFault::Down)).await;
    check(&|azure| azure.aia.set_certificate(azure.authority.root())).await;
    check(&|azure| azure.aia.set_certificate(azure.authority.leaf())).await;
    check(&|azure| azure.aia.set_certificate(somebody.intermediate())).await;
    check(&|azure| {
        azure.aia.set_certificate(
            &[azure.authority.intermediate_pem(), somebody.intermediate_pem()]
                .concat()
                .into_bytes(),
        )
    })
    .await;
}

#[tokio::test]
async fn retries_a_failed_intermediate_fetch_later() {
    let azure = Azure::start();
    let clouds = azure.setup.open();
    azure.aia.fail(ServerFault::Status(503));
    assert!(!completed(&clouds, &azure.signature(), NOW).await);
    azure.aia.recover();
    assert!(!completed(&clouds, &azure.signature(), NOW + 59).await);
    assert!(completed(&clouds, &azure.signature(), NOW + 60).await);
    assert_eq!(azure.fetches(), 2);
}

#[tokio::test]
async fn slow_intermediate_fetch_times_out() {
    let mut azure = Azure::start();
    azure.setup.impatient();
    azure.aia.fail(ServerFault::Slow);
    assert!(!completed(&azure.setup.open(), &azure.signature(), NOW).await);
}

#[tokio::test]
async fn attack_12_a_forged_document_adds_no_intermediate() {
    let azure = Azure::start();
    let clouds = azure.setup.open();
    // Another hierarchy, with names as Azure's and an intermediate that can be fetched.
    let stranger = AzureAuthority::new("eastus");
    azure.aia.set_certificate(stranger.intermediate());
    assert!(!completed(&clouds, &signature(&stranger), NOW).await);
    assert_eq!(azure.fetches(), 1);
    // The real signer's certificate, which is no secret, and another key's signature.
    let azure = Azure::start();
    let clouds = azure.setup.open();
    let document = AzureMachine::default().document(Some(NONCE), NOW).to_string();
    let forged = TestMessage::azure(document.as_bytes(), azure.authority.leaf()).sign(&Pkcs7Key::new(RsaKeySize::_2048));
    assert!(!completed(&clouds, &data_encoding::BASE64.encode(&forged), NOW).await);
    assert_eq!(clouds.azure_trust().certificates.len(), 1);
    assert!(
        completed(&clouds, &azure.signature(), NOW).await,
        "the real one is not hindered by it"
    );
}

/// Chain of this many CAs below a root, each of which has the address of the next one.
struct Long {
    root: CertificateDer<'static>,
    signature: String,
    server: TestServer,
}

fn long(length: u64) -> Long {
    let key = Arc::new(Pkcs7Key::new(RsaKeySize::_2048));
    let url = |number: u64| format!("http://cacerts.digicert.com/{number}.crt");
    let name = |number: u64| format!("CA {number}");
    let root = ca_params(&name(0), 1);
    let mut certificates: Vec<CertificateDer<'static>> = vec![root.self_signed(&key.pair).unwrap().into()];
    let mut issuer = root;
    for number in 1..=length {
        let mut params = ca_params(&name(number), number);
        params.custom_extensions = vec![access(&[&url(number - 1)])];
        certificates.push(issued(&params, &key, &issuer, &key));
        issuer = params;
    }
    let mut leaf = metadata_params(&NAMES);
    leaf.custom_extensions = vec![access(&[&url(length)])];
    let leaf = issued(&leaf, &key, &issuer, &key);
    let document = AzureMachine::default().document(Some(NONCE), NOW).to_string();
    let signature = data_encoding::BASE64.encode(&TestMessage::azure(document.as_bytes(), &leaf).sign(&key));
    let root = certificates[0].clone();
    let server = TestServer::start(loopback(), None, move |request| {
        let number = request.path().trim_matches(|char: char| !char.is_ascii_digit()).parse::<usize>();
        match number.ok().and_then(|number| certificates.get(number)) {
            Some(certificate) => ServerAnswer::new(200, "application/pkix-cert", certificate.to_vec()),
            None => ServerAnswer::new(404, "text/plain", ""),
        }
    });
    Long { root, signature, server }
}

#[tokio::test]
async fn attack_19_number_of_fetched_intermediates_is_limited() {
    for (length, done) in [(2, true), (3, true), (4, false), (6, false)] {
        let chain = long(length);
        let mut setup = Setup::new();
        setup.connect(&HOSTS, chain.server.address(), None);
        setup.write("azure-roots/root.der", &chain.root);
        let clouds = setup.open();
        assert_eq!(completed(&clouds, &chain.signature, NOW).await, done, "{length}");
        assert_eq!(chain.server.requests().len(), usize::try_from(length.min(3)).unwrap(), "{length}");
        let kept = clouds.azure_trust().certificates.len();
        assert_eq!(kept, if done { 1 + usize::try_from(length).unwrap() } else { 1 });
    }
}

#[tokio::test]
async fn attack_19_forged_documents_cause_few_fetches() {
    let azure = Azure::start();
    let clouds = azure.setup.open();
    let key = Pkcs7Key::new(RsaKeySize::_2048);
    let issuer = ca_params("Nobody", 1);
    let invented = |number: u64| {
        let mut leaf = metadata_params(&NAMES);
        leaf.custom_extensions = vec![access(&[&format!("http://cacerts.digicert.com/{number}.crt")])];
        let leaf = issued(&leaf, &key, &issuer, &key);
        let document = AzureMachine::default().document(Some(NONCE), NOW).to_string();
        data_encoding::BASE64.encode(&TestMessage::azure(document.as_bytes(), &leaf).sign(&key))
    };
    for number in 0..40 {
        assert!(!completed(&clouds, &invented(number), NOW).await);
    }
    assert_eq!(azure.fetches(), 30);
    azure
        .setup
        .measured(r#"attest_gateway_cloud_fetches_total{what="azure-issuer",result="limited"} 10"#);
    assert!(
        !completed(&clouds, &azure.signature(), NOW + 30).await,
        "what it costs the others: a while"
    );
    assert!(completed(&clouds, &azure.signature(), NOW + 60).await);
}
