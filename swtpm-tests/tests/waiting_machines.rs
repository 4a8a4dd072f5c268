//! Machines that wait while they boot: the administrator accepts them from the list, and they go on without another boot.

use std::path::Path;

use serde_json::Value;
use swtpm_tests::scenario::{Scenario, Site, VM_LIMIT};
use swtpm_tests::{IgnitionOutcome, TestFolder, VmBuilder};

#[test]
fn an_unknown_tpm_waits_and_goes_on_when_accepted() {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().edit_pool("unknown = \"refuse\"", "unknown = \"wait\"").unwrap();
    site.gateway().start(None).unwrap();
    let place = site.vm_folder("unknown").unwrap();
    let tpm = site.tpm(Scenario::UnendorsedTpm, &place).unwrap().unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    let vm = site.vm().pointer(&pointer).tpm(&tpm);
    accepted_while_it_boots(&mut site, vm, &place, &["--name", "worker-7"], "TPM that nobody endorses");
}

/// Boots a machine that waits for this value, and accepts it from the list with these options. It is then provisioned in full by the same
/// boot.
#[track_caller]
pub fn accepted_while_it_boots(site: &mut Site, vm: VmBuilder, folder: &Path, options: &[&str], what: &str) {
    let mut vm = vm.start(folder).unwrap();
    let waits = |line: &str| line.contains("waiting for an administrator to answer question ");
    site.gateway().process().unwrap().wait_line(VM_LIMIT, waits).unwrap();
    let tells = |line: &str| line.contains("tells this node to retry [answer-pending]");
    vm.console().wait_line(VM_LIMIT, tells).unwrap();
    let listed: Value = serde_json::from_str(&site.gateway().command(&["waiting", "list", "--output", "json"]).unwrap()).unwrap();
    let question = listed.pointer("/0").unwrap();
    assert_eq!(question.pointer("/values/0/what").unwrap(), what, "{listed:#}");
    assert_eq!(question.pointer("/releases").unwrap(), 1, "{listed:#}");
    let id = question.pointer("/id").unwrap().as_str().unwrap();
    site.gateway().command(&[&["waiting", "accept", id], options].concat()).unwrap();
    vm.wait_off(VM_LIMIT).unwrap();
    let outcome = IgnitionOutcome::parse(&vm.console().lines()).unwrap();
    site.prove_exactly("full", &outcome).unwrap();
    let records = site.gateway().records().unwrap();
    let verdicts: Vec<_> = records
        .iter()
        .filter(|record| record.decision() == "evidence")
        .map(swtpm_tests::LogRecord::verdict)
        .collect();
    assert_eq!(
        verdicts,
        ["refused", "trusted"],
        "the first is recorded once, and the machine does not boot again"
    );
}
