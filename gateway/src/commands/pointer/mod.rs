//! The command `attest-gateway pointer`: creates and inspects pointer configs.

mod inspect;
mod token;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use attest_certificates::secret_manifest;
use attest_certificates::source;
use attest_gateway::settings::Settings;
use attest_ignition::SpecVersion;
use attest_pointers::PointerOptions;
use attest_system::files;
use url::Url;
use zeroize::Zeroizing;

use super::{OutputOption, output};

/// Largest file with a token: a token, and white space around it.
const TOKEN_FILE_LIMIT_BYTES: usize = 8192;
/// Namespace in which the Machine API looks for user data.
const SECRET_NAMESPACE: &str = "openshift-machine-api";
/// Label that tells the Machine Config Operator that the CAs in this user data are managed. Without it, the operator of OpenShift 4.19 and
/// later replaces a pointer's only CA by the cluster's. It does so in every Secret with an Ignition config, and nodes refuse the gateway.
const SECRET_LABEL: &str = "machineconfiguration.openshift.io/managed-ca-bundle-derived-from-configmap";
/// Longest name of an object in Kubernetes.
const SECRET_NAME_LIMIT_BYTES: usize = 253;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  attest-gateway pointer create --pool worker --url https://api-int.mycluster.example.com:22623 > worker.ign\n  attest-gateway pointer create --pool worker --format secret | oc apply -f -\n  attest-gateway pointer create --pool worker --token-file rack7.token > worker.ign\n  attest-gateway pointer inspect worker.ign\n\nThe pointer config names the gateway and the CAs of tls.ca, and nothing secret unless it carries a token. It says in its URL which CAs\nthose are (?ca=), so that `attest-gateway ca status` can tell which pointers are in use."
)]
pub(crate) struct Create {
    /// The pool that nodes with this pointer join.
    #[arg(long)]
    pool: String,
    /// The URL at which nodes reach the gateway, https://host:port [default: `pointer_url` of gateway.toml; else the certificate's first
    /// name, and the port of `listen`].
    #[arg(long)]
    url: Option<Url>,
    /// A provisioning token for machines that cannot attest. Every reader of the pointer has it then. On the command line every user of
    /// this machine can see it, in `ps`: better use --token-file.
    // A token is base64url: one in 64 begins with a hyphen.
    #[arg(long, conflicts_with = "token_file", allow_hyphen_values = true)]
    token: Option<String>,
    /// A file with the token, or - for standard input.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The pointer's spec version: 3.1.0 is read by every Ignition of OpenShift 4.6 and later, 2.2.0 by those before. In 2.2.0 a token
    /// is in the URL, as there are no headers.
    #[arg(long, default_value = "3.1.0", value_name = "2.2.0|3.1.0...3.6.0")]
    spec: SpecVersion,
    /// The config itself (worker.ign), or the Kubernetes Secret that the Machine API gives to new machines.
    #[arg(long, value_enum, default_value = "ignition")]
    format: PointerFormat,
    /// The Secret's name [default: POOL-user-data].
    #[arg(long, value_name = "NAME")]
    secret_name: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print a pointer config: the first Ignition config of a node.
    Create(Box<Create>),
    /// Say what a pointer trusts, and whether this gateway would satisfy it. Exit code 1 if not.
    #[command(
        after_help = "Examples:\n  attest-gateway pointer inspect worker.ign\n  oc -n openshift-machine-api get secret worker-user-data -o yaml | attest-gateway pointer inspect -\n\nReads an Ignition config of spec 2 or 3, or a Secret with userData, YAML or JSON, of at most 1 MiB. A token in it is looked up; it is\nneither used nor shown."
    )]
    Inspect {
        /// The pointer, or - for standard input.
        file: PathBuf,
        #[command(flatten)]
        format: OutputOption,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PointerFormat {
    Ignition,
    Secret,
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(arguments) => create(config, arguments),
        Command::Inspect { file, format } => inspect::run(config, file, *format),
    }
}

fn create(config: &Path, arguments: &Create) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let pool = arguments.pool.as_str();
    super::pool_folder(&settings, pool)?;
    let base = base_url(&settings, arguments.url.as_ref())?;
    let authorities = source::authorities(&settings.tls.ca)?;
    let token = match (&arguments.token, &arguments.token_file) {
        (Some(token), _) => Some(Zeroizing::new(token.clone())),
        (None, Some(file)) => Some(token_of(file)?),
        (None, None) => None,
    };
    let pointer = PointerOptions {
        base: &base,
        pool,
        authorities: &authorities,
        token: token.as_deref().map(String::as_str),
    };
    let pointer = pointer.render_as(arguments.spec)?;
    match arguments.format {
        PointerFormat::Ignition if arguments.secret_name.is_some() => bail!("--secret-name is for --format secret"),
        PointerFormat::Ignition => output::line(serde_json::to_string_pretty(&pointer)?)?,
        PointerFormat::Secret => {
            let name = arguments.secret_name.clone().unwrap_or_else(|| format!("{pool}-user-data"));
            output::print(&*secret(&name, pointer.to_string().as_bytes())?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the Secret as installers make it. Without `disableTemplating` the Machine API would look for Go templates in the pointer.
fn secret(name: &str, pointer: &[u8]) -> anyhow::Result<Zeroizing<String>> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bytes = name.as_bytes();
    if bytes.len() > SECRET_NAME_LIMIT_BYTES || !name.bytes().all(plain) || !ends(name.bytes().next()) || !ends(name.bytes().last()) {
        bail!("a Secret's name has lower-case letters, digits, '-' and '.' only, at most {SECRET_NAME_LIMIT_BYTES}");
    }
    // Quoted: `123` and `true` are names too.
    Ok(secret_manifest::labelled(
        SECRET_NAMESPACE,
        &format!("\"{name}\""),
        Some(SECRET_LABEL),
        &[("disableTemplating", b"true"), ("userData", pointer)],
    ))
}

fn token_of(file: &Path) -> anyhow::Result<Zeroizing<String>> {
    let bytes = Zeroizing::new(read(file, TOKEN_FILE_LIMIT_BYTES)?);
    let text = std::str::from_utf8(&bytes).ok().map(str::trim);
    let text = text
        .filter(|text| !text.is_empty())
        .with_context(|| format!("{}: holds no token", file.display()))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Reads a file, or standard input for `-`.
pub(super) fn read(file: &Path, limit_bytes: usize) -> anyhow::Result<Vec<u8>> {
    if file != Path::new("-") {
        return files::read(file, u64::try_from(limit_bytes)?).with_context(|| file.display().to_string());
    }
    let mut bytes = Vec::new();
    let most = u64::try_from(limit_bytes)?.saturating_add(1);
    std::io::stdin()
        .lock()
        .take(most)
        .read_to_end(&mut bytes)
        .context("standard input")?;
    if bytes.len() > limit_bytes {
        bail!("standard input: has more than {limit_bytes} bytes");
    }
    Ok(bytes)
}

/// Returns the gateway's URL for nodes: that of the command, or `pointer_url`, or else the certificate's first name and the port of
/// `listen`.
pub(super) fn base_url(settings: &Settings, url: Option<&Url>) -> anyhow::Result<Url> {
    if let Some(url) = url.or(settings.pointer_url.as_ref()) {
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
