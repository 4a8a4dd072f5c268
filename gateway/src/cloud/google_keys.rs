//! Keys that Google signs identity tokens with: fetched, kept for as long as Google allows, and for some time through an outage; or read
//! from a file.
//!
//! The cost of a dead or slow Google is bounded: one fetch at a time, one every half minute, and a bounded wait of each request. It must
//! never make a token valid that Google's keys have not signed. So an answer that cannot be read is discarded as a whole, and the valid
//! keys stay.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use attest::UnixTime;
use attest::gcp::{self, GoogleKeys, JWKS_LIMIT_BYTES};
use attest_system::clock::rfc3339;
use attest_system::files::{self, SMALL_FILE_LIMIT_BYTES};
use reqwest::header::HeaderMap;

use super::freshness::fresh_seconds;
use super::outgoing::Outgoing;
use super::single_flight::{Flight, Flights};
use super::{CloudSettingsError, CloudUnavailable};
use crate::metrics::{FetchResult, Metrics};

/// Name of the keys in errors.
const WHAT: &str = "Google's keys";
/// Least time for which fetched keys count as fresh, whatever Google's answer allows. So an answer that must not be kept at all does not
/// cost a fetch for each node.
const FRESH_LEAST_SECONDS: u64 = 300;
/// Longest time for which they count as fresh. Google allows some hours; a key that it withdraws is to be gone within a day.
const FRESH_MOST_SECONDS: u64 = 86_400;
/// Time for which keys are used after they have ceased to be fresh, if no newer ones can be had. An administrator knows of an outage that
/// lasts longer. An attacker who keeps the gateway from reaching Google gains no more than this: for so long a withdrawn key is believed.
const KEPT_SECONDS: u64 = 86_400;
/// Pause after a failed fetch: a Google that is down costs two requests in this time, however many nodes boot.
const RETRY_SECONDS: u64 = 30;
/// Least time between fetches because of unknown key ids. Any client can send one. A node whose token is signed with a key of the last
/// seconds is refused until then, and boots again.
const UNKNOWN_KEY_SECONDS: u64 = 30;

/// Keys, and what they were read from.
#[derive(Debug)]
pub struct GoogleKeysInUse {
    pub keys: Arc<GoogleKeys>,
    /// The JWK set as it came, for the record.
    pub jwks: Vec<u8>,
    /// Time of the request for them, in seconds since 1970. 0 for those of a file.
    fetched: u64,
    /// Last second in which they are fresh. The end of time for those of a file.
    fresh_until: u64,
}

impl GoogleKeysInUse {
    /// Returns whether the keys are fresh. A clock that was set back makes keys stale, not eternal.
    const fn is_fresh(&self, now: u64) -> bool {
        self.fetched <= now && now <= self.fresh_until
    }

    /// Returns whether newer keys are to be fetched while these are still fresh: in the last quarter.
    const fn is_due(&self, now: u64) -> bool {
        let quarter = self.fresh_until.saturating_sub(self.fetched) / 4;
        now > self.fresh_until.saturating_sub(quarter)
    }

    const fn usable_until(&self) -> u64 {
        self.fresh_until.saturating_add(KEPT_SECONDS)
    }
}

/// Source of the keys.
#[derive(Debug)]
enum KeySource {
    File(PathBuf),
    Google(Outgoing),
}

/// The keys in use.
pub(super) struct Keyring {
    source: KeySource,
    wait: Duration,
    metrics: Arc<Metrics>,
    pub(super) current: ArcSwapOption<GoogleKeysInUse>,
    flights: Flights<(), ()>,
    attempts: Mutex<Attempts>,
}

/// State of the last fetch.
#[derive(Debug, Default)]
struct Attempts {
    /// Start of the last fetch, in seconds since 1970.
    last: Option<u64>,
    /// Error of the last fetch, if it failed.
    problem: Option<String>,
    /// Set if the log has said that the keys are too old.
    too_old_said: bool,
}

impl Attempts {
    /// Returns whether the last fetch began within `seconds` of `now`, before or after it.
    fn tried_within(&self, seconds: u64, now: u64) -> bool {
        self.last.is_some_and(|last| now.abs_diff(last) < seconds)
    }
}

impl Keyring {
    /// Reads the file, if there is one; sends no request.
    pub(super) fn open(
        file: Option<&Path>,
        outgoing: &Outgoing,
        wait: Duration,
        metrics: Arc<Metrics>,
    ) -> Result<Self, CloudSettingsError> {
        let (source, keys) = match file {
            Some(path) => (KeySource::File(path.to_owned()), Some(Arc::new(read(path)?))),
            None => (KeySource::Google(outgoing.clone()), None),
        };
        Ok(Self {
            source,
            wait,
            metrics,
            current: ArcSwapOption::new(keys),
            flights: Flights::default(),
            attempts: Mutex::default(),
        })
    }

    /// Returns the path of the file, if the keys are from one.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.source {
            KeySource::File(path) => Some(path),
            KeySource::Google(_) => None,
        }
    }

    /// Returns the keys to verify with.
    pub(super) async fn get(self: &Arc<Self>, now: UnixTime) -> Result<Arc<GoogleKeysInUse>, CloudUnavailable> {
        let now = now.as_secs();
        if let Some(keys) = self.current.load_full().filter(|keys| keys.is_fresh(now)) {
            if keys.is_due(now) {
                // Nobody waits for it.
                drop(self.fetch(now, RETRY_SECONDS));
            }
            return Ok(keys);
        }
        let in_time = match self.fetch(now, self.retry_seconds()) {
            Some(flight) => tokio::time::timeout(self.wait, flight).await.is_ok(),
            None => true,
        };
        match self.current.load_full() {
            Some(keys) if keys.is_fresh(now) => Ok(keys),
            Some(keys) if now <= keys.usable_until() => {
                self.metrics.google_keys_stale(true);
                Ok(keys)
            }
            _ if !in_time => Err(CloudUnavailable::Slow {
                what: WHAT,
                limit: self.wait,
            }),
            Some(keys) => Err(self.too_old(&keys, now)),
            None => Err(CloudUnavailable::Failed {
                what: WHAT,
                problem: self.problem(),
            }),
        }
    }

    /// Returns other keys than those, after a key was not among them. `None` without such keys, or if it is too early to ask again.
    pub(super) async fn newer(self: &Arc<Self>, than: &Arc<GoogleKeysInUse>, now: UnixTime) -> Option<Arc<GoogleKeysInUse>> {
        let now = now.as_secs();
        let newer = || self.current.load_full().filter(|current| current.keys != than.keys);
        if newer().is_none() {
            let flight = self.fetch(now, UNKNOWN_KEY_SECONDS)?;
            // What is there after the time is what counts, whether it came or not.
            drop(tokio::time::timeout(self.wait, flight).await);
        }
        newer().filter(|current| now <= current.usable_until())
    }

    /// Reads the file again. What is wrong with it leaves the keys as they were.
    pub(super) fn reload(&self) -> Result<KeysReload, CloudSettingsError> {
        let Some(path) = self.file() else {
            return Ok(KeysReload::Unchanged);
        };
        let new = read(path)?;
        if self.current.load().as_ref().is_some_and(|current| current.jwks == new.jwks) {
            return Ok(KeysReload::Unchanged);
        }
        let ids = ids(&new.keys);
        self.current.store(Some(Arc::new(new)));
        Ok(KeysReload::Changed(ids))
    }

    /// Returns the pause before another fetch: there is one after a failure, and none otherwise.
    fn retry_seconds(&self) -> u64 {
        if self.attempts().problem.is_some() { RETRY_SECONDS } else { 0 }
    }

    /// Returns the fetch under way, or begins another if the last one did not begin within `pause` seconds.
    fn fetch(self: &Arc<Self>, now: u64, pause: u64) -> Option<Flight<()>> {
        let KeySource::Google(outgoing) = &self.source else { return None };
        self.flights.join((), || {
            let mut attempts = self.attempts();
            if attempts.tried_within(pause, now) {
                return None;
            }
            attempts.last = Some(now);
            let (keyring, outgoing) = (Arc::clone(self), outgoing.clone());
            Some(async move {
                match fetch(&outgoing, now).await {
                    Ok(keys) => keyring.succeeded(keys),
                    Err(problem) => keyring.failed(problem),
                }
            })
        })
    }

    fn succeeded(&self, keys: GoogleKeysInUse) {
        self.metrics.cloud_fetched("google-keys", FetchResult::Answered);
        self.metrics.google_keys_stale(false);
        let (ids, until) = (ids(&keys.keys), rfc3339(keys.fresh_until));
        let keys = Arc::new(keys);
        let before = self.current.swap(Some(Arc::clone(&keys)));
        let changed = before.is_none_or(|before| before.keys != keys.keys);
        let mut attempts = self.attempts();
        attempts.too_old_said = false;
        if attempts.problem.take().is_some() {
            tracing::info!("fetched Google's keys after a failure: {ids}, fresh until {until}");
        } else if changed {
            tracing::info!("fetched Google's keys: {ids}, fresh until {until}");
        }
    }

    fn failed(&self, problem: String) {
        self.metrics.cloud_fetched("google-keys", FetchResult::Failed);
        let mut attempts = self.attempts();
        // Once for each outage, and again when it has another cause.
        if attempts.problem.as_ref() != Some(&problem) {
            match self.current.load_full() {
                Some(keys) => tracing::warn!(
                    "cannot fetch Google's keys: {problem}; using those fetched at {} until {}",
                    rfc3339(keys.fetched),
                    rfc3339(keys.usable_until())
                ),
                None => tracing::error!(
                    "cannot fetch Google's keys: {problem}; refusing Google identity tokens until it succeeds. To use a file instead, set gcp.jwks in gateway.toml"
                ),
            }
        }
        attempts.problem = Some(problem);
    }

    fn too_old(&self, keys: &GoogleKeysInUse, now: u64) -> CloudUnavailable {
        let until = keys.usable_until();
        let mut attempts = self.attempts();
        let problem = attempts.problem.clone().unwrap_or_else(|| NOT_TRIED.to_owned());
        if !attempts.too_old_said {
            attempts.too_old_said = true;
            tracing::error!(
                "Google's keys fetched at {} expired at {}; refusing Google identity tokens until new keys are fetched: {problem}",
                rfc3339(keys.fetched),
                rfc3339(until)
            );
        }
        CloudUnavailable::TooOld {
            what: WHAT,
            until,
            now,
            problem,
        }
    }

    fn problem(&self) -> String {
        self.attempts().problem.clone().unwrap_or_else(|| NOT_TRIED.to_owned())
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the moment in which the gateway is stopped.
const NOT_TRIED: &str = "they were not fetched";

/// Result of reading the file again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeysReload {
    Unchanged,
    /// The ids of the keys.
    Changed(String),
}

/// Fetches the discovery document, then the keys. The error is for the log.
async fn fetch(outgoing: &Outgoing, now: u64) -> Result<GoogleKeysInUse, String> {
    let discovery = outgoing
        .get(gcp::DISCOVERY_URL, "application/json", gcp::DISCOVERY_LIMIT_BYTES)
        .await?;
    let url = gcp::keys_url(&discovery.body).map_err(|error| format!("{}: {error}", gcp::DISCOVERY_URL))?;
    let answer = outgoing.get(&url, "application/json", JWKS_LIMIT_BYTES).await?;
    let keys = GoogleKeys::from_jwks(&answer.body).map_err(|error| format!("{url}: {error}"))?;
    Ok(GoogleKeysInUse {
        keys: Arc::new(keys),
        jwks: answer.body,
        fetched: now,
        fresh_until: now.saturating_add(fresh(&answer.headers)),
    })
}

fn fresh(headers: &HeaderMap) -> u64 {
    fresh_seconds(headers).unwrap_or(0).clamp(FRESH_LEAST_SECONDS, FRESH_MOST_SECONDS)
}

/// Reads the keys of a file.
fn read(path: &Path) -> Result<GoogleKeysInUse, CloudSettingsError> {
    let jwks = files::read(path, SMALL_FILE_LIMIT_BYTES).map_err(|source| CloudSettingsError::JwksFile {
        path: path.to_owned(),
        source,
    })?;
    let keys = GoogleKeys::from_jwks(&jwks).map_err(|source| CloudSettingsError::Jwks {
        path: path.to_owned(),
        source,
    })?;
    Ok(GoogleKeysInUse {
        keys: Arc::new(keys),
        jwks,
        fetched: 0,
        fresh_until: u64::MAX,
    })
}

fn ids(keys: &GoogleKeys) -> String {
    keys.key_ids().collect::<Vec<_>>().join(", ")
}
