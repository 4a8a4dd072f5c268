//! Pointer configs on config drives, and in OpenStack's metadata service: real Ignition and attest-node read the same.

mod on_the_host;

use std::fs;
use std::path::{Path, PathBuf};

use cloud_fixtures::openstack::OpenStackMetadataServer;
use swtpm_tests::TestFolder;
use swtpm_tests::scenario::{Scenario, Site, VmRun};

/// Program that QEMU starts for each connection to a metadata server.
const CONNECT: &str = env!("CARGO_BIN_EXE_connect");
/// User data on OpenStack's drives, and on NoCloud's.
const OPENSTACK: &str = "openstack/latest/user_data";
const NO_CLOUD: &str = "user-data";

/// Returns a gateway that runs, and its pointer.
fn site() -> (TestFolder, Site, String) {
    let folder = TestFolder::new().unwrap();
    let mut site = Site::new(folder.path()).unwrap();
    site.gateway().start(None).unwrap();
    let pointer = site.gateway().pointer(None).unwrap();
    (folder, site, pointer)
}

/// Makes a drive with this file.
fn drive(site: &Site, label: &str, path: &str, content: &str, folder: &Path) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let file = folder.join("content").join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, content).unwrap();
    site.images().drive(label, &folder.join("content"), folder).unwrap()
}

/// Boots a machine of this platform that has a TPM, the drives, and a metadata service.
fn boot(site: &Site, platform: &'static str, drives: &[PathBuf], metadata: Option<&OpenStackMetadataServer>) -> VmRun {
    let folder = site.vm_folder(platform).unwrap();
    let tpm = site.tpm(Scenario::EndorsedTpm, &folder).unwrap().unwrap();
    let mut vm = site.vm().platform(platform).tpm(&tpm);
    for drive in drives {
        vm = vm.disk(drive);
    }
    if let Some(server) = metadata {
        vm = vm.metadata(server.address(), Path::new(CONNECT));
    }
    site.boot(vm, &folder).unwrap()
}

/// Verifies that the node attested, and that Ignition used its ticket.
fn check_attested(site: &Site, run: &VmRun) {
    let node = &run.outcome.node_lines;
    site.prove_exactly("full", &run.outcome)
        .unwrap_or_else(|error| panic!("{error}; {node:?}"));
    let decisions: Vec<_> = run
        .records
        .iter()
        .map(|record| (record.decision(), record.shown(), record.grant()))
        .collect();
    assert_eq!(
        decisions,
        [("evidence", "tpm", Some("full")), ("config", "ticket", Some("full"))],
        "{node:?}"
    );
}

/// Checks a machine whose pointer is on one drive.
fn check(platform: &'static str, label: &str, path: &str) {
    let (folder, site, pointer) = site();
    let drive = drive(&site, label, path, &pointer, &folder.path().join("drive"));
    check_attested(&site, &boot(&site, platform, &[drive], None));
}

#[test]
fn nutanix_pointer_is_on_the_config_drive() {
    check("nutanix", "config-2", OPENSTACK);
}

#[test]
fn powervs_pointer_is_on_the_config_drive() {
    check("powervs", "config-2", OPENSTACK);
}

#[test]
fn kubevirt_pointer_is_on_the_config_drive() {
    check("kubevirt", "config-2", OPENSTACK);
}

#[test]
fn ibm_cloud_pointer_is_on_the_nocloud_drive() {
    check("ibmcloud", "cidata", NO_CLOUD);
}

/// Nothing answers at the metadata service's address.
#[test]
fn openstack_pointer_is_on_the_config_drive() {
    check("openstack", "CONFIG-2", OPENSTACK);
}

#[test]
fn openstack_pointer_is_in_the_metadata_service() {
    let (_folder, site, pointer) = site();
    let server = OpenStackMetadataServer::start();
    server.set_user_data(Some(pointer.as_bytes()));
    check_attested(&site, &boot(&site, "openstack", &[], Some(&server)));
}

/// Both have the gateway's pointer: whichever Ignition's link leads to is the one that attest-node reads.
#[test]
fn of_two_drives_with_one_label_one_is_read() {
    let (folder, site, pointer) = site();
    let drives = ["a", "b"].map(|name| drive(&site, "config-2", OPENSTACK, &pointer, &folder.path().join(name)));
    check_attested(&site, &boot(&site, "nutanix", &drives, None));
}

/// Breaks a drive: it keeps its label, and cannot be mounted.
fn break_drive(drive: &Path) {
    let mut image = fs::read(drive).unwrap();
    // Descriptors begin at sector 16. The root directory's place, in both byte orders, leads beyond the end.
    for descriptor in image.chunks_mut(2048).skip(16).take(2) {
        descriptor[158..166].fill(0x7f);
    }
    fs::write(drive, image).unwrap();
}

#[test]
fn unreadable_drive_stops_ignition_and_is_reported() {
    let (folder, site, pointer) = site();
    let drive = drive(&site, "config-2", OPENSTACK, &pointer, &folder.path().join("drive"));
    break_drive(&drive);
    let run = boot(&site, "nutanix", &[drive], None);
    assert!(!run.outcome.ignition_succeeded());
    let verdict = run.outcome.node_verdict().unwrap();
    assert!(
        verdict.contains("the config drive with the label config-2 cannot be read: ") && verdict.contains("[config-drive]"),
        "{verdict}"
    );
    assert_eq!(run.records.len(), 0);
}

/// A drive that cannot be mounted does not keep OpenStack's other source away.
#[test]
fn unreadable_openstack_drive_leaves_the_metadata_service() {
    let (folder, site, pointer) = site();
    let drive = drive(&site, "config-2", OPENSTACK, "{}", &folder.path().join("drive"));
    break_drive(&drive);
    let server = OpenStackMetadataServer::start();
    server.set_user_data(Some(pointer.as_bytes()));
    check_attested(&site, &boot(&site, "openstack", &[drive], Some(&server)));
}
