//! Metrics as text, in the format that the client asks for.
//!
//! Formats: OpenMetrics 1.0.0 (<https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md>), and Prometheus' text
//! format 0.0.4 (<https://prometheus.io/docs/instrumenting/exposition_formats/>), which tools such as `promtool check metrics` read.

use std::collections::HashSet;
use std::fmt::Write as _;

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

const OPEN_METRICS: &str = "application/openmetrics-text";
const TEXT: &str = "text/plain";

/// Answers with all metrics of a registry.
#[must_use]
pub fn exposition(registry: &Registry, request: &HeaderMap) -> Response {
    let mut text = String::new();
    if encode(&mut text, registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let accept = request.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    match quality(accept, OPEN_METRICS) >= quality(accept, TEXT).max(1) {
        true => answer("application/openmetrics-text; version=1.0.0; charset=utf-8", text),
        false => answer("text/plain; version=0.0.4; charset=utf-8", prometheus_text(&text)),
    }
}

fn answer(content_type: &'static str, text: String) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static(content_type))], text).into_response()
}

/// Returns the quality, in thousandths, that an `Accept` header gives a media type that it names; else 0.
fn quality(accept: &str, media_type: &str) -> u32 {
    let of = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let is_it = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(media_type));
        let quality = parts.find_map(|parameter| parameter.strip_prefix("q=")).unwrap_or("1");
        let (whole, thousandths) = quality.split_once('.').unwrap_or((quality, ""));
        let thousandths = format!("{thousandths:0<3}").get(..3)?.parse::<u32>().ok()?;
        is_it.then_some(whole.parse::<u32>().ok()?.saturating_mul(1000).saturating_add(thousandths))
    };
    accept.split(',').filter_map(of).max().unwrap_or(0)
}

/// Converts OpenMetrics to Prometheus' text format: there, a counter's family has the name of its sample, and there are no units and no
/// end mark.
fn prometheus_text(open_metrics: &str) -> String {
    let counters: HashSet<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        // Writing to a String does not fail.
        let _ = match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => Ok(()),
            (Some("#"), Some(kind), Some(name), Some(rest)) => {
                let total = if counters.contains(name) { "_total" } else { "" };
                writeln!(text, "# {kind} {name}{total} {rest}")
            }
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_chooses_the_format() {
        let check = |accept: &str, expect: bool| {
            let open = quality(accept, OPEN_METRICS) >= quality(accept, TEXT).max(1);
            assert_eq!(open, expect, "{accept}");
        };
        // What Prometheus 2.42 sends.
        check(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            true,
        );
        check("text/plain;version=0.0.4;q=1,application/openmetrics-text;q=0.3", false);
        check("application/openmetrics-text", true);
        check("application/openmetrics-text;q=0", false);
        for other in ["", "*/*", "text/plain", "application/json", "application/openmetrics-text;q=é"] {
            check(other, false);
        }
    }

    #[test]
    fn converts_to_the_text_format() {
        let open = "# HELP a_b A b.\n# TYPE a_b counter\na_b_total{x=\"# EOF\"} 1\n# HELP c_seconds C.\n# TYPE c_seconds gauge\n# UNIT c_seconds seconds\nc_seconds 2\n# EOF\n";
        let text = "# HELP a_b_total A b.\n# TYPE a_b_total counter\na_b_total{x=\"# EOF\"} 1\n# HELP c_seconds C.\n# TYPE c_seconds gauge\nc_seconds 2\n";
        assert_eq!(prometheus_text(open), text);
    }
}
