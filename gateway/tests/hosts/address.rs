//! Common address of all gateways, as `docs/how-to/replicas.md` sets it up: keepalived moves it from host to host, or it is haproxy's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use super::fleet::check;
use super::network::Host;
use super::program::{self, Program};
use super::replica::{ADDRESS, NAME};
use super::{Site, can_make_hosts, hosts};
use crate::support::LIMIT;

/// Number of nodes for each failure, and of those that have booted when it comes.
const NODES: usize = 60;
const BEFORE: usize = 10;
/// Placeholders in the document for the gateways' addresses, for the address that nodes know, and for the CA's files.
const WRITTEN: [&str; 3] = ["192.0.2.21", "192.0.2.22", "192.0.2.23"];
const WRITTEN_ADDRESS: &str = "192.0.2.20";
const WRITTEN_CA: [&str; 2] = ["/etc/keepalived/mcs-ca.crt", "/etc/haproxy/mcs-ca.crt"];

/// Programs before the gateways, and the folder with their configuration and the CA's certificate.
struct Front {
    programs: Vec<Program>,
    _hosts: Vec<Host>,
    _folder: tempfile::TempDir,
}

/// Returns the document's block with this line, for these gateways, whose certificates are of this CA.
fn configuration(line: &str, gateways: &[&Host], ca: &str) -> String {
    let document = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/replicas.md")).unwrap();
    let mut blocks = document.split("```text\n").skip(1).filter_map(|block| block.split("```").next());
    let mut text = blocks.find(|block| block.contains(line)).unwrap().to_owned();
    let addresses = gateways.iter().map(|host| host.address.to_string());
    let replaced = WRITTEN.iter().zip(addresses).map(|(written, address)| (*written, address));
    let cas = WRITTEN_CA.iter().map(|written| (*written, ca.to_owned()));
    for (written, real) in replaced.chain(cas).chain([(WRITTEN_ADDRESS, ADDRESS.to_owned())]) {
        text = text.replace(written, &real);
    }
    assert!(text.contains(NAME) && !text.contains("192.0.2."), "{text}");
    text
}

/// Creates a world-readable folder with the CA's certificate: the program that checks a gateway's health need not be root.
fn folder(site: &Site) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let ca = folder.path().join("mcs-ca.crt");
    fs::write(&ca, fs::read(site.folder.path().join("gateway/tls/mcs-ca.crt")).unwrap()).unwrap();
    let ca = ca.display().to_string();
    (folder, ca)
}

/// Starts keepalived on the host of each gateway.
fn keepalived(site: &Site) -> Front {
    let (folder, ca) = folder(site);
    let gateways: Vec<&Host> = site.replicas.iter().map(|replica| &replica.host).collect();
    let run = |number: usize| {
        // The document shows the first one's: its own address, and the others'.
        let mut own_first = gateways.clone();
        own_first.swap(0, number);
        program::keepalived(
            gateways[number],
            folder.path(),
            number,
            &configuration("vrrp_instance gateways {", &own_first, &ca),
        )
    };
    Front {
        programs: (0..gateways.len()).map(run).collect(),
        _hosts: Vec::new(),
        _folder: folder,
    }
}

/// Starts haproxy on a host of its own.
fn haproxy(site: &Site) -> Front {
    let (folder, ca) = folder(site);
    let gateways: Vec<&Host> = site.replicas.iter().map(|replica| &replica.host).collect();
    let file = folder.path().join("haproxy.cfg");
    fs::write(&file, configuration("backend gateways", &gateways, &ca)).unwrap();
    let host = site.network.host(ADDRESS.rsplit_once('.').unwrap().1.parse().unwrap());
    let mut command = host.command("haproxy");
    // With a master it says that it serves.
    command.arg("-W").arg("-f").arg(file);
    let mut program = Program::new("Loading success.");
    program.begin(command).serves();
    Front {
        programs: vec![program],
        _hosts: vec![host],
        _folder: folder,
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // keepalived and haproxy have processes of their own, which they end.
        for program in &mut self.programs {
            program.end();
        }
    }
}

/// Failure of a gateway: its name, the action, and the repair.
type Loss = (&'static str, fn(&mut Site, usize), fn(&mut Site, usize));

const LOSSES: [Loss; 3] = [
    (
        "is killed",
        |site, gateway| site.replicas[gateway].kill(),
        |site, gateway| {
            site.replicas[gateway].start();
        },
    ),
    (
        "is cut off from etcd",
        |site, gateway| site.replicas[gateway].host.cut_off(&hosts(&site.members)),
        |site, gateway| site.replicas[gateway].host.mend(),
    ),
    (
        "loses the network",
        |site, gateway| site.network.unplug(&site.replicas[gateway].host),
        |site, gateway| site.network.plug(&site.replicas[gateway].host),
    ),
];

/// Returns the indexes of the gateways' hosts that have the address.
fn holders(site: &Site) -> Vec<usize> {
    let holds = |gateway: &usize| site.replicas[*gateway].host.has(ADDRESS);
    (0..site.replicas.len()).filter(holds).collect()
}

/// Waits until there is a value.
fn wait_for<T>(found: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        match found() {
            Some(found) => return found,
            None => assert!(Instant::now() < until, "the address is where nobody is served"),
        }
    }
}

/// Boots nodes at the common address while gateways fail one after the other: each time the one that `next` returns. Verifies that all
/// nodes boot.
fn check_losses(settings: &str, front: fn(&Site) -> Front, next: fn(&Site, usize) -> usize, moved: fn(&Site, usize)) {
    if !can_make_hosts() {
        return;
    }
    let mut site = Site::new(settings);
    let front = front(&site);
    let runtime = site.network.runtime();
    let gateways = Arc::new(site.gateways.at(&format!("https://{ADDRESS}:22623")));
    for (turn, (name, lose, restore)) in LOSSES.into_iter().enumerate() {
        let (count, mut booted) = watch::channel(0);
        let storm = runtime.spawn(Arc::clone(&gateways).storm(site.nodes(NODES), count));
        // If the storm has ended before, it says why.
        drop(runtime.block_on(booted.wait_for(|booted| *booted >= BEFORE)));
        let gateway = next(&site, turn);
        eprintln!("{} nodes have booted; gateway {gateway} {name}", *booted.borrow());
        lose(&mut site, gateway);
        runtime.block_on(storm).unwrap();
        moved(&site, gateway);
        restore(&mut site, gateway);
    }
    drop(front);
    assert_eq!(check(&site.recorded()), NODES * LOSSES.len());
}

#[test]
fn nodes_boot_through_keepalived_despite_a_lost_gateway() {
    // While it goes from one to another nobody has it.
    let holder = |site: &Site, _| wait_for(|| holders(site).first().copied());
    // The nodes may have been faster.
    let moved = |site: &Site, from: usize| wait_for(|| (!holders(site).contains(&from)).then_some(()));
    check_losses("", keepalived, holder, moved);
}

#[test]
fn nodes_boot_behind_haproxy_despite_a_lost_gateway() {
    let settings = format!("proxy_protocol_from = [\"{ADDRESS}\"]");
    check_losses(&settings, haproxy, |_, turn| turn, |_, _| {});
}
