//! Hosts on a network of their own, each in a network namespace: the connection between any two of them can be cut and restored.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Number of networks in this process, for tests that run at the same time.
static NETWORKS: AtomicUsize = AtomicUsize::new(0);
/// Name of the table with the rules that cut connections.
const TABLE: &str = "cut";

/// Switch in a namespace of its own, which also has the tests' clients.
pub struct Network {
    name: String,
}

/// Machine on the network.
pub struct Host {
    namespace: String,
    pub address: Ipv4Addr,
}

impl Network {
    /// Creates a network without hosts.
    pub fn new() -> Self {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let network = Self {
            name: format!("attest-{}-{number}", std::process::id()),
        };
        ip(&["netns", "add", &network.name]);
        network.inside(&["link", "add", "switch", "type", "bridge"]);
        network.inside(&["address", "add", "10.0.0.1/24", "dev", "switch"]);
        network.inside(&["address", "add", "fd00::1/64", "dev", "switch", "nodad"]);
        network.inside(&["link", "set", "switch", "up"]);
        network.inside(&["link", "set", "lo", "up"]);
        network
    }

    /// Creates the host with this number, from 2 on.
    pub fn host(&self, number: u8) -> Host {
        let host = Host {
            namespace: format!("{}-{number}", self.name),
            address: Ipv4Addr::new(10, 0, 0, number),
        };
        let port = port(number);
        ip(&["netns", "add", &host.namespace]);
        self.inside(&[
            "link",
            "add",
            &port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            &host.namespace,
        ]);
        self.inside(&["link", "set", &port, "master", "switch", "up"]);
        host.inside(&["address", "add", &format!("{}/24", host.address), "dev", "eth0"]);
        host.inside(&["address", "add", &format!("{}/64", host.address_6()), "dev", "eth0", "nodad"]);
        host.inside(&["link", "set", "eth0", "up"]);
        host.inside(&["link", "set", "lo", "up"]);
        host
    }

    fn inside(&self, arguments: &[&str]) {
        ip(&[&["-n", self.name.as_str()], arguments].concat());
    }

    /// Disconnects the host's cable.
    pub fn unplug(&self, host: &Host) {
        self.inside(&["link", "set", &port(host.number()), "down"]);
    }

    pub fn plug(&self, host: &Host) {
        self.inside(&["link", "set", &port(host.number()), "up"]);
    }

    /// Returns a command in the switch's namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Like [`Host::on`], in the switch's namespace.
    pub fn on<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.name, work)
    }

    /// Routes this address to that host.
    pub fn route(&self, address: &str, host: &Host) {
        self.inside(&["route", "add", address, "via", &host.address.to_string()]);
    }

    /// Creates a runtime whose threads are in the switch's namespace.
    pub fn runtime(&self) -> tokio::runtime::Runtime {
        let name = self.name.clone();
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .on_thread_start(move || {
                enter(&name);
            })
            .build()
            .unwrap()
    }
}

impl Host {
    fn inside(&self, arguments: &[&str]) {
        ip(&[&["-n", self.namespace.as_str()], arguments].concat());
    }

    fn number(&self) -> u8 {
        self.address.octets()[3]
    }

    /// Returns the host's IPv6 address.
    pub fn address_6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, self.number().into())
    }

    /// Runs a function on the host. Threads that it starts stay there.
    pub fn on<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.namespace, work)
    }

    /// Adds an address to the host.
    pub fn add(&self, address: &str) {
        self.inside(&["address", "add", &format!("{address}/32"), "dev", "eth0"]);
    }

    /// Forwards packets for this address to that host, which gets the address.
    pub fn forward(&self, address: &str, to: &Self) {
        run(self.command("sysctl").args(["--quiet", "--write", "net.ipv4.ip_forward=1"]));
        self.inside(&["route", "add", address, "via", &to.address.to_string()]);
        to.inside(&["address", "add", &format!("{address}/32"), "dev", "lo"]);
    }

    /// Loads these nftables rules.
    pub fn nft(&self, rules: &str) {
        run(self.command("nft").arg(rules));
    }

    /// Returns whether the host has this address in addition to its own.
    pub fn has(&self, address: &str) -> bool {
        let output = self.command("ip").args(["-oneline", "-4", "address"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains(&format!(" {address}/"))
    }

    /// Returns a command on this host. The child process becomes the program itself.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, program]);
        command
    }

    /// Drops all packets between this host and those, in both directions.
    pub fn cut_off(&self, others: &[&Self]) {
        let addresses: Vec<String> = others.iter().map(|other| other.address.to_string()).collect();
        let addresses = addresses.join(", ");
        let rules = format!(
            "table ip {TABLE} {{
                chain input {{ type filter hook input priority 0; ip saddr {{ {addresses} }} drop; }}
                chain output {{ type filter hook output priority 0; ip daddr {{ {addresses} }} drop; }}
            }}"
        );
        self.nft(&rules);
    }

    pub fn mend(&self) {
        self.nft(&format!("delete table ip {TABLE}"));
    }
}

/// Runs a function in a namespace.
fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    let done = thread::scope(|scope| {
        let there = scope.spawn(|| {
            enter(namespace);
            work()
        });
        there.join()
    });
    done.unwrap()
}

/// Moves this thread into a namespace permanently.
fn enter(namespace: &str) {
    let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Returns the name of a host's port on the switch.
fn port(number: u8) -> String {
    format!("port{number}")
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(Command::new("ip").args(["netns", "delete", &self.name]).output());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(Command::new("ip").args(["netns", "delete", &self.namespace]).output());
    }
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}, as root and with iproute2 and nftables: {said}"
    );
}
