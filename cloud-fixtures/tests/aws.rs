//! Tests of AWS's stand-ins: the verifier accepts their signatures, and they refuse the requests that AWS refuses.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{Answered, ask, client, read};
use attest::aws::identity_document::{self, IMDS_PATH, IdentityDocumentRules, RegionCertificateProblem, RegionCertificates};
use attest::aws::nitro_tpm::{self, NitroRoots, expected_user_data};
use attest::aws::sts::{self, BODY, SignedRequest, StsRules, expected_server_id};
use attest::nonce::PURPOSE_CONFIG;
use attest::{SpkiSha256, UnixTime};
use cloud_fixtures::aws::session::sts_host;
use cloud_fixtures::aws::sigv4::SigV4Request;
use cloud_fixtures::aws::sts::SKEW_SECONDS;
use cloud_fixtures::aws::{AwsInstance, AwsMetadataServer, NitroAuthority, RegionAuthority, RoleSession, StsServer, WeakAuthority};
use cloud_fixtures::clock::compact;
use cloud_fixtures::tampering;
use serde_json::{Value, json};

/// 2027-01-15, 08:00 UTC, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const NONCE: [u8; 32] = [7; 32];
const SERVER_KEY: SpkiSha256 = SpkiSha256([9; 32]);
const REGION: &str = "eu-central-1";
const TTL: (&str, &str) = ("X-aws-ec2-metadata-token-ttl-seconds", "60");

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn instance() -> AwsInstance {
    AwsInstance::example(NOW - 60)
}

fn metadata(session: Option<RoleSession>) -> (AwsMetadataServer, Arc<RegionAuthority>) {
    let authority = Arc::new(RegionAuthority::new(1));
    let server = AwsMetadataServer::start(instance(), authority.clone(), session);
    server.clock().set(NOW);
    (server, authority)
}

async fn token(server: &AwsMetadataServer) -> String {
    let answer = ask(server, "PUT", "/latest/api/token", &[TTL]).await;
    assert_eq!(
        (answer.status, answer.header("x-aws-ec2-metadata-token-ttl-seconds")),
        (200, Some("60"))
    );
    answer.body
}

async fn get(server: &AwsMetadataServer, path: &str) -> Answered {
    let token = token(server).await;
    ask(server, "GET", path, &[("X-aws-ec2-metadata-token", &token)]).await
}

fn certificates(authority: &RegionAuthority) -> RegionCertificates {
    RegionCertificates::new([(REGION.to_owned(), vec![authority.certificate().clone()])].into()).unwrap()
}

#[tokio::test]
async fn an_identity_document_is_verified() {
    let (server, authority) = metadata(None);
    let answer = get(&server, IMDS_PATH).await;
    let verified = identity_document::verify(answer.body.as_bytes(), &certificates(&authority), at(NOW)).unwrap();
    assert_eq!(verified.replayable().node_identity(), "aws:123456789012/i-0123456789abcdef0");
    assert_eq!(verified.replayable().pending_time, NOW - 60);
    let document: Value = serde_json::from_str(&get(&server, "/latest/dynamic/instance-identity/document").await.body).unwrap();
    assert_eq!(document, instance().identity_document());
}

#[tokio::test]
async fn imds_requires_a_session_token() {
    let (server, _authority) = metadata(None);
    let check = async |method: &str, path: &str, headers: &[(&str, &str)], expect: u16| {
        assert_eq!(
            ask(&server, method, path, headers).await.status,
            expect,
            "{method} {path} {headers:?}"
        );
    };
    let ttl = |seconds: &'static str| [(TTL.0, seconds)];
    let token_path = "/latest/api/token";
    check("PUT", token_path, &[], 400).await;
    for seconds in ["0", "21601", "-1", "", "x"] {
        check("PUT", token_path, &ttl(seconds), 400).await;
    }
    check("PUT", token_path, &ttl("1"), 200).await;
    check("PUT", token_path, &ttl("21600"), 200).await;
    check("PUT", token_path, &[TTL, ("X-Forwarded-For", "10.0.0.1")], 403).await;
    check("GET", token_path, &[TTL], 401).await;
    check("PUT", "/latest/user-data", &[TTL], 405).await;

    let token = token(&server).await;
    let id = "/latest/meta-data/instance-id";
    check("GET", id, &[], 401).await;
    check("GET", id, &[("X-aws-ec2-metadata-token", "")], 401).await;
    check("GET", id, &[("X-aws-ec2-metadata-token", &token[1..])], 401).await;
    let session = [("X-aws-ec2-metadata-token", token.as_str())];
    check("GET", id, &session, 200).await;
    check("POST", id, &session, 405).await;
    check("GET", "/newest/meta-data/instance-id", &session, 404).await;
    server.clock().set(NOW + 59);
    check("GET", id, &session, 200).await;
    server.clock().set(NOW + 60);
    check("GET", id, &session, 401).await;
}

#[tokio::test]
async fn serves_instance_metadata_and_user_data() {
    let session = RoleSession::for_instance(&instance(), NOW);
    let (server, _authority) = metadata(Some(session.clone()));
    assert_eq!(get(&server, "/latest/user-data").await.status, 404);
    server.set_user_data(Some(b"{\"ignition\":{}}"));
    for (path, value) in [
        ("/latest/user-data", "{\"ignition\":{}}"),
        // Versions that programs ask for, Ignition among them.
        ("/2009-04-04/user-data", "{\"ignition\":{}}"),
        ("/2019-10-01/user-data", "{\"ignition\":{}}"),
        ("/latest/meta-data/instance-id", "i-0123456789abcdef0"),
        ("/latest/meta-data/placement/region", REGION),
        ("/latest/meta-data/iam/security-credentials/", "worker-role"),
    ] {
        let answer = get(&server, path).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, value), "{path}");
    }
    let credentials = get(&server, "/latest/meta-data/iam/security-credentials/worker-role").await;
    assert_eq!(serde_json::from_str::<Value>(&credentials.body).unwrap(), session.credentials());
    assert_eq!(get(&server, "/latest/meta-data/iam/security-credentials/other").await.status, 404);
    server.set_session(None);
    assert_eq!(get(&server, "/latest/meta-data/iam/security-credentials/").await.status, 404);
}

#[tokio::test]
async fn verifier_rejects_weak_identity_document_forms() {
    let (server, authority) = metadata(None);
    let regions = certificates(&authority);
    let code = |text: &str| identity_document::verify(text.as_bytes(), &regions, at(NOW)).unwrap_err().code();
    let dsa = get(&server, "/latest/dynamic/instance-identity/pkcs7").await;
    assert_eq!((dsa.status, code(&dsa.body)), (200, "aws-document-algorithm"));
    let signature = get(&server, "/latest/dynamic/instance-identity/signature").await;
    // 128 bytes.
    assert_eq!(
        (signature.status, signature.body.len(), code(&signature.body)),
        (200, 172, "aws-document-malformed")
    );

    let weak = WeakAuthority::new();
    let text = RegionAuthority::text(&instance().identity_document());
    assert_eq!(code(&weak.message(text.as_bytes())), "aws-document-signer");
    let certificate = RegionCertificates::new([(REGION.to_owned(), vec![weak.certificate().clone()])].into());
    let error = certificate.unwrap_err();
    assert!(matches!(error.problem, RegionCertificateProblem::Certificate { .. }), "{error}");
}

#[test]
fn verifier_rejects_each_altered_identity_document_value() {
    let (authority, other) = (RegionAuthority::new(1), RegionAuthority::new(1));
    let regions = certificates(&authority);
    let document = instance().identity_document();
    let rules: IdentityDocumentRules = serde_json::from_value(json!({
        "accept_replayable": true,
        "accounts": ["123456789012"],
        "regions": [REGION],
        "availability_zones": ["eu-central-1a"],
        "image_ids": ["ami-0b76fe9a9986f66a7"],
        "instance_types": ["m7i.large"],
        "max_age_seconds": 60,
    }))
    .unwrap();
    let accepted = |text: &str| {
        identity_document::verify(text.as_bytes(), &regions, at(NOW))
            .is_ok_and(|verified| identity_document::appraise(&verified, &rules, at(NOW)).is_ok())
    };
    let code = |text: String| identity_document::verify(text.as_bytes(), &regions, at(NOW)).unwrap_err().code();
    assert!(accepted(&authority.sign(&document)));
    for (path, altered) in tampering::each_value(&document) {
        assert_eq!(
            code(tampering::unsigned_identity_document(&authority, &document, &altered)),
            "aws-document-signature",
            "{path}"
        );
        assert_eq!(
            code(tampering::foreign_identity_document(&authority, other.key(), &altered)),
            "aws-document-signature",
            "{path}"
        );
        // The region itself says it. No rule is about these:
        let free = [
            "/architecture",
            "/instanceId",
            "/privateIp",
            "/version",
            "/kernelId",
            "/ramdiskId",
            "/devpayProductCodes",
        ];
        let free = free.contains(&path.as_str());
        assert_eq!(accepted(&authority.sign(&altered)), free, "{path}");
    }
    let text = authority.sign(&document);
    for flipped in tampering::each_byte_of_base64(&text) {
        assert!(identity_document::verify(flipped.as_bytes(), &regions, at(NOW)).is_err());
    }
}

#[test]
fn nitro_tpm_documents_are_verified() {
    let authority = NitroAuthority::new();
    let user_data = expected_user_data(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY);
    let document = || authority.document("i-0123456789abcdef0", REGION, &NONCE, &user_data, NOW);
    let roots = NitroRoots::new(&[authority.root()]).unwrap();
    let expected = nitro_tpm::Expected {
        nonce: &NONCE,
        purpose: PURPOSE_CONFIG,
        pool: "worker",
        server_keys: &[SERVER_KEY],
    };
    let verify = |document: &[u8]| nitro_tpm::verify(document, &roots, &expected, at(NOW));
    let verified = verify(&document().document()).unwrap();
    assert_eq!(verified.identity(), "aws-nitrotpm:i-0123456789abcdef0");
    let pem = rustls_pki_types::pem::PemObject::from_pem_slice(authority.root_pem().as_bytes());
    assert_eq!(authority.root(), pem.unwrap());

    let other = tampering::unsigned_nitro_document(document(), |document| document.set_pcr(4, Some(vec![0xff; 48])));
    assert_eq!(verify(&other).unwrap_err().code(), "nitro-tpm-signature");
    let foreign = NitroAuthority::new().document("i-0123456789abcdef0", REGION, &NONCE, &user_data, NOW);
    assert_eq!(verify(&foreign.document()).unwrap_err().code(), "nitro-tpm-certificate-invalid");
}

/// Uses the example that AWS publishes for Signature Version 4: `get-vanilla` of its test suite.
#[test]
fn sigv4_signature_matches_the_aws_test_suite() {
    let headers =
        [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let signed = SigV4Request {
        method: "GET",
        headers: &headers,
        body: b"",
        date: "20150830T123600Z",
        region: "us-east-1",
        service: "service",
    };
    assert_eq!(signed.scope(), "20150830/us-east-1/service/aws4_request");
    assert_eq!(
        signed.signature("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    );
}

struct Caller {
    sts: StsServer,
    session: RoleSession,
    client: reqwest::Client,
}

fn caller() -> Caller {
    let session = RoleSession::for_instance(&instance(), NOW);
    let sts = StsServer::start(REGION, vec![session.clone()]);
    sts.clock().set(NOW);
    let client = client(&sts, Some(sts.ca_pem()), &[&sts_host(REGION)]);
    Caller { sts, session, client }
}

fn server_id() -> String {
    expected_server_id(&NONCE, PURPOSE_CONFIG, "worker", &SERVER_KEY)
}

impl Caller {
    fn request(&self) -> Value {
        self.session.presigned(REGION, &server_id(), NOW)
    }

    /// Sends it as it is.
    async fn send(&self, request: &Value) -> Answered {
        let url = format!("https://{}:{}/", sts_host(REGION), self.sts.address().port());
        let mut sent = self.client.request(request["method"].as_str().unwrap().parse().unwrap(), url);
        for header in request["headers"].as_array().unwrap() {
            sent = sent.header(header["name"].as_str().unwrap(), header["value"].as_str().unwrap());
        }
        read(sent.body(request["body"].as_str().unwrap().to_owned()).send().await.unwrap()).await
    }

    async fn check(&self, request: &Value, status: u16, code: &str) {
        let answer = self.send(request).await;
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!((answer.status, &body["Error"]["Code"]), (status, &json!(code)), "{body}");
    }
}

#[tokio::test]
async fn sts_identifies_the_caller() {
    let caller = caller();
    let rules: StsRules = toml::from_str("accounts = [\"123456789012\"]\nroles = [\"worker-role\"]\nregions = [\"eu-central-1\"]").unwrap();
    let expected = sts::Expected {
        nonce: &NONCE,
        purpose: PURPOSE_CONFIG,
        pool: "worker",
        server_keys: &[SERVER_KEY],
    };
    let request: SignedRequest = serde_json::from_value(caller.request()).unwrap();
    let checked = || sts::check(&request, &rules, &expected, at(NOW)).unwrap();
    let answer = caller.send(&caller.request()).await;
    let verify = |answer: &Answered| {
        let content_type = answer.header("content-type");
        let body = answer.body.as_bytes();
        sts::verify_answer(
            checked(),
            &sts::StsResponse {
                status: answer.status,
                content_type,
                body,
            },
        )
    };
    let verified = verify(&answer).unwrap();
    assert_eq!(verified.identity(), "aws:123456789012/i-0123456789abcdef0");
    assert_eq!(sts::appraise(&verified, &rules), Ok(()));

    // Somebody who may assume the role.
    let somebody = RoleSession::named(&instance(), "somebody", NOW);
    caller.sts.add(somebody.clone());
    let answer = caller.send(&somebody.presigned(REGION, &server_id(), NOW)).await;
    assert_eq!(verify(&answer).unwrap_err().code(), "sts-not-an-instance");

    caller.sts.change_answers(|answer| answer["Account"] = json!("210987654321"));
    assert_eq!(
        verify(&caller.send(&caller.request()).await).unwrap_err().code(),
        "sts-not-an-instance"
    );
}

#[tokio::test]
async fn sts_rejects_altered_requests() {
    let caller = caller();
    let request = caller.request();
    let with = |header: &str, value: &str| tampering::presigned_request(&request, header, value);
    let mismatch = "SignatureDoesNotMatch";
    caller
        .check(&with("x-attestation-gateway-server-id", &"0".repeat(64)), 403, mismatch)
        .await;
    caller.check(&with("x-amz-date", &compact(NOW + 1)), 403, mismatch).await;
    caller.check(&with("content-type", "application/json"), 403, mismatch).await;
    caller.check(&with("x-amz-security-token", "x"), 403, "InvalidClientTokenId").await;
    caller
        .check(&with("authorization", "AWS4-HMAC-SHA256 x"), 403, "IncompleteSignature")
        .await;
    caller.check(&with("authorization", "Bearer x"), 403, "IncompleteSignature").await;
    let authorization = request["headers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|header| header["name"] == "authorization")
        .unwrap();
    let authorization = authorization["value"].as_str().unwrap();
    for (from, to, code) in [
        (caller.session.access_key_id.as_str(), "ASIAOTHER", "InvalidClientTokenId"),
        ("/eu-central-1/", "/us-east-1/", mismatch),
        ("/sts/", "/s3/", mismatch),
        ("x-amz-security-token;", "", mismatch),
        ("host;", "", mismatch),
    ] {
        caller
            .check(&with("authorization", &authorization.replace(from, to)), 403, code)
            .await;
    }
    let mut flipped = authorization.to_owned();
    let last = if flipped.pop() == Some('0') { '1' } else { '0' };
    flipped.push(last);
    caller.check(&with("authorization", &flipped), 403, mismatch).await;

    let mut altered = request.clone();
    altered["body"] = json!(BODY.replace("CallerIdentity", "SessionToken"));
    caller.check(&altered, 400, "InvalidAction").await;
    let mut altered = request.clone();
    altered["method"] = json!("PUT");
    caller.check(&altered, 400, "InvalidAction").await;
    let mut altered = request.clone();
    altered["headers"]
        .as_array_mut()
        .unwrap()
        .retain(|header| header["name"] != "authorization");
    caller.check(&altered, 403, "MissingAuthenticationToken").await;
    assert_eq!(caller.sts.requests().len(), 15);
}

#[tokio::test]
async fn sts_rejects_requests_outside_the_clock_skew() {
    let caller = caller();
    let request = caller.request();
    for (now, expect) in [
        (NOW - SKEW_SECONDS, 200),
        (NOW + SKEW_SECONDS, 200),
        (NOW - SKEW_SECONDS - 1, 403),
        (NOW + SKEW_SECONDS + 1, 403),
    ] {
        caller.sts.clock().set(now);
        assert_eq!(caller.send(&request).await.status, expect, "{now}");
    }
    let late = caller.session.expires + 1;
    caller.sts.clock().set(late);
    caller
        .check(&caller.session.presigned(REGION, &server_id(), late), 403, "ExpiredToken")
        .await;
}
