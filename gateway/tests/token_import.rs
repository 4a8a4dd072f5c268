//! Import of tokens that were made elsewhere and are already in pointers: they are accepted unchanged.

use std::fs;
use std::io::Write;
use std::process::{Output, Stdio};

use crate::support::served::serve;
use crate::support::{Answer, Gateway, POOL, SPEC, accept, bearer, program};
use data_encoding::BASE64;

/// Token from `dd if=/dev/urandom bs=32 count=1 | base64`, with every Base64 character that has another meaning in a URL or a form.
const TOKEN: &str = "q3/Jx+0ZkG7yJmJ8vD1mXw2aT+0pQ9cR4nL6sYbU5eE=";

fn accepting() -> Gateway {
    let mut gateway = Gateway::init();
    for pool in [POOL, "infra"] {
        gateway.edit_pool(pool, "token = \"refuse\"", "token = \"full\"");
    }
    gateway.run();
    gateway
}

/// Runs `token create --from-file -` with this on standard input.
fn import(gateway: &Gateway, content: &str, more: &[&str]) -> Output {
    let mut child = program()
        .arg("--config")
        .arg(gateway.path("gateway.toml"))
        .args(["token", "create", "--pool", POOL, "--from-file", "-"])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(content.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn refused(output: &Output, expected: &str) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(
        !output.status.success() && output.stdout.is_empty() && said.contains(expected),
        "{said}"
    );
}

async fn by_query(gateway: &Gateway, token: &str) -> Answer {
    let url = gateway.url(&format!("/config/{POOL}?token={token}"));
    Answer::send(gateway.client.get(url).header("accept", accept(SPEC))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn imported_tokens_are_accepted_and_never_stored_readable() {
    let gateway = accepting();
    let full = gateway.rendered(POOL, "full");
    let path = format!("/config/{POOL}");
    gateway.config(&path, &[&bearer(TOKEN)]).await.refused(403, "token-invalid");
    let file = gateway.path("token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let file = file.display().to_string();
    let said = gateway.command(&[
        "token",
        "create",
        "--pool",
        POOL,
        "--name",
        "old",
        "--uses",
        "3",
        "--from-file",
        &file,
    ]);
    assert_eq!(said, "", "whoever has it needs no copy");
    let escaped = TOKEN.replace('/', "%2F").replace('+', "%2B").replace('=', "%3D");
    gateway.config(&path, &[&bearer(TOKEN)]).await.is_config(&full);
    by_query(&gateway, TOKEN).await.is_config(&full);
    by_query(&gateway, &escaped).await.is_config(&full);
    // The limit is one for all ways; another pool is another pool's.
    gateway.config(&path, &[&bearer(TOKEN)]).await.refused(403, "token-spent");
    gateway
        .config("/config/infra", &[&bearer(TOKEN)])
        .await
        .refused(403, "token-wrong-pool");
    let records = gateway.records();
    let served: Vec<_> = records.iter().filter(|record| record["verdict"] == "served").collect();
    assert_eq!(
        (served.len(), &served[2]["name"], &served[2]["use_number"]),
        (3, &"old".into(), &3.into())
    );
    for name in ["gateway.db", "gateway.db-wal", "attestation.jsonl"] {
        let content = fs::read(gateway.path("state").join(name)).unwrap_or_default();
        assert!(!content.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()), "{name}");
    }
    assert!(!gateway.output().contains(TOKEN));
    // Near misses are nothing.
    for wrong in [
        TOKEN.trim_end_matches('=').to_owned(),
        format!("{TOKEN}="),
        TOKEN.replace('+', "-").replace('/', "_"),
    ] {
        gateway.config(&path, &[&bearer(&wrong)]).await.refused(403, "token-invalid");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn imports_the_machineconfig_auth_secret() {
    let gateway = accepting();
    let full = gateway.rendered(POOL, "full");
    let encoded = BASE64.encode(format!("{TOKEN}\n").as_bytes());
    let secret = format!(
        "apiVersion: v1\ndata:\n  token: {encoded}\nkind: Secret\nmetadata:\n  name: machineconfig-auth\n  namespace: openshift-config\ntype: Opaque\n"
    );
    let pointer = import(&gateway, &secret, &["--name", "old", "--format", "pointer"]);
    assert!(pointer.status.success(), "{}", String::from_utf8_lossy(&pointer.stderr));
    let pointer: serde_json::Value = serde_json::from_slice(&pointer.stdout).unwrap();
    let header = pointer.pointer("/ignition/config/merge/0/httpHeaders/0/value").unwrap();
    assert_eq!(*header, bearer(TOKEN));
    let path = format!("/config/{POOL}");
    gateway.config(&path, &[&bearer(TOKEN)]).await.is_config(&full);
    refused(&import(&gateway, TOKEN, &["--name", "twice"]), "exists already, as \"old\"");
    // It rotates like any other, and its pointers are found by those who still show it.
    let new = gateway.command(&["token", "rotate", "old"]);
    gateway.config(&path, &[&bearer(new.trim())]).await.is_config(&full);
    by_query(&gateway, TOKEN).await.is_config(&full);
    gateway.line(|line| line.contains("stale pointer"));
    gateway.command(&["token", "revoke", "old"]);
    by_query(&gateway, TOKEN).await.refused(403, "token-invalid");
    assert!(import(&gateway, TOKEN, &["--name", "again"]).status.success());
    by_query(&gateway, TOKEN).await.is_config(&full);
}

#[tokio::test(flavor = "multi_thread")]
async fn imports_another_gateways_token_and_refuses_other_text() {
    let (gateway, other) = (accepting(), Gateway::init());
    let token = other.token(&[]);
    assert!(import(&gateway, &token, &[]).status.success());
    let full = gateway.rendered(POOL, "full");
    gateway.config("/config/worker", &[&bearer(&token)]).await.is_config(&full);
    let before = gateway.command(&["token", "list"]);
    refused(&import(&gateway, "hunter2\n", &[]), "too short");
    refused(&import(&gateway, &format!("{TOKEN}\n{TOKEN}\n"), &[]), "one line");
    refused(&import(&gateway, &format!("ticket.{TOKEN}"), &[]), "ticket");
    refused(&import(&gateway, "", &[]), "no token");
    refused(
        &import(&gateway, "apiVersion: v1\nkind: Secret\ndata: {password: aHVudGVyMg==}\n", &[]),
        "no token",
    );
    refused(
        &gateway.try_command(&["token", "create", "--pool", POOL, "--from-file", "/nowhere"]),
        "/nowhere",
    );
    assert_eq!(gateway.command(&["token", "list"]), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn imported_bootstrap_tokens_expire_as_in_kubernetes() {
    let gateway = Gateway::init();
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    let now = time::OffsetDateTime::now_utc();
    let secret = |expires: i64, usage: &str| {
        let time = now + time::Duration::seconds(expires);
        let time = time.format(&time::format_description::well_known::Rfc3339).unwrap();
        format!(
            "apiVersion: v1\nkind: Secret\ntype: bootstrap.kubernetes.io/token\nstringData:\n  token-id: 4hq7wz\n  token-secret: k2v9x0t8r1m5n3c6\n  expiration: \"{time}\"\n  usage-bootstrap-authentication: \"{usage}\"\n"
        )
    };
    refused(&import(&gateway, &secret(-5, "true"), &[]), "the token expired at 20");
    refused(&import(&gateway, &secret(3600, "false"), &[]), "not for authentication");
    let into = gateway.path("into");
    fs::create_dir(&into).unwrap();
    let rotating = ["--name", "fleet", "--rotate-every", "1h", "--into", into.to_str().unwrap()];
    refused(
        &import(&gateway, &secret(3600, "true"), &rotating),
        "cannot rotate a bootstrap token",
    );
    let output = import(&gateway, &secret(3600, "true"), &["--ttl", "9d", "--name", "joining"]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let path = format!("/config/{POOL}");
    let token = bearer("4hq7wz.k2v9x0t8r1m5n3c6");
    let expires = u64::try_from(now.unix_timestamp()).unwrap() + 3600;
    // Its last second counts.
    let served = serve(&gateway, expires).await;
    gateway.config(&path, &[&token]).await.is_config(&gateway.rendered(POOL, "full"));
    served.stop().await;
    let served = serve(&gateway, expires + 1).await;
    gateway.config(&path, &[&token]).await.refused(403, "token-expired");
    let half = bearer("4hq7wz.k2v9x0t8r1m5n3c");
    gateway.config(&path, &[&half]).await.refused(403, "token-invalid");
    served.stop().await;
}
