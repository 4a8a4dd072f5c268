//! Report on the kinds of cloud evidence that can be verified, before any comes, and with which certificates and keys.

use std::path::Path;

use attest::Kind;

use super::{Clouds, Role};

/// Returns the kinds of evidence that need certificates of the gateway's folders, or an outside service.
fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.is_of_a_cloud())
}

impl Clouds {
    /// Returns the reason for which the gateway cannot verify evidence of this kind, and a remedy. `None` if it can, or the kind needs
    /// nothing. An outside service that cannot be reached shows only when it is asked.
    #[must_use]
    pub fn missing(&self, kind: Kind) -> Option<String> {
        let none_in = |role: &dyn Fn(&Role) -> bool| self.count(role) == 0;
        match kind {
            Kind::Gcp if !self.named => {
                Some("the MCS certificate has no DNS name that could be the gateway's name in identity tokens: set gcp.name".to_owned())
            }
            Kind::Gcp if self.google_keys.file().is_none() => {
                self.no_authorities("Google's keys cannot be fetched: set outgoing.ca, or gcp.jwks")
            }
            Kind::AwsIdentityDocument if none_in(&|role| matches!(role, Role::AwsRegion(_))) => Some(format!(
                "{} holds no certificate of a region: add those that AWS publishes, see docs/how-to/aws.md",
                self.settings.aws.region_certificates.display()
            )),
            Kind::AwsNitroTpm if none_in(&|role| *role == Role::AwsNitroRoot) => Some(format!(
                "{} holds no root: add the one that AWS publishes, see docs/how-to/aws.md",
                self.settings.aws.nitro_roots.display()
            )),
            Kind::AwsSts => self.no_authorities("AWS STS cannot be asked: set outgoing.ca"),
            Kind::Azure if self.settings.azure.clouds.is_empty() => Some("azure.clouds is empty".to_owned()),
            Kind::Azure if none_in(&|role| *role == Role::AzureRoot) => Some(format!(
                "{} holds no root: add the roots of Azure's certificates, see docs/how-to/azure.md",
                self.settings.azure.roots.display()
            )),
            Kind::AzureVtpm if none_in(&|role| *role == Role::AzureVtpmRoot) => Some(format!(
                "{} holds no CA: add those that Microsoft publishes, see docs/how-to/azure.md",
                self.settings.azure.vtpm_roots.display()
            )),
            _ => None,
        }
    }

    /// Lists the kinds that can be verified, and what each is verified with.
    pub(crate) fn set_up(&self) -> impl Iterator<Item = (Kind, String)> {
        let there = kinds().filter(|kind| self.missing(*kind).is_none());
        there.map(|kind| (kind, self.has(kind)))
    }

    /// Lists the kinds that cannot be verified, and what each lacks.
    pub(crate) fn not_set_up(&self) -> impl Iterator<Item = (Kind, String)> {
        kinds().filter_map(|kind| Some((kind, self.missing(kind)?)))
    }

    /// Returns the number of certificates for the TPMs of Google's instances. `None` without any.
    pub(crate) fn vtpm_certificates(&self) -> Option<String> {
        self.counted(&|role| *role == Role::GcpVtpmRoot)
    }

    /// Returns the folder of these certificates.
    pub(crate) fn vtpm_folder(&self) -> &Path {
        &self.settings.gcp.vtpm_roots
    }

    /// Describes what evidence of a kind is verified with.
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
            Kind::AzureVtpm => self.counted(&|role| *role == Role::AzureVtpmRoot).unwrap_or_default(),
            _ => {
                let clouds: Vec<String> = self.settings.azure.clouds.iter().map(ToString::to_string).collect();
                let fetch = if self.settings.azure.fetch_intermediates {
                    "others are fetched"
                } else {
                    "no others"
                };
                format!(
                    "clouds {}; {} roots, {} intermediate CAs; {fetch}",
                    clouds.join(", "),
                    self.count(&|role| *role == Role::AzureRoot),
                    self.count(&|role| *role == Role::AzureIntermediate)
                )
            }
        }
    }

    fn no_authorities(&self, what: &str) -> Option<String> {
        (self.outgoing.authorities() == 0).then(|| format!("this host has no CA certificates, so {what}"))
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
