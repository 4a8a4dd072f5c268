//! The command `attest-gateway certificate`: lists all certificates and keys, and replaces the MCS certificate.

pub(crate) mod list;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use attest_certificates::Certificate;
use attest_gateway::pki::{Algorithm, CertificateRequest, GatewayNames, Installation, install, issue};
use attest_gateway::settings::Settings;
use attest_log::admin::Verb;
use attest_system::clock::{Clock, rfc3339};

use super::acting::change_files;
use super::certificate_thing::thing;
use super::output;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Replace the MCS certificate and its key, signed by the same CA.
    #[command(
        after_help = "Example: renew for the same names and ten years, with the CA's key from another place\n  attest-gateway certificate renew --ca-key /media/safe/mcs-ca.key\n\nRunning gateways use the new certificate within a second, and drop no connection. Pointers stay valid."
    )]
    Renew {
        /// The CA's private key [default: the one next to tls.ca].
        #[arg(long, value_name = "FILE")]
        ca_key: Option<PathBuf>,
        /// DNS name under which nodes reach this gateway (repeatable) [default: names and addresses of the present certificate].
        #[arg(long, value_name = "NAME")]
        host: Vec<String>,
        /// IP address under which nodes reach this gateway (repeatable).
        #[arg(long, value_name = "ADDRESS")]
        ip: Vec<IpAddr>,
        /// Certificate that the same CA has signed elsewhere [default: create one].
        #[arg(long, value_name = "FILE", requires = "key", conflicts_with_all = ["ca_key", "host", "ip", "algorithm"])]
        certificate: Option<PathBuf>,
        /// Private key of that certificate.
        #[arg(long, value_name = "FILE", requires = "certificate")]
        key: Option<PathBuf>,
        #[command(flatten)]
        kind: CertificateOptions,
    },
    /// List every certificate and key in use. Exit code 1 if one is not valid.
    List(list::Arguments),
}

/// Kind of certificate, for every command that makes one.
#[derive(Debug, clap::Args)]
pub(crate) struct CertificateOptions {
    /// Kind of key: ecdsa-p256, rsa-2048, rsa-3072 or rsa-4096 [default: that of the present certificate; else ecdsa-p256].
    #[arg(long, value_name = "KIND")]
    pub algorithm: Option<Algorithm>,
    /// Validity in days.
    #[arg(long, value_name = "DAYS", default_value_t = issue::VALIDITY_DAYS, value_parser = clap::value_parser!(u32).range(1..=i64::from(issue::VALIDITY_LIMIT_DAYS)))]
    pub days: u32,
}

impl CertificateOptions {
    /// Returns the wanted kind. Its default is the algorithm of the certificate before, if there was one.
    pub(crate) fn wanted(&self, before: Option<&Certificate>) -> CertificateRequest {
        let before = before.and_then(install::algorithm_of);
        CertificateRequest {
            algorithm: self.algorithm.or(before).unwrap_or_default(),
            days: self.days,
        }
    }
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let (ca_key, host, ip, certificate, key, kind) = match command {
        Command::List(arguments) => return list::run(config, arguments),
        Command::Renew {
            ca_key,
            host,
            ip,
            certificate,
            key,
            kind,
        } => (ca_key, host, ip, certificate, key, kind),
    };
    let settings = Settings::load(config)?;
    let made = change_files(&settings, Verb::CertificateRenew, || {
        let now = Clock::System.now();
        let files = Installation::open(&settings.tls)?;
        let before = install::today(&settings.tls)?;
        let given = GatewayNames {
            hosts: host.clone(),
            addresses: ip.clone(),
        };
        let names = if given.is_empty() {
            GatewayNames::from_certificate(&before.certificate)
        } else {
            given
        };
        let made = match (certificate, key) {
            (Some(certificate), Some(key)) => files.bring(&before.authority, certificate, key, now)?,
            _ => files.renew(
                &before.authority,
                ca_key.as_deref(),
                &names,
                &kind.wanted(Some(&before.certificate)),
                now,
            )?,
        };
        Ok((
            made_line(&made, &before.authority),
            vec![thing("tls.certificate", Some(&before.certificate), Some(&made))],
        ))
    })?;
    output::done(format_args!(
        "{made}\nRunning gateways use it within a second. Pointers stay valid."
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a line about a serving certificate that was made.
pub(super) fn made_line(made: &Certificate, authority: &Certificate) -> String {
    let shortened = if made.not_after == authority.not_after {
        " (when its CA expires)"
    } else {
        ""
    };
    format!(
        "MCS certificate {} ({}) for {}, until {}{shortened}, signed by {} ({})",
        made.fingerprint.short(),
        made.key_kind,
        made.names.join(", "),
        rfc3339(made.not_after),
        authority.subject,
        authority.fingerprint.short(),
    )
}
