//! Messages to systemd by the protocol of sd_notify(3): readiness, reloads, the state in one line, and the watchdog. Without a service
//! manager (`NOTIFY_SOCKET` is not set) nothing is sent.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Longest wait for a manager that reads no messages.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// Longest line of the state, in characters.
const STATUS_LIMIT_CHARACTERS: usize = 1000;

/// Nodes get answers, although these may be 503 until the store answers.
pub(super) fn ready(status: &str) {
    send(&format!("READY=1\n{}", status_line(status)));
}

/// The gateway serves no new requests.
pub fn stopping() {
    send(&format!("STOPPING=1\n{}", status_line("stopping")));
}

/// A reload begins; [`ready`] ends it.
pub(super) fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let microseconds = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
    send(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\n{}", status_line("reloading")));
}

fn status_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text: String = text.chars().take(STATUS_LIMIT_CHARACTERS).collect();
    format!("STATUS={text}")
}

fn send(message: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send_to(&socket, message) {
        tracing::warn!(%error, "cannot send a message to the service manager at {}", socket.display());
    }
}

/// Sends a message to a socket in the file system, or to one with an abstract name, which begins with `@`.
fn send_to(socket: &OsStr, message: &str) -> std::io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.set_write_timeout(Some(SEND_LIMIT))?;
    datagram.send_to_addr(message.as_bytes(), &address).map(drop)
}

/// Pings of the watchdog. Each is sent by a thread of the runtime, when the owner of this asks for it: it proves that both make progress.
/// No ping depends on the store, the disk or the network.
#[derive(Debug)]
pub(super) struct Watchdog(Option<Interval>);

impl Watchdog {
    /// Returns the watchdog of the service manager, if it wants one for this process.
    pub(super) fn of_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let own = variable("WATCHDOG_PID").is_none_or(|id| id == std::process::id().to_string());
        let limit = variable("WATCHDOG_USEC")
            .and_then(|limit| limit.parse().ok())
            .map(Duration::from_micros);
        let every = limit.filter(|limit| own && !limit.is_zero()).map(|limit| {
            let mut every = interval(limit / 2);
            every.set_missed_tick_behavior(MissedTickBehavior::Delay);
            every
        });
        Self(every)
    }

    /// Sends a ping when it is due, for as long as it is polled.
    pub(super) async fn ping(&mut self) {
        match &mut self.0 {
            Some(every) => {
                every.tick().await;
                tokio::spawn(async { send("WATCHDOG=1") });
            }
            None => std::future::pending().await,
        }
    }
}

/// Pings for a gateway that does not accept connections yet; they end with the value.
pub(super) fn ping_while_starting() -> JoinSet<()> {
    let mut pings = JoinSet::new();
    pings.spawn(async {
        let mut watchdog = Watchdog::of_environment();
        loop {
            watchdog.ping().await;
        }
    });
    pings
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn sends_to_sockets_with_paths_and_abstract_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("attest-gateway-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let receivers = [
            (path.as_os_str().to_owned(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{name}").into(), UnixDatagram::bind_addr(&abstract_name).unwrap()),
        ];
        for (socket, receiver) in receivers {
            send_to(&socket, "READY=1").unwrap();
            let mut buffer = [0; 64];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(buffer.get(..length), Some(b"READY=1".as_slice()), "{}", socket.display());
        }
        assert!(send_to(OsStr::new("/no-such-socket"), "READY=1").is_err());
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(status_line("a\nREADY=1"), "STATUS=a READY=1");
        assert_eq!(
            status_line(&"ä".repeat(5000)).chars().count(),
            "STATUS=".len() + STATUS_LIMIT_CHARACTERS
        );
    }
}
