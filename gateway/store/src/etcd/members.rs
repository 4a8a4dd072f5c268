//! Members of an etcd cluster: a request goes to one of them, and to the next if that one does not answer.

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use attest_system::causes::with_causes;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::super::StoreError;
use super::member::{EtcdMember, EtcdUser};
use crate::settings::EtcdSettings;

/// Pause before all members are asked again.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Interval of probes on an idle connection: not more often than etcd allows (`--grpc-keepalive-min-time`, 5 s).
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The least time that a member gets for an answer.
const LEAST_ATTEMPT: Duration = Duration::from_millis(200);

/// Failure of a request, and whether it would be the same at each member.
#[derive(Debug)]
pub(super) struct MemberFailure {
    pub endpoint: String,
    pub problem: String,
    pub kind: FailureKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The outcome is unknown: there was no answer, or it says so.
    Unanswered,
    /// The quota is used up. Whether it was done is not known: also what is found to be too much is done.
    NoSpace,
    /// The request was not done: it is too large.
    TooLarge,
    /// The request was not done: its lease is over.
    NoLease,
    /// The values at that revision were compacted.
    Compacted,
    /// The request was not done, and will not be.
    Refused,
}

/// All that is known of the cluster.
#[derive(Debug)]
pub(super) struct Members {
    members: Vec<EtcdMember>,
    /// Index of the member that has answered last.
    preferred: AtomicUsize,
    /// Time limit for one member, if there are others.
    attempt: Duration,
    /// Endpoints and prefix, for errors.
    pub place: String,
}

impl Members {
    /// Reads certificates and keys; makes no connection.
    pub(super) fn from_settings(settings: &EtcdSettings) -> Result<Self, StoreError> {
        let count = u32::try_from(settings.endpoints.len().max(1)).unwrap_or(u32::MAX);
        let attempt = (settings.timeout / count).max(LEAST_ATTEMPT);
        let mut options = ConnectOptions::new()
            .with_connect_timeout(attempt)
            .with_keep_alive(KEEP_ALIVE, attempt)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let user = settings.user.clone().map(|(name, password_file)| EtcdUser { name, password_file });
        if let Some(user) = &user {
            user.password().map_err(|source| io(&user.password_file, source))?;
        }
        if settings.is_encrypted() {
            options = options.with_tls(tls(settings)?);
        }
        let member = |endpoint: &String| EtcdMember::new(endpoint, options.clone(), user.clone());
        Ok(Self {
            members: settings.endpoints.iter().map(member).collect(),
            preferred: AtomicUsize::new(0),
            attempt,
            place: settings.place(),
        })
    }

    /// Asks one member after the other until one answers, or until then. For what may be asked twice.
    pub(super) async fn ask<T, F>(&self, until: Instant, ask: impl Fn(Client) -> F) -> Result<T, MemberFailure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            let mut last = None;
            for _ in &self.members {
                match self.ask_one(until, &ask).await {
                    Err(failure) if failure.kind == FailureKind::Unanswered => last = Some(failure),
                    answered => return answered,
                }
            }
            let again = Instant::now() + ROUND_PAUSE;
            if again >= until {
                return Err(last.unwrap_or_else(|| unanswered(&self.place, "there are no endpoints".to_owned())));
            }
            sleep_until(again).await;
        }
    }

    /// Asks a member once. If that does not answer, the next one is asked the next time.
    pub(super) async fn ask_one<T, F>(&self, until: Instant, ask: impl Fn(Client) -> F) -> Result<T, MemberFailure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let preferred = self.preferred.load(Ordering::Relaxed);
        let Some(member) = self.members.get(preferred % self.members.len().max(1)) else {
            return Err(unanswered(&self.place, "there are no endpoints".to_owned()));
        };
        let attempt = until.min(Instant::now() + self.attempt);
        let answered = timeout_at(attempt, member.ask(ask)).await;
        let failure = match answered {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => MemberFailure {
                endpoint: member.endpoint.clone(),
                problem: text(&error),
                kind: kind(&error),
            },
            Err(_) => unanswered(&member.endpoint, "there was no answer in time".to_owned()),
        };
        if failure.kind == FailureKind::Unanswered {
            let next = preferred.wrapping_add(1);
            // Somebody else may have gone on already.
            let _ = self
                .preferred
                .compare_exchange(preferred, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        Err(failure)
    }

    /// Every member by its endpoint, and what it answers.
    pub(super) async fn ask_each<T, F>(&self, until: Instant, ask: impl Fn(Client) -> F) -> Vec<(String, Result<T, MemberFailure>)>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let each = self.members.iter().map(|member| async {
            let answer = match timeout_at(until, member.ask(&ask)).await {
                Ok(answer) => answer.map_err(|error| MemberFailure {
                    endpoint: member.endpoint.clone(),
                    problem: text(&error),
                    kind: kind(&error),
                }),
                Err(_) => Err(unanswered(&member.endpoint, "there was no answer in time".to_owned())),
            };
            (member.endpoint.clone(), answer)
        });
        futures_util::future::join_all(each).await
    }

    /// The store's words for it. `doubt`: whether it was done is not known.
    pub(super) fn explain(&self, failure: &MemberFailure, doubt: bool) -> StoreError {
        let MemberFailure { endpoint, problem, kind } = failure;
        let done = if doubt {
            "it is unknown whether the transaction was committed: "
        } else {
            ""
        };
        let (engine, place) = ("etcd", self.place.clone());
        let (said, advice) = (format!("{done}{endpoint}: {problem}"), advice(*kind, problem).to_owned());
        match kind {
            // A certificate that is not taken is not taken later, either.
            FailureKind::Unanswered if !is_of_tls(problem) => StoreError::Unanswered {
                engine,
                place,
                problem: said,
                advice,
            },
            _ => StoreError::Engine {
                engine,
                place,
                problem: said,
                advice,
            },
        }
    }
}

fn unanswered(endpoint: &str, problem: String) -> MemberFailure {
    MemberFailure {
        endpoint: endpoint.to_owned(),
        problem,
        kind: FailureKind::Unanswered,
    }
}

fn read(path: &Path) -> Result<String, StoreError> {
    files::read_text(path, SMALL_FILE_LIMIT_BYTES).map_err(|source| io(path, source))
}

fn io(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::Io {
        path: path.to_owned(),
        source,
    }
}

fn tls(settings: &EtcdSettings) -> Result<TlsOptions, StoreError> {
    let mut tls = TlsOptions::new();
    if let Some(ca) = &settings.ca {
        tls = tls.ca_certificate(Certificate::from_pem(read(ca)?));
    }
    if let Some((certificate, key)) = &settings.identity {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(tls)
}

/// The client's errors name no cause.
fn text(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => {
            let causes = std::error::Error::source(status).map(with_causes);
            match causes {
                Some(causes) if !status.message().contains(&causes) => format!("{}: {causes}", status.message()),
                _ => status.message().to_owned(),
            }
        }
        Error::TransportError(error) => with_causes(error),
        other => other.to_string(),
    }
}

/// Returns the kind by the name of the status code: its type is of tonic, which only the client depends on.
fn kind(error: &Error) -> FailureKind {
    let Error::GRpcStatus(status) = error else {
        return match error {
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => FailureKind::Refused,
            _ => FailureKind::Unanswered,
        };
    };
    let message = status.message();
    match format!("{:?}", status.code()).as_str() {
        "InvalidArgument" if message.contains("too large") || message.contains("too many operations") => FailureKind::TooLarge,
        "ResourceExhausted" if message.contains("larger than max") => FailureKind::TooLarge,
        "ResourceExhausted" if message.contains("too many requests") => FailureKind::Unanswered,
        "ResourceExhausted" if message.contains("space exceeded") => FailureKind::NoSpace,
        "NotFound" if message.contains("lease") => FailureKind::NoLease,
        "OutOfRange" if message.contains("compacted") => FailureKind::Compacted,
        "InvalidArgument" | "ResourceExhausted" | "FailedPrecondition" | "PermissionDenied" | "Unauthenticated" | "NotFound"
        | "Unimplemented" => FailureKind::Refused,
        _ => FailureKind::Unanswered,
    }
}

fn is_of_tls(problem: &str) -> bool {
    let words = ["certificate", "Certificate", "UnknownIssuer", "UnknownCA", "tls"];
    words.iter().any(|word| problem.contains(word))
}

fn advice(kind: FailureKind, problem: &str) -> &'static str {
    let says = |word: &str| problem.contains(word);
    if is_of_tls(problem) {
        return "check store.ca, store.certificate and store.key, the issuer of etcd's certificate, and all expiry dates";
    }
    if says("permission denied") || says("authentication") || says("user name") || says("auth token") {
        return "check store.user and store.password_file, and that user's permissions below store.prefix (`etcdctl user get`)";
    }
    match kind {
        FailureKind::NoSpace => {
            "etcd's quota is used up (--quota-backend-bytes), so it refuses writes: compact and defragment it, then disarm its alarm NOSPACE \
             (etcdctl compact, defrag, alarm disarm); set --auto-compaction-retention to keep it small"
        }
        FailureKind::Compacted => {
            "etcd has compacted the revision that this read began with: retry; if this continues, raise etcd's retention \
             (--auto-compaction-retention)"
        }
        FailureKind::TooLarge => "the request is too large: raise etcd's --max-request-bytes",
        _ => "check that most members of etcd run and reach each other (`etcdctl endpoint status`), and check store.endpoints",
    }
}
