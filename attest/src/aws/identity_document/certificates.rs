use std::collections::BTreeMap;

use rustls_pki_types::CertificateDer;

use super::document::is_region_name;
use crate::pkcs7::{Pkcs7Error, SignedData, SigningCertificate};

/// Most certificates of one region: the one in use, and others around a rotation.
pub const CERTIFICATES_PER_REGION_LIMIT: usize = 8;

/// Most regions. AWS has 40 in 2026.
pub const REGIONS_LIMIT: usize = 128;

/// The certificates by which AWS signs identity documents, for each region. They are trusted because they are configured: AWS
/// publishes them, and no CA has issued them.
#[derive(Debug, Clone, Default)]
pub struct RegionCertificates {
    regions: BTreeMap<String, Vec<SigningCertificate>>,
}

/// A certificate that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("certificates of region {region:?}: {problem}")]
pub struct RegionCertificatesError {
    pub region: String,
    pub problem: RegionCertificateProblem,
}

/// Problem with the certificates of a region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionCertificateProblem {
    /// The name is not one of a region.
    #[error("this is not the name of a region, such as us-east-1")]
    Name,
    /// A certificate of the region cannot be used.
    #[error("number {position}: {problem}; use AWS's RSA-2048 certificate of this region")]
    Certificate {
        /// Position of the certificate in its file, from 1.
        position: usize,
        /// The problem with that certificate.
        problem: Pkcs7Error,
    },
    /// None at all, or more than any rotation needs.
    #[error("there are {found}, required are 1 to {CERTIFICATES_PER_REGION_LIMIT}")]
    Count { found: usize },
    /// More regions than there are.
    #[error("there are {found} regions, at most {REGIONS_LIMIT} are read")]
    Regions { found: usize },
}

impl RegionCertificates {
    /// Takes the certificates of each region as trusted for that region.
    ///
    /// # Errors
    /// [`RegionCertificatesError`] for the first one that could not be used.
    pub fn new(regions: BTreeMap<String, Vec<CertificateDer<'static>>>) -> Result<Self, RegionCertificatesError> {
        let found = regions.len();
        let mut usable = BTreeMap::new();
        for (region, certificates) in regions {
            let read = if found > REGIONS_LIMIT {
                Err(RegionCertificateProblem::Regions { found })
            } else {
                read(&region, &certificates)
            };
            match read {
                Ok(certificates) => usable.insert(region, certificates),
                Err(problem) => return Err(RegionCertificatesError { region, problem }),
            };
        }
        Ok(Self { regions: usable })
    }

    /// Names of the regions.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.regions.keys().map(String::as_str)
    }

    /// The certificates that a message names as its signer's. They are several only around odd rotations: serial numbers differ.
    pub(super) fn named_by(&self, message: &SignedData) -> Vec<(&str, &SigningCertificate)> {
        let all = self.regions.iter();
        all.flat_map(|(region, certificates)| certificates.iter().map(move |certificate| (region.as_str(), certificate)))
            .filter(|(_, certificate)| message.names(certificate))
            .collect()
    }

    /// Returns the number of certificates in all regions.
    pub(super) fn count(&self) -> usize {
        self.regions.values().map(Vec::len).sum()
    }
}

fn read(region: &str, certificates: &[CertificateDer<'static>]) -> Result<Vec<SigningCertificate>, RegionCertificateProblem> {
    if !is_region_name(region) {
        return Err(RegionCertificateProblem::Name);
    }
    if !(1..=CERTIFICATES_PER_REGION_LIMIT).contains(&certificates.len()) {
        return Err(RegionCertificateProblem::Count { found: certificates.len() });
    }
    let read = certificates.iter().zip(1..).map(|(certificate, position)| {
        SigningCertificate::parse(certificate).map_err(|problem| RegionCertificateProblem::Certificate { position, problem })
    });
    read.collect()
}
