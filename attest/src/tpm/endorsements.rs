//! Endorsements of TPMs: who vouches for an EK.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls_pki_types::UnixTime;

use super::TpmAttester;
use super::claims::EndorsedBy;
use super::ek::{EkDigest, EkPublic};
use super::ek_certificate::{EkRoots, KnownChains, verify_unless_cached};
use super::error::TpmEvidenceError;
use super::vtpm::{self, VtpmRoots};

/// The administrator's trust anchors for TPMs: roots of EK certificates, single EKs, and Google's CAs for the vTPMs of instances.
#[derive(Debug, Clone, Default)]
pub(crate) struct TpmEndorsements {
    pub(crate) roots: Arc<EkRoots>,
    pub(crate) allowed: BTreeSet<EkDigest>,
    pub(crate) vtpm_roots: Option<Arc<VtpmRoots>>,
    /// Cache of chains that need not be verified again.
    pub(crate) known_chains: Option<Arc<dyn KnownChains>>,
}

impl TpmEndorsements {
    /// Checks that the EK is endorsed: by the allowlist, or else by its certificate's chain.
    ///
    /// # Errors
    /// [`TpmEvidenceError::Wire`], [`TpmEvidenceError::EkTemplate`], [`TpmEvidenceError::EkUnknown`], [`TpmEvidenceError::EkCertificateUnread`], [`TpmEvidenceError::EkNotEndorsed`],
    /// [`TpmEvidenceError::EkCertificate`], [`TpmEvidenceError::EkCertificateMismatch`], [`TpmEvidenceError::Vtpm`].
    pub(crate) fn endorse(&self, attester: &TpmAttester, now: UnixTime) -> Result<EndorsedEk, TpmEvidenceError> {
        let ek = EkPublic::parse(attester.ek_public.as_ref())?;
        if self.allowed.contains(&ek.digest()) {
            return Ok(EndorsedEk {
                ek,
                by: EndorsedBy::Allowlist,
            });
        }
        let ek_digest = ek.digest().to_string();
        let Some(certificate) = &attester.ek_certificate else {
            return Err(if attester.ek_certificate_unread {
                TpmEvidenceError::EkCertificateUnread { ek_digest }
            } else {
                TpmEvidenceError::EkUnknown { ek_digest }
            });
        };
        let intermediates: Vec<&[u8]> = attester.ek_intermediates.iter().map(AsRef::as_ref).collect();
        if let Some(roots) = &self.vtpm_roots {
            let instance = vtpm::verify(certificate.as_ref(), &intermediates, roots, now)?;
            instance.check_ek(&ek.digest())?;
            return Ok(EndorsedEk {
                ek,
                by: EndorsedBy::GcpInstance(Box::new(instance)),
            });
        }
        let known = self.known_chains.as_deref();
        let verified = verify_unless_cached(certificate.as_ref(), &intermediates, &self.roots, known, now).map_err(|error| {
            if error.is_unknown_issuer() {
                TpmEvidenceError::EkNotEndorsed {
                    ek_digest: ek_digest.clone(),
                    reason: error,
                }
            } else {
                TpmEvidenceError::EkCertificate(error)
            }
        })?;
        let certified = EkDigest::of(verified.key());
        if certified != ek.digest() {
            return Err(TpmEvidenceError::EkCertificateMismatch {
                certificate: certified.to_string(),
                presented: ek_digest,
            });
        }
        let by = EndorsedBy::Root {
            root_subject: verified.root_subject().to_owned(),
            root_sha256: verified.root_sha256().into(),
            certificate_serial: verified.serial().to_owned(),
        };
        Ok(EndorsedEk { ek, by })
    }
}

/// An EK with its endorsement.
#[derive(Debug, Clone)]
pub(crate) struct EndorsedEk {
    pub(crate) ek: EkPublic,
    pub(crate) by: EndorsedBy,
}
