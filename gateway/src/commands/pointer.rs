//! `attest-gateway pointer`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_gateway::ignition::pointer;
use attest_gateway::settings::Settings;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use url::Url;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

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
    let base = match url {
        Some(url) => url.clone(),
        None => default_url(&settings)?,
    };
    if base.scheme() != "https" {
        bail!("{base}: nodes reach the gateway by https only");
    }
    let source = base.join(&format!("/config/{pool}")).with_context(|| base.to_string())?;
    let ca = std::fs::read_to_string(&settings.tls.ca).with_context(|| settings.tls.ca.display().to_string())?;
    let pointer = pointer::render(&source, &ca, token.as_deref());
    println!("{}", serde_json::to_string_pretty(&pointer)?);
    Ok(ExitCode::SUCCESS)
}

fn default_url(settings: &Settings) -> anyhow::Result<Url> {
    let path = &settings.tls.certificate;
    let der = CertificateDer::from_pem_file(path).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    let (_, certificate) = X509Certificate::from_der(&der).with_context(|| path.display().to_string())?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let host = names
        .iter()
        .flat_map(|names| &names.value.general_names)
        .find_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress([a, b, c, d]) => Some(format!("{a}.{b}.{c}.{d}")),
            _ => None,
        })
        .with_context(|| format!("{} has no name; use --url", path.display()))?;
    Ok(Url::parse(&format!("https://{host}:{}", settings.listen.port()))?)
}
