use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use attest::reference_sets::{Generation, NewValue, Time, ValueOrigin, Values};
use attest_gateway::settings::Settings;
use attest_log::admin::{By, Verb};
use attest_machines::new_values::{self, Answered, Question, QuestionAnswer};

use super::{now, read_or_new, time, who, write};
use crate::commands::acting::change_store_as;
use crate::commands::beginnings::completed;
use crate::commands::{output, pool_folder, with_store};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: review the question first, then accept it\n  attest-gateway reference-values pending worker\n  attest-gateway reference-values accept worker 0f3c5d92a7b14e68c03f9d2b75a81e64 --set kernels.json --name 'kernel 6.12.43'\n\nThe command adds a generation with exactly these values to the file. Running gateways reload the file; waiting machines are trusted\nwhen they retry. Copy the file to the other gateways' hosts.\n\nA denied question can be accepted later."
)]
pub(crate) struct Arguments {
    /// Pool of the questions.
    pool: String,
    /// Ids of the questions, or their first 8 characters or more.
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// File in the pool's folder of reference values, *.json; it is created if it does not exist.
    #[arg(long, value_name = "FILE")]
    set: PathBuf,
    /// Name of the generation [default: question ID].
    #[arg(long)]
    name: Option<String>,
    /// Time at which the generation expires, such as 2026-06-03T10:00:00Z [default: never].
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Time>,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let by = By::this_process();
    let settings = Settings::load(config)?;
    let Arguments { pool, ids, .. } = arguments;
    let ids = &whole_ids(config, pool, ids)?;
    let folder = pool_folder(&settings, pool)?;
    let (sets, _) = attest_pool::reference_values(&folder)?;
    let sets = sets.with_context(|| {
        format!("pool {pool} has no section [reference_values] in its pool.toml, so it would not read the file: add the section first")
    })?;
    let file = in_folder(&sets, &arguments.set)?;
    let (values, first) = read_as_owner(config, pool, ids)?;
    let mut accepted = Values::default();
    values.iter().for_each(|value| value.add_to(&mut accepted));
    let name = arguments.name.clone().unwrap_or_else(|| format!("question {}", ids.join(" ")));
    let mut generations = read_or_new(&file)?.generations;
    generations.push(Generation {
        name: name.clone(),
        added: now(),
        by: who(),
        from: ValueOrigin::Recorded {
            node: first.machine,
            record: first.decision,
        },
        expires: arguments.until,
        values: accepted,
    });
    write(&file, generations)?;
    let answered = Answered {
        said: QuestionAnswer::Accepted {
            file: file.display().to_string(),
        },
        at: now().at,
        by: who(),
    };
    change_store_as(by, config, Verb::ReferenceValuesAccept, |store| async move {
        Ok(new_values::accept(&*store, pool, ids, &answered).await?)
    })?;
    output::done(format_args!(
        "{}: added generation {name:?} with {} values",
        file.display(),
        values.len()
    ))
}

/// Returns the ids, whole, of questions that may be given by their beginning.
fn whole_ids(config: &Path, pool: &str, given: &[String]) -> anyhow::Result<Vec<String>> {
    let read = || {
        with_store(config, |store| async move {
            Ok(new_values::questions(&store, Some(pool), crate::commands::now()).await?)
        })
    };
    let questions = std::thread::scope(|scope| scope.spawn(read).join()).map_err(|_| anyhow!("the store could not be read"))??;
    let ids: Vec<String> = questions.into_iter().map(|row| row.id).collect();
    given.iter().map(|given| completed(given, ids.iter().cloned())).collect()
}

/// Reads the questions in a thread of its own. That thread acts as the state's owner from then on, and pools may be another user's to
/// write.
fn read_as_owner(config: &Path, pool: &str, ids: &[String]) -> anyhow::Result<(Vec<NewValue>, Question)> {
    let read = || with_store(config, |store| async move { Ok(new_values::values_of(&store, pool, ids).await?) });
    std::thread::scope(|scope| scope.spawn(read).join()).map_err(|_| anyhow!("cannot read the store: the thread that read it failed"))?
}

/// Returns the path of the file, in the folder that the pool reads.
fn in_folder(folder: &Path, set: &Path) -> anyhow::Result<PathBuf> {
    let name = set.file_name().with_context(|| format!("{} is not a file", set.display()))?;
    let parent = set.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        let is_it = parent.canonicalize().ok() == folder.canonicalize().ok() && folder.exists();
        if !is_it {
            bail!(
                "--set {}: the pool reads its files from {}; name a file there",
                set.display(),
                folder.display()
            );
        }
    }
    if set.extension().is_none_or(|extension| extension != "json") {
        bail!("--set {}: the pool reads *.json only; name a file with that ending", set.display());
    }
    Ok(folder.join(name))
}
