//! Admission: fair queues, rate limits and load shedding.
//!
//! An unauthenticated client costs little and holds nothing that others need. Each limit is for the whole gateway, and is shared out among
//! sources when it is reached. A source may have all that no other source wants: a thousand good machines behind one address can boot at
//! once.

mod bodies;
mod budget;
mod connections;
mod fair_queue;
mod fair_share;
mod handshakes;
mod rate;
mod slots;
mod source;
mod trusted_sources;
mod verification;
mod wrong_credentials;

pub use bodies::{Bodies, NoBody, ReadBody};
pub use budget::{RateLimit, Spending};
pub use connections::{ConnectionSlot, Connections, Unnamed, WaitingConnection, Working};
pub use fair_share::{NoRoom, ShareGuard, Shares};
pub use handshakes::{Begun, Handshake, Handshakes, RequestTurn};
pub use slots::{AdmissionSlot, AdmissionSlots, TooBusy};
pub use source::{ClientSource, Network};
pub use trusted_sources::TrustedSources;
pub use verification::{Length, Verification};
pub use wrong_credentials::{FailureOutcome, WrongCredentials};

use attest_store::settings::EngineSettings;
use prometheus_client::metrics::histogram::Histogram;
use std::net::IpAddr;
use std::time::Instant;

use crate::metrics::LimitUsage;
use crate::settings::Limits;

/// Challenges at once. Ten thousand nodes that boot together ask for one each, and for another if the first answer was lost.
pub(crate) const CHALLENGES_AT_ONCE: u64 = 20_000;
/// Challenges each second beyond that: at 0.3 ms each, a quarter of a processor.
pub(crate) const CHALLENGES_EACH_SECOND: u64 = 800;

/// Bytes that each report of a failed boot counts for: the largest journal, so that small reports fill neither the log nor a screen.
pub const REPORT_BYTES: u64 = 64 * 1024;
/// Reports at once, in bytes, that prove an attestation: a thousand, such as of a rack whose config is wrong.
const VERIFIED_REPORTS_AT_ONCE: u64 = 64 * 1024 * 1024;
/// Bytes of such reports each second beyond that: 5,400 reports a day.
const VERIFIED_REPORTS_EACH_SECOND: u64 = 4 * 1024;
/// Bytes of other reports at once: 256 reports.
const UNVERIFIED_REPORTS_AT_ONCE: u64 = 16 * 1024 * 1024;
/// Bytes of such reports each second beyond that: 675 reports a day, with at most 44 MB.
const UNVERIFIED_REPORTS_EACH_SECOND: u64 = 512;

/// Challenges that unauthenticated clients may spend at once, if the store is on objects of the cluster's API. Each is written to the
/// cluster's own etcd. A rack of machines of a cloud that boots together needs as many.
const SPENDS_AT_ONCE: u64 = 1000;
/// Such challenges each second beyond that. Three gateways spend thirty, which is what `docs/how-to/replicas.md` says that this store bears.
const SPENDS_EACH_SECOND: u64 = 10;

/// Everything that sources share.
#[derive(Debug)]
pub struct Admission {
    pub connections: Connections,
    /// Bodies under way, in bytes.
    pub bodies: Bodies,
    /// Turns of requests that are processed.
    pub requests: AdmissionSlots,
    /// Handshakes, which begin when there is little else to do.
    pub handshakes: Handshakes,
    /// Known sources: their handshakes go first, and each counts by itself.
    pub trusted_sources: TrustedSources,
    /// Turns of verification at the processors.
    pub verification: Verification,
    /// Challenges, which cost the client nothing.
    pub challenges: RateLimit,
    /// Reports of failed boots by machines that proved their attestation.
    pub verified_reports: RateLimit,
    /// Other reports of failed boots.
    pub unverified_reports: RateLimit,
    /// Challenges that are spent, where that costs more than the gateway alone.
    pub spends: Option<RateLimit>,
    /// Limit on wrong credentials per source.
    pub wrong_credentials: WrongCredentials,
}

impl Admission {
    /// Creates the limits of these settings, in front of this store. `verifications` gets the duration of each verification.
    #[must_use]
    pub fn new(limits: &Limits, store: &EngineSettings, verifications: Histogram) -> Self {
        let requests = AdmissionSlots::new(limits.requests);
        Self {
            connections: Connections::new(limits.connections, limits.waiting),
            bodies: Bodies::new(limits.body_bytes, limits.request),
            handshakes: Handshakes::new(limits.requests, requests.clone()),
            trusted_sources: TrustedSources::default(),
            requests,
            verification: Verification::new(verifications),
            challenges: RateLimit::new(CHALLENGES_AT_ONCE, CHALLENGES_EACH_SECOND),
            verified_reports: RateLimit::new(VERIFIED_REPORTS_AT_ONCE, VERIFIED_REPORTS_EACH_SECOND),
            unverified_reports: RateLimit::new(UNVERIFIED_REPORTS_AT_ONCE, UNVERIFIED_REPORTS_EACH_SECOND),
            spends: matches!(store, EngineSettings::Kubernetes(_)).then(|| RateLimit::new(SPENDS_AT_ONCE, SPENDS_EACH_SECOND)),
            wrong_credentials: WrongCredentials::default(),
        }
    }

    /// Returns the use of each limit on concurrent work, by its name.
    #[must_use]
    pub fn usage(&self) -> [(&'static str, LimitUsage); 4] {
        [
            ("connections", self.connections.usage()),
            ("handshakes", self.handshakes.usage()),
            ("requests", self.requests.usage()),
            ("verification", self.verification.usage()),
        ]
    }

    /// Returns the source that limits are counted for at this address. An address that has proven something lately counts alone.
    #[must_use]
    pub fn source(&self, peer: IpAddr) -> ClientSource {
        match self.trusted_sources.knows(peer, Instant::now()) {
            true => ClientSource::proven(peer),
            false => peer.into(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::Path;
    use std::time::Duration;

    use attest::{NodeIdentity, UnixTime};

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn attack_26_a_challenge_flood_leaves_quota_to_nodes() {
        let budget = RateLimit::new(CHALLENGES_AT_ONCE, CHALLENGES_EACH_SECOND);
        let spend = |source: u32, now: u64| {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
            budget.spend(Ipv4Addr::from_bits(source).into(), 1, now) == Spending::Granted
        };
        // 192,064 of them in 40 s gave a full config once.
        let granted: usize = (0..40).map(|second| (0..4801).filter(|_| spend(66, second)).count()).sum();
        assert_eq!(granted, 10_000 + 39 * 800);
        // A thousand nodes behind one address, two challenges each; and others, each behind its own.
        assert!((0..2000).all(|_| spend(7, 39)));
        assert!((1000..1500).all(|node| spend(node, 39)));
        assert!(!spend(66, 39));
    }

    #[test]
    fn attack_60_sources_of_reports_leave_reports_to_others() {
        let now = |second: u64| UnixTime::since_unix_epoch(Duration::from_secs(1000 + second));
        for greedy in [1, 2, 50, 2000] {
            let limits = Settings::defaults(Path::new("")).unwrap().limits;
            let admission = Admission::new(&limits, &EngineSettings::Embedded, Histogram::new([1.0]));
            let granted =
                |limit: &RateLimit, source: ClientSource, second: u64| limit.spend(source, REPORT_BYTES, now(second)) == Spending::Granted;
            let address = |number: u32| ClientSource::from(Ipv4Addr::from_bits(number));
            let machine = |number: u32| ClientSource::of_machine(&NodeIdentity::from_ek(format!("{number:064}").parse().unwrap()));
            let all: usize = (0..60)
                .flat_map(|second| (0..greedy).map(move |source| (second, source)))
                .map(|(second, source)| {
                    (0..20)
                        .filter(|_| granted(&admission.unverified_reports, address(source), second))
                        .count()
                })
                .sum();
            // Sixteen megabytes and no more.
            assert!(all <= 256, "{all} from {greedy}");
            // Attested machines have their own allowance.
            let rogue: usize = (0..4000).filter(|_| granted(&admission.verified_reports, machine(1), 59)).count();
            assert!(rogue <= 512, "{rogue}");
            for number in 100..200 {
                assert!(
                    granted(&admission.verified_reports, machine(number), 59),
                    "{number} beside {greedy}"
                );
            }
            // Machines that did not attest get room beside greedy sources, as long as those are not as many as the reports that there are.
            for number in (10_000..10_020).filter(|_| greedy < 100) {
                assert!(
                    granted(&admission.unverified_reports, address(number), 59),
                    "{number} beside {greedy}"
                );
            }
        }
    }

    #[test]
    fn store_limit_covers_all_unexpired_challenges() {
        let longest_seconds = 900;
        let given = CHALLENGES_AT_ONCE + longest_seconds * CHALLENGES_EACH_SECOND;
        assert!(attest_store::CHALLENGES_LIMIT_ROWS > given, "the documents say so");
    }

    #[test]
    fn ten_thousand_nodes_boot_at_once() {
        let budget = RateLimit::new(CHALLENGES_AT_ONCE, CHALLENGES_EACH_SECOND);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1000));
        assert!((0..10_000).all(|node| budget.spend(Ipv4Addr::from_bits(node).into(), 1, now) == Spending::Granted));
    }
}
