//! Machines with UEFI and `attest-node` in their images. The tests check the verdict of a pool that accepts the predicted values of a disk,
//! and the messages on their consoles.

use std::fs;

use attest::HashAlg;
use swtpm_tests::firmware::{BootDisk, SecureBootKeys};
use swtpm_tests::scenario::{Site, VmRun};
use swtpm_tests::{POOL, Swtpm, TestEndorsement, TestFolder, Vm, WAITING};

use super::firmware;
use super::predicted::{Predicted, reference_values, with_keys};
use super::verdicts::{SECTION, accept, not_accepted};
use crate::waiting_machines::accepted_while_it_boots;

/// Gateway, and the keys of the machines that boot.
struct Machines {
    _folder: TestFolder,
    site: Site,
    keys: SecureBootKeys,
}

impl Machines {
    fn new() -> Self {
        let folder = TestFolder::new().unwrap();
        Self {
            keys: SecureBootKeys::new(&folder.path().join("keys")).unwrap(),
            site: Site::new(folder.path()).unwrap(),
            _folder: folder,
        }
    }

    /// Creates a disk with a unified kernel image that has these words at the end of its command line. The accepted key or another one
    /// signs it.
    fn disk(&self, name: &str, by_accepted: bool, words: &[&str]) -> BootDisk {
        let place = self.site.vm_folder(name).unwrap();
        let (image, signed) = (self.site.uki(words, &place).unwrap(), place.join("signed.efi"));
        let signer = if by_accepted { self.keys.accepted() } else { self.keys.other() };
        signer.sign(&image, &signed).unwrap();
        BootDisk::uki(&signed, &place).unwrap()
    }

    /// Boots a machine that has these disks.
    fn boot(&mut self, disks: &[&BootDisk]) -> VmRun {
        self.site.gateway().start(None).unwrap();
        let place = self.site.vm_folder("node").unwrap();
        let tpm = Swtpm::start(&place, TestEndorsement::By(self.site.authority())).unwrap();
        let pointer = self.site.gateway().pointer(None).unwrap();
        let vm = Vm::with_firmware(&firmware(Some(&self.keys), &place), disks)
            .accelerator(self.site.accelerator())
            .tpm(&tpm)
            .pointer(&pointer);
        self.site.boot(vm, &place).unwrap()
    }
}

/// The machine boots an update that nobody has predicted. It waits in its initramfs, the administrator accepts it from the list, and it goes
/// on in the same boot.
#[test]
fn a_machine_with_an_update_waits_and_goes_on_when_accepted() {
    let mut machines = Machines::new();
    let known = machines.disk("known", true, &[]);
    let updated = machines.disk("updated", true, &["rd.break"]);
    let values = reference_values(
        "on",
        &with_keys(("--disk", known.image()), &machines.keys.arguments()),
        Some("what is rolled out"),
    );
    let pool = machines.site.gateway().folder().join("pools").join(POOL);
    accept(&pool, &["secure-boot", "authorities", "uki-sections"], Some(&values));
    for line in WAITING {
        let commented = format!("\n# {line}\n");
        machines.site.gateway().edit_pool(&commented, &format!("\n{line}\n")).unwrap();
    }
    machines.site.gateway().start(None).unwrap();
    let place = machines.site.vm_folder("node").unwrap();
    let tpm = Swtpm::start(&place, TestEndorsement::By(machines.site.authority())).unwrap();
    let pointer = machines.site.gateway().pointer(None).unwrap();
    let vm = Vm::with_firmware(&firmware(Some(&machines.keys), &place), &[&updated])
        .accelerator(machines.site.accelerator())
        .tpm(&tpm)
        .pointer(&pointer);
    accepted_while_it_boots(&mut machines.site, vm, &place, &[], "PCR 11, section of the unified kernel image");
}

#[test]
fn a_pool_accepts_a_boot_with_predicted_values() {
    let mut machines = Machines::new();
    let disk = machines.disk("disk", true, &[]);
    let prediction = Predicted::from_disk(&disk, Some(&machines.keys));
    let mut accepted = "\"0-3\" = \"not checked\"\n\"5-6\" = \"not checked\"\n".to_owned();
    for pcr in [4, 7, 9, 11, 12, 13] {
        accepted.push_str(&format!("{pcr} = [\"{}\"]\n", prediction.value(pcr, HashAlg::Sha256)));
    }
    let gateway = machines.site.gateway();
    gateway.edit_pool("\"0-7\" = \"not checked\"", &accepted).unwrap();
    let run = machines.boot(&[&disk]);
    assert_eq!(run.decision().0, "trusted", "{:?}", run.decision());
    machines.site.prove_exactly("full", &run.outcome).unwrap();
}

/// The firmware goes on to the machine's other disk, on which the command line was changed and signed with the accepted key.
#[test]
fn refuses_a_changed_command_line_and_foreign_signatures() {
    let mut machines = Machines::new();
    let accepted = machines.disk("accepted", true, &[]);
    let disks = [
        machines.disk("by-another", false, &[]),
        machines.disk("changed", true, &["rd.break"]),
    ];
    let values = reference_values(
        "on",
        &with_keys(("--disk", accepted.image()), &machines.keys.arguments()),
        Some("what is rolled out"),
    );
    let pool = machines.site.gateway().folder().join("pools").join(POOL);
    accept(&pool, &["secure-boot", "authorities", "uki-sections", "files"], Some(&values));

    let run = machines.boot(&[&disks[0], &disks[1]]);
    let console = fs::read_to_string(&run.console).unwrap();
    assert!(console.lines().any(|line| line.contains("Access Denied")), "{console}");
    let [record, ..] = run.records.as_slice() else {
        panic!("{console}")
    };
    let changed = Predicted::from_disk(&disks[1], Some(&machines.keys));
    let expect = not_accepted(&changed, 11, "section .cmdline", [SECTION, " (.cmdline)"], "what is rolled out");
    expect.holds(POOL, &console, record, machines.site.gateway());
    machines.site.prove_exactly("pre-approved", &run.outcome).unwrap();

    // That the firmware has tried something else before is in PCR 4 alone.
    let differs = |pcr: &u8| record.text(&format!("/claims/tpm/pcrs/{pcr}")).unwrap() != changed.value(*pcr, HashAlg::Sha256);
    let different: Vec<u8> = [4, 7, 9, 11, 12, 13].into_iter().filter(differs).collect();
    assert_eq!(different, [4]);
}
