//! Whether the certificates hold: what `check` says, before a node finds out.

use std::path::Path;

use attest::UnixTime;

use super::expiry::EXPIRY_WARNING_SECONDS;
use super::rotation::{self, Stage};
use super::{Certificate, Serving, authority_keys, source};
use crate::clock::rfc3339;
use crate::settings::TlsSettings;

/// Something that `check` has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// As it should be.
    Good(String),
    /// Worth knowing.
    Warning(String),
    /// The gateway would not work.
    Error(String),
}

/// Inspects CA, certificate and key, and the CA of kubelets.
#[must_use]
pub fn inspect(files: &TlsSettings, now: UnixTime) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in [
        files.key.clone(),
        authority_keys::authority_key(files),
        authority_keys::next_authority_key(files),
    ] {
        if let Some(mode) = source::mode_too_open(&path) {
            findings.push(Finding::Error(format!(
                "{} has mode {mode:04o}: only its owner may read it (chmod 0600)",
                path.display()
            )));
        }
    }
    match Serving::load(files, now) {
        Ok(serving) => look(files, &serving, now, &mut findings),
        Err(error) => findings.push(Finding::Error(error.to_string())),
    }
    if let Some(path) = &files.client_ca {
        match source::authorities(path) {
            Ok(authorities) => findings.extend(authorities.iter().map(|ca| validity(path, ca, now))),
            Err(error) => findings.push(Finding::Error(error.to_string())),
        }
    }
    findings
}

fn look(files: &TlsSettings, serving: &Serving, now: UnixTime, findings: &mut Vec<Finding>) {
    findings.push(Finding::Good(format!(
        "{} fits {}",
        files.key.display(),
        files.certificate.display()
    )));
    let signer = serving.authority();
    if let Some(leaf) = serving.certificate() {
        findings.push(Finding::Good(format!(
            "{} ({}) is signed by {} ({}) in {}, for {}",
            files.certificate.display(),
            leaf.key_kind,
            signer.subject,
            signer.fingerprint.short(),
            files.ca.display(),
            leaf.names.join(", ")
        )));
    }
    let stage = rotation::stage(serving.authorities(), serving.signed_by());
    if stage != Stage::Settled {
        findings.push(Finding::Warning(format!(
            "{} holds {} CAs: a rotation is under way ({stage}); `ca status` says what comes next",
            files.ca.display(),
            serving.authorities().len()
        )));
    }
    findings.push(Finding::Good(match authority_keys::kept_key(files, signer) {
        Some(path) => format!("the CA's private key is in {}: this machine can sign certificates", path.display()),
        None => "the CA's private key is kept elsewhere: to renew the certificate it must be brought".to_owned(),
    }));
    findings.extend(serving.authorities().iter().map(|ca| validity(&files.ca, ca, now)));
    findings.extend(
        serving
            .chain()
            .iter()
            .map(|certificate| validity(&files.certificate, certificate, now)),
    );
}

fn validity(path: &Path, certificate: &Certificate, now: UnixTime) -> Finding {
    let (from, until) = (certificate.not_before, certificate.not_after);
    let text = format!(
        "{}: {} is valid from {} until {}",
        path.display(),
        certificate.subject,
        rfc3339(from),
        rfc3339(until)
    );
    match now.as_secs() {
        now if now < from || now > until => Finding::Error(format!("{text}; now it is {}", rfc3339(now))),
        now if now.saturating_add(EXPIRY_WARNING_SECONDS) > until => Finding::Warning(text),
        _ => Finding::Good(text),
    }
}
