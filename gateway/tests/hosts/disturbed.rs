//! Nodes boot, whatever becomes of gateways and of the store; and nothing is spent twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::fleet::check;
use super::members::Member;
use super::replica::Replica;
use super::{Site, can_make_hosts};
use crate::network::Host;

/// Longer than any lease of the gateways' and of the members' among one another.
const LONGER_THAN_LEASES: Duration = Duration::from_secs(12);
const NODES: usize = 500;

/// What is done to the site, so that it is whole again afterwards. `wait` returns when some more nodes have booted, or none can any more.
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
        let since = Instant::now();
        wait();
        thread::sleep(LONGER_THAN_LEASES.saturating_sub(since.elapsed()));
        gateway.signal("CONT");
    }),
    ("all gateways are killed", |site, _, _| {
        site.replicas.iter_mut().for_each(Replica::kill);
        site.replicas.iter_mut().for_each(Replica::start);
    }),
];

fn hosts(members: &[Member]) -> Vec<&Host> {
    members.iter().map(|member| &member.host).collect()
}

#[test]
fn nodes_boot_whatever_becomes_of_gateways_and_of_the_store() {
    if !can_make_hosts() {
        return;
    }
    let mut site = Site::new("");
    let gateways = Arc::clone(&site.gateways);
    let runtime = site.network.runtime();
    let storm = runtime.spawn(Arc::clone(&gateways).storm(site.nodes(NODES)));
    let booted = || gateways.booted.load(Ordering::Relaxed);
    let (mut turn, mut done) = (0, 0);
    while !storm.is_finished() {
        let (name, disturb) = DISTURBANCES[turn % DISTURBANCES.len()];
        let before = booted();
        eprintln!("{before} of {NODES} nodes have booted; {name}");
        let wait = || {
            while booted() < (before + 10).min(NODES) && !storm.is_finished() {
                thread::yield_now();
                thread::park_timeout(Duration::from_millis(20));
            }
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
fn a_gateway_that_has_lost_the_store_says_so_and_what_is_revoked_is_revoked_everywhere_at_once() {
    if !can_make_hosts() {
        return;
    }
    let site = Site::new("");
    let token = site.replicas[0].tell(&["token", "create", "--pool", "worker", "--name", "rack"]);
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
    site.replicas[1].tell(&["token", "revoke", "rack"]);
    for replica in 0..3 {
        ask(replica).refused(403, "token-invalid");
    }
}
