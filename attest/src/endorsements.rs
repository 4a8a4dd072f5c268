//! Endorsements: who vouches for an attester's key, and for what the clouds say.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::aws::identity_document::RegionCertificates;
use crate::aws::nitro_tpm::NitroRoots;
use crate::aws::sts::StsCall;
use crate::azure::attested_document::AzureTrust;
use crate::azure::vtpm::AkRoots;
use crate::gcp::GoogleKeys;
use crate::kinds::held_against;
use crate::tpm::ek::EkDigest;
use crate::tpm::ek_certificate::{EkRoots, KnownChains};
use crate::tpm::endorsements::TpmEndorsements;
use crate::tpm::vtpm::VtpmRoots;

/// The administrator's trust anchors: roots of EK certificates, single EKs, and the keys that the clouds sign with.
#[derive(Debug, Clone)]
pub struct Endorsements {
    tpm: TpmEndorsements,
    clouds: CloudEndorsements,
}

/// The keys and roots that the clouds sign with. Evidence of a cloud without an entry is refused.
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
    /// Azure's CAs of the AKs of vTPMs.
    pub azure_vtpm: Option<Arc<AkRoots>>,
}

held_against!(VerificationInput);

impl Endorsements {
    /// Trusts what the roots vouch for, and no single EK.
    #[must_use]
    pub const fn new(roots: Arc<EkRoots>) -> Self {
        Self {
            tpm: TpmEndorsements {
                roots,
                allowed: BTreeSet::new(),
                vtpm_roots: None,
                known_chains: None,
            },
            clouds: CloudEndorsements {
                google_keys: None,
                region_certificates: None,
                nitro_roots: None,
                azure: None,
                azure_vtpm: None,
            },
        }
    }

    /// Trust in the vTPMs that Google has certified as an instance's, and in no other TPM.
    #[must_use]
    pub fn for_gcp_instances(roots: Arc<VtpmRoots>) -> Self {
        let mut endorsements = Self::new(Arc::default());
        endorsements.tpm.vtpm_roots = Some(roots);
        endorsements
    }

    /// Returns the same; known chains of EK certificates are not verified again.
    #[must_use]
    pub fn knowing(mut self, known: Arc<dyn KnownChains>) -> Self {
        self.tpm.known_chains = Some(known);
        self
    }

    /// Returns the same, and trusts what the clouds sign.
    #[must_use]
    pub fn with_clouds(mut self, clouds: CloudEndorsements) -> Self {
        self.clouds = clouds;
        self
    }

    /// Returns the verification input for each kind of evidence: these endorsements, and the answers of STS and of the gateway.
    pub(crate) fn held_against<'a>(&'a self, sts: Option<StsCall<'a>>, token: Option<&'a str>) -> VerificationInput<'a> {
        let Self { tpm, clouds } = self;
        VerificationInput {
            tpm: Some(tpm),
            gcp: clouds.google_keys.as_deref(),
            aws_identity_document: clouds.region_certificates.as_deref(),
            aws_nitro_tpm: clouds.nitro_roots.as_deref(),
            aws_sts: sts,
            azure: clouds.azure.as_deref(),
            azure_vtpm: clouds.azure_vtpm.as_deref(),
            token: Some(token),
        }
    }

    /// Also trusts one EK, regardless of its manufacturer.
    #[must_use]
    pub fn allow(mut self, ek: EkDigest) -> Self {
        self.tpm.allowed.insert(ek);
        self
    }
}
