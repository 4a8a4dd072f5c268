//! Requests to clouds, and acceptance of their answers: against servers that imitate the clouds' own.

use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

use crate::support::{Asked, GOOGLE, Reply, Server, imds, ok, status};
use attest::SpkiSha256;
use attest::aws::sts::{self, StsRules};
use attest::azure::attested_document::ImdsNonce;
use attest::gcp::Audience;
use attest_node::cloud::{Cloud, CloudError, MetadataClient, aws, azure, detect, gcp, user_data};
use attest_node::deadline::Deadline;
use data_encoding::BASE64;
use rustls_pki_types::UnixTime;

/// Returns a deadline beyond the duration of any test here.
fn long() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Enough for a second attempt, and not much more.
fn short() -> Deadline {
    Deadline::after(Duration::from_secs(2))
}

fn metadata(base: &str) -> MetadataClient {
    MetadataClient::new(&base.parse().unwrap()).unwrap()
}

fn google(answer: impl Fn(&Asked, usize) -> Reply + Send + Sync + 'static) -> (Server, MetadataClient) {
    let server = Server::start(GOOGLE, move |asked, number| match asked.header("metadata-flavor") {
        Some("Google") => answer(asked, number),
        _ => status(403),
    });
    let metadata = metadata(&server.base);
    (server, metadata)
}

fn amazon(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> (Server, MetadataClient) {
    let server = Server::start("", move |asked, _| imds(asked, &answer));
    let metadata = metadata(&server.base);
    (server, metadata)
}

fn microsoft(answer: impl Fn(&Asked, usize) -> Reply + Send + Sync + 'static) -> (Server, MetadataClient) {
    let server = Server::start("", move |asked, number| match asked.header("metadata") {
        Some("true") => answer(asked, number),
        _ => status(400),
    });
    let metadata = metadata(&server.base);
    (server, metadata)
}

/// Gateways may be waited for longer than a session lasts.
#[test]
fn expired_imds_session_is_reopened_once() {
    let asked = |sessions: usize| {
        let begun = AtomicUsize::new(0);
        let server = Server::start("", move |asked, _| {
            match (asked.method.as_str(), asked.header("x-aws-ec2-metadata-token")) {
                ("PUT", _) => ok(format!("S{}", begun.fetch_add(1, Ordering::SeqCst))),
                (_, Some(token)) if token == format!("S{sessions}") => ok(BASE64.encode(b"document")),
                _ => status(401),
            }
        });
        let metadata = metadata(&server.base);
        let session = aws::ImdsSession::open(&metadata, long()).unwrap();
        let document = session.identity_document(long());
        (document.is_ok(), server.asked().len())
    };
    assert_eq!(asked(0), (true, 2));
    assert_eq!(asked(1), (true, 4));
    assert_eq!(asked(2), (false, 4));
}

// The client.

const USER_DATA: &str = "/computeMetadata/v1/instance/attributes/user-data";

/// Checks the number of attempts and the result for these answers, the last of which repeats for ever.
fn check_client(answers: Vec<Reply>, deadline: Deadline, expect: Result<Option<&str>, &str>, attempts: usize) {
    let last = answers.len() - 1;
    let shown = format!(
        "{:?}",
        answers
            .iter()
            .map(|answer| answer.as_ref().map(|(status, _)| *status))
            .collect::<Vec<_>>()
    );
    let (server, metadata) = google(move |_, number| answers[number.min(last)].clone());
    let found = user_data(Cloud::Gcp, &metadata, deadline);
    match expect {
        Ok(text) => assert_eq!(
            found.unwrap().map(|bytes| bytes.to_vec()),
            text.map(|text| text.as_bytes().to_vec()),
            "{shown}"
        ),
        Err(part) => {
            let message = found.unwrap_err().to_string();
            assert!(message.contains(part) && message.contains(USER_DATA), "{shown}: {message}");
        }
    }
    let asked = server.asked();
    assert!(asked.iter().all(|asked| asked.is("GET", USER_DATA)));
    assert!(
        if attempts == 0 { asked.len() > 1 } else { asked.len() == attempts },
        "{shown}: {}",
        asked.len()
    );
}

#[test]
fn unavailable_metadata_server_is_retried_within_the_deadline() {
    check_client(vec![ok("{}")], long(), Ok(Some("{}")), 1);
    check_client(vec![status(503), ok("{}")], long(), Ok(Some("{}")), 2);
    check_client(vec![None, ok("{}")], long(), Ok(Some("{}")), 2);
    check_client(vec![status(429), ok("{}")], long(), Ok(Some("{}")), 2);
    check_client(vec![status(503)], short(), Err("answers 503"), 0);
    check_client(vec![None], short(), Err("cannot be reached"), 0);
}

#[test]
fn timeout_does_not_mask_the_previous_answer() {
    let (ended, until_the_end) = mpsc::channel::<()>();
    let until_the_end = Mutex::new(until_the_end);
    let (server, metadata) = google(move |_, number| {
        if number > 0 {
            // Ends with its sender.
            let _: Result<(), _> = until_the_end.lock().unwrap().recv();
        }
        status(503)
    });
    let error = user_data(Cloud::Gcp, &metadata, short()).unwrap_err();
    assert!(
        matches!(
            error,
            CloudError::Failing {
                status: 503,
                attempts: 2,
                ..
            }
        ),
        "{error}"
    );
    drop(ended);
    assert_eq!(server.asked().len(), 2);
}

#[test]
fn old_answer_does_not_mask_a_later_outage() {
    let (ended, until_the_end) = mpsc::channel::<()>();
    let until_the_end = Mutex::new(until_the_end);
    let (_server, metadata) = google(move |_, number| match number {
        0 => status(503),
        // Hangs up without an answer.
        1 => None,
        _ => {
            // Ends with its sender.
            let _: Result<(), _> = until_the_end.lock().unwrap().recv();
            status(503)
        }
    });
    let error = user_data(Cloud::Gcp, &metadata, Deadline::after(Duration::from_secs(4))).unwrap_err();
    assert!(matches!(error, CloudError::Unreachable { .. }), "{error}");
    drop(ended);
}

#[test]
fn refused_or_absent_metadata_is_not_retried() {
    check_client(vec![status(404)], long(), Ok(None), 1);
    check_client(vec![ok("")], long(), Ok(None), 1);
    check_client(vec![ok(" \n")], long(), Ok(None), 1);
    check_client(vec![status(403)], long(), Err("refuses with status 403"), 1);
    check_client(vec![status(400)], long(), Err("refuses with status 400"), 1);
    check_client(vec![status(204)], long(), Err("refuses with status 204"), 1);
    check_client(vec![ok(vec![b' '; 1024 * 1024 + 1])], long(), Err("more than 1048576 bytes"), 1);
}

#[test]
fn redirects_are_not_followed() {
    let other = Server::start("", |_, _| ok("{}"));
    let location: &'static str = Box::leak(format!("Location: {}/x\r\n", other.base).into_boxed_str());
    for code in [301, 302, 307, 308] {
        let server = Server::start(location, move |_, _| status(code));
        let refused = user_data(Cloud::Gcp, &metadata(&server.base), long()).unwrap_err();
        assert!(matches!(refused, CloudError::Refused { status, .. } if status == code), "{refused}");
    }
    assert!(other.asked().is_empty());
}

#[test]
fn unresponsive_metadata_server_is_bounded_by_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = metadata(&format!("http://{}", listener.local_addr().unwrap()));
    let before = Instant::now();
    let error = user_data(Cloud::Aws, &silent, short()).unwrap_err();
    assert!(matches!(error, CloudError::Unreachable { .. }), "{error}");
    assert!(before.elapsed() < Duration::from_secs(20));
}

#[test]
fn endless_informational_responses_time_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endless = metadata(&format!("http://{}", listener.local_addr().unwrap()));
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            // Until the client hangs up.
            let many = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n".repeat(1000);
            std::thread::spawn(move || while connection.write_all(many.as_bytes()).is_ok() {});
        }
    });
    let before = Instant::now();
    let error = user_data(Cloud::Aws, &endless, short()).unwrap_err();
    assert!(matches!(error, CloudError::Unreachable { .. }), "{error}");
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}", before.elapsed());
}

// Which cloud it is.

fn check_search(server: &Server, expect: Option<Cloud>) {
    assert_eq!(detect::search(&metadata(&server.base), long()), expect);
}

#[test]
fn a_cloud_is_recognised_by_its_metadata_server() {
    check_search(&Server::start(GOOGLE, |_, _| status(404)), Some(Cloud::Gcp));
    check_search(
        &Server::start("", |asked, _| match asked.header("metadata") {
            Some("true") => ok("{}"),
            _ => status(400),
        }),
        Some(Cloud::Azure),
    );
    check_search(&Server::start("", |asked, _| imds(asked, |_| status(404))), Some(Cloud::Aws));
    check_search(&Server::start("", |_, _| status(404)), None);
    check_search(&Server::start("", |_, _| status(503)), None);
    check_search(&Server::start("", |_, _| None), None);
}

#[test]
fn cloud_search_ends_at_the_first_timeout() {
    let server = Server::start("", |_, _| None);
    check_search(&server, None);
    assert_eq!(server.asked().len(), 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = metadata(&format!("http://{}", listener.local_addr().unwrap()));
    let before = Instant::now();
    assert_eq!(detect::search(&silent, long()), None);
    // The search has 1.5 s of its own; a loaded machine needs some more.
    assert!(before.elapsed() < Duration::from_secs(20));
}

// Google.

fn audience() -> Audience {
    Audience::new("api-int.example", "config", "worker", &[7; 32], &SpkiSha256([9; 32]))
}

fn check_token(body: &'static str, expect: Result<&str, &str>) {
    let (server, metadata) = google(move |_, _| ok(body));
    let token = gcp::identity_token(&metadata, &audience(), long());
    match expect {
        Ok(text) => assert_eq!(token.unwrap().as_str(), text),
        Err(part) => assert!(token.unwrap_err().to_string().contains(part), "{body}"),
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(
        (asked[0].method.as_str(), asked[0].path.as_str()),
        ("GET", attest::gcp::request_path(&audience()).as_str())
    );
}

#[test]
fn identity_token_request_carries_its_audience() {
    check_token("e30.e30.c2ln", Ok("e30.e30.c2ln"));
    check_token("e30.e30.c2ln\n", Ok("e30.e30.c2ln"));
    for wrong in [
        "",
        "e30.e30",
        "e30.e30.c2ln.x",
        "e30 .e30.c2ln",
        "e30.e30.\u{fc}",
        "<html>",
        "e30.\r\ne30.x",
    ] {
        check_token(wrong, Err("data other than an identity token"));
    }
}

#[test]
fn an_instance_without_a_service_account_is_refused() {
    let (_server, metadata) = google(|_, _| status(404));
    let error = gcp::identity_token(&metadata, &audience(), long()).unwrap_err();
    // The audience is no use to the person at the console.
    assert_eq!(
        error.to_string().split(" at http").next(),
        Some("the metadata server refuses with status 404")
    );
    assert!(error.to_string().ends_with("/service-accounts/default/identity"), "{error}");
}

// Amazon.

#[test]
fn ec2_user_data_requires_a_session_token() {
    let (server, metadata) = amazon(|path| if path == "/2019-10-01/user-data" { ok("{}") } else { status(404) });
    assert_eq!(user_data(Cloud::Aws, &metadata, long()).unwrap().unwrap().as_slice(), b"{}");
    let asked = server.asked();
    assert!(asked[0].is("PUT", "/latest/api/token") && asked[1].is("GET", "/2019-10-01/user-data"));
    assert_eq!(asked.len(), 2);
    let (_server, metadata) = amazon(|_| status(404));
    assert_eq!(user_data(Cloud::Aws, &metadata, long()).unwrap(), None);
}

#[test]
fn imds_v1_is_never_used() {
    for code in [400, 403, 404, 405] {
        let server = Server::start("", move |asked, _| if asked.method == "PUT" { status(code) } else { ok("{}") });
        let error = user_data(Cloud::Aws, &metadata(&server.base), long()).unwrap_err();
        assert!(matches!(error, CloudError::Refused { status, .. } if status == code), "{error}");
        assert_eq!(server.asked().len(), 1);
    }
}

fn check_session_token(body: &'static [u8]) {
    let server = Server::start("", move |asked, _| if asked.method == "PUT" { ok(body) } else { ok("{}") });
    let error = user_data(Cloud::Aws, &metadata(&server.base), long()).unwrap_err();
    assert!(error.to_string().contains("data other than a session token"), "{error}");
}

#[test]
fn rejects_session_tokens_invalid_in_a_header() {
    check_session_token(b"");
    check_session_token(b"a b");
    check_session_token(b"a\r\nX: y");
    check_session_token(b"\xff");
    check_session_token("\u{fc}".as_bytes());
}

fn check_identity_document(body: &'static str, expect: bool) {
    let (_server, metadata) = amazon(move |path| {
        assert_eq!(path, "/latest/dynamic/instance-identity/rsa2048");
        ok(body)
    });
    let document = aws::ImdsSession::open(&metadata, long()).unwrap().identity_document(long());
    match expect {
        true => assert_eq!(document.unwrap(), body),
        false => assert!(
            document.unwrap_err().to_string().contains("data other than a PKCS#7 message"),
            "{body}"
        ),
    }
}

#[test]
fn identity_documents_are_sent_as_they_are() {
    check_identity_document("MIAG\nCSqG\n", true);
    check_identity_document("MIAGCSqG", true);
    for wrong in ["", "\n", "<html>", "MIAG!", "M"] {
        check_identity_document(wrong, false);
    }
}

const CREDENTIALS: &str = r#"{"Code":"Success","LastUpdated":"2026-01-01T00:00:00Z","Type":"AWS-HMAC","AccessKeyId":"ASIAIOSFODNN7EXAMPLE",
    "SecretAccessKey":"SECRETKEY/x+y","Token":"SESSIONTOKEN/+==","Expiration":"2026-01-01T06:00:00Z"}"#;
const SERVER_KEY: SpkiSha256 = SpkiSha256([9; 32]);

fn sts_request(region: &'static str, role: &'static str, credentials: &'static str) -> Result<sts::SignedRequest, CloudError> {
    let (_server, metadata) = amazon(move |path| match path {
        "/latest/meta-data/placement/region" => ok(region),
        "/latest/meta-data/iam/security-credentials/" => ok(role),
        "/latest/meta-data/iam/security-credentials/worker-role" => ok(credentials),
        _ => status(404),
    });
    let session = aws::ImdsSession::open(&metadata, long())?;
    let role = session.role(long())?.unwrap();
    let server_id = sts::expected_server_id(&[7; 32], "config", "worker", &SERVER_KEY);
    session.sts_request(&role, &server_id, SystemTime::now(), long())
}

fn check_sts(region: &'static str) {
    let request = sts_request(region, "worker-role\n", CREDENTIALS).unwrap();
    let rules: StsRules = serde_json::from_value(serde_json::json!({
        "accounts": ["123456789012"], "roles": ["worker-role"], "regions": [region],
    }))
    .unwrap();
    let expected = sts::Expected {
        nonce: &[7; 32],
        purpose: "config",
        pool: "worker",
        server_keys: &[SERVER_KEY],
    };
    let checked = sts::check(&request, &rules, &expected, UnixTime::now()).unwrap();
    assert_eq!(checked.region(), region);
    assert!(!format!("{request:?}").contains("SESSIONTOKEN"));
    assert!(request.headers.iter().all(|header| !header.value.contains("SECRETKEY")));
}

#[test]
fn requests_to_sts_are_those_that_the_gateway_accepts() {
    check_sts("eu-central-1");
    check_sts("cn-north-1");
    check_sts("us-gov-west-1");
}

fn check_no_sts(region: &'static str, role: &'static str, credentials: &'static str, said: &str) {
    let message = sts_request(region, role, credentials).unwrap_err().to_string();
    assert!(message.contains(said), "{message}");
    assert!(!message.contains("SECRET"), "{message}");
}

#[test]
fn sts_request_rejects_invalid_region_role_or_credentials() {
    check_no_sts("eu-central-1.evil.example/", "worker-role", CREDENTIALS, "other than a region name");
    check_no_sts("<html>", "worker-role", CREDENTIALS, "other than a region name");
    check_no_sts("eu-central-1", "worker/../role", CREDENTIALS, "other than a role name");
    check_no_sts("eu-central-1", "..", CREDENTIALS, "other than a role name");
    check_no_sts("eu-central-1", "worker-role\nother", CREDENTIALS, "other than a role name");
    check_no_sts("eu-central-1", "other-role", CREDENTIALS, "refuses with status 404");
    check_no_sts(
        "eu-central-1",
        "worker-role",
        r#"{"Code":"Failed","SECRET":1}"#,
        "other than credentials",
    );
    check_no_sts("eu-central-1", "worker-role", "SECRET", "other than credentials");
    check_no_sts(
        "eu-central-1",
        "worker-role",
        r#"{"AccessKeyId":"A","SecretAccessKey":"SECRET","Token":"SECRET\r\nX: y"}"#,
        "a header cannot have",
    );
    check_no_sts(
        "eu-central-1",
        "worker-role",
        r#"{"AccessKeyId":"A","SecretAccessKey":"SECRET","Token":""}"#,
        "a header cannot have",
    );
}

#[test]
fn an_instance_without_a_profile_has_no_role() {
    let (_server, metadata) = amazon(|_| status(404));
    assert_eq!(aws::ImdsSession::open(&metadata, long()).unwrap().role(long()), Ok(None));
}

// Microsoft.

#[test]
fn user_data_of_azure_is_base64() {
    let (server, with) = microsoft(|_, number| if number == 0 { status(410) } else { ok(BASE64.encode(b"{}")) });
    assert_eq!(user_data(Cloud::Azure, &with, long()).unwrap().unwrap().as_slice(), b"{}");
    assert!(server.asked()[0].is("GET", "/metadata/instance/compute/userData?api-version=2021-01-01&format=text"));
    let (_server, with) = microsoft(|_, _| ok("{}"));
    let error = user_data(Cloud::Azure, &with, long()).unwrap_err();
    assert!(error.to_string().contains("not Base64"), "{error}");
}

#[test]
fn the_vm_id_of_azure_is_a_uuid() {
    let (server, metadata) = microsoft(|_, number| {
        if number == 0 {
            status(410)
        } else {
            ok("B1310A36-D400-46F6-82CB-6217DF846586\n")
        }
    });
    let vm_id = azure::vm_id(&metadata, long()).unwrap();
    assert_eq!(vm_id.as_str(), "b1310a36-d400-46f6-82cb-6217df846586");
    assert!(server.asked()[0].is("GET", "/metadata/instance/compute/vmId?api-version=2021-01-01&format=text"));
    for wrong in ["", "worker-1", "b1310a36d40046f682cb6217df846586"] {
        let (_server, metadata) = microsoft(move |_, _| ok(wrong));
        let error = azure::vm_id(&metadata, long()).unwrap_err();
        assert!(error.to_string().contains("not a UUID"), "{error}");
    }
}

fn nonce() -> ImdsNonce {
    ImdsNonce::derive(&[7; 32])
}

fn document(nonce: &str) -> String {
    let message = format!("\u{1}{{\"nonce\":\"{nonce}\"}}\u{2}");
    format!(r#"{{"encoding":"pkcs7","signature":"{}"}}"#, BASE64.encode(message.as_bytes()))
}

#[test]
fn attested_document_with_stale_nonce_is_retried() {
    let (server, metadata) = microsoft(|_, number| match number {
        0 => ok(document("1234567890")),
        _ => ok(document(nonce().as_str())),
    });
    let signature = azure::attested_document(&metadata, &nonce(), long()).unwrap();
    let message = BASE64.decode(signature.as_bytes()).unwrap();
    assert!(String::from_utf8(message).unwrap().contains(nonce().as_str()));
    assert_eq!(server.asked().len(), 2);
    assert!(
        server
            .asked()
            .iter()
            .all(|asked| asked.is("GET", &attest::azure::attested_document::imds_path(&nonce())))
    );
}

fn check_document(body: String, deadline: Deadline, expect: Result<(), &str>) {
    let shown = body.clone();
    let (_server, metadata) = microsoft(move |_, _| ok(&body));
    match (azure::attested_document(&metadata, &nonce(), deadline), expect) {
        (Ok(_), Ok(())) => {}
        (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{shown}: {error}"),
        (found, _) => panic!("{shown}: {found:?}"),
    }
}

#[test]
fn attested_document_requires_pkcs7_base64() {
    check_document(document(nonce().as_str()), long(), Ok(()));
    // The gateway says what is wrong with the nonce.
    check_document(document("1234567890"), short(), Ok(()));
    check_document(
        r#"{"encoding":"pkcs1","signature":"AAAA"}"#.to_owned(),
        long(),
        Err("the encoding \"pkcs1\""),
    );
    check_document(r#"{"encoding":"pkcs7","signature":"!"}"#.to_owned(), long(), Err("not Base64"));
    check_document(r#"{"encoding":"pkcs7"}"#.to_owned(), long(), Err("other than an attested document"));
    check_document("<html>".to_owned(), long(), Err("other than an attested document"));
    check_document("x".repeat(40_000), long(), Err("more than 32768 bytes"));
}
