//! What there is to say about evidence of clouds before any comes: for `check`, and for the log at the start.

use std::collections::BTreeSet;

use attest::Kind;

use super::{Clouds, Role};
use crate::inspection::Finding;
use crate::pools::{Endorsement, Pool};

/// The kinds of evidence that need something of the gateway's folders or of somebody outside.
const KINDS: [Kind; 5] = [Kind::Gcp, Kind::AwsIdentityDocument, Kind::AwsNitroTpm, Kind::AwsSts, Kind::Azure];

impl Clouds {
    /// What keeps the gateway from verifying evidence of this kind, and what would help. `None` if nothing does, or the kind needs
    /// nothing. Whether somebody outside can be reached shows only when they are asked.
    #[must_use]
    pub fn missing(&self, kind: Kind) -> Option<String> {
        let none_in = |role: &dyn Fn(&Role) -> bool| self.count(role) == 0;
        match kind {
            Kind::Gcp if !self.named => {
                Some("the MCS certificate has no DNS name that could be the gateway's name in identity tokens: set gcp.name".to_owned())
            }
            Kind::Gcp if self.google_keys.file().is_none() => {
                self.no_authorities("Google's keys cannot be fetched; set outgoing.ca, or gcp.jwks")
            }
            Kind::AwsIdentityDocument if none_in(&|role| matches!(role, Role::AwsRegion(_))) => Some(format!(
                "no certificate of a region is in {}: docs/evidence/aws-identity-document.md says where AWS publishes them",
                self.settings.aws.region_certificates.display()
            )),
            Kind::AwsNitroTpm if none_in(&|role| *role == Role::AwsNitroRoot) => Some(format!(
                "no root is in {}: docs/evidence/aws-nitrotpm.md says where AWS publishes it",
                self.settings.aws.nitro_roots.display()
            )),
            Kind::AwsSts => self.no_authorities("AWS STS cannot be asked; set outgoing.ca"),
            Kind::Azure if self.settings.azure.clouds.is_empty() => Some("azure.clouds is empty".to_owned()),
            Kind::Azure if none_in(&|role| *role == Role::AzureRoot) => Some(format!(
                "no root is in {}: docs/evidence/azure-attested-document.md says which ones Azure's certificates lead to",
                self.settings.azure.roots.display()
            )),
            _ => None,
        }
    }

    /// What a pool accepts and this gateway cannot verify: no node can show that.
    #[must_use]
    pub fn warnings(&self, pool: &Pool) -> Vec<String> {
        let accepted: BTreeSet<Kind> = pool
            .policy
            .accepts()
            .iter()
            .flat_map(|kinds| kinds.kinds().iter().copied())
            .collect();
        let missing = accepted.into_iter().filter_map(|kind| Some((kind, self.missing(kind)?)));
        let mut warnings: Vec<String> = missing
            .map(|(kind, missing)| format!("pool {} accepts {kind}, which cannot be verified: {missing}", pool.name()))
            .collect();
        if pool.endorsement == Endorsement::GcpInstance && self.count(&|role| *role == Role::GcpVtpmRoot) == 0 {
            warnings.push(format!(
                "pool {} takes TPMs that Google endorses, and no CA of Google's is in {}: docs/evidence/gcp.md says where they are",
                pool.name(),
                self.settings.gcp.vtpm_roots.display()
            ));
        }
        warnings
    }

    /// What there is to say of what was read.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = KINDS
            .into_iter()
            .filter(|kind| self.missing(*kind).is_none())
            .map(|kind| Finding::Good(format!("{kind}: {}", self.has(kind))))
            .collect();
        if let Some(count) = self.counted(&|role| *role == Role::GcpVtpmRoot) {
            findings.push(Finding::Good(format!("gcp: EK certificates of Shielded VMs: {count}")));
        }
        let missing: Vec<String> = KINDS
            .into_iter()
            .filter_map(|kind| Some(format!("{kind} ({})", self.missing(kind)?)))
            .collect();
        if !missing.is_empty() {
            findings.push(Finding::Good(format!(
                "not set up, and not needed unless a pool accepts it: {}",
                missing.join("; ")
            )));
        }
        let refused = self.refused.iter();
        findings.extend(refused.map(|refused| Finding::Warning(format!("left out of the clouds' certificates: {refused}"))));
        findings
    }

    /// What a kind is verified with.
    fn has(&self, kind: Kind) -> String {
        let authorities = match &self.settings.outgoing.ca {
            Some(path) => path.display().to_string(),
            None => "the system's CAs".to_owned(),
        };
        match kind {
            Kind::Gcp => match self.google_keys.file() {
                Some(path) => format!("Google's keys from {}; the gateway's name is {}", path.display(), self.name),
                None => format!("Google's keys are fetched, with {authorities}; the gateway's name is {}", self.name),
            },
            Kind::AwsIdentityDocument => {
                let regions: Vec<&str> = self.region_certificates.regions().collect();
                format!("regions {}", regions.join(", "))
            }
            Kind::AwsNitroTpm => self.counted(&|role| *role == Role::AwsNitroRoot).unwrap_or_default(),
            Kind::AwsSts => format!("AWS STS is asked, with {authorities}"),
            _ => {
                let clouds: Vec<String> = self.settings.azure.clouds.iter().map(ToString::to_string).collect();
                let fetch = if self.settings.azure.fetch_intermediates {
                    "others are fetched"
                } else {
                    "no others"
                };
                format!(
                    "clouds {}; {} roots, {} CAs in between; {fetch}",
                    clouds.join(", "),
                    self.count(&|role| *role == Role::AzureRoot),
                    self.count(&|role| *role == Role::AzureIntermediate)
                )
            }
        }
    }

    fn no_authorities(&self, what: &str) -> Option<String> {
        (self.outgoing.authorities() == 0).then(|| format!("the system has no CAs, so {what}"))
    }

    fn count(&self, role: &dyn Fn(&Role) -> bool) -> usize {
        self.certificates.iter().filter(|(other, _)| role(other)).count()
    }

    fn counted(&self, role: &dyn Fn(&Role) -> bool) -> Option<String> {
        match self.count(role) {
            0 => None,
            1 => Some("1 certificate".to_owned()),
            count => Some(format!("{count} certificates")),
        }
    }
}
