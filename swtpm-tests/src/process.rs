//! A child process that cannot outlive its owner, and whose output is read line by line as it comes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Called with each line of output as it arrives.
pub type OnLine = Box<dyn FnMut(&str) + Send>;

/// A running (or ended) child; killed on drop.
pub struct Process {
    name: String,
    child: Child,
    output: Arc<ProcessOutput>,
    log: PathBuf,
}

#[derive(Default)]
struct ProcessOutput {
    state: Mutex<OutputState>,
    changed: Condvar,
}

#[derive(Default)]
struct OutputState {
    lines: Vec<String>,
    open_streams: u8,
}

impl ProcessOutput {
    fn lock(&self) -> MutexGuard<'_, OutputState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    /// Starts `program`; its standard output and error go, line by line, to `log`, to `on_line` and to [`Process::wait_line`].
    pub fn spawn<A: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
        log: &Path,
        on_line: Option<OnLine>,
    ) -> Result<Self> {
        let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        // The kernel kills the child if this process dies without running its destructors.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let output = Arc::new(ProcessOutput::default());
        output.lock().open_streams = 2;
        let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let sink = Arc::new(Mutex::new((file, on_line)));
        if let Some(stdout) = child.stdout.take() {
            read_lines(stdout, Arc::clone(&output), Arc::clone(&sink));
        }
        if let Some(stderr) = child.stderr.take() {
            read_lines(stderr, Arc::clone(&output), sink);
        }
        Ok(Self {
            name,
            child,
            output,
            log: log.to_path_buf(),
        })
    }

    /// Returns all lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.output.lock().lines.clone()
    }

    /// Returns the path of the file with the output.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Waits for a line that `wanted` accepts, past or future; fails if the output ends or `limit` passes first.
    pub fn wait_line(&self, limit: Duration, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let deadline = Instant::now() + limit;
        let mut state = self.output.lock();
        let mut seen = 0;
        loop {
            if let Some(line) = state.lines.iter().skip(seen).find(|line| wanted(line)) {
                return Ok(line.clone());
            }
            seen = state.lines.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if state.open_streams == 0 || left.is_zero() {
                let why = if left.is_zero() { "in time" } else { "before it ended" };
                drop(state);
                bail!("{} did not print the line {why}{}", self.name, self.tail());
            }
            state = self
                .output
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        let mut state = self.output.lock();
        while state.open_streams > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                bail!("{} still runs after {} s{}", self.name, limit.as_secs(), self.tail());
            }
            state = self
                .output
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(state);
        self.child.wait().with_context(|| format!("waiting for {}", self.name))
    }

    /// Sends SIGTERM to the process.
    pub fn terminate(&self) -> Result<()> {
        rustix::process::kill_process(self.id()?, rustix::process::Signal::TERM).with_context(|| format!("terminating {}", self.name))
    }

    pub(crate) fn id(&self) -> Result<rustix::process::Pid> {
        let id = i32::try_from(self.child.id()).ok();
        id.and_then(rustix::process::Pid::from_raw).context("a process id")
    }

    /// Sends SIGKILL, and waits for the end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("killing {}", self.name))?;
        self.child.wait().map(|_| ()).with_context(|| format!("waiting for {}", self.name))
    }

    /// Returns the last lines and the log's path, for an error message.
    #[must_use]
    pub fn tail(&self) -> String {
        let lines = self.lines();
        let last: Vec<&str> = lines.iter().rev().take(15).rev().map(String::as_str).collect();
        format!("; its last lines (all of them: {}):\n  {}", self.log.display(), last.join("\n  "))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody to tell of another failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(stream: impl Read + Send + 'static, output: Arc<ProcessOutput>, sink: Arc<Mutex<(File, Option<OnLine>)>>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let line = plain_text(&bytes);
            bytes.clear();
            {
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                let (file, on_line) = &mut *sink;
                // A full disk shows in the test that reads the log; the lines below are what is waited for.
                let _ = writeln!(file, "{line}");
                if let Some(on_line) = on_line {
                    on_line(&line);
                }
            }
            output.lock().lines.push(line);
            output.changed.notify_all();
        }
        output.lock().open_streams -= 1;
        output.changed.notify_all();
    });
}

/// Returns a line without terminal control sequences: firmware and systemd colour their consoles.
fn plain_text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            // ECMA-48: CSI, parameters, and a final byte in @..~.
            '\u{1b}' => {
                if characters.next() == Some('[') {
                    characters.by_ref().find(|end| ('@'..='~').contains(end));
                }
            }
            '\r' | '\n' => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_lines_lose_their_colours() {
        assert_eq!(
            plain_text(b"[\x1b[0;32m  OK  \x1b[0m] Reached target\r\n"),
            "[  OK  ] Reached target"
        );
        assert_eq!(plain_text(b"\x1bc\x1b[?7l@@ begin\r\n"), "@@ begin");
    }

    #[test]
    fn wait_line_fails_after_the_output_ends() {
        let folder = tempfile::tempdir().unwrap();
        let process = Process::spawn(Path::new("echo"), ["hello"], &folder.path().join("log"), None).unwrap();
        assert_eq!(process.wait_line(Duration::from_secs(10), |line| line == "hello").unwrap(), "hello");
        let error = process.wait_line(Duration::from_secs(10), |line| line == "goodbye").unwrap_err();
        assert!(error.to_string().contains("before it ended"), "{error}");
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let process = Process::spawn(Path::new("sleep"), ["1000"], &folder.path().join("log"), None).unwrap();
        let proc_entry = PathBuf::from(format!("/proc/{}", process.child.id()));
        assert!(proc_entry.exists());
        drop(process);
        assert!(!proc_entry.exists());
    }
}
