//! Results of a simulation, and its bottlenecks.

use super::clock::{SECOND, Time};
use super::rand;
use super::replica::Replica;
use super::site::{CHALLENGES_AT_ONCE, CHALLENGES_EACH_SECOND, LONGEST, Site};

pub struct Outcome {
    pub site: Site,
    pub full: usize,
    /// Number of one replica's nodes without a config, whether they have given up or still wait.
    pub without: u64,
    /// Seconds until the last node had its config, and the 50th and 99th percentile of the boots' durations.
    pub lasted: f64,
    pub p50: f64,
    pub p99: f64,
    /// Mean number of a node's failed attempts.
    pub failed: f64,
    /// Maximum at one replica at the same time.
    pub connections: usize,
    pub sockets: usize,
    /// Number of all replicas' commits.
    pub commits: u64,
    /// Utilization of each resource, the busiest first.
    pub busy: Vec<(&'static str, f64)>,
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "no figure is that large")]
impl Outcome {
    pub fn new(site: Site) -> Self {
        rand::seed(1);
        let Replica { tally, budget, store, .. } = Replica::run(site);
        let seconds = |time: Time| time as f64 / SECOND as f64;
        let without = site.share() - u64::try_from(tally.took.len()).unwrap_or_default();
        let lasted = seconds(if without > 0 { LONGEST } else { tally.lasted });
        let part = |percent: usize| {
            let place = (tally.took.len() * percent).div_ceil(100).saturating_sub(1);
            tally.took.get(place).map_or(f64::NAN, |took| seconds(*took))
        };
        let failed = tally.late + tally.full + tally.over_budget + tally.no_turn;
        let beyond = budget.granted.saturating_sub(CHALLENGES_AT_ONCE);
        let mut busy = vec![
            ("processors", seconds(tally.worked) / lasted / site.cores as f64),
            ("network", seconds(tally.sent) / lasted),
            (
                "etcd",
                seconds(store.worked) / lasted / site.etcd.map_or(1, |etcd| etcd.cores) as f64,
            ),
            ("full commits in turn", seconds(store.full) / lasted),
            ("challenges a second", beyond as f64 / CHALLENGES_EACH_SECOND as f64 / lasted),
        ];
        busy.sort_by(|one, other| other.1.total_cmp(&one.1));
        Self {
            full: tally.took.len(),
            without,
            lasted,
            p50: part(50),
            p99: part(99),
            failed: failed as f64 / site.share() as f64,
            connections: tally.connections,
            sockets: tally.sockets,
            commits: store.commits * site.replicas,
            busy,
            site,
        }
    }

    /// Returns the nodes per second, for each core of all replicas.
    pub fn rate(&self) -> f64 {
        (self.full as u64 * self.site.replicas) as f64 / self.lasted / (self.site.replicas * self.site.cores) as f64
    }
}
