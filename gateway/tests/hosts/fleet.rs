//! Nodes that boot, each from replica to replica, and the invariants of their records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use attest::SpkiSha256;
use reqwest::RequestBuilder;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::node::Node;
use crate::support::{Answer, POOL};

/// Maximum duration of a node's boot, whatever fails meanwhile.
const BOOT: Duration = Duration::from_secs(300);
/// Pause of a node before it asks another gateway.
const PAUSE: Duration = Duration::from_millis(100);
/// Number of nodes that boot at the same time.
pub const AT_ONCE: usize = 32;

/// Addresses and server key of the gateways, as nodes know them.
pub struct Gateways {
    pub client: reqwest::Client,
    pub urls: Vec<String>,
    pub server_key: SpkiSha256,
    /// Config that each node must get in the end.
    pub full: Vec<u8>,
    /// Index of the next request's gateway.
    pub turn: AtomicUsize,
}

/// Refusal of a step that a new attestation can overcome.
struct Anew;

impl Gateways {
    /// Returns the same gateways behind one address.
    pub fn at(&self, url: &str) -> Self {
        Self {
            client: self.client.clone(),
            urls: vec![url.to_owned()],
            server_key: self.server_key,
            full: self.full.clone(),
            turn: AtomicUsize::new(0),
        }
    }

    fn next(&self) -> &str {
        &self.urls[self.turn.fetch_add(1, Ordering::Relaxed) % self.urls.len()]
    }

    /// Asks one gateway after the other until one answers. A refusal with one of these codes counts as an answer, any other as a failure.
    async fn ask(&self, until: Instant, mends: &[&str], step: impl Fn(&str) -> RequestBuilder) -> Result<Answer, Anew> {
        loop {
            match Answer::try_send(step(self.next())).await {
                Ok(answer) if answer.status == 200 => return Ok(answer),
                Ok(answer) if answer.status == 503 || answer.status == 429 => {}
                Ok(answer) if mends.contains(&answer.code().as_str()) => return Err(Anew),
                Ok(answer) => panic!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body)),
                Err(_) => {}
            }
            assert!(Instant::now() < until, "a node was not served in {} s", BOOT.as_secs());
            sleep(PAUSE).await;
        }
    }

    /// Returns this gateway's answer to a config request with a credential.
    pub async fn config_with(&self, gateway: usize, credential: &str) -> Answer {
        Answer::send(Node::config(&self.client, &self.urls[gateway], credential)).await
    }

    /// Boots a node from the first request to the config, whatever happens to the gateways.
    async fn boot(&self, mut node: Node) {
        let until = Instant::now() + BOOT;
        while self.try_boot(&mut node, until).await.is_err() {}
    }

    async fn try_boot(&self, node: &mut Node, until: Instant) -> Result<(), Anew> {
        let client = &self.client;
        let challenged = self.ask(until, &[], |url| node.challenge(client, url)).await?;
        let evidence = node.evidence(&challenged, &self.server_key);
        // Whoever was answered and did not hear it has spent its challenge.
        let mends = ["challenge-spent", "challenge-expired"];
        let trusted = self.ask(until, &mends, |url| Node::send(client, url, &evidence)).await?;
        let ticket = trusted.ticket();
        let mends = ["ticket-spent", "ticket-expired"];
        let config = self.ask(until, &mends, |url| Node::config(client, url, &ticket)).await?;
        config.is_config(&self.full);
        Ok(())
    }

    /// Boots all nodes, a limited number at a time. Reports the number of those that have their config.
    pub async fn storm(self: Arc<Self>, nodes: Vec<Node>, booted: watch::Sender<usize>) {
        let mut booting = JoinSet::new();
        for node in nodes {
            if booting.len() == AT_ONCE {
                booting.join_next().await.unwrap().unwrap();
                booted.send_modify(|booted| *booted += 1);
            }
            let gateways = Arc::clone(&self);
            booting.spawn(async move { gateways.boot(node).await });
        }
        while let Some(done) = booting.join_next().await {
            done.unwrap();
            booted.send_modify(|booted| *booted += 1);
        }
    }
}

/// Verifies that nothing was spent twice, by the records of all gateways. Returns the number of nodes with the full config.
pub fn check(records: &[Value]) -> usize {
    let (mut challenges, mut uses) = (BTreeMap::<String, u32>::new(), BTreeSet::new());
    let (mut terms, mut served) = (BTreeMap::new(), BTreeSet::new());
    // Events are about no node.
    let decides = |record: &&Value| ["challenge", "evidence", "config"].contains(&record["decision"].as_str().unwrap());
    for record in records.iter().filter(decides) {
        let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
        match (record["decision"].as_str().unwrap(), record["verdict"].as_str().unwrap()) {
            ("evidence", "trusted") => {
                match record["basis"]["challenge"]["id"].as_str() {
                    Some(challenge) => *challenges.entry(challenge.to_owned()).or_default() += 1,
                    // Its gateway was killed before it had written more.
                    None => assert!(record["recorded_late"].is_string(), "{record}"),
                }
                terms.insert(text("id"), record["ticket"]["uses"].as_u64().unwrap());
            }
            ("config", "served") if record["shown"] == "ticket" => {
                let number = record["use_number"].as_u64().unwrap();
                assert!(uses.insert((text("earned_by"), number)), "a use was made twice: {record}");
                assert_eq!(record["grant"], "full", "{record}");
                served.insert(text("identity"));
            }
            _ => {}
        }
    }
    for (challenge, answered) in challenges {
        assert_eq!(answered, 1, "challenge {challenge} was answered more than once");
    }
    for (earned_by, number) in &uses {
        assert!(number <= &terms[earned_by], "use {number} of the ticket of {earned_by}");
    }
    assert!(
        records
            .iter()
            .filter(decides)
            .all(|record| record["pool"] == POOL || record["pool"] == "")
    );
    served.len()
}
