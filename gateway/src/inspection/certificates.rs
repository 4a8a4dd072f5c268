//! Inspection of the MCS CA, certificate and key: finds problems before a node does.

use std::path::Path;

use attest::UnixTime;
use attest_certificates::{Certificate, source};
use attest_system::clock::{Clock, rfc3339};

use super::InspectionFinding;
use crate::pki::rotation::{self, RotationStage};
use crate::pki::{EXPIRY_WARNING_SECONDS, LiveTls, ServingCertificate, authority_keys};
use crate::settings::TlsSettings;

/// Reads CA, certificate and key, and the CA of kubelets. `None` if there can be no TLS with them.
pub(super) fn inspect(files: &TlsSettings, clock: Clock, findings: &mut Vec<InspectionFinding>) -> Option<LiveTls> {
    for path in [
        files.key.clone(),
        authority_keys::authority_key(files),
        authority_keys::next_authority_key(files),
    ] {
        findings.extend(source::exposed(&path).map(|exposed| {
            let text = format!("{}: {exposed}", path.display());
            if exposed.to_everybody {
                InspectionFinding::Error(text)
            } else {
                InspectionFinding::Warning(text)
            }
        }));
    }
    let tls = match LiveTls::open(files, clock) {
        Ok(tls) => tls,
        Err(error) => {
            findings.push(InspectionFinding::Error(error.to_string()));
            return None;
        }
    };
    let (current, now) = (tls.current(), clock.now());
    inspect_serving(files, &current.serving, now, findings);
    if let Some(path) = &files.client_ca {
        findings.extend(current.client_authorities.certificates().map(|ca| validity(path, ca, now)));
    }
    Some(tls)
}

fn inspect_serving(files: &TlsSettings, serving: &ServingCertificate, now: UnixTime, findings: &mut Vec<InspectionFinding>) {
    findings.push(InspectionFinding::Good(format!(
        "{} fits {}",
        files.key.display(),
        files.certificate.display()
    )));
    let signer = serving.authority();
    if let Some(leaf) = serving.certificate() {
        findings.push(InspectionFinding::Good(format!(
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
    if stage != RotationStage::Settled {
        findings.push(InspectionFinding::Warning(format!(
            "{} holds {} CAs: a rotation is in progress ({stage}); for the next step: `attest-gateway ca status`",
            files.ca.display(),
            serving.authorities().len()
        )));
    }
    findings.push(InspectionFinding::Good(match authority_keys::ca_key_path(files, signer) {
        Some(path) => format!("the CA's private key is in {}: this machine can sign certificates", path.display()),
        None => "the CA's private key is not on this machine; to renew the certificate: `attest-gateway certificate renew --ca-key FILE`"
            .to_owned(),
    }));
    findings.extend(serving.authorities().iter().map(|ca| validity(&files.ca, ca, now)));
    findings.extend(
        serving
            .chain()
            .iter()
            .map(|certificate| validity(&files.certificate, certificate, now)),
    );
}

fn validity(path: &Path, certificate: &Certificate, now: UnixTime) -> InspectionFinding {
    let (from, until) = (certificate.not_before, certificate.not_after);
    let text = format!(
        "{}: {} is valid from {} until {}",
        path.display(),
        certificate.subject,
        rfc3339(from),
        rfc3339(until)
    );
    match now.as_secs() {
        // What the gateway needs itself is current, or there would be no TLS. The others are not believed, and nothing else depends on them.
        now if now < from || now > until => InspectionFinding::Degraded(format!("{text}; now it is {}", rfc3339(now))),
        now if now.saturating_add(EXPIRY_WARNING_SECONDS) > until => InspectionFinding::Warning(text),
        _ => InspectionFinding::Good(text),
    }
}
