//! `attest-node config`: the full config for a node whose kubelet has its client certificate.
//!
//! The config is written to a file, or applied at the next boot ([`crate::apply`]). A node that started with the pre-approved config has a
//! certificate once its CSR was approved. With that certificate, it gets the full config by mutual TLS, from the gateway and the pool that
//! the pointer names. The pointer's credentials are not sent: the gateway accepts a single credential.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use zeroize::Zeroizing;

use crate::apply::system::System;
use crate::apply::{self, PreparedSystem};
use crate::cloud::MetadataAddress;
use crate::console::print_line;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::gateway::identity::ClientIdentity;
use crate::gateway::tls::PointerTrust;
use crate::gateway::{GatewayClient, Http};
use crate::keep::{self, Initramfs};
use crate::platform::{NodePlatform, PlatformError, pointer_file};
use crate::pointer::source::gateway_of;
use crate::pointer::{GatewaySource, Pointer, PointerError, write};

/// Settings from the command line.
#[derive(Debug, Clone)]
pub struct ConfigOptions {
    /// Pointer file to use instead of Ignition's own source.
    pub pointer: Option<PathBuf>,
    /// URL of the config, if the pointer names none or several. The CAs are the pointer's in any case.
    pub url: Option<String>,
    /// Certificate and key, in one PEM file.
    pub certificate: PathBuf,
    /// Use of the fetched config.
    pub purpose: ConfigPurpose,
    /// The version of Ignition's spec to ask for: `3.3.0`. By default that for a file, and to be applied the newest that this Ignition reads.
    pub spec: Option<String>,
    /// The most time that all of it may take.
    pub deadline: Duration,
    /// The kernel command line.
    pub cmdline: PathBuf,
    /// The folder of the DMI tables.
    pub dmi: PathBuf,
    /// Base URL of the metadata server.
    pub metadata: MetadataAddress,
    /// Folder with the files that were kept for the booted system.
    pub kept_folder: PathBuf,
    /// The root of the system to apply it to.
    pub root: PathBuf,
}

/// Use of the fetched config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigPurpose {
    /// The config is written to this file.
    File(PathBuf),
    /// Ignition applies it at the next boot.
    Apply,
    /// Effects of [`ConfigPurpose::Apply`] are taken back.
    Undo,
}

/// Spec version that is asked for by default.
const USUAL_SPEC: &str = "3.3.0";

/// Checks the value of `--spec`: three numbers.
///
/// # Errors
/// The expected form of the value.
pub fn spec_version(text: &str) -> Result<String, String> {
    let numbers: Vec<&str> = text.split('.').collect();
    let number = |part: &&str| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    if numbers.len() == 3 && numbers.iter().all(number) {
        Ok(text.to_owned())
    } else {
        Err("expected a version such as 3.3.0".to_owned())
    }
}

/// Runs, says on stderr how it went, and returns 0 if that is done, and 1 if not.
#[must_use]
pub fn run(settings: &ConfigOptions) -> ExitCode {
    let deadline = Deadline::after(settings.deadline);
    let (done, otherwise) = match &settings.purpose {
        ConfigPurpose::File(output) => (
            to_file(settings, output, deadline),
            format!("no config: {{}}; {} is unchanged", output.display()),
        ),
        ConfigPurpose::Apply => (apply(settings, deadline), "not applied: {}; nothing is changed".to_owned()),
        ConfigPurpose::Undo => (undo(settings), "not reverted: {}".to_owned()),
    };
    match done {
        Ok(said) => {
            print_line(&said);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print_line(&otherwise.replacen("{}", &failure.to_string(), 1));
            ExitCode::FAILURE
        }
    }
}

fn to_file(settings: &ConfigOptions, output: &Path, deadline: Deadline) -> Result<String, Failure> {
    let (from, config) = fetch(settings, settings.spec.as_deref().unwrap_or(USUAL_SPEC), deadline)?;
    replace(output, &config)?;
    Ok(format!("config {from} written to {}", output.display()))
}

fn apply(settings: &ConfigOptions, deadline: Deadline) -> Result<String, Failure> {
    let platform = NodePlatform::read(&settings.cmdline, &settings.dmi);
    let initramfs = Initramfs::load(&settings.kept_folder);
    let prepared = PreparedSystem::find(System::new(&settings.root), initramfs.as_ref(), platform.ignition.input())?;
    let spec = prepared.spec(settings.spec.as_deref())?;
    let (from, config) = fetch(settings, &spec, deadline)?;
    let notes = prepared.apply(&config, &spec)?;
    notes.iter().for_each(|note| print_line(&format!("note: {note}")));
    Ok(format!(
        "config {from} is in place, and Ignition applies it at the next boot: reboot soon, and until then change no file that the config \
         writes. To revert, run `attest-node config undo`"
    ))
}

fn undo(settings: &ConfigOptions) -> Result<String, Failure> {
    let initramfs = Initramfs::load(&settings.kept_folder);
    let was_there = apply::undo(&System::new(&settings.root), initramfs.as_ref())?;
    Ok(match was_there {
        true => "reverted: Ignition does not run at the next boot".to_owned(),
        false => "nothing to revert: no config is in place".to_owned(),
    })
}

/// Fetches the config. Returns its source, for messages, and its content.
fn fetch(settings: &ConfigOptions, spec: &str, deadline: Deadline) -> Result<(String, Zeroizing<Vec<u8>>), Failure> {
    let identity = ClientIdentity::read(&settings.certificate)?;
    // What Ignition was given at this boot, in a place that the initramfs takes with it, comes before what it would find now.
    let kept = keep::pointer(&settings.kept_folder);
    let bytes = match settings.pointer.as_ref().or(kept.as_ref()) {
        Some(path) => pointer_file(path)?,
        None => NodePlatform::read(&settings.cmdline, &settings.dmi)
            .pointer(&settings.metadata, deadline)
            .map_err(not_found)?,
    };
    let pointer = Pointer::parse(&bytes)?;
    let (base, pool) = source(pointer.sources(), settings.url.as_deref())?;
    let http = Http::showing(PointerTrust::new(&pointer.authorities()?)?, identity)?;
    let config = GatewayClient::new(&http, &base, deadline).config(&pool, spec)?;
    Ok((format!("of pool {pool} from {base}"), config))
}

/// Replaces the next step, which is for the initramfs, by one for a booted system.
fn not_found(error: PlatformError) -> Failure {
    let elsewhere = matches!(
        error,
        PlatformError::Pointer(PointerError::Elsewhere { .. } | PointerError::Nowhere | PointerError::Unclear)
    );
    let failure = Failure::from(error);
    match elsewhere {
        true => Failure {
            next_step: "name the pointer config's file with --pointer".to_owned(),
            ..failure
        },
        false => failure,
    }
}

fn replace(output: &Path, config: &[u8]) -> Result<(), Failure> {
    write::replace(output, config).map_err(|error| {
        Failure::new(
            "output",
            format!("{} cannot be written: {error}", output.display()),
            "make its folder writable, or name another file with --out",
        )
    })
}

/// Returns the gateway and the pool, without the rest of the URL.
fn source(sources: Vec<GatewaySource>, url: Option<&str>) -> Result<(String, String), Failure> {
    let unclear = |reason: String| Failure::new("config-source", reason, "name the config with --url https://HOST:PORT/config/POOL");
    if let Some(url) = url {
        return gateway_of(url).ok_or_else(|| unclear("--url is not of the form https://…/config/<pool>".to_owned()));
    }
    let found = sources.len();
    let mut sources = sources.into_iter();
    match (sources.next(), sources.next()) {
        (Some(GatewaySource { base, pool, .. }), None) => Ok((base, pool)),
        _ => Err(unclear(format!(
            "the pointer config names {found} sources of the form https://…/config/<pool>, exactly one is required"
        ))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn check(sources: &[&str], url: Option<&str>, expect: Option<(&str, &str)>) {
        let merge: Vec<String> = sources.iter().map(|source| format!("{{\"source\":{source:?}}}")).collect();
        let pointer = format!(
            "{{\"ignition\":{{\"version\":\"3.1.0\",\"config\":{{\"merge\":[{}]}}}}}}",
            merge.join(",")
        );
        let found = source(Pointer::parse(pointer.as_bytes()).unwrap().sources(), url);
        match expect {
            Some((base, pool)) => assert_eq!(found, Ok((base.to_owned(), pool.to_owned()))),
            None => assert_eq!(found.unwrap_err().code, "config-source", "{sources:?} {url:?}"),
        }
    }

    #[test]
    fn config_source_is_unique_and_loses_its_token() {
        let worker = Some(("https://a:1", "worker"));
        check(&["https://a:1/config/worker"], None, worker);
        check(&["https://a:1/config/worker?token=SECRET"], None, worker);
        check(&["https://a:1/config/worker", "https://b/base.ign"], None, worker);
        check(&[], Some("https://a:1/config/worker?token=SECRET"), worker);
        check(&["https://b/config/x"], Some("https://a:1/config/worker"), worker);
        check(&[], None, None);
        check(&["https://a:1/config/worker", "https://b/config/worker"], None, None);
        check(&["https://a:1/config/worker"], Some("http://a:1/config/worker"), None);
        check(&["https://a:1/config/worker"], Some("https://user:SECRET@a:1/config/worker"), None);
    }

    #[test]
    fn a_spec_version_is_three_numbers() {
        for right in ["3.3.0", "3.6.0", "2.2.0"] {
            assert_eq!(spec_version(right), Ok(right.to_owned()));
        }
        for wrong in ["", "3", "3.3", "3.3.0.0", "3.3.x", "3.3.0\r\nX: y", "3..0", "3.3.1000"] {
            assert!(spec_version(wrong).is_err(), "{wrong:?}");
        }
    }
}
