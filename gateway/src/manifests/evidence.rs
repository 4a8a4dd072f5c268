//! Evidence that printed pools accept, by the platform of the cluster's machines, with the values that only the administrator knows.

use std::collections::BTreeSet;
use std::str::FromStr;

use attest::aws::identity_document::AwsPartition;
use attest::aws::{is_account, is_role};

use super::values::quoted;
use super::{ClusterPlatform, PoolName};

/// Pools of the control plane: no machine gets into them because a part was asked for.
pub(super) const CONTROL_PLANE: [&str; 2] = ["arbiter", "master"];

/// Project of Google Cloud. An id alone could be mistyped into another customer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoogleProject {
    id: String,
    number: u64,
}

/// A text that is not `ID=NUMBER`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not ID=NUMBER, such as my-project=123456789012; `gcloud projects describe ID` prints both")]
pub struct BadProject(String);

impl FromStr for GoogleProject {
    type Err = BadProject;

    fn from_str(text: &str) -> Result<Self, BadProject> {
        // An older id may have its organization's domain: `example.com:my-project`.
        let is_id = |id: &str| {
            !id.is_empty()
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte))
        };
        let parts = text.split_once('=').and_then(|(id, number)| Some((id, number.parse().ok()?)));
        parts
            .filter(|(id, _)| is_id(id))
            .map(|(id, number)| Self { id: id.to_owned(), number })
            .ok_or_else(|| BadProject(text.to_owned()))
    }
}

/// Values of a cloud that the administrator names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloudMachines {
    /// Accounts of AWS.
    pub accounts: Vec<String>,
    /// Regions of AWS.
    pub regions: Vec<String>,
    /// IAM roles of the instances, without their paths.
    pub roles: Vec<String>,
    pub projects: Vec<GoogleProject>,
    /// Subscriptions of Azure.
    pub subscriptions: Vec<String>,
}

/// Values that do not fit the platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolEvidenceError {
    /// Without the value, the pool would accept nothing, or machines of other customers.
    #[error("--{option} is missing: on this platform the printed pools accept only {accepted}")]
    Missing { option: &'static str, accepted: &'static str },
    #[error("--{0} belongs to another --platform")]
    Misplaced(&'static str),
    #[error("--account {0:?}: not an account of AWS, which has 12 digits")]
    Account(String),
    #[error("--role {0:?}: not the name of an IAM role; leave out its path")]
    Role(String),
    #[error("--region {0}: not a region of the partitions aws, aws-cn, aws-us-gov and aws-eusc")]
    Region(String),
    #[error("--subscription {0}: not a UUID in lower case, such as 8a205152-b25a-417f-a676-80465535a6c9")]
    Subscription(String),
    /// An account number belongs to one customer in one partition only.
    #[error(
        "--region: {0} and {1} are in different partitions, which may give one account number to two customers; render the settings of each cluster alone"
    )]
    Partitions(String, String),
}

/// Evidence that the pools accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolEvidence {
    /// TPMs of the allowlist.
    Tpm,
    /// Identity documents of AWS with a request to STS.
    Aws { partition: AwsPartition, values: CloudMachines },
    /// vTPMs of Shielded VMs with Google's identity token.
    Gcp(Vec<GoogleProject>),
    /// vTPMs of Azure with the attested document.
    Azure(Vec<String>),
}

impl PoolEvidence {
    /// Returns the evidence of this platform's machines.
    ///
    /// # Errors
    /// [`PoolEvidenceError`].
    pub fn new(platform: ClusterPlatform, values: CloudMachines) -> Result<Self, PoolEvidenceError> {
        use ClusterPlatform::{Aws, Azure, Gcp};
        let options = [
            ("account", Aws, !values.accounts.is_empty(), "instances of its accounts"),
            (
                "region",
                Aws,
                !values.regions.is_empty(),
                "instances in its regions, whose STS the gateway calls",
            ),
            ("role", Aws, !values.roles.is_empty(), "instances with its roles"),
            ("project", Gcp, !values.projects.is_empty(), "instances of its projects"),
            (
                "subscription",
                Azure,
                !values.subscriptions.is_empty(),
                "machines of its subscriptions",
            ),
        ];
        for (option, of, is_set, accepted) in options {
            match (of == platform, is_set) {
                (true, false) => return Err(PoolEvidenceError::Missing { option, accepted }),
                (false, true) => return Err(PoolEvidenceError::Misplaced(option)),
                _ => {}
            }
        }
        match platform {
            Aws => {
                let find = |all: &[String], is_good: fn(&str) -> bool| all.iter().find(|text| !is_good(text)).cloned();
                if let Some(other) = find(&values.accounts, is_account) {
                    return Err(PoolEvidenceError::Account(other));
                }
                if let Some(other) = find(&values.roles, is_role) {
                    return Err(PoolEvidenceError::Role(other));
                }
                Ok(Self::Aws {
                    partition: partition(&values.regions)?,
                    values,
                })
            }
            Gcp => Ok(Self::Gcp(values.projects)),
            Azure => match values.subscriptions.iter().find(|text| !is_uuid(text)) {
                Some(other) => Err(PoolEvidenceError::Subscription(other.clone())),
                None => Ok(Self::Azure(values.subscriptions)),
            },
            ClusterPlatform::BareMetal | ClusterPlatform::VSphere | ClusterPlatform::OpenStack | ClusterPlatform::None => Ok(Self::Tpm),
        }
    }

    /// Returns whether the pools accept the instances that the cluster's Machine objects name.
    #[must_use]
    pub const fn uses_machine_objects(&self) -> bool {
        matches!(self, Self::Aws { .. } | Self::Gcp(_))
    }

    /// Returns name and initial text of a pool's inventory file in the settings' ConfigMap, on platforms whose machines no Machine object
    /// names.
    pub(super) fn inventory_file(&self, pool: &PoolName) -> Option<(String, &'static str)> {
        let text = "# A machine of the pool in each line: azure:SUBSCRIPTION/VMID. Without a line, no machine joins.\n";
        matches!(self, Self::Azure(_)).then(|| (format!("{pool}-instances.txt"), text))
    }

    /// Changes the rules of the sample pool to those of a pool that accepts this evidence. `settings` is the folder of the inventory file.
    pub(super) fn rules(&self, sample: &str, pool: &PoolName, settings: &str) -> String {
        let machines = || {
            let selection = match CONTROL_PLANE.contains(&&*pool.to_string()) {
                true => "control_plane = true".to_owned(),
                false => format!("machine_sets = [{}]", quoted(&format!("*-{pool}-*"))),
            };
            format!(
                "
# Instances that the cluster's own machine sets have made, until they have a Node. The installer names a set CLUSTER-{pool}-ZONE.
[inventory]
machines = {{ {selection} }}

"
            )
        };
        match self {
            Self::Tpm => sample.to_owned(),
            Self::Aws { partition, values } => {
                let [accounts, regions, roles] = [&values.accounts, &values.regions, &values.roles].map(|values| list(values));
                format!(
                    "{}
# Instances of AWS: docs/how-to/aws.md.
[aws_identity_document]
accounts = [{accounts}]
partitions = [\"{partition}\"]
regions = [{regions}]

[aws_sts]
accounts = [{accounts}]
roles = [{roles}]
regions = [{regions}]
{}",
                    accepting(&without_tpm(sample), r#"[["aws-identity-document", "aws-sts"]]"#),
                    machines(),
                )
            }
            Self::Gcp(projects) => {
                let projects: Vec<String> = projects
                    .iter()
                    .map(|GoogleProject { id, number }| format!("{{ id = {}, number = {number} }}", quoted(id)))
                    .collect();
                let of_google = sample.replacen("endorsement = \"allowlist\"", "endorsement = \"gcp-instance\"", 1);
                format!(
                    "{}
# Shielded VMs of Google Compute Engine: docs/how-to/gcp.md.
[gcp]
projects = [{}]
{}",
                    accepting(&of_google, r#"[["tpm", "gcp"]]"#),
                    projects.join(", "),
                    machines(),
                )
            }
            Self::Azure(subscriptions) => {
                let waiting = without_tpm(sample).replacen("\nunknown = \"refuse\"", "\nunknown = \"wait\"", 1);
                format!(
                    "{}
# Virtual machines of Azure with a vTPM: docs/how-to/azure.md.
[azure]
subscriptions = [{}]

[azure_vtpm]
only_while_booting = true
[azure_vtpm.pcrs]
\"0-7\" = \"not checked\"

# No Machine object names the vmId of a machine of Azure. This file, in ConfigMap attest-gateway, names the pool's machines; others wait.
[inventory]
instances = \"{settings}/{pool}-instances.txt\"

",
                    accepting(&waiting, r#"[["azure", "azure-vtpm"]]"#),
                    list(subscriptions),
                )
            }
        }
    }
}

fn is_uuid(text: &str) -> bool {
    let hexadecimal = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    text.split('-').all(hexadecimal) && text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
}

fn partition(regions: &[String]) -> Result<AwsPartition, PoolEvidenceError> {
    let mut found: Option<(AwsPartition, &String)> = None;
    for region in regions {
        let of = AwsPartition::from_region(region).ok_or_else(|| PoolEvidenceError::Region(region.clone()))?;
        match found {
            Some((partition, first)) if partition != of => return Err(PoolEvidenceError::Partitions(first.clone(), region.clone())),
            _ => found = Some((of, region)),
        }
    }
    found
        .map(|(partition, _)| partition)
        .ok_or_else(|| PoolEvidenceError::Region(String::new()))
}

/// Returns strings of TOML, separated by commas.
fn list(values: &[String]) -> String {
    let unique: BTreeSet<&String> = values.iter().collect();
    unique.into_iter().map(|value| quoted(value)).collect::<Vec<_>>().join(", ")
}

/// Returns the sample with these combinations instead of its TPM.
fn accepting(sample: &str, accepts: &str) -> String {
    sample
        .replacen("#: [attestation]\n", "[attestation]\n", 1)
        .replacen("#: accepts = [[\"tpm\"]]", &format!("accepts = {accepts}"), 1)
}

/// Returns the sample without the rules for TPMs, which a pool without `tpm` in `accepts` must not have.
fn without_tpm(sample: &str) -> String {
    const AFTER: &str = "# [reference_values]\n";
    let parts = sample
        .split_once("\n[tpm]\n")
        .and_then(|(before, rest)| Some((before, rest.split_once(AFTER)?.1)));
    parts.map_or_else(|| sample.to_owned(), |(before, after)| format!("{before}\n{AFTER}{after}"))
}
