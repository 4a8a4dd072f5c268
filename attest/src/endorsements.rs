//! Endorsements: who vouches for an attester's key, and for what the clouds say.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls_pki_types::UnixTime;

use crate::aws::identity_document::RegionCertificates;
use crate::aws::nitro_tpm::NitroRoots;
use crate::azure::AzureTrust;
use crate::claims::EndorsedBy;
use crate::gcp::GoogleKeys;
use crate::gcp::vtpm::{self, VtpmRoots};
use crate::protocol::TpmAttester;
use crate::reject::Reject;
use crate::tpm::ek::{EkDigest, EkPublic};
use crate::tpm::ek_certificate::{self, EkRoots};

/// What the administrator trusts: roots of EK certificates, single EKs, and what the clouds sign with.
#[derive(Debug, Clone)]
pub struct Endorsements {
    roots: Arc<EkRoots>,
    allowed: BTreeSet<EkDigest>,
    vtpm_roots: Option<Arc<VtpmRoots>>,
    clouds: CloudEndorsements,
}

/// What the clouds sign with. Evidence of a cloud of which nothing is known is refused.
#[derive(Debug, Clone, Default)]
pub struct CloudEndorsements {
    /// Google's keys for identity tokens.
    pub google_keys: Option<Arc<GoogleKeys>>,
    /// AWS's certificates for identity documents, by region.
    pub region_certificates: Option<Arc<RegionCertificates>>,
    /// AWS's roots of NitroTPM documents.
    pub nitro_roots: Option<Arc<NitroRoots>>,
    /// Azure's roots of attested documents.
    pub azure: Option<Arc<AzureTrust>>,
}

impl Endorsements {
    /// Trust in whatever the roots vouch for, and in no EK by itself.
    #[must_use]
    pub const fn new(roots: Arc<EkRoots>) -> Self {
        Self {
            roots,
            allowed: BTreeSet::new(),
            vtpm_roots: None,
            clouds: CloudEndorsements {
                google_keys: None,
                region_certificates: None,
                nitro_roots: None,
                azure: None,
            },
        }
    }

    /// Trust in the vTPMs that Google has certified as an instance's, and in no other TPM.
    #[must_use]
    pub fn of_gcp_instances(roots: Arc<VtpmRoots>) -> Self {
        Self {
            vtpm_roots: Some(roots),
            ..Self::new(Arc::default())
        }
    }

    /// The same, and trust in what the clouds sign.
    #[must_use]
    pub fn with_clouds(mut self, clouds: CloudEndorsements) -> Self {
        self.clouds = clouds;
        self
    }

    pub(crate) const fn clouds(&self) -> &CloudEndorsements {
        &self.clouds
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
    /// [`Reject::EkCertificateMismatch`], [`Reject::Gcp`].
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
        if let Some(roots) = &self.vtpm_roots {
            let instance = vtpm::verify(certificate.as_ref(), &intermediates, roots, now)?;
            instance.check_ek(&ek.digest())?;
            return Ok(EndorsedEk {
                ek,
                by: EndorsedBy::GcpInstance(Box::new(instance)),
            });
        }
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
