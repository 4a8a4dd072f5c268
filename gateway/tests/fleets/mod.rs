//! Recommended pools for Fedora CoreOS, RHEL CoreOS and Flatcar (`docs/how-to/strict-boot-rules.md`), as they are in `examples/`. Each is
//! compared with boots like these distributions': the accepted one, and one for each possible difference.

mod boots;
mod vectors;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use attest::reference_sets::{Generation, ReferenceSet, Time, ValueOrigin, Values};
use attest::tpm::boot_complete::BOOT_COMPLETE_PCR;
use attest::tpm::rules::recorded;
use attest::{AppraisalPolicy, Claims, HashAlg, UnixTime, appraise};
use attest_gateway::pools;
use boots::{Boot, FEDORA, RED_HAT, SBAT_LEVEL_2023, on_coreos, on_flatcar};

use crate::examples;
use crate::log_builder::LogBuilder;
use crate::support::{Case, Gateway, POOL, SoftKey};

const BANK: HashAlg = HashAlg::Sha256;

/// Returns the expected refusal because of this PCR.
fn refused(pcr: u8) -> Result<(), String> {
    Err(format!("boot-not-accepted in PCR {pcr}"))
}

fn secure_boot_off() -> Result<(), String> {
    Err("secure-boot-off".to_owned())
}

/// Gateway with an example in its folder.
struct Fleet {
    gateway: Gateway,
    generations: Vec<Generation>,
    now: UnixTime,
}

impl Fleet {
    fn from_example(example: &str) -> Self {
        let gateway = Gateway::init();
        examples::copy(&examples::folder().join(example), &gateway.path(""));
        let now = Case::new(SoftKey::p256()).now;
        Self {
            gateway,
            generations: Vec::new(),
            now: UnixTime::since_unix_epoch(Duration::from_secs(now)),
        }
    }

    async fn policy(&self) -> AppraisalPolicy {
        let folder = self.gateway.path(&format!("pools/{POOL}"));
        pools::load(POOL, &folder, &attest_pool::needed_before_approval::NeededState::default())
            .await
            .unwrap()
            .policy
    }

    /// Returns the claims of a machine with this log: all PCRs that the pool asks for.
    fn claims(&self, policy: &AppraisalPolicy, log: &LogBuilder) -> Claims {
        let values = policy.reference_values().unwrap();
        assert!(values.is_only_while_booting());
        let is_wanted = |pcr: u8| pcr == BOOT_COMPLETE_PCR || values.pcrs().contains_key(&pcr);
        let pcrs = log.pcrs(BANK).into_iter().filter(|(pcr, _)| is_wanted(*pcr));
        let pcrs: BTreeMap<u8, Vec<u8>> = pcrs.map(|(pcr, value)| (pcr, value.as_bytes().to_vec())).collect();
        let case = Case::with_pcrs(SoftKey::p256(), BANK, pcrs).but(|case| case.event_log = Some(log.build()));
        case.verify().unwrap()
    }

    async fn judged(&self, log: &LogBuilder) -> Result<(), String> {
        let policy = self.policy().await;
        let judged = appraise(self.claims(&policy, log), &policy, self.now);
        judged.map(drop).map_err(|reject| {
            let detail = reject.detail();
            let place = detail.split_once(", PCR ").and_then(|(_, rest)| rest.split_once(','));
            match place {
                Some((pcr, _)) => format!("{} in PCR {pcr}", reject.code()),
                None => reject.code().to_owned(),
            }
        })
    }

    async fn check(&self, boot: &Boot, expect: Result<(), String>) {
        assert_eq!(self.judged(&boot.log()).await, expect, "{boot:?}");
    }

    /// Adds the generation that `reference-values record` would write from a trusted machine.
    async fn record(&mut self, boot: &Boot, expires: Option<u64>) {
        let policy = self.policy().await;
        let claims = self.claims(&policy, &boot.log());
        let values = recorded(claims.measured_boot().unwrap(), &BTreeMap::new());
        self.add(values, expires);
    }

    fn add(&mut self, values: Values, expires: Option<u64>) {
        let count = self.generations.len();
        self.generations.push(Generation {
            name: format!("image {count}"),
            added: Time { at: 1 },
            by: "root".to_owned(),
            from: ValueOrigin::ByHand,
            expires: expires.map(|at| Time { at }),
            values,
        });
        let folder = self.gateway.path(&format!("pools/{POOL}/reference-values"));
        drop(fs::remove_file(folder.join("image.json")));
        let set = ReferenceSet::new(self.generations.clone()).unwrap().to_json().unwrap();
        fs::write(folder.join("recorded.json"), set).unwrap();
    }

    fn command_output(&self, arguments: &[&str]) -> String {
        let output = self.gateway.try_command(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test]
async fn recommended_fedora_coreos_pool_detects_each_change() {
    let mut fleet = Fleet::from_example("fedora-coreos");
    let first = on_coreos(FEDORA);
    // Until something is recorded nothing is accepted: the firmware's certificate is none of the example's here.
    fleet.check(&first, refused(7)).await;
    fleet.record(&first, None).await;
    fleet.check(&first, Ok(())).await;
    fleet.check(&first.but(|boot| boot.secure_boot = false), secure_boot_off()).await;
    for (other, pcr) in [
        (first.but(|boot| boot.shim = "another shim"), 4),
        (first.but(|boot| boot.grub = "another GRUB"), 4),
        (first.but(|boot| boot.kernel = "another kernel"), 4),
        (first.but(|boot| boot.initrd = "another initramfs"), 9),
        (first.but(|boot| boot.entry = "another boot entry"), 9),
        (first.but(|boot| boot.command_line = "rd.break"), 8),
        (first.but(|boot| boot.owner_keys = "another owner's key"), 14),
        (first.but(|boot| boot.signer = "another maker of kernels"), 7),
        (first.but(|boot| boot.firmware_signer = "another maker of shims"), 7),
        // A boot that is not the first one has its own command line, and boot entry.
        (first.but(|boot| boot.command_line = "root=UUID=1"), 8),
        (first.but(|boot| boot.entry = "boot entry with root=UUID=1"), 9),
    ] {
        fleet.check(&other, refused(pcr)).await;
    }
    // What differs from machine to machine.
    fleet.check(&first.but(|boot| boot.disk = "another disk"), Ok(())).await;
    fleet.check(&first.but(|boot| boot.firmware = "Firmware 1.3"), Ok(())).await;
    fleet.check(&first.but(|boot| boot.dbx_hashes = 7), Ok(())).await;
    fleet.check(&first.but(|boot| boot.sbat_level = SBAT_LEVEL_2023), Ok(())).await;
}

#[tokio::test]
async fn adds_a_new_image_and_expires_the_old() {
    let mut fleet = Fleet::from_example("fedora-coreos");
    let old = on_coreos(FEDORA);
    let new = old.but(|boot| {
        (boot.shim, boot.grub) = ("another shim", "another GRUB");
        (boot.kernel, boot.initrd) = ("another kernel", "another initramfs");
        (boot.entry, boot.command_line) = ("another boot entry", "ostree=/ostree/boot.1/2 ignition.firstboot");
    });
    let now = fleet.now.as_secs();
    fleet.record(&old, Some(now + 1)).await;
    fleet.check(&new, refused(4)).await;
    fleet.record(&new, None).await;
    fleet.check(&old, Ok(())).await;
    fleet.check(&new, Ok(())).await;
    // Boot loaders are updated apart from the system: the new ones start the old one, or the old ones the new one.
    fleet
        .check(&old.but(|boot| (boot.shim, boot.grub) = (new.shim, new.grub)), Ok(()))
        .await;
    fleet
        .check(&new.but(|boot| (boot.shim, boot.grub) = (old.shim, old.grub)), Ok(()))
        .await;
    fleet.now = UnixTime::since_unix_epoch(Duration::from_secs(now + 1));
    fleet.check(&old, refused(4)).await;
    fleet.check(&new, Ok(())).await;
}

#[tokio::test]
async fn recommended_rhel_coreos_pool_detects_each_change() {
    let mut fleet = Fleet::from_example("rhel-coreos");
    let first = on_coreos(RED_HAT);
    fleet.check(&first, refused(7)).await;
    fleet.record(&first, None).await;
    fleet.check(&first, Ok(())).await;
    fleet.check(&first.but(|boot| boot.secure_boot = false), secure_boot_off()).await;
    // The second half of a first boot that changes the kernel's arguments.
    let fips = first.but(|boot| {
        (boot.entry, boot.command_line) = ("boot entry with fips=1", "ostree=/ostree/boot.1/1 ignition.firstboot fips=1");
    });
    for (other, pcr) in [
        (first.but(|boot| boot.kernel = "another kernel"), 4),
        (first.but(|boot| boot.initrd = "another initramfs"), 9),
        (first.but(|boot| boot.command_line = "rd.break"), 8),
        (first.but(|boot| boot.owner_keys = "another owner's key"), 14),
        (first.but(|boot| boot.signer = "another maker of kernels"), 7),
        (fips.clone(), 9),
    ] {
        fleet.check(&other, refused(pcr)).await;
    }
    fleet.record(&fips, None).await;
    fleet.check(&first, Ok(())).await;
    fleet.check(&fips, Ok(())).await;
}

#[tokio::test]
async fn recommended_flatcar_pool_detects_each_change() {
    for secure_boot in [false, true] {
        let mut fleet = Fleet::from_example("flatcar");
        let first = on_flatcar().but(|boot| boot.secure_boot = secure_boot);
        fleet.check(&first, refused(4)).await;
        fleet.record(&first, None).await;
        fleet.check(&first, Ok(())).await;
        // Without Secure Boot the kernel is a file that GRUB has read, and nothing else.
        let kernel = if secure_boot { 4 } else { 9 };
        for (other, pcr) in [
            (first.but(|boot| boot.kernel = "kernel with another root hash of /usr"), kernel),
            (first.but(|boot| boot.grub = "another GRUB"), 4),
            (first.but(|boot| boot.shim = "another shim"), 4),
            (first.but(|boot| boot.command_line = "rd.break"), 8),
            (first.but(|boot| boot.entry = "set linux_append=rd.break"), 9),
            // A boot that is not the first one, and one of the other system.
            (first.but(|boot| boot.command_line = "BOOT_IMAGE=/flatcar/vmlinuz-a"), 8),
            (
                first.but(|boot| boot.command_line = "BOOT_IMAGE=/flatcar/vmlinuz-b flatcar.first_boot=detected"),
                8,
            ),
        ] {
            fleet.check(&other, refused(pcr)).await;
        }
        fleet.check(&first.but(|boot| boot.disk = "another disk"), Ok(())).await;
    }
}

#[test]
fn policy_explain_describes_the_recommended_pools() {
    let of_all = [
        "image (PCR 4)",
        "(PCR 8)",
        "(PCR 9)",
        "the machine is still booting",
        "PCR 4: not compared as a whole",
        "PCR 0: not checked",
    ];
    let of_coreos = ["Secure Boot is on", "certificate", "(PCR 14)"];
    for (example, is_coreos) in [("fedora-coreos", true), ("rhel-coreos", true), ("flatcar", false)] {
        let words = Fleet::from_example(example).command_output(&["policy", "explain", POOL]);
        for word in of_all {
            assert!(words.contains(word), "{example}: {word}: {words}");
        }
        for word in of_coreos {
            assert_eq!(words.contains(word), is_coreos, "{example}: {word}: {words}");
        }
    }
}

/// The certificates of the examples are the ones that the document names.
#[test]
fn the_document_has_the_certificates_of_the_examples() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/strict-boot-rules.md");
    let document = fs::read_to_string(document).unwrap();
    for example in ["fedora-coreos", "rhel-coreos"] {
        let file = examples::folder()
            .join(example)
            .join("pools/worker/reference-values/authorities.json");
        let set = ReferenceSet::parse(&fs::read_to_string(file).unwrap()).unwrap();
        let authorities = set.generations.iter().flat_map(|generation| &generation.values.authorities);
        for authority in authorities {
            let digest = authority.digests[&BANK].to_string();
            let name = authority.name.as_ref().unwrap();
            let name = name.trim_start_matches("CN=").split(',').next().unwrap();
            let row = document.lines().find(|line| line.contains(&digest));
            assert!(row.is_some_and(|row| row.contains(name)), "{name} {digest}");
        }
    }
}
