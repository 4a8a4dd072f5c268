//! The command `attest-audit log show-config`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use attest::challenge::is_pool_name;
use attest_command_line::output::{self, ReaderState, stdout};
use attest_command_line::records::{LogSource, RecordFields, RecordSelector, record};
use attest_command_line::{into_file, visible, visible_json};
use attest_ignition::SpecVersion;
use attest_log::ConfigSet;
use attest_pool::Pool;
use attest_pool::folder::FileReader as FolderReader;
use serde_json::Value;

use super::GatewayFiles;

/// Records that are named where several are meant; no more are looked for.
const NAMED_LIMIT: usize = 4;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: the config that a node got, from pools in a git repository\n  git -C /srv/pools worktree add /tmp/then \"$(git -C /srv/pools rev-list -1 --before=2026-11-21T11:00:47Z main)\"\n  attest-audit log show-config 127e54f3ecdd --folder /tmp/then/worker --out worker-7.ign\n\nThe record names the pool, the served config, the spec version, and the SHA-256. The config is printed byte for byte as it was served.\n\nFiles outside FOLDER that pool.toml names are read in their current state. Configs of a server ([upstream]) cannot be rendered.\n\nExit code 1 if the rendered config has another SHA-256 than the record. `attest-audit log audit` verifies the record itself."
)]
pub(crate) struct Arguments {
    /// Record of the served config: its id, the beginning of its id (at least 8 digits), or its number in its chain.
    #[arg(value_name = "ID|N", value_parser = record)]
    record: RecordSelector,
    /// Pool's folder at the time when the config was served: pool.toml, with its MachineConfigs or configs.
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
    /// New output file (0600), created when it is complete [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Files of the log (also `.gz`), or folders with a log [default: the gateway's own log, with its rotated files].
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
}

/// A served config, as its record describes it.
struct Served {
    id: String,
    time: String,
    pool: String,
    set: ConfigSet,
    version: SpecVersion,
    sha256: String,
}

impl Served {
    fn from_fields(fields: RecordFields) -> anyhow::Result<Self> {
        let RecordFields { id, time, pool, .. } = fields;
        let Some(sha256) = fields.config_sha256 else {
            bail!(
                "record {} has no config_sha256: decision={} verdict={}; only a config that was served can be rendered again (`attest-gateway log show --decision config --verdict served`)",
                visible(&id),
                visible(&fields.decision),
                visible(&fields.verdict)
            );
        };
        // The record may be anybody's: what is in it is shown escaped.
        let unknown =
            |field: &str, found: Option<&str>| anyhow!("record {}: {field}: {}", visible(&id), visible(found.unwrap_or("missing")));
        let set = fields.grant.as_deref();
        let set = set
            .and_then(|set| serde_json::from_value(Value::from(set)).ok())
            .ok_or_else(|| unknown("grant", set))?;
        let version = fields.spec_version.as_deref();
        let version = version
            .and_then(|version| version.parse().ok())
            .ok_or_else(|| unknown("spec_version", version))?;
        if !is_pool_name(&pool) {
            return Err(unknown("pool", Some(&pool)));
        }
        Ok(Self {
            set,
            version,
            id,
            time,
            pool,
            sha256,
        })
    }
}

pub(crate) fn run(files: &GatewayFiles, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { record, folder, out, log } = arguments;
    let served = Served::from_fields(find(files, log, record)?)?;
    let pool = pool(&served.pool, folder)?;
    let rendered = pool.for_administrator(served.set).get(served.version)?;
    if rendered.sha256 != served.sha256 {
        output::warn(format_args!(
            "record {}: the config of pool {} rendered from {} differs from the served one:\n  recorded: {}\n  rendered: {}\n{}",
            visible(&served.id),
            visible(&served.pool),
            visible(&folder.to_string_lossy()),
            visible(&served.sha256),
            rendered.sha256,
            causes(&served)
        ));
        return Ok(ExitCode::FAILURE);
    }
    match out {
        Some(path) => into_file(path, |output| {
            output.put(&rendered.bytes)?;
            output.flush()
        })
        .map(drop)?,
        None => print(&rendered.bytes)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The pool of a folder. Its configs lie in it: no server is asked.
fn pool(name: &str, folder: &Path) -> anyhow::Result<Pool> {
    let read = FolderReader::default().pool(folder)?;
    if let Some(upstream) = &read.file.upstream {
        bail!(
            "{}: the configs of pool {name} came from {} ([upstream]): they are not in the folder, and cannot be rendered",
            folder.display(),
            upstream.url
        );
    }
    Ok(Pool::from_folder(name, read)?)
}

/// Returns the one record that is requested.
fn find(files: &GatewayFiles, log: &[PathBuf], record: &RecordSelector) -> anyhow::Result<RecordFields> {
    let mut found: Vec<RecordFields> = Vec::new();
    let unread = LogSource::all_of(log).open(&files.own_log(log)?, None)?.each(|read| {
        let fields = read.fields.as_ref().filter(|fields| record.is(fields));
        // A file may be named twice, or have been copied next to the log.
        found.extend(fields.filter(|fields| found.iter().all(|other| other.id != fields.id)).cloned());
        Ok(if found.len() < NAMED_LIMIT {
            ReaderState::There
        } else {
            ReaderState::Gone
        })
    })?;
    unread.report();
    let ids: Vec<String> = found.iter().map(|fields| visible(&fields.id)).collect();
    match (found.pop(), found.is_empty()) {
        (None, _) => bail!("the log has no such record"),
        (Some(fields), true) => Ok(fields),
        (Some(_), false) => bail!("several records match: {}; pass the id of one of them", ids.join(", ")),
    }
}

/// The reasons for which the same record can have another digest.
fn causes(served: &Served) -> String {
    format!(
        "Possible causes:\n  - the folder has changed since the config was served at {}: restore it as of that time, from git or a backup\n  - a file outside the folder that pool.toml names has changed, such as a kubeconfig\n  - another release of the gateway served it; this is release {}",
        visible(&served.time),
        env!("CARGO_PKG_VERSION")
    )
}

fn print(config: &[u8]) -> anyhow::Result<()> {
    let (mut output, terminal) = stdout()?;
    match terminal {
        true => output.put(format!("{}\n", visible_json(&String::from_utf8_lossy(config))).as_bytes())?,
        false => output.put(config)?,
    };
    output.flush().map(drop)
}
