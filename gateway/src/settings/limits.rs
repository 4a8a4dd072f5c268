//! Limits for one request, and for all of them together.

use std::time::Duration;

use attest::protocol::EVIDENCE_BODY_LIMIT_BYTES;
use serde::Deserialize;

use super::Fault;
use super::lifetimes::seconds;

/// Least memory for bodies, in bytes: twice the largest body that there is, so that one of them never keeps all others waiting.
const BODY_BYTES_LEAST: usize = 2 * EVIDENCE_BODY_LIMIT_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once, from their handshake on.
    pub connections: usize,
    /// Connections at once that wait for their handshake.
    pub waiting: usize,
    /// Requests in work at once.
    pub requests: usize,
    /// Memory for the bodies of requests, in bytes: those under way and those in work.
    pub body_bytes: usize,
    /// Time limit for the TLS handshake.
    pub handshake: Duration,
    /// Time limit for a request's head.
    pub header: Duration,
    /// Time limit for a whole request, including its body and the making of the answer.
    pub request: Duration,
    /// Time limit for requests under way when the gateway stops.
    pub drain: Duration,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsSection {
    connections: usize,
    waiting: usize,
    requests: usize,
    body_bytes: usize,
    handshake_seconds: u32,
    header_seconds: u32,
    request_seconds: u32,
    drain_seconds: u32,
}

impl Default for LimitsSection {
    fn default() -> Self {
        // Ignition gives up a TLS handshake, and the wait for a response's head, after 10 s.
        Self {
            connections: 2048,
            // A power cut's worth: they cost a socket each.
            waiting: 16_384,
            requests: 256,
            // Two for each request in work, each with an event log of fifty kilobytes; more wait for room.
            body_bytes: 32 * 1024 * 1024,
            handshake_seconds: 10,
            header_seconds: 10,
            request_seconds: 30,
            drain_seconds: 20,
        }
    }
}

pub(super) fn checked(section: &LimitsSection) -> Result<Limits, Fault> {
    let LimitsSection {
        connections,
        waiting,
        requests,
        body_bytes,
        handshake_seconds,
        header_seconds,
        request_seconds,
        drain_seconds,
    } = *section;
    if connections == 0 || waiting == 0 || requests == 0 {
        return Err(("limits", "0".to_owned(), "connections, waiting and requests must be at least 1"));
    }
    if body_bytes < BODY_BYTES_LEAST {
        return Err(("limits.body_bytes", body_bytes.to_string(), "at least 4194304 bytes"));
    }
    Ok(Limits {
        connections,
        waiting,
        requests,
        body_bytes,
        handshake: seconds("limits.handshake_seconds", handshake_seconds, (120, "1 to 120 seconds"))?,
        header: seconds("limits.header_seconds", header_seconds, (120, "1 to 120 seconds"))?,
        request: seconds("limits.request_seconds", request_seconds, (300, "1 to 300 seconds"))?,
        drain: seconds("limits.drain_seconds", drain_seconds, (300, "1 to 300 seconds"))?,
    })
}
