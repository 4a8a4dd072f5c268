//! A machine whose power fails after it has attested, more often than its TPM allows failed authorizations.
use std::time::Duration;

use swtpm_tests::scenario::{Scenario, Site};
use swtpm_tests::{Swtpm, TestFolder};

/// Maximum duration until the attestation: emulated on two busy cores it takes half a minute.
const ATTESTED_LIMIT: Duration = Duration::from_secs(180);
/// Number of boots: swtpm is locked after three failed authorizations.
const BOOTS: usize = 5;

#[test]
fn attack_57_a_machine_whose_power_fails_after_each_boot_attests() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let vm_folder = site.vm_folder("machine").unwrap();
    for boot in 0..BOOTS {
        let tpm = match boot {
            0 => site.tpm(Scenario::EndorsedTpm, &vm_folder).unwrap().unwrap(),
            _ => Swtpm::restart(&vm_folder).unwrap(),
        };
        let vm = site.vm().pointer(&pointer).tpm(&tpm).start(&vm_folder).unwrap();
        let is_verdict = |line: &str| line.contains("attest-node: attested") || line.contains("attest-node: not attested");
        let verdict = vm.console().wait_line(ATTESTED_LIMIT, is_verdict).unwrap();
        assert!(verdict.contains("attested as tpm:"), "boot {boot}: {verdict}");
        // Neither the kernel nor the TPM's process is told: no TPM2_Shutdown.
        drop((vm, tpm));
    }
}
