//! `attest-gateway report`: the state of a gateway as one page for a browser, without script.

mod chart;
mod history;
mod html;
mod page;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use attest::UnixTime;
use attest_gateway::credentials::tokens;
use attest_gateway::pki::install;
use attest_gateway::settings::Settings;
use attest_gateway::sightings::{self, Sighting};
use attest_machines::waiting::{self, QuestionRow};
use attest_store::Store;
use attest_system::clock::rfc3339;
use attest_system::files;

use super::status::{self, Status};
use super::waiting::pool_files;
use super::{now, output, owner, reading_store};
use page::ReportPage;

/// Mode of the page: it names machines and addresses.
const MODE: u32 = 0o640;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway report --html ~/attest-gateway.html\n\nExample: of several gateways, from copies of their logs\n  attest-gateway report --html report.html --log gateway-1/ gateway-2/\n\nThe page has no script and loads nothing. It names machines and addresses: its mode is 0640. An existing file is replaced as a whole."
)]
pub(crate) struct Arguments {
    /// File to write.
    #[arg(long, value_name = "FILE", required = true)]
    html: PathBuf,
    /// Log files, or folders with a log [default: the gateway's own log].
    #[arg(long, value_name = "FILE", num_args = 1..)]
    log: Vec<PathBuf>,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    // The caller writes the page where the state's owner may not.
    let page = owner::acting(&settings, || gather(config, arguments))?;
    let text = page.to_html();
    write(&arguments.html, &text).with_context(|| arguments.html.display().to_string())?;
    output::done(format_args!("{}: written", arguments.html.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Replaces a file as a whole, with its mode. A link is replaced, and not followed.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(files::create(path, MODE, text)?),
    }
}

/// What the store says.
#[derive(Default)]
struct Stored {
    questions: Vec<QuestionRow>,
    pointers: Vec<Sighting>,
    tokens: Vec<(String, u64)>,
}

impl Stored {
    async fn read(store: &dyn Store, now: u64) -> anyhow::Result<Self> {
        let clock = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
        let tokens = tokens::list(store).await?.into_iter();
        let valid = tokens.filter(|(token, used)| {
            matches!(
                token.state(*used, clock),
                tokens::TokenState::Current | tokens::TokenState::Previous
            )
        });
        Ok(Self {
            questions: waiting::questions(store, None, now).await?,
            pointers: sightings::list(store).await?,
            tokens: valid.map(|(token, _)| (token.name.clone(), token.ends())).collect(),
        })
    }
}

fn gather(config: &Path, arguments: &Arguments) -> anyhow::Result<ReportPage> {
    let settings = Settings::load(config)?;
    let (at, status): (u64, Status) = (now(), status::gather(&settings, &arguments.log)?);
    // If the store does not answer, the status says so.
    let stored = reading_store(&settings, async |store| Stored::read(store, at).await).unwrap_or_default();
    let authorities = install::today(&settings.tls).map(|today| today.authorities).unwrap_or_default();
    Ok(ReportPage {
        at,
        status,
        questions: stored.questions,
        rules: pool_files(&settings)?
            .into_iter()
            .filter_map(|(pool, file)| Some((pool, file.waiting?)))
            .collect(),
        history: history::read(&settings.attestation_log(), &arguments.log, at)?,
        pointers: stored.pointers,
        authorities: authorities
            .into_iter()
            .map(|ca| [ca.fingerprint.short(), ca.subject, rfc3339(ca.not_after)])
            .collect(),
        tokens: stored.tokens,
    })
}
