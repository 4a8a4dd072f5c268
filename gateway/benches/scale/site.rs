//! Input of the simulation: the fleet, its gateways, and the cost of each step. `docs/explanation/performance.md`
//! gives the source of each figure.

use super::clock::{SECOND, Time};

const MICROSECOND: Time = 1000;

/// Requests of a node, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Discovery,
    Challenge,
    Evidence,
    Config,
}

impl Step {
    pub const ALL: [Self; 4] = [Self::Discovery, Self::Challenge, Self::Evidence, Self::Config];
}

/// Processor time of the gateway for each step. The sums for a node that attests and for one with a token are those that `storm` has
/// measured. `docs/explanation/performance.md` has the benchmark `boot`'s figures for each step.
pub const HANDSHAKE: Time = 190 * MICROSECOND;
/// Processor time for a refused request: the same as for a discovery, which does as little.
pub const REFUSAL: Time = cost(Step::Discovery);

pub const fn cost(step: Step) -> Time {
    match step {
        Step::Discovery => 20 * MICROSECOND,
        Step::Challenge => 200 * MICROSECOND,
        Step::Evidence => 830 * MICROSECOND,
        Step::Config => 720 * MICROSECOND,
    }
}

/// Access to the store.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Number of keys that it has in a commit.
    pub keys: usize,
    pub writes: bool,
}

const fn read(keys: usize) -> Access {
    Access { keys, writes: false }
}

const fn write(keys: usize) -> Access {
    Access { keys, writes: true }
}

/// Accesses of a step to the store, one after the other.
pub const fn asks(step: Step) -> &'static [Access] {
    match step {
        Step::Discovery => &[],
        Step::Challenge => const { &[read(2)] },
        Step::Evidence => const { &[read(4), write(12)] },
        Step::Config => const { &[write(7)] },
    }
}

fn keys(step: Step) -> Time {
    let keys: usize = asks(step).iter().map(|access| access.keys).sum();
    Time::try_from(keys).unwrap_or_default()
}

/// Figures of the gateway: challenges at once and per second (`admission/mod.rs`); connections, sockets that wait for their handshake and
/// requests in progress (`settings/limits.rs`). Of connections, one in this number is reserved for known clients
/// (`admission/connections.rs`). Handshakes that begin while requests are in progress; of this number in a row, the last is an unknown
/// client's (`admission/handshakes.rs`). Maximum wait of a request for its turn (`api/overload.rs`); keys of one commit
/// (`store/etcd/overlay.rs`).
pub const CHALLENGES_AT_ONCE: u64 = 20_000;
pub const CHALLENGES_EACH_SECOND: u64 = 800;
pub const CONNECTIONS: usize = 2048;
pub const REQUESTS: usize = 256;
pub const KNOWN_PART: usize = 4;
pub const SOCKETS: usize = 16_384;
pub const HANDSHAKES_ALWAYS: usize = 2;
pub const STRANGERS_TURN: u32 = 4;
pub const PATIENCE: Time = 12 * SECOND;
pub const CONFIG_PATIENCE: Time = 8 * SECOND;
pub const MOST_KEYS: usize = 120;

/// Maximum duration of a boot that counts as in time.
pub const LONGEST: Time = 1800 * SECOND;

/// Size of a node's full config: as a node with a token gets it, and compressed.
pub const CONFIG_BYTES: u64 = 835_000;
pub const COMPRESSED_BYTES: u64 = 165_000;

/// Fleet, and the gateways that serve it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Site {
    pub nodes: u64,
    /// Seconds in which the nodes come, evenly.
    pub over: u64,
    /// Set if the nodes use a provisioning token: no challenge and no evidence.
    pub by_token: bool,
    pub replicas: u64,
    /// Processor cores of each replica, and its network.
    pub cores: u64,
    pub gigabits: u64,
    /// Set if each replica's challenges have a budget.
    pub budget: bool,
    /// Shared store; `None` for the embedded store, whose work is the gateway's.
    pub etcd: Option<Etcd>,
}

/// Cost model of the store that replicas share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Etcd {
    /// Duration of a commit, which includes the disk, and of a read.
    pub commit: Time,
    pub read: Time,
    /// Cores of each member, and their time for one transaction, and for each key in it.
    pub cores: u64,
    pub transaction: Time,
    pub key: Time,
    /// Additional processor time of the gateway for a boot, compared with a store of its own.
    pub gateway: Time,
}

/// Measurements of the benchmark `stores`, for one member.
pub const ETCD: Etcd = Etcd {
    commit: 2000 * MICROSECOND,
    read: 500 * MICROSECOND,
    cores: 4,
    transaction: 340 * MICROSECOND,
    key: 10 * MICROSECOND,
    gateway: 1650 * MICROSECOND,
};

impl Etcd {
    /// Returns the same store with half of the work.
    pub const fn halved(self) -> Self {
        Self {
            transaction: self.transaction / 2,
            key: self.key / 2,
            ..self
        }
    }
}

impl Site {
    /// Returns the processor time of the gateway for a step, including that for its store.
    pub fn cost(&self, step: Step) -> Time {
        let all: Time = Step::ALL.into_iter().map(keys).sum();
        cost(step) + self.etcd.map_or(0, |etcd| etcd.gateway * keys(step) / all)
    }

    /// Returns the number of nodes at each replica, with equal shares.
    pub const fn share(&self) -> u64 {
        self.nodes.div_ceil(self.replicas)
    }
}
