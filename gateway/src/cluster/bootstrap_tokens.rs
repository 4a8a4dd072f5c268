//! The cluster's bootstrap tokens as provisioning tokens, kept in step.
//!
//! A token here is a token in the cluster: a Secret of the type `bootstrap.kubernetes.io/token` in `kube-system`, called after the token's
//! id. It is for authentication, not being deleted, not expired (kubernetes/kubernetes,
//! `plugin/pkg/auth/authenticator/token/bootstrap/bootstrap.go`; kubernetes.io, "Authenticating with Bootstrap Tokens").

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use attest_cluster_api::cached_object::{CachedContent, CachedObject};
use attest_cluster_api::{ClusterClient, ClusterError, WatchCache, keep_by_fields};
use attest_store::{LeaderTask, Store};
use attest_system::clock::Clock;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use zeroize::Zeroizing;

use crate::credentials::tokens::{BootstrapToken, FollowError, PublishedToken, TokenStep, follow};

/// Name of the watch in messages.
const TOKENS: &str = "bootstrap tokens";
const NAMESPACE: &str = "kube-system";
const FIELDS: &str = "type=bootstrap.kubernetes.io/token";
/// Says for which pools a token is, separated by commas: of those that the settings name.
const POOLS_ANNOTATION: &str = "attest-gateway.internal/pools";
/// Interval of comparisons, also when nothing has changed: another gateway may have led, or the store was away.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Most tokens that are followed; a cluster has one for each occasion on which machines join.
const TOKENS_LIMIT: usize = 1000;

type TokenSecret = CachedObject<BootstrapTokenSecret>;

/// The parts of such a Secret that are kept: none of them can be shown as a credential.
#[derive(Clone)]
struct BootstrapTokenSecret(Result<BootstrapToken, FollowError>);

impl CachedContent for BootstrapTokenSecret {
    const KIND: &'static str = "Secret";
    const PLURAL: &'static str = "secrets";

    fn read(name: &str, object: &Value) -> Self {
        // In a list an object does not say what it is.
        let said = |member: &str| object.get(member).unwrap_or(&Value::Null);
        let object =
            json!({"apiVersion": "v1", "kind": "Secret", "type": said("type"), "data": said("data"), "stringData": said("stringData")});
        let manifest = Zeroizing::new(object.to_string());
        Self(BootstrapToken::read(name, &manifest))
    }
}

/// Returns the token that the store should have, if any; `pools` are those that such tokens may be for.
fn followed(secret: &TokenSecret, pools: &BTreeSet<String>) -> Result<Option<PublishedToken>, String> {
    if secret.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let token = secret.content.0.clone().map_err(|error| error.to_string())?;
    let said = secret.metadata.annotations.as_ref().and_then(|all| all.get(POOLS_ANNOTATION));
    let pools = match said {
        None => pools.clone(),
        Some(said) => {
            let named: BTreeSet<String> = said.split(',').map(|pool| pool.trim().to_owned()).collect();
            if !named.is_subset(pools) {
                return Err(format!(
                    "names other pools in {POOLS_ANNOTATION} than cluster.bootstrap_tokens does"
                ));
            }
            named
        }
    };
    Ok(Some(PublishedToken { token, pools }))
}

/// Checks once whether the tokens can be listed.
pub(super) async fn check_access(cluster: &ClusterClient) -> (&'static str, Result<(), ClusterError>) {
    let api: Api<TokenSecret> = Api::namespaced(cluster.client(), NAMESPACE);
    let one = ListParams::default().limit(1).fields(FIELDS);
    (TOKENS, cluster.ask(TOKENS, api.list_metadata(&one)).await.map(drop))
}

/// Keeps the store's tokens in step with the cluster's, for as long as it is polled. `store` records the changes.
pub async fn follow_bootstrap_tokens(cluster: Arc<ClusterClient>, pools: BTreeSet<String>, store: Arc<dyn Store>, clock: Clock) {
    let api: Api<TokenSecret> = Api::namespaced(cluster.client(), NAMESPACE);
    let (kept, keeping) = keep_by_fields(&api, (), FIELDS, TOKENS, cluster.health());
    let follower = BootstrapTokenTask {
        pools,
        clock,
        turn: LeaderTask::new(store, "follow the cluster's bootstrap tokens"),
        reported: BTreeMap::new(),
    };
    tokio::join!(keeping.run(), follower.run(kept));
}

struct BootstrapTokenTask {
    pools: BTreeSet<String>,
    clock: Clock,
    turn: LeaderTask,
    /// Problems that were reported already, by the Secret's or token's name.
    reported: BTreeMap<String, String>,
}

impl BootstrapTokenTask {
    async fn run(mut self, mut kept: WatchCache<TokenSecret>) {
        let mut every = tokio::time::interval(LOOK_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = kept.changed() => {}
                _ = every.tick() => {}
            }
            // Before all were listed nobody knows which are not there any more.
            if let Some(secrets) = kept.all() {
                self.follow(&secrets).await;
            }
        }
    }

    async fn follow(&mut self, secrets: &[Arc<TokenSecret>]) {
        let (mut wanted, mut wrong) = (Vec::new(), BTreeMap::new());
        for secret in secrets {
            match followed(secret, &self.pools) {
                Ok(followed) => wanted.extend(followed),
                Err(problem) => {
                    wrong.insert(secret.metadata.name.clone().unwrap_or_default(), problem);
                }
            }
        }
        if wanted.len() > TOKENS_LIMIT {
            wrong.insert(
                NAMESPACE.to_owned(),
                format!("more than {TOKENS_LIMIT} bootstrap tokens; the rest is ignored"),
            );
            wanted.truncate(TOKENS_LIMIT);
        }
        let steps = match self.turn.take().await {
            // Another gateway does it.
            Ok(None) => return,
            Ok(Some(store)) => follow(store, &wanted, self.clock.now()).await,
            Err(error) => Err(error),
        };
        match steps {
            Ok(steps) => {
                for (name, step) in steps {
                    match step {
                        TokenStep::Made => tracing::info!("token {name:?} imported from the cluster's bootstrap tokens"),
                        TokenStep::Changed => tracing::info!("token {name:?} updated: its bootstrap token has changed in the cluster"),
                        TokenStep::Ended => tracing::info!("token {name:?} revoked: its bootstrap token was removed from the cluster"),
                        TokenStep::Theirs => {
                            wrong.insert(
                                name,
                                "a bootstrap token of the cluster that was imported by hand: not updated from the cluster".to_owned(),
                            );
                        }
                    }
                }
            }
            Err(error) => {
                wrong.insert("the store".to_owned(), error.to_string());
            }
        }
        for (name, problem) in &wrong {
            if self.reported.get(name) != Some(problem) {
                tracing::warn!("cluster: {TOKENS}: {name}: {problem}");
            }
        }
        self.reported = wrong;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn secret() -> Value {
        let data = [
            ("token-id", "4hq7wz"),
            ("token-secret", "k2v9x0t8r1m5n3c6"),
            ("usage-bootstrap-authentication", "true"),
            ("expiration", "2100-01-01T00:00:00Z"),
        ];
        let data: serde_json::Map<String, Value> = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(data_encoding::BASE64.encode(value.as_bytes()))))
            .collect();
        json!({"metadata": {"name": "bootstrap-token-4hq7wz"}, "type": "bootstrap.kubernetes.io/token", "data": data})
    }

    /// Checks the pools of the token that the store should have, or the problem.
    fn check(change: impl Fn(&mut Value), expect: Result<Option<&[&str]>, &str>) {
        let mut changed = secret();
        change(&mut changed);
        let pools = ["infra", "worker"].map(str::to_owned).into();
        let secret: TokenSecret = serde_json::from_value(changed.clone()).unwrap();
        assert!(!format!("{secret:?} {:?}", secret.content.0).contains("k2v9"));
        match (followed(&secret, &pools), expect) {
            (Ok(found), Ok(expect)) => {
                let found = found.map(|followed| followed.pools.into_iter().collect::<Vec<_>>());
                assert_eq!(
                    found,
                    expect.map(|pools| pools.iter().map(|&pool| pool.to_owned()).collect()),
                    "{changed}"
                );
            }
            (Err(found), Err(expect)) => assert!(found.contains(expect) && !found.contains("k2v9"), "{found}"),
            (found, expect) => unreachable!("{found:?} in place of {expect:?}: {changed}"),
        }
    }

    #[test]
    fn refuses_secrets_that_are_no_valid_bootstrap_token() {
        check(|_| {}, Ok(Some(&["infra", "worker"])));
        check(
            |secret| secret["metadata"]["deletionTimestamp"] = json!("2026-11-24T12:00:00Z"),
            Ok(None),
        );
        check(
            |secret| secret["metadata"]["name"] = json!("bootstrap-token-4hq7wy"),
            Err("its name is not bootstrap-token-ID"),
        );
        check(
            |secret| secret["metadata"]["name"] = json!("mine"),
            Err("its name is not bootstrap-token-ID"),
        );
        check(|secret| secret["type"] = json!("Opaque"), Err("is not a bootstrap token"));
        check(|secret| secret["data"]["expiration"] = Value::Null, Err("has no expiration"));
        check(|secret| secret["data"]["expiration"] = json!("!"), Err("not Base64"));
        check(
            |secret| secret["data"]["usage-bootstrap-authentication"] = json!("ZmFsc2U="),
            Err("not for authentication"),
        );
        check(
            |secret| secret["data"]["token-secret"] = json!("c2hvcnQ="),
            Err("token-secret is not 16"),
        );
        check(|secret| secret["data"] = Value::Null, Err("not for authentication"));
        check(|secret| secret["data"] = json!(7), Err("is not a bootstrap token"));
    }

    #[test]
    fn refuses_a_secret_with_unconfigured_pools() {
        let named = |pools: &str| {
            let pools = pools.to_owned();
            move |secret: &mut Value| secret["metadata"]["annotations"] = json!({POOLS_ANNOTATION: pools})
        };
        check(named("worker"), Ok(Some(&["worker"])));
        check(named("worker, infra"), Ok(Some(&["infra", "worker"])));
        for other in ["master", "worker,master", "", "worker,", "*"] {
            check(named(other), Err("names other pools"));
        }
    }
}
