//! `attest-gateway reference-values`: files of a pool, which a serving gateway reads again when they change.

mod accept;
mod deny;
mod export;
mod import;
mod lapse;
mod list;
mod pending;
mod predict;
mod record;
mod remove;
mod set;
mod show;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest::reference_sets::{Generation, ReferenceSet, SET_LIMIT_BYTES, Time};
use attest_log::admin::By;
use attest_system::files;

/// Who may read a new file: digests of what is booted are no secret.
const MODE: u32 = 0o644;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the generations of files: since when, by whom, from what, until when.
    List(list::Arguments),
    /// Print the values of a generation.
    Show(show::Arguments),
    /// Compute what machines will measure, from the files that they will boot. No gateway needs to be here.
    Predict(Box<predict::Arguments>),
    /// Add a generation from what a node had booted when it was trusted last.
    Record(record::Arguments),
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
        Command::Predict(arguments) => return predict::run(arguments),
        Command::List(arguments) => list::run(arguments)?,
        Command::Show(arguments) => show::run(arguments)?,
        Command::Record(arguments) => record::run(config, arguments)?,
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

/// A file that is there.
fn read(path: &Path) -> anyhow::Result<ReferenceSet> {
    let named = || path.display().to_string();
    let text = String::from_utf8(bytes(path)?).with_context(named)?;
    ReferenceSet::parse(&text).with_context(named)
}

/// What is in a file of bounded length.
fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let named = || path.display().to_string();
    let length = fs::metadata(path).with_context(named)?.len();
    if length > u64::try_from(SET_LIMIT_BYTES)? {
        bail!("{}: {length} bytes, at most {SET_LIMIT_BYTES} are read", path.display());
    }
    fs::read(path).with_context(named)
}

/// A file, with nothing in it if it is not there.
fn read_or_new(path: &Path) -> anyhow::Result<ReferenceSet> {
    match path.try_exists() {
        Ok(false) => Ok(ReferenceSet::default()),
        _ => read(path),
    }
}

/// Writes a file whole or not at all.
fn write(path: &Path, generations: Vec<Generation>) -> anyhow::Result<()> {
    let set = ReferenceSet::new(generations).with_context(|| path.display().to_string())?;
    let text = set.to_json().with_context(|| path.display().to_string())?;
    Ok(files::replace(path, MODE, &text)?)
}

/// The generation of that name.
fn generation<'s>(generations: &'s mut [Generation], path: &Path, name: &str) -> anyhow::Result<&'s mut Generation> {
    let found = generations.iter_mut().find(|generation| generation.name == name);
    found.with_context(|| format!("{}: no generation is named {name:?}", path.display()))
}

/// Returns the user that runs this command, as files record it: the one that has used sudo, or the process's user. Call it before the
/// process becomes another user.
pub(super) fn who() -> String {
    let By { uid, user, sudo_user, .. } = By::this_process();
    sudo_user.or(user).unwrap_or_else(|| format!("uid {uid}"))
}

fn now() -> Time {
    Time { at: super::now() }
}

fn time(text: &str) -> Result<Time, String> {
    text.to_owned().try_into()
}
