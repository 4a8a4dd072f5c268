//! Messages of this program: lines on stderr, and timeout extensions for systemd.

use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use std::{env, io};

/// A line on stderr, which in the initramfs is the console and the journal.
pub fn print_line(line: &str) {
    // What cannot be said is no reason to end: eprintln! would.
    let _ = writeln!(io::stderr(), "attest-node: {line}");
}

/// Time reserved after the deadline of the work: a line on the console, and a message to the gateway.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// Has systemd wait for so long from now, and a moment more, if it started this program: more than its unit's `TimeoutStartSec=` allows.
///
/// The message is sd_notify(3)'s `EXTEND_TIMEOUT_USEC=`. A failure to send it is not reported: then the unit's own timeout applies.
pub fn extend(time: Duration, status: &str) {
    if let Some(socket) = env::var_os("NOTIFY_SOCKET") {
        let message = format!("EXTEND_TIMEOUT_USEC={}\nSTATUS={status}\n", (time + LAST_WORDS).as_micros());
        let _ = notify(socket.as_bytes(), message.as_bytes());
    }
}

/// `socket` is a path, or `@` and an abstract name.
fn notify(socket: &[u8], message: &[u8]) -> io::Result<usize> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn notifies_systemd_at_path_or_abstract_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("attest-node-test-{}", std::process::id());
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.as_os_str().as_bytes().to_vec()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}").into_bytes(),
            ),
        ];
        for (socket, address) in sockets {
            notify(&address, b"STATUS=x").unwrap();
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(buffer.get(..length), Some(b"STATUS=x".as_slice()));
        }
        assert!(notify(b"/no/such/socket", b"").is_err());
    }
}
