//! Measured pauses and timeouts of Ignition (`docs/reference/ignition.md`).

use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
pub const CONNECT_LIMIT: Duration = Duration::from_secs(30);
pub const TLS_LIMIT: Duration = Duration::from_secs(10);
pub const HEAD_LIMIT: Duration = Duration::from_secs(10);

/// Endless sequence of pauses.
#[derive(Debug)]
pub struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Pauses {
    pub fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}
