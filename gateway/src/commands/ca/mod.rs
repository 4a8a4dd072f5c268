//! The command `attest-gateway ca`: makes and rotates the MCS CA.

mod status;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use attest::UnixTime;
use attest_certificates::{Certificate, source};
use attest_gateway::pki::install;
use attest_gateway::pki::rotation::{RotationStage, WITHIN_DAYS};
use attest_gateway::pki::{GatewayNames, Installation, authority_keys, issue};
use attest_gateway::settings::Settings;
use attest_log::admin::{ValueChange, Verb};
use attest_system::clock::{Clock, rfc3339};
use attest_system::files;

use status::{foreign, refuse_unless_safe, stage, status};

use super::acting::change_files;
use super::certificate::{CertificateOptions, made_line};
use super::certificate_thing::thing;
use super::durations::seconds;
use super::{OutputOption, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Create a CA in two files, on any machine.
    #[command(
        after_help = "Example: on an offline machine\n  attest-gateway ca create --out ca.crt --key-out ca.key\n\nExample: on the gateway's machine, for a new gateway\n  attest-gateway init gw --ca ca.crt --ca-key ca.key --host api-int.example.com\n\nExample: on the gateway's machine, for an existing gateway\n  attest-gateway ca introduce --certificate ca.crt"
    )]
    Create {
        /// File for the certificate.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// File for the private key.
        #[arg(long, value_name = "FILE")]
        key_out: PathBuf,
        #[command(flatten)]
        name: CaNameOptions,
        #[command(flatten)]
        kind: CertificateOptions,
    },
    /// First step of a rotation: add a second CA, which new pointers carry, too.
    #[command(
        after_help = "Example:\n  attest-gateway ca introduce\n\nAfterwards write new pointers for every pool. When `attest-gateway ca status` says that no old pointer is in use, run\n`attest-gateway ca switch`."
    )]
    Introduce {
        /// CA certificate that was created elsewhere [default: create one].
        #[arg(long, value_name = "FILE", conflicts_with_all = ["key_out", "name", "algorithm"])]
        certificate: Option<PathBuf>,
        /// File for the new CA's private key [default: next to tls.ca].
        #[arg(long, value_name = "FILE")]
        key_out: Option<PathBuf>,
        #[command(flatten)]
        name: CaNameOptions,
        #[command(flatten)]
        kind: CertificateOptions,
    },
    /// Second step: issue a certificate by the newest CA. Pointers without it stop working.
    #[command(
        after_help = "Example:\n  attest-gateway ca switch\n\nExample: only if the pointers of all machine sets carry the new CA\n  attest-controller pointer list && attest-gateway ca switch\n\nExample: the CA's key is on another machine, where the certificate was signed\n  attest-gateway ca switch --certificate mcs.crt --key mcs.key"
    )]
    Switch {
        /// The newest CA's private key [default: the one next to tls.ca].
        #[arg(long, value_name = "FILE", conflicts_with = "certificate")]
        ca_key: Option<PathBuf>,
        /// Certificate that the newest CA has signed elsewhere.
        #[arg(long, value_name = "FILE", requires = "key", conflicts_with = "algorithm")]
        certificate: Option<PathBuf>,
        /// Private key of that certificate.
        #[arg(long, value_name = "FILE", requires = "certificate")]
        key: Option<PathBuf>,
        #[command(flatten)]
        kind: CertificateOptions,
        #[command(flatten)]
        caution: Caution,
    },
    /// Third step: remove the old CA from new pointers.
    #[command(after_help = "Example:\n  attest-gateway ca retire --discard-key\n\nPointers that carry both CAs keep working.")]
    Retire {
        /// Delete the old CA's private key instead of renaming it.
        #[arg(long)]
        discard_key: bool,
        #[command(flatten)]
        caution: Caution,
    },
    /// Show stage, CAs and used pointers of the rotation, and its next step.
    #[command(after_help = "Example: count pointers that were used within the last 90 days\n  attest-gateway ca status --within 90d")]
    Status {
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        format: OutputOption,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct CaNameOptions {
    /// Name of the CA [default: machine-config-server-ca@ and the time]. The CAs of one gateway must have different names.
    #[arg(long, value_name = "NAME", value_parser = common_name)]
    name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Within {
    /// Consider pointers that were used within this time: a number with s, m, h or d.
    #[arg(long, value_name = "TIME", default_value_t = format!("{WITHIN_DAYS}d"), value_parser = checked)]
    within: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Caution {
    /// Continue although pointers without the newest CA are in use.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    within: Within,
}

fn checked(text: &str) -> Result<String, String> {
    seconds(text).map(|_| text.to_owned())
}

/// X.509's limit for a common name.
const NAME_LIMIT_CHARACTERS: usize = 64;

pub(super) fn common_name(text: &str) -> Result<String, String> {
    let fits = (1..=NAME_LIMIT_CHARACTERS).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
        .ok_or_else(|| format!("a CA's name has 1 to {NAME_LIMIT_CHARACTERS} printable characters"))
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create { out, key_out, name, kind } => create(out, key_out, name, kind)?,
        Command::Introduce {
            certificate,
            key_out,
            name,
            kind,
        } => recorded(config, Verb::CaIntroduce, || {
            introduce(config, certificate.as_deref(), key_out.as_deref(), name, kind)
        })?,
        Command::Switch {
            ca_key,
            certificate,
            key,
            kind,
            caution,
        } => recorded(config, Verb::CaSwitch, || {
            switch(config, ca_key.as_deref(), certificate.as_deref().zip(key.as_deref()), kind, caution)
        })?,
        Command::Retire { discard_key, caution } => recorded(config, Verb::CaRetire, || retire(config, *discard_key, caution))?,
        Command::Status { within, format } => status(config, within, *format)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn create(out: &Path, key_out: &Path, name: &CaNameOptions, kind: &CertificateOptions) -> anyhow::Result<()> {
    if out == key_out {
        bail!("--out and --key-out name the same file: name a separate file for the key");
    }
    for file in [out, key_out] {
        if file.symlink_metadata().is_ok() {
            bail!("{} exists and was not changed: name another file", file.display());
        }
    }
    let wanted = kind.wanted(None);
    let key = issue::SigningKey::generate(wanted.algorithm)?;
    let now = Clock::System.now();
    let name = name.name.clone().unwrap_or_else(|| issue::authority_name(now));
    let made = issue::authority(&name, key, wanted.days, now)?;
    // The key first: without it, the certificate is of no use.
    files::create(key_out, files::PRIVATE, &made.key.pem())?;
    files::create(out, files::PUBLIC, &made.certificate.pem())?;
    output::done(format_args!("{}: created the CA {}", out.display(), described(&made.certificate)))?;
    output::done(format_args!(
        "{}: its private key (mode 0600). Keep it secret: it signs certificates that every node with this CA in its pointer accepts",
        key_out.display()
    ))?;
    output::done(
        "Next, on the gateway's machine: for a new gateway `attest-gateway init FOLDER --ca ca.crt --ca-key ca.key`, for an existing one `attest-gateway ca introduce --certificate ca.crt`",
    )?;
    Ok(())
}

fn described(ca: &Certificate) -> String {
    format!(
        "{} ({}), {}, until {}",
        ca.subject,
        ca.fingerprint.short(),
        ca.key_kind,
        rfc3339(ca.not_after)
    )
}

/// Message of a step, and the things that it has changed.
type Done = (String, Vec<ValueChange>);

/// Runs a step, and prints its message once it is recorded.
fn recorded(config: &Path, verb: Verb, step: impl FnOnce() -> anyhow::Result<Done>) -> anyhow::Result<()> {
    output::done(change_files(&Settings::load(config)?, verb, step)?)
}

fn introduce(
    config: &Path,
    certificate: Option<&Path>,
    key_out: Option<&Path>,
    name: &CaNameOptions,
    kind: &CertificateOptions,
) -> anyhow::Result<Done> {
    let settings = Settings::load(config)?;
    let installation = Installation::open(&settings.tls)?;
    let today = install::today(&settings.tls)?;
    let stage = stage(&today);
    if stage != RotationStage::Settled {
        bail!(
            "{} holds {} CAs already (stage {stage}); for the next step: `attest-gateway ca status`",
            settings.tls.ca.display(),
            today.authorities.len()
        );
    }
    let now = Clock::System.now();
    let (ca, key) = match certificate {
        Some(path) => {
            let brought = source::authorities(path)?;
            let [ca] = brought.as_slice() else {
                bail!(
                    "{} holds {} certificates; name a file with exactly one",
                    path.display(),
                    brought.len()
                );
            };
            if !ca.is_current(now) {
                bail!(
                    "{}: {} is not valid now, only from {} until {}",
                    path.display(),
                    ca.subject,
                    rfc3339(ca.not_before),
                    rfc3339(ca.not_after)
                );
            }
            if ca.subject == today.authority.subject && ca.key != today.authority.key {
                bail!(
                    "{}: the CA in use has the same subject {} but another key, and clients could confuse them: create the new CA with another --name",
                    path.display(),
                    ca.subject
                );
            }
            installation.add(ca)?;
            (ca.clone(), None)
        }
        None => {
            let wanted = kind.wanted(Some(&today.authority));
            let taken = |name: &str| today.authority.subject == format!("CN={name}");
            let name = match &name.name {
                Some(name) if taken(name) => {
                    bail!("the CA in use has the same name {name}: use another --name")
                }
                Some(name) => name.clone(),
                // One that was made in this second.
                None if taken(&issue::authority_name(now)) => {
                    issue::authority_name(UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() + 1)))
                }
                None => issue::authority_name(now),
            };
            let (ca, key) = installation.introduce(&name, &wanted, key_out, now)?;
            (ca, Some(key))
        }
    };
    let key = match key {
        Some(path) => format!("the new CA's private key: {}", path.display()),
        None => {
            "the new CA's private key was not copied: `attest-gateway ca switch` needs it (--ca-key), or a certificate that it has signed (--certificate)".to_owned()
        }
    };
    let said = format!(
        "{}: added a second CA: {}\n  in use until the switch: {}\n  {key}\n\
         Next: write new pointers for every pool, which carry both CAs: `attest-gateway pointer create`; then `attest-gateway ca status`; then `attest-gateway ca switch`.",
        settings.tls.ca.display(),
        described(&ca),
        described(&today.authority)
    );
    Ok((said, vec![thing("tls.ca", None, Some(&ca))]))
}

fn switch(
    config: &Path,
    ca_key: Option<&Path>,
    brought: Option<(&Path, &Path)>,
    kind: &CertificateOptions,
    caution: &Caution,
) -> anyhow::Result<Done> {
    let settings = Settings::load(config)?;
    let installation = Installation::open(&settings.tls)?;
    let today = install::today(&settings.tls)?;
    match stage(&today) {
        RotationStage::Introduced => {}
        RotationStage::Settled => bail!(
            "{} holds one CA, and it signs the certificate; add a second CA first: `attest-gateway ca introduce`",
            settings.tls.ca.display()
        ),
        RotationStage::Switched => bail!("the newest CA signs the certificate already; the next step: `attest-gateway ca retire`"),
        RotationStage::Foreign if caution.force => {}
        RotationStage::Foreign => bail!("{}", foreign(&settings, &today)),
    }
    refuse_unless_safe(config, &today, caution)?;
    let newest = today.authorities.last().context("the file of tls.ca holds no CA")?;
    let now = Clock::System.now();
    let made = match brought {
        Some((certificate, key)) => installation.bring(newest, certificate, key, now)?,
        None => installation.renew(
            newest,
            ca_key,
            &GatewayNames::from_certificate(&today.certificate),
            &kind.wanted(Some(&today.certificate)),
            now,
        )?,
    };
    let said = format!(
        "{}\nRunning gateways use it within a second. Pointers without the new CA no longer work: the gateway's log names the clients that\n\
         refuse the certificate, and attest_gateway_tls_refused_by_client_total counts them.\n\
         Next: `attest-gateway ca status`; then `attest-gateway ca retire`.",
        made_line(&made, newest)
    );
    Ok((said, vec![thing("tls.certificate", Some(&today.certificate), Some(&made))]))
}

fn retire(config: &Path, discard_key: bool, caution: &Caution) -> anyhow::Result<Done> {
    let settings = Settings::load(config)?;
    let installation = Installation::open(&settings.tls)?;
    let today = install::today(&settings.tls)?;
    match stage(&today) {
        RotationStage::Switched => {}
        // What an interrupted command has left.
        RotationStage::Settled
            if authority_keys::ca_key_path(&settings.tls, &today.authority)
                .is_some_and(|path| path == authority_keys::next_authority_key(&settings.tls)) => {}
        RotationStage::Settled => bail!(
            "{} holds one CA, which is in use; there is no CA to retire",
            settings.tls.ca.display()
        ),
        RotationStage::Introduced => bail!("the older CA still signs the certificate; do this first: `attest-gateway ca switch`"),
        RotationStage::Foreign if caution.force => {}
        RotationStage::Foreign => bail!("{}", foreign(&settings, &today)),
    }
    refuse_unless_safe(config, &today, caution)?;
    let retired = installation.retire(discard_key, Clock::System.now())?;
    let dropped = |ca| format!("removed from {}: {}", settings.tls.ca.display(), described(ca));
    let mut said: Vec<String> = retired.dropped.iter().map(dropped).collect();
    said.push(format!("  in use: {}", described(&today.authority)));
    match (&retired.old_key, discard_key) {
        (Some(path), _) => said.push(format!(
            "  the old CA's private key is now {}, and is no longer needed",
            path.display()
        )),
        (None, true) => said.push("  the old CA's private key is no longer on this machine".to_owned()),
        (None, false) => {}
    }
    if let Some(path) = &retired.key {
        said.push(format!("  the private key of the CA in use is now {}", path.display()));
    }
    said.push("New pointers carry one CA. Pointers with both CAs keep working.".to_owned());
    let things = retired.dropped.iter().map(|ca| thing("tls.ca", Some(ca), None)).collect();
    Ok((said.join("\n"), things))
}
