//! `attest-gateway log export`.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use attest_gateway::settings::Settings;
use attest_system::files::{self, PRIVATE};

use super::chains::Chains;
use super::row::visible_json;
use super::source::{Opened, Source, Unread};
use crate::commands::output::{Output, Reader, stdout};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: November, for an archive\n  attest-gateway log export --since 2026-11-01T00:00:00Z --until 2026-11-30T23:59:59Z --output november.jsonl\n\nExample: refusals, as a table\n  attest-gateway log export --verdict refused | jq -r '[.time, .pool, .name // .identity // .peer, .code, .reason] | @csv' > refused.csv\n\nThe lines are the log's own, byte for byte: without filters `audit --log` verifies them, and `--continued` the last of them; with filters lines are missing. Where they are of several chains they verify when they are cut apart, and standard error says where.\nTo a terminal control characters are written as JSON escapes.\nExit code 1 if a line is no record: without a filter it is written all the same, unless it is cut off or longer than 16 MiB."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Into a new file, which is there when it is whole; standard output otherwise.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(settings: &Settings, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let source = arguments.source.clone().with_identities(settings)?;
    let opened = source.open(settings, source.last)?;
    let unread = match &arguments.output {
        Some(path) => into_file(path, |output| write(&opened, &source, output, false))?,
        None => {
            let (mut output, terminal) = stdout()?;
            write(&opened, &source, &mut output, terminal)?
        }
    };
    Ok(ExitCode::from(u8::from(unread.say())))
}

fn write<W: Write>(opened: &Opened, source: &Source, output: &mut Output<W>, terminal: bool) -> anyhow::Result<Unread> {
    let mut chains = Chains::default();
    let unread = opened.each(|read| {
        chains.line(read);
        match &read.fields {
            Some(fields) if !source.filter.takes(fields, read.line) => Ok(Reader::There),
            None if !source.filter.is_empty() => Ok(Reader::There),
            _ => put_as_it_is(output, read.line, terminal),
        }
    })?;
    output.flush()?;
    if source.filter.is_empty() {
        chains.say();
    }
    Ok(unread)
}

/// A line of the log; for a terminal without what it takes for a command.
pub(crate) fn put_as_it_is<W: Write>(output: &mut Output<W>, line: &[u8], terminal: bool) -> anyhow::Result<Reader> {
    let mut bytes = match terminal {
        true => visible_json(&String::from_utf8_lossy(line)).into_bytes(),
        false => line.to_owned(),
    };
    bytes.push(b'\n');
    output.put(&bytes)
}

/// A new file, durable and whole, or none.
pub(crate) fn into_file<T>(path: &Path, write: impl FnOnce(&mut Output<File>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    if path.symlink_metadata().is_ok() {
        bail!("{} exists, and is left as it is", path.display());
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let opened = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(&part);
    let opened = opened.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow!(
            "{} exists: another command is writing it, or was broken off; remove it if none is",
            part.display()
        ),
        _ => anyhow!("{}: {error}", part.display()),
    });
    let mut output = Output::new(opened?, part.display().to_string());
    let written = write(&mut output).and_then(|written| {
        output.into_inner().sync_all().with_context(|| part.display().to_string())?;
        files::rename(&part, path)?;
        Ok(written)
    });
    if written.is_err() {
        // What is there of it is of no use; why it failed is said.
        drop(std::fs::remove_file(&part));
    }
    written
}
