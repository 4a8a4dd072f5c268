//! `connect ADDRESS:PORT`: standard input and output, joined to a TCP connection. QEMU starts a process of it for each connection that a
//! guest opens to a forwarded address. It ends when the server has sent everything.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::ExitCode;
use std::thread;

/// Maximum size of one read.
const BUFFER_BYTES: usize = 16 * 1024;

fn main() -> ExitCode {
    match std::env::args().nth(1).map(|address| join(&address)) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("connect: {error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("usage: connect ADDRESS:PORT");
            ExitCode::FAILURE
        }
    }
}

fn join(address: &str) -> io::Result<()> {
    let server = TcpStream::connect(address)?;
    server.set_nodelay(true)?;
    let (from_guest, from_server) = (server.try_clone()?, server);
    thread::spawn(move || {
        // What cannot be passed on is a connection that broke: the server is told in either case.
        let _ = pass(&mut io::stdin().lock(), &mut &from_guest);
        let _ = from_guest.shutdown(Shutdown::Write);
    });
    pass(&mut &from_server, &mut io::stdout().lock())
}

/// Passes bytes on as they come, without waiting for more of them or for the end of a line.
fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => {
                to.write_all(buffer.get(..count).unwrap_or_default())?;
                to.flush()?;
            }
        }
    }
}
