//! Certificates, keys and services that cloud evidence is verified against: certificates from folders, Google's keys, Azure's CAs, and the
//! call to AWS STS.
//!
//! Verification itself is in [`attest`], which does no I/O; this module gives it its inputs. Every request to an outside service is bounded
//! in time, size and number, and goes only to hosts that are known beforehand. So the sender of evidence decides as little as possible
//! about it.

mod azure_issuers;
mod error;
mod folders;
mod freshness;
mod google_keys;
mod inspect;
mod outgoing;
mod recorded_anchors;
mod single_flight;
mod sts;
pub mod watch;

use std::sync::Arc;

use attest::UnixTime;
use attest::aws::identity_document::RegionCertificates;
use attest::aws::nitro_tpm::NitroRoots;
use attest::aws::sts::CheckedRequest;
use attest::azure::vtpm::AkRoots;
use attest::tpm::vtpm::VtpmRoots;
use rustls_pki_types::CertificateDer;

pub use azure_issuers::AzureTrustInUse;
pub use error::{CloudSettingsError, CloudUnavailable};
pub use google_keys::GoogleKeysInUse;
pub use recorded_anchors::keep_certificates;
pub use sts::StsAnswer;

use azure_issuers::Issuers;
use google_keys::Keyring;
use outgoing::Outgoing;
use sts::StsClient;

use crate::metrics::Metrics;
use crate::settings::{AwsSettings, CloudSettings};

/// Default name of the gateway in audiences. An identity token is tied to this gateway by its key, in the same audience.
const NAME: &str = "attestation-gateway";

/// Everything that evidence of clouds is verified against.
pub struct Clouds {
    settings: CloudSettings,
    name: String,
    named: bool,
    outgoing: Outgoing,
    google_keys: Arc<Keyring>,
    vtpm_roots: Arc<VtpmRoots>,
    region_certificates: Arc<RegionCertificates>,
    nitro_roots: Arc<NitroRoots>,
    azure: Arc<Issuers>,
    azure_vtpm_roots: Arc<AkRoots>,
    sts: StsClient,
    certificates: Vec<(Role, CertificateDer<'static>)>,
    refused: Vec<String>,
}

/// Purpose of a configured certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// A CA of Google's for vTPMs.
    GcpVtpmRoot,
    /// AWS's, for identity documents of this region.
    AwsRegion(String),
    /// A root of NitroTPM documents.
    AwsNitroRoot,
    /// A root of Azure's metadata services.
    AzureRoot,
    /// A CA between such a root and a metadata service.
    AzureIntermediate,
    /// A CA of Azure's for the AKs of vTPMs.
    AzureVtpmRoot,
}

impl std::fmt::Debug for Clouds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clouds")
            .field("name", &self.name)
            .field("certificates", &self.certificates.len())
            .finish_non_exhaustive()
    }
}

impl Clouds {
    /// Reads folders and files; sends no request. `default_name` is the gateway's name if the settings have none.
    ///
    /// # Errors
    /// [`CloudSettingsError`].
    pub fn open(settings: &CloudSettings, default_name: Option<&str>) -> Result<Self, CloudSettingsError> {
        Self::open_counted(settings, default_name, Arc::new(Metrics::default()))
    }

    /// Like [`Clouds::open`], but counts fetches in `metrics`.
    ///
    /// # Errors
    /// [`CloudSettingsError`].
    pub fn open_counted(settings: &CloudSettings, default_name: Option<&str>, metrics: Arc<Metrics>) -> Result<Self, CloudSettingsError> {
        let outgoing = Outgoing::new(&settings.outgoing)?;
        let google_keys = Keyring::open(settings.gcp.jwks.as_deref(), &outgoing, settings.wait, Arc::clone(&metrics))?;
        let vtpm = folders::vtpm_roots(&settings.gcp.vtpm_roots)?;
        let AwsSettings {
            region_certificates,
            nitro_roots,
        } = &settings.aws;
        let regions = folders::region_certificates(region_certificates)?;
        let nitro = folders::nitro_roots(nitro_roots)?;
        let azure = folders::azure_trust(&settings.azure)?;
        let azure_vtpm = folders::azure_vtpm_roots(&settings.azure.vtpm_roots)?;
        let certificates = (vtpm.certificates.into_iter().map(|certificate| (Role::GcpVtpmRoot, certificate)))
            .chain(
                regions
                    .certificates
                    .into_iter()
                    .map(|(region, certificate)| (Role::AwsRegion(region), certificate)),
            )
            .chain(nitro.certificates.into_iter().map(|certificate| (Role::AwsNitroRoot, certificate)))
            .chain(azure.roots.iter().map(|certificate| (Role::AzureRoot, certificate.clone())))
            .chain(
                azure
                    .intermediates
                    .iter()
                    .map(|certificate| (Role::AzureIntermediate, certificate.clone())),
            )
            .chain(
                azure_vtpm
                    .certificates
                    .into_iter()
                    .map(|certificate| (Role::AzureVtpmRoot, certificate)),
            )
            .collect();
        // Without a root nothing that could be fetched leads anywhere.
        let fetch = settings.azure.fetch_intermediates && !azure.roots.is_empty();
        let name = settings.gcp.name.as_deref().or(default_name);
        Ok(Self {
            name: name.unwrap_or(NAME).to_owned(),
            named: name.is_some(),
            google_keys: Arc::new(google_keys),
            vtpm_roots: vtpm.trust,
            region_certificates: regions.trust,
            nitro_roots: nitro.trust,
            azure: Arc::new(Issuers::new(
                azure.in_use,
                fetch.then(|| outgoing.clone()),
                settings.wait,
                Arc::clone(&metrics),
            )),
            azure_vtpm_roots: azure_vtpm.trust,
            sts: StsClient::new(&outgoing, settings.wait, metrics),
            certificates,
            refused: [vtpm.refused, regions.refused, nitro.refused, azure.refused, azure_vtpm.refused].concat(),
            outgoing,
            settings: settings.clone(),
        })
    }

    /// Returns the gateway's own name, in the audience of identity tokens.
    #[must_use]
    pub fn gateway_name(&self) -> &str {
        &self.name
    }

    /// Returns Google's CAs for vTPMs.
    #[must_use]
    pub const fn vtpm_roots(&self) -> &Arc<VtpmRoots> {
        &self.vtpm_roots
    }

    /// Returns the certificates by which AWS signs identity documents.
    #[must_use]
    pub const fn region_certificates(&self) -> &Arc<RegionCertificates> {
        &self.region_certificates
    }

    /// Returns the roots of NitroTPM documents.
    #[must_use]
    pub const fn nitro_roots(&self) -> &Arc<NitroRoots> {
        &self.nitro_roots
    }

    /// Returns Azure's CAs for the AKs of vTPMs.
    #[must_use]
    pub const fn azure_vtpm_roots(&self) -> &Arc<AkRoots> {
        &self.azure_vtpm_roots
    }

    /// Returns the certificates that Azure's attested documents are verified against: the configured ones, and the fetched ones that are
    /// kept.
    #[must_use]
    pub fn azure_trust(&self) -> AzureTrustInUse {
        self.azure.current()
    }

    /// Returns the keys that Google signs identity tokens with. Fresh keys are returned at once; without them, the call waits for a fetch,
    /// for a bounded time. If it fails, the keys that were fetched last are used for another day.
    ///
    /// # Errors
    /// [`CloudUnavailable`]: no token can be verified at the moment.
    pub async fn google_keys(&self, now: UnixTime) -> Result<Arc<GoogleKeysInUse>, CloudUnavailable> {
        self.google_keys.get(now).await
    }

    /// Returns other keys than those, for when [`attest::gcp::verify`] has refused with [`attest::gcp::GcpError::KeyUnknown`]. `None`
    /// without such keys, or if it is too early to ask again: then the refusal is final.
    pub async fn newer_google_keys(&self, than: &Arc<GoogleKeysInUse>, now: UnixTime) -> Option<Arc<GoogleKeysInUse>> {
        self.google_keys.newer(than, now).await
    }

    /// Returns trust with which a document (the `signature` of IMDS's answer) can be verified after
    /// [`attest::azure::attested_document::verify`] has refused with
    /// [`attest::azure::attested_document::AttestedDocumentError::is_unknown_issuer`]. Fetches intermediate CAs, as far as that is allowed.
    /// `None` if that leads nowhere: then the refusal is final.
    pub async fn completed_azure_trust(&self, signature_base64: &[u8], now: UnixTime) -> Option<AzureTrustInUse> {
        self.azure.complete(signature_base64, now).await
    }

    /// Sends a request to AWS STS, once, and returns the answer, for [`attest::aws::sts::verify_answer`].
    ///
    /// # Errors
    /// [`CloudUnavailable`].
    pub async fn ask_sts(&self, request: &CheckedRequest) -> Result<StsAnswer, CloudUnavailable> {
        self.sts.ask(request).await
    }

    /// Returns every configured certificate with its purpose, so that the attestation log can keep them.
    #[must_use]
    pub fn record_certificates(&self) -> &[(Role, CertificateDer<'static>)] {
        &self.certificates
    }

    /// Returns Google's keys in the form of the file, if they come from one.
    #[must_use]
    pub fn google_keys_of_file(&self) -> Option<Arc<GoogleKeysInUse>> {
        self.google_keys.file()?;
        self.google_keys.current.load_full()
    }

    /// Returns the files that were left out of the folders, each with a reason.
    #[must_use]
    pub fn refused(&self) -> &[String] {
        &self.refused
    }
}
