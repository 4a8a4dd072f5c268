//! Fetches from a server in this process.

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};

use attest::SpkiSha256;
use attest_ignition::data_url;
use attest_ignition::machine_config::appended::ENCAPSULATED;
use server::{HOST, Reply, Server, answer, config, mcs, status};
use tokio::net::TcpListener;

use super::*;

/// Long enough for a loaded machine; only a request that never ends takes this long.
const TEST_LIMITS: UpstreamLimits = UpstreamLimits {
    connect: Duration::from_secs(20),
    request: Duration::from_secs(20),
    body_bytes: 10_000,
};

impl Server {
    fn upstream(&self) -> Upstream {
        Upstream::with_limits(self.settings(), "worker", TEST_LIMITS).unwrap()
    }

    async fn fetch(&self, settings: UpstreamSettings) -> Result<FetchedConfig, String> {
        let upstream = Upstream::with_limits(settings, "worker", TEST_LIMITS).unwrap();
        upstream.fetch(None).await.map_err(|error| error.to_string())
    }
}

fn versions(fetched: &FetchedConfig) -> Vec<&str> {
    fetched.configs().keys().map(|version| version.as_str()).collect()
}

/// Returns the error of a fetch whose request for 3.4.0 gets this answer.
async fn error_of(reply: impl Fn() -> Reply + Send + Sync + 'static) -> String {
    let server = Server::start(move |asked| if asked.version == "3.4.0" { reply() } else { mcs(asked, "/a") }).await;
    server.fetch(server.settings()).await.unwrap_err()
}

#[track_caller]
fn has(error: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| error.contains(part)), "{error} has not {parts:?}");
}

#[tokio::test]
async fn keeps_each_fetched_version_byte_for_byte() {
    let server = Server::start(|asked| {
        assert!(asked.head.starts_with("get /config/worker http/1.1\r\n"), "{}", asked.head);
        assert!(
            asked
                .head
                .contains(&format!("user-agent: attest-gateway/{}\r\n", env!("CARGO_PKG_VERSION")))
        );
        mcs(asked, "/a")
    })
    .await;
    let fetched = server.fetch(server.settings()).await.unwrap();
    assert_eq!(versions(&fetched), ["3.1.0", "3.2.0", "3.3.0", "3.4.0", "3.5.0"]);
    for (version, given) in fetched.configs() {
        assert_eq!(given.bytes, config(version.as_str(), "/a"));
    }
    assert_eq!(fetched.newest().list(["storage", "files"])[0]["path"], "/a");
    // What was denied by 500 is asked twice, and the newest at the end.
    assert_eq!(server.asked(), "3.6.0 3.5.0 3.4.0 3.3.0 3.2.0 3.1.0 2.2.0 2.2.0 3.5.0");
}

#[tokio::test]
async fn requires_at_least_one_spec_3_version() {
    for denied in [400, 404, 406, 500] {
        let server = Server::start(move |asked| match asked.version.as_str() {
            "3.2.0" => mcs(asked, "/a"),
            _ => status(denied),
        })
        .await;
        assert_eq!(versions(&server.fetch(server.settings()).await.unwrap()), ["3.2.0"], "{denied}");
        let server = Server::start(move |_| status(denied)).await;
        let error = server.fetch(server.settings()).await.unwrap_err();
        has(
            &error,
            &["no config of spec 3", &format!("HTTP {denied}"), "/config/worker", "know the pool"],
        );
    }
    let server = Server::start(|asked| match asked.version.as_str() {
        "2.2.0" => answer(200, "", r#"{"ignition":{"version":"2.2.0"}}"#),
        _ => status(400),
    })
    .await;
    has(&server.fetch(server.settings()).await.unwrap_err(), &["no config of spec 3"]);
    let server = Server::start(|_| answer(200, "", r#"{"ignition":{"version":"2.2.0"}}"#)).await;
    has(
        &server.fetch(server.settings()).await.unwrap_err(),
        &["every answer had another spec version"],
    );
}

#[tokio::test]
async fn requests_the_pool_under_its_upstream_name() {
    let server = Server::start(|asked| {
        assert!(asked.head.starts_with("get /config/worker-gpu http/1.1\r\n"), "{}", asked.head);
        mcs(asked, "/a")
    })
    .await;
    let mut settings = server.settings();
    settings.pool = Some("worker-gpu".to_owned());
    server.fetch(settings).await.unwrap();
}

#[tokio::test]
async fn one_invalid_answer_fails_the_whole_fetch() {
    let body = |text: &'static str| move || answer(200, "", text);
    has(&error_of(body("")).await, &["spec 3.4.0: the config is empty", HOST]);
    has(&error_of(body("<html>hunter2")).await, &["not an Ignition config"]);
    has(&error_of(body("{}")).await, &["ignition.version is missing"]);
    has(&error_of(body(r#"{"ignition":{"version":"4.0.0"}}"#)).await, &["4.0.0"]);
    has(
        &error_of(|| answer(200, "", &config("3.5.0", "/a"))).await,
        &["spec 3.4.0: the config is of spec 3.5.0"],
    );
    has(&error_of(|| status(503)).await, &["spec 3.4.0", "HTTP 503"]);
    has(&error_of(|| status(403)).await, &["HTTP 403"]);
    has(&error_of(|| status(204)).await, &["HTTP 204"]);
    has(&error_of(|| status(304)).await, &["HTTP 304"]);
    has(&error_of(|| answer(302, "Location: /config/master\r\n", "")).await, &["HTTP 302"]);
    let cut = |text: &'static str| move || Reply::Cut(text.to_owned());
    has(&error_of(cut("")).await, &["spec 3.4.0: error sending request"]);
    has(
        &error_of(cut("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"ignition\"")).await,
        &["spec 3.4.0", "body"],
    );
    has(
        &error_of(cut("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"ign")).await,
        &["spec 3.4.0", "body"],
    );
    has(&error_of(cut("HTTP/1.1 200 OK\r\n\r\n{\"ignition\"")).await, &["spec 3.4.0"]);
    has(&error_of(cut("hello\r\n\r\n")).await, &["spec 3.4.0"]);
}

#[tokio::test]
async fn treats_an_older_version_as_unsupported() {
    let server = Server::start(|asked| match asked.version.as_str() {
        "3.4.0" => answer(200, "", &config("3.3.0", "/a")),
        _ => mcs(asked, "/a"),
    })
    .await;
    assert_eq!(
        versions(&server.fetch(server.settings()).await.unwrap()),
        ["3.1.0", "3.2.0", "3.3.0", "3.5.0"]
    );
}

#[tokio::test]
async fn a_body_has_its_limit() {
    // With Content-Length, and without; each with the largest that is taken.
    let padded = |bytes: usize| format!("{:<bytes$}", config("3.4.0", "/a"));
    let limit = TEST_LIMITS.body_bytes;
    let chunked = move |bytes: usize| {
        Reply::Bytes(format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{bytes:x}\r\n{}\r\n0\r\n\r\n",
            padded(bytes)
        ))
    };
    let too_large = ["spec 3.4.0", "more than 10000 bytes"];
    has(&error_of(move || answer(200, "", &padded(limit + 1))).await, &too_large);
    has(&error_of(move || chunked(limit + 1)).await, &too_large);
    // Refused before it comes.
    has(
        &error_of(|| Reply::Bytes("HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{".to_owned())).await,
        &["spec 3.4.0"],
    );
    let replies: [fn(String, Reply) -> Reply; 2] = [|bytes, _| answer(200, "", &bytes), |_, chunked| chunked];
    for reply in replies {
        let server = Server::start(move |asked| match asked.version.as_str() {
            "3.4.0" => reply(padded(limit), chunked(limit)),
            _ => mcs(asked, "/a"),
        })
        .await;
        assert_eq!(
            server.fetch(server.settings()).await.unwrap().configs()[&SpecVersion::V3_4]
                .bytes
                .len(),
            limit
        );
    }
}

#[tokio::test]
async fn revalidates_cached_versions_by_etag() {
    let server = Server::start(|asked| match (asked.version.as_str(), asked.etag.as_deref()) {
        ("3.5.0" | "3.6.0" | "2.2.0", _) => status(406),
        (version, Some(etag)) if etag == format!("\"{version}\"") => status(304),
        (_, Some(_)) => status(400),
        (version, None) => answer(200, &format!("ETag: \"{version}\"\r\n"), &config(version, "/a")),
    })
    .await;
    let upstream = server.upstream();
    let first = upstream.fetch(None).await.unwrap();
    assert_eq!(server.asked(), "3.6.0 3.5.0 3.4.0 3.3.0 3.2.0 3.1.0 2.2.0 3.4.0!");
    let second = upstream.fetch(Some(&first)).await.unwrap();
    assert_eq!(server.asked(), "3.6.0 3.5.0 3.4.0! 3.3.0! 3.2.0! 3.1.0! 2.2.0 3.4.0!");
    assert!(first.is_same(&second));
    assert!(Arc::ptr_eq(
        &first.configs()[&SpecVersion::V3_4].config,
        &second.configs()[&SpecVersion::V3_4].config
    ));
}

#[tokio::test]
async fn detects_a_changed_upstream_config() {
    let state = Arc::new(Mutex::new("/a"));
    let played = Arc::clone(&state);
    let server = Server::start(move |asked| mcs(asked, *played.lock().unwrap())).await;
    let upstream = server.upstream();
    let first = upstream.fetch(None).await.unwrap();
    let second = upstream.fetch(Some(&first)).await.unwrap();
    assert!(first.is_same(&second));
    assert!(Arc::ptr_eq(
        &first.configs()[&SpecVersion::V3_1].config,
        &second.configs()[&SpecVersion::V3_1].config
    ));
    *state.lock().unwrap() = "/b";
    let third = upstream.fetch(Some(&second)).await.unwrap();
    assert!(!second.is_same(&third));
    assert_eq!(third.newest().list(["storage", "files"])[0]["path"], "/b");
    // One version fewer is a change too.
    let mut fewer: BTreeMap<_, _> = third.configs().clone();
    fewer.remove(&SpecVersion::V3_1);
    assert!(!third.is_same(&FetchedConfig::from_configs(fewer).unwrap()));
}

#[tokio::test]
async fn restarts_the_fetch_when_the_config_changes() {
    // The fourth request is the first of the new state: all begins again.
    let server = Server::start(|asked| mcs(asked, if asked.before < 3 { "/a" } else { "/b" })).await;
    let fetched = server.fetch(server.settings()).await.unwrap();
    for (version, given) in fetched.configs() {
        assert_eq!(given.bytes, config(version.as_str(), "/b"));
    }
    assert_eq!(server.asked().split(' ').count(), 9 + 9);
    // The newest is denied at the end, or another was not given for a moment only.
    let server = Server::start(|asked| if asked.before == 8 { status(500) } else { mcs(asked, "/a") }).await;
    server.fetch(server.settings()).await.unwrap();
    assert_eq!(server.asked().split(' ').count(), 9 + 9);
    let server = Server::start(|asked| if asked.before == 3 { status(500) } else { mcs(asked, "/a") }).await;
    assert!(
        server
            .fetch(server.settings())
            .await
            .unwrap()
            .configs()
            .contains_key(&SpecVersion::V3_3)
    );
    // It never rests.
    let server = Server::start(|asked| mcs(asked, &format!("/{}", asked.before))).await;
    has(
        &server.fetch(server.settings()).await.unwrap_err(),
        &["changed during each of 3 attempts"],
    );
}

/// Starts a Machine Config Server with Ignition's kernel arguments, and its defect: each request before 3.3 adds them to the object that
/// all answers are made of.
async fn growing() -> Server {
    let grown = Arc::new(Mutex::new(0));
    Server::start(move |asked| {
        let version = match asked.version.as_str() {
            "3.6.0" => "3.5.0",
            version => version,
        };
        let old = matches!(version, "3.2.0" | "3.1.0" | "2.2.0");
        let mut grown = grown.lock().unwrap();
        *grown += usize::from(old);
        let arguments = if old { "" } else { r#""kernelArguments":{"shouldExist":["a"]},"# };
        let machine_config = format!(r#"{{"spec":{{"kernelArguments":[{}]}}}}"#, vec!["\"a\""; *grown].join(","));
        let body = format!(
            r#"{{"ignition":{{"version":"{version}"}},{arguments}"storage":{{"files":[{{"path":"{ENCAPSULATED}","contents":{{"source":"{}"}}}}]}}}}"#,
            data_url::encode(machine_config.as_bytes())
        );
        answer(200, "", &body)
    })
    .await
}

#[tokio::test]
async fn probing_versions_does_not_affect_the_result() {
    let server = growing().await;
    let upstream = server.upstream();
    let first = upstream.fetch(None).await.unwrap();
    assert_eq!(versions(&first), ["3.3.0", "3.4.0", "3.5.0"]);
    assert_eq!(server.asked(), "3.6.0 3.5.0 3.4.0 3.3.0 3.5.0");
    // Nor does the next fetch.
    assert!(first.is_same(&upstream.fetch(Some(&first)).await.unwrap()));
}

#[tokio::test]
async fn refuses_an_upstream_with_a_wrong_certificate() {
    let server = Server::start(|asked| mcs(asked, "/a")).await;
    let other = Server::start(|asked| mcs(asked, "/a")).await;
    let pinned = |keys: Vec<SpkiSha256>| UpstreamSettings {
        keys_sha256: keys,
        ..server.settings()
    };
    server.fetch(pinned(vec![server.key])).await.unwrap();
    server.fetch(pinned(vec![other.key, server.key])).await.unwrap();
    has(
        &server.fetch(pinned(vec![other.key])).await.unwrap_err(),
        &["not in keys_sha256", &server.key.to_string()],
    );
    let wrong_ca = UpstreamSettings {
        ca: other.settings().ca,
        keys_sha256: vec![server.key],
        ..server.settings()
    };
    has(&server.fetch(wrong_ca).await.unwrap_err(), &["invalid peer certificate"]);
    let wrong_name = UpstreamSettings {
        url: Url::parse("https://other.example.com:22623").unwrap(),
        ..server.settings()
    };
    has(
        &server.fetch(wrong_name).await.unwrap_err(),
        &["other.example.com", "certificate not valid for name"],
    );
    assert_eq!(server.asked().split(' ').count(), 9 + 9, "nobody else got to ask");
}

#[tokio::test]
async fn checks_the_certificate_also_with_tls_1_2() {
    let server = Server::start_with(&[&rustls::version::TLS12], |asked| mcs(asked, "/a")).await;
    let mut settings = server.settings();
    settings.keys_sha256 = vec![server.key];
    server.fetch(settings.clone()).await.unwrap();
    settings.keys_sha256 = vec![SpkiSha256([0; 32])];
    has(&server.fetch(settings).await.unwrap_err(), &["not in keys_sha256"]);
}

#[tokio::test]
async fn refuses_an_address_for_a_numeric_url() {
    let server = Server::start(|asked| mcs(asked, "/a")).await;
    let by_address = UpstreamSettings {
        url: Url::parse(&format!("https://{}", server.address)).unwrap(),
        address: None,
        ..server.settings()
    };
    server.fetch(by_address.clone()).await.unwrap();
    let both = UpstreamSettings {
        address: Some(server.address),
        ..by_address
    };
    let error = Upstream::new(both, "worker").unwrap_err();
    assert!(matches!(error, UpstreamError::AddressOfAddress { .. }), "{error}");
}

#[tokio::test]
async fn times_out_on_a_silent_upstream() {
    let short = Duration::from_millis(50);
    // Before TLS.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::start(|_| Reply::Silence).await;
    let limits = UpstreamLimits {
        connect: short,
        ..TEST_LIMITS
    };
    let settings = UpstreamSettings {
        address: Some(listener.local_addr().unwrap()),
        ..server.settings()
    };
    let error = Upstream::with_limits(settings, "worker", limits)
        .unwrap()
        .fetch(None)
        .await
        .unwrap_err();
    has(
        &error.to_string(),
        &["spec 3.6.0", "timed out", &listener.local_addr().unwrap().to_string()],
    );
    // Before the head, and in the body.
    let half = Server::start(|_| Reply::Bytes("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_owned())).await;
    for server in [server, half] {
        let limits = UpstreamLimits {
            request: short,
            ..TEST_LIMITS
        };
        let upstream = Upstream::with_limits(server.settings(), "worker", limits).unwrap();
        has(&upstream.fetch(None).await.unwrap_err().to_string(), &["spec 3.6.0", "timed out"]);
    }
    drop(listener);
}

#[tokio::test]
async fn prints_connection_refused_only_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::start(|_| Reply::Silence).await;
    let settings = UpstreamSettings {
        address: Some(listener.local_addr().unwrap()),
        ..server.settings()
    };
    drop(listener);
    let error = server.fetch(settings).await.unwrap_err();
    has(&error, &["refused"]);
    assert_eq!(error.matches("refused").count(), 1, "{error}");
    assert_eq!(error.matches("https://").count(), 1, "{error}");
}

#[tokio::test]
async fn a_ca_file_without_a_ca_is_refused() {
    let server = Server::start(|_| Reply::Silence).await;
    for (text, expected) in [
        (Some(""), "holds no certificate"),
        (
            Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "invalid peer certificate",
        ),
        (Some("-----BEGIN CERTIFICATE-----\nAAAA\n"), "section end"),
        (None, "No such file"),
    ] {
        let ca = server.folder.path().join("other.crt");
        let _ = fs::remove_file(&ca);
        if let Some(text) = text {
            fs::write(&ca, text).unwrap();
        }
        let settings = UpstreamSettings { ca, ..server.settings() };
        has(
            &Upstream::new(settings, "worker").unwrap_err().to_string(),
            &["other.crt", expected],
        );
    }
}

#[tokio::test]
async fn errors_and_debug_output_hide_the_config() {
    let secret = |version: &str, mode: &str| {
        format!(
            r#"{{"ignition":{{"version":"{version}"}},"storage":{{"files":[{{"path":"/a","mode":{mode},"contents":{{"source":"data:,hunter2"}}}}]}}}}"#
        )
    };
    let error = error_of(move || answer(200, "", &secret("3.4.0", "\"hunter2\""))).await;
    assert!(!error.contains("hunter") && error.contains("line 1"), "{error}");
    let server = Server::start(move |asked| match asked.version.as_str() {
        "2.2.0" => status(406),
        version => answer(200, "", &secret(version, "420")),
    })
    .await;
    let fetched = server.fetch(server.settings()).await.unwrap();
    assert_eq!(versions(&fetched).len(), 6);
    assert!(!format!("{fetched:?}").contains("hunter"), "{fetched:?}");
}
