use rustls_pki_types::UnixTime;
use webpki::{EndEntityCert, KeyUsage};

use super::document::SignerClaims;
use super::error::ChainError;
use super::trust::SIGNATURES;
use super::{AttestedData, AttestedDocumentError, AzureCloud, AzureTrust, ImdsNonce, IssuerUrls, VerifiedAttestedDocument};
use crate::pkcs7::{self, SignedContent, SignedData, SigningCertificate};
use crate::verified::Verified;
use crate::x509::{self, SignatureBudget, Terms};

/// id-kp-serverAuth, as the content of a DER object identifier.
const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

/// Most names of a certificate that are looked at, and that an error names. Azure's have two.
const NAMES_LIMIT: usize = 32;

/// Verifies the `signature` of IMDS's answer, for use at `now`: the signer's chain, the signature, then the document in it,
/// which has to be for `nonce`. Whether it has expired is for [`super::appraise`] to say.
///
/// # Errors
/// [`AttestedDocumentError`].
pub fn verify(
    base64: &[u8],
    trust: &AzureTrust,
    nonce: &ImdsNonce,
    now: UnixTime,
) -> Result<VerifiedAttestedDocument, AttestedDocumentError> {
    let message = SignedData::parse(&pkcs7::from_base64(base64)?)?;
    let certificate = message.signer_certificate()?;
    let signer = check_chain(&certificate, trust, now).map_err(|problem| AttestedDocumentError::Chain {
        certificate: certificate.name(),
        problem,
    })?;
    let signed = message.verify(&certificate, SignedContent::Attached)?;
    let document = AttestedData::read(signed, signer)?;
    if document.nonce != nonce.as_str() {
        return Err(AttestedDocumentError::Nonce {
            document: document.nonce,
            expected: nonce.to_string(),
        });
    }
    Ok(Verified::new(document))
}

/// Returns the URLs of the certificate of the signer's issuer, for use after [`verify`] has refused with
/// [`AttestedDocumentError::is_unknown_issuer`]. Verifies nothing.
///
/// # Errors
/// [`AttestedDocumentError::Pkcs7`].
pub fn issuer_urls(base64: &[u8]) -> Result<IssuerUrls, AttestedDocumentError> {
    let message = SignedData::parse(&pkcs7::from_base64(base64)?)?;
    Ok(IssuerUrls::from_certificate(message.signer_certificate()?.der()))
}

/// Checks that the certificate is a metadata service's, and leads to a root.
fn check_chain<'a>(certificate: &SigningCertificate, trust: &'a AzureTrust, now: UnixTime) -> Result<SignerClaims<'a>, ChainError> {
    let end_entity = EndEntityCert::try_from(certificate.der()).map_err(ChainError::Path)?;
    // Names first: they cost nothing, and a certificate for others need not be verified.
    let names: Vec<&str> = end_entity.valid_dns_names().take(NAMES_LIMIT).collect();
    let (cloud, location) = cloud_of(&names, trust.clouds())?;
    check_usage(certificate)?;

    let terms = Terms {
        signatures: SIGNATURES,
        usage: KeyUsage::required_if_present(SERVER_AUTH),
        // The CAs are configured, or fetched from Microsoft; a stranger brings the leaf.
        budget: &SignatureBudget::webpki_default(),
        now,
    };
    let path = trust.roots().validate(&end_entity, trust.intermediates(), terms, x509::no_more);
    let path = path.map_err(|problem| ChainError::from_path_problem(problem, certificate.der(), now))?;
    Ok(SignerClaims {
        cloud,
        location,
        certificate_sha256: certificate.sha256(),
        root: path.root,
    })
}

/// The cloud under whose domain a name is, and the location if exactly one name tells one.
fn cloud_of(names: &[&str], clouds: &[AzureCloud]) -> Result<(AzureCloud, Option<String>), ChainError> {
    let under = |cloud: AzureCloud| names.iter().filter_map(move |name| cloud.label(name));
    let Some(&cloud) = clouds.iter().find(|&&cloud| under(cloud).next().is_some()) else {
        return Err(ChainError::Names {
            found: names.join(", "),
            required: clouds.iter().map(|cloud| cloud.domain()).collect::<Vec<_>>().join(" or "),
        });
    };
    let plain = |label: &&str| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let mut locations: Vec<String> = under(cloud).filter(plain).map(str::to_ascii_lowercase).collect();
    locations.dedup();
    let location = if locations.len() == 1 { locations.pop() } else { None };
    Ok((cloud, location))
}

/// The certificate has to be for signing as a TLS server: webpki has only checked an extended key usage that is there.
fn check_usage(certificate: &SigningCertificate) -> Result<(), ChainError> {
    if !certificate.is_for_servers() {
        return Err(ChainError::ServerAuth);
    }
    match certificate.key_usage() {
        Some(usage) if !usage.digital_signature() => Err(ChainError::KeyUsage { found: usage.to_string() }),
        _ => Ok(()),
    }
}
