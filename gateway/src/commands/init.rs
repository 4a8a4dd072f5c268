//! The command `attest-gateway init`: makes a gateway's folder.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_certificates::{Certificate, source};
use attest_gateway::pki::issue::{self, SigningKey};
use attest_gateway::pki::{GatewayNames, authority_keys, install};
use attest_gateway::settings::{self, Settings, TlsSettings};
use attest_system::advised_commands;
use attest_system::clock::Clock;
use attest_system::files;

use super::ca::common_name;
use super::certificate::{CertificateOptions, made_line};
use super::output;

/// The first configs of the sample pool: each writes a file that says which one it was.
const SAMPLE_CONFIGS: [(&str, &str); 2] = [
    ("full", include_str!("../../dist/full.ign")),
    ("pre-approved", include_str!("../../dist/pre-approved.ign")),
];
/// README of the folder of EK roots.
const EK_ROOTS_README: &str = "Put CA certificates of TPM manufacturers here (*.pem, *.crt, *.cer, *.der), roots and intermediates. A root is a self-issued\n\
    certificate, or any certificate in a file *.root.pem (.crt, .cer, .der). A TPM whose EK certificate chains to a root is endorsed in\n\
    pools with tpm.endorsement = \"any-tpm-of-a-trusted-maker\". To import a public bundle of CAs:\n\
    `attest-gateway ek-roots import`. To endorse a single TPM: `attest-gateway ek add`.\n";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway init /etc/attest-gateway --host api-int.mycluster.example.com --ip 192.0.2.5\n\nExample: with your own CA\n  attest-gateway init gw --ca ca.crt --ca-key ca.key --host api-int.mycluster.example.com\n\nExample: with a certificate that your CA has signed\n  attest-gateway init gw --ca ca.crt --certificate mcs.crt --key mcs.key\n\nThe command overwrites nothing. The CA's private key is needed only to sign another certificate: store it on another machine if you\ncan (--ca-key-out)."
)]
pub(crate) struct Arguments {
    /// Folder to create.
    dir: PathBuf,
    /// DNS name under which nodes reach this gateway (repeatable).
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// IP address under which nodes reach this gateway (repeatable).
    #[arg(long, value_name = "ADDRESS")]
    ip: Vec<IpAddr>,
    #[command(flatten)]
    kind: CertificateOptions,
    /// Name of the CA [default: machine-config-server-ca@ and the time].
    #[arg(long, value_name = "NAME", value_parser = common_name, conflicts_with = "ca")]
    ca_name: Option<String>,
    /// File for the CA's private key [default: tls/mcs-ca.key in the gateway's folder].
    #[arg(long, value_name = "FILE", conflicts_with = "ca")]
    ca_key_out: Option<PathBuf>,
    /// A CA of yours, instead of a new one: its certificate, PEM or the manifest of a ConfigMap or Secret.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Its private key, to sign the certificate with. It is read once, and not copied.
    #[arg(long, value_name = "FILE", requires = "ca", conflicts_with = "certificate")]
    ca_key: Option<PathBuf>,
    /// A certificate that your CA has signed.
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"], conflicts_with_all = ["host", "ip", "algorithm"])]
    certificate: Option<PathBuf>,
    /// Private key of that certificate.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let dir = &arguments.dir;
    super::owner::act_as_owner_of(dir)?;
    let file = dir.join("gateway.toml");
    if file.exists() {
        bail!(
            "{} exists: this folder belongs to a gateway already; name another folder",
            file.display()
        );
    }
    advised_commands::set_configuration(&["attest-gateway", "attest-audit"], &file);
    let settings = Settings::defaults(dir)?;
    let key = key_out(arguments, &settings.tls);
    let samples = samples(&settings);
    let tls = &settings.tls;
    let to_be_made = [&tls.ca, &tls.certificate, &tls.key].into_iter().chain(&key);
    let mut unfinished = CreatedFiles::default();
    for path in to_be_made.chain(samples.iter().map(|(path, _)| path)) {
        unfinished.note(path)?;
    }
    unfinished.note_folder(&settings.state);
    unfinished.note(&file)?;
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let said = certificates(arguments, &settings.tls)?;
    for (path, text) in &samples {
        write(path, text)?;
    }
    files::make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    // Last: a folder with a gateway.toml is complete.
    write(&file, settings::SAMPLE)?;
    unfinished.made.clear();
    output::done(format_args!("{}: created the gateway's folder:", dir.display()))?;
    output::done("  gateway.toml               settings with their defaults")?;
    output::done("  tls/mcs-ca.crt             the MCS CA, for pointer configs")?;
    output::done("  tls/mcs.crt, .key          the MCS certificate")?;
    output::done("  ek-roots/                  folder for the CA certificates of TPM manufacturers")?;
    output::done("  pools/worker/              samples to replace: pool.toml, full/config.ign, pre-approved/config.ign")?;
    output::done("  state/                     store, keys and attestation log")?;
    output::done(said.trim_end())?;
    let file = advised_commands::quoted(&file.display().to_string());
    output::done(format_args!(
        "Next: attest-gateway --config {file} check && attest-gateway --config {file} serve"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the files of the sample pool, and the README of EK roots, unless there is one.
fn samples(settings: &Settings) -> Vec<(PathBuf, &'static str)> {
    let pool = settings.pools.join("worker");
    let mut samples = vec![(pool.join("pool.toml"), attest_pool::SAMPLE)];
    samples.extend(SAMPLE_CONFIGS.map(|(set, config)| (pool.join(set).join("config.ign"), config)));
    let readme = settings.ek_roots.join("README");
    if !readme.exists() {
        samples.push((readme, EK_ROOTS_README));
    }
    samples
}

/// Returns the file for the key of a CA that is to be made.
fn key_out(arguments: &Arguments, files: &TlsSettings) -> Option<PathBuf> {
    let out = || arguments.ca_key_out.clone().unwrap_or_else(|| authority_keys::authority_key(files));
    arguments.ca.is_none().then(out)
}

/// Files and folders that were missing, and are removed again on drop: a half-made folder would be in the way of the next attempt.
#[derive(Default)]
struct CreatedFiles {
    made: Vec<PathBuf>,
}

impl CreatedFiles {
    /// Notes a file that is going to be made, and the folders that it needs.
    fn note(&mut self, path: &Path) -> anyhow::Result<()> {
        if fs::symlink_metadata(path).is_ok() {
            bail!(
                "{} exists and was not changed; if an interrupted `attest-gateway init` created it, remove it and run the command again",
                path.display()
            );
        }
        self.note_folder(path);
        Ok(())
    }

    fn note_folder(&mut self, path: &Path) {
        let missing = path.ancestors().take_while(|path| fs::symlink_metadata(path).is_err());
        self.made
            .extend(missing.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned));
    }
}

impl Drop for CreatedFiles {
    fn drop(&mut self) {
        // What is in a folder goes before it; one with anything else in it stays.
        self.made.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        for path in &self.made {
            drop(fs::remove_file(path).or_else(|_| fs::remove_dir(path)));
        }
    }
}

/// Writes CA, certificate and key; says what was chosen, and what that means.
fn certificates(arguments: &Arguments, files: &TlsSettings) -> anyhow::Result<String> {
    let now = Clock::System.now();
    if let (Some(ca), Some(certificate), Some(key)) = (&arguments.ca, &arguments.certificate, &arguments.key) {
        let authorities = source::authorities(ca)?;
        let chain = source::certificates(certificate)?;
        let leaf = chain.first().with_context(|| certificate.display().to_string())?;
        let text = install::fitting_key(key, leaf)?;
        install::first(files, &authorities, &chain, &text, now)?;
        let signer = install::today(files)?.authority;
        return Ok(format!(
            "{}\nThis machine has no CA key and cannot sign certificates. To renew the certificate, sign another one with your CA:\n`attest-gateway certificate renew --certificate FILE --key FILE`.\n",
            made_line(leaf, &signer)
        ));
    }
    let wanted = arguments.kind.wanted(None);
    let names = names(arguments);
    if let Some(path) = &arguments.ca {
        let authorities = source::authorities(path)?;
        let Some(key_path) = &arguments.ca_key else {
            bail!(
                "--ca needs a second option: the CA's private key (--ca-key), or a certificate that the CA has signed (--certificate and --key)"
            );
        };
        let (ca, key) = brought(&authorities, key_path, files)?;
        let made = issue::serving(&ca, &key, &names, &wanted, now)?;
        install::first(files, &authorities, std::slice::from_ref(&made.certificate), &made.key.pem(), now)?;
        return Ok(format!(
            "{}\nThe CA's private key was not copied. To renew the certificate: `attest-gateway certificate renew --ca-key {}`.\n",
            made_line(&made.certificate, &ca),
            key_path.display()
        ));
    }
    let name = arguments.ca_name.clone().unwrap_or_else(|| issue::authority_name(now));
    let ca = issue::authority(&name, SigningKey::generate(wanted.algorithm)?, wanted.days, now)?;
    let made = issue::serving(&ca.certificate, &ca.key, &names, &wanted, now)?;
    let key_out = key_out(arguments, files).context("no file was named for the CA's private key: use --ca-key-out FILE")?;
    let folder = files::folder(&files.ca);
    files::make_private_folder(folder).with_context(|| folder.display().to_string())?;
    // The CA's key first: if it cannot be written, there must be no CA without one.
    files::create(&key_out, files::PRIVATE, &ca.key.pem())?;
    let certificates = [ca.certificate.clone()];
    install::first(files, &certificates, std::slice::from_ref(&made.certificate), &made.key.pem(), now)?;
    let kept = match arguments.ca_key_out {
        Some(_) => format!(
            "The CA's private key is in {key}. To renew the certificate: `attest-gateway certificate renew --ca-key {key}`.\n\
             If the key is lost, replace the CA: `attest-gateway ca introduce`.\n",
            key = key_out.display()
        ),
        None => format!(
            "The CA's private key is in {key}: an intruder on this machine could sign certificates. Move it to another machine\n\
             if you can. To renew the certificate with it: `attest-gateway certificate renew --ca-key FILE`.\n",
            key = key_out.display()
        ),
    };
    Ok(format!("{}\n{kept}", made_line(&made.certificate, &ca.certificate)))
}

/// Returns the CA of these that the key belongs to; of several the newest.
fn brought(authorities: &[Certificate], key: &Path, files: &TlsSettings) -> anyhow::Result<(Certificate, SigningKey)> {
    let mut refused = None;
    for ca in authorities.iter().rev() {
        match authority_keys::find_authority_key(files, ca, Some(key)) {
            Ok(key) => return Ok((ca.clone(), key)),
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.map_or_else(|| anyhow::anyhow!("the file of --ca holds no CA certificate"), anyhow::Error::new))
}

fn names(arguments: &Arguments) -> GatewayNames {
    let mut names = GatewayNames {
        hosts: arguments.host.clone(),
        addresses: arguments.ip.clone(),
    };
    if names.is_empty() {
        names.hosts.push("localhost".to_owned());
        output::print_note(
            "neither --host nor --ip was given: the certificate is for localhost, and nodes cannot use it. To set its names: `attest-gateway certificate renew --host NAME`",
        );
    }
    names
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::write(path, text).with_context(|| path.display().to_string())
}
