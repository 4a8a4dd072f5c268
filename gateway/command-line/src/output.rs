//! Output of commands. Nothing else writes to standard output or standard error: the macros of `std` panic when a disk is full, or a pipe
//! is closed.

use std::fmt::Display;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use attest_system::advised_commands::runnable;
use serde::Serialize;

/// Name of the program, printed before messages on standard error.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Sets the program's name; only the first call counts.
pub fn set_program(name: &'static str) {
    PROGRAM.get_or_init(|| name);
}

/// Set by `--quiet`: notes and confirmations are not printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Prints only results and errors from then on.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Returns whether standard error takes colours: a terminal, and `NO_COLOR` is not set (<https://no-color.org>).
#[must_use]
pub fn is_coloured() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Size of the buffer, in bytes.
const BUFFER_BYTES: usize = 64 * 1024;
const STDOUT: &str = "standard output";

/// State of the reading end of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderState {
    There,
    /// The reader has closed the pipe, like `| head`.
    Gone,
}

/// A buffered writer of whole lines.
pub struct Output<W> {
    to: W,
    name: String,
    held: Vec<u8>,
}

/// Returns standard output, and whether it is a terminal.
///
/// # Errors
/// If it cannot be written at all.
pub fn stdout() -> anyhow::Result<(Output<File>, bool)> {
    let stdout = std::io::stdout();
    // Not by std's own handle: it takes one that is not open for writing for a success.
    let to = File::from(stdout.as_fd().try_clone_to_owned().context(STDOUT)?);
    Ok((Output::new(to, STDOUT.to_owned()), stdout.is_terminal()))
}

/// Prints a result for people. A reader that has closed the pipe is not an error: the exit code tells what the command found.
///
/// # Errors
/// If it cannot be written.
pub fn print(text: impl Display) -> anyhow::Result<()> {
    write(text.to_string().as_bytes()).map(drop)
}

/// Prints a result for programs, as JSON.
///
/// # Errors
/// If it cannot be written.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    write(text.as_bytes()).map(drop)
}

/// Prints a line like [`print`].
///
/// # Errors
/// If it cannot be written.
pub fn line(text: impl Display) -> anyhow::Result<()> {
    print(format_args!("{text}\n"))
}

/// Prints a line like [`line`], about a change that was made; nothing with `--quiet`.
///
/// # Errors
/// If it cannot be written; it was done all the same, which the error says.
pub fn done(text: impl Display) -> anyhow::Result<()> {
    if QUIET.load(Ordering::Relaxed) {
        return Ok(());
    }
    line(runnable(&text.to_string())).context("the command succeeded, but its output could not be written")
}

/// Prints bytes like [`print`]; returns whether they are still read.
///
/// # Errors
/// If it cannot be written.
pub fn write(bytes: &[u8]) -> anyhow::Result<ReaderState> {
    let (mut output, _) = stdout()?;
    match output.put(bytes)? {
        ReaderState::There => output.flush(),
        ReaderState::Gone => Ok(ReaderState::Gone),
    }
}

/// Writes an error to standard error, after the program's name; ignores errors in writing it.
pub fn warn(text: impl Display) {
    match PROGRAM.get() {
        Some(name) => error_line(format_args!("{name}: {text}")),
        None => error_line(text),
    }
}

/// Writes a note to standard error, or nothing with `--quiet`; ignores errors in writing it.
pub fn print_note(text: impl Display) {
    if !QUIET.load(Ordering::Relaxed) {
        error_line(text);
    }
}

/// Writes a line of an error that has several to standard error; ignores errors in writing it.
pub fn error_line(text: impl Display) {
    let text = format!("{text}\n");
    drop(std::io::stderr().write_all(runnable(&text).as_bytes()));
}

impl<W: Write> Output<W> {
    pub fn new(to: W, name: String) -> Self {
        Self {
            to,
            name,
            held: Vec::new(),
        }
    }

    /// Appends text, which must end with a line break.
    pub fn put(&mut self, text: &[u8]) -> anyhow::Result<ReaderState> {
        self.held.extend_from_slice(text);
        if self.held.len() < BUFFER_BYTES {
            return Ok(ReaderState::There);
        }
        self.flush()
    }

    /// Writes the buffered lines.
    pub fn flush(&mut self) -> anyhow::Result<ReaderState> {
        let held = std::mem::take(&mut self.held);
        match self.to.write_all(&held).and_then(|()| self.to.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ReaderState::Gone),
            written => written.map(|()| ReaderState::There).with_context(|| self.name.clone()),
        }
    }

    pub fn into_inner(self) -> W {
        self.to
    }
}
