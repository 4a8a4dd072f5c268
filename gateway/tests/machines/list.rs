use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Gateway, POOL, bearer, digest, next_boot, now, program, tpm};

fn listed(gateway: &Gateway, more: &[&str]) -> Vec<Value> {
    let arguments = [&["machines", "list", "--output", "json"], more].concat();
    serde_json::from_str(&gateway.command(&arguments)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn list_has_the_last_attestation_refusal_and_config_of_each_machine() {
    let gateway = Gateway::start();
    let (trusted, refused, expected, banned) = (tpm(), tpm(), tpm(), tpm());
    gateway.endorse(&trusted, &["--name", "worker-1"]);
    gateway.endorse(&refused, &["--pool", POOL]);
    gateway.endorse(&expected, &["--name", "worker-3", "--pool", "infra"]);
    gateway.endorse(&banned, &["--name", "worker-4"]);
    let ticket = gateway.attest(next_boot(&trusted), None).await.ticket();
    assert_eq!(gateway.config("/config/worker", &[&bearer(&ticket)]).await.status, 200);
    gateway
        .attest(next_boot(&refused), Some("worker-1"))
        .await
        .refused(403, "node-name-taken");
    gateway.command(&["node", "revoke", "worker-4", "--reason", "disk sold"]);
    let all = listed(&gateway, &[]);
    let of = |case| {
        let identity = format!("tpm:{}", digest(case));
        all.iter().find(|machine| machine["identity"] == identity).unwrap()
    };
    assert_eq!(all.len(), 4, "{all:?}");
    let records = gateway.records();
    let record = |decision: &str, verdict: &str| {
        records
            .iter()
            .rfind(|record| record["decision"] == decision && record["verdict"] == verdict)
            .unwrap()
    };
    let machine = of(&trusted);
    assert_eq!(
        (&machine["name"], &machine["state"], &machine["pool"]),
        (&json!("worker-1"), &json!("trusted"), &json!(POOL))
    );
    assert_eq!(
        machine["attestation"],
        json!({ "at": record("evidence", "trusted")["time"], "kinds": ["tpm"], "pool": POOL, "instance": null, "record": record("evidence", "trusted")["id"] })
    );
    let served = record("config", "served");
    assert_eq!(
        (&machine["config"]["sha256"], &machine["config"]["set"]),
        (&served["config_sha256"], &json!("full"))
    );
    assert_eq!(
        (&machine["code"], &machine["revoked"], &machine["waiting"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let machine = of(&refused);
    assert_eq!(
        (&machine["state"], &machine["code"]),
        (&json!("refused"), &json!("node-name-taken"))
    );
    assert_eq!(machine["refusal"]["record"], record("evidence", "refused")["id"]);
    assert_eq!(of(&expected)["state"], "expected");
    assert_eq!(of(&expected)["allowlist"]["pools"], json!(["infra"]));
    let machine = of(&banned);
    assert_eq!(
        (&machine["state"], &machine["revoked"]["reason"]),
        (&json!("banned"), &json!("disk sold"))
    );
    // Filters.
    for (filter, count) in [
        (&["--state", "trusted"][..], 1),
        (&["--state", "known"], 0),
        (&["--pool", POOL], 3),
        (&["--pool", "infra"], 2),
        (&["--waiting"], 0),
        (&["--limit", "2"], 2),
        (
            &["--since", "1s", "--state", "trusted"],
            usize::from(served["at"].as_u64().unwrap() + 1 >= now()),
        ),
    ] {
        assert_eq!(listed(&gateway, filter).len(), count, "{filter:?}");
    }
    // By pages: each begins after the last machine of the one before.
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let mut arguments = vec!["--limit", "1"];
        arguments.extend(after.iter().flat_map(|after: &String| ["--after", after.as_str()]));
        let page = listed(&gateway, &arguments);
        let Some(last) = page.last() else { break };
        after = Some(last["identity"].as_str().unwrap().to_owned());
        pages.extend(page);
    }
    assert_eq!(pages, all);
    assert_eq!(listed(&gateway, &["--after", "worker-3"]), all[all.len() - 2..]);
    // The filter does not have to take the machine.
    assert_eq!(listed(&gateway, &["--after", "worker-1", "--state", "banned"]).len(), 1);
    let page = gateway.try_command(&["machines", "list", "--limit", "1"]);
    let note = format!("1 of 4 machines are shown; for the next ones: --after tpm:{}\n", digest(&trusted));
    assert_eq!(String::from_utf8(page.stderr).unwrap(), note);
    for unknown in ["worker-9", "", "tpm:", "no\nsuch"] {
        let refused = gateway.try_command(&["machines", "list", "--after", unknown]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(
            !refused.status.success() && said.contains("--after: no machine is listed as"),
            "{said}"
        );
    }
    // A machine by its name, its digest, and the beginning of that.
    for what in [
        "worker-1",
        &digest(&trusted),
        &format!("tpm:{}", digest(&trusted)),
        &digest(&trusted)[..8],
    ] {
        let shown = gateway.command(&["machines", "show", what]);
        assert!(
            shown.contains("state      Trusted\n") && shown.contains(served["config_sha256"].as_str().unwrap()),
            "{shown}"
        );
    }
    let shown: Value = serde_json::from_str(&gateway.command(&["machines", "show", "worker-4", "--output", "json"])).unwrap();
    assert_eq!(shown["revocations"].as_array().unwrap().len(), 2, "{shown}");
    let unknown = gateway.try_command(&["machines", "show", "worker-9"]);
    assert!(!unknown.status.success() && String::from_utf8(unknown.stderr).unwrap().contains("no machine is known as"));
    let unknown = gateway.try_command(&["machines", "list", "--pool", "no-such-pool"]);
    assert!(
        !unknown.status.success()
            && String::from_utf8(unknown.stderr)
                .unwrap()
                .contains("there is no pool \"no-such-pool\"")
    );
    let wide = gateway.command(&["machines", "list", "--wide"]);
    assert!(
        wide.starts_with("NODE ") && wide.contains(served["config_sha256"].as_str().unwrap()),
        "{wide}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_without_write_permission_can_list() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let mut gateway = Gateway::start();
    let case = tpm();
    gateway.endorse(&case, &["--name", "worker-1"]);
    gateway.attest(next_boot(&case), None).await.ticket();
    gateway.terminate();
    assert!(gateway.wait().success());
    // A copy that everybody may read, as on a read-only volume.
    let copy = tempfile::tempdir().unwrap();
    fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = copy.path().join("attest-gateway");
    fs::copy(self::program().get_program(), &program).unwrap();
    let to = copy.path().join("gateway");
    let copied = Command::new("cp").arg("-r").arg(gateway.path("")).arg(&to).status();
    assert!(copied.unwrap().success());
    let opened = Command::new("chmod").args(["-R", "a+rX,a-w"]).arg(&to).status();
    assert!(opened.unwrap().success());
    let run = |arguments: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .arg("--config")
            .arg(to.join("gateway.toml"))
            .args(arguments)
            .output()
            .unwrap()
    };
    for arguments in [
        &["machines", "list"][..],
        &["machines", "show", "worker-1"],
        &["machines", "export"],
    ] {
        let output = run(arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success() && text.contains("worker-1"), "{arguments:?}: {text}");
    }
    assert!(!run(&["node", "revoke", "worker-1"]).status.success());
}
