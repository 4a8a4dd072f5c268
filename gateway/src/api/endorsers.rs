//! Endorsers of EKs, and trust anchors of clouds: all that a gateway has, and the part that counts for one EK in one pool.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use attest::{EkDigest, Endorsements};
use attest_certificates::Fingerprint;
use attest_certificates::ek_roots::{self, EkRootsFolder, EkRootsFolderError};
use attest_log::{Basis, BlobError, Blobs, CloudBasis};
use attest_machines::enrolment::{self, EkRecord};
use attest_store::{EntryTransaction, StoreError};

use super::recent_chains::RecentChains;
use crate::cloud::{Clouds, keep_certificates};
use attest_pool::{Endorsement, Pool};

/// Trust anchors that evidence is verified against.
#[derive(Debug)]
pub struct Endorsers {
    /// CAs of TPM manufacturers, in the state that is in use.
    ek_roots: ArcSwap<EkRootsInUse>,
    blobs: Blobs,
    /// Trust anchors for evidence of clouds.
    pub(super) clouds: Clouds,
    /// The blobs that hold the configured certificates of clouds: also written once, and named in each record.
    pub(super) cloud_blobs: CloudBasis,
}

/// CAs of TPM manufacturers that are in use, all of one reading of their folder.
#[derive(Debug)]
pub struct EkRootsInUse {
    folder: EkRootsFolder,
    /// SHA-256 of each certificate.
    digests: Vec<String>,
    /// SHA-256 of those that are roots because the administrator names them so.
    named_root_digests: Vec<String>,
    /// The blob that holds the usable ones: written once, and named in each record. `None` without any.
    blob: Option<String>,
    /// Cache of manufacturers' certificate chains that were verified for a challenge: its evidence depends on them, too.
    chains: Arc<RecentChains>,
}

impl EkRootsInUse {
    fn keep(folder: EkRootsFolder, blobs: &Blobs) -> Result<Self, BlobError> {
        let pem = folder.pem();
        let blob = (!pem.is_empty()).then(|| Blobs::name(pem.as_bytes()));
        if let Some(name) = &blob {
            blobs.put(name, pem.as_bytes())?;
        }
        let digests = |of: &[_]| of.iter().map(|der| Fingerprint::of(der).to_string()).collect();
        Ok(Self {
            digests: digests(&folder.certificates),
            named_root_digests: digests(&folder.named_roots),
            blob,
            folder,
            chains: Arc::default(),
        })
    }

    /// Returns the contents of the folder.
    #[must_use]
    pub const fn folder(&self) -> &EkRootsFolder {
        &self.folder
    }

    /// Returns the certificates that endorse EKs, by the SHA-256 of their DER.
    #[must_use]
    pub fn certificates(&self) -> &[String] {
        &self.digests
    }

    /// Returns those of them that are roots because the administrator names them so.
    #[must_use]
    pub fn named_roots(&self) -> &[String] {
        &self.named_root_digests
    }
}

/// Error in reloading the CAs of TPM manufacturers: the previous ones stay in use.
#[derive(Debug, thiserror::Error)]
pub enum EkRootsReloadError {
    #[error(transparent)]
    Folder(#[from] EkRootsFolderError),
    /// Files that were not broken when they were read before.
    #[error("{}", .0.join("; "))]
    Broken(Vec<String>),
    /// Records could not name the certificates.
    #[error(transparent)]
    Blobs(#[from] BlobError),
}

impl Endorsers {
    /// Keeps every configured certificate, so that records can name it.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn keep(ek_roots: EkRootsFolder, clouds: Clouds, blobs: &Blobs) -> Result<Self, BlobError> {
        let cloud_blobs = keep_certificates(&clouds, blobs)?;
        Ok(Self {
            ek_roots: ArcSwap::from_pointee(EkRootsInUse::keep(ek_roots, blobs)?),
            blobs: blobs.clone(),
            clouds,
            cloud_blobs,
        })
    }

    /// Returns the trust anchors for evidence of clouds.
    #[must_use]
    pub const fn clouds(&self) -> &Clouds {
        &self.clouds
    }

    /// Returns the CAs of TPM manufacturers that are in use.
    #[must_use]
    pub fn ek_roots(&self) -> Arc<EkRootsInUse> {
        self.ek_roots.load_full()
    }

    /// Reads the folder of EK roots again, and uses it as a whole if nothing in it has become broken. Returns the new state; `None` if the
    /// certificates are the same. Blocks on the disk.
    ///
    /// # Errors
    /// [`EkRootsReloadError`], with the old state kept.
    pub fn reload_ek_roots(&self, folder: &Path) -> Result<Option<Arc<EkRootsInUse>>, EkRootsReloadError> {
        let (old, new) = (self.ek_roots.load_full(), ek_roots::load(folder)?);
        let broken: Vec<String> = new
            .broken
            .iter()
            .filter(|broken| !old.folder.broken.contains(broken))
            .cloned()
            .collect();
        if !broken.is_empty() {
            return Err(EkRootsReloadError::Broken(broken));
        }
        if new.certificates == old.folder.certificates && new.named_roots == old.folder.named_roots {
            return Ok(None);
        }
        let new = Arc::new(EkRootsInUse::keep(new, &self.blobs)?);
        self.ek_roots.store(Arc::clone(&new));
        Ok(Some(new))
    }

    /// Returns whether the CAs that evidence was verified by are still those in use; also if it depended on none.
    pub(super) fn is_current(&self, makers: Option<&Arc<EkRootsInUse>>) -> bool {
        makers.is_none_or(|makers| Arc::ptr_eq(makers, &self.ek_roots.load()))
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
            Endorsement::AnyTpmOfATrustedMaker => RootsTaken::OfMakers(self.ek_roots.load_full()),
            Endorsement::Allowlist => RootsTaken::None,
            Endorsement::GcpInstance => RootsTaken::OfGoogle,
        };
        // Where Google has to say which instance it is, the administrator's word about an EK says too little.
        let allowlisted = record.filter(|_| !elsewhere && !matches!(by, RootsTaken::OfGoogle));
        let mut endorsements = match &by {
            RootsTaken::OfMakers(makers) => {
                let chains = Arc::<RecentChains>::clone(&makers.chains);
                Endorsements::new(Arc::clone(&makers.folder.roots)).knowing(chains)
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
        match &vouched.by {
            RootsTaken::OfMakers(makers) => {
                basis.ek_roots.clone_from(&makers.blob);
                basis.ek_named_roots.clone_from(&makers.named_root_digests);
            }
            RootsTaken::OfGoogle => basis.cloud.vtpm_roots.clone_from(&self.cloud_blobs.vtpm_roots),
            RootsTaken::None => {}
        }
    }
}

/// Roots of EK certificates that are accepted.
enum RootsTaken {
    OfMakers(Arc<EkRootsInUse>),
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
    /// Returns whether the administrator has removed the EK from the allowlist.
    pub(super) fn is_removed(&self) -> bool {
        self.listed.as_ref().is_some_and(|record| record.removed.is_some())
    }

    /// Returns the CAs of TPM manufacturers among them, if the pool accepts any.
    pub(super) fn makers(&self) -> Option<Arc<EkRootsInUse>> {
        match &self.by {
            RootsTaken::OfMakers(makers) => Some(Arc::clone(makers)),
            RootsTaken::OfGoogle | RootsTaken::None => None,
        }
    }

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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn blob_of_the_largest_folder_of_ek_roots_can_be_read() {
        assert!(u64::try_from(ek_roots::PEM_LIMIT_BYTES).unwrap() <= attest_log::BLOB_LIMIT_BYTES);
    }

    /// A decision by roots that were replaced meanwhile is outdated; one that depended on none is not.
    #[test]
    fn evidence_verified_by_replaced_ek_roots_is_outdated() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::defaults(folder.path()).unwrap();
        let (roots, blobs) = (
            folder.path().join("ek-roots"),
            Blobs::open(&folder.path().join("evidence")).unwrap(),
        );
        let clouds = Clouds::open(&settings.clouds, None).unwrap();
        let endorsers = Endorsers::keep(ek_roots::load(&roots).unwrap(), clouds, &blobs).unwrap();
        let before = endorsers.ek_roots();
        assert!(endorsers.is_current(Some(&before)));
        assert!(endorsers.reload_ek_roots(&roots).unwrap().is_none());
        fs::create_dir(&roots).unwrap();
        fs::write(roots.join("maker.der"), "garbage").unwrap();
        let error = endorsers.reload_ek_roots(&roots).unwrap_err();
        assert!(error.to_string().contains("maker.der"), "{error}");
        assert!(endorsers.is_current(Some(&before)), "a broken file changes nothing");
        let ca = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "A maker");
        fs::write(roots.join("maker.der"), params.self_signed(&ca).unwrap().der()).unwrap();
        let after = endorsers.reload_ek_roots(&roots).unwrap().unwrap();
        assert!(!endorsers.is_current(Some(&before)));
        assert!(endorsers.is_current(Some(&after)) && endorsers.is_current(None));
        // Records name the file of the certificates: it is kept.
        let content = blobs.get(after.blob.as_ref().unwrap()).unwrap();
        assert_eq!(ek_roots::read_pem(&content).unwrap(), after.folder().certificates);
        assert_eq!(before.blob, None);
    }
}
