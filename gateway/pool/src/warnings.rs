//! Warnings for the administrator about a pool that is served.

use attest::appraisal::FirstUse;
use attest::aws::nitro_tpm::NitroTpmRules;
use attest::azure::vtpm::AzureVtpmRules;
use attest::tpm::reference_values::AcceptedValues;
use attest::tpm::rules::Check;
use attest::{Combination, Kind, ReferenceValues};
use attest_log::Earns;

use super::endorsement::{ANY_TPM, Endorsement};
use super::exclusivity::anybodys_in_azure;
use super::{Pool, PoolInventory};

/// Last PCR of the firmware: those above are extended by the software that the firmware starts.
const LAST_PCR_OF_THE_FIRMWARE: u8 = 7;
/// PCR with the state of Secure Boot and its keys.
const SECURE_BOOT_PCR: u8 = 7;

impl Pool {
    /// Returns warnings about this pool. `roots` is `true` if there are EK roots, `client_ca` if kubelets are asked for their certificates.
    #[must_use]
    pub fn warnings(&self, roots: bool, client_ca: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        if !client_ca && self.grants.kubelet != Earns::Refuse {
            warnings.push(format!(
                "pool {}: grants.kubelet has no effect without tls.client_ca in gateway.toml",
                self.name
            ));
        }
        let tpm_alone = self.policy.accepts().contains(&Kind::Tpm.into());
        let by_vtpm = |kinds: &Combination| kinds.has(Kind::AzureVtpm) && !kinds.has(Kind::Tpm);
        let of_vtpms = self.policy.azure_vtpm().map(AzureVtpmRules::reference_values);
        let any_boot = (tpm_alone && self.policy.reference_values().is_some_and(ReferenceValues::checks_nothing))
            || (self.policy.accepts().iter().any(by_vtpm) && of_vtpms.is_some_and(ReferenceValues::checks_nothing));
        // A pool that takes any TPM is not better for the PCRs that it checks: in a machine of one's own, a TPM takes any values.
        if roots
            && tpm_alone
            && self.endorsement == Endorsement::AnyTpmOfATrustedMaker
            && self.inventory.is_none()
            && self.machines.is_none()
            && self.grants.attested == Earns::Full
        {
            warnings.push(format!(
                "pool {} gives its full config to any TPM of a manufacturer in the EK roots, because of its tpm.endorsement; checking PCRs does not change that. To restrict it: tpm.endorsement = \"allowlist\"",
                self.name
            ));
        }
        if roots && self.policy.accepts_kind(Kind::Tpm) && self.endorsement_unsaid {
            warnings.push(format!(
                "pool {} does not set tpm.endorsement, so it accepts only TPMs of the allowlist, and ignores the EK roots: set it to \"allowlist\" or \"{ANY_TPM}\"",
                self.name
            ));
        }
        if self.policy.observes() {
            warnings.push(format!(
                "pool {} observes (observe = true): boots are recorded, but not refused; every machine that attests gets the attested grant",
                self.name
            ));
            if self.policy.condition().is_some() && !self.policy.observes_condition() {
                warnings.push(format!(
                    "pool {}: its condition refuses machines although the pool observes, because it uses more claims than those of the boot",
                    self.name
                ));
            }
        }
        if any_boot && self.grants.attested != Earns::Refuse {
            warnings.push(format!(
                "pool {} accepts any measured boot: an attestation proves which machine it is, not what it runs",
                self.name
            ));
        }
        if self.takes_machines_at_any_time() && self.grants.attested != Earns::Refuse {
            warnings.push(format!(
                "pool {} accepts attestations after the boot: root on a running machine can attest, too. Set only_while_booting = true in each of the pool's sections with PCRs",
                self.name
            ));
        }
        if self.reopens_by_hibernation() && self.grants.attested != Earns::Refuse {
            warnings.push(format!(
                "pool {} accepts machines only while they boot, but does not require Secure Boot: a hibernated machine may resume before its boot is complete, and root in it can attest. Add \"secure-boot\" to boot (kernels of distributions do not resume then), or give no machine of the pool a swap for hibernation (docs/explanation/evidence.md#hibernation)",
                self.name
            ));
        }
        if let Some(checks) = self.boot_loader_warning() {
            warnings.push(format!(
                "pool {} checks the measurements of a boot loader ({checks}), but not the boot loader itself, and another one may measure anything: add \"images\" or \"authorities\" to boot, or list values of PCR 4 or 7",
                self.name
            ));
        }
        let by_cloud = self.policy.accepts().iter().any(|kinds| {
            let kinds = kinds.kinds();
            kinds.iter().any(|kind| kind.is_of_a_cloud()) && !kinds.iter().any(|kind| kind.is_of_a_tpm())
        });
        if by_cloud && self.policy.first_use() == FirstUse::MeansNothing && self.grants.attested != Earns::Refuse {
            warnings.push(format!(
                "pool {}: any process that reaches an instance's metadata server gets the attested grant, at any time and any number of times: remove attestation.first_use from pool.toml, unless this is intended",
                self.name
            ));
        }
        if self.inventory.is_none() && self.machines.is_none() && self.grants.attested == Earns::Full {
            warnings.extend(self.instance_warnings());
        }
        let beside = |kinds: &Combination| kinds.has(Kind::Tpm) && kinds.kinds().iter().any(|kind| kind.is_of_a_cloud());
        let by_inventory = self.endorsement == Endorsement::AnyTpmOfATrustedMaker && self.policy.accepts().iter().any(beside);
        let names_no_tpm = |inventory: &PoolInventory| inventory.machines().names_no_tpm();
        if by_inventory && self.inventory.as_ref().is_some_and(names_no_tpm) {
            warnings.push(format!(
                "pool {}: its inventory names no TPM for any instance, so it accepts no instance whose TPM is endorsed only by its manufacturer",
                self.name
            ));
        }
        if self.grants.nothing == Earns::Full {
            warnings.push(format!(
                "pool {} gives its full config to unauthenticated clients (grants.nothing = \"full\")",
                self.name
            ));
        }
        if self.outline.same {
            warnings.push(format!("pool {}: full and pre-approved config are the same", self.name));
        } else if self.grants.kubelet == Earns::Full
            && let Some(obstacle) = &self.outline.obstacle
        {
            warnings.push(format!("pool {}: {obstacle}", self.name));
        }
        let earned = [self.grants.attested, self.grants.token, self.grants.kubelet, self.grants.nothing];
        let missing = self.outline.missing_files.iter().filter(|_| earned.contains(&Earns::PreApproved));
        warnings.extend(missing.map(|missing| {
            format!(
                "pool {}: {} names {}, which only the full config has, so pre-approved nodes lack it: add it to upstream.include.files, or have its MachineConfig needed before approval",
                self.name, missing.named_by, missing.path
            )
        }));
        warnings.extend(self.second_stage_warnings());
        if self.unpinned {
            warnings.push(format!(
                "pool {}: if the name in upstream.url resolves to this gateway, it fetches its own pre-approved config as the full one: set upstream.address or upstream.keys_sha256",
                self.name
            ));
        }
        for name in &self.needless {
            warnings.push(format!(
                "pool {}: pre_approved.acknowledged lists {name:?}, which the config does not have: remove it",
                self.name
            ));
        }
        warnings
    }

    /// Returns the time from which a rule finds no accepted reference value, in seconds since 1970, and the name of that rule's values.
    #[must_use]
    pub fn lapses(&self) -> Option<(u64, String)> {
        let of_azure = self.policy.azure_vtpm().map(AzureVtpmRules::reference_values);
        let of_nitro = self.policy.aws_nitro_tpm().map(NitroTpmRules::reference_values);
        let values = self.policy.reference_values().into_iter().chain(of_azure).chain(of_nitro);
        values.filter_map(ReferenceValues::lapses).min()
    }

    /// Returns whether evidence with PCRs is accepted from a machine that has finished booting.
    fn takes_machines_at_any_time(&self) -> bool {
        self.accepted_values().any(|values| !values.is_only_while_booting())
    }

    /// Returns whether machines are taken only while they boot, and nothing requires Secure Boot: their kernels may resume from
    /// hibernation.
    fn reopens_by_hibernation(&self) -> bool {
        let is_secure = |values: &ReferenceValues| {
            let is_listed = values
                .pcrs()
                .get(&SECURE_BOOT_PCR)
                .is_some_and(|accepted| *accepted != AcceptedValues::NotChecked);
            is_listed || values.boot().contains(&Check::SecureBoot)
        };
        self.accepted_values()
            .any(|values| values.is_only_while_booting() && !is_secure(values))
    }

    /// Returns the reference values of each kind of evidence with PCRs that the pool accepts.
    fn accepted_values(&self) -> impl Iterator<Item = &ReferenceValues> {
        let of_tpm = |kind: &Kind| match kind {
            Kind::Tpm => self.policy.reference_values(),
            Kind::AzureVtpm => self.policy.azure_vtpm().map(AzureVtpmRules::reference_values),
            Kind::AwsNitroTpm => self.policy.aws_nitro_tpm().map(NitroTpmRules::reference_values),
            _ => None,
        };
        let kinds = self.policy.accepts().iter().flat_map(Combination::kinds);
        kinds.filter_map(of_tpm)
    }

    /// Returns the checks of PCRs that a boot loader extends, if nothing checks the loader itself.
    fn boot_loader_warning(&self) -> Option<String> {
        let of_azure = self.policy.azure_vtpm().map(AzureVtpmRules::reference_values);
        let values = self.policy.reference_values().into_iter().chain(of_azure);
        let is_by_a_loader = |check: &&Check| check.pcr() > LAST_PCR_OF_THE_FIRMWARE;
        values
            .filter(|values| {
                let is_checked = |pcr| {
                    values
                        .pcrs()
                        .get(pcr)
                        .is_some_and(|accepted| *accepted != AcceptedValues::NotChecked)
                };
                let is_known = |check: &Check| matches!(check, Check::Images | Check::Authorities);
                ![4, 7].iter().any(is_checked) && !values.boot().iter().any(is_known)
            })
            .map(|values| {
                let checks = values.boot().iter().filter(is_by_a_loader);
                checks.map(ToString::to_string).collect::<Vec<_>>().join(", ")
            })
            .find(|checks| !checks.is_empty())
    }

    /// Returns the reasons why machine-config-daemon might not do what `second_stage` says.
    fn second_stage_warnings(&self) -> Vec<String> {
        let name = &self.name;
        let obstacles = self.outline.not_taken_over.iter();
        let mut warnings: Vec<String> = obstacles
            .map(|obstacle| {
                format!("pool {name}: machine-config-daemon will not finish a node that has the pre-approved config: {obstacle}")
            })
            .collect();
        if self.second_stage_of_nobody {
            warnings.push(format!(
                "pool {name}: second_stage.machine_config_daemon has no effect, because no grant earns \"pre-approved\""
            ));
        }
        if self.second_stage && self.grants.kubelet == Earns::Full {
            warnings.push(format!(
                "pool {name}: machine-config-daemon gives its nodes the full config, and reports drift if `attest-node config apply` applies it, too: set grants.kubelet = \"refuse\" if nothing else needs it"
            ));
        }
        warnings
    }

    /// Returns warnings about other instances that get the pool's config, because no inventory names the pool's.
    fn instance_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        // A vTPM of Azure's says no account. Alone, it is of a machine that the rules name, or of anybody's.
        let of_an_account = |kind: &Kind| kind.is_of_a_cloud() && *kind != Kind::AzureVtpm;
        let mut kinds = self.policy.accepts().iter().flat_map(Combination::kinds);
        if self.endorsement == Endorsement::GcpInstance || kinds.any(of_an_account) {
            warnings.push(format!(
                "pool {}: any instance of the account that meets the rules gets this pool's config: name the pool's machines in an [inventory]",
                self.name
            ));
        }
        if anybodys_in_azure(&self.policy).is_some() {
            warnings.push(format!(
                "pool {}: with accept_any_subscription, machines of any customer of Azure's with the accepted PCRs get this pool's config: name the pool's machines in vm_ids of [azure_vtpm], or in an [inventory]",
                self.name
            ));
        }
        warnings
    }
}
