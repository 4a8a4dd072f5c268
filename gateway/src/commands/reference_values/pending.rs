use std::collections::BTreeMap;
use std::path::Path;

use attest_gateway::clock::rfc3339;
use attest_gateway::machines::new_values::{self, Answered, Row, Said};
use attest_gateway::pools;
use attest_gateway::settings::Settings;

use crate::commands::{now, output, pool_folder, table, with_store};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: what machines have booted that no reference value has\n  attest-gateway reference-values pending worker\n  attest-gateway reference-values accept worker 0f3c…32 digits…9a --set kernels.json --name 'kernel 6.12.43'\n  attest-gateway reference-values deny worker 0f3c…32 digits…9a --reason 'nobody has rolled this out'\n\nAll that a boot has beyond the pool's reference values is one question, with a row for each value. MACHINES is how many have shown all of it, and how many the\npool wants before it asks. Names are the node's own words, unless they stand in quotation marks alone."
)]
pub struct Arguments {
    /// Only this pool's.
    pool: Option<String>,
    /// Also those that were answered.
    #[arg(long)]
    all: bool,
}

pub fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<()> {
    let settings = Settings::load(config)?;
    let mut wanted = BTreeMap::new();
    for (pool, folder) in pools::folders(&settings.pools)?.pools {
        // One that cannot be read is said by `check`; its questions are there all the same.
        if let Ok((_, Some(rules))) = pools::reference_values(&folder) {
            wanted.insert(pool, rules.machines);
        }
    }
    let of = arguments.pool.clone();
    let questions = with_store(config, |store| async move {
        Ok(new_values::questions(&store, of.as_deref(), now()).await?)
    })?;
    // Of one that is gone there may be questions still.
    if let (Some(pool), true) = (&arguments.pool, questions.is_empty()) {
        pool_folder(&settings, pool)?;
    }
    let shown = questions.iter().filter(|row| arguments.all || is_open(row));
    let rows: Vec<[String; 8]> = shown.flat_map(|row| rows(row, wanted.get(&row.pool).copied())).collect();
    let head = ["ID", "POOL", "WHAT", "DIGEST", "CALLED", "MACHINES", "SEEN", "STATE"];
    output::print(table(head, &rows))
}

/// Whether somebody waits still: also after a yes, whose file the machines' gateway has not got.
fn is_open(row: &Row) -> bool {
    match &row.answered {
        None => true,
        Some(answered) => !answered.is_no() && !row.named.is_empty(),
    }
}

/// A question: one row for each of its values.
fn rows(row: &Row, wanted: Option<usize>) -> Vec<[String; 8]> {
    let machines = match wanted {
        Some(wanted) => format!("{} of {wanted}", row.machines),
        None => row.machines.to_string(),
    };
    let machines = match row.named.is_empty() {
        true => machines,
        false => format!("{machines}: {}", row.named.join(", ")),
    };
    let seen = format!("{} to {}", rfc3339(row.question.at), rfc3339(row.last));
    let state = match &row.answered {
        Some(Answered {
            said: Said::Accepted { file },
            at,
            by,
        }) => format!("accepted by {by} {} in {file}", rfc3339(*at)),
        Some(Answered {
            said: Said::Denied { reason },
            at,
            by,
        }) => format!("denied by {by} {}: {reason}", rfc3339(*at)),
        None if row.is_asked => "asked".to_owned(),
        None => "counted".to_owned(),
    };
    let each = row.question.values.iter().map(|value| {
        let (what, digest) = (value.wanted.words(), value.key());
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
