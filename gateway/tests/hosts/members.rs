//! Members of an etcd cluster, each on a host of its own.

use std::process::Command;

use super::network::{Host, Network};
use super::program::{Begun, Program};

pub struct Member {
    pub host: Host,
    name: String,
    cluster: String,
    data: tempfile::TempDir,
    program: Program,
}

/// Starts a cluster of `count` members, on hosts from number `first` on.
pub fn members(network: &Network, count: u8, first: u8) -> Vec<Member> {
    let hosts: Vec<Host> = (first..first + count).map(|number| network.host(number)).collect();
    let peer = |host: &Host| format!("m{}=http://{}:2380", host.address, host.address);
    let cluster = hosts.iter().map(peer).collect::<Vec<_>>().join(",");
    let member = |host: Host| Member {
        name: format!("m{}", host.address),
        cluster: cluster.clone(),
        data: tempfile::tempdir().unwrap(),
        program: Program::new("serving client traffic"),
        host,
    };
    let mut members: Vec<Member> = hosts.into_iter().map(member).collect();
    // None serves before most are there.
    let begun: Vec<Begun> = members.iter_mut().map(Member::begin).collect();
    begun.into_iter().for_each(Begun::serves);
    members
}

impl Member {
    pub fn endpoint(&self) -> String {
        format!("http://{}:2379", self.host.address)
    }

    fn begin(&mut self) -> Begun {
        let (client, peer) = (self.endpoint(), format!("http://{}:2380", self.host.address));
        let mut command = self.host.command("etcd");
        command.args(["--name", &self.name, "--logger", "zap", "--initial-cluster", &self.cluster]);
        command.arg("--data-dir").arg(self.data.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        self.program.begin(command)
    }

    /// Starts the member on its existing data, and waits until it serves.
    pub fn start(&mut self) {
        self.begin().serves();
    }

    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Returns an `etcdctl` command that asks this member.
    pub fn ctl(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint()])
            .args(arguments);
        command
    }
}
