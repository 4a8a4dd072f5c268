//! `attest-gateway certificate list`: every certificate and key in use.

mod external;
mod own;
mod trusted;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use attest::UnixTime;
use attest_certificates::Certificate;
use attest_gateway::settings::Settings;
use attest_system::advised_commands::runnable;
use attest_system::clock::{Clock, rfc3339};
use serde::{Serialize, Serializer};

use crate::commands::{OutputOption, clean, output, table};

/// Time before its end at which a certificate is worth a warning, in seconds: two months, like in `check`.
const EXPIRY_WARNING_SECONDS: u64 = 60 * 24 * 3600;
/// The bits of a file's mode that say who may do what.
const MODE_BITS: u32 = 0o777;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway certificate list\n\nExample: only those that need attention\n  attest-gateway certificate list --output json | jq '.[] | select(.state != \"good\")'\n\nThe exit code is 1 if one is broken, expired or not yet valid."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    format: OutputOption,
}

/// State of a certificate or key.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CertificateState {
    Good,
    /// Its end is near.
    ExpiresSoon,
    Expired,
    /// It has expired, like others of its kind will: manufacturers of TPMs have many, and not all are missed.
    OutOfUse,
    NotYetValid,
    /// It is not here, and need not be.
    NotHere,
    /// It does not do what it is for, and why.
    Broken(String),
}

impl CertificateState {
    const fn label(&self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::ExpiresSoon => "expires soon",
            Self::Expired => "EXPIRED",
            Self::OutOfUse => "expired",
            Self::NotYetValid => "NOT YET VALID",
            Self::NotHere => "not here",
            Self::Broken(_) => "BROKEN",
        }
    }

    const fn fails(&self) -> bool {
        matches!(self, Self::Expired | Self::NotYetValid | Self::Broken(_))
    }

    /// Returns the state by the dates of a certificate.
    fn from_dates(certificate: &Certificate, now: UnixTime) -> Self {
        let now = now.as_secs();
        if now < certificate.not_before {
            Self::NotYetValid
        } else if now > certificate.not_after {
            Self::Expired
        } else if now.saturating_add(EXPIRY_WARNING_SECONDS) > certificate.not_after {
            Self::ExpiresSoon
        } else {
            Self::Good
        }
    }
}

impl Serialize for CertificateState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.label().to_lowercase())
    }
}

/// A certificate or key, and what there is to know of it.
#[derive(Debug, Serialize)]
struct Item {
    name: String,
    state: CertificateState,
    /// Reason why it is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Purpose of the certificate or key.
    purpose: &'static str,
    /// Origin: its maker, and how it was made.
    made: String,
    /// Location of its file.
    place: String,
    /// Consequences of its failure.
    fails: &'static str,
    /// The last second at which it is valid, since 1970; keys have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    /// Steps that replace it.
    rotates: String,
}

impl Item {
    fn problem(mut self, problem: impl ToString) -> Self {
        let problem = clean(&problem.to_string());
        self.state = CertificateState::Broken(problem.clone());
        self.problem = Some(problem);
        self
    }
}

/// A certificate or key in short.
#[derive(Debug, Serialize)]
pub(crate) struct CertificateSummary {
    pub(crate) name: String,
    pub(crate) state: String,
    /// The last second at which it is valid, since 1970; keys have none.
    pub(crate) expires: Option<u64>,
    /// Set unless its end is near, or it does not do what it is for.
    #[serde(skip)]
    pub(crate) is_good: bool,
}

/// Returns all certificates and keys in short.
pub(crate) fn summaries(settings: &Settings, now: UnixTime) -> Vec<CertificateSummary> {
    let summary = |item: Item| CertificateSummary {
        state: item.state.label().to_lowercase(),
        is_good: matches!(item.state, CertificateState::Good | CertificateState::NotHere),
        name: item.name,
        expires: item.expires,
    };
    items(settings, now).into_iter().map(summary).collect()
}

fn items(settings: &Settings, now: UnixTime) -> Vec<Item> {
    let mut items = own::items(settings, now);
    items.extend(trusted::items(settings, now));
    items.extend(external::items(settings, now));
    items
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let now = Clock::System.now();
    let mut items = items(&settings, now);
    for item in &mut items {
        item.rotates = runnable(&item.rotates).into_owned();
    }
    match arguments.format.is_json() {
        true => output::json(&items)?,
        false => print(&items, now.as_secs())?,
    }
    let failed = items.iter().any(|item| item.state.fails());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(items: &[Item], now: u64) -> anyhow::Result<()> {
    let rows: Vec<[String; 4]> = items
        .iter()
        .map(|item| {
            let (expires, left) = item.expires.map_or_else(
                || ("-".to_owned(), "-".to_owned()),
                |expires| (rfc3339(expires), left(expires, now)),
            );
            [item.name.clone(), expires, left, item.state.label().to_owned()]
        })
        .collect();
    output::print(table(["NAME", "EXPIRES", "IN", "STATE"], &rows))?;
    for item in items {
        output::line(format_args!("\n{}", item.name))?;
        if let Some(problem) = &item.problem {
            output::line(format_args!("  BROKEN    {problem}"))?;
        }
        output::line(format_args!("  for       {}", item.purpose))?;
        output::line(format_args!("  made      {}", item.made))?;
        output::line(format_args!("  lies      {}", item.place))?;
        output::line(format_args!("  fails     {}", item.fails))?;
        let expires = match item.expires {
            Some(expires) => format!("{} ({})", rfc3339(expires), left(expires, now)),
            None => "never by itself".to_owned(),
        };
        output::line(format_args!("  expires   {expires}"))?;
        output::line(format_args!("  rotates   {}", item.rotates))?;
    }
    Ok(())
}

/// Returns the time until then, in the largest unit that says enough.
pub(crate) fn left(until: u64, now: u64) -> String {
    let counted = |number: u64, unit: &str| match number {
        1 => format!("1 {unit}"),
        number => format!("{number} {unit}s"),
    };
    let words = |seconds: u64| {
        let (hours, days) = (seconds / 3600, seconds / (24 * 3600));
        match (hours, days) {
            (0..48, _) => counted(hours, "hour"),
            (_, 0..730) => counted(days, "day"),
            _ => counted(days / 365, "year"),
        }
    };
    match until.checked_sub(now) {
        Some(seconds) => words(seconds),
        None => format!("{} ago", words(now.saturating_sub(until))),
    }
}

/// Describes a file by its path and its mode.
fn place(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(found) => format!("{} (mode {:04o})", path.display(), found.permissions().mode() & MODE_BITS),
        Err(error) => format!("{} ({error})", path.display()),
    }
}

/// Describes a certificate by its own content: subject, signer and key.
fn described(certificate: &Certificate) -> String {
    let Certificate {
        subject, issuer, key_kind, ..
    } = certificate;
    let signed = if subject == issuer {
        "self-signed".to_owned()
    } else {
        format!("signed by {}", clean(issuer))
    };
    format!("{}, {key_kind}, {signed}", clean(subject))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_remaining_validity() {
        let day = 24 * 3600;
        assert_eq!(left(100, 100), "0 hours");
        assert_eq!(left(0, 3600), "1 hour ago");
        assert_eq!(left(100 + 2 * day - 1, 100), "47 hours");
        assert_eq!(left(100 + 2 * day, 100), "2 days");
        assert_eq!(left(729 * day, 0), "729 days");
        assert_eq!(left(3650 * day, 0), "10 years");
        assert_eq!(left(0, 3 * day), "3 days ago");
        assert_eq!(left(u64::MAX, 0), "584942417355 years");
    }
}
