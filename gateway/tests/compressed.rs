//! Configs for tickets whose pointer names a compression and a hash: they are sent in exactly that way, or not at all.

use std::fs;
use std::io::Read as _;
use std::sync::Arc;

use attest::protocol::{ConfigCompression, ConfigForm, ConfigFormats, EvidenceRequest, EvidenceResponse};
use attest_store::Embedded;
use flate2::read::GzDecoder;

use crate::support::kubelet::{PATH, embedded, in_process};
use crate::support::{Answer, Case, Gateway, POOL, SPEC, accept, bearer, digest, next_boot, tpm};

/// Spec version of the pointer of these nodes, which is older than what their Ignition reads.
const POINTER_SPEC: &str = "3.2.0";

fn both() -> ConfigFormats {
    formats(true, Some(POINTER_SPEC))
}

fn formats(gzip: bool, spec_version: Option<&str>) -> ConfigFormats {
    ConfigFormats {
        compression: gzip.then_some(ConfigCompression::Gzip),
        spec_version: spec_version.map(str::to_owned),
    }
}

fn config(text: &str) -> String {
    format!(
        r#"{{"ignition":{{"version":"3.2.0"}},"storage":{{"files":[{{"path":"/etc/state","contents":{{"source":"data:,{text}"}}}}]}}}}"#
    )
}

fn write(gateway: &Gateway, text: &str) {
    fs::write(gateway.path("pools/worker/full/config.ign"), text).unwrap();
}

/// Starts a gateway with the config "first" for a machine that it endorses.
fn start() -> (Gateway, Case) {
    let mut gateway = Gateway::init();
    write(&gateway, &config("first"));
    let case = tpm();
    gateway.endorse(&case, &[]);
    gateway.run();
    (gateway, case)
}

fn request(gateway: &Gateway, case: &Case, formats: Option<ConfigFormats>) -> EvidenceRequest {
    let boot = next_boot(case);
    let challenge = gateway.challenge(&boot, None);
    EvidenceRequest {
        config: formats,
        ..gateway.answer(boot, &challenge)
    }
}

/// Attests, and returns the ticket, and how its config is sent.
async fn attest(gateway: &Gateway, case: &Case, formats: Option<ConfigFormats>) -> (String, Option<ConfigForm>) {
    let answer = gateway.post("/v1/attest/evidence", &request(gateway, case, formats)).await;
    assert!(answer.status.is_success(), "{answer:?}");
    let EvidenceResponse { ticket, config, .. } = serde_json::from_slice(&answer.body).unwrap();
    (ticket, config)
}

/// Returns the body that Ignition makes of an answer, by what its pointer says.
#[track_caller]
fn applied(answer: &Answer, form: &ConfigForm) -> Vec<u8> {
    assert!(answer.status.is_success(), "{answer:?}");
    // Ignition would undo this one, too.
    assert_eq!(answer.header("content-encoding"), None);
    let mut body = answer.body.clone();
    if form.compression.is_some() {
        assert_eq!(answer.header("content-type"), Some("application/gzip"));
        body.clear();
        GzDecoder::new(&*answer.body).read_to_end(&mut body).unwrap();
    } else {
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    if let Some(sha256) = &form.sha256 {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &body);
        assert_eq!(digest.as_ref(), sha256.as_bytes());
    }
    body
}

#[track_caller]
fn holds(answer: &Answer, form: &ConfigForm, state: &str) {
    let body = String::from_utf8(applied(answer, form)).unwrap();
    assert!(body.contains(&format!("data:,{state}\"")), "not {state}: {body}");
}

async fn fetch(gateway: &Gateway, ticket: &str) -> Answer {
    gateway.config(PATH, &[&bearer(ticket)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_the_config_as_the_ticket_says() {
    let (gateway, case) = start();
    for wanted in [
        Some(both()),
        Some(formats(true, None)),
        Some(formats(false, Some(POINTER_SPEC))),
        Some(formats(false, None)),
        None,
    ] {
        let (ticket, form) = attest(&gateway, &case, wanted.clone()).await;
        let is_plain = wanted.as_ref().is_none_or(|wanted| *wanted == formats(false, None));
        assert_eq!(form.is_none(), is_plain, "{wanted:?}");
        let form = form.unwrap_or(ConfigForm {
            compression: None,
            sha256: None,
        });
        let wanted = wanted.unwrap_or_default();
        assert_eq!(form.compression, wanted.compression);
        assert_eq!(form.sha256.is_some(), wanted.spec_version.is_some());
        let answer = fetch(&gateway, &ticket).await;
        let body: serde_json::Value = serde_json::from_slice(&applied(&answer, &form)).unwrap();
        let spec = wanted.spec_version.as_deref().unwrap_or(SPEC);
        assert_eq!(body["ignition"]["version"], spec);
        // The same once more, and its ETag.
        let head = gateway.client.head(gateway.url(PATH)).header("accept", accept(SPEC));
        let head = Answer::send(head.header("authorization", bearer(&ticket))).await;
        let length = answer.body.len().to_string();
        assert_eq!((head.header("content-length"), head.body.len()), (Some(length.as_str()), 0));
        let known = gateway.client.get(gateway.url(PATH)).header("accept", accept(SPEC));
        let known = known
            .header("authorization", bearer(&ticket))
            .header("if-none-match", answer.header("etag").unwrap());
        assert_eq!(Answer::send(known).await.status.as_u16(), 304);
        // The records have the digest of the plain config.
        let records = gateway.records();
        let [.., evidence, first, _, _] = &*records else {
            panic!("{records:?}")
        };
        assert_eq!(first["spec_version"], spec);
        assert_eq!(
            evidence["ticket"].get("config_sha256"),
            form.sha256.as_ref().map(|_| &first["config_sha256"])
        );
    }
    // A client without a ticket, or with an encoding of its own, gets the plain one.
    let token = gateway.client.get(gateway.url(PATH)).header("accept-encoding", "gzip");
    assert_eq!(Answer::send(token).await.header("content-type"), Some("application/json"));
    let audit = gateway.command(&["log", "audit"]);
    assert!(!audit.contains("differs"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_no_hash_for_an_inexpressible_config() {
    let (gateway, case) = start();
    write(
        &gateway,
        r#"{"ignition":{"version":"3.3.0"},"kernelArguments":{"shouldExist":["a"]},"storage":{"files":[{"path":"/etc/state","contents":{"source":"data:,args"}}]}}"#,
    );
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    let (ticket, form) = attest(&gateway, &case, Some(both())).await;
    let form = form.unwrap();
    assert_eq!((form.compression, &form.sha256), (Some(ConfigCompression::Gzip), &None));
    holds(&fetch(&gateway, &ticket).await, &form, "args");
    let (ticket, form) = attest(&gateway, &case, Some(formats(true, Some("3.9.0-experimental")))).await;
    let form = form.unwrap();
    assert!(form.sha256.is_some());
    // The promised version is newer than what this client reads.
    fetch(&gateway, &ticket).await.refused(406, "spec-version-too-old");
    let newer = gateway.client.get(gateway.url(PATH)).header("accept", accept("3.9.0"));
    holds(&Answer::send(newer.header("authorization", bearer(&ticket))).await, &form, "args");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_09_refuses_a_malformed_spec_version_before_anything_is_spent() {
    let (gateway, case) = start();
    let good = request(&gateway, &case, Some(both()));
    for version in ["", "3", "3.0.0", "2.2.0", "4.0.0", "latest", &"3.1.0".repeat(1000)] {
        let bad = EvidenceRequest {
            config: Some(formats(true, Some(version))),
            ..good.clone()
        };
        gateway.post("/v1/attest/evidence", &bad).await.refused(400, "malformed-request");
    }
    for bad in [r#"{"compression":"zstd"}"#, r#"{"compression":"GZIP"}"#, r#"{"gzip":true}"#, "1"] {
        let mut body = serde_json::to_value(&good).unwrap();
        body["config"] = serde_json::from_str(bad).unwrap();
        gateway.post("/v1/attest/evidence", &body).await.refused(400, "malformed-request");
    }
    assert!(gateway.post("/v1/attest/evidence", &good).await.status.is_success());
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_the_promised_config_after_a_change() {
    let (mut gateway, case) = start();
    let (old, old_form) = attest(&gateway, &case, Some(both())).await;
    let old_form = old_form.unwrap();
    let (plain, _) = attest(&gateway, &case, None).await;
    let (gzip, gzip_form) = attest(&gateway, &case, Some(formats(true, None))).await;
    write(&gateway, &config("second"));
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    let (new, new_form) = attest(&gateway, &case, Some(both())).await;
    assert_ne!(new_form.as_ref().unwrap().sha256, old_form.sha256);
    holds(&fetch(&gateway, &old).await, &old_form, "first");
    holds(&fetch(&gateway, &new).await, &new_form.unwrap(), "second");
    // What is not promised is that of now.
    holds(&fetch(&gateway, &gzip).await, &gzip_form.unwrap(), "second");
    assert!(String::from_utf8(fetch(&gateway, &plain).await.body).unwrap().contains("second"));

    // A policy that gives less gives less, whatever was promised.
    let edit = |from: &str, to: &str| gateway.edit_pool(POOL, from, to);
    edit("attested = \"full\"", "attested = \"pre-approved\"");
    gateway.lines(2, |line| line.contains("pool worker: serving a new state"));
    fetch(&gateway, &old).await.refused(403, "ticket-config-changed");
    edit("attested = \"pre-approved\"", "attested = \"refuse\"");
    gateway.lines(3, |line| line.contains("pool worker: serving a new state"));
    fetch(&gateway, &old).await.refused(403, "attested-not-accepted");
    edit("attested = \"refuse\"", "attested = \"full\"");
    gateway.lines(4, |line| line.contains("pool worker: serving a new state"));
    holds(&fetch(&gateway, &old).await, &old_form, "first");

    // Refusals spend nothing, and the digest of what was served is that of the promise.
    let (last, last_form) = attest(&gateway, &case, Some(both())).await;
    gateway.terminate();
    assert!(gateway.wait().success());
    gateway.run();
    holds(&fetch(&gateway, &last).await, &last_form.unwrap(), "second");
    // A gateway that was started since has no other config than that of now.
    fetch(&gateway, &old).await.refused(403, "ticket-config-changed");
    // Whoever may not have it any more is told that.
    gateway.command(&["node", "revoke", &digest(&case)]);
    fetch(&gateway, &old).await.refused(403, "node-revoked");
    let audit = gateway.command(&["log", "audit"]);
    assert!(!audit.contains("differs"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_a_promise_at_any_replica_with_its_config() {
    let [one, other] = [Gateway::init(), Gateway::init()];
    let shared = format!("[store]\nkey_file = {:?}", one.path("store.key"));
    for gateway in [&one, &other] {
        gateway.settings(&shared);
        write(gateway, &config("first"));
    }
    one.command(&["store", "create-key"]);
    let store = Arc::new(embedded(&one));
    // The other one has read the new config, and the first has not: it has no watch here.
    write(&other, &config("second"));
    for gateway in [&one, &other] {
        in_process(gateway, Arc::<Embedded>::clone(&store)).await;
    }
    let case = tpm();
    one.endorse(&case, &[]);
    let seal = crate::replicas::seal(&one, &store).await;
    let attest = async |gateway: &Gateway| {
        let boot = next_boot(&case);
        let challenge = gateway.challenge(&boot, None);
        let request = EvidenceRequest {
            config: Some(both()),
            ..gateway.answer_sealed(boot, &challenge, &seal)
        };
        let answer = gateway.post("/v1/attest/evidence", &request).await;
        let EvidenceResponse { ticket, config, .. } = serde_json::from_slice(&answer.body).unwrap();
        (ticket, config.unwrap())
    };
    let (new, form) = attest(&other).await;
    // Ignition asks again until a gateway has it.
    for _ in 0..3 {
        let behind = fetch(&one, &new).await;
        assert_eq!((behind.status.as_u16(), behind.body.len()), (503, 0));
    }
    holds(&fetch(&other, &new).await, &form, "second");
    // No retry was counted as a use.
    let uses: Vec<_> = other.records().iter().filter_map(|record| record["use_number"].as_u64()).collect();
    assert_eq!(uses, [1]);
}
