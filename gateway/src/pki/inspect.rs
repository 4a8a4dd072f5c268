//! Whether the certificates hold: what `check` says, before a node finds out.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use attest::UnixTime;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::clock::rfc3339;
use crate::settings::TlsSettings;

/// How long before its end a certificate is worth a warning, in seconds: two months.
const EXPIRY_WARNING_SECONDS: u64 = 60 * 24 * 3600;

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

/// Inspects CA, certificate and key.
#[must_use]
pub fn inspect(files: &TlsSettings, now: UnixTime) -> Vec<Finding> {
    match look(files, now) {
        Ok(findings) => findings,
        Err(problem) => vec![Finding::Error(problem)],
    }
}

fn look(files: &TlsSettings, now: UnixTime) -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    let roots = certificates(&files.ca)?;
    let chain = certificates(&files.certificate)?;
    let mode = std::fs::metadata(&files.key)
        .map_err(|error| format!("{}: {error}", files.key.display()))?
        .permissions()
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        findings.push(Finding::Error(format!(
            "{} has mode {mode:04o}: only its owner may read it (chmod 0600)",
            files.key.display()
        )));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| format!("{}: {error}", files.key.display()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let fits = provider
        .key_provider
        .load_private_key(key)
        .and_then(|key| rustls::sign::CertifiedKey::new(chain.clone(), key).keys_match());
    findings.push(match fits {
        Ok(()) => Finding::Good(format!("{} fits {}", files.key.display(), files.certificate.display())),
        Err(error) => Finding::Error(format!(
            "{} does not fit {}: {error}",
            files.key.display(),
            files.certificate.display()
        )),
    });

    let (leaf, intermediates) = chain.split_first().ok_or("no certificate")?;
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| format!("{}: {error}", files.certificate.display()))?;
    let names = names(&parsed);
    let Some(name) = names.first() else {
        return Err(format!("{} names no host and no address", files.certificate.display()));
    };
    let mut store = RootCertStore::empty();
    for root in &roots {
        store
            .add(root.clone())
            .map_err(|error| format!("{}: {error}", files.ca.display()))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider)
        .build()
        .map_err(|error| error.to_string())?;
    let server = ServerName::try_from(name.as_str()).map_err(|error| format!("{name}: {error}"))?;
    findings.push(match verifier.verify_server_cert(leaf, intermediates, &server, &[], now) {
        Ok(_) => Finding::Good(format!(
            "{} is signed by {}, for {}",
            files.certificate.display(),
            files.ca.display(),
            names.join(", ")
        )),
        Err(error) => Finding::Error(format!(
            "nodes that trust {} refuse {}: {error}",
            files.ca.display(),
            files.certificate.display()
        )),
    });
    for (path, der) in roots
        .iter()
        .map(|der| (&files.ca, der))
        .chain(chain.iter().map(|der| (&files.certificate, der)))
    {
        let (_, parsed) = X509Certificate::from_der(der).map_err(|error| format!("{}: {error}", path.display()))?;
        findings.push(validity(path, &parsed, now));
    }
    Ok(findings)
}

fn validity(path: &Path, certificate: &X509Certificate<'_>, now: UnixTime) -> Finding {
    let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
    let (from, until) = (
        seconds(certificate.validity().not_before),
        seconds(certificate.validity().not_after),
    );
    let text = format!("{} is valid from {} until {}", path.display(), rfc3339(from), rfc3339(until));
    match now.as_secs() {
        now if now < from || now > until => Finding::Error(format!("{text}; now it is {}", rfc3339(now))),
        now if now + EXPIRY_WARNING_SECONDS > until => Finding::Warning(text),
        _ => Finding::Good(text),
    }
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    alternatives
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(*bytes)
                .map(std::net::IpAddr::from)
                .or_else(|_| <[u8; 16]>::try_from(*bytes).map(std::net::IpAddr::from))
                .ok()
                .map(|address| address.to_string()),
            _ => None,
        })
        .collect()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let problem = |problem: String| format!("{}: {problem}", path.display());
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| problem(error.to_string()))?
        .collect();
    match all {
        Ok(all) if all.is_empty() => Err(problem("holds no certificate".to_owned())),
        Ok(all) => Ok(all),
        Err(error) => Err(problem(error.to_string())),
    }
}
