//! `attest-gateway pointer`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::ignition::pointer::Pointer;
use attest_gateway::pki::source;
use attest_gateway::settings::Settings;
use url::Url;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway pointer --pool worker --url https://api-int.mycluster.example.com:22623 > worker.ign\n\nThe pointer config names the gateway and the MCS CA, and nothing secret unless it carries a token."
)]
pub struct Arguments {
    /// The pool that nodes with this pointer join.
    #[arg(long)]
    pool: String,
    /// How nodes reach the gateway [default: the certificate's first name, and the port of `listen`].
    #[arg(long)]
    url: Option<Url>,
    /// A provisioning token for machines that cannot attest. Whoever can read the pointer has it then.
    #[arg(long)]
    token: Option<String>,
}

pub fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let Arguments { pool, url, token } = arguments;
    super::pool_folder(&settings, pool)?;
    let base = base_url(&settings, url.as_ref())?;
    let authorities = source::certificates(&settings.tls.ca)?;
    let pointer = Pointer {
        base: &base,
        pool,
        authorities: &authorities,
        token: token.as_deref(),
    };
    println!("{}", serde_json::to_string_pretty(&pointer.render()?)?);
    Ok(ExitCode::SUCCESS)
}

/// How nodes reach the gateway, unless the administrator says so: the certificate's first name, and the port of `listen`.
pub(super) fn base_url(settings: &Settings, url: Option<&Url>) -> anyhow::Result<Url> {
    if let Some(url) = url {
        return Ok(url.clone());
    }
    let path = &settings.tls.certificate;
    let chain = source::certificates(path)?;
    let host = chain
        .first()
        .and_then(|certificate| certificate.names.first())
        .with_context(|| format!("{} has no name; use --url", path.display()))?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    Ok(Url::parse(&format!("https://{host}:{}", settings.listen.port()))?)
}
