//! Gateways on hosts of their own, with one folder of certificates and pools, and one store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use super::network::Host;
use super::program::Program;
use crate::support::{LIMIT, auditor, log_schema, program};

pub struct Replica {
    pub host: Host,
    folder: PathBuf,
    program: Program,
}

/// Common name and address of all replicas, for nodes.
pub const NAME: &str = "api-int.example.com";
pub const ADDRESS: &str = "10.0.0.20";

/// Creates the common files of all replicas: certificates for these hosts, pools, and the store's key.
pub fn prepare(folder: &Path, hosts: &[&Host]) {
    let mut init = program();
    init.arg("init").arg(folder).args(["--host", NAME, "--ip", ADDRESS]);
    for host in hosts {
        init.args(["--ip", &host.address.to_string()]);
    }
    succeeds(&init.output().unwrap());
}

fn succeeds(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let end = said.lines().rev().take(20).collect::<Vec<_>>().join("\n");
    assert!(output.status.success(), "{}\n{end}", String::from_utf8_lossy(&output.stderr));
    said
}

impl Replica {
    /// Describes a replica with these settings and its listening address, not started yet.
    pub fn new(host: Host, folder: &Path, listen: &str, settings: &str) -> Self {
        let replica = Self {
            folder: folder.to_owned(),
            program: Program::new("listening on "),
            host,
        };
        let state = replica.state();
        let text = format!("listen = {listen:?}\nstate = {state:?}\n{settings}\n");
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

    /// Starts the replica, and waits until it serves. If etcd does not answer in time, it is started again, as by systemd.
    pub fn start(&mut self) {
        let until = Instant::now() + LIMIT;
        while let Err(said) = self.program.begin(self.command(&["serve"])).try_serves() {
            self.kill();
            let end = said.last().map_or("", String::as_str);
            assert!(end.contains("etcd") && Instant::now() < until, "{said:?}");
        }
    }

    /// Runs the auditor with this replica's files and the store's checkpoints. Returns its standard output.
    pub fn audit(&self, arguments: &[&str]) -> String {
        let checkpoints = self.state().join("checkpoints-of-store.jsonl");
        fs::write(&checkpoints, self.command_output(&["log", "list-checkpoints"])).unwrap();
        let mut command = auditor();
        command.arg("--config").arg(self.settings()).args(arguments);
        succeeds(&command.arg("--checkpoints").arg(checkpoints).output().unwrap())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_attest-gateway"));
        command.arg("--config").arg(self.settings()).args(arguments);
        command
    }

    /// Runs a subcommand on this host that must succeed. Returns its standard output.
    pub fn command_output(&self, arguments: &[&str]) -> String {
        succeeds(&self.command(arguments).output().unwrap())
    }

    /// Runs a command that must fail. Returns its message.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Stops the replica in order.
    pub fn stop(&mut self) {
        self.program.stop();
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, signal: &str) {
        self.program.signal(signal);
    }

    pub fn log(&self) -> PathBuf {
        self.state().join("attestation.jsonl")
    }

    /// Returns the lines of the attestation log, without a last line that was torn by a kill.
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
