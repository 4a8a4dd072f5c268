//! Endorsements: who vouches for an attester's key.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls_pki_types::UnixTime;

use crate::claims::EndorsedBy;
use crate::protocol::TpmAttester;
use crate::reject::Reject;
use crate::tpm::ek::{EkDigest, EkPublic};
use crate::tpm::ek_certificate::{self, EkRoots};

/// What the administrator trusts: roots of EK certificates, and single EKs.
#[derive(Debug, Clone)]
pub struct Endorsements {
    roots: Arc<EkRoots>,
    allowed: BTreeSet<EkDigest>,
}

impl Endorsements {
    /// Trust in whatever the roots vouch for, and in no EK by itself.
    #[must_use]
    pub const fn new(roots: Arc<EkRoots>) -> Self {
        Self {
            roots,
            allowed: BTreeSet::new(),
        }
    }

    /// Trust in one more EK, whoever made it.
    #[must_use]
    pub fn allow(mut self, ek: EkDigest) -> Self {
        self.allowed.insert(ek);
        self
    }

    /// Checks that somebody vouches for the EK: the allowlist, or else its certificate's chain.
    ///
    /// # Errors
    /// [`Reject::Wire`], [`Reject::EkTemplate`], [`Reject::EkUnknown`], [`Reject::EkNotEndorsed`], [`Reject::EkCertificate`],
    /// [`Reject::EkCertificateMismatch`].
    pub(crate) fn endorse(&self, attester: &TpmAttester, now: UnixTime) -> Result<EndorsedEk, Reject> {
        let ek = EkPublic::parse(attester.ek_public.as_ref())?;
        if self.allowed.contains(&ek.digest()) {
            return Ok(EndorsedEk {
                ek,
                by: EndorsedBy::Allowlist,
            });
        }
        let ek_digest = ek.digest().to_string();
        let Some(certificate) = &attester.ek_certificate else {
            return Err(Reject::EkUnknown { ek_digest });
        };
        let intermediates: Vec<&[u8]> = attester.ek_intermediates.iter().map(AsRef::as_ref).collect();
        let verified = ek_certificate::verify(certificate.as_ref(), &intermediates, &self.roots, now).map_err(|error| {
            if error.is_unknown_issuer() {
                Reject::EkNotEndorsed {
                    ek_digest: ek_digest.clone(),
                    reason: error,
                }
            } else {
                Reject::EkCertificate(error)
            }
        })?;
        let certified = EkDigest::of(verified.key());
        if certified != ek.digest() {
            return Err(Reject::EkCertificateMismatch {
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

/// An EK that somebody trusted vouches for.
#[derive(Debug, Clone)]
pub(crate) struct EndorsedEk {
    pub(crate) ek: EkPublic,
    pub(crate) by: EndorsedBy,
}

impl TpmAttester {
    /// The digest that names the EK presented: what to look for in an allowlist. Says nothing about trust.
    ///
    /// # Errors
    /// [`Reject::Wire`] and [`Reject::EkTemplate`].
    pub fn ek_digest(&self) -> Result<EkDigest, Reject> {
        EkPublic::parse(self.ek_public.as_ref()).map(|ek| ek.digest())
    }
}
