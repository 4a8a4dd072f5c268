//! `attest-gateway init`.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_gateway::clock::Clock;
use attest_gateway::pki::{self, Names};
use attest_gateway::settings::{self, Settings};
use attest_gateway::{pools, store};

/// The first configs of the sample pool: each writes a file that says which one it was.
const SAMPLE_CONFIGS: [(&str, &str); 2] = [
    ("full", include_str!("../../dist/full.ign")),
    ("pre-approved", include_str!("../../dist/pre-approved.ign")),
];
/// What the folder of EK roots is for.
const EK_ROOTS_README: &str = "Certificates of TPM makers (*.pem, *.crt, *.cer, *.der) go here: a TPM whose EK certificate chains to a self-signed one\n\
    of them is endorsed. Intermediates may lie here too. Single TPMs: `attest-gateway ek add`.\n";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway init /etc/attestation-gateway --host api-int.mycluster.example.com --ip 192.0.2.5\n\nNothing that exists is overwritten. The CA's private key (tls/mcs-ca.key) is needed only to sign further certificates: keep it elsewhere if you can."
)]
pub struct Arguments {
    /// The folder to make.
    dir: PathBuf,
    /// A DNS name that nodes use for this gateway (repeatable).
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// An address that nodes use for this gateway (repeatable).
    #[arg(long, value_name = "ADDRESS")]
    ip: Vec<IpAddr>,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { dir, host, ip } = arguments;
    let file = dir.join("gateway.toml");
    if file.exists() {
        bail!("{} exists: this folder is a gateway's already", file.display());
    }
    let mut names = Names {
        hosts: host.clone(),
        addresses: ip.clone(),
    };
    if names.hosts.is_empty() && names.addresses.is_empty() {
        names.hosts.push("localhost".to_owned());
        eprintln!("no --host and no --ip: the certificate is for localhost only, which no node can use");
    }
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let settings = Settings::defaults(dir)?;
    pki::create(&settings.tls, &names, Clock::System.now())?;
    let pool = settings.pools.join("worker");
    for (set, config) in SAMPLE_CONFIGS {
        write(&pool.join(set).join("config.ign"), config)?;
    }
    write(&pool.join("pool.toml"), pools::SAMPLE)?;
    write(&settings.ek_roots.join("README"), EK_ROOTS_README)?;
    store::make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    // Last: a folder with a gateway.toml is complete.
    write(&file, settings::SAMPLE)?;
    println!("{} is a gateway's folder now:", dir.display());
    println!("  gateway.toml               settings, all at their defaults");
    println!("  tls/mcs-ca.crt, .key       the MCS CA: the certificate goes into pointer configs, keep the key safe");
    println!(
        "  tls/mcs.crt, .key          the MCS certificate, for {}",
        names
            .hosts
            .iter()
            .cloned()
            .chain(names.addresses.iter().map(ToString::to_string))
            .collect::<Vec<_>>()
            .join(", ")
    );
    println!("  ek-roots/                  put the certificates of your TPMs' makers here");
    println!("  pools/worker/              pool.toml, full/config.ign, pre-approved/config.ign: replace the samples");
    println!("  state/                     the store, the seal's key, the attestation log");
    println!("Next: attest-gateway --config {} check; then serve", file.display());
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}
