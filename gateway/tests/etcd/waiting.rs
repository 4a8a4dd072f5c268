//! New measurements that machines present to several gateways.

use std::fs;

use super::gateways::gateway;
use super::*;
use crate::log_builder::{LogBuilder, SHA256};
use crate::support::POOL;
use crate::support::node::Node;
use crate::waiting::{SECTION, boots, pending, question, strict, updated};

#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_pending_new_values_and_answers() {
    let site = Site::start();
    let (mut one, mut two) = (gateway(&site, ""), gateway(&site, ""));
    let (mut first, mut second) = (Node::new(), Node::new());
    for node in [&first, &second] {
        one.command(&["ek", "add", &node.ek()]);
    }
    let known = LogBuilder::typical(&[SHA256]);
    strict(&mut one, &mut first, &known, SECTION).await;
    strict(&mut two, &mut first, &known, SECTION).await;
    let new = updated("loader 2");
    boots(&one, &mut first, &new).await.refused(503, "answer-pending");
    // Wherever the machine comes next, it has waited already.
    boots(&two, &mut first, &new).await.refused(503, "answer-pending");
    boots(&two, &mut second, &new).await.refused(503, "answer-pending");
    two.line(|line| line.contains("pool worker: 2 machines wait for an answer"));
    boots(&one, &mut second, &new).await.refused(503, "answer-pending");
    assert_eq!(one.how_often(|line| line.contains("machines wait for an answer")), 0);
    let rows = pending(&one);
    assert_eq!((rows.len(), &rows), (1, &pending(&two)));
    let asked = question(&one);
    for gateway in [&one, &two] {
        let waiting = gateway.command(&["machines", "list", "--waiting"]);
        assert_eq!(waiting.matches(&asked).count(), 2, "{waiting}");
        let status = gateway.command(&["status"]);
        assert!(status.contains("\nwaiting       machines: 2, open questions: 1; "), "{status}");
    }

    // The file of one is read by that one; the other's machines wait on until it is there, too.
    one.command(&["waiting", "accept", &asked, "--set", "update.json"]);
    one.line(|line| line.contains("pool worker: serving a new state"));
    assert_eq!(boots(&one, &mut first, &new).await.status, 200);
    boots(&two, &mut second, &new).await.refused(503, "answer-pending");
    let file = format!("pools/{POOL}/reference-values/update.json");
    fs::copy(one.path(&file), two.path(&file)).unwrap();
    two.line(|line| line.contains("pool worker: serving a new state"));
    assert_eq!(boots(&two, &mut second, &new).await.status, 200);

    // A refusal counts at both.
    let other = updated("loader 3");
    boots(&one, &mut first, &other).await.refused(503, "answer-pending");
    let asked = question(&two);
    two.command(&["waiting", "refuse", &asked, "--reason", "no"]);
    for gateway in [&one, &two] {
        boots(gateway, &mut second, &other).await.refused(403, "boot-not-accepted");
    }
}
