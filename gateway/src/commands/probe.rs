//! `attest-gateway check --probe ADDR…`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::pools;
use attest_gateway::probe::{OwnConfigs, ProbeResult, ProbeTarget, Reachability, Stranger, pools_to_ask};
use attest_gateway::settings::Settings;
use attest_system::files;

use super::{OutputOption, list, output};

/// More than a config can have.
const CONFIG_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

pub(crate) fn run(
    config: &Path,
    addresses: &[String],
    pre_approved: &[(String, PathBuf)],
    format: OutputOption,
) -> anyhow::Result<ExitCode> {
    let targets = addresses
        .iter()
        .map(|address| ProbeTarget::parse(address))
        .collect::<Result<Vec<_>, _>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (known, pools) = if pre_approved.is_empty() {
        runtime.block_on(own_configs(config))?
    } else {
        let known = configs_from_files(pre_approved)?;
        let pools = pools_to_ask(known.pools());
        (known, pools)
    };
    let rows = runtime.block_on(probe(&Stranger::new()?, &targets, &pools, &known));
    let count = |is: fn(&ProbeResult) -> bool| rows.iter().filter(|row| is(&row.1)).count();
    let (open, unknown) = (count(ProbeResult::is_open), count(ProbeResult::is_unknown));
    let cells: Vec<[String; 5]> = rows.into_iter().map(|(place, finding)| cells(place, finding)).collect();
    list(format, ["ADDRESS", "PORT", "POOL", "RESULT", "WHY"], &cells)?;
    if !format.is_json() {
        output::line(match (open, unknown) {
            (0, 0) => {
                "unauthenticated clients get no more than pre-approved configs at these addresses, as far as this machine can reach them"
                    .to_owned()
            }
            (0, unknown) => format!("no answer in {unknown} cases: repeat the probe from a machine that reaches these addresses"),
            (open, _) => format!(
                "unauthenticated clients get more than the pre-approved config in {open} cases; to close these ports: docs/how-to/close-the-machine-config-server.md"
            ),
        })?;
    }
    Ok(match (open, unknown) {
        (0, 0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Returns the known configs of this gateway's own pools, and the pools to ask for.
async fn own_configs(config: &Path) -> anyhow::Result<(OwnConfigs, Vec<String>)> {
    let settings = Settings::load(config)?;
    let folders = attest_pool::folders(&settings.pools)?;
    let mut known = OwnConfigs::default();
    let needed = super::needed(&settings).await;
    for (name, folder) in &folders.pools {
        match pools::load(name, folder, &needed).await {
            Ok(pool) => known.add(&pool),
            Err(error) => output::print_note(format_args!(
                "cannot read pool {name}, so each config of it counts as OPEN; to name its pre-approved config, add --pre-approved {name}=FILE: {error}"
            )),
        }
    }
    Ok((known, pools_to_ask(folders.pools.keys())))
}

fn configs_from_files(pre_approved: &[(String, PathBuf)]) -> anyhow::Result<OwnConfigs> {
    let mut known = OwnConfigs::default();
    for (pool, file) in pre_approved {
        let config = files::read(file, CONFIG_LIMIT_BYTES).with_context(|| file.display().to_string())?;
        known.add_config(pool, &config).with_context(|| file.display().to_string())?;
    }
    Ok(known)
}

/// Address, port and pool of a request.
type RequestTarget = [String; 3];

fn cells([address, port, pool]: RequestTarget, finding: ProbeResult) -> [String; 5] {
    let (result, why) = match finding {
        ProbeResult::Open(why) => ("OPEN", why),
        ProbeResult::PreApproved(why) => ("pre-approved", why),
        ProbeResult::Closed(why) => ("closed", why),
        ProbeResult::Unknown(why) => ("unknown", why),
    };
    [address, port, pool, result.to_owned(), why]
}

/// Probes one after the other, since the servers are in use.
async fn probe(stranger: &Stranger, targets: &[ProbeTarget], pools: &[String], known: &OwnConfigs) -> Vec<(RequestTarget, ProbeResult)> {
    let mut rows = Vec::new();
    for target in targets {
        let place = |port: &str, pool: &str| [target.to_string(), port.to_owned(), pool.to_owned()];
        if let Err(error) = target.resolve().await {
            rows.push((place("*", "*"), ProbeResult::Unknown(format!("cannot be resolved: {error}"))));
            continue;
        }
        let mut reached = Vec::new();
        for port in target.ports() {
            reached.push((port, stranger.reach(target, port).await));
        }
        let elsewhere = match reached.iter().all(|(_, reach)| matches!(reach, Reachability::Silent(_))) {
            true => stranger.answers_at(target).await.map(|port| format!("the host answers at {port}")),
            false => Some("the host answers at the other port".to_owned()),
        };
        for (port, reach) in reached {
            let result = match (reach, &elsewhere) {
                (Reachability::Connected, _) => stranger.listens(target, port).await,
                (Reachability::Refused(why), _) => Err(ProbeResult::Closed(why)),
                (Reachability::Silent(why), Some(elsewhere)) => Err(ProbeResult::Closed(format!("{why}; {elsewhere}"))),
                (Reachability::Silent(why), None) => Err(ProbeResult::Unknown(format!("{why}; nor at other ports of the host"))),
            };
            if let Err(result) = result {
                rows.push((place(&port.to_string(), "*"), result));
                continue;
            }
            for pool in pools {
                rows.push((place(&port.to_string(), pool), stranger.ask(target, port, pool, known).await));
            }
        }
    }
    rows
}
