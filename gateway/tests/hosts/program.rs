//! Program that runs on a host; killed when dropped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::network::Host;

/// Maximum duration of a start on a busy machine.
const START: Duration = Duration::from_secs(60);

pub struct Program {
    /// Part of a line on standard error that says that the program serves.
    serves: &'static str,
    process: Option<Child>,
}

impl Program {
    /// Describes a program that is not started yet.
    pub const fn new(serves: &'static str) -> Self {
        Self { serves, process: None }
    }

    /// Starts the program, without waiting until it serves.
    pub fn begin(&mut self, mut command: Command) -> Begun {
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        self.process = Some(process);
        let (says, said) = mpsc::channel();
        let serves = self.serves;
        // To its end, or it would wait for somebody to read.
        thread::spawn(move || {
            let mut said = Vec::new();
            for line in lines.map_while(Result::ok) {
                if line.contains(serves) {
                    // Nobody listens who has heard it once.
                    let _ = says.send(Ok(()));
                }
                said.push(line);
            }
            let _ = says.send(Err(said));
        });
        Begun(said)
    }

    /// Kills the program with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }

    /// Stops the program in order.
    pub fn stop(&mut self) {
        if let Some(status) = self.end() {
            assert!(status.success());
        }
    }

    /// Sends SIGTERM. Returns the exit status, if the program ran.
    pub fn end(&mut self) -> Option<ExitStatus> {
        let mut process = self.process.take()?;
        signal(&process, "TERM");
        Some(process.wait().unwrap())
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        signal(self.process.as_ref().unwrap(), name);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts keepalived on a host, with this configuration; its files are in the folder, named by the number.
pub fn keepalived(host: &Host, folder: &Path, number: usize, configuration: &str) -> Program {
    let path = |name: &str| folder.join(format!("{number}.{name}"));
    fs::write(path("conf"), configuration).unwrap();
    let mut command = host.command("keepalived");
    command.args(["--dont-fork", "--log-console", "--vrrp"]);
    for (option, name) in [("--use-file", "conf"), ("--pid", "pid"), ("--vrrp_pid", "vrrp-pid")] {
        command.arg(option).arg(path(name));
    }
    let mut program = Program::new("Startup complete");
    program.begin(command).serves();
    program
}

/// Started program that may not serve yet.
#[must_use]
pub struct Begun(mpsc::Receiver<Result<(), Vec<String>>>);

impl Begun {
    /// Waits until the program serves.
    pub fn serves(self) {
        self.try_serves().unwrap();
    }

    /// Like [`Begun::serves`], but returns the program's output if it ends first.
    pub fn try_serves(self) -> Result<(), Vec<String>> {
        self.0.recv_timeout(START).unwrap()
    }
}

fn signal(process: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &process.id().to_string()]).status().unwrap();
    assert!(sent.success());
}
