//! Where lines go: whole ones, until nobody reads them any longer.

use std::io::{ErrorKind, IsTerminal, StdoutLock, Write};

use anyhow::Context;

/// How much is held before it is written.
const BUFFER_BYTES: usize = 64 * 1024;

/// Whether there is still somebody who reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    There,
    /// `| head` has seen enough.
    Gone,
}

/// Lines on their way. What is written is whole lines.
pub struct Output<W> {
    to: W,
    name: String,
    held: Vec<u8>,
}

/// Standard output, and whether it is a terminal.
pub fn stdout() -> (Output<StdoutLock<'static>>, bool) {
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    (Output::new(stdout.lock(), "standard output".to_owned()), terminal)
}

impl<W: Write> Output<W> {
    pub fn new(to: W, name: String) -> Self {
        Self {
            to,
            name,
            held: Vec::new(),
        }
    }

    /// A text that ends with a line's end.
    pub fn put(&mut self, text: &[u8]) -> anyhow::Result<Reader> {
        self.held.extend_from_slice(text);
        if self.held.len() < BUFFER_BYTES {
            return Ok(Reader::There);
        }
        self.flush()
    }

    /// Writes what is held.
    pub fn flush(&mut self) -> anyhow::Result<Reader> {
        let held = std::mem::take(&mut self.held);
        match self.to.write_all(&held).and_then(|()| self.to.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
            written => written.map(|()| Reader::There).with_context(|| self.name.clone()),
        }
    }

    pub fn into_inner(self) -> W {
        self.to
    }
}
