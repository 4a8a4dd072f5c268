//! Pages of `docs/reference` that are made from the code: settings, codes, fields of the log, metrics. With `WRITE_DOCS` in the environment
//! the tests write the pages; without it they compare.

use std::collections::BTreeSet;
use std::fs;

use attest::advice::Advice;
use attest_gateway::metrics::GatewayMetrics;
use attest_log::codes;
use attest_plain_http::{Metric, MetricKind, ProcessMetrics};
use serde_json::Value;

use crate::{document, root};

/// Third line of a page that is made from the code: `.ci/words` does not count it.
const INTRODUCTION: &str = "`make docs` writes this page from";

fn check(name: &str, text: &str) {
    assert!(text.lines().nth(2).is_some_and(|line| line.starts_with(INTRODUCTION)), "{name}");
    let path = format!("docs/reference/{name}");
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(root().join(&path), text).unwrap();
    } else {
        assert!(document(&path) == text, "{path} differs from the code: run make docs");
    }
}

/// Returns a cell of a table: one line, without the character that ends a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Returns the page of a sample of settings.
///
/// A line `[section]` begins a section. Comments before keys describe these keys. `#: key = value` is a default, `# key = value` an example.
/// A blank line ends a group.
fn settings_page(title: &str, sample: &str, introduction: &str) -> String {
    let mut page = format!("# {title}\n\n{INTRODUCTION} `{sample}`. {introduction}\n");
    let mut group = Group::default();
    for line in document(sample).lines().chain([""]) {
        match SampleLine::read(line) {
            SampleLine::End => group.write(&mut page),
            SampleLine::Section(name) => {
                group.write(&mut page);
                page.push_str(&format!("\n## `[{name}]`\n"));
            }
            SampleLine::Key(key, value, is_default) => {
                let example = if is_default { "" } else { " (example)" };
                group.keys.push(format!("`{key} = {value}`{example}"));
            }
            SampleLine::Text(line) => {
                if !group.keys.is_empty() {
                    group.write(&mut page);
                }
                group.text.push(line.to_owned());
            }
        }
    }
    page
}

/// Keys with the text that describes them.
#[derive(Default)]
struct Group {
    text: Vec<String>,
    keys: Vec<String>,
}

impl Group {
    /// Writes the group, and begins the next.
    fn write(&mut self, page: &mut String) {
        let Self { text, keys } = std::mem::take(self);
        let (text, keys) = (text.join(" "), keys.join(", "));
        match (keys.is_empty(), text.is_empty()) {
            (true, true) => {}
            (true, false) => page.push_str(&format!("\n{text}\n")),
            (false, true) => page.push_str(&format!("\n- {keys}\n")),
            (false, false) => page.push_str(&format!("\n- {keys}  \n  {text}\n")),
        }
    }
}

/// A line of a sample.
enum SampleLine<'a> {
    Section(&'a str),
    /// A key, with its value, and whether that is no example.
    Key(&'a str, &'a str, bool),
    Text(&'a str),
    End,
}

impl<'a> SampleLine<'a> {
    fn read(line: &'a str) -> Self {
        let is_default = !line.starts_with("# ");
        let content = line.strip_prefix("#: ").or(line.strip_prefix("# ")).unwrap_or(line);
        let section = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let is_name = |name: &str| {
            let name = name.trim_matches('"');
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        };
        match (section, content.split_once(" = ")) {
            (Some(section), _) if is_name(section) => Self::Section(section),
            (_, Some((key, value))) if is_name(key) => Self::Key(key, value, is_default),
            _ if content.trim().is_empty() => Self::End,
            _ => Self::Text(line.trim_start_matches('#').trim()),
        }
    }
}

#[test]
fn settings_pages_are_those_of_the_samples() {
    for (name, title, sample, introduction) in [
        (
            "gateway-toml.md",
            "gateway.toml",
            "gateway/dist/gateway.toml",
            "Settings of `attest-gateway`. A value is the default, unless it is marked as an example.",
        ),
        (
            "pool-toml.md",
            "pool.toml",
            "gateway/dist/pool.toml",
            "Settings of a pool, with the values of a new gateway's sample pool.",
        ),
        (
            "controller-toml.md",
            "controller.toml",
            "gateway/controller/dist/controller.toml",
            "Settings of `attest-controller`. A value is the default, unless it is marked as an example.",
        ),
    ] {
        check(name, &settings_page(title, sample, introduction));
    }
}

fn code_table(codes: &[(u16, Advice)]) -> String {
    let mut table = "\n| Code | HTTP | Meaning | Next step |\n|---|---|---|---|\n".to_owned();
    for (status, Advice { code, title, next_step }) in codes {
        let status = if *status == 0 { "–".to_owned() } else { status.to_string() };
        table.push_str(&format!("| `{code}` | {status} | {} | {} |\n", cell(title), cell(next_step)));
    }
    table
}

#[test]
fn the_page_of_codes_is_that_of_the_code() {
    let own: Vec<(u16, Advice)> = codes::OWN.iter().map(|code| (code.status, code.advice)).collect();
    let of_evidence: Vec<(u16, Advice)> = attest::reject::advices()
        .map(|advice| (codes::status_of_evidence(*advice), *advice))
        .collect();
    let all = own.iter().chain(&of_evidence).map(|(_, advice)| advice.code);
    let unique: BTreeSet<&str> = all.clone().collect();
    assert_eq!(unique.len(), all.count(), "a code has two meanings");
    let mut page = format!(
        "# Codes\n\n{INTRODUCTION} the code. A refusal has a stable code: on the node's console in brackets, in the gateway's log as `code`, and in the \
         HTTP answer as the member `code` of the problem document. [Codes of attest-node](node-codes.md) are those that a node gives by itself.\n\
         \n## Requests, tickets and tokens\n"
    );
    page.push_str(&code_table(&own));
    page.push_str("\n## Evidence\n");
    page.push_str(&code_table(&of_evidence));
    #[cfg(feature = "cluster")]
    {
        page.push_str(
            "\n## CSRs of kubelets\n\nWhy `attest-controller` leaves a CSR as it is: in an event of the CSR, and in the controller's log.\n\
             \n| Code | Meaning | Next step |\n|---|---|---|\n",
        );
        for Advice { code, title, next_step } in attest_controller::approval::reason::ADVICE {
            page.push_str(&format!("| `{code}` | {} | {} |\n", cell(title), cell(next_step)));
        }
    }
    check("codes.md", &page);
}

/// Returns the rows of an object's fields.
fn field_rows(schema: &Value) -> String {
    let mut rows = "\n| Field | Meaning |\n|---|---|\n".to_owned();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let Some(description) = field["description"].as_str() else {
            continue;
        };
        let link = field["$ref"].as_str().or(field.pointer("/items/$ref").and_then(Value::as_str));
        let link = link.and_then(|link| link.strip_prefix("#/$defs/"));
        let link = link.map_or_else(String::new, |name| format!(" ({name})"));
        rows.push_str(&format!("| `{name}` | {}{link} |\n", cell(description)));
    }
    rows
}

#[test]
fn the_page_of_log_fields_is_that_of_the_schema() {
    let schema: Value = serde_json::from_str(&document("docs/attestation-log.schema.json")).unwrap();
    let mut page = format!(
        "# Fields of the attestation log\n\n{INTRODUCTION} [the JSON schema](../attestation-log.schema.json), version 1. {}\n\n## Entry\n",
        schema["description"].as_str().unwrap()
    );
    page.push_str(&field_rows(&schema));
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        if definition["properties"].is_object() {
            page.push_str(&format!("\n## `{name}`\n"));
            if let Some(description) = definition["description"].as_str() {
                page.push_str(&format!("\n{description}\n"));
            }
            page.push_str(&field_rows(definition));
        }
    }
    check("log-fields.md", &page);
}

/// The copy of the alerts for kustomize, which takes no file of another folder, is made from them.
#[test]
fn the_object_of_the_alerts_is_that_of_the_rules() {
    let path = "gateway/dist/kubernetes/parts/monitoring/prometheus-rule.yaml";
    let text = attest_gateway::manifests::prometheus_rule();
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(root().join(path), text).unwrap();
    } else {
        assert!(
            document(path) == text,
            "{path} differs from gateway/dist/prometheus-rules.yaml: run make docs"
        );
    }
}

/// Returns the section of a table of metrics.
fn metrics_section(title: &str, table: &[Metric]) -> String {
    let mut section = format!("\n## {title}\n\n| Metric | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n");
    for metric in table {
        let Metric { name, kind, labels, help } = metric;
        let (kind, unit) = (kind.as_str(), metric.unit().unwrap_or_default());
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        section.push_str(&format!("| `{name}` | {kind} | {unit} | {labels} | {} |\n", cell(help)));
    }
    section
}

/// Returns all tables of metrics.
pub fn metrics_tables() -> Vec<(&'static str, &'static [Metric])> {
    vec![
        ("attest-gateway", GatewayMetrics::TABLE),
        #[cfg(feature = "cluster")]
        ("attest-controller", attest_controller::METRICS),
        ("Both programs", ProcessMetrics::TABLE),
    ]
}

#[test]
fn the_page_of_metrics_is_that_of_the_tables() {
    let mut page = format!(
        "# Metrics\n\n{INTRODUCTION} the code. Prometheus reads them at `/metrics`: [monitoring](../how-to/monitor.md). A histogram has `_bucket`, `_sum` and \
         `_count` behind its name.\n"
    );
    for (title, table) in metrics_tables() {
        page.push_str(&metrics_section(title, table));
    }
    check("metrics.md", &page);
}

#[test]
fn names_of_metrics_follow_the_conventions_of_prometheus() {
    let tables = metrics_tables();
    let all: Vec<&Metric> = tables.iter().flat_map(|(_, table)| *table).collect();
    let names: BTreeSet<&str> = all.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all.len(), "a name is there twice");
    for metric in all {
        let Metric { name, kind, labels, help } = metric;
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        let prefixes = ["attest_gateway_", "attest_controller_", "process_"];
        assert!(prefixes.iter().any(|prefix| name.starts_with(prefix)), "{name}");
        assert_eq!(*kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
        assert!(*kind != MetricKind::Histogram || name.ends_with("_duration_seconds"), "{name}");
        let is_time = |text: &str| text.starts_with("Time at") || text.starts_with("Time since which") || text.starts_with("Expiry");
        assert_eq!(is_time(help), name.ends_with("_timestamp_seconds"), "{name}: {help}");
        for unit in ["_milliseconds", "_minutes", "_kilobytes", "_megabytes", "_percent"] {
            assert!(!name.contains(unit), "{name}");
        }
        assert!(!help.is_empty() && !help.ends_with('.'), "{name}: {help}");
        assert!(
            !labels.contains(&"le") && !labels.contains(&"job") && !labels.contains(&"instance"),
            "{name}"
        );
    }
}
