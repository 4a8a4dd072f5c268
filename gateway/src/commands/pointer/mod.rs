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
    after_help = "Example: a pointer config for a pool, for any machine that can attest\n  attest-gateway pointer create --pool worker --url https://api-int.mycluster.example.com:22623 > worker.ign\n\nExample: as the Secret of the Machine API\n  attest-gateway pointer create --pool worker --format secret | oc apply -f -\n\nExample: with a provisioning token\n  attest-gateway pointer create --pool worker --token-file rack7.token > worker.ign\n\nThe pointer config holds the gateway's URL and the CAs of tls.ca. It is not secret, unless it carries a token. Its URL lists the CAs\n(?ca=), so that `attest-gateway ca status` can tell which pointers are in use."
)]
pub(crate) struct Create {
    /// Pool that nodes with this pointer join.
    #[arg(long)]
    pool: String,
    /// URL at which nodes reach the gateway, https://host:port [default: `pointer_url` of gateway.toml; else the certificate's first
    /// name, and the port of `listen`].
    #[arg(long)]
    url: Option<Url>,
    /// Provisioning token for machines that cannot attest. Every reader of the pointer can use it. Other users of this machine see the
    /// command line in `ps`: prefer --token-file.
    // A token is base64url: one in 64 begins with a hyphen.
    #[arg(long, conflicts_with = "token_file", allow_hyphen_values = true)]
    token: Option<String>,
    /// File with the token, or - for standard input.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Spec version of the pointer: 3.1.0 for OpenShift 4.6 and later, 2.2.0 for earlier releases. In 2.2.0, which has no headers, a token
    /// is part of the URL.
    #[arg(long, default_value = "3.1.0", value_name = "2.2.0|3.1.0...3.6.0")]
    spec: SpecVersion,
    /// Print the config itself, or the Kubernetes Secret that the Machine API gives to new machines.
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
    /// Show whether nodes with a pointer would accept this gateway. Exit code 1 if not.
    #[command(
        after_help = "Example:\n  attest-gateway pointer inspect worker.ign\n\nExample: the pointer of a cluster's machine set\n  oc -n openshift-machine-api get secret worker-user-data -o yaml | attest-gateway pointer inspect -\n\nThe file is an Ignition config of spec 2 or 3, or a Secret with userData (YAML or JSON), of at most 1 MiB. A token in it is looked up,\nbut neither used nor printed."
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
        bail!(
            "--secret-name {name:?} is not a name of a Secret: use at most {SECRET_NAME_LIMIT_BYTES} lower-case letters, digits, '-' and '.'"
        );
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
        .with_context(|| format!("{}: the file is empty or not text; name a file with one token", file.display()))?;
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
        bail!("standard input has more than {limit_bytes} bytes");
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
    let host = chain.first().and_then(|certificate| certificate.names.first()).with_context(|| {
        format!(
            "{}: the certificate has no DNS name or IP address; name the gateway's URL with --url",
            path.display()
        )
    })?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    Ok(Url::parse(&format!("https://{host}:{}", settings.listen.port()))?)
}
