//! Metrics, in the text format that Prometheus reads.

use std::fmt;

use attest_log::{LogState, Observer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// All metrics of the gateway.
pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    would_refuse: Family<WouldRefuseLabels, Counter>,
    pool_broken: Family<PoolLabels, Gauge>,
    pool_reloads: Family<ReloadLabels, Counter>,
    guesses_ignored: Counter,
    challenges_over_budget: Counter,
    decisions_counted: Counter,
    certificates_broken: Gauge,
    certificate_expiry: Family<CertificateLabels, Gauge>,
    tls_refused_by_client: Counter,
    handshakes_waiting: Gauge,
    cloud_fetches: Family<FetchLabels, Counter>,
    google_keys_stale: Gauge,
    clock_ahead: Gauge,
    log_broken: Gauge,
    log_moved: Gauge,
    log_incomplete: Gauge,
    log_segments_held: Gauge,
    cluster_watch_broken: Family<RequestLabels, Gauge>,
    attested_nodes_waiting: Gauge,
    new_values: Family<EventLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    decision: String,
    verdict: String,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WouldRefuseLabels {
    pool: String,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    pool: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    certificate: &'static str,
    fingerprint: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    pool: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FetchLabels {
    what: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    event: &'static str,
}

/// Result of one of the outgoing requests of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchResult {
    /// An answer that could be used.
    Answered,
    /// None, or none that could be used.
    Failed,
    /// It was not sent, because there were too many.
    Limited,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("attest_gateway");
        let decisions = Family::default();
        registry.register(
            "decisions",
            "Recorded decisions, by kind, verdict and the code of a refusal",
            decisions.clone(),
        );
        let would_refuse = Family::default();
        registry.register(
            "would_refuse",
            "Attestations that an observing pool accepted and would have refused, by code",
            would_refuse.clone(),
        );
        let pool_broken = Family::default();
        registry.register(
            "pool_source_broken",
            "1 while a pool's source cannot be read: the gateway serves its last good state, if there is one",
            pool_broken.clone(),
        );
        let pool_reloads = Family::default();
        registry.register(
            "pool_reloads",
            "Changes of a pool's source, by result: served or broken",
            pool_reloads.clone(),
        );
        let guesses_ignored = Counter::default();
        registry.register(
            "guesses_ignored",
            "Wrong tokens, tickets and client certificates beyond the rate limit of their source: answered 503, not recorded",
            guesses_ignored.clone(),
        );
        let challenges_over_budget = Counter::default();
        registry.register(
            "challenges_over_budget",
            "Challenges refused by rate limits: too many in all, and too many from the same source",
            challenges_over_budget.clone(),
        );
        let decisions_counted = Counter::default();
        registry.register(
            "decisions_counted",
            "Decisions in aggregated records of the attestation log: about unauthenticated clients, or genuine but unknown machines",
            decisions_counted.clone(),
        );
        let certificates_broken = Gauge::default();
        registry.register(
            "certificates_broken",
            "1 while the certificates' files cannot be used: the gateway serves with the previous certificate",
            certificates_broken.clone(),
        );
        let certificate_expiry = Family::default();
        registry.register(
            "certificate_expiry_seconds",
            "Expiry of a certificate in use, in seconds since 1970",
            certificate_expiry.clone(),
        );
        let tls_refused_by_client = Counter::default();
        registry.register(
            "tls_refused_by_client",
            "Handshakes in which the client refused the MCS certificate",
            tls_refused_by_client.clone(),
        );
        let handshakes_waiting = Gauge::default();
        registry.register(
            "handshakes_waiting",
            "Connections that wait for their handshake: more than this gateway can serve at once",
            handshakes_waiting.clone(),
        );
        let cloud_fetches = Family::default();
        registry.register(
            "cloud_fetches",
            "The gateway's own requests to clouds, by subject and result: answered, failed, limited",
            cloud_fetches.clone(),
        );
        let google_keys_stale = Gauge::default();
        registry.register(
            "google_keys_stale",
            "1 while Google's keys are used beyond their freshness, because newer ones cannot be fetched",
            google_keys_stale.clone(),
        );
        let clock_ahead = Gauge::default();
        registry.register(
            "clock_ahead_seconds",
            "Seconds by which the clock is ahead of the store time: the clock has jumped, or the gateway was stopped",
            clock_ahead.clone(),
        );
        let log_broken = Gauge::default();
        registry.register(
            "log_broken",
            "1 while the attestation log cannot be written: nodes get 503 until it can",
            log_broken.clone(),
        );
        let log_moved = Gauge::default();
        registry.register(
            "log_moved",
            "1 while the attestation log was moved and no new file exists: readers of its path miss new records",
            log_moved.clone(),
        );
        let log_incomplete = Gauge::default();
        registry.register(
            "log_incomplete",
            "1 since the attestation log was found to lack signed lines of the store's checkpoint, or another gateway to write its chain",
            log_incomplete.clone(),
        );
        let log_segments_held = Gauge::default();
        registry.register(
            "log_segments_held",
            "Expired segments of the attestation log that are kept, because a decision of their time is pending",
            log_segments_held.clone(),
        );
        let cluster_watch_broken = Family::default();
        registry.register(
            "cluster_watch_broken",
            "1 while a watch of the cluster's API fails: the gateway uses cached state",
            cluster_watch_broken.clone(),
        );
        let attested_nodes_waiting = Gauge::default();
        registry.register(
            "attested_nodes_waiting",
            "Machines with decisions that are not published to the cluster's API yet",
            attested_nodes_waiting.clone(),
        );
        let new_values = Family::default();
        registry.register(
            "new_values",
            "Machines that booted values without a reference value, by outcome: waiting, accepted, refused, or the administrator was asked",
            new_values.clone(),
        );
        Self {
            log_broken,
            log_moved,
            log_incomplete,
            log_segments_held,
            cluster_watch_broken,
            attested_nodes_waiting,
            new_values,
            registry,
            decisions,
            would_refuse,
            pool_broken,
            pool_reloads,
            guesses_ignored,
            challenges_over_budget,
            decisions_counted,
            certificates_broken,
            certificate_expiry,
            tls_refused_by_client,
            handshakes_waiting,
            cloud_fetches,
            google_keys_stale,
            clock_ahead,
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Observer for Metrics {
    fn log_state(&self, LogState { is_broken, is_moved }: LogState) {
        self.log_broken.set(i64::from(is_broken));
        self.log_moved.set(i64::from(is_moved));
    }
}

impl Metrics {
    /// Counts a decision, recorded or counted there: its kind, its verdict and the code of a refusal, in the attestation log's words.
    pub fn decided(&self, decision: String, verdict: String, code: Option<&str>) {
        let labels = DecisionLabels {
            decision,
            verdict,
            code: code.unwrap_or_default().to_owned(),
        };
        self.decisions.get_or_create(&labels).inc();
    }

    /// Counts an attestation that was accepted because its pool observes, by a code that it would have been refused with.
    pub fn would_refuse(&self, pool: &str, code: &str) {
        let (pool, code) = (pool.to_owned(), code.to_owned());
        self.would_refuse.get_or_create(&WouldRefuseLabels { pool, code }).inc();
    }

    /// Sets whether a pool's source cannot be read.
    pub fn pool_broken(&self, pool: &str, broken: bool) {
        self.pool_broken.get_or_create(&labels(pool)).set(i64::from(broken));
    }

    /// Counts a change of a pool's source.
    pub fn pool_reloaded(&self, pool: &str, served: bool) {
        let labels = ReloadLabels {
            pool: pool.to_owned(),
            result: if served { "served" } else { "broken" },
        };
        self.pool_reloads.get_or_create(&labels).inc();
    }

    /// Counts a wrong credential that was not recorded.
    pub fn guess_ignored(&self) {
        self.guesses_ignored.inc();
    }

    /// Counts a challenge that was not given.
    pub fn challenge_over_budget(&self) {
        self.challenges_over_budget.inc();
    }

    /// Counts a decision that is not recorded by itself.
    pub fn decision_counted(&self) {
        self.decisions_counted.inc();
    }

    /// Forgets a pool that is there no longer.
    pub fn pool_gone(&self, pool: &str) {
        self.pool_broken.remove(&labels(pool));
    }

    /// Sets whether the certificates' files cannot be used.
    pub fn certificates_broken(&self, broken: bool) {
        self.certificates_broken.set(i64::from(broken));
    }

    /// Sets the certificates in use: the purpose, the fingerprint and the last second of each.
    pub fn certificates(&self, all: impl Iterator<Item = (&'static str, String, u64)>) {
        self.certificate_expiry.clear();
        for (certificate, fingerprint, not_after) in all {
            let labels = CertificateLabels { certificate, fingerprint };
            let not_after = i64::try_from(not_after).unwrap_or(i64::MAX);
            self.certificate_expiry.get_or_create(&labels).set(not_after);
        }
    }

    /// Counts a handshake in which the client refused the certificate.
    pub fn tls_refused_by_client(&self) {
        self.tls_refused_by_client.inc();
    }

    /// Counts a connection that waits to begin its handshake, until the returned guard is dropped.
    #[must_use]
    pub fn handshake_waits(&self) -> HandshakeWaits<'_> {
        self.handshakes_waiting.inc();
        HandshakeWaits(&self.handshakes_waiting)
    }

    /// Counts a request of the gateway's own, by what was asked for: `google-keys`, `azure-issuer`, `aws-sts`.
    pub fn cloud_fetched(&self, what: &'static str, fetched: FetchResult) {
        let result = match fetched {
            FetchResult::Answered => "answered",
            FetchResult::Failed => "failed",
            FetchResult::Limited => "limited",
        };
        self.cloud_fetches.get_or_create(&FetchLabels { what, result }).inc();
    }

    /// Sets whether Google's keys are used for longer than Google allows.
    pub fn google_keys_stale(&self, stale: bool) {
        self.google_keys_stale.set(i64::from(stale));
    }

    /// Sets the number of seconds by which the clock is ahead of the store time.
    pub fn clock_ahead(&self, seconds: u64) {
        self.clock_ahead.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// Notes that the attestation log does not match the store. The metric stays set until the gateway starts again.
    pub fn log_incomplete(&self) {
        self.log_incomplete.set(1);
    }

    /// Sets the number of segments of the attestation log that stay longer than they have to.
    pub fn log_segments_held(&self, segments: usize) {
        self.log_segments_held.set(i64::try_from(segments).unwrap_or(i64::MAX));
    }

    /// Sets whether a watch of the cluster's API is broken.
    pub fn cluster_watch_broken(&self, what: &'static str, broken: bool) {
        self.cluster_watch_broken
            .get_or_create(&RequestLabels { what })
            .set(i64::from(broken));
    }

    /// Sets the number of machines whose decisions the cluster does not have yet.
    pub fn attested_nodes_waiting(&self, machines: usize) {
        self.attested_nodes_waiting.set(i64::try_from(machines).unwrap_or(i64::MAX));
    }

    /// Counts events of machines whose boot has a value that no reference value has.
    pub fn new_value(&self, event: &'static str) {
        self.new_values.get_or_create(&EventLabels { event }).inc();
    }

    /// Returns all metrics, for their exposition.
    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns all metrics as text.
    ///
    /// # Errors
    /// None that a `String` could have.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Guard that counts a connection as waiting to begin its handshake.
#[derive(Debug)]
pub struct HandshakeWaits<'m>(&'m Gauge);

impl Drop for HandshakeWaits<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn labels(pool: &str) -> PoolLabels {
    PoolLabels { pool: pool.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_all_metrics_as_text() {
        let metrics = Metrics::default();
        let decided = |verdict: &str, code| metrics.decided("config".to_owned(), verdict.to_owned(), code);
        decided("refused", Some("token-invalid"));
        decided("served", None);
        decided("served", None);
        metrics.would_refuse("worker", "pcr-mismatch");
        metrics.pool_broken("worker", true);
        metrics.pool_broken("infra", false);
        metrics.pool_reloaded("worker", false);
        metrics.guess_ignored();
        metrics.challenge_over_budget();
        metrics.decision_counted();
        metrics.certificates([("mcs", "a".to_owned(), 6)].into_iter());
        metrics.certificates([("mcs", "b".to_owned(), 7)].into_iter());
        metrics.certificates_broken(true);
        metrics.tls_refused_by_client();
        let waits = [metrics.handshake_waits(), metrics.handshake_waits()];
        drop(metrics.handshake_waits());
        metrics.cloud_fetched("aws-sts", FetchResult::Limited);
        metrics.google_keys_stale(true);
        metrics.clock_ahead(7);
        metrics.log_state(LogState {
            is_broken: true,
            is_moved: true,
        });
        metrics.log_incomplete();
        metrics.log_segments_held(4);
        let text = metrics.text().unwrap();
        for line in [
            r#"attest_gateway_decisions_total{decision="config",verdict="refused",code="token-invalid"} 1"#,
            r#"attest_gateway_decisions_total{decision="config",verdict="served",code=""} 2"#,
            r#"attest_gateway_would_refuse_total{pool="worker",code="pcr-mismatch"} 1"#,
            r#"attest_gateway_pool_source_broken{pool="worker"} 1"#,
            r#"attest_gateway_pool_source_broken{pool="infra"} 0"#,
            r#"attest_gateway_pool_reloads_total{pool="worker",result="broken"} 1"#,
            "attest_gateway_guesses_ignored_total 1",
            "attest_gateway_challenges_over_budget_total 1",
            "attest_gateway_decisions_counted_total 1",
            r#"attest_gateway_certificate_expiry_seconds{certificate="mcs",fingerprint="b"} 7"#,
            "attest_gateway_certificates_broken 1",
            "attest_gateway_tls_refused_by_client_total 1",
            "attest_gateway_handshakes_waiting 2",
            r#"attest_gateway_cloud_fetches_total{what="aws-sts",result="limited"} 1"#,
            "attest_gateway_google_keys_stale 1",
            "attest_gateway_clock_ahead_seconds 7",
            "attest_gateway_log_broken 1",
            "attest_gateway_log_moved 1",
            "attest_gateway_log_incomplete 1",
            "attest_gateway_log_segments_held 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        assert!(!text.contains("fingerprint=\"a\""), "{text}");
        drop(waits);
        metrics.pool_gone("worker");
        assert!(!metrics.text().unwrap().contains("pool_source_broken{pool=\"worker\"}"));
    }
}
