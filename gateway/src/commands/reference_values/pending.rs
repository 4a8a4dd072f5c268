use std::collections::BTreeMap;
use std::path::Path;

use attest::reference_sets::NewValue;
use attest_gateway::settings::Settings;
use attest_machines::new_values::{self, Answered, QuestionAnswer, QuestionRow, RelatedQuestion, Showing};
use attest_pool::NewValueRules;
use attest_system::advised_commands::runnable;
use attest_system::clock::{lasting, rfc3339};

use crate::commands::{OutputOption, now, objects, output, pool_folder, table, visible, with_store};

/// Machines that are named in a row; below the table there are more.
const NAMED_LIMIT: usize = 3;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: list the questions, then answer each\n  attest-gateway reference-values pending worker\n  attest-gateway reference-values accept worker 0f3c5d92a7b14e68c03f9d2b75a81e64 --set kernels.json --name 'kernel 6.12.43'\n  attest-gateway reference-values deny worker 0f3c5d92a7b14e68c03f9d2b75a81e64 --reason 'not rolled out by us'\n\nA question has one row for each value of one boot that no reference value matches. MACHINES counts the machines that booted all of\nthem, of the number that the pool wants before it asks. Names come from the nodes and are not verified, except names that stand in\nquotation marks alone.\n\nBelow the table are the waiting machines with their deadlines. For some machines an acceptance is not enough: they have booted other\nunknown values, too."
)]
pub(crate) struct Arguments {
    /// Pool of the questions [default: every pool].
    pool: Option<String>,
    /// Include answered questions.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let mut wanted = BTreeMap::new();
    for (pool, folder) in attest_pool::folders(&settings.pools)?.pools {
        // One that cannot be read is said by `check`; its questions are there all the same.
        if let Ok((_, Some(rules))) = attest_pool::reference_values(&folder) {
            wanted.insert(pool, rules);
        }
    }
    let (of, now) = (arguments.pool.clone(), now());
    let questions = with_store(config, |store| async move {
        Ok(new_values::questions(&store, of.as_deref(), now).await?)
    })?;
    // Of one that is gone there may be questions still.
    if let (Some(pool), true) = (&arguments.pool, questions.is_empty()) {
        pool_folder(&settings, pool)?;
    }
    let shown: Vec<&QuestionRow> = questions.iter().filter(|row| arguments.all || is_open(row)).collect();
    let rows: Vec<[String; 8]> = shown.iter().flat_map(|row| rows(row, wanted.get(&row.pool))).collect();
    let head = ["ID", "POOL", "WHAT", "DIGEST", "CALLED", "MACHINES", "SEEN", "STATE"];
    if arguments.format.is_json() {
        return output::json(&objects(head, &rows));
    }
    let mut text = table(head, &rows);
    for row in shown.into_iter().filter(|row| is_open(row)) {
        text.push_str(&runnable(&below(row, wanted.get(&row.pool), now)));
    }
    output::print(text)
}

/// Returns whether a machine still waits: also after a yes, if its gateway does not have that file.
fn is_open(row: &QuestionRow) -> bool {
    match &row.answered {
        None => true,
        Some(answered) => !answered.is_no() && !row.showing.is_empty(),
    }
}

/// Returns the rows of a question: one for each of its values.
fn rows(row: &QuestionRow, rules: Option<&NewValueRules>) -> Vec<[String; 8]> {
    let machines = match rules {
        Some(rules) => format!("{} of {}", row.machines, rules.machines),
        None => row.machines.to_string(),
    };
    let named: Vec<&str> = row.showing.iter().take(NAMED_LIMIT).map(|one| one.machine.as_str()).collect();
    let machines = match named.is_empty() {
        true => machines,
        false => format!("{machines}: {}", named.join(", ")),
    };
    let seen = format!("{} to {}", rfc3339(row.question.at), rfc3339(row.last));
    let state = match &row.answered {
        Some(Answered {
            said: QuestionAnswer::Accepted { file },
            at,
            by,
        }) => format!("accepted by {by} {} in {file}", rfc3339(*at)),
        Some(Answered {
            said: QuestionAnswer::Denied { reason },
            at,
            by,
        }) => format!("denied by {by} {}: {reason}", rfc3339(*at)),
        None if row.is_asked => "asked".to_owned(),
        None => "counted".to_owned(),
    };
    let each = row.question.values.iter().map(|value| {
        let (what, digest) = (value.wanted.description(), value.key());
        let digest = digest.split_once(' ').map_or(digest.as_str(), |(_, digest)| digest);
        [
            row.id.clone(),
            row.pool.clone(),
            what,
            digest.to_owned(),
            value.called(),
            machines.clone(),
            seen.clone(),
            state.clone(),
        ]
    });
    each.collect()
}

/// Describes for which machines a yes to a question is enough, and for which not.
fn below(row: &QuestionRow, rules: Option<&NewValueRules>, now: u64) -> String {
    let mut lines = vec![
        format!("question {} of pool {}", row.id, row.pool),
        "  if accepted, these machines are trusted (they booted these values, and nothing else that is refused):".to_owned(),
    ];
    lines.extend(row.showing.iter().map(|one| format!("  - {}", waits(one, rules, now))));
    if row.more > 0 {
        lines.push(format!("  - and {} more machines", row.more));
    }
    let (within, beyond): (Vec<&RelatedQuestion>, Vec<&RelatedQuestion>) = row.related.iter().partition(|beside| beside.more.is_empty());
    lines.extend(within.iter().map(|beside| {
        let RelatedQuestion { id, machines, .. } = beside;
        format!("  - {machines} machines of question {id}, whose values are all in this question")
    }));
    lines.extend(beyond.iter().map(|beside| {
        let RelatedQuestion { id, machines, more } = beside;
        let mut what: Vec<String> = more.iter().take(NAMED_LIMIT).map(with_name).collect();
        if let Some(left @ 1..) = more.len().checked_sub(NAMED_LIMIT) {
            what.push(format!("and {left} more"));
        }
        format!(
            "  not enough for {machines} machines of question {id}, which also booted: {}",
            what.join("; ")
        )
    }));
    if row.more_beside > 0 {
        lines.push(format!("  {} more questions share values with it", row.more_beside));
    }
    lines.push(format!(
        "  to test the pool's present rules, on the gateway where that machine attested: `attest-audit policy test {} --record {}`",
        row.pool, row.question.decision
    ));
    let lines: String = lines.iter().map(|line| format!("{}\n", visible(line))).collect();
    format!("\n{lines}")
}

/// Returns a value with its name.
fn with_name(value: &NewValue) -> String {
    match value.called() {
        called if called.is_empty() => value.to_string(),
        called => format!("{value} ({called})"),
    }
}

/// Describes a machine that waits, since when and until when.
fn waits(one: &Showing, rules: Option<&NewValueRules>, now: u64) -> String {
    let who = match &one.name {
        Some(name) => format!("{name} ({})", one.machine),
        None => one.machine.clone(),
    };
    let since = rfc3339(one.since);
    if one.observed {
        return format!("{who}: trusted since {since}, because the pool observes");
    }
    let Some(rules) = rules else {
        return format!("{who}: waits since {since}; its pool has no [new_values] any more, or cannot be read");
    };
    let until = one.since.saturating_add(rules.wait_seconds);
    match until.saturating_sub(now) {
        0 => format!("{who}: refused; it waited from {since} until {}", rfc3339(until)),
        // In minutes, while there are some.
        left => {
            let left = if left < 60 { left } else { left.next_multiple_of(60) };
            format!("{who}: waits since {since}, until {} ({} left)", rfc3339(until), lasting(left))
        }
    }
}
