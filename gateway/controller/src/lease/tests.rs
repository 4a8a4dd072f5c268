use attest_store::settings::{ClusterAccess, ClusterApi};
use cloud_fixtures::kubernetes::{Disturbance, KubernetesApi};
use serde_json::json;

use super::*;

const NAMESPACE: &str = "attest-gateway";
const NAME: &str = "attest-controller";
/// Short, for tests: an answer takes milliseconds.
const TIMING: Timing = Timing {
    duration: Duration::from_secs(3),
    renew_deadline: Duration::from_secs(2),
    retry: Duration::from_millis(100),
};
/// Time for something that does not depend on a lease's end.
const SOON: Duration = Duration::from_secs(2);

struct Site {
    api: KubernetesApi,
    folder: tempfile::TempDir,
}

impl Site {
    fn start() -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let api = KubernetesApi::start();
        let rules = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]}]);
        api.grant(NAMESPACE, NAME, &rules);
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = api.kubeconfig(&api.token(NAMESPACE, NAME));
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        Self { api, folder }
    }

    async fn candidate(&self, host: &str) -> LeaseCandidate {
        let access = ClusterAccess {
            api: ClusterApi::Kubeconfig(self.folder.path().join("kubeconfig")),
            namespace: Some(NAMESPACE.to_owned()),
        };
        let cluster = ClusterClient::open(&access, Clock::System, Arc::new(())).await.unwrap();
        LeaseCandidate::new((Arc::new(cluster), Clock::System), NAME, host, TIMING).unwrap()
    }

    fn spec(&self) -> serde_json::Value {
        self.api.get("leases", NAMESPACE, NAME).unwrap()["spec"].clone()
    }
}

async fn acquires(candidate: &mut LeaseCandidate, within: Duration) -> bool {
    tokio::time::timeout(within, candidate.acquire()).await.is_ok()
}

#[tokio::test]
async fn second_candidate_leads_once_the_lease_is_released() {
    let site = Site::start();
    let (mut one, mut other) = (site.candidate("one").await, site.candidate("other").await);
    assert_ne!(site.candidate("one").await.identity(), one.identity());
    assert!(acquires(&mut one, SOON).await);
    assert_eq!(
        (&site.spec()["holderIdentity"], &site.spec()["leaseTransitions"]),
        (&json!(one.identity()), &json!(0))
    );
    // It renews for longer than the lease lasts.
    tokio::select! {
        lost = one.renew_until_lost() => panic!("{lost}"),
        taken = acquires(&mut other, TIMING.duration * 2) => assert!(!taken),
    }
    one.release().await;
    assert_eq!(site.spec()["holderIdentity"], "");
    assert!(acquires(&mut other, SOON).await);
    assert_eq!(
        (&site.spec()["holderIdentity"], &site.spec()["leaseTransitions"]),
        (&json!(other.identity()), &json!(1))
    );
}

#[tokio::test]
async fn expired_lease_is_taken_over_after_its_duration() {
    let site = Site::start();
    let (mut one, mut other) = (site.candidate("one").await, site.candidate("other").await);
    assert!(acquires(&mut one, SOON).await);
    let began = Instant::now();
    assert!(acquires(&mut other, TIMING.duration * 3).await);
    assert!(began.elapsed() >= TIMING.duration, "{:?}", began.elapsed());
    // It has stopped before that.
    let lost = tokio::time::timeout(SOON, one.renew_until_lost()).await.unwrap();
    assert!(matches!(lost, LostLeadership::NotRenewed { .. }), "{lost}");
    // What is not held is not released.
    one.release().await;
    assert_eq!(site.spec()["holderIdentity"], other.identity());
}

#[tokio::test]
async fn attack_18_leader_stops_before_its_unrenewed_lease_expires() {
    for disturbance in [Disturbance::Down, Disturbance::Status(503)] {
        let site = Site::start();
        let mut one = site.candidate("one").await;
        let began = Instant::now();
        assert!(acquires(&mut one, SOON).await);
        site.api.disturb(disturbance);
        let lost = tokio::time::timeout(TIMING.duration, one.renew_until_lost()).await.unwrap();
        assert!(matches!(lost, LostLeadership::NotRenewed { .. }), "{lost}");
        assert!(began.elapsed() < TIMING.duration, "{:?}", began.elapsed());
        site.api.recover();
        // Nobody else has it.
        assert!(acquires(&mut one, SOON).await);
    }
}

#[tokio::test]
async fn removed_lease_is_lost_and_created_again() {
    let site = Site::start();
    let mut one = site.candidate("one").await;
    assert!(acquires(&mut one, SOON).await);
    site.api.remove("leases", NAMESPACE, NAME);
    let lost = tokio::time::timeout(SOON, one.renew_until_lost()).await.unwrap();
    assert_eq!(lost, LostLeadership::Removed);
    assert!(acquires(&mut one, SOON).await);
}

#[tokio::test]
async fn overwritten_lease_is_lost_at_once() {
    let site = Site::start();
    let mut one = site.candidate("one").await;
    assert!(acquires(&mut one, SOON).await);
    let mut taken = site.api.get("leases", NAMESPACE, NAME).unwrap();
    taken["spec"]["holderIdentity"] = json!("other");
    site.api.put(taken);
    let lost = tokio::time::timeout(SOON, one.renew_until_lost()).await.unwrap();
    assert_eq!(lost, LostLeadership::Taken("other".to_owned()));
}
