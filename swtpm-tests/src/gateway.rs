//! Gateway in a folder of its own: `attest-gateway init`, then the binary, started, killed and started again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::header::ACCEPT;
use serde_json::Value;

use crate::attestation_log::LogRecord;
use crate::images::run;
use crate::process::{OnLine, Process};
use crate::programs::Programs;
use crate::swtpm::{EkAuthority, free_port};

/// Address under which a VM reaches the host's 127.0.0.1 (QEMU's user network).
pub const GUEST_VIEW_OF_HOST: &str = "10.0.2.2";
/// The pool that `init` makes.
pub const POOL: &str = "worker";

/// The newest spec version that Debian's Ignition reads.
pub const IGNITION_SPEC: &str = "3.3.0";
/// `Accept` header of Debian's Ignition.
pub const IGNITION_ACCEPT: &str = "application/vnd.coreos.ignition+json;version=3.3.0, */*;q=0.1";

/// Default port of `serve`: that of the Machine Config Server.
pub const DEFAULT_PORT: u16 = 22623;

/// Maximum duration of a start: well under a second usually; a loaded machine may need seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Maximum duration of a drain, which lasts as long as the slowest request.
const STOP_LIMIT: Duration = Duration::from_secs(30);
const REQUEST_LIMIT: Duration = Duration::from_secs(20);

/// Folder of a gateway, and its process if it runs; killed on drop.
pub struct TestGateway {
    folder: PathBuf,
    port: u16,
    process: Option<Process>,
}

/// Answer of the gateway.
#[derive(Debug, Clone)]
pub struct ConfigAnswer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl ConfigAnswer {
    /// Parses the body as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("HTTP {}: {}", self.status, String::from_utf8_lossy(&self.body)))
    }
}

/// Section of the sample pool by which machines wait for an answer.
pub const WAITING: [&str; 3] = ["[waiting]", "machines = 1", "unknown = \"refuse\""];

/// Line of `pool.toml` with which a pool accepts any TPM of a manufacturer in `ek-roots`.
pub const ANY_TPM: &str = "endorsement = \"any-tpm-of-a-trusted-maker\"";

impl TestGateway {
    /// Creates a folder with `init`: own CA, sample pool, all settings at their defaults. The gateway is reachable from this machine and
    /// from VMs.
    pub fn init(folder: &Path) -> Result<Self> {
        let gateway = Self {
            folder: folder.to_path_buf(),
            port: DEFAULT_PORT,
            process: None,
        };
        let mut init = Command::new(&Programs::build()?.gateway);
        run(init
            .arg("init")
            .arg(folder)
            .args(["--host", "localhost", "--ip", "127.0.0.1", "--ip", GUEST_VIEW_OF_HOST]))?;
        Ok(gateway)
    }

    /// Like [`TestGateway::init`], but it listens on a free port, of this machine only.
    pub fn on_free_port(folder: &Path) -> Result<Self> {
        let mut gateway = Self::init(folder)?;
        gateway.set_port(free_port()?)?;
        Ok(gateway)
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the port on 127.0.0.1 at which the gateway listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets another port, of this machine only, from the next start on.
    pub fn set_port(&mut self, port: u16) -> Result<()> {
        self.set("listen", &format!("\"127.0.0.1:{port}\""))?;
        self.port = port;
        Ok(())
    }

    /// Sets a top-level setting to a value in TOML; read at the next start.
    pub fn set(&self, key: &str, value: &str) -> Result<()> {
        let file = self.settings();
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        // Before everything else: these must come before the first table.
        let before = format!("{key} ");
        let others: Vec<&str> = text.lines().filter(|line| !line.starts_with(&before)).collect();
        fs::write(&file, format!("{key} = {value}\n{}\n", others.join("\n"))).with_context(|| format!("writing {}", file.display()))
    }

    /// Creates a replica with the same certificates, pools and settings, in a folder of its own and on a free port. It has never served.
    pub fn replica(&self, folder: &Path) -> Result<Self> {
        run(Command::new("cp").arg("--archive").args([&self.folder, folder]))?;
        let mut replica = Self {
            folder: folder.to_path_buf(),
            port: self.port,
            process: None,
        };
        replica.set_port(free_port()?)?;
        Ok(replica)
    }

    /// Returns the path of `gateway.toml`.
    #[must_use]
    pub fn settings(&self) -> PathBuf {
        self.folder.join("gateway.toml")
    }

    /// Returns the paths of the serving certificate and its key, PEM.
    #[must_use]
    pub fn serving_certificate(&self) -> [PathBuf; 2] {
        [self.folder.join("tls/mcs.crt"), self.folder.join("tls/mcs.key")]
    }

    /// Returns the path of the CA's certificate, PEM.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.folder.join("tls/mcs-ca.crt")
    }

    /// Endorses all TPMs of `authority` in the sample pool; read at the next start.
    pub fn trust(&self, authority: &EkAuthority) -> Result<()> {
        self.edit_pool("endorsement = \"allowlist\"", ANY_TPM)?;
        for certificate in authority.certificates() {
            let name = certificate.file_name().context("a certificate's name")?;
            let target = self.folder.join("ek-roots").join(name);
            fs::copy(&certificate, &target).with_context(|| format!("copying {}", certificate.display()))?;
        }
        Ok(())
    }

    /// Writes a file that the gateway is to trust below its folder, and creates the file's folder if it is missing.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        let file = self.folder.join(name);
        let parent = file.parent().context("a file's folder")?;
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        fs::write(&file, content).with_context(|| format!("writing {}", file.display()))
    }

    /// Adds sections to `gateway.toml`; read at the next start.
    pub fn add_settings(&self, sections: &str) -> Result<()> {
        append(&self.settings(), sections)
    }

    /// Adds sections to the sample pool's `pool.toml`.
    pub fn add_to_pool(&self, sections: &str) -> Result<()> {
        append(&self.folder.join("pools").join(POOL).join("pool.toml"), sections)
    }

    /// Replaces text in the sample pool's `pool.toml`; fails if it is not there.
    pub fn edit_pool(&self, from: &str, to: &str) -> Result<()> {
        let file = self.folder.join("pools").join(POOL).join("pool.toml");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        if !text.contains(from) {
            bail!("{} does not contain {from:?}", file.display());
        }
        fs::write(&file, text.replace(from, to)).with_context(|| format!("writing {}", file.display()))
    }

    /// Makes the pool refuse machines at once that could wait for an answer.
    pub fn refuse_at_once(&self) -> Result<()> {
        for line in WAITING {
            self.edit_pool(&format!("\n{line}\n"), &format!("\n# {line}\n"))?;
        }
        Ok(())
    }

    /// Returns the pool's `full` or `pre-approved` config, as it must be served to Debian's Ignition.
    pub fn pool_config(&self, grant: &str) -> Result<Value> {
        let text = self.command(&["config", "render", "--pool", POOL, "--set", grant, "--spec", IGNITION_SPEC])?;
        serde_json::from_str(&text).with_context(|| format!("parsing the {grant} config"))
    }

    /// Replaces the pool's sample configs by MachineConfigs, given as file names and contents.
    pub fn use_machine_configs<'m>(&self, manifests: impl IntoIterator<Item = (&'m str, &'m str)>) -> Result<()> {
        let pool = self.folder.join("pools").join(POOL);
        for sample in ["full", "pre-approved"] {
            let folder = pool.join(sample);
            fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        }
        let folder = pool.join("machine-configs");
        fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
        for (name, text) in manifests {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        }
        Ok(())
    }

    /// Starts the program and waits until it is ready.
    pub fn start(&mut self, on_line: Option<OnLine>) -> Result<()> {
        let arguments = ["serve".to_owned(), "--config".to_owned(), self.settings().display().to_string()];
        let process = Process::spawn(&Programs::build()?.gateway, arguments, &self.folder.join("gateway.log"), on_line)?;
        process.wait_line(START_LIMIT, |line| line.contains(" listening on "))?;
        self.process = Some(process);
        let ready = self.get("/readyz", None)?;
        if ready.status != 200 {
            bail!("the gateway listens and is not ready: {ready:?}");
        }
        Ok(())
    }

    /// Returns the running gateway's process.
    pub fn process(&self) -> Result<&Process> {
        self.process.as_ref().context("the gateway does not run")
    }

    /// Kills the gateway with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("the gateway does not run")?.kill()
    }

    /// Sends SIGTERM, and waits for the drain.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        let mut process = self.process.take().context("the gateway does not run")?;
        process.terminate()?;
        process.wait(STOP_LIMIT)
    }

    /// Returns the pointer config for a VM, with a provisioning token or without.
    pub fn pointer(&self, token: Option<&str>) -> Result<String> {
        self.pointer_to(GUEST_VIEW_OF_HOST, self.port, token)
    }

    /// Returns a pointer config with this gateway's CA, to any address.
    pub fn pointer_to(&self, host: &str, port: u16, token: Option<&str>) -> Result<String> {
        let url = format!("https://{host}:{port}");
        let mut arguments = vec!["pointer", "create", "--pool", POOL, "--url", &url];
        if let Some(token) = token {
            arguments.extend(["--token", token]);
        }
        self.command(&arguments)
    }

    /// Creates a provisioning token for the pool.
    pub fn create_token(&self, name: &str) -> Result<String> {
        Ok(self
            .command(&["token", "create", "--pool", POOL, "--name", name])?
            .trim()
            .to_owned())
    }

    /// Runs a subcommand on this folder. Returns its standard output.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&Programs::build()?.gateway);
        run(command.arg("--config").arg(self.settings()).args(arguments))
    }

    /// Runs a subcommand of the auditor on this folder. Returns its standard output.
    pub fn auditor(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&Programs::build()?.auditor);
        run(command.arg("--config").arg(self.settings()).args(arguments))
    }

    /// Audits the log with the store's checkpoints. Returns the auditor's output.
    pub fn audit(&self, arguments: &[&str]) -> Result<String> {
        let checkpoints = self.folder.join("signed.jsonl");
        std::fs::write(&checkpoints, self.command(&["log", "list-checkpoints"])?)?;
        let checkpoints = format!("--checkpoints={}", checkpoints.display());
        self.auditor(&[&["log", "audit", &checkpoints], arguments].concat())
    }

    /// Returns every decision so far, oldest first.
    pub fn records(&self) -> Result<Vec<LogRecord>> {
        LogRecord::read_all(&self.attestation_log())
    }

    #[must_use]
    pub fn attestation_log(&self) -> PathBuf {
        self.folder.join("state/attestation.jsonl")
    }

    /// Sends `GET path` like Ignition, over TLS, trusting the gateway's CA only.
    pub fn get(&self, path: &str, bearer: Option<&str>) -> Result<ConfigAnswer> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(client_tls(&self.ca())?)
            .timeout(REQUEST_LIMIT)
            .build()?;
        let url = format!("https://127.0.0.1:{}{path}", self.port);
        let mut request = client.get(url).header(ACCEPT, IGNITION_ACCEPT);
        if let Some(bearer) = bearer {
            request = request.bearer_auth(bearer);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let response = request.send().await?;
            let status = response.status().as_u16();
            let body = response.bytes().await?.to_vec();
            Ok(ConfigAnswer { status, body })
        })
    }
}

fn append(file: &Path, sections: &str) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    fs::write(file, format!("{text}\n{sections}")).with_context(|| format!("writing {}", file.display()))
}

/// Returns a TLS configuration that trusts one CA.
pub(crate) fn client_tls(ca: &Path) -> Result<rustls::ClientConfig> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).with_context(|| format!("reading {}", ca.display()))? {
        roots.add(certificate?)?;
    }
    let provider = rustls::crypto::aws_lc_rs::default_provider().into();
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
