//! Machine objects of a cluster (`machine.openshift.io`): which instance of a cloud each of them names, and which of them may join a pool.
//!
//! A cloud identifies an instance. The cluster knows that it has made that instance, for which of its machine sets, and that it has not
//! joined yet. The cluster's answer is an argument here and part of the record, so that the decision can be made again.
//!
//! Names of instances in Machine objects:
//! - AWS: `aws:///<zone>/<instance id>` (`setProviderID` of openshift/machine-api-provider-aws, `pkg/actuators/machine`; the same of a Node in
//!   kubernetes/autoscaler, `cluster-autoscaler/cloudprovider/aws`). The id is given once.
//! - GCP: `gce://<project id>/<zone>/<name>` (`newMachineScope` of openshift/machine-api-provider-gcp, `pkg/cloud/gcp/actuators/machine`; the same of a Node
//!   in kubernetes' `legacy-cloud-providers/gce/gce_util.go`). It is a name, which another instance can have later; an identity token and the certificate of
//!   a vTPM say project, zone and name beside the number that is given once.
//! - Azure: `azure:///subscriptions/…/virtualMachines/<computer name>`, and `vmId` in the status is the resource's path as well (`Reconciler.Update` of
//!   openshift/machine-api-provider-azure, `pkg/cloud/azure/actuators/machine`: `vm.ID`; the vmId of the attested document is `VirtualMachineProperties.VMID`
//!   in Azure/azure-sdk-for-go, `compute`). An attested document has no name. So nothing ties the two, and no Machine object names a machine of Azure here.

use serde::{Deserialize, Serialize};

use crate::claims::Claims;
use crate::gcp::{self, GceInstance};
use crate::inventory::Inventory;
use crate::kinds::Kind;
use crate::reject::Reject;
use crate::tpm::EndorsedBy;
use crate::withheld::Withheld;

/// Maximum age of an instance when its Machine object is created, in seconds: the clocks of a cloud and a cluster may differ by that.
const CLOCKS_SECONDS: u64 = 60;
/// Longest `providerID` that is looked at, in bytes. Those that name an instance here have 150 at most.
const PROVIDER_ID_LIMIT_BYTES: usize = 512;

/// The part of a Machine object that a decision may depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineObject {
    pub name: String,
    /// Another object of this name has another one.
    pub uid: String,
    /// `spec.providerID`: which instance it names.
    pub provider_id: String,
    /// Creation time of the object, in seconds since 1970.
    pub created: u64,
    /// The machine set that controls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_set: Option<String>,
    /// Set if the machine belongs to the control plane, by its labels or by its controller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub control_plane: bool,
    /// Set if the object is being deleted, or has failed for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
    /// The Node that this machine is already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Selection of the Machine objects that belong to a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineSets {
    /// Names of machine sets. A machine of the control plane is of none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub machine_sets: Vec<SetPattern>,
    /// Set if the machines of the control plane belong to the pool. A machine that a machine set controls is not among them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub control_plane: bool,
}

/// Longest pattern of names of machine sets, in bytes: the longest name that an object may have (DNS-1123 subdomain).
const PATTERN_LIMIT_BYTES: usize = 253;

/// A pattern for names of machine sets: `*` stands for any characters, also for none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SetPattern(String);

impl TryFrom<String> for SetPattern {
    type Error = String;

    fn try_from(pattern: String) -> Result<Self, Self::Error> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'*');
        if !(1..=PATTERN_LIMIT_BYTES).contains(&pattern.len()) || !pattern.bytes().all(known) {
            return Err(format!(
                "{pattern:?} is not a pattern of machine set names: 1 to {PATTERN_LIMIT_BYTES} of a-z, 0-9, '-', '.' and '*'"
            ));
        }
        Ok(Self(pattern))
    }
}

impl From<SetPattern> for String {
    fn from(pattern: SetPattern) -> Self {
        pattern.0
    }
}

impl SetPattern {
    /// Returns whether the pattern matches all of `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        gcp::matches(&self.0, name)
    }
}

impl MachineSets {
    /// Returns whether the selection contains this object.
    #[must_use]
    pub fn has(&self, object: &MachineObject) -> bool {
        match (&object.machine_set, object.control_plane) {
            (Some(set), false) => self.machine_sets.iter().any(|pattern| pattern.matches(set)),
            (None, true) => self.control_plane,
            (Some(_), true) | (None, false) => false,
        }
    }

    /// Describes the selection in words.
    fn named(&self) -> String {
        let sets: Vec<&str> = self.machine_sets.iter().map(|pattern| pattern.0.as_str()).collect();
        match (sets.is_empty(), self.control_plane) {
            (_, false) => format!("those of the machine sets {}", sets.join(", ")),
            (true, true) => "those of the control plane".to_owned(),
            (false, true) => format!("those of the control plane, and of the machine sets {}", sets.join(", ")),
        }
    }
}

/// Machine objects of a cluster that name one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedMachine {
    /// Selection of the pool's objects.
    pub of: MachineSets,
    /// The objects that name this instance.
    pub objects: Vec<MachineObject>,
    /// Another pool that would have this machine as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_pool: Option<String>,
    /// Time since the last news from the cluster at that moment, in seconds.
    #[serde(default)]
    pub age_seconds: u64,
}

/// An instance, as a Machine object names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedInstance<'a> {
    /// The zone may be unknown.
    Aws {
        zone: Option<&'a str>,
        instance: &'a str,
    },
    Gcp {
        project: &'a str,
        zone: &'a str,
        name: &'a str,
    },
}

impl<'a> NamedInstance<'a> {
    fn by_provider(id: &'a str) -> Option<Self> {
        if id.len() > PROVIDER_ID_LIMIT_BYTES {
            return None;
        }
        let parts = |rest: &'a str| rest.split('/').collect::<Vec<_>>();
        if let Some(rest) = id.strip_prefix("aws:///") {
            return match *parts(rest).as_slice() {
                [zone, instance] if instance.starts_with("i-") => Some(Self::Aws {
                    zone: Some(zone).filter(|zone| !zone.is_empty()),
                    instance,
                }),
                _ => None,
            };
        }
        match *parts(id.strip_prefix("gce://")?).as_slice() {
            [project, zone, name] if ![project, zone, name].contains(&"") => Some(Self::Gcp { project, zone, name }),
            _ => None,
        }
    }

    /// Returns the lookup key: two names that could be one instance have the same key.
    fn key(&self) -> String {
        match self {
            Self::Aws { instance, .. } => format!("aws/{instance}"),
            Self::Gcp { project, zone, name } => format!("gce/{project}/{zone}/{name}"),
        }
    }

    fn is(&self, other: &Self) -> bool {
        let zone = |named: &Self| match *named {
            Self::Aws { zone, .. } => zone.map(str::to_owned),
            Self::Gcp { .. } => None,
        };
        self.key() == other.key() && zone(self).is_none_or(|one| zone(other).is_none_or(|another| one == another))
    }
}

/// Returns the lookup key of the instance that a Machine object or a Node names by its `providerID`. `None`: the cloud is not known here.
#[must_use]
pub fn key_of_provider_id(id: &str) -> Option<String> {
    NamedInstance::by_provider(id).map(|named| named.key())
}

/// Returns the `spec.providerID` of an instance of AWS of which only the id is known.
#[must_use]
pub fn provider_id_of_aws(instance: &str) -> String {
    format!("aws:////{instance}")
}

/// Returns the lookup key of an instance that has attested. `None`: no Machine object could name it.
#[must_use]
pub fn key_of_claims(claims: &Claims) -> Option<String> {
    ComparedClaims::new(claims).named.map(|named| named.key())
}

/// Returns whether Machine objects can name the machine of these kinds of evidence; `certified`: Google's certificate names the instance of
/// a TPM.
#[must_use]
pub fn can_name(mut kinds: impl Iterator<Item = Kind>, certified: bool) -> bool {
    kinds.any(|kind| match kind {
        Kind::Gcp | Kind::AwsIdentityDocument | Kind::AwsNitroTpm | Kind::AwsSts => true,
        Kind::Tpm => certified,
        Kind::Azure | Kind::AzureVtpm | Kind::Token => false,
    })
}

/// Claims that are compared with a Machine object.
#[derive(Debug, Clone)]
struct ComparedClaims<'a> {
    machine: &'a str,
    named: Option<NamedInstance<'a>>,
    /// Creation time according to the cloud, in seconds since 1970, if known.
    created: Option<u64>,
    /// The TPM shown with the instance, if only its manufacturer vouches for it.
    tpm_of_a_maker: Option<String>,
}

impl<'a> ComparedClaims<'a> {
    fn new(claims: &'a Claims) -> Self {
        let machine = claims.instance().unwrap_or_else(|| claims.identity()).as_str();
        let certified = claims.tpm().and_then(|tpm| tpm.instance()).map(|vtpm| vtpm.instance());
        let of_google = claims.gcp().map(|identity| &identity.instance).or(certified);
        let by_maker = |tpm: &&crate::TpmClaims| matches!(tpm.endorsed_by, EndorsedBy::Root { .. });
        Self {
            machine,
            named: of_google.map(gcp_instance).or_else(|| aws_instance(claims)),
            created: claims.gcp().map(|identity| identity.created),
            tpm_of_a_maker: claims.tpm().filter(by_maker).map(|tpm| format!("tpm:{}", tpm.ek_digest)),
        }
    }
}

fn gcp_instance(instance: &GceInstance) -> NamedInstance<'_> {
    NamedInstance::Gcp {
        project: instance.project_id(),
        zone: instance.zone(),
        name: instance.instance_name(),
    }
}

/// The instance by its identity: the account is for the rules of the kind to judge.
fn aws_instance(claims: &Claims) -> Option<NamedInstance<'_>> {
    let identity = claims.instance()?.as_str();
    let instance = match identity.strip_prefix("aws:") {
        Some(of_account) => of_account.split_once('/')?.1,
        None => identity.strip_prefix("aws-nitrotpm:")?,
    };
    let zone = claims
        .aws_identity_document()
        .map(|claimed| claimed.document().replayable().availability_zone.as_str());
    Some(NamedInstance::Aws { zone, instance })
}

impl NamedMachine {
    /// Checks that the machine is one that the cluster has made for this pool, and that has not joined: one Machine object, and no other, names it.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn admit(&self, claims: &Claims) -> Result<&MachineObject, Reject> {
        self.judge(&ComparedClaims::new(claims))
    }

    fn judge(&self, shown: &ComparedClaims<'_>) -> Result<&MachineObject, Reject> {
        let machine = || shown.machine.to_owned();
        let names_it = |object: &&MachineObject| {
            let named = NamedInstance::by_provider(&object.provider_id);
            named.zip(shown.named).is_some_and(|(object, shown)| object.is(&shown))
        };
        let mut naming = self.objects.iter().filter(names_it);
        let Some(object) = naming.next() else {
            return Err(Reject::NotInInventory { machine: machine() });
        };
        if naming.next().is_some() {
            let objects = self.objects.len();
            return Err(Reject::NamedTwice {
                machine: machine(),
                objects,
            });
        }
        if !self.of.has(object) {
            return Err(Reject::OfAnotherSet {
                machine: machine(),
                accepted: Withheld::from_text(self.of.named()),
            });
        }
        if let Some(other) = &self.other_pool {
            return Err(Reject::OfTwoPools {
                machine: machine(),
                accepted: Withheld::from_text(format!("no machine that pool {other} also selects")),
            });
        }
        if object.ends {
            return Err(Reject::MachineEnds { machine: machine() });
        }
        if object.node.is_some() {
            return Err(Reject::HasNode { machine: machine() });
        }
        if let Some(created) = shown.created
            && created.saturating_add(CLOCKS_SECONDS) < object.created
        {
            return Err(Reject::OlderThanMachine {
                machine: machine(),
                instance: created,
                object: object.created,
            });
        }
        if let Some(found) = &shown.tpm_of_a_maker {
            return Err(Reject::InventoryTpm {
                machine: machine(),
                found: found.clone(),
                accepted: Withheld::from_text("no TPM that only its manufacturer endorses, because a Machine object names no TPM"),
            });
        }
        Ok(object)
    }
}

/// Checks that a machine may join a pool: its inventory names it, or a Machine object of the cluster does, if the pool has either. The
/// cluster is not asked about a machine that the inventory names. Returns the object that admitted the machine.
///
/// # Errors
/// [`Reject`].
pub fn admit<'m>(
    inventory: Option<&Inventory>,
    named: Option<&'m NamedMachine>,
    claims: &Claims,
) -> Result<Option<&'m MachineObject>, Reject> {
    let by_inventory = inventory.map(|inventory| inventory.admit(claims));
    match (by_inventory, named) {
        (None, None) | (Some(Ok(())), _) => Ok(None),
        (None | Some(Err(Reject::NotInInventory { .. })), Some(named)) => named.admit(claims).map(Some),
        (Some(Err(reject)), _) => Err(reject),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWS: &str = "aws:///eu-central-1a/i-0123456789abcdef0";
    const GCP: &str = "gce://example-project/europe-west3-a/worker-a-x7k2p";

    fn object(provider_id: &str) -> MachineObject {
        MachineObject {
            name: "worker-a-x7k2p".to_owned(),
            uid: "1".to_owned(),
            provider_id: provider_id.to_owned(),
            created: 1000,
            machine_set: Some("worker-a".to_owned()),
            control_plane: false,
            ends: false,
            node: None,
        }
    }

    fn sets(patterns: &[&str], control_plane: bool) -> MachineSets {
        MachineSets {
            machine_sets: patterns.iter().map(|&pattern| pattern.to_owned().try_into().unwrap()).collect(),
            control_plane,
        }
    }

    fn named(objects: &[MachineObject]) -> NamedMachine {
        NamedMachine {
            of: sets(&["worker-*"], false),
            objects: objects.to_vec(),
            other_pool: None,
            age_seconds: 0,
        }
    }

    fn shown(provider_id: &str) -> ComparedClaims<'_> {
        ComparedClaims {
            machine: "it",
            named: NamedInstance::by_provider(provider_id),
            created: Some(1010),
            tpm_of_a_maker: None,
        }
    }

    #[track_caller]
    fn check(named: &NamedMachine, shown: &ComparedClaims<'_>, expect: &str) {
        let found = named.judge(shown).map_or_else(|reject| reject.code(), |_| "accepted");
        assert_eq!(found, expect, "{named:?} {shown:?}");
    }

    /// Checks that a machine is refused after `change`, which is made to an accepted object.
    #[track_caller]
    fn refused(change: impl Fn(&mut MachineObject), expect: &str) {
        for id in [AWS, GCP] {
            let mut changed = object(id);
            check(&named(&[changed.clone()]), &shown(id), "accepted");
            change(&mut changed);
            check(&named(&[changed]), &shown(id), expect);
        }
    }

    #[test]
    fn attack_30_instance_without_a_machine_object_is_refused() {
        let check = |object_says: &str, instance_says: &str, expect| check(&named(&[object(object_says)]), &shown(instance_says), expect);
        const NOT_IN: &str = "instance-not-in-inventory";
        check(AWS, AWS, "accepted");
        check("aws:////i-0123456789abcdef0", AWS, "accepted");
        check(AWS, "aws:////i-0123456789abcdef0", "accepted");
        for other in [
            "aws:///eu-central-1a/i-0123456789abcdef1",
            "aws:///eu-central-1b/i-0123456789abcdef0",
            "aws:///eu-central-1a/x/i-0123456789abcdef0",
            "aws:///i-0123456789abcdef0",
            "aws://eu-central-1a/i-0123456789abcdef0",
            "aws:///eu-central-1a/",
            "i-0123456789abcdef0",
            "",
            GCP,
        ] {
            check(other, AWS, NOT_IN);
        }
        check(GCP, GCP, "accepted");
        for other in [
            "gce://other-project/europe-west3-a/worker-a-x7k2p",
            "gce://example-project/europe-west3-b/worker-a-x7k2p",
            "gce://example-project/europe-west3-a/worker-a-x7k2q",
            "gce://example-project/europe-west3-a/worker-a-x7k2p/",
            "gce://example-project/europe-west3-a",
            "gce:///europe-west3-a/worker-a-x7k2p",
            AWS,
        ] {
            check(other, GCP, NOT_IN);
        }
        let long = format!("gce://{}/z/n", "p".repeat(PROVIDER_ID_LIMIT_BYTES));
        check(&long, &long, NOT_IN);
        let azure = "azure:///subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/virtualMachines/worker-a-x7k2p";
        check(azure, azure, NOT_IN);
    }

    #[test]
    fn attack_30_machine_object_fields_refuse_the_instance() {
        refused(|object| object.machine_set = Some("infra-a".to_owned()), "instance-of-another-set");
        refused(|object| object.machine_set = None, "instance-of-another-set");
        refused(|object| object.control_plane = true, "instance-of-another-set");
        refused(|object| object.ends = true, "instance-machine-ends");
        refused(|object| object.node = Some("worker-a-x7k2p".to_owned()), "instance-has-node");
        refused(|object| object.created = 1010 + CLOCKS_SECONDS + 1, "instance-older-than-machine");
        refused(|object| object.created = 1010 + CLOCKS_SECONDS, "accepted");
    }

    #[test]
    fn attack_30_instance_id_must_name_one_machine() {
        for id in [AWS, GCP] {
            check(&named(&[]), &shown(id), "instance-not-in-inventory");
            check(&named(&[object(id), object(id)]), &shown(id), "instance-named-twice");
            // Whatever the second one is.
            let ends = MachineObject { ends: true, ..object(id) };
            check(&named(&[object(id), ends]), &shown(id), "instance-named-twice");
            let of_two = NamedMachine {
                other_pool: Some("infra".to_owned()),
                ..named(&[object(id)])
            };
            check(&of_two, &shown(id), "instance-of-two-pools");
        }
    }

    #[test]
    fn attack_30_control_plane_and_machine_sets_never_mix() {
        let [of_sets, of_control_plane, both] = [sets(&["*"], false), sets(&[], true), sets(&["*"], true)];
        let check = |set: Option<&str>, control_plane, expect: [bool; 3]| {
            let object = MachineObject {
                machine_set: set.map(str::to_owned),
                control_plane,
                ..object(AWS)
            };
            assert_eq!(
                [&of_sets, &of_control_plane, &both].map(|sets| sets.has(&object)),
                expect,
                "{object:?}"
            );
        };
        check(Some("worker-a"), false, [true, false, true]);
        check(None, true, [false, true, true]);
        check(None, false, [false; 3]);
        check(Some("worker-a"), true, [false; 3]);
        assert!(!MachineSets::default().has(&object(AWS)));
    }

    #[test]
    fn attack_29_machine_object_does_not_bind_a_purchased_tpm() {
        let of_maker = ComparedClaims {
            tpm_of_a_maker: Some("tpm:ab".to_owned()),
            ..shown(AWS)
        };
        check(&named(&[object(AWS)]), &of_maker, "instance-tpm-not-in-inventory");
    }

    #[test]
    fn unknown_instance_creation_time_is_not_compared() {
        let unsaid = ComparedClaims {
            created: None,
            ..shown(AWS)
        };
        let late = MachineObject {
            created: u64::MAX,
            ..object(AWS)
        };
        check(&named(&[late]), &unsaid, "accepted");
    }

    #[test]
    fn machine_object_can_name_instance_kinds() {
        let check = |kinds: &[Kind], expect: [bool; 2]| {
            assert_eq!(
                [false, true].map(|certified| can_name(kinds.iter().copied(), certified)),
                expect,
                "{kinds:?}"
            );
        };
        check(&[Kind::Tpm], [false, true]);
        check(&[Kind::Tpm, Kind::Gcp], [true, true]);
        check(&[Kind::AwsIdentityDocument, Kind::Token], [true, true]);
        check(&[Kind::Azure, Kind::AzureVtpm], [false, false]);
        check(&[], [false, false]);
    }
}
