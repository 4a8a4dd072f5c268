//! `attest-gateway waiting`: machines that wait for the administrator's answer.

mod accept;
mod acceptance;
mod list;
mod refuse;
mod show;
pub(super) mod shown;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use attest_gateway::settings::Settings;
use attest_machines::waiting::{self, QuestionRow};
use attest_pool::PoolFile;

use super::beginnings::completed;
use super::{now, with_store};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List what machines wait for.
    List(list::Arguments),
    /// Print a question: which machines wait, what an acceptance writes, and the commands that answer it.
    Show(show::Arguments),
    /// Accept what machines wait for, or what a machine was refused for.
    Accept(accept::Arguments),
    /// Refuse what machines wait for: they are refused at once.
    Refuse(refuse::Arguments),
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(arguments) => list::run(config, arguments)?,
        Command::Show(arguments) => show::run(config, arguments)?,
        Command::Accept(arguments) => accept::run(config, arguments)?,
        Command::Refuse(arguments) => refuse::run(config, arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the contents of each `pool.toml`. One that cannot be read is left out: `check` reports it, and its questions exist all the same.
pub(super) fn pool_files(settings: &Settings) -> anyhow::Result<BTreeMap<String, PoolFile>> {
    let folders = attest_pool::folders(&settings.pools)?.pools.into_iter();
    Ok(folders
        .filter_map(|(pool, folder)| Some((pool, attest_pool::pool_file(&folder).ok()?)))
        .collect())
}

/// Reads all questions, of one pool or of all. This thread acts as the state's owner from then on.
fn questions(config: &Path, pool: Option<&str>) -> anyhow::Result<Vec<QuestionRow>> {
    let of = pool.map(str::to_owned);
    with_store(config, |store| async move {
        Ok(waiting::questions(&store, of.as_deref(), now()).await?)
    })
}

/// Like [`questions`], in a thread of its own: files of pools may be another user's to write.
fn questions_aside(config: &Path, pool: Option<&str>) -> anyhow::Result<Vec<QuestionRow>> {
    let read = || questions(config, pool);
    std::thread::scope(|scope| scope.spawn(read).join()).map_err(|_| anyhow!("cannot read the store: the thread that read it failed"))?
}

/// Returns the question whose id begins so.
fn chosen(questions: &[QuestionRow], given: &str) -> anyhow::Result<QuestionRow> {
    let id = completed(given, questions.iter().map(|row| row.id.clone()))?;
    match questions.iter().find(|row| row.id == id) {
        Some(row) => Ok(row.clone()),
        None => bail!("question {given:?} does not exist; to list all: `attest-gateway waiting list --all`"),
    }
}
