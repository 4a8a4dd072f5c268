//! Data that changes while it is read: a refusal is decided by the state of one moment, like an acceptance.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use attest::protocol::CHALLENGE_PATH;
use attest::{EkDigest, EndorsedBy, NodeIdentity, UnixTime};
use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::credentials::tickets::{self, TicketConfig, TicketGrant};
use attest_gateway::settings::Settings;
use attest_machines::enrolment::{self, EkRecord};
use attest_machines::revocations;
use attest_store::Store;

use crate::support::interleaving::after;
use crate::support::kubelet::{self, Cluster, PATH, embedded, in_process};
use crate::support::{Answer, Gateway, POOL, bearer, challenge_request, digest, tpm};

const NAME: &str = "worker-0";

/// Reason to refuse a machine that asks for a name, until the reason is removed.
#[derive(Debug, Clone, Copy)]
enum Obstacle {
    NotListed,
    Revoked,
    NameRevoked,
    NameTaken,
    OtherName,
}

fn identity(ek: EkDigest) -> NodeIdentity {
    NodeIdentity::from_ek(ek)
}

fn other() -> NodeIdentity {
    identity("cd".repeat(32).parse().unwrap())
}

fn record(name: Option<&str>) -> EkRecord {
    EkRecord {
        name: name.map(str::to_owned),
        added: 1,
        pools: Vec::new(),
        note: None,
        removed: None,
    }
}

impl Obstacle {
    async fn is_put(self, store: &dyn Store, ek: EkDigest) {
        let revoke = async |who: String| revocations::revoke(store, &BTreeSet::from([who]), 1, None).await.unwrap();
        match self {
            Self::NotListed => assert!(enrolment::disallow(store, &ek.identity(), 1).await.unwrap()),
            Self::Revoked => revoke(identity(ek).to_string()).await,
            Self::NameRevoked => revoke(NAME.to_owned()).await,
            Self::NameTaken => enrolment::give_name(store, NAME, &other()).await.unwrap(),
            Self::OtherName => enrolment::give_name(store, "other", &identity(ek)).await.unwrap(),
        }
    }

    async fn remove(self, store: &dyn Store, ek: EkDigest) {
        let restore = async |who: &str| assert!(!revocations::restore(store, who, true).await.unwrap().is_empty());
        match self {
            Self::NotListed => enrolment::allow(store, ek, record(None), false).await.unwrap(),
            Self::Revoked => restore(identity(ek).as_str()).await,
            Self::NameRevoked => restore(NAME).await,
            Self::NameTaken => assert!(enrolment::forget_name(store, NAME).await.unwrap()),
            Self::OtherName => assert!(enrolment::forget_name(store, "other").await.unwrap()),
        }
    }

    const fn code(self) -> &'static str {
        match self {
            Self::NotListed => "ek-not-endorsed",
            Self::Revoked | Self::NameRevoked => "node-revoked",
            Self::NameTaken | Self::OtherName => "node-name-taken",
        }
    }
}

/// Sends a request to a gateway with an obstacle that is removed before that step. Also returns whether that step was reached.
async fn ask(
    gateway: &Gateway,
    (obstacle, ek): (Obstacle, EkDigest),
    steps: usize,
    request: impl AsyncFnOnce(&Gateway) -> Answer,
) -> (Answer, bool) {
    let store: Arc<dyn Store> = Arc::new(embedded(gateway));
    obstacle.is_put(&*store, ek).await;
    let done = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&done);
    let stand_in = after(&store, steps, move |store| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            obstacle.remove(&*store, ek).await;
        }
    });
    in_process(gateway, Arc::new(stand_in)).await;
    let answer = request(gateway).await;
    assert_eq!(store.pending().await.unwrap(), []);
    (answer, done.load(Ordering::Relaxed) == 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_reappraises_a_refusal_whose_cause_has_vanished() {
    use Obstacle::*;
    for obstacle in [NotListed, Revoked, NameRevoked, NameTaken, OtherName] {
        let mut trusted = 0;
        for steps in 0.. {
            let gateway = Gateway::init();
            let case = tpm();
            let ek: EkDigest = gateway.endorse(&case, &[]).parse().unwrap();
            let attest = async |gateway: &Gateway| gateway.attest(case, Some(NAME)).await;
            let (answer, done) = ask(&gateway, (obstacle, ek), steps, attest).await;
            if done && answer.status == 200 {
                assert_eq!(steps, trusted, "{obstacle:?}: it was refused before step {steps}");
                trusted += 1;
                continue;
            }
            // Nobody has taken it away, or only after that was decided.
            answer.refused(403, obstacle.code());
            if !done {
                break;
            }
        }
        // Before it is looked who vouches for its TPM, and before the transaction that decides.
        assert_eq!(trusted, 2, "{obstacle:?}");
    }
}

/// Returns a ticket of a machine that is trusted by the allowlist alone.
pub fn ticket(gateway: &Gateway, ek: EkDigest) -> String {
    let (seal, settings) = (
        SealKeyRing::open(&gateway.path("state/seal.key")).unwrap(),
        Settings::load(&gateway.path("gateway.toml")).unwrap(),
    );
    let earned = TicketGrant {
        identity: &identity(ek),
        instance: None,
        holder: None,
        name: None,
        pool: POOL,
        decision: &"0".repeat(32),
        endorsed_by: Some(&EndorsedBy::Allowlist),
        object: None,
        config: &TicketConfig::default(),
    };
    tickets::issue(&seal, &settings.ticket, &earned, UnixTime::now()).unwrap().text
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_44_refusals_are_decided_in_one_snapshot() {
    for (obstacle, asks_for_a_challenge) in [
        (Obstacle::NotListed, true),
        (Obstacle::Revoked, true),
        (Obstacle::NotListed, false),
        (Obstacle::Revoked, false),
    ] {
        let gateway = Gateway::init();
        let case = tpm();
        let ek: EkDigest = gateway.endorse(&case, &[]).parse().unwrap();
        let ticket = bearer(&ticket(&gateway, ek));
        let request = async |gateway: &Gateway| match asks_for_a_challenge {
            true => gateway.post(CHALLENGE_PATH, &challenge_request(&case, POOL)).await,
            false => gateway.config("/config/worker", &[&ticket]).await,
        };
        let (answer, done) = ask(&gateway, (obstacle, ek), 0, request).await;
        assert!(
            done && answer.status == 200,
            "{obstacle:?}: {}",
            String::from_utf8_lossy(&answer.body)
        );
    }
    let cluster = Cluster::new();
    let gateway = kubelet::init(&cluster);
    let get = async |gateway: &Gateway| kubelet::get(gateway, &cluster.kubelet(NAME), PATH).await;
    let ek = digest(&tpm()).parse().unwrap();
    let (answer, done) = ask(&gateway, (Obstacle::NameRevoked, ek), 0, get).await;
    assert!(done && answer.status == 200);
}
