//! Google's keys, also when Google is down, slow, returns garbage, or changes its keys during a fetch.

use std::sync::Arc;
use std::time::Duration;

use attest::gcp::{Audience, GcpError, GoogleKeys, verify};
use attest::nonce::{PURPOSE_CONFIG, SpkiSha256};
use attest_gateway::cloud::watch::watch;
use attest_gateway::cloud::{CloudUnavailable, Clouds};
use cloud_fixtures::google::identity_provider::{ISSUER_HOST, IdentityProvider, KEYS_HOST};
use cloud_fixtures::google::{GoogleInstance, JwtSigner, StandInKeys};
use cloud_fixtures::server::ServerFault;
use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::mpsc;

use super::setup::{Log, NOW, Setup, at};

/// Cache lifetime of keys in the stub's answers, in seconds.
const FRESH: u64 = 3600;
/// Maximum use of cached keys during an outage, in seconds.
const KEPT: u64 = 86_400;
/// Pause after a failed fetch, and before another request for an unknown key, in seconds.
const PAUSE: u64 = 30;
/// Number of requests in one fetch: discovery, keys.
const REQUESTS: usize = 2;

struct Google {
    keys: Arc<StandInKeys>,
    provider: IdentityProvider,
    setup: Setup,
}

impl Google {
    fn start() -> Self {
        let keys = StandInKeys::new();
        let provider = IdentityProvider::start(Arc::clone(&keys));
        provider.set_max_age(FRESH);
        let mut setup = Setup::new();
        setup.connect(&[ISSUER_HOST, KEYS_HOST], provider.address(), Some(provider.ca_pem()));
        Self { keys, provider, setup }
    }

    /// Returns the number of fetches since the last call.
    fn fetches(&self) -> usize {
        let requests = self.provider.requests().len();
        self.provider.forget_requests();
        assert_eq!(requests % REQUESTS, 0);
        requests / REQUESTS
    }
}

/// Verifies a token by this signer.
fn accepted(keys: &GoogleKeys, signer: &JwtSigner, now: u64) -> Result<(), GcpError> {
    let audience = Audience::new("api-int.example.com", PURPOSE_CONFIG, "worker", &[7; 32], &SpkiSha256([9; 32]));
    let token = signer.sign(&GoogleInstance::example(now - 600).claims(audience.as_str(), now - 5));
    verify(token.as_bytes(), keys, &[audience], at(now)).map(drop)
}

/// Verifies the signer's tokens with the keys at that time.
async fn good(clouds: &Clouds, signer: &JwtSigner, now: u64) {
    let keys = clouds.google_keys(at(now)).await.unwrap();
    accepted(&keys.keys, signer, now).unwrap();
    let stranger = accepted(&keys.keys, &foreign(signer), now).unwrap_err();
    assert!(matches!(stranger, GcpError::Signature), "{stranger}");
}

/// Returns a foreign signer with the same key id.
fn foreign(signer: &JwtSigner) -> JwtSigner {
    JwtSigner::with_id(aws_lc_rs::rsa::KeySize::Rsa2048, signer.kid())
}

async fn failed(clouds: &Clouds, now: u64, expected: &str) {
    let error = clouds.google_keys(at(now)).await.unwrap_err();
    assert!(matches!(error, CloudUnavailable::Failed { .. }), "{error}");
    assert!(error.to_string().contains(expected), "{expected:?} is not in: {error}");
}

#[tokio::test]
async fn caches_keys_for_googles_max_age() {
    let google = Google::start();
    let clouds = google.setup.open();
    assert_eq!(google.fetches(), 0, "nobody has asked");
    let signer = google.keys.current();
    for now in [NOW, NOW + 1, NOW + FRESH * 3 / 4] {
        good(&clouds, &signer, now).await;
    }
    assert_eq!(google.fetches(), 1);
    let published: serde_json::Value = serde_json::from_slice(&clouds.google_keys(at(NOW)).await.unwrap().jwks).unwrap();
    assert_eq!(published, google.keys.jwks());
    // Before they end, newer ones are fetched behind the back of whoever asks.
    let due = NOW + FRESH * 3 / 4 + 1;
    let before = clouds.google_keys(at(due)).await.unwrap();
    let after = clouds.google_keys(at(NOW + FRESH + 1)).await.unwrap();
    assert!(!Arc::ptr_eq(&before, &after));
    assert_eq!(google.fetches(), 1);
    good(&clouds, &signer, due + FRESH * 3 / 4).await;
    assert_eq!(google.fetches(), 0);
    google
        .setup
        .measured(r#"attest_gateway_cloud_fetches_total{what="google-keys",result="answered"} 2"#);
}

#[tokio::test]
async fn limits_the_cache_lifetime_of_google_keys() {
    let google = Google::start();
    let signer = google.keys.current();
    for (says, kept) in [(0, 300), (FRESH, FRESH), (864_000, 86_400)] {
        google.provider.set_max_age(says);
        let clouds = google.setup.open();
        good(&clouds, &signer, NOW).await;
        good(&clouds, &signer, NOW + kept * 3 / 4).await;
        assert_eq!(google.fetches(), 1, "{says}");
        good(&clouds, &signer, NOW + kept + 1).await;
        assert_eq!(google.fetches(), 1, "{says}");
        // A clock that was set back.
        good(&clouds, &signer, NOW - 60).await;
        assert_eq!(google.fetches(), 1, "{says}");
    }
}

#[tokio::test]
async fn concurrent_requests_share_one_key_fetch() {
    let google = Google::start();
    let clouds = google.setup.open();
    let all = join_all((0..100).map(|_| clouds.google_keys(at(NOW)))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(google.fetches(), 1);
}

#[tokio::test]
async fn uses_stale_keys_for_a_day_during_outages() {
    let google = Google::start();
    let clouds = google.setup.open();
    let signer = google.keys.current();
    good(&clouds, &signer, NOW).await;
    google.fetches();
    google.provider.fail(ServerFault::Down);
    let over = NOW + FRESH + KEPT;
    for now in [NOW + FRESH + 1, NOW + FRESH + 2, NOW + FRESH + PAUSE, NOW + FRESH + 1 + PAUSE, over] {
        good(&clouds, &signer, now).await;
        google.setup.measured("attest_gateway_google_keys_stale 1");
    }
    google
        .setup
        .measured(r#"attest_gateway_cloud_fetches_total{what="google-keys",result="failed"} 3"#);
    let error = clouds.google_keys(at(over + 1)).await.unwrap_err();
    assert!(
        matches!(error, CloudUnavailable::TooOld { until, now, .. } if until == over && now == over + 1),
        "{error}"
    );
    google.provider.recover();
    assert!(clouds.google_keys(at(over + 2)).await.is_err(), "not yet");
    good(&clouds, &signer, over + PAUSE).await;
    google.setup.measured("attest_gateway_google_keys_stale 0");
}

#[tokio::test]
async fn logs_begin_and_end_of_an_outage_once() {
    let google = Google::start();
    let clouds = google.setup.open();
    let log = Log::start();
    let signer = google.keys.current();
    good(&clouds, &signer, NOW).await;
    log.check_lines(&[&format!(
        "INFO attest_gateway::cloud::google_keys: fetched Google's keys: {}, fresh until",
        signer.kid()
    )]);
    good(&clouds, &signer, NOW + FRESH + 1).await;
    log.check_lines(&[]);
    google.provider.fail(ServerFault::Status(503));
    let stale = NOW + 2 * FRESH + 2;
    for fetch in 0..5 {
        good(&clouds, &signer, stale + fetch * PAUSE).await;
    }
    log.check_lines(&["WARN attest_gateway::cloud::google_keys: cannot fetch Google's keys: https://accounts.google.com/"]);
    let over = stale + KEPT;
    for fetch in 0..5 {
        assert!(clouds.google_keys(at(over + fetch * PAUSE)).await.is_err());
    }
    log.check_lines(&["refusing Google identity tokens until new keys are fetched"]);
    google.provider.recover();
    good(&clouds, &signer, over + 5 * PAUSE).await;
    log.check_lines(&["INFO attest_gateway::cloud::google_keys: fetched Google's keys after a failure"]);
}

#[tokio::test]
async fn retries_the_first_key_fetch_every_half_minute() {
    let google = Google::start();
    google.provider.fail_at("/oauth2", ServerFault::Status(500));
    let clouds = google.setup.open();
    for now in [NOW, NOW + 1, NOW + PAUSE - 1] {
        failed(&clouds, now, "HTTP 500").await;
    }
    assert_eq!(google.fetches(), 1);
    google.provider.recover();
    failed(&clouds, NOW + PAUSE - 1, "HTTP 500").await;
    good(&clouds, &google.keys.current(), NOW + PAUSE).await;
}

#[tokio::test]
async fn slow_key_fetch_times_out() {
    let mut google = Google::start();
    google.setup.impatient();
    google.provider.fail(ServerFault::Slow);
    let clouds = google.setup.open();
    for _ in 0..3 {
        let error = clouds.google_keys(at(NOW)).await.unwrap_err();
        assert!(matches!(error, CloudUnavailable::Slow { .. }), "{error}");
    }
    assert!(google.provider.requests().len() <= 1, "they wait for the same answer");
}

#[tokio::test]
async fn uses_stale_keys_when_google_is_slow() {
    let mut google = Google::start();
    google.setup.impatient();
    let clouds = google.setup.open();
    let signer = google.keys.current();
    // It comes, though it is not waited for.
    while clouds.google_keys(at(NOW)).await.is_err() {}
    google.provider.fail(ServerFault::Slow);
    good(&clouds, &signer, NOW + FRESH + 1).await;
    google.setup.measured("attest_gateway_google_keys_stale 1");
}

#[tokio::test]
async fn attack_16_refuses_malformed_key_documents() {
    let check = async |alter: &dyn Fn(&Google), expected: &str| {
        let google = Google::start();
        let signer = google.keys.current();
        let (before, without) = (google.setup.open(), google.setup.open());
        good(&before, &signer, NOW).await;
        alter(&google);
        failed(&without, NOW, expected).await;
        // Who had good keys before goes on with those.
        good(&before, &signer, NOW + FRESH + 1).await;
        google.setup.measured("attest_gateway_google_keys_stale 1");
    };
    for path in ["/.well-known", "/oauth2"] {
        check(&|google| google.provider.fail_at(path, ServerFault::Garbage), "cannot be read").await;
        check(&|google| google.provider.fail_at(path, ServerFault::Huge), "more than 65536 bytes").await;
        check(&|google| google.provider.fail_at(path, ServerFault::Status(404)), "HTTP 404").await;
        let redirect = ServerFault::Redirect("https://evil.example/".to_owned());
        check(&|google| google.provider.fail_at(path, redirect.clone()), "HTTP 302").await;
    }
    let discovery = async |field: &str, value: &str| {
        let alter = |google: &Google| google.provider.change_discovery(|document| document[field] = json!(value));
        check(&alter, value).await;
    };
    discovery("issuer", "https://evil.example").await;
    discovery("jwks_uri", "https://evil.example/certs").await;
    discovery("jwks_uri", "http://www.googleapis.com/oauth2/v3/certs").await;
    check(
        &|google| google.keys.hide(google.keys.current().kid()),
        "none of the JWK set's 0 keys",
    )
    .await;
}

#[tokio::test]
async fn attack_16_refuses_a_key_server_with_wrong_certificate() {
    let google = Google::start();
    let clouds = google.setup.open();
    failed(&other_ca(&google), NOW, "certificate").await;
    good(&clouds, &google.keys.current(), NOW).await;
}

/// Connects to the same provider, but trusts another CA than that of its certificate.
fn other_ca(google: &Google) -> Clouds {
    let other = IdentityProvider::start(StandInKeys::new());
    let mut setup = Setup::new();
    setup.connect(&[ISSUER_HOST, KEYS_HOST], google.provider.address(), Some(other.ca_pem()));
    setup.open()
}

#[tokio::test]
async fn fetches_rotated_keys_for_an_unknown_key_id() {
    let google = Google::start();
    let clouds = google.setup.open();
    let old = google.keys.current();
    let keys = clouds.google_keys(at(NOW)).await.unwrap();
    let new = google.keys.rotate();
    google.fetches();
    let error = accepted(&keys.keys, &new, NOW + 1).unwrap_err();
    assert!(matches!(error, GcpError::KeyUnknown { .. }), "{error}");
    assert!(clouds.newer_google_keys(&keys, at(NOW + 1)).await.is_none(), "too early");
    assert_eq!(google.fetches(), 0);
    let all = join_all((0..100).map(|_| clouds.newer_google_keys(&keys, at(NOW + PAUSE)))).await;
    assert_eq!(google.fetches(), 1);
    for newer in all {
        let newer = newer.unwrap();
        accepted(&newer.keys, &new, NOW + PAUSE).unwrap();
        accepted(&newer.keys, &old, NOW + PAUSE).unwrap();
    }
    // Whoever has the old ones still is given the newer ones at once.
    assert!(clouds.newer_google_keys(&keys, at(NOW + PAUSE + 1)).await.is_some());
    assert_eq!(google.fetches(), 0);
    // And a key that Google has withdrawn is gone.
    google.keys.retire();
    let keys = clouds.google_keys(at(NOW + PAUSE)).await.unwrap();
    let newer = clouds.newer_google_keys(&keys, at(NOW + 2 * PAUSE)).await.unwrap();
    assert!(accepted(&newer.keys, &old, NOW + 2 * PAUSE).is_err());
}

#[tokio::test]
async fn attack_16_unknown_key_ids_trigger_few_fetches() {
    let google = Google::start();
    let clouds = google.setup.open();
    let keys = clouds.google_keys(at(NOW)).await.unwrap();
    google.fetches();
    for now in NOW..NOW + 10 * PAUSE {
        assert!(clouds.newer_google_keys(&keys, at(now)).await.is_none());
    }
    assert_eq!(google.fetches(), 9);
    google.provider.fail(ServerFault::Down);
    assert!(clouds.newer_google_keys(&keys, at(NOW + 20 * PAUSE)).await.is_none());
    good(&clouds, &google.keys.current(), NOW + 20 * PAUSE).await;
}

#[tokio::test]
async fn keys_of_a_file_need_no_google() {
    let mut google = Google::start();
    google.setup.write("keys.json", google.keys.jwks().to_string());
    google.setup.settings.gcp.jwks = Some(google.setup.path("keys.json"));
    let clouds = google.setup.open();
    for now in [NOW, NOW + 100 * KEPT] {
        good(&clouds, &google.keys.current(), now).await;
    }
    let keys = clouds.google_keys(at(NOW)).await.unwrap();
    assert!(clouds.newer_google_keys(&keys, at(NOW + 10 * KEPT)).await.is_none());
    assert_eq!(google.fetches(), 0);
}

#[tokio::test]
async fn a_file_of_keys_is_read_again_when_it_changes() {
    let mut google = Google::start();
    google.setup.write("keys.json", google.keys.jwks().to_string());
    google.setup.settings.gcp.jwks = Some(google.setup.path("keys.json"));
    let clouds = Arc::new(google.setup.open());
    let (_reloads, requests) = mpsc::channel(1);
    let watched = Arc::clone(&clouds);
    let watch = tokio::spawn(async move { watch(&watched, requests).await });
    let before = clouds.google_keys(at(NOW)).await.unwrap();
    // What cannot be used changes nothing.
    google.setup.write("keys.json", "{");
    let new = google.keys.rotate();
    google.setup.write("next.json", google.keys.jwks().to_string());
    std::fs::rename(google.setup.path("next.json"), google.setup.path("keys.json")).unwrap();
    let changed = async {
        loop {
            if let Some(newer) = clouds.newer_google_keys(&before, at(NOW)).await {
                return newer;
            }
            tokio::task::yield_now().await;
        }
    };
    let newer = tokio::time::timeout(Duration::from_secs(60), changed).await.unwrap();
    accepted(&newer.keys, &new, NOW).unwrap();
    watch.abort();
}
