//! Operation with fewer than three gateways or etcd members: requests that still work, and those that do not.

use std::sync::Arc;
use std::time::Instant;

use reqwest::StatusCode;
use tokio::sync::watch;

use super::fleet::check;
use super::replica::Replica;
use super::{Site, can_make_hosts};
use crate::support::node::Node;
use crate::support::{Answer, LIMIT};

const NODES: usize = 20;

impl Site {
    fn boot(&self, nodes: usize) {
        let (count, booted) = watch::channel(0);
        self.run(Arc::clone(&self.gateways).storm(self.nodes(nodes), count));
        assert_eq!(*booted.borrow(), nodes);
    }

    /// Returns the status of this gateway's `/readyz`.
    fn ready(&self, replica: usize) -> StatusCode {
        let request = self.gateways.client.get(format!("{}/readyz", self.gateways.urls[replica]));
        self.run(async move { Answer::send(request).await.status })
    }

    fn config(&self, replica: usize, token: &str) -> StatusCode {
        let (gateways, token) = (Arc::clone(&self.gateways), token.to_owned());
        self.run(async move { gateways.config_with(replica, &token).await.status })
    }

    /// Like [`Site::config`], once this gateway has found the members again.
    fn config_in_the_end(&self, replica: usize, token: &str) -> StatusCode {
        let until = Instant::now() + LIMIT;
        loop {
            let status = self.config(replica, token);
            if status != 503 {
                return status;
            }
            assert!(Instant::now() < until, "gateway {replica} has not found the members");
        }
    }
}

#[test]
fn nodes_boot_with_one_gateway_and_two_members() {
    if !can_make_hosts() {
        return;
    }
    let mut site = Site::new("");
    let token = site.replicas[0].command_output(&["token", "create", "--pool", "worker", "--name", "rack", "--uses", "3"]);
    assert_eq!(site.config(0, &token), 200);
    site.members[0].kill();
    site.boot(NODES);

    site.members[1].kill();
    for replica in 0..3 {
        assert_eq!(site.config(replica, &token), 503);
        assert_eq!(site.ready(replica), 503);
    }
    let refused = site.replicas[0].refused(&["token", "revoke", "rack"]);
    assert!(refused.contains("store.endpoints"), "{refused}");

    site.members[1].start();
    // Each finds the members again, and no use was made while there were too few.
    for replica in 1..3 {
        let status = site.config_in_the_end(replica, &token);
        assert_eq!((status, site.ready(replica)), (StatusCode::OK, StatusCode::OK));
    }
    assert_eq!(site.config_in_the_end(0, &token), 403);
    site.boot(NODES);

    site.members[0].start();
    for gateway in 0..2 {
        site.replicas[gateway].kill();
        site.boot(NODES);
    }
    assert_eq!(check(&site.recorded()), 4 * NODES);
}

#[test]
fn a_node_continues_each_step_at_another_gateway() {
    if !can_make_hosts() {
        return;
    }
    let mut site = Site::new("");
    let mut node = site.nodes(1).remove(0);
    let gateways = Arc::clone(&site.gateways);
    let (client, [one, two, three]) = (&gateways.client, &*gateways.urls) else {
        panic!("three gateways")
    };
    let ask = |site: &Site, request| site.run(async move { Answer::send(request).await });
    let challenged = ask(&site, node.challenge(client, one));
    site.replicas[0].kill();
    let evidence = node.evidence(&challenged, &gateways.server_key);
    let ticket = ask(&site, Node::send(client, two, &evidence)).ticket();
    site.replicas[1].kill();
    ask(&site, Node::config(client, three, &ticket)).is_config(&gateways.full);
    site.replicas[2].kill();
    // They have forgotten nothing, and have given nothing back.
    site.replicas.iter_mut().for_each(Replica::start);
    for url in [one, two, three] {
        ask(&site, Node::send(client, url, &evidence)).refused(403, "challenge-spent");
        ask(&site, Node::config(client, url, &ticket)).is_config(&gateways.full);
    }
    ask(&site, Node::config(client, one, &ticket)).refused(403, "ticket-spent");
    assert_eq!(check(&site.recorded()), 1);
}
