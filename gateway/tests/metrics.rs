//! The exposition of metrics: Prometheus' text format, which `promtool` checks, and OpenMetrics for clients that ask for it.

use std::io::Write;
use std::process::{Command, Stdio};

use cloud_fixtures::port::ReservedPort;

use crate::support::Gateway;

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
    assert!(text.contains("\n# TYPE attest_gateway_decisions_total counter\n"), "{text}");
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
        text.contains("\n# TYPE attest_gateway_decisions counter\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
}
