//! Two gateways get the same request at the same time: one grants it.

use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;

use super::fleet::{AT_ONCE, check};
use super::{Site, can_make_hosts};
use crate::support::node::Node;
use crate::support::{Answer, LIMIT};

/// Default number of rounds; `ATTEST_ROUNDS` sets another. 1,000 take two minutes.
const ROUNDS: usize = 100;
const USES: usize = 300;
/// Number of requests with the token, more than it has uses.
const ASKED: usize = 1000;

fn rounds() -> usize {
    std::env::var("ATTEST_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap())
}

#[test]
fn one_of_two_raced_gateways_grants_the_request() {
    if !can_make_hosts() {
        return;
    }
    let mut site = Site::new("[ticket]\nuses = 1");
    let (gateways, nodes) = (Arc::clone(&site.gateways), site.nodes(rounds()));
    site.run(async move {
        for mut node in nodes {
            let (client, [one, other, third]) = (&gateways.client, &*gateways.urls) else {
                panic!("three gateways")
            };
            let challenged = Answer::send(node.challenge(client, third)).await;
            let evidence = node.evidence(&challenged, &gateways.server_key);
            let raced = tokio::join!(
                Answer::send(Node::send(client, one, &evidence)),
                Answer::send(Node::send(client, other, &evidence))
            );
            let (given, refused): (Vec<_>, Vec<_>) = [raced.0, raced.1].into_iter().partition(|answer| answer.status == 200);
            assert_eq!(given.len(), 1, "{refused:?}");
            refused[0].refused(403, "challenge-spent");
            let ticket = given[0].ticket();
            let raced = tokio::join!(
                Answer::send(Node::config(client, one, &ticket)),
                Answer::send(Node::config(client, other, &ticket))
            );
            let (given, refused): (Vec<_>, Vec<_>) = [raced.0, raced.1].into_iter().partition(|answer| answer.status == 200);
            assert_eq!(given.len(), 1, "{refused:?}");
            refused[0].refused(403, "ticket-spent");
        }
    });
    assert_eq!(check(&site.recorded()), rounds());
}

#[test]
fn raced_gateways_never_exceed_a_tokens_uses() {
    if !can_make_hosts() {
        return;
    }
    let site = Site::new("");
    let token = site.replicas[0].command_output(&["token", "create", "--pool", "worker", "--uses", &USES.to_string()]);
    let (gateways, credential) = (Arc::clone(&site.gateways), token);
    let statuses = site.run(async move {
        let (mut asked, mut statuses) = (JoinSet::new(), Vec::new());
        for number in 0..ASKED {
            let (gateways, credential) = (Arc::clone(&gateways), credential.clone());
            asked.spawn(async move {
                let begun = Instant::now();
                loop {
                    let status = gateways.config_with(number % 3, &credential).await.status.as_u16();
                    // Ignition, too, asks again: etcd answers late where other tests keep the processors and the disk busy.
                    if status != 503 {
                        break status;
                    }
                    assert!(begun.elapsed() < LIMIT, "it is answered by 503 for {LIMIT:?}");
                }
            });
            if asked.len() >= AT_ONCE {
                statuses.push(asked.join_next().await.unwrap().unwrap());
            }
        }
        statuses.extend(asked.join_all().await);
        statuses
    });
    let (given, refused): (Vec<u16>, Vec<u16>) = statuses.into_iter().partition(|status| *status == 200);
    assert_eq!(given.len(), USES);
    assert!(refused.iter().all(|status| *status == 403), "{refused:?}");
}
