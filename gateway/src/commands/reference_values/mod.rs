//! `attest-gateway reference-values`: files of a pool, which a serving gateway reads again when they change.

mod accept;
mod deny;
mod export;
mod import;
mod lapse;
mod list;
mod pending;
mod remove;
mod show;

use std::path::Path;
use std::process::ExitCode;

use attest_command_line::reference_set_file::{bytes, generation, now, read, read_or_new, time, who, write};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the generations of files: since when, by whom, from what, until when.
    List(list::Arguments),
    /// Print the values of a generation.
    Show(show::Arguments),
    /// List what machines have booted that no reference value has, while they wait for an answer.
    Pending(pending::Arguments),
    /// Accept what a question is about: add it to a file of the pool.
    Accept(accept::Arguments),
    /// Deny what a question is about: machines that boot it are refused.
    Deny(deny::Arguments),
    /// Add the generations of another file.
    Import(import::Arguments),
    /// Print one file of the generations that are accepted now, of several files.
    Export(export::Arguments),
    /// Let a generation lapse: now, or at a time.
    Lapse(lapse::Arguments),
    /// Remove a generation. Records that were made by it are replayed all the same.
    Remove(remove::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(arguments) => list::run(arguments)?,
        Command::Show(arguments) => show::run(arguments)?,
        Command::Pending(arguments) => pending::run(config, arguments)?,
        Command::Accept(arguments) => accept::run(config, arguments)?,
        Command::Deny(arguments) => deny::run(config, arguments)?,
        Command::Import(arguments) => import::run(arguments)?,
        Command::Export(arguments) => export::run(arguments)?,
        Command::Lapse(arguments) => lapse::run(arguments)?,
        Command::Remove(arguments) => remove::run(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
