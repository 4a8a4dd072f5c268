//! The members of an etcd cluster, each on a host of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::network::{Host, Network};

/// How long a start may take on a machine that is busy.
const START: Duration = Duration::from_secs(60);

pub struct Member {
    pub host: Host,
    name: String,
    cluster: String,
    data: tempfile::TempDir,
    process: Option<Child>,
}

/// Starts a cluster of as many members, on hosts from this number on.
pub fn members(network: &Network, count: u8, first: u8) -> Vec<Member> {
    let hosts: Vec<Host> = (first..first + count).map(|number| network.host(number)).collect();
    let peer = |host: &Host| format!("m{}=http://{}:2380", host.address, host.address);
    let cluster = hosts.iter().map(peer).collect::<Vec<_>>().join(",");
    let member = |host: Host| Member {
        name: format!("m{}", host.address),
        cluster: cluster.clone(),
        data: tempfile::tempdir().unwrap(),
        process: None,
        host,
    };
    let mut members: Vec<Member> = hosts.into_iter().map(member).collect();
    // None serves before most are there.
    let served: Vec<_> = members.iter_mut().map(Member::begin).collect();
    served.into_iter().for_each(|served| served.recv_timeout(START).unwrap());
    members
}

impl Member {
    pub fn endpoint(&self) -> String {
        format!("http://{}:2379", self.host.address)
    }

    /// Starts it on the data that it has; says so once it serves.
    pub fn begin(&mut self) -> mpsc::Receiver<()> {
        let (client, peer) = (self.endpoint(), format!("http://{}:2380", self.host.address));
        let mut command = self.host.command("etcd");
        command.args(["--name", &self.name, "--logger", "zap", "--initial-cluster", &self.cluster]);
        command.arg("--data-dir").arg(self.data.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        self.process = Some(process);
        let (serves, served) = mpsc::channel();
        // To its end, or etcd would wait for somebody to read.
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.contains("serving client traffic") {
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

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn signal_to(process: &Child, signal: &str) {
    let sent = Command::new("kill")
        .args(["-s", signal, &process.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}
