//! The command `attest-gateway upgrade`: shows the store's schema and who uses the store, and raises the schema.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::settings::Settings;
use attest_log::CommandLog;
use attest_log::admin::{By, ValueChange, Verb};
use attest_store::settings::EngineSettings;
use attest_store::{SchemaStatus, StoreSchema, StoreUser};
use serde_json::json;

use super::{OutputOption, acting, output, table};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: is there anything to do, and do all gateways know the new schema?\n  attest-gateway upgrade\n\nExample: back up, then raise the schema\n  attest-gateway backup /var/backups/attest-gateway/before-upgrade.backup\n  attest-gateway upgrade --commit\n\nUntil --commit, a new release writes what the old one reads, so the old one starts again at any time. After it, releases that do not\nknow the schema refuse the store, and the way back is the backup.\n\nGateways serve meanwhile on etcd and on the cluster's API. With the embedded store, stop the gateway first."
)]
pub(crate) struct Arguments {
    /// Raise the schema to the newest that this release knows. Refused while a process of an older release uses the store.
    #[arg(long)]
    commit: bool,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    // Before this becomes the state's owner.
    let who = (Verb::StoreUpgrade, By::this_process());
    let settings = Settings::load(config)?;
    super::owner::act(&settings)?;
    let (was, newest) = (attest_store::schema_status(&settings.store)?, StoreSchema::newest());
    let raise = arguments.commit && was.schema != newest;
    if raise {
        commit(&settings, who, (was.schema, newest))?;
    }
    let now = match raise {
        true => attest_store::schema_status(&settings.store)?,
        false => was,
    };
    if arguments.format.is_json() {
        let users = now.users.iter();
        let users = users.map(|StoreUser { host, release, schema }| json!({ "host": host, "release": release, "knows": schema }));
        output::json(&json!({
            "store": attest_store::place(&settings.store),
            "schema": now.schema.number,
            "oldest_release": now.schema.release,
            "newest_schema": newest.number,
            "raised": raise,
            "users": users.collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&settings, &now, newest, raise)?;
    Ok(ExitCode::SUCCESS)
}

/// Raises the schema. The act is recorded first: no schema is raised without a record.
fn commit(settings: &Settings, who: (Verb, By), (from, to): (StoreSchema, StoreSchema)) -> anyhow::Result<()> {
    // No gateway serves on an embedded store meanwhile.
    let _alone = match settings.store.engine {
        EngineSettings::Embedded => Some(CommandLog::open(&settings.attestation_log())?),
        _ => None,
    };
    let change = ValueChange {
        kind: "schema".to_owned(),
        id: attest_store::place(&settings.store),
        before: Some(json!(from.number)),
        after: Some(json!(to.number)),
    };
    acting::change_after_record(settings, who, change, || {
        attest_store::raise_schema(&settings.store).context("the schema was not raised")
    })
}

fn print(settings: &Settings, status: &SchemaStatus, newest: StoreSchema, raised: bool) -> anyhow::Result<()> {
    let SchemaStatus { schema, users } = status;
    output::line(format_args!(
        "{}: schema {}, which release {} and newer ones know{}",
        attest_store::place(&settings.store),
        schema.number,
        schema.release,
        if raised { "; it was raised now" } else { "" }
    ))?;
    let rows: Vec<[String; 3]> = users
        .iter()
        .map(|StoreUser { host, release, schema }| [host.clone(), release.clone(), schema.to_string()])
        .collect();
    if !rows.is_empty() {
        output::print(table(["HOST", "RELEASE", "KNOWS SCHEMA"], &rows))?;
    }
    match *schema == newest {
        true => output::line("There is nothing to raise."),
        false => output::line(format_args!(
            "This release knows schema {}, from release {} on. When no gateway has to go back: `attest-gateway upgrade --commit`",
            newest.number, newest.release
        )),
    }
}
