//! Settings of cloud evidence: trust anchors, and the way to the services that the gateway has to ask.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attest::azure::attested_document::AzureCloud;
use serde::Deserialize;

use super::Fault;

/// Most addresses in `[outgoing.connect]`. A gateway asks one host of Google's, six for Azure and one of STS for each region.
const CONNECT_LIMIT: usize = 64;
/// Longest name of a host, in characters: DNS's limit.
const HOST_LIMIT_CHARS: usize = 253;
/// Longest name of the gateway, in characters: as long as a host's.
const NAME_LIMIT_CHARS: usize = 253;
/// Longest time for which a request waits for something that is fetched for it. Google, AWS and Microsoft answer within a second; a service
/// that takes longer than this will rarely answer while the node waits.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// Settings for the verification of cloud evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudSettings {
    /// Settings of the gateway's own requests.
    pub outgoing: OutgoingSettings,
    /// Settings for Google Compute Engine.
    pub gcp: GcpSettings,
    /// Settings for Amazon Web Services.
    pub aws: AwsSettings,
    pub azure: AzureSettings,
    /// Longest time for which a request waits for something that is fetched for it: less than the request itself may take.
    pub wait: Duration,
}

/// `[outgoing]`: settings of the gateway's own requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingSettings {
    /// CAs of those servers (PEM); `None` for the system's.
    pub ca: Option<PathBuf>,
    /// Addresses that replace those of DNS, by host in lower case.
    pub connect: BTreeMap<String, SocketAddr>,
}

/// Section `[gcp]`, checked, with its paths resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcpSettings {
    /// The gateway's own name in audiences, if it is not the first name of the MCS certificate.
    pub name: Option<String>,
    /// A JWK set instead of the one that Google publishes.
    pub jwks: Option<PathBuf>,
    /// Folder of the CAs of Shielded VM's EK certificates.
    pub vtpm_roots: PathBuf,
}

/// Section `[aws]`, checked, with its paths resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsSettings {
    /// Folder of the certificates by which AWS signs identity documents: a file or folder for each region.
    pub region_certificates: PathBuf,
    /// Folder of the roots of NitroTPM attestation documents.
    pub nitro_roots: PathBuf,
}

/// Section `[azure]`, checked, with its paths resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AzureSettings {
    /// The clouds whose metadata services are believed.
    pub clouds: Vec<AzureCloud>,
    /// Folder of the roots that certificates of metadata services lead to.
    pub roots: PathBuf,
    /// Folder of the CAs in between.
    pub intermediates: PathBuf,
    /// Folder of the CAs that certify the AKs of vTPMs.
    pub vtpm_roots: PathBuf,
    /// Set if intermediate CAs that are not in the folder may be fetched from Microsoft and DigiCert.
    pub fetch_intermediates: bool,
}

/// `[outgoing]`, as the file has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct OutgoingSection {
    ca: Option<PathBuf>,
    connect: BTreeMap<String, SocketAddr>,
}

/// `[gcp]`, as the file has it.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct GcpSection {
    name: Option<String>,
    jwks: Option<PathBuf>,
    vtpm_roots: PathBuf,
}

impl Default for GcpSection {
    fn default() -> Self {
        Self {
            name: None,
            jwks: None,
            vtpm_roots: "gcp-vtpm-roots".into(),
        }
    }
}

/// `[aws]`, as the file has it.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AwsSection {
    region_certificates: PathBuf,
    nitro_roots: PathBuf,
}

impl Default for AwsSection {
    fn default() -> Self {
        Self {
            region_certificates: "aws-region-certificates".into(),
            nitro_roots: "aws-nitro-roots".into(),
        }
    }
}

/// `[azure]`, as the file has it.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AzureSection {
    clouds: Vec<AzureCloud>,
    roots: PathBuf,
    intermediates: PathBuf,
    vtpm_roots: PathBuf,
    fetch_intermediates: bool,
}

impl Default for AzureSection {
    fn default() -> Self {
        Self {
            clouds: vec![AzureCloud::Public],
            roots: "azure-roots".into(),
            intermediates: "azure-intermediates".into(),
            vtpm_roots: "azure-vtpm-roots".into(),
            fetch_intermediates: true,
        }
    }
}

/// Checks the sections and resolves their paths; `request` is the longest time of a request.
pub(super) fn checked(
    (outgoing, gcp, aws, azure): (OutgoingSection, GcpSection, AwsSection, AzureSection),
    folder: &Path,
    request: Duration,
) -> Result<CloudSettings, Fault> {
    if outgoing.connect.len() > CONNECT_LIMIT {
        return Err(("outgoing.connect", outgoing.connect.len().to_string(), "at most 64 hosts"));
    }
    let mut connect = BTreeMap::new();
    for (host, address) in outgoing.connect {
        if !is_host(&host) {
            return Err((
                "outgoing.connect",
                host,
                "the keys are names of hosts, such as \"accounts.google.com\", without scheme and port",
            ));
        }
        if address.port() == 0 {
            return Err(("outgoing.connect", address.to_string(), "a port is at least 1"));
        }
        if connect.insert(host.to_ascii_lowercase(), address).is_some() {
            return Err(("outgoing.connect", host, "each host once, whatever its case"));
        }
    }
    // It stands in audiences before a slash, and nodes put it into a URL.
    let is_name = |name: &String| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        (1..=NAME_LIMIT_CHARS).contains(&name.len()) && name.bytes().all(plain)
    };
    if let Some(name) = gcp.name.as_ref().filter(|name| !is_name(name)) {
        return Err(("gcp.name", format!("{name:?}"), "letters, digits, `.`, `-`, `_`; at most 253"));
    }
    let mut clouds = Vec::new();
    for cloud in azure.clouds {
        if clouds.contains(&cloud) {
            return Err(("azure.clouds", cloud.to_string(), "each cloud once"));
        }
        clouds.push(cloud);
    }
    Ok(CloudSettings {
        outgoing: OutgoingSettings {
            ca: outgoing.ca.map(|path| folder.join(path)),
            connect,
        },
        gcp: GcpSettings {
            name: gcp.name,
            jwks: gcp.jwks.map(|path| folder.join(path)),
            vtpm_roots: folder.join(gcp.vtpm_roots),
        },
        aws: AwsSettings {
            region_certificates: folder.join(aws.region_certificates),
            nitro_roots: folder.join(aws.nitro_roots),
        },
        azure: AzureSettings {
            clouds,
            roots: folder.join(azure.roots),
            intermediates: folder.join(azure.intermediates),
            vtpm_roots: folder.join(azure.vtpm_roots),
            fetch_intermediates: azure.fetch_intermediates,
        },
        // So that there is time left to answer.
        wait: WAIT_LIMIT.min(request / 2),
    })
}

/// Returns whether a text has the form of a host's name in DNS. An address does not.
fn is_host(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= HOST_LIMIT_CHARS && text.split('.').all(label) && !text.rsplit('.').next().is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_dns_host_names() {
        for host in ["accounts.google.com", "STS.eu-central-1.amazonaws.com", "localhost", "a1.b2c"] {
            assert!(is_host(host), "{host}");
        }
        for other in [
            "",
            ".",
            "a..b",
            "a.",
            "-a.b",
            "a-.b",
            "https://accounts.google.com",
            "accounts.google.com:443",
            "10.0.0.5",
            "::1",
            "*.google.com",
            "a b",
        ] {
            assert!(!is_host(other), "{other}");
        }
    }
}
