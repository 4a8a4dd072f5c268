//! Alerts and the dashboard: `promtool` checks and tests the rules, and a running Prometheus fires one of a running gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use attest_gateway::metrics::GatewayMetrics;
use attest_plain_http::{Metric, MetricKind, ProcessMetrics};
use cloud_fixtures::port::ReservedPort;
use regex::Regex;
use serde_json::Value;

use crate::support::{Gateway, LIMIT};

const RULES: &str = include_str!("../dist/prometheus-rules.yaml");
const DASHBOARD: &str = include_str!("../dist/grafana-dashboard.json");
/// Tests of the rules, for `promtool`.
const RULE_TESTS: &str = include_str!("alerts/alerts.yaml");

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns all alerts of the rules.
fn alerts() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(RULES).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("{pointer}: {value:#}"))
}

/// Returns the PromQL expressions of the dashboard.
fn dashboard_expressions() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                let own = members.get("expr").and_then(Value::as_str).map(str::to_owned);
                found.extend(own);
                members.values().for_each(|member| collect(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(DASHBOARD).unwrap(), &mut found);
    found
}

fn tables() -> Vec<&'static Metric> {
    let all = GatewayMetrics::TABLE.iter().chain(ProcessMetrics::TABLE);
    #[cfg(feature = "cluster")]
    let all = all.chain(attest_controller::METRICS);
    all.collect()
}

/// Returns the names of this project's metrics in an expression.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let name = Regex::new(r"\b(attest_gateway|attest_controller|process)_[a-z_]+").unwrap();
    name.find_iter(expression).map(|found| found.as_str().to_owned()).collect()
}

#[track_caller]
fn promtool(arguments: &[&str], file: &str) {
    let output = Command::new("promtool").args(arguments).arg(path(file)).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn promtool_accepts_the_rules() {
    promtool(&["check", "rules"], "dist/prometheus-rules.yaml");
}

#[test]
fn each_alert_fires_in_a_test_and_none_on_a_quiet_day() {
    promtool(&["test", "rules"], "tests/alerts/alerts.yaml");
    let tests: Value = serde_saphyr::from_str(RULE_TESTS).unwrap();
    let tests = tests["tests"].as_array().unwrap();
    let (quiet, others) = tests.split_first().unwrap();
    let fired = others.iter().flat_map(|test| test["alert_rule_test"].as_array().unwrap());
    let fired: BTreeSet<&str> = fired
        .filter(|one| one["exp_alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()))
        .map(|one| text(one, "/alertname"))
        .collect();
    let alerts = alerts();
    assert_eq!(fired, alerts.iter().map(|alert| text(alert, "/alert")).collect());
    // The quiet day has everything that an alert looks at, so that its silence means something.
    assert_eq!(
        text(quiet, "/promql_expr_test/0/expr"),
        "count_over_time(ALERTS{alertstate=\"firing\"}[1d])"
    );
    let series = quiet["input_series"].as_array().unwrap().iter();
    let series: BTreeSet<String> = series.flat_map(|series| metrics_in(text(series, "/series"))).collect();
    let wanted: BTreeSet<String> = alerts.iter().flat_map(|alert| metrics_in(text(alert, "/expr"))).collect();
    assert_eq!(series, wanted);
}

#[test]
fn each_alert_names_its_page_and_a_severity() {
    let monitoring = fs::read_to_string(path("../docs/how-to/monitor.md")).unwrap();
    for alert in alerts() {
        let name = text(&alert, "/alert");
        assert!(name.starts_with("AttestGateway") || name.starts_with("AttestController"), "{name}");
        assert!(["critical", "warning"].contains(&text(&alert, "/labels/severity")), "{name}");
        assert!(text(&alert, "/annotations/summary").ends_with('.'), "{name}");
        let page = text(&alert, "/annotations/runbook");
        let night = page.strip_prefix("docs/night/").unwrap_or_else(|| panic!("{name}: {page}"));
        assert!(path("..").join(page).is_file(), "{name}: {page} does not exist");
        let row = monitoring.lines().find(|line| line.contains(&format!("`{name}`")));
        assert!(row.is_some_and(|row| row.contains(&format!("../night/{night}"))), "{name}: {row:?}");
    }
    let rows = monitoring.lines().filter(|line| line.starts_with("| `Attest")).count();
    assert_eq!(rows, alerts().len());
}

#[test]
fn rules_and_dashboard_name_metrics_of_the_tables() {
    let tables = tables();
    let mut samples = BTreeMap::new();
    for metric in &tables {
        let suffixes: &[&str] = match metric.kind {
            MetricKind::Histogram => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        samples.extend(suffixes.iter().map(|suffix| (format!("{}{suffix}", metric.name), *metric)));
    }
    let labels = Regex::new(r"([a-z_]+)(\{[^}]*\})").unwrap();
    let label = Regex::new(r#"([a-z_]+)\s*=?[=~!]"#).unwrap();
    let expressions: Vec<String> = alerts().iter().map(|alert| text(alert, "/expr").to_owned()).collect();
    assert!(dashboard_expressions().len() > 30);
    for expression in expressions.into_iter().chain(dashboard_expressions()) {
        let named = metrics_in(&expression);
        let unknown: Vec<_> = named.iter().filter(|name| !samples.contains_key(*name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {expression}");
        for found in labels.captures_iter(&expression) {
            let Some(metric) = samples.get(&found[1]) else { continue };
            for name in label.captures_iter(&found[2]) {
                let known = metric.labels.contains(&&name[1]) || ["instance", "job", "namespace"].contains(&&name[1]);
                assert!(known, "{} has no label {} in {expression}", metric.name, &name[1]);
            }
        }
    }
}

/// A running Prometheus; killed on drop.
struct Prometheus {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
    _port: ReservedPort,
}

impl Prometheus {
    /// Starts it with the rules, for a gateway whose metrics are at this address.
    fn start(target: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\n\
             scrape_configs:\n  - job_name: attest-gateway\n    static_configs: [{{targets: [\"{target}\"]}}]\n",
            path("dist/prometheus-rules.yaml").display()
        );
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let port = ReservedPort::reserve();
        let address = port.address().to_string();
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            process,
            address,
            _folder: folder,
            _port: port,
        }
    }

    /// Returns the data of an answer of its API; `None` if it does not answer yet.
    async fn get(&self, path: &str) -> Option<Value> {
        let answer = reqwest::get(format!("http://{}/api/v1/{path}", self.address)).await.ok()?;
        let answer: Value = answer.json().await.ok()?;
        assert_eq!(answer["status"], "success", "{path}: {answer:#}");
        Some(answer["data"].clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_fires_an_alert_of_a_running_gateway() {
    let port = ReservedPort::reserve();
    let target = port.address().to_string();
    let mut gateway = Gateway::init();
    gateway.settings(&format!("[metrics]\nlisten = \"{target}\""));
    gateway.run();
    // One token expires before long, and another does not.
    gateway.token(&["--name", "rack7", "--ttl", "1d"]);
    gateway.token(&["--name", "rack8", "--ttl", "30d"]);
    let prometheus = Prometheus::start(&target);
    let begun = Instant::now();
    let firing = loop {
        let alerts = prometheus.get("alerts").await.unwrap_or_default();
        let mut all = alerts["alerts"].as_array().cloned().unwrap_or_default();
        // A pending one may be true of the machine that tests, such as a full disk.
        all.retain(|alert| alert["state"] == "firing");
        if !all.is_empty() {
            break all;
        }
        assert!(begun.elapsed() < LIMIT, "{alerts:#}\n{}", gateway.output());
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(firing.len(), 1, "{firing:#?}");
    assert_eq!(text(&firing[0], "/labels/alertname"), "AttestGatewayTokenExpires");
    assert_eq!(text(&firing[0], "/labels/token"), "rack7");
    assert!(text(&firing[0], "/annotations/summary").starts_with("Token rack7 expires"));
    // It scrapes without an error, and evaluates each rule.
    let targets = prometheus.get("targets").await.unwrap();
    assert_eq!(targets.pointer("/activeTargets/0/health").unwrap(), "up", "{targets:#}");
    let rules = prometheus.get("rules").await.unwrap();
    let rules = rules.pointer("/groups/0/rules").unwrap().as_array().unwrap();
    assert_eq!(rules.len(), alerts().len());
    for rule in rules {
        assert!(["ok", "unknown"].contains(&text(rule, "/health")), "{rule:#}");
    }
    // The dashboard's expressions are PromQL.
    for expression in dashboard_expressions() {
        let expression = expression.replace("$__rate_interval", "1m").replace("$instance", ".*");
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("query", &expression)
            .finish();
        prometheus.get(&format!("query?{query}")).await.unwrap();
    }
}
