//! Checks that the verifiers accept the evidence of the clouds' stand-ins: attester and verifier in one test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use attest::SpkiSha256;
use attest::aws::identity_document::{self, RegionCertificates};
use attest::azure::attested_document::{AzureCloud, AzureTrust, ImdsNonce};
use attest::gcp::{Audience, GoogleKeys};
use attest::nonce::PURPOSE_CONFIG;
use attest_node::cloud::{Cloud, MetadataClient, aws, azure, detect, gcp, user_data};
use attest_node::deadline::Deadline;
use cloud_fixtures::server::{ServerFault, TestServer};
use cloud_fixtures::{aws as amazon, azure as microsoft, clock, google};
use rustls_pki_types::UnixTime;

const NONCE: [u8; 32] = [7; 32];
const SERVER_KEY: SpkiSha256 = SpkiSha256([9; 32]);

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn metadata(server: &TestServer) -> MetadataClient {
    MetadataClient::new(&server.url().parse().unwrap()).unwrap()
}

/// The cloud is recognised, and its user data is found, or found to be absent.
fn check_cloud(server: &TestServer, cloud: Cloud, set: impl Fn(Option<&[u8]>)) {
    let metadata = metadata(server);
    assert_eq!(detect::search(&metadata, long()), Some(cloud));
    set(Some(b"{\"ignition\":{}}"));
    let found = user_data(cloud, &metadata, long()).unwrap();
    assert_eq!(found.unwrap().as_slice(), b"{\"ignition\":{}}");
    // Without user data, Azure's custom data is looked for on a CD.
    if cloud != Cloud::Azure {
        set(None);
        assert_eq!(user_data(cloud, &metadata, long()), Ok(None));
    }
}

#[test]
fn stand_in_clouds_are_detected_with_user_data() {
    let now = clock::now();
    let server = google::GoogleMetadataServer::start(google::GoogleInstance::example(now), google::StandInKeys::new());
    check_cloud(&server, Cloud::Gcp, |data| server.set_user_data(data));
    let authority = Arc::new(amazon::RegionAuthority::new(1));
    let server = amazon::AwsMetadataServer::start(amazon::AwsInstance::example(now), authority, None);
    check_cloud(&server, Cloud::Aws, |data| server.set_user_data(data));
    let authority = Arc::new(microsoft::AzureAuthority::new("westeurope"));
    let server = microsoft::AzureMetadataServer::start(microsoft::AzureMachine::default(), authority);
    check_cloud(&server, Cloud::Azure, |data| server.set_user_data(data));
}

fn check_fault(fault: ServerFault, said: &str) {
    let server = google::GoogleMetadataServer::start(google::GoogleInstance::example(clock::now()), google::StandInKeys::new());
    server.fail(fault.clone());
    let found = user_data(Cloud::Gcp, &metadata(&server), Deadline::after(Duration::from_secs(2)));
    let message = found.unwrap_err().to_string();
    assert!(message.contains(said), "{fault:?}: {message}");
}

#[test]
fn faults_of_a_metadata_server_are_bounded() {
    check_fault(ServerFault::Down, "cannot be reached");
    check_fault(ServerFault::Slow, "cannot be reached");
    check_fault(ServerFault::Huge, "more than 1048576 bytes");
    check_fault(
        ServerFault::Redirect("http://169.254.169.254/x".to_owned()),
        "refuses with status 302",
    );
    check_fault(ServerFault::Status(503), "answers 503");
    check_fault(ServerFault::Status(403), "refuses with status 403");
}

#[test]
fn an_identity_token_of_google_verifies() {
    let now = clock::now();
    let (keys, instance) = (google::StandInKeys::new(), google::GoogleInstance::example(now - 60));
    let server = google::GoogleMetadataServer::start(instance, Arc::clone(&keys));
    let metadata = metadata(&server);
    assert_eq!(gcp::has_identity(&metadata, long()), Ok(true));
    let audience = Audience::new("api-int.example", PURPOSE_CONFIG, "worker", &NONCE, &SERVER_KEY);
    let token = gcp::identity_token(&metadata, &audience, long()).unwrap();
    let trusted = GoogleKeys::from_jwks(keys.jwks().to_string().as_bytes()).unwrap();
    let verified = attest::gcp::verify(token.as_bytes(), &trusted, &[audience], UnixTime::now()).unwrap();
    assert_eq!(gcp::instance_of(&token), Some(verified.identity()));
}

#[test]
fn an_identity_document_of_amazon_verifies() {
    let instance = amazon::AwsInstance::example(clock::now() - 60);
    let authority = Arc::new(amazon::RegionAuthority::new(1));
    let certificates = BTreeMap::from([(instance.region.clone(), vec![authority.certificate().clone()])]);
    let server = amazon::AwsMetadataServer::start(instance, Arc::clone(&authority), None);
    let metadata = metadata(&server);
    let session = aws::ImdsSession::open(&metadata, long()).unwrap();
    let document = session.identity_document(long()).unwrap();
    let certificates = RegionCertificates::new(certificates).unwrap();
    identity_document::verify(document.as_bytes(), &certificates, UnixTime::now()).unwrap();
    assert_eq!(session.instance(long()).as_deref(), Some("aws:123456789012/i-0123456789abcdef0"));
    assert_eq!(session.role(long()), Ok(None));
}

#[test]
fn a_request_to_sts_has_the_signature_that_amazon_computes() {
    let instance = amazon::AwsInstance::example(clock::now() - 60);
    let region = instance.region.clone();
    let credentials = amazon::RoleSession::for_instance(&instance, clock::now());
    let authority = Arc::new(amazon::RegionAuthority::new(1));
    let server = amazon::AwsMetadataServer::start(instance, authority, Some(credentials.clone()));
    let metadata = metadata(&server);
    let session = aws::ImdsSession::open(&metadata, long()).unwrap();
    let role = session.role(long()).unwrap().unwrap();
    let request = session.sts_request(&role, &"0f".repeat(32), SystemTime::now(), long()).unwrap();
    let headers = request.headers.iter().map(|header| (header.name.clone(), header.value.to_string()));
    let (authorization, signed): (Vec<_>, Vec<_>) = headers.partition(|(name, _)| name == "authorization");
    let date = &signed.iter().find(|(name, _)| name == "x-amz-date").unwrap().1;
    assert_eq!(authorization[0].1, credentials.authorization(&signed, &region, date));
}

#[test]
fn azure_document_verifies_after_a_stale_one() {
    let authority = Arc::new(microsoft::AzureAuthority::new("westeurope"));
    let server = microsoft::AzureMetadataServer::start(microsoft::AzureMachine::default(), Arc::clone(&authority));
    let (metadata, nonce) = (metadata(&server), ImdsNonce::derive(&NONCE));
    let trust = AzureTrust::new(
        vec![AzureCloud::Public],
        std::slice::from_ref(authority.root()),
        vec![authority.intermediate().clone()],
    )
    .unwrap();
    let verify = |signature: &str| attest::azure::attested_document::verify(signature.as_bytes(), &trust, &nonce, UnixTime::now());
    let signature = azure::attested_document(&metadata, &nonce, long()).unwrap();
    let verified = verify(&signature).unwrap();
    assert_eq!(azure::machine_of(&signature), Some(verified.node_identity()));
    server.set_repeating(true);
    azure::attested_document(&metadata, &ImdsNonce::derive(&[8; 32]), long()).unwrap();
    let before = server.requests().len();
    let repeated = azure::attested_document(&metadata, &nonce, Deadline::after(Duration::from_secs(3))).unwrap();
    assert!(server.requests().len() - before >= 2);
    assert_eq!(verify(&repeated).unwrap_err().code(), "azure-document-nonce");
}
