//! `attest-gateway check --probe ADDR…`.

use std::path::Path;
use std::process::ExitCode;

use attest_gateway::pools;
use attest_gateway::probe::{Finding, Known, Stranger, Target, pools_to_ask};
use attest_gateway::settings::Settings;

use super::{output, table};

pub fn run(config: &Path, addresses: &[String]) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let targets = addresses
        .iter()
        .map(|address| Target::parse(address))
        .collect::<Result<Vec<_>, _>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folders = pools::folders(&settings.pools)?;
    let mut known = Known::default();
    for (name, folder) in &folders.pools {
        match runtime.block_on(pools::load(name, folder)) {
            Ok(pool) => known.add(&pool),
            Err(error) => output::line(format_args!(
                "pool {name} cannot be read, so whatever a stranger gets of it counts as too much: {error}"
            ))?,
        }
    }
    let pools = pools_to_ask(folders.pools.keys());
    let rows = runtime.block_on(probe(&Stranger::new()?, &targets, &pools, &known));
    let open = rows.iter().filter(|row| row.1.is_open()).count();
    let cells: Vec<[String; 5]> = rows.into_iter().map(|(place, finding)| cells(place, finding)).collect();
    output::print(table(["ADDRESS", "PORT", "POOL", "RESULT", "WHY"], &cells))?;
    if open == 0 {
        output::line("a stranger gets no more than pre-approved configs there, as far as this machine can reach")?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!(
        "a stranger gets a full config {open} times; docs/old-machine-config-server.md says how to close these ports"
    ))?;
    Ok(ExitCode::FAILURE)
}

/// Address, port, pool.
type Place = [String; 3];

fn cells([address, port, pool]: Place, finding: Finding) -> [String; 5] {
    let (result, why) = match finding {
        Finding::Open(why) => ("OPEN", why),
        Finding::PreApproved(why) => ("pre-approved", why),
        Finding::Closed(why) => ("closed", why),
    };
    [address, port, pool, result.to_owned(), why]
}

/// One after the other: the servers are in use.
async fn probe(stranger: &Stranger, targets: &[Target], pools: &[String], known: &Known) -> Vec<(Place, Finding)> {
    let mut rows = Vec::new();
    for target in targets {
        for port in target.ports() {
            let place = |pool: &str| [target.to_string(), port.to_string(), pool.to_owned()];
            if let Err(why) = stranger.connects(target, port).await {
                rows.push((place("*"), Finding::Closed(why)));
                continue;
            }
            for pool in pools {
                rows.push((place(pool), stranger.ask(target, port, pool, known).await));
            }
        }
    }
    rows
}
