//! The exposition of metrics: Prometheus' text format, which `promtool` checks, and OpenMetrics for clients that ask for it; their values
//! after known requests; and no series that an unauthenticated client makes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use attest::protocol::{CHALLENGE_PATH, EVIDENCE_PATH};
use attest_gateway::metrics::GatewayMetrics;
use attest_plain_http::ProcessMetrics;
use cloud_fixtures::port::ReservedPort;

use crate::log_builder::{LogBuilder, SHA256};
use crate::support::node::Node;
use crate::support::{Gateway, LIMIT, POOL, bearer, challenge_request, tpm};
use crate::waiting::{SECTION, boots, strict, updated};

/// Returns the content type and the text of the metrics for this `Accept` header.
async fn scrape(address: &str, accept: Option<&str>) -> (String, String) {
    let mut request = reqwest::Client::new().get(format!("http://{address}/metrics"));
    if let Some(accept) = accept {
        request = request.header("accept", accept);
    }
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let content_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
    (content_type, answer.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_the_metrics() {
    let port = ReservedPort::reserve();
    let address = port.address().to_string();
    let mut gateway = Gateway::init();
    gateway.settings(&format!("[metrics]\nlisten = \"{address}\""));
    gateway.run();
    assert_eq!(gateway.config("/config/worker", &[]).await.status, 200);
    let (content_type, text) = scrape(&address, None).await;
    assert_eq!(content_type, "text/plain; version=0.0.4; charset=utf-8");
    assert!(text.contains("\n# TYPE attest_gateway_configs_total counter\n"), "{text}");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stderr));

    let (content_type, text) = scrape(&address, Some("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")).await;
    assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(
        text.contains("\n# TYPE attest_gateway_configs counter\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
}

/// Returns the samples of a text, by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    };
    lines.map(sample).collect()
}

/// Returns the samples of the metrics at an address.
pub async fn scraped(address: SocketAddr) -> BTreeMap<String, f64> {
    samples(&scrape(&address.to_string(), None).await.1)
}

/// Returns the names of the metrics with these samples.
fn names(samples: &BTreeMap<String, f64>) -> BTreeSet<&str> {
    let names = samples.keys().map(|series| series.split('{').next().unwrap());
    let suffix = |name: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| Some(name.len() - name.strip_suffix(suffix)?.len()))
    };
    names
        .map(|name| match suffix(name) {
            Some(length) if name.contains("_duration_seconds") => &name[..name.len() - length],
            _ => name,
        })
        .collect()
}

/// A gateway that serves metrics.
fn measured() -> (Gateway, String, ReservedPort) {
    let port = ReservedPort::reserve();
    let address = port.address().to_string();
    let gateway = Gateway::init();
    gateway.settings(&format!("[metrics]\nlisten = \"{address}\""));
    (gateway, address, port)
}

/// Values after an attested boot, a refusal, and some requests of nobody's.
#[tokio::test(flavor = "multi_thread")]
async fn values_are_those_of_the_requests() {
    let (mut gateway, address, _port) = measured();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let token = gateway.token(&["--name", "rack7", "--ttl", "30d"]);
    let case = tpm();
    gateway.endorse(&case, &[]);
    let challenge = gateway.post(CHALLENGE_PATH, &challenge_request(&case, POOL)).await;
    assert_eq!(challenge.status, 200);
    let ticket = gateway.attest(case, None).await.ticket();
    assert_eq!(gateway.config("/config/worker", &[&bearer(&ticket)]).await.status, 200);
    assert_eq!(gateway.config("/config/worker", &[&bearer(&token)]).await.status, 200);
    assert_eq!(gateway.config("/config/worker", &[]).await.status, 200);
    assert_eq!(gateway.config("/config/worker", &[&bearer("no-token")]).await.status, 403);
    assert_eq!(gateway.config("/nothing", &[]).await.status, 404);
    let begun = Instant::now();
    let found = loop {
        let found = samples(&scrape(&address, None).await.1);
        if found.contains_key("attest_gateway_token_expiry_timestamp_seconds{token=\"rack7\"}") {
            break found;
        }
        assert!(begun.elapsed() < LIMIT, "{found:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let value = |series: &str| *found.get(series).unwrap_or_else(|| panic!("{series} is not in {found:#?}"));
    for (series, expected) in [
        (
            "attest_gateway_http_requests_total{route=\"/v1/attest/challenge\",method=\"POST\",status=\"200\"}",
            1.0,
        ),
        (
            "attest_gateway_http_requests_total{route=\"/v1/attest/evidence\",method=\"POST\",status=\"200\"}",
            1.0,
        ),
        (
            "attest_gateway_http_requests_total{route=\"/config/{pool}\",method=\"GET\",status=\"200\"}",
            3.0,
        ),
        (
            "attest_gateway_http_requests_total{route=\"/config/{pool}\",method=\"GET\",status=\"403\"}",
            1.0,
        ),
        (
            "attest_gateway_http_requests_total{route=\"unmatched\",method=\"GET\",status=\"404\"}",
            1.0,
        ),
        ("attest_gateway_http_request_duration_seconds_count{route=\"/config/{pool}\"}", 4.0),
        (
            "attest_gateway_attestations_total{pool=\"worker\",kind=\"tpm\",verdict=\"trusted\",code=\"\"}",
            1.0,
        ),
        (
            "attest_gateway_configs_total{pool=\"worker\",shown=\"ticket\",config=\"full\",code=\"\"}",
            1.0,
        ),
        (
            "attest_gateway_configs_total{pool=\"worker\",shown=\"token\",config=\"full\",code=\"\"}",
            1.0,
        ),
        (
            "attest_gateway_configs_total{pool=\"worker\",shown=\"nothing\",config=\"pre-approved\",code=\"\"}",
            1.0,
        ),
        (
            "attest_gateway_configs_total{pool=\"worker\",shown=\"token\",config=\"\",code=\"token-invalid\"}",
            1.0,
        ),
        ("attest_gateway_limit_max{limit=\"requests\"}", 256.0),
        ("attest_gateway_limit_used{limit=\"requests\"}", 0.0),
        ("attest_gateway_log_broken", 0.0),
        ("attest_gateway_pool_source_broken{pool=\"worker\"}", 0.0),
        ("attest_gateway_machines_waiting{pool=\"worker\"}", 0.0),
        ("attest_gateway_leader{task=\"tend\"}", 1.0),
        ("attest_gateway_store_errors_total", 0.0),
    ] {
        assert_eq!(value(series), expected, "{series}");
    }
    let log = std::fs::metadata(gateway.path("state/attestation.jsonl")).unwrap().len();
    assert!(value("attest_gateway_log_size_bytes") > 1000.0 && value("attest_gateway_log_size_bytes") <= log as f64);
    for histogram in ["tls_handshake", "verification", "log_fsync"] {
        assert!(
            value(&format!("attest_gateway_{histogram}_duration_seconds_count")) >= 1.0,
            "{histogram}"
        );
    }
    for mode in ["read", "decision"] {
        assert!(
            value(&format!(
                "attest_gateway_store_transaction_duration_seconds_count{{mode=\"{mode}\"}}"
            )) >= 1.0
        );
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    for time in [
        "attest_gateway_log_last_fsync_timestamp_seconds",
        "attest_gateway_log_last_checkpoint_timestamp_seconds",
        "attest_gateway_log_stored_checkpoint_timestamp_seconds",
        "attest_gateway_pool_config_timestamp_seconds{pool=\"worker\"}",
        "attest_gateway_pool_last_good_reload_timestamp_seconds{pool=\"worker\"}",
        "process_start_time_seconds",
    ] {
        assert!((now - value(time)).abs() < LIMIT.as_secs_f64(), "{time}: {}", value(time));
    }
    let expiry = value("attest_gateway_token_expiry_timestamp_seconds{token=\"rack7\"}") - now;
    assert!((29.0 * 86_400.0..=30.0 * 86_400.0).contains(&expiry), "{expiry}");
    assert!(value("attest_gateway_store_size_bytes{engine=\"embedded\"}") > 10_000.0);
    assert!(value("attest_gateway_state_available_bytes") <= value("attest_gateway_state_size_bytes"));
    // What is there, the table has.
    let table: BTreeSet<&str> = GatewayMetrics::TABLE
        .iter()
        .chain(ProcessMetrics::TABLE)
        .map(|metric| metric.name)
        .collect();
    let unknown: Vec<_> = names(&found).into_iter().filter(|name| !table.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_clients_make_no_series() {
    let (mut gateway, address, _port) = measured();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let request = async |method: &str, path: &str, body: String| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request = gateway
            .client
            .request(method, gateway.url(path))
            .header("accept", "application/json");
        request.body(body).send().await.unwrap().status().as_u16()
    };
    let strange = async |number: usize| {
        request(&format!("X{number}"), &format!("/v{number}/attest"), String::new()).await;
        request("GET", &format!("/config/pool-{number}"), String::new()).await;
        request(&format!("Y{number}"), "/config/worker", String::new()).await;
        request("POST", CHALLENGE_PATH, format!("{{\"pool\":\"pool-{number}\",\"attester\":{{}}}}")).await;
        request("POST", EVIDENCE_PATH, format!("{{\"challenge\":\"{number}\",\"evidence\":{{}}}}")).await;
        let mut unknown = challenge_request(&tpm(), POOL);
        unknown.name = Some(format!("node-{number}"));
        request("POST", CHALLENGE_PATH, serde_json::to_string(&unknown).unwrap()).await;
        gateway.config("/config/worker", &[&bearer(&format!("token-{number}"))]).await;
    };
    let series = async || -> BTreeSet<String> {
        // Entries of the store are measured a little after the start.
        tokio::time::sleep(Duration::from_secs(1)).await;
        samples(&scrape(&address, None).await.1).into_keys().collect()
    };
    // Until limits of sources and of aggregation are reached, each refusal has a code of its own.
    for number in 0..40 {
        strange(number).await;
    }
    let before = series().await;
    for number in 40..300 {
        strange(number).await;
    }
    let after = series().await;
    let new: Vec<_> = after.difference(&before).collect();
    assert!(new.is_empty(), "{new:?}");
    assert!(after.len() < 600, "{}", after.len());
    // What is beyond the limit of a source is answered 503, and counted.
    let busy = "attest_gateway_http_requests_total{route=\"/config/{pool}\",method=\"GET\",status=\"503\"}";
    assert!(after.contains(busy), "{after:#?}");
    let other = "attest_gateway_http_requests_total{route=\"unmatched\",method=\"other\",status=\"404\"}";
    assert!(after.contains(other), "{after:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_machines_are_counted() {
    let (mut gateway, address, _port) = measured();
    let (mut known, mut new) = (Node::new(), Node::new());
    for node in [&known, &new] {
        gateway.command(&["ek", "add", &node.ek()]);
    }
    gateway.run();
    strict(&mut gateway, &mut known, &LogBuilder::typical(&[SHA256]), SECTION).await;
    boots(&gateway, &mut new, &updated("loader 2")).await.refused(503, "answer-pending");
    let begun = Instant::now();
    loop {
        let found = samples(&scrape(&address, None).await.1);
        if found["attest_gateway_machines_waiting{pool=\"worker\"}"] == 1.0 {
            assert_eq!(found["attest_gateway_machines_waiting{pool=\"infra\"}"], 0.0);
            assert_eq!(found["attest_gateway_waiting_total{event=\"began\"}"], 1.0);
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{found:#?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
