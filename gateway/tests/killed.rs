//! The gateway is killed at random moments while nodes attest: what it has answered it has recorded, and the log is whole.
//!
//! `ATTEST_KILLS` says how often; 1,000 take some minutes.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::node::Node;
use crate::support::soft_tpm::maker::Maker;
use crate::support::{Answer, Gateway, POOL};
use attest::SpkiSha256;
use aws_lc_rs::rand;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

const KILLS: usize = 15;
/// Nodes at the same time.
const AT_ONCE: usize = 6;
/// Most answers between two kills.
const ANSWERS: u8 = 12;
/// Longest time between the last of those answers and the kill.
const MOMENT_LIMIT: Duration = Duration::from_millis(30);

/// What the nodes were told: the harness counts for itself.
#[derive(Default)]
struct Told {
    tickets: Mutex<BTreeSet<String>>,
    configs: Mutex<BTreeSet<String>>,
    changed: Notify,
}

/// What nodes need to attest.
#[derive(Clone)]
struct Site {
    client: reqwest::Client,
    url: String,
    key: SpkiSha256,
    maker: Arc<Maker>,
    told: Arc<Told>,
}

impl Site {
    /// Nodes boot one after the other until the gateway does not answer.
    async fn boot(self) {
        while let Ok(()) = self.try_boot().await {}
    }

    async fn try_boot(&self) -> reqwest::Result<()> {
        let mut node = Node::made_by(&self.maker);
        let identity = format!("tpm:{}", node.ek());
        let challenged = Answer::of_any(node.challenge(&self.client, &self.url)).await?;
        let evidence = node.evidence(&challenged, &self.key);
        let ticket = Answer::of_any(Node::send(&self.client, &self.url, &evidence)).await?.ticket();
        self.told.tickets.lock().unwrap().insert(identity.clone());
        self.told.changed.notify_one();
        let config = Answer::of_any(Node::config(&self.client, &self.url, &ticket)).await?;
        assert_eq!(config.status, 200);
        self.told.configs.lock().unwrap().insert(identity);
        self.told.changed.notify_one();
        Ok(())
    }

    /// A moment after so many more answers as chance says.
    async fn moment(&self) {
        let mut chance = [0; 2];
        rand::fill(&mut chance).unwrap();
        let told = || self.told.tickets.lock().unwrap().len() + self.told.configs.lock().unwrap().len();
        let until = told() + usize::from(chance[0] % ANSWERS);
        while told() < until {
            self.told.changed.notified().await;
        }
        tokio::time::sleep(MOMENT_LIMIT.mul_f64(f64::from(chance[1]) / 255.0)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_is_recorded_however_often_the_gateway_is_killed() {
    let kills = std::env::var("ATTEST_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let mut gateway = Gateway::init();
    let maker = Maker::new("A maker of TPMs");
    fs::write(gateway.path("ek-roots/maker.der"), maker.root()).unwrap();
    gateway.edit_pool(POOL, "endorsement = \"allowlist\"", "endorsement = \"any-tpm-of-a-trusted-maker\"");
    gateway.run();
    let site = Site {
        client: gateway.client.clone(),
        url: gateway.url(""),
        key: SpkiSha256::of_certificate(&gateway.certificate()).unwrap(),
        maker: Arc::new(maker),
        told: Arc::default(),
    };
    for _ in 0..kills {
        let mut nodes = JoinSet::new();
        (0..AT_ONCE).for_each(|_| drop(nodes.spawn(site.clone().boot())));
        site.moment().await;
        gateway.kill();
        nodes.join_all().await;
        gateway.run();
    }
    gateway.terminate();
    assert!(gateway.wait().success());
    let records = gateway.records();
    let recorded = |decision: &str, verdict: &str| -> BTreeSet<String> {
        let wanted = |record: &&Value| record["decision"] == decision && record["verdict"] == verdict;
        let identity = |record: &Value| record["identity"].as_str().unwrap().to_owned();
        records.iter().filter(wanted).map(identity).collect()
    };
    let told = |told: &Mutex<BTreeSet<String>>| told.lock().unwrap().clone();
    let (tickets, configs) = (told(&site.told.tickets), told(&site.told.configs));
    assert!(tickets.len() > kills, "{} attestations beside {kills} kills", tickets.len());
    assert_eq!(tickets.difference(&recorded("evidence", "trusted")).count(), 0);
    assert_eq!(configs.difference(&recorded("config", "served")).count(), 0);
    let audit = gateway.try_command(&["audit"]);
    let said = String::from_utf8_lossy(&audit.stdout).into_owned();
    assert!(audit.status.success(), "{}", said.lines().rev().take(5).collect::<String>());
}
