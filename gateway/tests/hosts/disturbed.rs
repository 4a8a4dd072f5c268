//! Nodes boot despite failures of gateways and of the store, and nothing is spent twice.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;

use tokio::sync::watch;

use super::fleet::check;
use super::members::Member;
use super::replica::Replica;
use super::{Site, can_make_hosts, hosts};
use crate::network::Host;

/// Longest lease of a gateway, in seconds.
const LEASE: &str = "15";
/// Maximum number of requests to etcd: its members may have no leader right after one was cut off, and say so within seconds.
const TRIES: usize = 20;
const NODES: usize = 500;

/// Failure of a part of the site, with its repair. `wait` returns when some more nodes have booted, or none can boot.
type Disturbance = fn(&mut Site, usize, &dyn Fn());

const DISTURBANCES: [(&str, Disturbance); 6] = [
    ("a gateway is killed", |site, turn, wait| {
        let gateway = turn % site.replicas.len();
        site.replicas[gateway].kill();
        wait();
        site.replicas[gateway].start();
    }),
    ("a member is killed", |site, turn, wait| {
        let member = turn % site.members.len();
        site.members[member].kill();
        wait();
        site.members[member].start();
    }),
    ("a gateway is cut off from etcd", |site, turn, wait| {
        let gateway = &site.replicas[turn % site.replicas.len()].host;
        gateway.cut_off(&hosts(&site.members));
        wait();
        gateway.mend();
    }),
    ("a member is cut off from the others", |site, turn, wait| {
        let member = &site.members[turn % site.members.len()];
        let others: Vec<&Host> = site
            .members
            .iter()
            .map(|member| &member.host)
            .filter(|host| host.address != member.host.address)
            .collect();
        member.host.cut_off(&others);
        wait();
        member.host.mend();
    }),
    ("a gateway stands still for longer than its leases", |site, turn, wait| {
        let gateway = &site.replicas[turn % site.replicas.len()];
        gateway.signal("STOP");
        wait_for_the_end_of_a_lease(&site.members[0]);
        wait();
        gateway.signal("CONT");
    }),
    ("all gateways are killed", |site, _, _| {
        site.replicas.iter_mut().for_each(Replica::kill);
        site.replicas.iter_mut().for_each(Replica::start);
    }),
];

/// Waits until etcd has ended a lease that begins at this call. By then it has also ended those that were renewed until this call.
fn wait_for_the_end_of_a_lease(member: &Member) {
    let said = |arguments: &[&str]| {
        let mut outputs = (0..TRIES).map(|_| member.ctl(arguments).output().unwrap());
        let output = outputs
            .find(|output| output.status.success())
            .unwrap_or_else(|| panic!("etcd has no leader"));
        String::from_utf8(output.stdout).unwrap()
    };
    let granted = said(&["lease", "grant", LEASE]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    // Another key than any before, so that the watch may begin before all of them.
    let witness = format!("witness/{lease}");
    said(&["put", "--lease", lease, &witness, ""]);
    // A watch is refused at once while there is no leader; what is read waits for one.
    let deleted = (0..TRIES).any(|_| {
        said(&["get", &witness]);
        is_deleted(member, &witness)
    });
    assert!(deleted, "etcd has no leader");
}

/// Watches until the key is deleted. Returns `false` if etcd ends the watch first.
fn is_deleted(member: &Member, key: &str) -> bool {
    let mut watch = member.ctl(&["watch", "--rev", "1", key]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let deleted = lines.any(|line| line.unwrap() == "DELETE");
    watch.kill().unwrap();
    watch.wait().unwrap();
    deleted
}

#[test]
fn nodes_boot_despite_failures_of_gateways_and_store() {
    if !can_make_hosts() {
        return;
    }
    let mut site = Site::new("");
    let gateways = Arc::clone(&site.gateways);
    let runtime = site.network.runtime();
    let (count, booted) = watch::channel(0);
    let storm = runtime.spawn(Arc::clone(&gateways).storm(site.nodes(NODES), count));
    let (mut turn, mut done) = (0, 0);
    while !storm.is_finished() {
        let (name, disturb) = DISTURBANCES[turn % DISTURBANCES.len()];
        let before = *booted.borrow();
        eprintln!("{before} of {NODES} nodes have booted; {name}");
        let wait = || {
            let mut booted = booted.clone();
            let enough = booted.wait_for(|booted| *booted >= (before + 10).min(NODES));
            // If the storm has ended before, it says why.
            drop(runtime.block_on(enough));
        };
        disturb(&mut site, turn / DISTURBANCES.len() + turn, &wait);
        (turn, done) = (turn + 1, done + usize::from(!storm.is_finished()));
    }
    runtime.block_on(storm).unwrap();
    assert!(
        done >= DISTURBANCES.len(),
        "the nodes were faster than what was to be done to them: {done}"
    );
    assert_eq!(check(&site.recorded()), NODES);
}

#[test]
fn partitioned_gateways_answer_503_and_revocations_are_global() {
    if !can_make_hosts() {
        return;
    }
    let site = Site::new("");
    let token = site.replicas[0].command_output(&["token", "create", "--pool", "worker", "--name", "rack"]);
    let (gateways, credential) = (Arc::clone(&site.gateways), token);
    let ask = |replica: usize| {
        let (gateways, credential) = (Arc::clone(&gateways), credential.clone());
        site.run(async move { gateways.config_with(replica, &credential).await })
    };
    for replica in 0..3 {
        assert_eq!(ask(replica).status, 200);
    }
    let alone = &site.replicas[2].host;
    alone.cut_off(&hosts(&site.members));
    let refused = ask(2);
    assert_eq!(refused.status, 503);
    assert_eq!(ask(0).status, 200);
    alone.mend();
    // It has found the others again before this deadline of the client's.
    while ask(2).status == 503 {}
    assert_eq!(ask(2).status, 200);
    site.replicas[1].command_output(&["token", "revoke", "rack"]);
    for replica in 0..3 {
        ask(replica).refused(403, "token-invalid");
    }
}
