use rustls_pki_types::UnixTime;

use super::{IdentityDocumentError, InstanceIdentity, RegionCertificates, Replayable, VerifiedIdentityDocument};

use crate::pkcs7::{self, Pkcs7Error, SignedContent, SignedData};
use crate::verified::Verified;

/// Verifies what IMDS has answered at [`super::IMDS_PATH`], for use at `now`: the signature first, then the document in it.
///
/// # Errors
/// [`IdentityDocumentError`].
pub fn verify(
    base64: &[u8],
    certificates: &RegionCertificates,
    now: UnixTime,
) -> Result<Replayable<VerifiedIdentityDocument>, IdentityDocumentError> {
    let message = SignedData::parse(&pkcs7::from_base64(base64)?)?;
    // Only configured certificates are candidates. Which of them a message names can be trusted as little as the message, but
    // it saves the others a try.
    let candidates = certificates.named_by(&message);
    let mut failed = None;
    for (_, certificate) in &candidates {
        let signed = match message.verify(certificate, SignedContent::Attached) {
            Ok(signed) => signed,
            // The same name and number with another key.
            Err(error @ Pkcs7Error::Signature { .. }) => {
                failed = Some(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let now = now.as_secs();
        if !(certificate.not_before()..=certificate.not_after()).contains(&now) {
            return Err(IdentityDocumentError::CertificateValidity {
                certificate: certificate.name(),
                not_before: certificate.not_before(),
                not_after: certificate.not_after(),
                now,
            });
        }
        let document = InstanceIdentity::read(signed, certificate.sha256())?;
        // One certificate may have been configured for several regions.
        let regions = candidates.iter().filter(|(_, other)| other.sha256() == certificate.sha256());
        let regions: Vec<&str> = regions.map(|(region, _)| *region).collect();
        if !regions.contains(&document.region.as_str()) {
            return Err(IdentityDocumentError::RegionMismatch {
                document: document.region,
                certificate: regions.join(", "),
            });
        }
        return Ok(Replayable::new(Verified::new(document)));
    }
    Err(match failed {
        Some(error) => error.into(),
        None => IdentityDocumentError::SignerUnknown {
            signer: message.signer(),
            certificates: certificates.count(),
        },
    })
}
