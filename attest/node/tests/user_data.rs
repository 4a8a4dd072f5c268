//! Platforms whose pointer config is user data without evidence: what the program finds there, and what it says if it finds nothing.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use attest_node::cloud::MetadataAddress;
use attest_node::deadline::Deadline;
use attest_node::user_data::UserDataPlatform;
use cloud_fixtures::openstack::OpenStackMetadataServer;
use cloud_fixtures::server::ServerFault;

/// Runs the program on a machine of this platform, without TPM and drives. Returns its last line.
fn run(id: &str, metadata: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cmdline"), format!("ignition.platform.id={id}\n")).unwrap();
    let before = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_attest-node"))
        .current_dir(folder.path())
        .args([
            "attest",
            "--cmdline",
            "cmdline",
            "--dmi",
            "dmi",
            "--metadata",
            metadata,
            "--out",
            "user.ign",
        ])
        .args(["--state", "state", "--first-boot-secret-on", "none", "--deadline", "2"])
        .args(["--tcti", "device:/dev/no-such-tpm"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(!folder.path().join("user.ign").exists(), "{stderr}");
    assert!(before.elapsed() < Duration::from_secs(30), "{stderr}");
    stderr.lines().last().unwrap_or_default().to_owned()
}

/// Checks that the node does not attest on this platform, and why.
fn check(id: &str, metadata: &str, said: &[&str]) {
    let line = run(id, metadata);
    for part in said {
        assert!(line.contains(part), "{id}: {part:?} is missing in {line}");
    }
    assert!(line.ends_with("; the pointer config is unchanged"), "{line}");
}

/// An address at which connections are refused.
fn nobody() -> String {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    format!("http://{address}")
}

#[test]
fn missing_drive_is_reported_with_its_label() {
    for (id, label) in [
        ("nutanix", "config-2"),
        ("powervs", "config-2"),
        ("kubevirt", "c"),
        ("ibmcloud", "cidata"),
    ] {
        let said = format!("no filesystem has the label {label}");
        check(id, &nobody(), &[&said, "[config-drive]; next: attach the config drive"]);
    }
}

#[test]
fn vmware_machine_is_recognised_by_its_processor() {
    check(
        "vmware",
        &nobody(),
        &["the processor is not VMware's [guestinfo]; next: set guestinfo"],
    );
}

#[test]
fn platforms_without_readable_config_name_user_ign() {
    let user_config = "looked at /usr/lib/ignition/user.ign; ";
    for (id, said) in [
        ("metal", "platform metal has no config of its own"),
        ("hyperv", "only Ignition can read Hyper-V's key-value pairs"),
        ("proxmoxve", "this program does not support configs of platform proxmoxve"),
    ] {
        check(
            id,
            &nobody(),
            &[&format!("{user_config}{said} [pointer-not-found]; next: put a pointer config into")],
        );
    }
}

/// Checks what the node finds in OpenStack's metadata service, next to no drive.
fn check_openstack(user_data: Option<&[u8]>, fault: Option<ServerFault>, said: &[&str]) {
    let server = OpenStackMetadataServer::start();
    server.set_user_data(user_data);
    if let Some(fault) = fault {
        server.fail(fault);
    }
    check("openstack", &server.url(), said);
    let asked = server.requests();
    assert!(
        asked
            .iter()
            .all(|request| request.method == "GET" && request.target == "/openstack/latest/user_data")
    );
}

#[test]
fn openstack_user_data_comes_from_the_metadata_service() {
    // The pointer config was read.
    let server = OpenStackMetadataServer::start();
    server.set_user_data(Some(b"{\"ignition\":{\"version\":\"2.2.0\"}}"));
    check("brightbox", &server.url(), &["[pointer-version]"]);
    check_openstack(Some(b"{\"ignition\":{\"version\":\"2.2.0\"}}"), None, &["[pointer-version]"]);
    let empty = "and openstack/latest/user_data on the config drive config-2 and in the metadata service [pointer-not-found]";
    check_openstack(None, None, &[empty]);
    check_openstack(Some(b""), None, &[empty]);
    for other in [
        "#cloud-config\npackages: []\n",
        "MIME-Version: 1.0\nContent-Type: multipart/mixed\n",
        "#!/bin/sh\n",
    ] {
        check_openstack(Some(other.as_bytes()), None, &["[pointer-malformed]"]);
    }
    check_openstack(
        Some(&vec![b' '; 1024 * 1024 + 1]),
        None,
        &["more than 1048576 bytes", "[metadata-answer]"],
    );
}

#[test]
fn openstack_metadata_service_that_fails_is_reported() {
    check_openstack(None, Some(ServerFault::Down), &["[metadata-unreachable]"]);
    check_openstack(None, Some(ServerFault::Slow), &["[metadata-unreachable]"]);
    check_openstack(None, Some(ServerFault::Status(503)), &["[metadata-unreachable]"]);
    check_openstack(None, Some(ServerFault::Status(403)), &["[metadata-refused]"]);
    check_openstack(None, Some(ServerFault::Garbage), &["[pointer-malformed]"]);
    check_openstack(None, Some(ServerFault::Huge), &["[metadata-answer]"]);
}

/// The drive is waited for at the same time, so a service that answers late still counts.
#[test]
fn openstack_answer_ends_the_wait_for_the_drive() {
    let server = OpenStackMetadataServer::start();
    server.set_user_data(Some(b"{}"));
    server.fail(ServerFault::Status(503));
    let metadata: MetadataAddress = server.url().parse().unwrap();
    let before = Instant::now();
    let reader = std::thread::spawn(move || UserDataPlatform::OpenStack.read(None, &metadata, Deadline::after(Duration::from_secs(60))));
    while server.requests().is_empty() {
        std::thread::yield_now();
    }
    server.recover();
    assert_eq!(reader.join().unwrap().unwrap().unwrap().as_slice(), b"{}");
    assert!(before.elapsed() < Duration::from_secs(30), "{:?}", before.elapsed());
}
