//! Simulated replica, and the nodes that come to it. All replicas have the same load, so one represents each.
//!
//! It works in order: requests first, so that started boots finish, then handshakes, for which sockets wait. A node that finds no place to
//! wait, or waits too long, retries by its own schedule.

use std::collections::VecDeque;
use std::time::Instant;

use super::budget::Budget;
use super::clock::{Clock, SECOND, Time};
use super::node::{Came, Next, Node, transfer};
use super::site::{
    CONFIG_PATIENCE, CONNECTIONS, HANDSHAKE, HANDSHAKES_ALWAYS, KNOWN_PART, LONGEST, PATIENCE, REFUSAL, REQUESTS, SOCKETS, STRANGERS_TURN,
    Site, Step, asks,
};
use super::store::{Store, Work};

/// Returns the maximum wait of a request for its turn.
const fn patience(config: bool) -> Time {
    if config { CONFIG_PATIENCE } else { PATIENCE }
}

/// Node, and the number of its attempt.
type Asked = (u32, u32);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Comes(u32),
    Again(u32),
    /// Timeout of a node's wait for a connection.
    NoConnection(Asked),
    /// Timeout of a request's wait for its turn.
    NoTurn(Asked),
    NoAnswer(Asked),
    Shaken(Asked),
    Worked {
        asked: Asked,
        step: Step,
        granted: bool,
    },
    Stored,
    Sent(Asked),
}

/// Counts of a simulation's results.
#[derive(Debug, Default)]
pub struct Tally {
    /// Duration of each boot, and the end of the last one.
    pub took: Vec<Time>,
    pub lasted: Time,
    /// Number of nodes that have given up.
    pub gave_up: u64,
    /// Numbers of failed attempts: without a connection or an answer in time, by a full queue, by the budget of challenges, by a missed
    /// turn.
    pub late: u64,
    pub full: u64,
    pub over_budget: u64,
    pub no_turn: u64,
    /// Maximum number of connections, and of sockets that waited for one.
    pub connections: usize,
    pub sockets: usize,
    /// Busy time of processors and network.
    pub worked: Time,
    pub sent: Time,
}

pub struct Replica {
    site: Site,
    start: Instant,
    clock: Clock<Event>,
    nodes: Vec<Node>,
    /// Queues for a handshake: of nodes that have been here, which have priority, and of unknown sources.
    known: VecDeque<Asked>,
    strangers: VecDeque<Asked>,
    /// Number of known nodes' handshakes since the last one of an unknown source.
    in_a_row: u32,
    handshakes: usize,
    /// Number of attempts in both queues that still wait.
    waiting: usize,
    requests: VecDeque<Asked>,
    /// Connections of pausing nodes, the oldest first.
    idle: VecDeque<Asked>,
    connections: usize,
    free: u64,
    /// Number of requests that have had their turn, and have not ended.
    in_work: usize,
    /// Time at which the network has sent all its data.
    sent: Time,
    pub budget: Budget,
    pub store: Store,
    pub tally: Tally,
}

impl Replica {
    /// Runs the simulation to its end, or until the remaining nodes are too late.
    pub fn run(site: Site) -> Self {
        let mut replica = Self {
            start: Instant::now(),
            clock: Clock::new(),
            nodes: Vec::new(),
            known: VecDeque::new(),
            strangers: VecDeque::new(),
            in_a_row: 0,
            handshakes: 0,
            waiting: 0,
            requests: VecDeque::new(),
            idle: VecDeque::new(),
            connections: 0,
            free: site.cores,
            in_work: 0,
            sent: 0,
            budget: Budget::default(),
            store: Store::default(),
            tally: Tally::default(),
            site,
        };
        replica.come();
        while let Some(event) = replica.clock.next().filter(|_| replica.clock.now <= LONGEST) {
            replica.happens(event);
        }
        replica.tally.took.sort_unstable();
        replica
    }

    fn come(&mut self) {
        let share = self.site.share();
        for node in 0..share {
            let when = self.site.over * SECOND * node / share;
            self.nodes.push(Node::new(when, self.start));
            self.clock.after(when, Event::Comes(u32::try_from(node).unwrap_or(u32::MAX)));
        }
    }

    fn node(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[usize::try_from(node).unwrap_or(usize::MAX)]
    }

    /// Returns whether the node still waits for this attempt.
    fn is_live(&mut self, (node, attempt): Asked) -> bool {
        self.node(node).attempt == attempt
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Comes(node) | Event::Again(node) => self.ask(node),
            Event::NoConnection(asked) if self.is_live(asked) => {
                self.tally.late += 1;
                self.came(asked.0, Came::Nothing);
            }
            Event::NoTurn(asked) if self.is_live(asked) => {
                let node = self.node(asked.0);
                if node.waits {
                    self.tally.no_turn += 1;
                    self.came(asked.0, Came::ComeAgain);
                } else {
                    let left = node.answer_limit() - patience(node.step == Step::Config);
                    self.clock.after(left, Event::NoAnswer(asked));
                }
            }
            Event::NoAnswer(asked) if self.is_live(asked) => {
                self.tally.late += 1;
                self.came(asked.0, Came::Nothing);
            }
            Event::NoConnection(_) | Event::NoTurn(_) | Event::NoAnswer(_) => {}
            Event::Shaken(asked) => {
                self.free += 1;
                self.handshakes -= 1;
                if self.is_live(asked) {
                    let node = self.node(asked.0);
                    node.connected = true;
                    self.ask(asked.0);
                } else {
                    self.connections -= 1;
                }
            }
            Event::Worked { asked, step, granted } => {
                self.free += 1;
                if granted {
                    self.asks_store(asked, 0, step);
                } else {
                    self.in_work -= 1;
                    if self.is_live(asked) {
                        self.tally.over_budget += 1;
                        self.came(asked.0, Came::ComeAgain);
                    }
                }
            }
            Event::Stored => {
                for Work {
                    node,
                    attempt,
                    round,
                    step,
                    ..
                } in self.store.end()
                {
                    self.asks_store((node, attempt), round + 1, step);
                }
                self.begin_commit();
            }
            Event::Sent(asked) => self.came(asked.0, Came::Answer),
        }
        self.work();
    }

    /// Sends a node's next request.
    fn ask(&mut self, number: u32) {
        let node = self.node(number);
        node.attempt += 1;
        node.waits = true;
        let (asked, limit, connected) = ((number, node.attempt), node.connect_limit(), node.connected);
        let first = node.step == Step::Config;
        if connected {
            self.requests.push_back(asked);
            self.clock.after(patience(first), Event::NoTurn(asked));
        } else if self.waiting < SOCKETS {
            self.waiting += 1;
            self.tally.sockets = self.tally.sockets.max(self.waiting);
            let line = if first { &mut self.known } else { &mut self.strangers };
            line.push_back(asked);
            self.clock.after(limit, Event::NoConnection(asked));
        } else {
            self.node(number).waits = false;
            self.tally.full += 1;
            self.came(number, Came::Nothing);
        }
    }

    /// Assigns work to free processors.
    fn work(&mut self) {
        while self.free > 0 {
            if let Some(asked) = self.requests.pop_front_if(|_| self.in_work < REQUESTS) {
                if self.is_live(asked) {
                    self.begin_request(asked);
                }
            } else if self.may_begin_handshake() {
                let Some(asked) = self.next_socket() else {
                    return;
                };
                if self.is_live(asked) {
                    self.waiting -= 1;
                    self.node(asked.0).waits = false;
                    self.connections += 1;
                    self.handshakes += 1;
                    self.tally.connections = self.tally.connections.max(self.connections);
                    self.takes(HANDSHAKE, Event::Shaken(asked));
                }
            } else {
                return;
            }
        }
    }

    /// Returns whether a handshake may begin, because earlier work is nearly done.
    fn may_begin_handshake(&self) -> bool {
        let under_way = self.handshakes + self.in_work + self.requests.len();
        self.handshakes < HANDSHAKES_ALWAYS || under_way < REQUESTS
    }

    /// Returns the next socket in the queues. Known nodes have priority, but do not keep unknown sources out.
    fn next_socket(&mut self) -> Option<Asked> {
        let strangers = !self.strangers.is_empty() && self.has_place(CONNECTIONS - CONNECTIONS / KNOWN_PART);
        let turn_of_strangers = self.in_a_row + 1 >= STRANGERS_TURN && strangers;
        let known = !turn_of_strangers && !self.known.is_empty() && self.has_place(CONNECTIONS);
        match self.known.pop_front_if(|_| known) {
            Some(asked) => {
                self.in_a_row += u32::from(self.is_live(asked));
                Some(asked)
            }
            None => {
                self.in_a_row = 0;
                self.strangers.pop_front_if(|_| strangers)
            }
        }
    }

    fn begin_request(&mut self, asked: Asked) {
        let node = self.node(asked.0);
        node.waits = false;
        let step = node.step;
        let granted = step != Step::Challenge || !self.site.budget || self.budget.spend(self.clock.now);
        self.in_work += 1;
        let cost = if granted { self.site.cost(step) } else { REFUSAL };
        self.takes(cost, Event::Worked { asked, step, granted });
    }

    fn takes(&mut self, time: Time, then: Event) {
        self.free -= 1;
        self.tally.worked += time;
        self.clock.after(time, then);
    }

    /// Returns whether fewer than `most` connections exist, after closing idle ones for it.
    fn has_place(&mut self, most: usize) -> bool {
        while self.connections >= most {
            let Some(asked) = self.idle.pop_front() else {
                return false;
            };
            if self.is_live(asked) && self.node(asked.0).connected {
                self.node(asked.0).connected = false;
                self.connections -= 1;
            }
        }
        true
    }

    /// Continues a request with its next access to the store. A started request is completed even if its node no longer waits.
    fn asks_store(&mut self, asked: Asked, round: usize, step: Step) {
        let (node, attempt) = asked;
        if let Some(&access) = asks(step).get(round).filter(|_| self.site.etcd.is_some()) {
            self.store.ask(Work {
                node,
                attempt,
                round,
                step,
                access,
            });
            return self.begin_commit();
        }
        self.in_work -= 1;
        if self.is_live(asked) {
            if step == Step::Config {
                // It has the answer's head, and waits for the rest without end.
                self.node(node).attempt += 1;
                let time = transfer(&self.site);
                self.tally.sent += time;
                self.sent = self.sent.max(self.clock.now) + time;
                self.clock.after(self.sent - self.clock.now, Event::Sent((node, attempt + 1)));
            } else {
                self.came(node, Came::Answer);
            }
        }
    }

    fn begin_commit(&mut self) {
        let Some(etcd) = self.site.etcd else {
            return;
        };
        if let Some(time) = self.store.begin(&etcd, &self.site) {
            self.clock.after(time, Event::Stored);
        }
    }

    /// Handles the result of a node's attempt.
    fn came(&mut self, number: u32, came: Came) {
        let (now, start, by_token) = (self.clock.now, self.start, self.site.by_token);
        let node = self.node(number);
        let had = node.connected;
        let waited_for_connection = node.waits && !had;
        node.waits = false;
        let next = node.goes_on(came, by_token, now, start);
        let (asked, has, took) = ((number, node.attempt), node.connected, now - node.came);
        self.waiting -= usize::from(waited_for_connection);
        let ends = matches!(next, Next::Full | Next::GaveUp);
        self.connections -= usize::from(had && (!has || ends));
        match next {
            Next::Ask => self.ask(number),
            Next::Pause(time) => {
                if has {
                    self.idle.push_back(asked);
                }
                self.clock.after(time, Event::Again(number));
            }
            Next::Full => {
                self.tally.took.push(took);
                self.tally.lasted = now;
            }
            Next::GaveUp => self.tally.gave_up += 1,
        }
    }
}
