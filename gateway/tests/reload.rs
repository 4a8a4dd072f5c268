//! A change of a pool's source while the gateway serves: it serves either the new state or the old one, completely.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::support;
use crate::support::{Answer, Gateway, POOL, accept};
use cloud_fixtures::port::ReservedPort;

fn config(text: &str) -> String {
    format!(
        r#"{{"ignition":{{"version":"3.4.0"}},"storage":{{"files":[{{"path":"/etc/state","contents":{{"source":"data:,{text}"}}}}]}}}}"#
    )
}

/// Starts a gateway that serves the state "first" to every client.
fn start() -> Gateway {
    let mut gateway = Gateway::init();
    write(&gateway, &config("first"));
    gateway.run();
    gateway
}

fn write(gateway: &Gateway, text: &str) {
    fs::write(gateway.path("pools/worker/pre-approved/config.ign"), text).unwrap();
}

#[track_caller]
fn is(answer: &Answer, state: &str) {
    let text = String::from_utf8_lossy(&answer.body);
    assert!(
        answer.status.is_success() && text.contains(&format!("data:,{state}\"")),
        "not {state}: {text}"
    );
}

async fn serves(gateway: &Gateway, state: &str) {
    is(&gateway.config("/config/worker", &[]).await, state);
}

async fn ready(gateway: &Gateway) -> (u16, String) {
    let answer = Answer::send(gateway.client.get(gateway.url("/readyz"))).await;
    (answer.status.as_u16(), String::from_utf8(answer.body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_pool_change_is_served() {
    let gateway = start();
    serves(&gateway, "first").await;
    write(&gateway, &config("second"));
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    serves(&gateway, "second").await;
    // As editors and configuration management write: another file takes the place.
    let new = gateway.path("pools/worker/new");
    fs::write(&new, config("third")).unwrap();
    fs::rename(&new, gateway.path("pools/worker/pre-approved/config.ign")).unwrap();
    gateway.lines(2, |line| line.contains("pool worker: serving a new state"));
    serves(&gateway, "third").await;
    // As Kubernetes does: a link to a folder takes the place of another.
    let volume = gateway.path("pools/worker/volume");
    for (folder, state) in [("..1", "fourth"), ("..2", "fifth")] {
        fs::create_dir_all(volume.join(folder)).unwrap();
        fs::write(volume.join(folder).join("config.ign"), config(state)).unwrap();
    }
    symlink("..1", volume.join("..data")).unwrap();
    symlink("..data/config.ign", volume.join("config.ign")).unwrap();
    fs::remove_dir_all(gateway.path("pools/worker/pre-approved")).unwrap();
    symlink("volume", gateway.path("pools/worker/pre-approved")).unwrap();
    gateway.line(|line| line.contains("pool worker") && line.contains("serving"));
    gateway.lines(3, |line| line.contains("pool worker: serving a new state"));
    serves(&gateway, "fourth").await;
    symlink("..2", volume.join("..new")).unwrap();
    fs::rename(volume.join("..new"), volume.join("..data")).unwrap();
    gateway.lines(4, |line| line.contains("pool worker: serving a new state"));
    serves(&gateway, "fifth").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_written_file_is_never_served() {
    let gateway = start();
    let path = gateway.path("pools/worker/machine-configs");
    fs::create_dir(&path).unwrap();
    // Good YAML at every moment, and half of what it is going to be.
    let object = |name: &str| {
        format!(
            "---\napiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: {name}\n  labels: {{machineconfiguration.openshift.io/role: worker}}\n\
             spec:\n  neededBeforeNodeApproved: true\n  config:\n    ignition: {{version: 3.2.0}}\n    storage: {{files: [{{path: /etc/{name}, contents: {{source: \"data:,{name}\"}}}}]}}\n"
        )
    };
    fs::write(path.join("0.yaml"), object("zero")).unwrap();
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    let mut file = File::create(path.join("all.yaml")).unwrap();
    file.write_all(object("one").as_bytes()).unwrap();
    // Other changes come later, and are served: that of the other pool at once.
    write(&gateway, &config("second"));
    fs::write(gateway.path("pools/infra/pre-approved/config.ign"), config("infra")).unwrap();
    gateway.line(|line| line.contains("pool infra: serving a new state"));
    let answer = gateway.config("/config/worker", &[]).await;
    is(&answer, "first");
    is(&answer, "zero");
    assert!(!String::from_utf8_lossy(&answer.body).contains("data:,one"));
    gateway.line(|line| line.contains("pool worker: reload delayed"));
    file.write_all(object("two").as_bytes()).unwrap();
    drop(file);
    gateway.lines(2, |line| line.contains("pool worker: serving a new state"));
    let answer = gateway.config("/config/worker", &[]).await;
    for state in ["zero", "one", "two", "second"] {
        is(&answer, state);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_the_last_good_pool_after_errors() {
    let mut gateway = Gateway::init();
    write(&gateway, &config("first"));
    let port = ReservedPort::reserve();
    let metrics = port.address();
    gateway.settings(&format!("[metrics]\nlisten = \"{metrics}\""));
    gateway.run();
    let object = |name: &str, rest: &str| {
        format!(
            "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: {name}\n  labels: {{machineconfiguration.openshift.io/role: worker}}\n{rest}"
        )
    };
    let manifests = gateway.path("pools/worker/machine-configs");
    fs::create_dir(&manifests).unwrap();
    let version = "spec:\n  config:\n    ignition: {version: 3.99.0}\n";
    let bad: [(&str, String, &str); 7] = [
        ("syntax.yaml", "a: [".to_owned(), "syntax.yaml:1"),
        (
            "kind.yaml",
            "apiVersion: v1\nkind: Pod\n".to_owned(),
            "kind.yaml:1: kind \"v1 Pod\"",
        ),
        (
            "field.yaml",
            object("a", "spec:\n  fipps: true\n"),
            "field.yaml:7: MachineConfig a: spec.fipps",
        ),
        (
            "version.yaml",
            object("a", version),
            "version.yaml:8: MachineConfig a: spec.config.ignition.version",
        ),
        (
            "twice.yaml",
            format!("{0}---\n{0}", object("a", "")),
            "twice.yaml:7: MachineConfig a is already in",
        ),
        (
            "label.yaml",
            object("a", "").replace("role: worker", "rule: worker"),
            "label.yaml:5",
        ),
        ("text.txt", "hello".to_owned(), "text.txt: *.yaml"),
    ];
    let mut broken = Vec::new();
    let told = |expected: &str| {
        gateway
            .line(|line| line.contains("pool worker: ") && line.contains(expected) && line.contains("still serving the last good state"));
    };
    for (name, text, expected) in bad {
        fs::write(manifests.join(name), text).unwrap();
        told(expected);
        serves(&gateway, "first").await;
        broken.push(manifests.join(name));
        for path in broken.drain(..) {
            fs::remove_file(path).unwrap();
        }
    }
    File::create(manifests.join("large.yaml")).unwrap().set_len(50 << 20).unwrap();
    told("large.yaml: 52428800 bytes, at most 16777216 are read");
    fs::remove_file(manifests.join("large.yaml")).unwrap();
    symlink("loop.yaml", manifests.join("loop.yaml")).unwrap();
    told("loop.yaml: ");
    serves(&gateway, "first").await;
    let (status, said) = ready(&gateway).await;
    assert!(
        status == 200 && said.starts_with("ready\npool worker: its source is broken since "),
        "{said}"
    );
    assert!(!said.contains("loop"), "the reason is the log's: {said}");
    let text = reqwest::Client::new()
        .get(format!("http://{metrics}/metrics"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(text.contains("attest_gateway_pool_source_broken{pool=\"worker\"} 1"), "{text}");
    assert!(text.contains("attest_gateway_pool_source_broken{pool=\"infra\"} 0"), "{text}");
    assert!(
        text.contains("attest_gateway_configs_total{pool=\"worker\",shown=\"nothing\",config=\"pre-approved\",code=\"\"}"),
        "{text}"
    );
    // The other pool is served anew all the same, and so is this one as soon as it is well.
    fs::write(gateway.path("pools/infra/pre-approved/config.ign"), config("infra")).unwrap();
    gateway.line(|line| line.contains("pool infra: serving a new state"));
    is(&gateway.config("/config/infra", &[]).await, "infra");
    fs::remove_file(manifests.join("loop.yaml")).unwrap();
    gateway.line(|line| line.contains("pool worker: its source can be read again"));
    assert_eq!(ready(&gateway).await, (200, "ready\n".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_added_and_removed_at_runtime() {
    let gateway = start();
    gateway.config("/config/gpu", &[]).await.refused(404, "pool-unknown");
    let status = Command::new("cp")
        .arg("-r")
        .arg(gateway.path("pools/worker"))
        .arg(gateway.path("pools/gpu"))
        .status()
        .unwrap();
    assert!(status.success());
    gateway.line(|line| line.contains("pool gpu: serving a new state"));
    is(&gateway.config("/config/gpu", &[]).await, "first");
    fs::remove_dir_all(gateway.path("pools/gpu")).unwrap();
    gateway.line(|line| line.contains("pool gpu: its folder was removed"));
    gateway.config("/config/gpu", &[]).await.refused(404, "pool-unknown");
    // All of them at once are an accident.
    fs::rename(gateway.path("pools"), gateway.path("elsewhere")).unwrap();
    gateway.line(|line| line.contains("keeping the previous state of all pools"));
    serves(&gateway, "first").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_reloads_all_pools_at_once() {
    let gateway = start();
    // When this is served, the folders are watched.
    fs::write(gateway.path("pools/infra/pre-approved/config.ign"), config("infra")).unwrap();
    gateway.line(|line| line.contains("pool infra: serving a new state"));
    // As long as this is open, nobody else would read it.
    let mut file = File::create(gateway.path("pools/worker/pre-approved/later.ign")).unwrap();
    file.write_all(config("second").as_bytes()).unwrap();
    gateway.line(|line| line.contains("pool worker: reload delayed"));
    serves(&gateway, "first").await;
    gateway.hang_up();
    gateway.line(|line| line.contains("SIGHUP: reloading all pools"));
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    serves(&gateway, "second").await;
    drop(file);
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_change_without_a_restart() {
    let gateway = start();
    serves(&gateway, "first").await;
    gateway.edit_pool(POOL, "nothing = \"pre-approved\"", "nothing = \"refuse\"");
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    gateway.config("/config/worker", &[]).await.refused(403, "evidence-required");
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_server_is_polled_verified_and_cached() {
    // The other server is a gateway too: it speaks what a Machine Config Server speaks.
    let mut upstream = Gateway::init();
    upstream.edit_pool(POOL, "nothing = \"pre-approved\"", "nothing = \"full\"");
    let full = |state: &str| {
        format!(
            r#"{{"ignition":{{"version":"3.1.0"}},"storage":{{"files":[{{"path":"/etc/early","contents":{{"source":"data:,early"}}}},{{"path":"/etc/state","contents":{{"source":"data:,{state}"}}}}]}}}}"#
        )
    };
    fs::write(upstream.path("pools/worker/full/config.ign"), full("one")).unwrap();
    upstream.run();

    let mut gateway = Gateway::init();
    for folder in ["full", "pre-approved"] {
        fs::remove_dir_all(gateway.path("pools/worker").join(folder)).unwrap();
    }
    fs::copy(upstream.path("tls/mcs-ca.crt"), gateway.path("pools/worker/upstream-ca.crt")).unwrap();
    let source = format!(
        "[upstream]\nurl = \"{}\"\nca = \"upstream-ca.crt\"\nrevalidate_seconds = 86400\n\n[upstream.include]\nfiles = [\"/etc/early\"]\n\n[tpm]",
        upstream.url("")
    );
    gateway.edit_pool(POOL, "[tpm]", &source);
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    gateway.run();
    let token = support::bearer(&gateway.token(&[]));
    let early = gateway.config("/config/worker", &[]).await;
    let text = String::from_utf8(early.body).unwrap();
    assert!(text.contains("data:,early") && !text.contains("/etc/state"), "{text}");
    // Byte for byte what the other server says.
    for version in ["2.2.0", "3.1.0", "3.4.0", "3.5.0"] {
        let theirs = Answer::send(
            upstream
                .client
                .get(upstream.url("/config/worker"))
                .header("accept", accept(version)),
        )
        .await;
        let request = gateway.client.get(gateway.url("/config/worker")).header("accept", accept(version));
        let ours = Answer::send(request.header("authorization", &token)).await;
        assert!(
            ours.body == theirs.body && ours.header("etag") == theirs.header("etag"),
            "{version}"
        );
    }
    // Something new there is served here when it is asked for.
    fs::write(upstream.path("pools/worker/full/config.ign"), full("two")).unwrap();
    upstream.line(|line| line.contains("pool worker: serving a new state"));
    gateway.hang_up();
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    is(&gateway.config("/config/worker", &[&token]).await, "two");
    // It goes away: what it said last is served, and everybody is told.
    upstream.kill();
    gateway.hang_up();
    gateway.line(|line| line.contains("pool worker: ") && line.contains("still serving the last good state"));
    is(&gateway.config("/config/worker", &[&token]).await, "two");
    assert!(ready(&gateway).await.1.contains("the last good state is served"));
    // A grant is taken back all the same.
    gateway.edit_pool(POOL, "token = \"full\"", "token = \"refuse\"");
    gateway.lines(2, |line| line.contains("pool worker: serving a new state"));
    gateway.config("/config/worker", &[&token]).await.refused(403, "token-not-accepted");
    assert!(ready(&gateway).await.1.contains("the last good state is served"));
    gateway.edit_pool(POOL, "token = \"refuse\"", "token = \"full\"");
    // A gateway that starts now has nothing to serve for that pool; nodes wait, and other pools are served.
    gateway.kill();
    gateway.run();
    gateway.config("/config/worker", &[]).await.check_retry();
    assert!(gateway.config("/config/infra", &[]).await.status.is_success());
    let (status, said) = ready(&gateway).await;
    assert!(status == 200 && said.contains("pool worker: not served"), "{said}");
    upstream.run();
    gateway.hang_up();
    gateway.line(|line| line.contains("pool worker: serving a new state"));
    is(&gateway.config("/config/worker", &[&token]).await, "two");
    assert_eq!(ready(&gateway).await, (200, "ready\n".to_owned()));
}
