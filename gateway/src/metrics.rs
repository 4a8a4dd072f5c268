//! Metrics, in the text format that Prometheus reads.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use attest::Kind;
use attest::release;
use attest_log::{Decision, LogState, Observer, Record, Verdict, label};
use attest_plain_http::{ProcessMetrics, Series};
use attest_system::clock::Clock;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

attest_plain_http::metrics! {
    /// All metrics of the gateway, but those of the process.
    pub struct GatewayMetrics {
        build: Series<Gauge, 2> = "attest_gateway_build_info", ["version", "revision"], "1, with the release and its commit";

        requests: Series<Counter, 3> = "attest_gateway_http_requests_total", ["route", "method", "status"], "Requests, by the route that their path matched, method and status";
        request_duration: Series<Histogram, 1> = "attest_gateway_http_request_duration_seconds", ["route"], "Duration of requests, from the end of their head to the beginning of the answer";
        tls_handshake_duration: Histogram = "attest_gateway_tls_handshake_duration_seconds", [], "Duration of handshakes that succeeded";
        tls_refused_by_client: Counter = "attest_gateway_tls_refused_by_client_total", [], "Handshakes in which the client refused the MCS certificate";
        limit_used: Series<Gauge, 1> = "attest_gateway_limit_used", ["limit"], "Use of a limit on concurrent work, such as requests";
        limit_max: Series<Gauge, 1> = "attest_gateway_limit_max", ["limit"], "Maximum of a limit on concurrent work";
        limit_waiting: Series<Gauge, 1> = "attest_gateway_limit_waiting", ["limit"], "Clients that wait because a limit on concurrent work is reached, or for connections until their handshake";
        body_bytes: Gauge = "attest_gateway_request_bodies_bytes", [], "Memory for bodies of requests in use: limits.body_bytes is its maximum";

        attestations: Series<Counter, 4> = "attest_gateway_attestations_total", ["pool", "kind", "verdict", "code"], "Decisions about evidence, and refused challenges, by kind of evidence (of several, a cloud's), verdict and the code of a refusal";
        would_refuse: Series<Counter, 2> = "attest_gateway_would_refuse_total", ["pool", "code"], "Attestations that an observing pool accepted and would have refused, by code";
        configs: Series<Counter, 4> = "attest_gateway_configs_total", ["pool", "shown", "config", "code"], "Decisions about configs, by the credential that was shown, the config that was served and the code of a refusal";
        verification_duration: Histogram = "attest_gateway_verification_duration_seconds", [], "Duration of verifications of evidence and endorsements, without the wait for a processor";
        wrong_credentials_ignored: Counter = "attest_gateway_wrong_credentials_ignored_total", [], "Wrong tokens, tickets and client certificates beyond the rate limit of their source: answered 503, not recorded";
        challenges_rate_limited: Counter = "attest_gateway_challenges_rate_limited_total", [], "Challenges refused by rate limits: too many in all, and too many from the same source";
        decisions_aggregated: Counter = "attest_gateway_decisions_aggregated_total", [], "Decisions in aggregated records of the attestation log: about unauthenticated clients, or genuine but unknown machines";
        decisions_unwritten: Gauge = "attest_gateway_decisions_unwritten", [], "Decisions that could not be written to the attestation log yet: they are in the store";
        machines_waiting: Series<Gauge, 1> = "attest_gateway_machines_waiting", ["pool"], "Machines that wait for an administrator's answer";
        waiting: Series<Counter, 1> = "attest_gateway_waiting_total", ["event"], "Machines that wait for an answer, by event: began, asked, observed, ended, refused, over, turned_away";
        reports: Series<Counter, 1> = "attest_gateway_reports_total", ["result"], "Reports of failed boots, by result: verified, unverified, or refused because there were too many";

        log_broken: Gauge = "attest_gateway_log_broken", [], "1 while the attestation log cannot be written: nodes get 503 until it can";
        log_moved: Gauge = "attest_gateway_log_moved", [], "1 while the attestation log was moved and no new file exists: readers of its path miss new records";
        log_incomplete: Gauge = "attest_gateway_log_incomplete", [], "1 since the attestation log was found to lack signed lines of the store's checkpoint, or another gateway to write its chain";
        log_segments_held: Gauge = "attest_gateway_log_segments_held", [], "Expired segments of the attestation log that are kept, because a decision of their time is pending";
        log_fsync_duration: Histogram = "attest_gateway_log_fsync_duration_seconds", [], "Duration of an fsync of the attestation log";
        log_last_fsync: Gauge = "attest_gateway_log_last_fsync_timestamp_seconds", [], "Time at which new lines of the attestation log were last synced to the disk; 0 before the first time";
        log_last_checkpoint: Gauge = "attest_gateway_log_last_checkpoint_timestamp_seconds", [], "Time at which the end of the attestation log was last signed; 0 before the first time since the start";
        log_stored_checkpoint: Gauge = "attest_gateway_log_stored_checkpoint_timestamp_seconds", [], "Time at which the store last got the newest checkpoint; 0 before the first time since the start";
        log_size: Gauge = "attest_gateway_log_size_bytes", [], "Size of the attestation log: its file and its closed segments, without the folder of evidence";
        state_available: Gauge = "attest_gateway_state_available_bytes", [], "Free space of the file system with the state folder";
        state_size: Gauge = "attest_gateway_state_size_bytes", [], "Size of the file system with the state folder";

        store_transaction_duration: Series<Histogram, 1> = "attest_gateway_store_transaction_duration_seconds", ["mode"], "Duration of transactions of the store, by mode: read, decision (durable with its record), durable";
        store_errors: Counter = "attest_gateway_store_errors_total", [], "Transactions of the store that failed: clients that depend on one get 503";
        store_size: Series<Gauge, 1> = "attest_gateway_store_size_bytes", ["engine"], "Size of the embedded store, with its write-ahead log; other engines report theirs themselves";
        leader: Series<Gauge, 1> = "attest_gateway_leader", ["task"], "1 while this gateway leads a task that one of several does, as far as it knows";
        clock_ahead: Gauge = "attest_gateway_clock_ahead_seconds", [], "Seconds by which the clock is ahead of the store time: the clock has jumped, or the gateway was stopped";

        pool_broken: Series<Gauge, 1> = "attest_gateway_pool_source_broken", ["pool"], "1 while a pool's source cannot be read: the gateway serves its last good state, if there is one";
        pool_reloads: Series<Counter, 2> = "attest_gateway_pool_reloads_total", ["pool", "result"], "Changes of a pool's source, by result: served or broken";
        pool_config: Series<Gauge, 1> = "attest_gateway_pool_config_timestamp_seconds", ["pool"], "Time since which the served state of a pool is served, or the start of the gateway";
        pool_good_reload: Series<Gauge, 1> = "attest_gateway_pool_last_good_reload_timestamp_seconds", ["pool"], "Time at which a pool's source was last read and was good";

        certificates_broken: Gauge = "attest_gateway_certificates_broken", [], "1 while the certificates' files cannot be used: the gateway serves with the previous certificate";
        certificate_expiry: Series<Gauge, 2> = "attest_gateway_certificate_expiry_timestamp_seconds", ["certificate", "fingerprint"], "Expiry of a certificate in use: mcs, mcs-ca, kubelet-client-ca";
        token_expiry: Series<Gauge, 1> = "attest_gateway_token_expiry_timestamp_seconds", ["token"], "Expiry of a token without rotation, by its name";
        token_rotation: Series<Gauge, 1> = "attest_gateway_token_rotation_timestamp_seconds", ["token"], "Time at which a token is to be replaced by rotation, by its name";

        cloud_fetches: Series<Counter, 2> = "attest_gateway_cloud_fetches_total", ["what", "result"], "The gateway's own requests to clouds, by subject and result: answered, failed, limited";
        google_keys_stale: Gauge = "attest_gateway_google_keys_stale", [], "1 while Google's keys are used beyond their freshness, because newer ones cannot be fetched";
        cluster_watch_broken: Series<Gauge, 1> = "attest_gateway_cluster_watch_broken", ["what"], "1 while a watch of the cluster's API fails: the gateway uses cached state";
        attested_nodes_unpublished: Gauge = "attest_gateway_attested_nodes_unpublished", [], "Machines with decisions that are not published to the cluster's API yet";
    }
}

/// All metrics of the program.
pub struct Metrics {
    registry: Registry,
    process: ProcessMetrics,
    all: GatewayMetrics,
    handshakes_waiting: Gauge,
}

/// Use of a limit on concurrent work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitUsage {
    pub used: usize,
    pub waiting: usize,
    pub most: usize,
}

/// Values that are measured at a scrape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Decisions that could not be written yet.
    pub unwritten: usize,
    /// Memory for bodies in use, in bytes.
    pub body_bytes: usize,
    /// Bytes of the attestation log.
    pub log: u64,
    /// Free bytes and size of the state folder's file system.
    pub disk: Option<(u64, u64)>,
    /// Bytes of the embedded store.
    pub store: Option<u64>,
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
        let mut registry = Registry::default();
        let all = GatewayMetrics::register(&mut registry);
        let process = ProcessMetrics::register(&mut registry);
        all.build.with([release::release().into(), release::commit().into()]).set(1);
        let handshakes_waiting = all.limit_waiting.with(["handshakes".into()]);
        Self {
            registry,
            process,
            all,
            handshakes_waiting,
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
        self.all.log_broken.set(i64::from(is_broken));
        self.all.log_moved.set(i64::from(is_moved));
    }

    fn log_synced(&self, took: Duration) {
        self.all.log_fsync_duration.observe(took.as_secs_f64());
        self.all.log_last_fsync.set(now());
    }

    fn log_signed(&self) {
        self.all.log_last_checkpoint.set(now());
    }
}

/// Returns the time, in seconds since 1970: by the clock that Prometheus compares it with, whatever time the gateway decides by.
fn now() -> i64 {
    signed(Clock::System.now().as_secs())
}

/// Returns a number as a gauge has it.
fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns the value of a label for the evidence of a record: one word, however many kinds a client combines.
fn kind_of(record: &Record) -> &'static str {
    let cloud = record.kinds.iter().find(|kind| kind.is_of_a_cloud());
    cloud.or(record.kinds.first()).map_or("unreadable", |kind| Kind::as_str(*kind))
}

/// Returns a known method as it is, and one word for all others.
fn method_of(method: &axum::http::Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"];
    KNOWN.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// Returns a status as text, without an allocation if it is one of the gateway's usual ones.
fn status_of(status: u16) -> Cow<'static, str> {
    match status {
        200 => "200".into(),
        400 => "400".into(),
        403 => "403".into(),
        404 => "404".into(),
        405 => "405".into(),
        503 => "503".into(),
        other => other.to_string().into(),
    }
}

impl Metrics {
    /// Returns the durations of requests of a route.
    #[must_use]
    pub fn request_durations(&self, route: &'static str) -> Histogram {
        self.all.request_duration.with([route.into()])
    }

    /// Counts a request.
    pub fn requested(&self, route: &'static str, method: &axum::http::Method, status: u16) {
        let labels = [route.into(), method_of(method).into(), status_of(status)];
        self.all.requests.with(labels).inc();
    }

    /// Returns the durations of verifications.
    #[must_use]
    pub fn verification_durations(&self) -> Histogram {
        self.all.verification_duration.clone()
    }

    /// Returns the durations of the store's transactions of a mode.
    #[must_use]
    pub fn store_durations(&self, mode: &'static str) -> Histogram {
        self.all.store_transaction_duration.with([mode.into()])
    }

    /// Counts a transaction of the store that failed.
    pub fn store_failed(&self) {
        self.all.store_errors.inc();
    }

    /// Sets whether this gateway leads a task.
    pub fn leads(&self, task: &str, leads: bool) {
        self.all.leader.with([task.to_owned().into()]).set(i64::from(leads));
    }

    /// Notes the duration of a handshake that succeeded.
    pub fn tls_handshake(&self, took: Duration) {
        self.all.tls_handshake_duration.observe(took.as_secs_f64());
    }

    /// Counts a decision, recorded or counted there.
    pub fn decided(&self, record: &Record) {
        let code = record.code.clone().unwrap_or_default();
        let pool = record.pool.clone();
        match record.decision {
            Decision::Challenge | Decision::Evidence => {
                let verdict = match record.verdict {
                    Verdict::Trusted | Verdict::Served => "trusted",
                    Verdict::Refused => "refused",
                };
                let labels = [pool.into(), kind_of(record).into(), verdict.into(), code.into()];
                self.all.attestations.with(labels).inc();
            }
            Decision::Config => {
                let config = record.grant.map(|grant| grant.to_string()).unwrap_or_default();
                let labels = [pool.into(), label(&record.shown).into(), config.into(), code.into()];
                self.all.configs.with(labels).inc();
            }
            // No machine boots.
            Decision::Rehearsal => {}
        }
    }

    /// Counts an attestation that was accepted because its pool observes, by a code that it would have been refused with.
    pub fn would_refuse(&self, pool: &str, code: &str) {
        self.all.would_refuse.with([pool.to_owned().into(), code.to_owned().into()]).inc();
    }

    /// Sets whether a pool's source cannot be read.
    pub fn pool_broken(&self, pool: &str, broken: bool) {
        self.all.pool_broken.with([pool.to_owned().into()]).set(i64::from(broken));
        if !broken {
            self.all.pool_good_reload.with([pool.to_owned().into()]).set(now());
        }
    }

    /// Notes that a new state of a pool is served.
    pub fn pool_serves(&self, pool: &str) {
        self.all.pool_config.with([pool.to_owned().into()]).set(now());
    }

    /// Counts a change of a pool's source.
    pub fn pool_reloaded(&self, pool: &str, served: bool) {
        let result = if served { "served" } else { "broken" };
        self.all.pool_reloads.with([pool.to_owned().into(), result.into()]).inc();
        if served {
            self.pool_serves(pool);
        }
    }

    /// Counts a wrong credential that was not recorded.
    pub fn guess_ignored(&self) {
        self.all.wrong_credentials_ignored.inc();
    }

    /// Counts a challenge that was not given.
    pub fn challenge_over_budget(&self) {
        self.all.challenges_rate_limited.inc();
    }

    /// Counts a decision that is not recorded by itself.
    pub fn decision_counted(&self) {
        self.all.decisions_aggregated.inc();
    }

    /// Forgets a pool that is there no longer.
    pub fn pool_gone(&self, pool: &str) {
        for gauge in [&self.all.pool_broken, &self.all.pool_config, &self.all.pool_good_reload] {
            gauge.remove([pool.to_owned().into()]);
        }
    }

    /// Sets whether the certificates' files cannot be used.
    pub fn certificates_broken(&self, broken: bool) {
        self.all.certificates_broken.set(i64::from(broken));
    }

    /// Sets the certificates in use: the purpose, the fingerprint and the last second of each.
    pub fn certificates(&self, all: impl Iterator<Item = (&'static str, String, u64)>) {
        self.all.certificate_expiry.clear();
        for (certificate, fingerprint, not_after) in all {
            self.all
                .certificate_expiry
                .with([certificate.into(), fingerprint.into()])
                .set(signed(not_after));
        }
    }

    /// Sets the tokens that pointers should have: the name of each, with the time of its next rotation or, without rotation, its last second.
    pub fn tokens(&self, all: impl Iterator<Item = (String, Option<u64>, u64)>) {
        self.all.token_expiry.clear();
        self.all.token_rotation.clear();
        for (name, rotates, expires) in all {
            match rotates {
                Some(at) => self.all.token_rotation.with([name.into()]).set(signed(at)),
                None => self.all.token_expiry.with([name.into()]).set(signed(expires)),
            };
        }
    }

    /// Counts a handshake in which the client refused the certificate.
    pub fn tls_refused_by_client(&self) {
        self.all.tls_refused_by_client.inc();
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
        self.all.cloud_fetches.with([what.into(), result.into()]).inc();
    }

    /// Sets whether Google's keys are used for longer than Google allows.
    pub fn google_keys_stale(&self, stale: bool) {
        self.all.google_keys_stale.set(i64::from(stale));
    }

    /// Sets the number of seconds by which the clock is ahead of the store time.
    pub fn clock_ahead(&self, seconds: u64) {
        self.all.clock_ahead.set(signed(seconds));
    }

    /// Notes that the attestation log does not match the store. The metric stays set until the gateway starts again.
    pub fn log_incomplete(&self) {
        self.all.log_incomplete.set(1);
    }

    /// Notes that the store has the newest checkpoint.
    pub fn checkpoint_stored(&self) {
        self.all.log_stored_checkpoint.set(now());
    }

    /// Sets the number of segments of the attestation log that stay longer than they have to.
    pub fn log_segments_held(&self, segments: usize) {
        self.all.log_segments_held.set(signed(segments));
    }

    /// Sets whether a watch of the cluster's API is broken.
    pub fn cluster_watch_broken(&self, what: &'static str, broken: bool) {
        self.all.cluster_watch_broken.with([what.into()]).set(i64::from(broken));
    }

    /// Sets the number of machines whose decisions the cluster does not have yet.
    pub fn attested_nodes_waiting(&self, machines: usize) {
        self.all.attested_nodes_unpublished.set(signed(machines));
    }

    /// Counts events of machines that wait for an answer.
    pub fn waiting(&self, event: &'static str) {
        self.all.waiting.with([event.into()]).inc();
    }

    /// Counts a report of a failed boot.
    pub fn reported(&self, result: &'static str) {
        self.all.reports.with([result.into()]).inc();
    }

    /// Sets the number of machines that wait for an answer, by pool.
    pub fn machines_waiting(&self, pools: impl Iterator<Item = (String, usize)>) {
        self.all.machines_waiting.clear();
        for (pool, machines) in pools {
            self.all.machines_waiting.with([pool.into()]).set(signed(machines));
        }
    }

    /// Sets the use of limits, all that is measured at a scrape, and the metrics of the process.
    pub fn measure(&self, limits: &[(&'static str, LimitUsage)], measured: Measured) {
        for (limit, LimitUsage { used, waiting, most }) in limits {
            self.all.limit_used.with([(*limit).into()]).set(signed(*used));
            self.all.limit_max.with([(*limit).into()]).set(signed(*most));
            // A guard counts connections that wait for their handshake, also those that the queue does not have at the moment.
            if *limit != "handshakes" {
                self.all.limit_waiting.with([(*limit).into()]).set(signed(*waiting));
            }
        }
        self.all.decisions_unwritten.set(signed(measured.unwritten));
        self.all.body_bytes.set(signed(measured.body_bytes));
        self.all.log_size.set(signed(measured.log));
        if let Some((available, size)) = measured.disk {
            self.all.state_available.set(signed(available));
            self.all.state_size.set(signed(size));
        }
        if let Some(bytes) = measured.store {
            self.all.store_size.with(["embedded".into()]).set(signed(bytes));
        }
        self.process.read();
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

#[cfg(test)]
mod tests {
    use attest_log::{ConfigSet, ShownEvidence};

    use super::*;

    #[test]
    fn renders_all_metrics_as_text() {
        let metrics = Metrics::default();
        let decided = |decision, verdict, code: Option<&str>| {
            let mut record: Record = Record::new("id".to_owned(), decision, 7, "peer".to_owned(), "worker".to_owned());
            (record.verdict, record.code) = (verdict, code.map(str::to_owned));
            if decision != Decision::Config {
                (record.shown, record.kinds) = (ShownEvidence::Tpm, [Kind::Tpm].into());
            } else if verdict == Verdict::Served {
                (record.shown, record.grant) = (ShownEvidence::Token, Some(ConfigSet::Full));
            }
            metrics.decided(&record);
        };
        decided(Decision::Config, Verdict::Refused, Some("token-invalid"));
        decided(Decision::Config, Verdict::Served, None);
        decided(Decision::Config, Verdict::Served, None);
        decided(Decision::Evidence, Verdict::Trusted, None);
        decided(Decision::Challenge, Verdict::Refused, Some("ek-not-endorsed"));
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
            r#"attest_gateway_configs_total{pool="worker",shown="nothing",config="",code="token-invalid"} 1"#,
            r#"attest_gateway_configs_total{pool="worker",shown="token",config="full",code=""} 2"#,
            r#"attest_gateway_attestations_total{pool="worker",kind="tpm",verdict="trusted",code=""} 1"#,
            r#"attest_gateway_attestations_total{pool="worker",kind="tpm",verdict="refused",code="ek-not-endorsed"} 1"#,
            r#"attest_gateway_would_refuse_total{pool="worker",code="pcr-mismatch"} 1"#,
            r#"attest_gateway_pool_source_broken{pool="worker"} 1"#,
            r#"attest_gateway_pool_source_broken{pool="infra"} 0"#,
            r#"attest_gateway_pool_reloads_total{pool="worker",result="broken"} 1"#,
            "attest_gateway_wrong_credentials_ignored_total 1",
            "attest_gateway_challenges_rate_limited_total 1",
            "attest_gateway_decisions_aggregated_total 1",
            r#"attest_gateway_certificate_expiry_timestamp_seconds{certificate="mcs",fingerprint="b"} 7"#,
            "attest_gateway_certificates_broken 1",
            "attest_gateway_tls_refused_by_client_total 1",
            r#"attest_gateway_limit_waiting{limit="handshakes"} 2"#,
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
