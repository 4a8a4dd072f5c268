//! Simulated node: its next request, and the pause before it. Its pauses are those of `attest-node` and Ignition.

use std::time::{Duration, Instant};

use super::clock::{Time, nanos};
use super::site::{COMPRESSED_BYTES, CONFIG_BYTES, Site, Step};
use crate::wait_limits::WaitLimits;
use crate::waits::attest_node::{self, Asking};
use crate::waits::ignition::{self, Pauses};

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// Answer with status 200.
    Answer,
    /// Answer with status 503, on a connection that stays open.
    ComeAgain,
    /// No connection, or no answer before the timeout.
    Nothing,
}

/// Next action of a node.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Ask,
    Pause(Time),
    /// End of a node with its full config.
    Full,
    /// End of a node that has given up without its full config.
    GaveUp,
}

pub struct Node {
    pub step: Step,
    pub connected: bool,
    /// Set while the node waits for a connection, or for its turn.
    pub waits: bool,
    /// Number of the attempt in progress: events of earlier ones are ignored.
    pub attempt: u32,
    pub failed: u32,
    pub came: Time,
    wait_limits: WaitLimits,
    asking: Asking,
    pauses: Pauses,
}

impl Node {
    /// Creates a node that has just started.
    pub fn new(now: Time, start: Instant) -> Self {
        Self {
            step: Step::Discovery,
            connected: false,
            waits: false,
            attempt: 0,
            failed: 0,
            came: now,
            wait_limits: attest_node::patience(),
            asking: Asking::begun(at(now, start)),
            pauses: Pauses::default(),
        }
    }

    /// Returns the node's timeout for a connection. For Ignition it is the timeout of the TLS handshake, because the gateway makes it wait
    /// for that.
    pub fn connect_limit(&self) -> Time {
        nanos(match self.step {
            Step::Config => ignition::TLS_LIMIT,
            _ => attest_node::CONNECT_LIMIT,
        })
    }

    /// Returns the node's timeout for an answer.
    pub fn answer_limit(&self) -> Time {
        nanos(match self.step {
            Step::Config => ignition::HEAD_LIMIT,
            _ => attest_node::REQUEST_LIMIT,
        })
    }

    /// Returns the next action after a result. `now` is simulated time, counted from `start`.
    pub fn goes_on(&mut self, came: Came, by_token: bool, now: Time, start: Instant) -> Next {
        self.attempt += 1;
        let time = at(now, start);
        if came != Came::Answer {
            self.failed += 1;
        }
        // Its connection is lost with what it waited for.
        self.connected &= came != Came::Nothing;
        if self.step == Step::Config {
            return match came {
                Came::Answer => Next::Full,
                _ => Next::Pause(nanos(self.pauses.next())),
            };
        }
        let paused = match came {
            Came::Answer => {
                self.wait_limits.answered(time);
                self.asking = Asking::begun(time);
                self.step = match self.step {
                    Step::Discovery if !by_token => Step::Challenge,
                    Step::Challenge => Step::Evidence,
                    _ => Step::Config,
                };
                // Ignition comes on a connection of its own.
                self.connected &= self.step != Step::Config;
                return Next::Ask;
            }
            Came::ComeAgain => self.asking.held(&self.wait_limits, "unavailable", None, time),
            Came::Nothing => self.asking.unanswered(&self.wait_limits, false, time),
        };
        paused.map_or(Next::GaveUp, |pause| Next::Pause(nanos(pause)))
    }
}

fn at(now: Time, start: Instant) -> Instant {
    start + Duration::from_nanos(now)
}

/// Returns the transfer time of a config on the network of a replica.
pub const fn transfer(site: &Site) -> Time {
    let bytes = if site.by_token { CONFIG_BYTES } else { COMPRESSED_BYTES };
    bytes * 8 / site.gigabits
}
