use std::fs;

use serde_json::Value;

use crate::support::{Gateway, POOL, bearer, next_boot, tpm};

/// Returns the exit code, and the report.
fn status(gateway: &Gateway) -> (i32, Value) {
    let output = gateway.try_command(&["status", "--output", "json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    (
        output.status.code().unwrap(),
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")),
    )
}

fn stops(status: &Value) -> Vec<&str> {
    status["stops"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stop| stop.as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn status_fails_while_something_stops_a_boot() {
    let mut gateway = Gateway::init();
    // No gateway, and no store.
    let (code, report) = status(&gateway);
    assert_eq!(
        (code, &report["serves"], &report["waiting"]),
        (1, &Value::from(false), &Value::Null)
    );
    assert!(stops(&report).iter().any(|stop| stop.contains("no gateway serves")), "{report}");
    gateway.run();
    let (code, report) = status(&gateway);
    assert_eq!((code, stops(&report)), (0, vec![]), "{report}");
    let case = tpm();
    gateway.endorse(&case, &[]);
    let ticket = gateway.attest(next_boot(&case), None).await.ticket();
    assert_eq!(gateway.config("/config/worker", &[&bearer(&ticket)]).await.status, 200);
    assert_eq!(gateway.config("/config/infra", &[]).await.status, 200);
    gateway.attest(tpm(), None).await.refused(403, "ek-not-endorsed");
    gateway.config("/config/no-such-pool", &[]).await.refused(404, "pool-unknown");
    gateway.checkpoints();
    let (_, report) = status(&gateway);
    let today = &report["today"]["pools"];
    assert_eq!(
        (&today[POOL]["trusted"], &today[POOL]["served_full"]),
        (&1.into(), &1.into()),
        "{report}"
    );
    assert_eq!(
        (&today[POOL]["codes"]["ek-not-endorsed"], &today["infra"]["served_pre_approved"]),
        (&1.into(), &1.into()),
        "{report}"
    );
    assert!(
        today.as_object().unwrap().len() == 2 && report["today"]["unknown_pools"] == 0,
        "{report}"
    );
    assert_eq!((&report["waiting"]["questions"], &report["replicas"]), (&0.into(), &Value::Null));
    let log = &report["log"];
    assert!(log["signed"].as_u64() <= log["lines"].as_u64() && !log["chain"].is_null(), "{log}");
    let certificates = report["certificates"].as_array().unwrap();
    assert!(
        certificates
            .iter()
            .any(|one| one["name"] == "MCS certificate" && one["state"] == "good"),
        "{report}"
    );
    let text = gateway.command(&["status"]);
    assert!(
        text.starts_with("boots         nothing stops a boot\n") && text.lines().count() < 24,
        "{text}"
    );
    // A pool that is broken is served as it was, and a restart would lose it.
    let file = gateway.path("pools/infra/pool.toml");
    let before = fs::read_to_string(&file).unwrap();
    fs::write(&file, "[").unwrap();
    let (code, report) = status(&gateway);
    assert!(
        code == 1 && stops(&report).iter().any(|stop| stop.contains("pool infra")),
        "{report}"
    );
    let output = gateway.try_command(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .starts_with("boots         STOPPED now, or after a restart; problems: 1\n")
    );
    let text = gateway.try_command(&["status"]).stdout;
    assert!(!String::from_utf8(text).unwrap().contains("\\u{a}"));
    fs::write(&file, before).unwrap();
    let output = gateway.try_command(&["status", "--log", "/no-such-log"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // A line that is no record keeps nobody from the others.
    let damaged = gateway.path("damaged.jsonl");
    let log = fs::read_to_string(gateway.path("state/attestation.jsonl")).unwrap();
    fs::write(&damaged, format!("no record\n{log}")).unwrap();
    let damaged = damaged.to_str().unwrap();
    let report: Value = serde_json::from_slice(&gateway.try_command(&["status", "--output", "json", "--log", damaged]).stdout).unwrap();
    assert_eq!(report["today"]["pools"][POOL]["trusted"], 1, "{report}");
    gateway.command(&["machines", "list", "--log", damaged]);
    // A store that cannot be read.
    gateway.terminate();
    gateway.wait();
    fs::write(gateway.path("state/gateway.db"), "no store").unwrap();
    let (code, report) = status(&gateway);
    assert!(
        code == 1 && report["store"]["error"].is_string() && report["waiting"].is_null(),
        "{report}"
    );
}
