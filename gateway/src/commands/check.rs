//! The command `attest-gateway check`: checks the settings and their files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use attest_command_line::NEWER_FORMAT;
use attest_gateway::inspection::{Depth, Inspection, InspectionFinding};
use attest_gateway::metrics::Metrics;
use attest_system::advised_commands::runnable;
use attest_system::clock::Clock;
use serde_json::json;

use super::{OutputOption, output};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: fail for warnings, too\n  attest-gateway check --strict\n\nExample: which configs an unauthenticated client gets at these addresses\n  attest-gateway check --probe 192.0.2.11 192.0.2.12 192.0.2.13\n\nExample: the same, on a machine that is not a gateway\n  attest-gateway check --probe 192.0.2.11 --pre-approved worker=worker.ign\n\nEach line is ok, warning, DEGRADED (broken, while the rest is served) or ERROR (the gateway would not start). The exit code is 1 after\nan ERROR, and with --strict after any line that is not ok; 2 if a newer release wrote the state.\n\nThe command changes nothing, except that with cluster.mcs_certificate and cluster.bootstrap_kubeconfig it writes the first copies in\nstate/cluster."
)]
pub(crate) struct Arguments {
    /// Exit with 1 for warnings and DEGRADED, too.
    #[arg(long)]
    strict: bool,
    /// Instead, fetch configs from these addresses like an unauthenticated client. Exit code 1 if one serves more than the pre-approved
    /// config. An address is an IP address or host name; the ports are 22623 (TLS) and 22624 (plain), those of a cluster's Machine Config
    /// Server. With :PORT, that port is asked both ways.
    #[arg(long, value_name = "ADDR", num_args = 1.., conflicts_with = "strict")]
    probe: Vec<String>,
    /// With --probe: a pool and the file of its pre-approved config, as `config render --set pre-approved` prints it (repeatable). No
    /// gateway.toml is read then, so the command runs on any machine.
    #[arg(long, value_name = "POOL=FILE", requires = "probe", value_parser = pool_and_file)]
    pre_approved: Vec<(String, PathBuf)>,
    #[command(flatten)]
    format: OutputOption,
}

fn pool_and_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((pool, file)) if attest::challenge::is_pool_name(pool) && !file.is_empty() => Ok((pool.to_owned(), file.into())),
        _ => Err("expected POOL=FILE, such as worker=worker.ign".to_owned()),
    }
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if !arguments.probe.is_empty() {
        return super::probe::run(config, &arguments.probe, &arguments.pre_approved, arguments.format);
    }
    let settings = super::owner::settings(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let metrics = Arc::new(Metrics::default());
    let inspection = runtime.block_on(Inspection::run(&settings, Clock::System, &metrics, Depth::Thorough));
    let read = format!("{} is read; listening on {}", config.display(), settings.listen);
    let findings = inspection.findings.iter().map(|finding| match finding {
        InspectionFinding::Good(text) => ("ok", text),
        InspectionFinding::Warning(text) => ("warning", text),
        InspectionFinding::Degraded(text) => ("DEGRADED", text),
        InspectionFinding::Error(text) | InspectionFinding::Newer(text, _) => ("ERROR", text),
    });
    let findings: Vec<(&str, &String)> = std::iter::once(("ok", &read)).chain(findings).collect();
    if arguments.format.is_json() {
        let object = |(level, text): &(&str, &String)| json!({ "level": level.to_lowercase(), "text": runnable(text) });
        output::json(&findings.iter().map(object).collect::<Vec<_>>())?;
    } else {
        for (level, text) in findings {
            output::line(format_args!("{level:<8} {}", runnable(text)))?;
        }
    }
    let failed = inspection.fails() || (arguments.strict && inspection.complains());
    Ok(match failed {
        _ if inspection.newer().is_some() => ExitCode::from(NEWER_FORMAT),
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}
