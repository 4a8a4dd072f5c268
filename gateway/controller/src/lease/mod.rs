//! Leader election by a Lease of the cluster's API (coordination.k8s.io/v1), as client-go's `leaderelection` does it.
//!
//! A candidate compares no clocks: it takes a lease over once the object has not changed for the lease's duration, by its own monotonic clock. A
//! leader that cannot renew stops [`Timing::renew_deadline`] after its last renewal began, before any candidate can take over. Each write names the
//! version that was read, so that of two writers one fails.

use std::sync::Arc;
use std::time::Duration;

use attest_cluster_api::failures::FailureLog;
use attest_cluster_api::{ClusterClient, ClusterError};
use attest_system::clock::Clock;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use tokio::time::{Instant, sleep, timeout_at};

/// The name of the requests in messages.
const LEASES: &str = "leases";
/// HTTP status of a write to a version that is not the newest, and of the creation of an object that exists.
const CONFLICT: u16 = 409;

/// The durations of a lease. Those of client-go are the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Time for which an unchanged lease keeps others from it. Whole seconds, as the API stores it.
    pub duration: Duration,
    /// Time for which a leader leads on after the begin of its last renewal. Less than `duration`.
    pub renew_deadline: Duration,
    /// Interval of attempts to acquire or renew.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// A candidate for a lease, or its holder.
pub struct LeaseCandidate {
    cluster: Arc<ClusterClient>,
    clock: Clock,
    /// The lease's name, in the namespace of the cluster's access.
    name: String,
    /// The candidate's name, which no other candidate has.
    identity: String,
    timing: Timing,
    /// The version of another's lease that was read last, and when it was read first.
    observed: Option<(String, Instant)>,
    /// The lease that is held, as the API stored it, and when the request for it began.
    held: Option<(Lease, Instant)>,
}

/// Reason why a leader has lost the lease.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LostLeadership {
    /// Another candidate has taken the lease.
    #[error("{0} has acquired the lease")]
    Taken(String),
    /// The lease was removed: another candidate may create it again.
    #[error("the lease was deleted")]
    Removed,
    /// It was not renewed in time.
    #[error("not renewed within {} s: {reason}", .deadline.as_secs())]
    NotRenewed { deadline: Duration, reason: String },
}

impl LeaseCandidate {
    /// A candidate that holds nothing. Its identity is `host` with a random suffix.
    ///
    /// # Errors
    /// If there are no random bytes.
    pub fn new(
        (cluster, clock): (Arc<ClusterClient>, Clock),
        name: &str,
        host: &str,
        timing: Timing,
    ) -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut suffix = [0; 8];
        aws_lc_rs::rand::fill(&mut suffix)?;
        Ok(Self {
            cluster,
            clock,
            name: name.to_owned(),
            identity: format!("{host}_{}", data_encoding::HEXLOWER.encode(&suffix)),
            timing,
            observed: None,
            held: None,
        })
    }

    /// The name that the lease has as its holder.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Waits until this candidate holds the lease.
    pub async fn acquire(&mut self) {
        let mut failures = FailureLog::default();
        loop {
            match self.try_acquire().await {
                Ok(true) => return,
                Ok(false) => drop(failures.is_over()),
                Err(error) if failures.is_new(error.cause()) => {
                    tracing::warn!("cannot acquire lease {}; retrying: {}", self.name, error.reason())
                }
                Err(_) => {}
            }
            sleep(self.timing.retry).await;
        }
    }

    /// Renews the lease until that fails for too long, or another has it.
    pub async fn renew_until_lost(&mut self) -> LostLeadership {
        let mut reason = "no attempt was answered".to_owned();
        while let Some((lease, since)) = self.held.clone() {
            let deadline = since + self.timing.renew_deadline;
            let renewal = async {
                sleep(self.timing.retry).await;
                let began = Instant::now();
                (began, self.replace(&lease, &self.identity, self.timing.duration).await)
            };
            let lost = match timeout_at(deadline, renewal).await {
                Ok((began, Ok(renewed))) => {
                    self.held = Some((renewed, began));
                    None
                }
                Ok((_, Err(error))) if error.is_status(CONFLICT) => self.conflict().await,
                Ok((_, Err(error))) if error.is_not_found() => Some(LostLeadership::Removed),
                Ok((_, Err(error))) => {
                    reason = error.reason();
                    None
                }
                Err(_) => Some(LostLeadership::NotRenewed {
                    deadline: self.timing.renew_deadline,
                    reason: reason.clone(),
                }),
            };
            if let Some(lost) = lost {
                self.held = None;
                return lost;
            }
        }
        LostLeadership::Taken("nobody".to_owned())
    }

    /// Determines which candidate has changed a held lease: this candidate, by a renewal whose answer was lost, or another one.
    async fn conflict(&mut self) -> Option<LostLeadership> {
        let found = match tokio::time::timeout(self.timing.retry, self.get()).await {
            Ok(Ok(Some(found))) => found,
            Ok(Ok(None)) => return Some(LostLeadership::Removed),
            // The deadline decides.
            Ok(Err(_)) | Err(_) => return None,
        };
        if holder(&found) == self.identity {
            let since = self.held.as_ref().map_or_else(Instant::now, |(_, since)| *since);
            self.held = Some((found, since));
            return None;
        }
        Some(LostLeadership::Taken(holder(&found).to_owned()))
    }

    /// Gives up the lease, so that another candidate acquires it at once. Best effort: without it others wait for its duration.
    pub async fn release(&mut self) {
        if let Some((lease, _)) = self.held.take()
            && let Err(error) = self.replace(&lease, "", Duration::from_secs(1)).await
        {
            tracing::info!("cannot release lease {}; it expires by itself: {}", self.name, error.reason());
        }
    }

    /// Tries once to acquire the lease.
    async fn try_acquire(&mut self) -> Result<bool, ClusterError> {
        let began = Instant::now();
        let acquired = match self.get().await? {
            None => self.create().await,
            Some(found) if !self.is_free(&found) => return Ok(false),
            Some(found) => self.replace(&found, &self.identity, self.timing.duration).await,
        };
        match acquired {
            Ok(lease) => {
                self.observed = None;
                self.held = Some((lease, began));
                Ok(true)
            }
            // Another candidate was faster.
            Err(error) if error.is_status(CONFLICT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a lease has no other holder, or has not changed for its duration since this candidate has read it first.
    fn is_free(&mut self, found: &Lease) -> bool {
        let version = found.metadata.resource_version.clone().unwrap_or_default();
        let now = Instant::now();
        let since = match &self.observed {
            Some((known, since)) if *known == version => *since,
            _ => now,
        };
        self.observed = Some((version, since));
        let seconds = found.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let duration = seconds.and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
        ["", &self.identity].contains(&holder(found)) || now.duration_since(since) > duration.unwrap_or(self.timing.duration)
    }

    fn api(&self) -> Api<Lease> {
        Api::namespaced(self.cluster.client(), self.cluster.namespace())
    }

    async fn get(&self) -> Result<Option<Lease>, ClusterError> {
        self.cluster.ask(LEASES, self.api().get_opt(&self.name)).await
    }

    async fn create(&self) -> Result<Lease, ClusterError> {
        let now = self.now();
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: seconds(self.timing.duration),
                acquire_time: now.clone(),
                renew_time: now,
                lease_transitions: Some(0),
                ..LeaseSpec::default()
            }),
        };
        self.cluster.ask(LEASES, self.api().create(&PostParams::default(), &lease)).await
    }

    /// Replaces the lease, if it is the version that was read: renewed, taken over, or without a holder.
    async fn replace(&self, read: &Lease, identity: &str, duration: Duration) -> Result<Lease, ClusterError> {
        let mut lease = read.clone();
        let is_same = holder(read) == identity;
        let spec = lease.spec.get_or_insert_default();
        let now = self.now();
        spec.holder_identity = Some(identity.to_owned());
        spec.lease_duration_seconds = seconds(duration);
        spec.renew_time.clone_from(&now);
        if !is_same && !identity.is_empty() {
            spec.acquire_time = now;
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default().saturating_add(1));
        }
        let replaced = self.api();
        self.cluster
            .ask(LEASES, replaced.replace(&self.name, &PostParams::default(), &lease))
            .await
    }

    /// The time, for people: no candidate decides by it.
    fn now(&self) -> Option<MicroTime> {
        let seconds = i64::try_from(self.clock.now().as_secs()).ok()?;
        Timestamp::from_second(seconds).ok().map(MicroTime)
    }
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn seconds(duration: Duration) -> Option<i32> {
    i32::try_from(duration.as_secs()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
