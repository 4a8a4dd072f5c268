//! Tests of Google's stand-ins: the verifier accepts their signatures, and they refuse the requests that Google refuses.

use std::time::Duration;

use crate::client::{ask, client, read};
use attest::gcp::{self, Audience, GceRules, GcpError, GoogleKeys, VerifiedIdentity};
use attest::nonce::PURPOSE_CONFIG;
use attest::{SpkiSha256, UnixTime};
use cloud_fixtures::google::identity_provider::{DISCOVERY_PATH, ISSUER_HOST, KEYS_HOST, KEYS_PATH};
use cloud_fixtures::google::{GoogleInstance, GoogleMetadataServer, IdentityProvider, StandInKeys};
use cloud_fixtures::server::ServerFault;
use cloud_fixtures::tampering;
use serde_json::{Value, json};

/// 2027-01-15, 08:00 UTC, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const FLAVOR: &[(&str, &str)] = &[("Metadata-Flavor", "Google")];

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn audience() -> Audience {
    Audience::new("gateway.example.com", PURPOSE_CONFIG, "worker", &[7; 32], &SpkiSha256([9; 32]))
}

fn verify(token: &str, keys: &StandInKeys) -> Result<VerifiedIdentity, GcpError> {
    let keys = GoogleKeys::from_jwks(keys.jwks().to_string().as_bytes()).unwrap();
    gcp::verify(token.as_bytes(), &keys, &[audience()], at(NOW))
}

fn metadata() -> (GoogleMetadataServer, std::sync::Arc<StandInKeys>) {
    let keys = StandInKeys::new();
    let server = GoogleMetadataServer::start(GoogleInstance::example(NOW - 60), keys.clone());
    server.clock().set(NOW);
    (server, keys)
}

#[tokio::test]
async fn an_identity_token_is_verified() {
    let (server, keys) = metadata();
    let answer = ask(&server, "GET", &gcp::request_path(&audience()), FLAVOR).await;
    assert_eq!(
        (answer.status, answer.header("metadata-flavor"), answer.header("server")),
        (200, Some("Google"), Some("Metadata Server for VM"))
    );
    let identity = verify(&answer.body, &keys).unwrap();
    assert_eq!(identity.identity(), "gcp:example-project/152986662232938449");
    assert_eq!((identity.created, identity.issued), (NOW - 60, NOW));
    assert_eq!(identity.licenses, ["1000204", "5926592092274602096"]);

    server.change_instance(|instance| instance.instance_id = 7);
    let other = ask(&server, "GET", &gcp::request_path(&audience()), FLAVOR).await;
    assert_eq!(verify(&other.body, &keys).unwrap().identity(), "gcp:example-project/7");
}

#[tokio::test]
async fn identity_token_has_the_requested_format() {
    let (server, keys) = metadata();
    let identity = "/computeMetadata/v1/instance/service-accounts/default/identity";
    let claims = async |query: &str| tampering::claims(&ask(&server, "GET", &format!("{identity}?{query}"), FLAVOR).await.body);
    let standard = claims("audience=a%2Fb").await;
    assert_eq!((&standard["aud"], &standard["google"]), (&json!("a/b"), &Value::Null));
    assert_eq!(claims("audience=a&format=standard").await["google"], Value::Null);
    let full = claims("audience=a&format=full").await;
    assert_eq!(full["google"]["compute_engine"]["instance_name"], "worker-7");
    assert_eq!(full["google"]["compute_engine"]["license_id"], Value::Null);
    assert!(claims("audience=a&format=full&licenses=TRUE").await["google"]["compute_engine"]["license_id"].is_array());

    for query in ["", "?audience=", "?format=full", "?audience=a&format=half"] {
        assert_eq!(
            ask(&server, "GET", &format!("{identity}{query}"), FLAVOR).await.status,
            400,
            "{query}"
        );
    }
    // Of the rest, a verifier takes the full form only.
    let standard = ask(&server, "GET", &format!("{identity}?audience={}", audience().as_str()), FLAVOR).await;
    assert_eq!(verify(&standard.body, &keys).unwrap_err().code(), "gcp-identity-not-an-instance");
}

#[tokio::test]
async fn serves_instance_metadata_and_user_data() {
    let (server, _keys) = metadata();
    let get = async |path: &str| ask(&server, "GET", &format!("/computeMetadata/v1/{path}"), FLAVOR).await;
    assert_eq!(get("instance/attributes/user-data").await.status, 404);
    server.set_user_data(Some(b"{\"ignition\":{}}"));
    for (path, value) in [
        ("instance/attributes/user-data", "{\"ignition\":{}}"),
        ("instance/id", "152986662232938449"),
        ("instance/name", "worker-7"),
        ("instance/zone", "projects/739419398126/zones/europe-west3-a"),
        ("project/project-id", "example-project"),
        ("project/numeric-project-id", "739419398126"),
    ] {
        let answer = get(path).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, value), "{path}");
    }
    server.set_user_data(None);
    for path in ["instance/attributes/user-data", "instance/attributes/other", "other"] {
        assert_eq!(get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn metadata_server_rejects_invalid_requests() {
    let (server, _keys) = metadata();
    let check = async |method: &str, path: &str, headers: &[(&str, &str)], expect: u16| {
        let answer = ask(&server, method, path, headers).await;
        assert_eq!(
            (answer.status, answer.header("metadata-flavor")),
            (expect, Some("Google")),
            "{method} {path}"
        );
    };
    let id = "/computeMetadata/v1/instance/id";
    check("GET", id, FLAVOR, 200).await;
    check("GET", id, &[], 403).await;
    check("GET", id, &[("Metadata-Flavor", "google")], 403).await;
    check("GET", id, &[("Metadata-Flavor", "Google"), ("X-Forwarded-For", "10.0.0.1")], 403).await;
    check("POST", id, FLAVOR, 405).await;
    check("GET", "/latest/user-data", FLAVOR, 404).await;
    // How programs find out where they are.
    check("GET", "/", &[], 200).await;
    check("GET", "/", &[("X-Forwarded-For", "10.0.0.1")], 403).await;

    let asked = server.requests();
    assert_eq!(
        (asked.len(), asked[0].path(), asked[0].header("metadata-flavor")),
        (8, id, Some("Google"))
    );
    server.forget_requests();
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn verifier_rejects_altered_claims_and_foreign_keys() {
    let (server, keys) = metadata();
    let token = ask(&server, "GET", &gcp::request_path(&audience()), FLAVOR).await.body;
    let somebody = StandInKeys::new().current();
    let rules: GceRules = toml::from_str(
        "projects = [{ id = \"example-project\", number = 739419398126 }]\nzones = [\"europe-west3-a\"]\ninstance_names = [\"worker-7\"]\n\
         service_accounts = [\"739419398126-compute@developer.gserviceaccount.com\"]",
    )
    .unwrap();
    let claims = tampering::claims(&token);
    for (path, altered) in tampering::each_value(&claims) {
        let error = verify(
            &tampering::unsigned_identity_token(&token, |claims| *claims = altered.clone()),
            &keys,
        )
        .unwrap_err();
        assert_eq!(error.code(), "gcp-identity-signature", "{path}");
        let error = verify(
            &tampering::identity_token(&token, &somebody, |claims| *claims = altered.clone()),
            &keys,
        )
        .unwrap_err();
        assert_eq!(error.code(), "gcp-identity-key-unknown", "{path}");
        // Google itself says it: then it is so, and the verifier's checks or the pool's rules decide.
        let genuine = verify(
            &tampering::identity_token(&token, &keys.current(), |claims| *claims = altered),
            &keys,
        );
        let accepted = genuine.is_ok_and(|identity| gcp::appraise(&identity, &rules, at(NOW)).is_ok());
        let not_decisive = [
            "/google/compute_engine/instance_c",
            "/google/compute_engine/instance_id",
            "/google/compute_engine/license_id",
            "/exp",
            "/iat",
        ];
        let free = not_decisive.iter().any(|start| path.starts_with(start));
        assert_eq!(accepted, free, "{path}");
    }
    for (path, altered) in tampering::each_member_removed(&claims) {
        let genuine = verify(
            &tampering::identity_token(&token, &keys.current(), |claims| *claims = altered),
            &keys,
        );
        let optional = [
            "/google/compute_engine/instance_confidentiality",
            "/google/compute_engine/license_id",
        ];
        assert_eq!(genuine.is_ok(), optional.contains(&path.as_str()), "{path}");
    }
}

struct Issuer {
    keys: std::sync::Arc<StandInKeys>,
    server: IdentityProvider,
    client: reqwest::Client,
}

fn issuer() -> Issuer {
    let keys = StandInKeys::new();
    let server = IdentityProvider::start(keys.clone());
    let client = client(&server, Some(server.ca_pem()), &[ISSUER_HOST, KEYS_HOST]);
    Issuer { keys, server, client }
}

impl Issuer {
    async fn get(&self, host: &str, path: &str) -> reqwest::Result<reqwest::Response> {
        let port = self.server.address().port();
        self.client.get(format!("https://{host}:{port}{path}")).send().await
    }

    async fn keys(&self) -> Vec<String> {
        let answer = read(self.get(KEYS_HOST, KEYS_PATH).await.unwrap()).await;
        let keys = GoogleKeys::from_jwks(answer.body.as_bytes()).unwrap();
        keys.key_ids().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn the_issuer_publishes_its_keys() {
    let issuer = issuer();
    let discovery = read(issuer.get(ISSUER_HOST, DISCOVERY_PATH).await.unwrap()).await;
    let document: Value = serde_json::from_str(&discovery.body).unwrap();
    assert_eq!(document["issuer"], "https://accounts.google.com");
    assert_eq!(document["jwks_uri"], "https://www.googleapis.com/oauth2/v3/certs");
    assert_eq!(issuer.keys().await, [issuer.keys.current().kid()]);
    issuer.server.set_max_age(7);
    let answer = issuer.get(KEYS_HOST, KEYS_PATH).await.unwrap();
    assert!(answer.headers()["cache-control"].to_str().unwrap().contains("max-age=7,"));
    // Each host has its own, and nobody else's certificate is taken.
    for (host, path) in [(KEYS_HOST, DISCOVERY_PATH), (ISSUER_HOST, KEYS_PATH), (ISSUER_HOST, "/")] {
        assert_eq!(issuer.get(host, path).await.unwrap().status(), 404);
    }
    let other = client(
        &issuer.server,
        Some(IdentityProvider::start(StandInKeys::new()).ca_pem()),
        &[ISSUER_HOST],
    );
    let url = format!("https://{ISSUER_HOST}:{}{DISCOVERY_PATH}", issuer.server.address().port());
    assert!(other.get(url).send().await.is_err());
}

#[tokio::test]
async fn issuer_rotates_its_keys() {
    let issuer = issuer();
    let first = issuer.keys.current().kid().to_owned();
    let token = |keys: &StandInKeys| {
        keys.current()
            .sign(&GoogleInstance::example(NOW - 60).claims(audience().as_str(), NOW))
    };
    let by_first = token(&issuer.keys);
    let second = issuer.keys.rotate().kid().to_owned();
    assert_ne!(first, second);
    assert_eq!(issuer.keys().await.len(), 2);
    assert!(verify(&by_first, &issuer.keys).is_ok() && verify(&token(&issuer.keys), &issuer.keys).is_ok());
    issuer.keys.hide(&second);
    assert_eq!(issuer.keys().await, [first.as_str()]);
    assert_eq!(
        verify(&token(&issuer.keys), &issuer.keys).unwrap_err().code(),
        "gcp-identity-key-unknown"
    );
    issuer.keys.show(&second);
    issuer.keys.retire();
    assert_eq!(issuer.keys().await, [second.as_str()]);
    assert_eq!(verify(&by_first, &issuer.keys).unwrap_err().code(), "gcp-identity-key-unknown");
}

#[tokio::test]
async fn simulates_issuer_outages_and_faults() {
    let issuer = issuer();
    let keys = async || issuer.get(KEYS_HOST, KEYS_PATH).await;
    assert_eq!(keys().await.unwrap().status(), 200);

    let port = issuer.server.address().port();
    issuer.server.fail(ServerFault::Down);
    // The connection that there was is cut, and no other is taken.
    assert!(keys().await.is_err());
    let refused = std::net::TcpStream::connect(issuer.server.address()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    issuer.server.fail(ServerFault::Down);
    issuer.server.recover();
    assert_eq!(
        (keys().await.unwrap().status().as_u16(), issuer.server.address().port()),
        (200, port)
    );

    issuer.server.fail(ServerFault::Garbage);
    let garbage = keys().await.unwrap().bytes().await.unwrap();
    assert!(GoogleKeys::from_jwks(&garbage).is_err());
    issuer.server.fail(ServerFault::Status(500));
    assert_eq!(keys().await.unwrap().status(), 500);
    issuer.server.fail(ServerFault::Redirect("https://evil.example/".to_owned()));
    assert_eq!(keys().await.unwrap().headers()["location"], "https://evil.example/");
    issuer.server.fail(ServerFault::Huge);
    let mut huge = keys().await.unwrap();
    assert_eq!(huge.content_length(), None);
    let mut read = 0;
    while let Some(chunk) = huge.chunk().await.unwrap() {
        read += chunk.len();
    }
    assert_eq!(read, cloud_fixtures::server::HUGE_BYTES);

    issuer.server.recover();
    issuer.server.fail_at(KEYS_PATH, ServerFault::Status(503));
    assert_eq!(keys().await.unwrap().status(), 503);
    assert_eq!(issuer.get(ISSUER_HOST, DISCOVERY_PATH).await.unwrap().status(), 200);
    issuer
        .server
        .change_discovery(|document| document["issuer"] = json!("https://evil.example"));
    let wrong = read_json(issuer.get(ISSUER_HOST, DISCOVERY_PATH).await.unwrap()).await;
    assert_eq!(wrong["issuer"], "https://evil.example");
}

#[tokio::test]
async fn slow_issuer_receives_the_request_without_answering() {
    let issuer = issuer();
    issuer.server.fail(ServerFault::Slow);
    let (asked, is_asked) = tokio::sync::oneshot::channel();
    let asked = std::sync::Mutex::new(Some(asked));
    issuer
        .server
        .observe(move |_, status| asked.lock().unwrap().take().unwrap().send(status).unwrap());
    tokio::select! {
        answer = issuer.get(KEYS_HOST, KEYS_PATH) => panic!("{answer:?}"),
        status = is_asked => assert_eq!(status, Ok(0)),
    }
    assert_eq!(issuer.server.requests()[0].path(), KEYS_PATH);
}

async fn read_json(response: reqwest::Response) -> Value {
    serde_json::from_str(&read(response).await.body).unwrap()
}
