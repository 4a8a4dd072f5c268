//! A proxy in front of a software TPM: passes commands on, and answers some of them itself with a response code.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};

use crate::swtpm::TpmServer;

/// Header of a command and of a response: tag, size, command or response code (TPM 2.0 Part 1, "Command/Response Structure").
const HEADER_BYTES: usize = 10;
/// Largest command or response: TPMs have buffers of 4 KiB.
const MESSAGE_LIMIT_BYTES: usize = 64 * 1024;
/// Attempts to find two neighbouring free ports.
const PORTS_ATTEMPTS: usize = 20;
/// TPM_ST_NO_SESSIONS: the tag of a response that is nothing but a code.
const NO_SESSIONS: u16 = 0x8001;

/// Proxy that listens until the process ends, at a port for commands and, one above, one for swtpm's control channel.
pub struct TpmProxy {
    port: u16,
    state: Arc<Mutex<ProxyState>>,
}

#[derive(Default)]
struct ProxyState {
    fault: Option<TpmFault>,
    /// Codes of the commands that were passed on.
    passed: Vec<u32>,
}

struct TpmFault {
    response_code: u32,
    /// The command concerned; every command by default.
    command: Option<u32>,
    /// Number of such answers to a command before it is passed on; unlimited by default.
    times: Option<u32>,
    /// Number of such answers to the present command.
    answered: u32,
}

impl ProxyState {
    /// Returns the response code with which to answer a command, instead of passing it on.
    fn decide(&mut self, command: u32) -> Option<u32> {
        if let Some(fault) = &mut self.fault
            && fault.command.is_none_or(|concerned| concerned == command)
        {
            if fault.times.is_none_or(|times| fault.answered < times) {
                fault.answered += 1;
                return Some(fault.response_code);
            }
            fault.answered = 0;
        }
        self.passed.push(command);
        None
    }
}

impl TpmProxy {
    /// Starts a proxy in front of this TPM, without a fault.
    pub fn start(tpm: &TpmServer) -> Result<Self> {
        let (commands, control, port) = listen()?;
        let state = Arc::new(Mutex::new(ProxyState::default()));
        let (tpm_port, at_work) = (tpm.port(), Arc::clone(&state));
        serve(commands, move |client| relay_commands(client, tpm_port, &at_work));
        let control_port = tpm_port.checked_add(1).context("a port")?;
        serve(control, move |client| relay_bytes(client, control_port));
        Ok(Self { port, state })
    }

    /// Returns the TCTI string for tss-esapi and tpm2-tools.
    #[must_use]
    pub fn tcti(&self) -> String {
        format!("swtpm:host=127.0.0.1,port={}", self.port)
    }

    /// Makes the proxy answer each command this number of times with this response code before it passes it on.
    pub fn answer_each(&self, response_code: u32, times: u32) {
        self.set(TpmFault {
            response_code,
            command: None,
            times: Some(times),
            answered: 0,
        });
    }

    /// Makes the proxy answer the commands of this code with this response code, always.
    pub fn answer_always(&self, command: u32, response_code: u32) {
        self.set(TpmFault {
            response_code,
            command: Some(command),
            times: None,
            answered: 0,
        });
    }

    /// Makes the proxy pass every command on.
    pub fn answer_never(&self) {
        self.lock().fault = None;
    }

    /// Returns the codes of the commands passed on since the last call.
    #[must_use]
    pub fn passed(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().passed)
    }

    fn set(&self, fault: TpmFault) {
        self.lock().fault = Some(fault);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn listen() -> Result<(TcpListener, TcpListener, u16)> {
    for _ in 0..PORTS_ATTEMPTS {
        let commands = TcpListener::bind(("127.0.0.1", 0)).context("asking for a port")?;
        let port = commands.local_addr()?.port();
        if let Some(Ok(control)) = port.checked_add(1).map(|control| TcpListener::bind(("127.0.0.1", control))) {
            return Ok((commands, control, port));
        }
    }
    bail!("no two free ports in {PORTS_ATTEMPTS} attempts")
}

/// Serves connections; errors of a connection are left to its client.
fn serve(listener: TcpListener, relay: impl Fn(TcpStream) -> io::Result<()> + Clone + Send + 'static) {
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let relay = relay.clone();
            thread::spawn(move || relay(client));
        }
    });
}

/// Forwards commands. swtpm serves one connection at a time: there is one to it for each client, until that hangs up.
fn relay_commands(mut client: TcpStream, tpm_port: u16, state: &Mutex<ProxyState>) -> io::Result<()> {
    let mut tpm = TcpStream::connect(("127.0.0.1", tpm_port))?;
    loop {
        let command = read_message(&mut client)?;
        let code = command
            .get(6..HEADER_BYTES)
            .and_then(|code| code.try_into().ok())
            .map_or(0, u32::from_be_bytes);
        let decision = state.lock().unwrap_or_else(PoisonError::into_inner).decide(code);
        let response = match decision {
            Some(response_code) => [&NO_SESSIONS.to_be_bytes()[..], &10_u32.to_be_bytes(), &response_code.to_be_bytes()].concat(),
            None => {
                tpm.write_all(&command)?;
                read_message(&mut tpm)?
            }
        };
        client.write_all(&response)?;
    }
}

/// Reads a command or a response, by the size in its header.
fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; HEADER_BYTES];
    stream.read_exact(&mut message)?;
    let size = message
        .get(2..6)
        .and_then(|size| size.try_into().ok())
        .map_or(0, u32::from_be_bytes);
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if !(HEADER_BYTES..=MESSAGE_LIMIT_BYTES).contains(&size) {
        return Err(io::Error::other(format!("a message of {size} bytes")));
    }
    message.resize(size, 0);
    stream.read_exact(message.get_mut(HEADER_BYTES..).unwrap_or_default())?;
    Ok(message)
}

fn relay_bytes(client: TcpStream, port: u16) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", port))?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let copied = io::copy(&mut from_client, &mut to_server);
        to_server.shutdown(Shutdown::Write)?;
        copied
    });
    let (mut from_server, mut to_client) = (server, client);
    io::copy(&mut from_server, &mut to_client)?;
    to_client.shutdown(Shutdown::Both)
}
