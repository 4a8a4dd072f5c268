//! Three control-plane hosts with a Machine Config Server each, which a gateway replaces, as in `docs/how-to/install-openshift.md`.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use cloud_fixtures::machine_config_server::MachineConfigServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::fleet::{Gateways, check};
use super::network::Host;
use super::program::{self, Program};
use super::replica::{ADDRESS, NAME, Replica};
use super::{Site, can_make_hosts};
use crate::support::{LIMIT, POOL, SPEC, program};

/// Number of nodes that boot in a state of the hosts.
const NODES: usize = 5;
/// Number of nodes that boot while a host is lost.
const STORM: usize = 60;
/// Address of a Service, and that of a balancer, which no host has.
const SERVICE: &str = "10.96.0.1";
const BALANCER: &str = "10.9.9.9";
/// Address of another host, to which a host forwards.
const FORWARDED: &str = "10.8.8.8";

struct ControlPlane {
    // Dropped in this order.
    keepalived: Vec<Program>,
    servers: Vec<MachineConfigServer>,
    site: Site,
    runtime: Runtime,
    gateways: Arc<Gateways>,
    /// File with the pre-approved config.
    pre_approved: PathBuf,
}

/// Returns a full config in a format that no gateway would write.
fn full(version: &str) -> Vec<u8> {
    let root = if version.starts_with('2') {
        "\"filesystem\": \"root\", "
    } else {
        ""
    };
    let file = |path: &str| format!("{{ {root}\"path\": \"{path}\",\t\"contents\": {{\"source\": \"data:,SECRET\"}} }}");
    let files = format!("{},\n {}", file("/etc/early"), file("/etc/kubernetes/kubeconfig"));
    format!("{{ \"ignition\": {{\"version\": \"{version}\"}},  \"storage\": {{\"files\": [{files}]}} }}\n").into_bytes()
}

/// Makes the pool take its config from the Machine Config Server of the same host, at this address.
fn take_from_the_host(folder: &Path, address: &str) {
    let pool = folder.join("pools").join(POOL);
    for set in ["full", "pre-approved"] {
        fs::remove_dir_all(pool.join(set)).unwrap();
    }
    let file = pool.join("pool.toml");
    let upstream = format!(
        "[upstream]\nurl = \"https://{NAME}:22623\"\naddress = \"{address}\"\nca = \"../../tls/mcs-ca.crt\"\n\n[upstream.include]\nfiles = [\"/etc/early\"]\n\n[tpm]"
    );
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("[tpm]", &upstream, 1)).unwrap();
}

impl ControlPlane {
    /// Starts everything; no ingress redirect is loaded.
    fn new() -> Self {
        Self::prepared("127.0.0.1:22623", |_| {})
    }

    /// Starts everything with this address of the hosts' servers for the gateways, after a step on each host.
    fn prepared(server: &str, prepared: impl Fn(&Host)) -> Self {
        let mut servers = Vec::new();
        let site = Site::prepared("", "[::]:22625", |folder, hosts| {
            take_from_the_host(folder, server);
            hosts.iter().for_each(prepared);
            let file = |name: &str| folder.join("tls").join(name);
            let server = || MachineConfigServer::start(&file("mcs.crt"), &file("mcs.key"), POOL, Arc::new(full));
            servers = hosts.iter().map(|host| host.on(server)).collect();
        });
        assert_eq!(site.gateways.full, full(SPEC).trim_ascii_end(), "byte for byte");
        let mut gateways = site.gateways.at(&format!("https://{ADDRESS}:22623"));
        gateways.full = full(SPEC);
        let pre_approved = site.folder.path().join("pre-approved.ign");
        fs::write(
            &pre_approved,
            site.replicas[0].command_output(&["config", "render", "--pool", POOL, "--set", "pre-approved"]),
        )
        .unwrap();
        let mut all = Self {
            keepalived: Vec::new(),
            servers,
            runtime: site.network.runtime(),
            gateways: Arc::new(gateways),
            site,
            pre_approved,
        };
        all.keepalived = (0..3).map(|number| all.keepalived(number)).collect();
        all.holder();
        all
    }

    fn host(&self, number: usize) -> &Host {
        &self.site.replicas[number].host
    }

    /// Starts keepalived, whose virtual IP follows the host, and not the programs on it, as an installer sets it up.
    fn keepalived(&self, number: usize) -> Program {
        let own = self.host(number).address;
        let others = (0..3).filter(|other| *other != number);
        let peers: Vec<String> = others.map(|other| self.host(other).address.to_string()).collect();
        let text = format!(
            "vrrp_instance api {{
                state BACKUP
                interface eth0
                virtual_router_id 51
                priority {}
                advert_int 1
                unicast_src_ip {own}
                unicast_peer {{ {} }}
                virtual_ipaddress {{ {ADDRESS}/32 }}
            }}",
            100 - number,
            peers.join("\n")
        );
        program::keepalived(self.host(number), self.site.folder.path(), number, &text)
    }

    /// Waits until exactly one host has the virtual IP, and returns it.
    fn holder(&self) -> usize {
        let until = Instant::now() + LIMIT;
        loop {
            let holders: Vec<usize> = (0..3).filter(|number| self.host(*number).has(ADDRESS)).collect();
            if let [holder] = *holders {
                return holder;
            }
            assert!(Instant::now() < until, "{holders:?}");
        }
    }

    fn close(&self, number: usize) {
        self.host(number).nft(&table(&["--platform", "baremetal"]));
    }

    fn open(&self, number: usize) {
        self.host(number).nft("delete table inet attest-gateway");
    }

    /// Returns every address of these hosts, of both families.
    fn addresses(&self, hosts: &[usize]) -> Vec<String> {
        let both = |number: &usize| [IpAddr::V4(self.host(*number).address), IpAddr::V6(self.host(*number).address_6())];
        hosts.iter().flat_map(both).map(|address| address.to_string()).collect()
    }

    /// Runs `check --probe` on a machine outside of the hosts. Returns its results for these addresses, by port; its exit code says whether
    /// any address is open.
    fn stranger(&self, addresses: &[String]) -> BTreeSet<(String, String)> {
        let command = self.site.network.command(env!("CARGO_BIN_EXE_attest-gateway"));
        probe(command, &self.pre_approved, addresses)
    }

    /// Boots nodes through the virtual IP in the background. The receiver has the number of booted ones.
    fn begin_to_boot(&self, nodes: usize) -> (JoinHandle<()>, watch::Receiver<usize>) {
        let (count, booted) = watch::channel(0);
        let storm = Arc::clone(&self.gateways).storm(self.site.nodes(nodes), count);
        (self.runtime.spawn(storm), booted)
    }

    /// Boots nodes, each of which gets byte for byte the Machine Config Server's config.
    fn boot(&self) {
        self.runtime.block_on(self.begin_to_boot(NODES).0).unwrap();
    }

    /// Stops everything, and verifies that each of these nodes is recorded once.
    fn end(mut self, nodes: usize) {
        for program in &mut self.keepalived {
            program.end();
        }
        assert_eq!(check(&self.site.recorded()), nodes);
        assert!(
            self.servers.iter().all(|server| !server.with_tls.requests().is_empty()),
            "each gateway asks its own"
        );
    }
}

/// Returns the nftables rules of `attest-gateway manifests render`.
fn table(options: &[&str]) -> String {
    let mut command = program();
    command.args(["manifests", "render", "--only", "nft"]).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn probe(mut command: Command, pre_approved: &Path, addresses: &[String]) -> BTreeSet<(String, String)> {
    let known = format!("{POOL}={}", pre_approved.display());
    let output = command
        .args(["check", "--pre-approved", &known, "--probe"])
        .args(addresses)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let rows = said
        .lines()
        .filter(|line| addresses.iter().any(|address| line.starts_with(&format!("{address} "))));
    let found: BTreeSet<(String, String)> = rows
        .filter_map(|row| match *row.split_whitespace().collect::<Vec<_>>() {
            [_, port, _, pool, result, ..] if pool == POOL || pool == "*" => Some((port.to_owned(), result.to_owned())),
            _ => None,
        })
        .collect();
    let fails = found.iter().any(|(_, result)| result == "OPEN" || result == "unknown");
    assert_eq!(
        output.status.code(),
        Some(i32::from(fails)),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    found
}

fn results(with_tls: &str, plain: &str) -> BTreeSet<(String, String)> {
    [("22623", with_tls), ("22624", plain)]
        .map(|(port, result)| (port.to_owned(), result.to_owned()))
        .into()
}

/// Returns the document's rows for each state, in this order: the state, and an unauthenticated client's result at 22623 and at 22624.
fn documented() -> Vec<[String; 3]> {
    let document = include_str!("../../../docs/how-to/install-openshift.md");
    let (_, table) = document.split_once("\n| On a control-plane host |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let cells: Vec<String> = row.split('|').map(|cell| cell.trim().to_owned()).collect();
        [cells[1].clone(), cells[2].clone(), cells[3].clone()]
    };
    rows.map(cells).collect()
}

/// Converts the results to the document's words.
fn labels(found: &BTreeSet<(String, String)>) -> [String; 2] {
    ["22623", "22624"].map(|port| {
        let results: Vec<&str> = found
            .iter()
            .filter(|(of, _)| of == port)
            .map(|(_, result)| result.as_str())
            .collect();
        match *results {
            ["OPEN"] => "the full config",
            ["pre-approved"] => "the pre-approved config",
            ["closed"] => "nothing",
            _ => panic!("{found:?}"),
        }
        .to_owned()
    })
}

#[test]
fn unauthenticated_clients_get_documented_answers_during_installation() {
    if !can_make_hosts() {
        return;
    }
    let mut all = ControlPlane::new();
    let mut states = documented().into_iter();
    let mut check_next = |all: &ControlPlane, state: &str, hosts: &[usize]| {
        let found = all.stranger(&all.addresses(hosts));
        let [with_tls, plain] = labels(&found);
        assert_eq!(states.next(), Some([state.to_owned(), with_tls, plain]));
    };
    let every = [0, 1, 2];
    all.site.replicas.iter_mut().for_each(Replica::kill);
    check_next(&all, "the Machine Config Server alone", &every);
    all.site.replicas.iter_mut().for_each(Replica::start);
    check_next(&all, "a gateway, not redirected", &every);

    // Whoever was connected before the door was closed gets nothing either.
    let address = SocketAddr::from((all.host(0).address_6(), 22624));
    let before = all.runtime.spawn(async move { TcpStream::connect(address).await.unwrap() });
    let mut before = all.runtime.block_on(before).unwrap();
    all.close(0);
    let asked = all.runtime.block_on(async {
        before.write_all(b"GET /config/worker HTTP/1.1\r\nhost: a\r\n\r\n").await?;
        let mut answer = Vec::new();
        before.read_to_end(&mut answer).await
    });
    assert!(asked.is_err(), "{asked:?}");

    // Host by host: those that are not yet closed are found.
    assert_eq!(all.stranger(&all.addresses(&[0])), results("pre-approved", "closed"));
    assert_eq!(all.stranger(&all.addresses(&[1, 2])), results("OPEN", "OPEN"));
    all.close(1);
    all.close(2);
    // Once more, as a reload does.
    all.close(2);
    check_next(&all, "a gateway, redirected", &every);
    assert_eq!(all.stranger(&[ADDRESS.to_owned()]), results("pre-approved", "closed"));
    all.boot();
    // The host itself reaches the server.
    let itself = all.host(0).command(env!("CARGO_BIN_EXE_attest-gateway"));
    assert_eq!(probe(itself, &all.pre_approved, &["127.0.0.1".to_owned()]), results("OPEN", "OPEN"));

    all.site.replicas.iter_mut().for_each(Replica::kill);
    check_next(&all, "no gateway, redirected", &every);
    all.site.replicas.iter_mut().for_each(Replica::start);
    all.boot();
    every.iter().for_each(|host| all.open(*host));
    check_next(&all, "the ingress redirect removed", &every);
    assert_eq!(states.next(), None);
    all.end(2 * NODES);
}

#[test]
fn nodes_boot_while_the_virtual_ip_changes_hosts() {
    if !can_make_hosts() {
        return;
    }
    let all = ControlPlane::new();
    (0..3).for_each(|host| all.close(host));
    let (storm, mut booted) = all.begin_to_boot(STORM);
    // If the storm has ended before, it says why.
    drop(all.runtime.block_on(booted.wait_for(|booted| *booted >= NODES)));
    let lost = all.holder();
    all.site.network.unplug(all.host(lost));
    all.runtime.block_on(storm).unwrap();
    let left: Vec<usize> = (0..3).filter(|host| *host != lost).collect();
    assert!(left.contains(&all.holder()));
    let addresses = [all.addresses(&left), vec![ADDRESS.to_owned()]].concat();
    assert_eq!(all.stranger(&addresses), results("pre-approved", "closed"));
    all.site.network.plug(all.host(lost));
    all.end(STORM);
}

#[test]
fn ingress_redirect_closes_services_but_not_forwarded_addresses() {
    if !can_make_hosts() {
        return;
    }
    let all = ControlPlane::new();
    let host = all.host(0);
    for (address, leads) in [(SERVICE, format!("dnat to {}", host.address)), (BALANCER, "redirect".to_owned())] {
        all.site.network.route(address, host);
        // At the priority of kube-proxy's tables, and of those that an installer makes on Google Cloud.
        let chain = "type nat hook prerouting priority dstnat;";
        let name = format!("t{}", address.replace('.', "_"));
        host.nft(&format!(
            "table ip {name} {{ chain c {{ {chain} ip daddr {address} {leads}\n }}\n }}\n"
        ));
    }
    let stranger = |address: &str| all.stranger(&[address.to_owned()]);
    for address in [SERVICE, BALANCER] {
        assert_eq!(stranger(address), results("OPEN", "OPEN"), "{address}");
    }
    all.site.network.route(FORWARDED, host);
    host.forward(FORWARDED, all.host(1));
    all.close(0);
    for address in [SERVICE, BALANCER] {
        assert_eq!(stranger(address), results("closed", "closed"), "{address}");
    }
    // Somebody else's server is not the gateway's to stand in for.
    assert_eq!(stranger(FORWARDED), results("OPEN", "OPEN"));
    all.host(0).nft(&table(&["--platform", "gcp", "--balancer-address", BALANCER]));
    assert_eq!(stranger(SERVICE), results("closed", "closed"));
    assert_eq!(stranger(BALANCER), results("pre-approved", "closed"));
    // Ports of a firewall that drops packets are closed, if the host answers at others.
    let dropped = |ports: &str| {
        all.host(2).nft(&format!(
            "table ip d {{ chain p{ports} {{ type filter hook input priority 0; tcp dport {ports} drop\n }}\n }}\n"
        ))
    };
    let of_host = &all.addresses(&[2])[0];
    assert_eq!(stranger(of_host), results("OPEN", "OPEN"));
    dropped("22624");
    assert_eq!(stranger(of_host), results("OPEN", "closed"));
    dropped("22623");
    assert_eq!(stranger(of_host), results("closed", "closed"));
    dropped("6443");
    assert_eq!(stranger(of_host), results("closed", "closed"));
    dropped("22");
    assert_eq!(stranger(of_host), results("unknown", "unknown"));
    all.end(0);
}

/// Rules of OVN-Kubernetes on each host: no process there can open a connection to the server's ports (openshift/ovn-kubernetes,
/// `go-controller/pkg/node/OCP_HACKS_test.go`).
const PLUGIN: &str = "table inet openshift-ovn-kubernetes {
    chain mcs-blocking { tcp dport { 22623, 22624 } tcp flags syn / fin,syn,rst,ack reject\n }
    chain mcs-blocking-output { type filter hook output priority 0; jump mcs-blocking\n }
    chain mcs-blocking-forward { type filter hook forward priority 0; jump mcs-blocking\n }
}";
/// Address at which the gateway reaches the server past those rules, as `attest-gateway manifests render` writes it into the pools' files.
const PATH: &str = "127.22.62.3:22626";

#[test]
fn only_the_gateway_reaches_the_mcs_past_plugins() {
    if !can_make_hosts() {
        return;
    }
    // These gateways are root.
    let door = table(&["--platform", "baremetal", "--user", "0"]);
    let all = ControlPlane::prepared(PATH, |host| {
        host.nft(PLUGIN);
        host.nft(&door);
    });
    all.boot();
    assert_eq!(all.stranger(&all.addresses(&[0, 1, 2])), results("pre-approved", "closed"));
    let host = all.host(0);
    let asks = |user: &str, address: &str| {
        let mut command = host.command("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        command.args(["curl", "--silent", "--insecure", "--max-time", "20", "--output", "/dev/null"]);
        command.arg(format!("https://{address}/healthz")).status().unwrap().success()
    };
    // The plugin refuses root, too; and the path is the gateway's user's.
    assert!(!asks("0", "127.0.0.1:22623"));
    assert!(asks("0", PATH));
    assert!(!asks("65534", PATH));
    assert!(!asks("65534", "127.22.62.3:22623"));
    // Without the plugin the host's own programs reach the server as before.
    host.nft("delete table inet openshift-ovn-kubernetes");
    assert!(asks("65534", "127.0.0.1:22623"));
    assert!(asks("0", PATH));
    all.end(NODES);
}
