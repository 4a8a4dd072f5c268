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
    /// Make a CA by itself: two files, and nothing else. No gateway needs to be here.
    #[command(
        after_help = "Example: on a machine that is kept offline\n  attest-gateway ca create --out ca.crt --key-out ca.key\nThen, where the gateway is:\n  attest-gateway init gw --ca ca.crt --ca-key ca.key --host api-int.example.com\n  attest-gateway ca introduce --certificate ca.crt      (in a gateway that is there already)"
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
    /// First step of a rotation: a second CA, which every pointer that is written from then on carries too.
    #[command(
        after_help = "Example:\n  attest-gateway ca introduce\nThen write new pointers, and when `ca status` says that none of the old ones is in use:\n  attest-gateway ca switch"
    )]
    Introduce {
        /// A CA that was made elsewhere [default: one is made here].
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
    /// Second step: a certificate by the newest CA. Pointers that lack it do not work from then on.
    #[command(
        after_help = "Example:\n  attest-gateway ca switch\nIn a cluster with machine sets, if their pointers carry that CA:\n  attest-controller pointer list && attest-gateway ca switch\nWith the CA's key kept elsewhere, and a certificate that was signed there:\n  attest-gateway ca switch --certificate mcs.crt --key mcs.key"
    )]
    Switch {
        /// The newest CA's private key [default: the one next to tls.ca].
        #[arg(long, value_name = "FILE", conflicts_with = "certificate")]
        ca_key: Option<PathBuf>,
        /// A certificate that the newest CA has signed elsewhere.
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
    /// Third step: pointers carry only the CA in use.
    #[command(after_help = "Example:\n  attest-gateway ca retire --discard-key")]
    Retire {
        /// Remove the old CA's private key, if it is here, instead of giving it another name.
        #[arg(long)]
        discard_key: bool,
        #[command(flatten)]
        caution: Caution,
    },
    /// Show the stage of the rotation, the CAs, the pointers that were seen, and whether the next step is safe.
    #[command(after_help = "Example:\n  attest-gateway ca status --within 90d")]
    Status {
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        format: OutputOption,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct CaNameOptions {
    /// Name of the CA [default: machine-config-server-ca@ and the time]. Two CAs of one gateway must differ in it.
    #[arg(long, value_name = "NAME", value_parser = common_name)]
    name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Within {
    /// Age up to which pointers that were seen count: a number with s, m, h or d.
    #[arg(long, value_name = "TIME", default_value_t = format!("{WITHIN_DAYS}d"), value_parser = checked)]
    within: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Caution {
    /// Go on although pointers are in the way.
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
        bail!("--out and --key-out are one file: the key goes into one of its own");
    }
    for file in [out, key_out] {
        if file.symlink_metadata().is_ok() {
            bail!("{} exists, and nothing is overwritten: name another file", file.display());
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
    output::done(format_args!("{}: the CA {}", out.display(), described(&made.certificate)))?;
    output::done(format_args!(
        "{}: its private key (0600); whoever has it can make certificates that every node with this CA in its pointer accepts",
        key_out.display()
    ))?;
    output::done("Nothing is installed: `init --ca`, or `ca introduce --certificate` in a gateway that is there already.")?;
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
            "{} holds {} CAs already (stage {stage}): `ca status` says what comes next",
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
                    "{} holds {} certificates; one is introduced at a time",
                    path.display(),
                    brought.len()
                );
            };
            if !ca.is_current(now) {
                bail!(
                    "{}: {} is valid from {} until {}",
                    path.display(),
                    ca.subject,
                    rfc3339(ca.not_before),
                    rfc3339(ca.not_after)
                );
            }
            if ca.subject == today.authority.subject && ca.key != today.authority.key {
                bail!(
                    "{}: the CA in use has the same subject {} and another key: clients could mistake one for the other",
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
                    bail!("the CA in use is named {name} as well: two CAs of one gateway must have different names")
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
            "the new CA's private key stays where it is: `ca switch` needs it (--ca-key), or a certificate that it has signed".to_owned()
        }
    };
    let said = format!(
        "{} carries a second CA: {}\n  in use until the switch: {}\n  {key}\n\
         Next: write new pointers (`attest-gateway pointer create`), for every pool; they carry both. Then `ca status`, then `ca switch`.",
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
            "{} holds one CA, and it signs the certificate: `ca introduce` comes first",
            settings.tls.ca.display()
        ),
        RotationStage::Switched => bail!("the newest CA signs the certificate already: `ca retire` comes next"),
        RotationStage::Foreign if caution.force => {}
        RotationStage::Foreign => bail!("{}", foreign(&settings, &today)),
    }
    refuse_unless_safe(config, &today, caution)?;
    let newest = today.authorities.last().context("there is no CA")?;
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
        "{}\nA gateway that serves takes it within a second. Pointers without the new CA do not work any longer: the gateway's log names\n\
         the peers that refuse the certificate, and attest_gateway_tls_refused_by_client_total counts them.\n\
         Next: `ca status`; then `ca retire`.",
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
        RotationStage::Settled => bail!("{} holds one CA, which is in use: nothing to retire", settings.tls.ca.display()),
        RotationStage::Introduced => bail!("the older CA signs the certificate still: `ca switch` comes first"),
        RotationStage::Foreign if caution.force => {}
        RotationStage::Foreign => bail!("{}", foreign(&settings, &today)),
    }
    refuse_unless_safe(config, &today, caution)?;
    let retired = installation.retire(discard_key, Clock::System.now())?;
    let dropped = |ca| format!("dropped from {}: {}", settings.tls.ca.display(), described(ca));
    let mut said: Vec<String> = retired.dropped.iter().map(dropped).collect();
    said.push(format!("  in use: {}", described(&today.authority)));
    match (&retired.old_key, discard_key) {
        (Some(path), _) => said.push(format!(
            "  the old CA's private key is now {}: nothing needs it any longer",
            path.display()
        )),
        (None, true) => said.push("  no private key of the old CA is here any longer".to_owned()),
        (None, false) => {}
    }
    if let Some(path) = &retired.key {
        said.push(format!("  the private key of the CA in use is now {}", path.display()));
    }
    said.push("New pointers carry one CA. Pointers with both go on working.".to_owned());
    let things = retired.dropped.iter().map(|ca| thing("tls.ca", Some(ca), None)).collect();
    Ok((said.join("\n"), things))
}
