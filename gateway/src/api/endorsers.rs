//! Endorsers of EKs, and trust anchors of clouds: all that a gateway has, and the part that counts for one EK in one pool.

use std::sync::Arc;

use attest::{EkDigest, Endorsements};
use attest_certificates::ek_roots::EkRootsFolder;
use attest_log::{Basis, BlobError, Blobs, CloudBasis};
use attest_machines::enrolment::{self, EkRecord};
use attest_store::{EntryTransaction, StoreError};

use super::recent_chains::RecentChains;
use crate::cloud::{Clouds, keep_certificates};
use attest_pool::{Endorsement, Pool};

/// Trust anchors that evidence is verified against.
#[derive(Debug)]
pub struct Endorsers {
    ek_roots: EkRootsFolder,
    /// The blobs that hold these certificates: written once, at the start, and named in each record.
    ek_root_blobs: Vec<String>,
    /// Those that are roots because the administrator names them so.
    ek_named_root_blobs: Vec<String>,
    /// Trust anchors for evidence of clouds.
    pub(super) clouds: Clouds,
    /// The blobs that hold the configured certificates of clouds: also written once, and named in each record.
    pub(super) cloud_blobs: CloudBasis,
    /// Cache of manufacturers' certificate chains that were verified for a challenge: its evidence depends on them, too.
    chains: Arc<RecentChains>,
}

impl Endorsers {
    /// Keeps every configured certificate, so that records can name it.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn keep(ek_roots: EkRootsFolder, clouds: Clouds, blobs: &Blobs) -> Result<Self, BlobError> {
        let mut ek_root_blobs = Vec::new();
        for certificate in &ek_roots.certificates {
            let name = Blobs::name(certificate);
            blobs.put(&name, certificate)?;
            ek_root_blobs.push(name);
        }
        let ek_named_root_blobs = ek_roots.named_roots.iter().map(|root| Blobs::name(root)).collect();
        let cloud_blobs = keep_certificates(&clouds, blobs)?;
        Ok(Self {
            ek_roots,
            ek_root_blobs,
            ek_named_root_blobs,
            clouds,
            cloud_blobs,
            chains: Arc::default(),
        })
    }

    /// Returns the trust anchors for evidence of clouds.
    #[must_use]
    pub const fn clouds(&self) -> &Clouds {
        &self.clouds
    }

    /// Returns the certificates that endorse EKs, by the SHA-256 of their DER.
    #[must_use]
    pub fn ek_roots(&self) -> &[String] {
        &self.ek_root_blobs
    }

    /// Returns those of them that are roots because the administrator names them so.
    #[must_use]
    pub fn ek_named_roots(&self) -> &[String] {
        &self.ek_named_root_blobs
    }

    /// Returns the number of certificates that endorse EKs.
    #[must_use]
    pub fn ek_certificates(&self) -> usize {
        self.ek_roots.certificates.len()
    }

    /// Returns the current endorsements of this EK in a pool: the allowlist, and the roots if the pool accepts them. A machine that the
    /// administrator has allowed in other pools only has no endorsement here, whatever its TPM's manufacturer.
    pub(super) fn vouched(&self, transaction: &mut EntryTransaction<'_>, ek: Option<EkDigest>, pool: &Pool) -> Result<Vouched, StoreError> {
        let Some(ek) = ek else { return Ok(Vouched::nothing()) };
        let record = enrolment::allowlisted(transaction, ek)?;
        let listed = record.clone();
        let elsewhere = record.as_ref().is_some_and(|record| !record.may_join(pool.name()));
        let by = match pool.endorsement {
            _ if elsewhere => RootsTaken::None,
            Endorsement::AnyTpmOfATrustedMaker => RootsTaken::OfMakers,
            Endorsement::Allowlist => RootsTaken::None,
            Endorsement::GcpInstance => RootsTaken::OfGoogle,
        };
        // Where Google has to say which instance it is, the administrator's word about an EK says too little.
        let allowlisted = record.filter(|_| !elsewhere && by != RootsTaken::OfGoogle);
        let mut endorsements = match by {
            RootsTaken::OfMakers => {
                let chains = Arc::<RecentChains>::clone(&self.chains);
                Endorsements::new(Arc::clone(&self.ek_roots.roots)).knowing(chains)
            }
            RootsTaken::OfGoogle => Endorsements::for_gcp_instances(Arc::clone(self.clouds.vtpm_roots())),
            RootsTaken::None => Endorsements::new(Arc::default()),
        };
        if allowlisted.is_some() {
            endorsements = endorsements.allow(ek);
        }
        Ok(Vouched {
            ek: Some(ek),
            endorsements,
            allowlisted,
            listed,
            by,
        })
    }

    /// Puts the trust anchors of an endorsement into the record.
    pub(super) fn note(&self, vouched: &Vouched, basis: &mut Basis) {
        basis.allowlisted = vouched.allowlisted.is_some();
        basis.allowlisted_name = vouched.allowlisted.as_ref().and_then(|record| record.name.clone());
        match vouched.by {
            RootsTaken::OfMakers => {
                basis.ek_roots.clone_from(&self.ek_root_blobs);
                basis.ek_named_roots.clone_from(&self.ek_named_root_blobs);
            }
            RootsTaken::OfGoogle => basis.cloud.vtpm_roots.clone_from(&self.cloud_blobs.vtpm_roots),
            RootsTaken::None => {}
        }
    }
}

/// Roots of EK certificates that are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RootsTaken {
    OfMakers,
    OfGoogle,
    None,
}

/// Endorsements of one EK in one pool.
pub(super) struct Vouched {
    pub(super) endorsements: Endorsements,
    pub(super) ek: Option<EkDigest>,
    /// The entry of the allowlist that counts in this pool.
    pub(super) allowlisted: Option<EkRecord>,
    /// The entry of the allowlist, whatever it is.
    pub(super) listed: Option<EkRecord>,
    by: RootsTaken,
}

impl Vouched {
    /// Returns the endorsements of a node without a TPM.
    fn nothing() -> Self {
        Self {
            ek: None,
            endorsements: Endorsements::new(Arc::default()),
            allowlisted: None,
            listed: None,
            by: RootsTaken::None,
        }
    }
}
