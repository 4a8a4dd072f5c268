//! Gateways on hosts of their own, with one folder of certificates and pools, and one store.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::members::signal_to;
use super::network::Host;
use crate::support::{log_schema, program};

const START: Duration = Duration::from_secs(60);

pub struct Replica {
    pub host: Host,
    folder: PathBuf,
    process: Option<Child>,
}

/// What all replicas of these hosts have: certificates for all of them, pools, and the key of the store.
pub fn prepare(folder: &Path, hosts: &[&Host]) {
    let mut init = program();
    init.arg("init").arg(folder);
    for host in hosts {
        init.args(["--ip", &host.address.to_string()]);
    }
    succeeds(&init.output().unwrap());
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Replica {
    /// Not started; its settings are these, and where it listens and has its state.
    pub fn new(host: Host, folder: &Path, settings: &str) -> Self {
        let replica = Self {
            folder: folder.to_owned(),
            process: None,
            host,
        };
        let state = replica.state();
        let text = format!("listen = \"{}:22623\"\nstate = {state:?}\n{settings}\n", replica.host.address);
        fs::write(replica.settings(), text).unwrap();
        replica
    }

    fn settings(&self) -> PathBuf {
        self.folder.join(format!("{}.toml", self.host.address))
    }

    pub fn state(&self) -> PathBuf {
        self.folder.join(format!("state-{}", self.host.address))
    }

    pub fn url(&self) -> String {
        format!("https://{}:22623", self.host.address)
    }

    /// Starts it; says so once it serves.
    pub fn begin(&mut self) -> mpsc::Receiver<()> {
        let mut command = self.command(&["serve"]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        self.process = Some(process);
        let (serves, served) = mpsc::channel();
        // To its end, or it would wait for somebody to read.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains("listening on ") {
                    let _ = serves.send(());
                }
            }
        });
        served
    }

    /// Starts it, and waits until it serves.
    pub fn start(&mut self) {
        self.begin().recv_timeout(START).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_attest-gateway"));
        command.arg("--config").arg(self.settings()).args(arguments);
        command
    }

    /// A subcommand on this host that succeeds; its standard output.
    pub fn tell(&self, arguments: &[&str]) -> String {
        succeeds(&self.command(arguments).output().unwrap())
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }

    /// Lets it end in order.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            signal_to(&process, "TERM");
            assert!(process.wait().unwrap().success());
        }
    }

    /// `STOP` and `CONT`.
    pub fn signal(&self, signal: &str) {
        signal_to(self.process.as_ref().unwrap(), signal);
    }

    fn log(&self) -> PathBuf {
        self.state().join("attestation.jsonl")
    }

    /// The attestation log, without a last line that was torn by a kill.
    pub fn records(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
        // Whatever a test has brought about, it is recorded as the documents say.
        if !thread::panicking() {
            log_schema::check_log(&self.log());
        }
    }
}
