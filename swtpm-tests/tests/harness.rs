//! The harness itself, without the gateway: a VM's report is complete and true.
use std::time::Duration;

use serde_json::json;
use swtpm_tests::{Accelerator, EkAuthority, IgnitionOutcome, Images, RESULT_FILE, Swtpm, TestEndorsement, TpmServer, Vm, expected_files};

const VM_LIMIT: Duration = Duration::from_secs(120);

/// Returns a config that Ignition takes from fw_cfg, without network.
fn config() -> serde_json::Value {
    json!({
        "ignition": {"version": "3.3.0"},
        "storage": {
            "files": [
                {"path": "/etc/plain", "mode": 420, "contents": {"source": "data:,plain%0A"}},
                {"path": "/etc/secret", "mode": 384, "contents": {"source": "data:;base64,c2VjcmV0"}},
                {"path": "/etc/empty"}
            ],
            "links": [{"path": "/etc/link", "target": "plain"}]
        },
        "systemd": {"units": [{"name": "hello.service", "enabled": true, "contents": "[Service]\nExecStart=/bin/true\n",
            "dropins": [{"name": "10-more.conf", "contents": "[Unit]\nDescription=Hello\n"}]}]}
    })
}

#[test]
fn a_vm_reports_exactly_what_ignition_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let images = Images::fast().unwrap();
    let authority = EkAuthority::new(&folder.path().join("manufacturer")).unwrap();
    let tpm = Swtpm::start(folder.path(), TestEndorsement::By(&authority)).unwrap();
    let mut vm = Vm::builder(&images.kernel(), &images.plain_initrd())
        .accelerator(Accelerator::detect(&images))
        .kernel_argument("quiet")
        .pointer(&config().to_string())
        .tpm(&tpm)
        .start(folder.path())
        .unwrap();
    vm.wait_off(VM_LIMIT).unwrap();
    let mut outcome = IgnitionOutcome::parse(&vm.console().lines()).unwrap();
    assert!(outcome.ignition_succeeded(), "{outcome:?}");
    assert!(outcome.files.remove(RESULT_FILE).is_some());
    assert_eq!(outcome.files, expected_files(&config()).unwrap());
}

#[test]
fn a_tpm_server_has_an_ek_certificate_only_if_endorsed() {
    let folder = tempfile::tempdir().unwrap();
    let authority = EkAuthority::new(&folder.path().join("manufacturer")).unwrap();
    for (name, endorsement, expected) in [
        ("endorsed", TestEndorsement::By(&authority), true),
        ("unendorsed", TestEndorsement::None, false),
    ] {
        let server = TpmServer::start(&folder.path().join(name), endorsement).unwrap();
        let tcti = server.tcti().parse().unwrap();
        let mut context = tss_esapi::Context::new(tcti).unwrap();
        // TCG EK Credential Profile: the RSA-2048 EK's certificate is at NV index 0x01C00002.
        let handle = tss_esapi::handles::TpmHandle::NvIndex(0x01c0_0002.try_into().unwrap());
        assert_eq!(context.tr_from_tpm_public(handle).is_ok(), expected, "{name}");
    }
}
