use std::path::Path;

use attest_gateway::settings::Settings;
use attest_machines::waiting::QuestionRow;
use attest_system::clock::rfc3339;

use super::shown::{ID_DIGITS, is_open, json, released, state, until};
use super::{pool_files, questions};
use crate::commands::{OutputOption, now, output, pool_folder, table, visible};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: read the list, then answer each question\n  attest-gateway waiting list\n  attest-gateway waiting show 0f3c5d92a7b1\n  attest-gateway waiting accept 0f3c5d92a7b1\n  attest-gateway waiting refuse 0f3c5d92a7b1 --reason 'not rolled out by us'\n\nThe list has one row for each value that machines wait for; rows with the same ID belong to one question. MACHINES counts the machines\nthat have shown all of its values, of the number that the pool wants before it asks. RELEASES counts the machines that need nothing\nelse. In CALLED, a text that begins with \"the node\" is the node's own, and not\nverified."
)]
pub(crate) struct Arguments {
    /// List the questions of one pool.
    #[arg(long = "for", alias = "pool", value_name = "POOL")]
    pool: Option<String>,
    /// Include answered questions.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: OutputOption,
}

/// Returns the name of a value; of an unknown machine the name that it asks for.
fn called(row: &QuestionRow, called: String) -> String {
    match &row.question.name {
        Some(name) if called.is_empty() && row.question.about.is_unknown_machine() => format!("the node asks for the name {name:?}"),
        _ => called,
    }
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let files = pool_files(&settings)?;
    let mut questions = questions(config, arguments.pool.as_deref())?;
    // Of a pool that is gone there may be questions still.
    if let (Some(pool), true) = (&arguments.pool, questions.is_empty()) {
        pool_folder(&settings, pool)?;
    }
    questions.retain(|row| arguments.all || is_open(row));
    // Anybody can present unknown machines: they hide no others.
    questions.sort_by_key(|row| row.question.about.is_unknown_machine());
    let rules = |row: &QuestionRow| files.get(&row.pool).and_then(|file| file.waiting);
    if arguments.format.is_json() {
        let all: Vec<_> = questions.iter().map(|row| json(row, rules(row).as_ref(), now())).collect();
        return output::json(&all);
    }
    let mut rows = Vec::new();
    for row in &questions {
        let rules = rules(row);
        let of_values = !row.question.about.values().is_empty();
        let machines = match rules.filter(|_| of_values) {
            Some(rules) => format!("{} of {}", row.machines, rules.machines),
            None => row.machines.to_string(),
        };
        for value in row.question.about.rows() {
            rows.push([
                row.id.chars().take(ID_DIGITS).collect(),
                row.pool.clone(),
                value.what,
                value.value,
                called(row, value.called),
                machines.clone(),
                released(row),
                rfc3339(row.question.at),
                until(row, rules.as_ref()).map_or_else(|| "-".to_owned(), rfc3339),
                row.question.network.clone(),
                state(row),
            ]);
        }
    }
    let head = [
        "ID", "POOL", "WHAT", "VALUE", "CALLED", "MACHINES", "RELEASES", "SINCE", "UNTIL", "FROM", "STATE",
    ];
    let rows: Vec<[String; 11]> = rows.into_iter().map(|row| row.map(|cell| visible(&cell))).collect();
    output::print(table(head, &rows))?;
    if questions.is_empty() {
        output::print_note("no machine waits");
    }
    Ok(())
}
