//! `attest-gateway reference-values`: files of a pool, which a serving gateway reads again when they change.

mod export;
mod import;
mod lapse;
mod list;
mod remove;
mod show;

use std::path::Path;
use std::process::ExitCode;

use attest_command_line::reference_set_file::{bytes, generation, now, read, read_or_new, time, who, write};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the generations of a pool or a file, with author, origin and expiry.
    List(list::Arguments),
    /// Print the values of a generation.
    Show(show::Arguments),
    /// Add the generations of another file, or of a CoRIM.
    Import(import::Arguments),
    /// Print the accepted generations of several files as one file.
    Export(export::Arguments),
    /// Set the expiry of a generation.
    Lapse(lapse::Arguments),
    /// Remove a generation. The audit of older records does not need it.
    Remove(remove::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(arguments) => list::run(config, arguments)?,
        Command::Show(arguments) => show::run(arguments)?,
        Command::Import(arguments) => import::run(arguments)?,
        Command::Export(arguments) => export::run(arguments)?,
        Command::Lapse(arguments) => lapse::run(arguments)?,
        Command::Remove(arguments) => remove::run(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}
