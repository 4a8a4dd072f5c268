//! The attestation log's records, sent to a receiver by Debian's rsyslogd with the configuration in `dist/forward`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use cloud_fixtures::port::ReservedPort;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::support::{Gateway, LIMIT, POOL};

/// Maximum duration of a delivery: each record is posted by a curl of its own, and a failed one is repeated after 2 s.
const DELIVERY_LIMIT: Duration = Duration::from_secs(4 * LIMIT.as_secs());

/// Programs that the configuration needs, and the arguments that check their presence.
const PROGRAMS: [(&str, &str); 5] = [
    ("rsyslogd", "-v"),
    ("curl", "--version"),
    ("flock", "--version"),
    ("logger", "--version"),
    ("sync", "--version"),
];

fn missing_program() -> Option<&'static str> {
    let is_there = |name: &str, argument: &str| {
        let asked = Command::new(name)
            .arg(argument)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    };
    let missing = PROGRAMS.iter().find(|(name, argument)| !is_there(name, argument));
    missing.map(|(name, _)| *name)
}

/// Received lines, each once.
type Lines = Arc<Mutex<BTreeSet<String>>>;

/// Server that receives records, and can be stopped.
struct Receiver {
    port: ReservedPort,
    lines: Lines,
    task: Option<JoinHandle<()>>,
}

impl Receiver {
    fn new() -> Self {
        Self {
            port: ReservedPort::reserve(),
            lines: Arc::default(),
            task: None,
        }
    }

    async fn begin(&mut self) {
        let listener = TcpListener::bind(self.port.address()).await.unwrap();
        let router = axum::Router::new().fallback(take).with_state(Arc::clone(&self.lines));
        self.task = Some(tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }));
    }

    /// Stops the server, whose listener is then closed.
    async fn end(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // Its listener is closed then.
            drop(task.await);
        }
    }

    fn lines(&self) -> BTreeSet<String> {
        self.lines.lock().unwrap().clone()
    }
}

async fn take(State(lines): State<Lines>, body: String) -> StatusCode {
    let whole = body.strip_suffix('\n').expect("whole lines");
    lines.lock().unwrap().extend(whole.split('\n').map(str::to_owned));
    StatusCode::NO_CONTENT
}

/// `rsyslogd` with the shipped configuration, its paths replaced.
struct Rsyslogd {
    folder: PathBuf,
    child: Option<Child>,
    /// Process groups of all started programs: the one that posts may outlive its `rsyslogd`.
    groups: Vec<u32>,
}

impl Rsyslogd {
    fn new(folder: &Path, log: &Path, receiver: &Receiver) -> Self {
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist/forward");
        let shipped = |name: &str| fs::read_to_string(dist.join(name)).unwrap();
        let replaced = |text: String, replacements: &[(&str, &str)]| {
            replacements.iter().fold(text, |text, (from, to)| {
                assert!(text.contains(from), "{from}");
                text.replace(from, to)
            })
        };
        let [options, program] = [folder.join("curl.conf"), dist.join("post-record")].map(|path| path.display().to_string());
        let url = format!("http://{}/in", receiver.port.address());
        fs::write(
            &options,
            replaced(shipped("curl.conf"), &[("https://logs.example.com/ingest", &url)]),
        )
        .unwrap();
        let configuration = replaced(
            shipped("rsyslog.conf"),
            &[
                ("/var/lib/attest-gateway-forward", folder.to_str().unwrap()),
                ("/var/lib/attest-gateway/", &format!("{}/", log.parent().unwrap().display())),
                ("/usr/libexec/attest-gateway/post-record", &program),
                ("/etc/attest-gateway/forward/curl.conf", &options),
            ],
        );
        fs::write(folder.join("rsyslog.conf"), configuration).unwrap();
        Self {
            folder: folder.to_owned(),
            child: None,
            groups: Vec::new(),
        }
    }

    fn start(&mut self) {
        let child = Command::new("rsyslogd")
            .args(["-n", "-i", "NONE", "-f"])
            .arg(self.folder.join("rsyslog.conf"))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        self.groups.push(child.id());
        self.child = Some(child);
    }

    /// Stops `rsyslogd` like systemd with `KillMode=mixed`: processes that are left when it has ended are killed.
    fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        let group = child.id();
        signal("-TERM", &group.to_string());
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait().is_ok()));
        assert_eq!(ended.recv_timeout(LIMIT), Ok(true), "rsyslogd does not stop");
        signal("-KILL", &format!("-{group}"));
    }

    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Rsyslogd {
    fn drop(&mut self) {
        for group in &self.groups {
            signal("-KILL", &format!("-{group}"));
        }
        if let Some(mut child) = self.child.take() {
            drop(child.wait());
        }
    }
}

/// Sends a signal to a process, or to a group that may be gone.
fn signal(signal: &str, process: &str) {
    drop(Command::new("kill").args([signal, "--", process]).stderr(Stdio::null()).status());
}

/// Makes the gateway write records: this number of fetches of the pre-approved config.
async fn fetch(gateway: &Gateway, count: usize) {
    let pre_approved = gateway.rendered(POOL, "pre-approved");
    for _ in 0..count {
        gateway.config("/config/worker", &[]).await.is_config(&pre_approved);
    }
}

/// Returns the lines of the log in all of its files.
fn recorded(gateway: &Gateway) -> BTreeSet<String> {
    gateway.command(&["log", "export"]).lines().map(str::to_owned).collect()
}

async fn until(mut holds: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > DELIVERY_LIMIT {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    true
}

/// Waits until the receiver has each record. Some come twice; none differs from the recorded line.
async fn has_all(gateway: &Gateway, receiver: &Receiver, when: &str) {
    let recorded = recorded(gateway);
    let has_all = until(|| recorded.is_subset(&receiver.lines())).await;
    let lost: Vec<_> = recorded.difference(&receiver.lines()).cloned().collect();
    assert!(has_all, "{when}: {} of {} records are lost: {lost:#?}", lost.len(), recorded.len());
}

fn closed_segments(gateway: &Gateway) -> usize {
    let names = fs::read_dir(gateway.path("state")).unwrap().map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.to_str().unwrap().starts_with("attestation.jsonl."))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn rsyslogd_loses_no_record_during_outages() {
    if let Some(missing) = missing_program() {
        eprintln!("SKIPPED: {missing} is not installed; .ci/debian-packages lists what tests need");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut gateway = Gateway::init();
    gateway.settings("[attestation_log]\nsegment_bytes = 4096\ncheckpoint_records = 2");
    let mut receiver = Receiver::new();
    let mut rsyslogd = Rsyslogd::new(folder.path(), &gateway.path("state/attestation.jsonl"), &receiver);
    receiver.begin().await;
    gateway.run();
    rsyslogd.start();
    fetch(&gateway, 4).await;
    has_all(&gateway, &receiver, "all are there").await;
    // The receiver is away while the log is written and closed.
    receiver.end().await;
    fetch(&gateway, 6).await;
    let in_delivery = folder.path().join("record");
    assert!(until(|| in_delivery.exists()).await, "no record is in delivery");
    receiver.begin().await;
    has_all(&gateway, &receiver, "the receiver was away").await;
    // rsyslogd is away, too: stopped, and killed, each while a record is in delivery, and while the log is closed.
    for killed in [false, true] {
        receiver.end().await;
        fetch(&gateway, 6).await;
        assert!(until(|| in_delivery.exists()).await, "no record is in delivery");
        match killed {
            true => rsyslogd.kill(),
            // Again and again while the receiver is away: each time it has read on, and what it has read is kept.
            false => {
                for _ in 0..3 {
                    let undelivered = || fs::read_to_string(&in_delivery).unwrap_or_default().lines().count();
                    rsyslogd.stop();
                    let before = undelivered();
                    rsyslogd.start();
                    assert!(until(|| undelivered() > before).await, "{before} records are kept, and none more");
                }
                rsyslogd.stop();
            }
        }
        fetch(&gateway, 6).await;
        receiver.begin().await;
        rsyslogd.start();
        has_all(
            &gateway,
            &receiver,
            if killed { "rsyslogd was killed" } else { "rsyslogd was stopped" },
        )
        .await;
    }
    // It is killed in the middle of what it delivers.
    for _ in 0..4 {
        let before = receiver.lines().len();
        fetch(&gateway, 5).await;
        assert!(until(|| receiver.lines().len() > before).await);
        rsyslogd.kill();
        rsyslogd.start();
    }
    has_all(&gateway, &receiver, "rsyslogd was killed again and again").await;
    assert!(closed_segments(&gateway) > 5, "{} closed segments", closed_segments(&gateway));
    gateway.terminate();
    assert!(gateway.wait().success());
    has_all(&gateway, &receiver, "the gateway has stopped").await;
    let recorded = recorded(&gateway);
    assert!(receiver.lines().is_subset(&recorded), "what was received is what was recorded");
}
