use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use attest::reference_sets::Time;
use attest_command_line::recorded;
use attest_command_line::reference_set_file::{now, time, who};
use attest_gateway::settings::Settings;
use attest_log::Acceptable;
use attest_log::admin::{By, Verb};
use attest_machines::waiting::{self, Acceptance, Answered, QuestionAnswer};
use attest_pool::PoolFile;
use attest_system::advised_commands::quoted;

use super::acceptance::{AcceptanceOptions, Accepted, write_files, written};
use super::shown::state;
use super::{chosen, pool_files, questions_aside};
use crate::commands::acting::change_store_as;
use crate::commands::{output, owner, visible};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: read the question, then accept it\n  attest-gateway waiting show 0f3c5d92a7b1\n  attest-gateway waiting accept 0f3c5d92a7b1\n\nExample: accept what a machine was refused for, after reading what that is\n  attest-gateway waiting accept --record 127e54f3ecdd6c496ca8b038a5da45d6\n  attest-gateway waiting accept --record 127e54f3ecdd6c496ca8b038a5da45d6 --yes\n\nExample: accept an unknown TPM, and give its machine a name\n  attest-gateway waiting accept 0f3c5d92a7b1 --name worker-7\n\nExactly what the question names is accepted. Booted values become a generation in a file of the pool's reference values, a machine a\nline in its inventory; running gateways reload both. Copy the file to the other gateways' hosts. Everything else is in the store.\nWaiting machines are trusted when they retry.\n\nA refused question can be accepted later."
)]
pub(crate) struct Arguments {
    /// Ids of the questions, or their first 8 digits or more.
    #[arg(value_name = "ID", required_unless_present = "record")]
    ids: Vec<String>,
    /// Pool of the questions.
    #[arg(long = "for", alias = "pool", value_name = "POOL")]
    pool: Option<String>,
    /// Accept what this record of the attestation log was refused for. Without --yes it is only printed.
    #[arg(long, value_name = "ID", conflicts_with_all = ["ids", "pool"])]
    record: Option<String>,
    /// Accept it.
    #[arg(long, requires = "record")]
    yes: bool,
    /// Name of the generation, or of the machine whose TPM is endorsed.
    #[arg(long)]
    name: Option<String>,
    /// File in the pool's folder of reference values, *.json; it is created if it does not exist [default: accepted.json].
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
    /// Time at which the generation expires, such as 2026-06-03T10:00:00Z [default: never].
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Time>,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let by = By::this_process();
    let settings = Settings::load(config)?;
    let files = pool_files(&settings)?;
    let all = match &arguments.record {
        Some(record) => {
            let one = of_record(&settings, record)?;
            check_not_refused(config, &one)?;
            vec![one]
        }
        None => {
            let questions = questions_aside(config, arguments.pool.as_deref())?;
            let mut all = Vec::new();
            for id in &arguments.ids {
                let row = chosen(&questions, id)?;
                all.push(Accepted {
                    pool: row.pool,
                    about: row.question.about,
                    machine: row.question.machine,
                    record: row.question.decision,
                });
            }
            all
        }
    };
    if arguments.name.is_some() && all.iter().filter(|one| one.about.is_unknown_machine()).count() > 1 {
        bail!("--name is the name of one machine: accept the others without it");
    }
    if let Some(name) = arguments
        .name
        .as_ref()
        .filter(|_| all.iter().any(|one| one.about.is_unknown_machine()))
        && !attest::challenge::is_node_name(name)
    {
        bail!("{name:?} is not a node name: use lower-case letters, digits, '-' and '.' only");
    }
    let is_of_values = |one: &Accepted| !one.about.values().is_empty();
    if arguments.name.is_some() && all.iter().any(is_of_values) && all.iter().any(|one| one.about.is_unknown_machine()) {
        bail!("--name would be the name of a machine and of a generation: accept booted values by a command of their own");
    }
    // An option that changes nothing was meant for another question.
    let takes_name = |one: &Accepted| is_of_values(one) || matches!(one.about, Acceptable::Ek(_));
    if arguments.name.is_some() && !all.iter().any(takes_name) {
        bail!("--name is for booted values and for unknown TPMs: accept this without it");
    }
    if (arguments.set.is_some() || arguments.until.is_some()) && !all.iter().any(is_of_values) {
        bail!("--set and --until are for booted values: accept this without them");
    }
    if let ([one], Some(_), false) = (all.as_slice(), &arguments.record, arguments.yes) {
        return preview(one, &files, arguments);
    }
    let options = AcceptanceOptions {
        set: arguments.set.as_deref(),
        name: arguments.name.as_deref(),
        until: arguments.until,
    };
    // What the store refuses is known before a file has it. A thread of its own acts as the state's owner: pools may be another user's.
    let (stored, filed): (Vec<Accepted>, Vec<Accepted>) = all.into_iter().partition(|one| one.about.is_in_store());
    if !stored.is_empty() {
        let to = write_files(&stored, &files, options)?;
        owner::acting(&settings, || answer(by.clone(), config, &stored, &to, arguments.name.as_deref()))?;
    }
    if !filed.is_empty() {
        let to = write_files(&filed, &files, options)?;
        answer(by, config, &filed, &to, None)?;
    }
    Ok(())
}

/// Prints what an acceptance by a record would accept, and the command that does so.
fn preview(one: &Accepted, files: &BTreeMap<String, PoolFile>, arguments: &Arguments) -> anyhow::Result<()> {
    output::line(format_args!(
        "pool {}, {}: {}",
        one.pool,
        visible(&one.machine),
        visible(&one.about.to_string())
    ))?;
    for value in one.about.rows() {
        output::line(format_args!("  {}: {}", value.what, visible(&value.value)))?;
    }
    output::line(format_args!(
        "an acceptance writes: {}",
        visible(&written(&one.about, &one.pool, files.get(&one.pool)))
    ))?;
    let set = arguments.set.as_ref().map(|set| set.display().to_string());
    let until = arguments.until.map(|until| until.to_string());
    let given = [("--name", arguments.name.clone()), ("--set", set), ("--until", until)];
    let given = given
        .into_iter()
        .filter_map(|(option, value)| Some(format!(" {option} {}", quoted(&value?))));
    output::print_note(format_args!(
        "nothing was accepted; to accept it: `attest-gateway waiting accept --record {}{} --yes`",
        one.record,
        given.collect::<String>()
    ));
    Ok(())
}

/// Records what was accepted, and where; in the store, too, where it is in no file.
fn answer(by: By, config: &Path, all: &[Accepted], to: &[String], name: Option<&str>) -> anyhow::Result<()> {
    let (at, who) = (now().at, who());
    let acceptances = all.iter().zip(to).map(|(one, to)| Acceptance {
        pool: one.pool.clone(),
        about: one.about.clone(),
        name: name.map(str::to_owned),
        answered: Answered {
            said: QuestionAnswer::Accepted { to: to.clone() },
            at,
            by: who.clone(),
        },
    });
    let acceptances: Vec<Acceptance> = acceptances.collect();
    change_store_as(by, config, Verb::WaitingAccept, |store| async move {
        Ok(waiting::accept(&*store, acceptances).await?)
    })?;
    for (one, to) in all.iter().zip(to) {
        output::done(format_args!("accepted in {to}: {}", visible(&one.about.to_string())))?;
    }
    Ok(())
}

/// Refuses to accept by a record what the administrator has refused as a question.
fn check_not_refused(config: &Path, one: &Accepted) -> anyhow::Result<()> {
    let keys = one.about.keys();
    let questions = questions_aside(config, Some(&one.pool))?;
    let refused = questions.iter().find(|row| row.question.about.keys() == keys);
    if let Some(row) = refused
        && row.answered.as_ref().is_some_and(Answered::is_no)
    {
        bail!(
            "question {} was {}; to accept it all the same: `attest-gateway waiting accept {}`",
            row.id,
            state(row),
            row.id
        );
    }
    Ok(())
}

/// Returns what a machine was refused for, by its record.
fn of_record(settings: &Settings, id: &str) -> anyhow::Result<Accepted> {
    let line = recorded::by_id(&settings.attestation_log(), id)?;
    let record: recorded::Outline = serde_json::from_str(&line).context("the record cannot be read")?;
    let Some(about) = record.acceptable else {
        bail!(
            "record {} names nothing to accept: {}",
            record.id,
            match record.code {
                Some(code) => format!(
                    "its machine was refused with code {code}; to read the next step: `attest-gateway log show --record {}`",
                    record.id
                ),
                None => "it is no refusal".to_owned(),
            }
        );
    };
    Ok(Accepted {
        pool: record.pool,
        about,
        machine: record.identity.unwrap_or_default(),
        record: record.id,
    })
}
