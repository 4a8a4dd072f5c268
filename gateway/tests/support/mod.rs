//! Runs the real program in a folder of its own, with real TLS, and software TPMs that give it evidence.

#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "a test may panic"
)]

mod auditor;
#[path = "../../../attest/tests/support/mod.rs"]
pub mod soft_tpm;

pub mod answer;
pub mod folder;
pub mod held;
pub mod interleaving;
pub mod killed_child;
pub mod kubelet;
pub mod log_schema;
pub mod node;
pub mod pending;
pub mod served;
pub mod stand_in;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

pub use answer::Answer;
use attest::nonce::qualifying_data;
use attest::protocol::{Attester, ChallengeRequest, EvidenceRequest, HexDigest};
use attest::{Challenge, EkDigest, SpkiSha256};
use attest_gateway::credentials::challenges;
use attest_gateway::credentials::seal::SealKeyRing;
pub use auditor::auditor;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use cloud_fixtures::port::ReservedPort;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
pub use soft_tpm::{Case, SoftKey};
use tokio::net::{TcpSocket, TcpStream};

/// Name of the pool that `init` makes.
pub const POOL: &str = "worker";
/// Line of the sample pool that only tests about this rule have.
pub const ONLY_WHILE_BOOTING: &str = "\nonly_while_booting = true\n";
/// Lines of the sample pool by which machines wait for an answer.
pub const WAITING: [&str; 3] = ["[waiting]", "machines = 1", "unknown = \"refuse\""];
/// Spec version that the tests' nodes ask for.
pub const SPEC: &str = "3.4.0";
/// Maximum wait: everything here takes milliseconds; a loaded machine may need seconds.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Folder of a gateway, and its process while it runs; killed on drop.
pub struct Gateway {
    folder: tempfile::TempDir,
    port: ReservedPort,
    process: Option<Running>,
    pub client: reqwest::Client,
}

struct Running {
    child: Child,
    lines: Arc<Lines>,
}

/// Number of outputs: standard output and standard error.
const OUTPUTS: usize = 2;

/// Output of the program so far.
#[derive(Default)]
struct Lines {
    /// Lines, and the number of outputs that have ended.
    all: Mutex<(Vec<String>, usize)>,
    changed: Condvar,
}

impl Gateway {
    /// Creates the folder with `init`, with a free port of this machine, and a second pool `infra`.
    pub fn init() -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway");
        let init = program()
            .arg("init")
            .arg(&path)
            .args(["--host", "localhost", "--ip", "127.0.0.1"])
            .output()
            .unwrap();
        assert!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
        // The TPMs in software of most tests have the PCRs 0 to 7.
        let pool = path.join("pools").join(POOL).join("pool.toml");
        let text = fs::read_to_string(&pool).unwrap();
        assert!(text.contains(ONLY_WHILE_BOOTING));
        let mut text = text.replace(ONLY_WHILE_BOOTING, "\n");
        // Refusals are tested as such: in few tests machines wait.
        for line in WAITING {
            let line = format!("\n{line}\n");
            assert!(text.contains(&line));
            text = text.replace(&line, &line.replacen('\n', "\n# ", 1));
        }
        fs::write(&pool, text).unwrap();
        copy(&path.join("pools").join(POOL), &path.join("pools/infra"));
        let client = client(&path).build().unwrap();
        let gateway = Self {
            folder,
            port: ReservedPort::reserve(),
            process: None,
            client,
        };
        gateway.settings("");
        gateway
    }

    /// Creates a gateway from a folder that `fill` makes.
    pub fn from_folder(fill: impl FnOnce(&Path)) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway");
        fill(&path);
        let client = client(&path).build().unwrap();
        Self {
            folder,
            port: ReservedPort::reserve(),
            process: None,
            client,
        }
    }

    /// Like [`Gateway::init`], but starts the gateway.
    pub fn start() -> Self {
        let mut gateway = Self::init();
        gateway.run();
        gateway
    }

    /// Returns a path in the gateway's folder.
    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("gateway").join(path)
    }

    /// Returns the address at which the gateway listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Connects from another address of this machine.
    pub async fn connect_from(&self, address: Ipv4Addr) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((address, 0).into())?;
        socket.connect(self.address()).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address())
    }

    /// Returns a client that connects from another address of this machine.
    pub fn client_from(&self, address: impl Into<IpAddr>) -> reqwest::Client {
        client(&self.path("")).local_address(address.into()).build().unwrap()
    }

    /// Returns a client that opens a new connection for each request, as nodes do.
    pub fn client_of_new_connections(&self) -> reqwest::Client {
        client(&self.path("")).pool_max_idle_per_host(0).build().unwrap()
    }

    /// Replaces `gateway.toml`, but keeps `listen`.
    pub fn settings(&self, text: &str) {
        fs::write(self.path("gateway.toml"), format!("listen = \"{}\"\n{text}\n", self.address())).unwrap();
    }

    /// Replaces text in the `pool.toml` of a pool.
    pub fn edit_pool(&self, pool: &str, from: &str, to: &str) {
        let file = self.path("pools").join(pool).join("pool.toml");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{from:?} is not in {text}");
        fs::write(&file, text.replace(from, to)).unwrap();
    }

    /// Makes a pool one of MachineConfigs: these files, and no plain configs.
    pub fn machine_configs(&self, pool: &str, files: &[(&str, &str)]) {
        let pool = self.path("pools").join(pool);
        for folder in ["full", "pre-approved"] {
            drop(fs::remove_dir_all(pool.join(folder)));
        }
        fs::create_dir_all(pool.join("machine-configs")).unwrap();
        for (name, text) in files {
            fs::write(pool.join("machine-configs").join(name), text).unwrap();
        }
    }

    /// Starts the program and waits until it is ready.
    pub fn run(&mut self) {
        self.begin();
        self.line(|line| line.contains("listening on "));
    }

    /// Starts the program without waiting for it.
    pub fn begin(&mut self) {
        let mut command = program();
        command.arg("serve").arg("--config").arg(self.path("gateway.toml"));
        self.begin_as(command);
    }

    /// Starts `command`, which becomes the program, and waits until it is ready.
    pub fn run_as(&mut self, command: Command) {
        self.begin_as(command);
        self.line(|line| line.contains("listening on "));
    }

    /// Starts `command`, which becomes the program, without waiting for it.
    pub fn begin_as(&mut self, mut command: Command) {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Lines::default());
        let outputs: [Box<dyn std::io::Read + Send>; OUTPUTS] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let lines = Arc::clone(&lines);
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    lines.all.lock().unwrap().0.push(line);
                    lines.changed.notify_all();
                }
                lines.all.lock().unwrap().1 += 1;
                lines.changed.notify_all();
            });
        }
        self.process = Some(Running { child, lines });
    }

    /// Waits for a line of the program's output.
    #[track_caller]
    pub fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        self.lines(1, wanted)
    }

    /// Returns the number of such lines so far.
    pub fn how_often(&self, wanted: impl Fn(&str) -> bool) -> usize {
        let all = self.process.as_ref().unwrap().lines.all.lock().unwrap();
        all.0.iter().filter(|line| wanted(line)).count()
    }

    /// Waits for that many lines of the program's output. Returns the last of them.
    #[track_caller]
    pub fn lines(&self, count: usize, wanted: impl Fn(&str) -> bool) -> String {
        let lines = &self.process.as_ref().unwrap().lines;
        let deadline = Instant::now() + LIMIT;
        let mut all = lines.all.lock().unwrap();
        loop {
            if let Some(line) = all.0.iter().filter(|line| wanted(line)).nth(count - 1) {
                return line.clone();
            }
            assert!(
                all.1 < OUTPUTS && Instant::now() < deadline,
                "no such line in:\n{}",
                all.0.join("\n")
            );
            all = lines.changed.wait_timeout(all, Duration::from_millis(200)).unwrap().0;
        }
    }

    /// Returns everything that the program has printed.
    pub fn output(&self) -> String {
        self.process.as_ref().unwrap().lines.all.lock().unwrap().0.join("\n")
    }

    pub fn process_id(&self) -> u32 {
        self.process.as_ref().unwrap().child.id()
    }

    /// Sends SIGTERM to the gateway.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends SIGHUP to the gateway.
    pub fn hang_up(&self) {
        self.signal("-HUP");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .arg(signal)
            .arg(self.process_id().to_string())
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for the program's end.
    pub fn wait(&mut self) -> ExitStatus {
        let running = self.process.as_mut().unwrap();
        let all = running.lines.all.lock().unwrap();
        // Its output ends when it does.
        let (all, waited) = running.lines.changed.wait_timeout_while(all, LIMIT, |all| all.1 < OUTPUTS).unwrap();
        assert!(!waited.timed_out(), "still running:\n{}", all.0.join("\n"));
        drop(all);
        running.child.wait().unwrap()
    }

    /// Kills the gateway with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut running) = self.process.take() {
            drop(running.child.kill());
            drop(running.child.wait());
        }
    }

    /// Runs a subcommand on this gateway's folder.
    pub fn try_command(&self, arguments: &[&str]) -> Output {
        let mut command = program_of(arguments);
        command.arg("--config").arg(self.path("gateway.toml")).args(arguments);
        // As an administrator does who audits a gateway's own log: with what the store says was signed, if there is a store.
        let names_files = |argument: &&str| ["--log", "--checkpoints", "--without-checkpoints"].contains(argument);
        if arguments.starts_with(&["log", "audit"]) && !arguments.iter().any(names_files) && self.export_checkpoints().is_ok() {
            command.arg("--checkpoints").arg(self.path("signed.jsonl"));
        }
        command.output().unwrap()
    }

    /// Writes the store's checkpoints into a file.
    fn export_checkpoints(&self) -> Result<(), Output> {
        let mut export = program();
        export.arg("--config").arg(self.path("gateway.toml"));
        let output = export.args(["log", "list-checkpoints"]).output().unwrap();
        if !output.status.success() {
            return Err(output);
        }
        fs::write(self.path("signed.jsonl"), output.stdout).unwrap();
        Ok(())
    }

    /// Returns the path of a file with the store's checkpoints, for `audit --checkpoints`.
    pub fn checkpoints(&self) -> String {
        self.export_checkpoints().unwrap();
        self.path("signed.jsonl").to_str().unwrap().to_owned()
    }

    /// Runs a subcommand that must succeed. Returns its standard output.
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = self.try_command(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Creates a provisioning token for the sample pool.
    pub fn token(&self, arguments: &[&str]) -> String {
        self.command(&[&["token", "create", "--pool", POOL], arguments].concat())
            .trim()
            .to_owned()
    }

    /// Returns the expected result of [`Gateway::config`]: `full` or `pre-approved`.
    pub fn rendered(&self, pool: &str, set: &str) -> Vec<u8> {
        let text = self.command(&["config", "render", "--pool", pool, "--set", set, "--spec", SPEC]);
        text.trim_end().as_bytes().to_vec()
    }

    /// Requests a config like Ignition, with these `Authorization` headers.
    pub async fn config(&self, path: &str, authorization: &[&str]) -> Answer {
        let mut request = self.client.get(self.url(path)).header("accept", accept(SPEC));
        for value in authorization {
            request = request.header("authorization", *value);
        }
        Answer::send(request).await
    }

    pub async fn post<T: serde::Serialize>(&self, path: &str, body: &T) -> Answer {
        Answer::send(self.client.post(self.url(path)).json(body)).await
    }

    /// Returns the attestation log without its checkpoints and without administrators' acts, which are recorded some time later.
    pub fn records(&self) -> Vec<Value> {
        let lines = self.record_lines().into_iter();
        lines.map(|line| serde_json::from_str(&line).unwrap()).collect()
    }

    /// Returns the same lines as text.
    pub fn record_lines(&self) -> Vec<String> {
        let text = self.log();
        let aside = |line: &&str| {
            ["checkpoint", "admin"]
                .iter()
                .all(|decision| !line.contains(&format!("\"decision\":\"{decision}\"")))
        };
        text.lines().filter(aside).map(str::to_owned).collect()
    }

    /// Returns the log's acts with this verb.
    pub fn acts(&self, verb: &str) -> Vec<Value> {
        let lines = self.log_lines().into_iter().filter(|line| line["admin"]["verb"] == verb);
        lines.collect()
    }

    /// Waits until the log of the running gateway has this number of acts of the verb. Returns them.
    #[track_caller]
    pub fn wait_for_acts(&self, count: usize, verb: &str) -> Vec<Value> {
        // The console has a line when the log has.
        self.lines(count, |line| line.contains("ADMIN ") && line.contains(&format!(": {verb} by ")));
        self.acts(verb)
    }

    /// Returns all lines of the attestation log.
    pub fn log_lines(&self) -> Vec<Value> {
        self.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the log's whole lines: the last one may be incomplete.
    fn log(&self) -> String {
        let text = fs::read_to_string(self.path("state/attestation.jsonl")).unwrap();
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect()
    }

    /// Returns the gateway's serving certificate.
    pub fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path("tls/mcs.crt")).unwrap()
    }

    /// Adds the EK of a software TPM to the allowlist.
    pub fn endorse(&self, case: &Case, arguments: &[&str]) -> String {
        let digest = digest(case);
        self.command(&[&["ek", "add", &digest], arguments].concat());
        digest
    }

    /// Returns a challenge as this gateway would seal it for `case`. The test knows its secret, as if the TPM had activated the credential.
    pub fn challenge(&self, case: &Case, name: Option<&str>) -> Challenge {
        let mut id = [0; 32];
        SystemRandom::new().fill(&mut id).unwrap();
        let now = now();
        Challenge {
            id: HexDigest::from(id),
            issued: now,
            expires: now + 100,
            name: name.map(str::to_owned),
            ..case.challenge()
        }
    }

    /// Returns the body that answers `challenge`.
    pub fn answer(&self, case: Case, challenge: &Challenge) -> EvidenceRequest {
        self.answer_sealed(case, challenge, &SealKeyRing::open(&self.path("state/seal.key")).unwrap())
    }

    /// Like [`Gateway::answer`], with a challenge that is sealed by this seal.
    pub fn answer_sealed(&self, mut case: Case, challenge: &Challenge, seal: &SealKeyRing) -> EvidenceRequest {
        let key = SpkiSha256::from_certificate(&self.certificate()).unwrap();
        case.quoted.extra_data = qualifying_data(challenge.nonce.as_ref(), &challenge.purpose, &challenge.pool, &key).to_vec();
        EvidenceRequest {
            challenge: challenges::seal(seal, challenge).unwrap(),
            evidence: case.evidence(),
            config: None,
        }
    }

    /// Creates a challenge, and sends its answer.
    pub async fn attest(&self, case: Case, name: Option<&str>) -> Answer {
        let challenge = self.challenge(&case, name);
        self.post("/v1/attest/evidence", &self.answer(case, &challenge)).await
    }

    /// Returns a ticket, earned by a software TPM that is endorsed for it.
    pub async fn ticket(&self) -> String {
        let case = tpm();
        self.endorse(&case, &[]);
        self.attest(case, None).await.ticket()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
        // Whatever a test has brought about, it is recorded as the documents say.
        if !thread::panicking() {
            log_schema::check_log(&self.path("state/attestation.jsonl"));
        }
    }
}

/// Returns a client that trusts the CA of the gateway in this folder.
fn client(gateway: &Path) -> reqwest::ClientBuilder {
    let ca = reqwest::Certificate::from_pem(&fs::read(gateway.join("tls/mcs-ca.crt")).unwrap()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([ca])
        .https_only(true)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(LIMIT)
}

/// Returns the arguments that create a token `fleet` that is rotated so often, and published in this folder.
pub fn rotating<'a>(every: &'a str, into: &'a str) -> [&'a str; 10] {
    [
        "token",
        "create",
        "--pool",
        POOL,
        "--name",
        "fleet",
        "--rotate-every",
        every,
        "--into",
        into,
    ]
}

/// Creates a new software TPM with a P-256 AK.
pub fn tpm() -> Case {
    Case::new(SoftKey::p256())
}

/// Returns the same TPM with another AK: its next boot.
pub fn next_boot(case: &Case) -> Case {
    tpm().but(|next| next.ek_area = case.ek_area.clone())
}

/// Returns the argument of `ek add`.
pub fn digest(case: &Case) -> String {
    EkDigest::from_public_area(&case.ek_area.to_bytes()).unwrap().to_string()
}

pub fn challenge_request(case: &Case, pool: &str) -> ChallengeRequest {
    ChallengeRequest {
        kubelet_key_sha256: None,
        rehearsal: false,
        pool: pool.to_owned(),
        name: None,
        attester: Attester::from(case.attester()),
    }
}

/// Returns Ignition's `Accept` header for a spec version.
pub fn accept(spec: &str) -> String {
    format!("application/vnd.coreos.ignition+json;version={spec}, */*;q=0.1")
}

pub fn bearer(credential: &str) -> String {
    format!("Bearer {credential}")
}

pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_attest-gateway"))
}

/// Returns the program that has this command.
pub fn program_of(arguments: &[&str]) -> Command {
    match arguments {
        ["log", "audit" | "compare-boots" | "show-config", ..]
        | ["policy", "propose" | "simulate" | "test", ..]
        | ["reference-values", "predict" | "record", ..] => auditor(),
        _ => program(),
    }
}

/// Returns a `serve` command that can write no file longer than this, as if the disk were full.
pub fn serving_within(gateway: &Gateway, kibibytes: usize) -> Command {
    let mut shell = Command::new("bash");
    shell
        .arg("-c")
        .arg(format!("trap '' XFSZ; ulimit -f {kibibytes}; exec \"$@\""))
        .args(["bash", env!("CARGO_BIN_EXE_attest-gateway"), "serve", "--config"])
        .arg(gateway.path("gateway.toml"));
    shell
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}
