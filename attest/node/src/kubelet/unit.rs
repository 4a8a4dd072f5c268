//! The unit of the booted system, as the initramfs leaves it: below `/run`, where systemd looks for units (systemd.unit(5)), and gone with the next boot.
//!
//! On OpenShift, the units that it waits for and the files that it reads are in `templates` of openshift/machine-config-operator:
//! `kubelet.service.yaml`, `kubelet-node-env.dropin.yaml`, and the units of `common` that name nodes.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use super::key;
use crate::pointer::write;

/// Folder for the unit.
pub const FOLDER: &str = "/run/systemd/system";
/// Name of the unit.
pub const NAME: &str = "attest-node-kubelet-certificate.service";
/// Folder for the link that enables the unit.
const WANTS: &str = "multi-user.target.wants";
/// The program of the booted system, if the initramfs has brought none along.
const INSTALLED: &str = "/usr/bin/attest-node";

/// Returns the unit's text for an initramfs that has kept its files in this folder. On a node that is configured to attest a key, the unit
/// waits for the network; on others the kubelet's own unit does.
#[must_use]
pub fn text(kept: &Path, is_told_to: bool) -> String {
    let network = if is_told_to { "Wants=network-online.target\n" } else { "" };
    // By a shell, which each system may start: a program in /run it may not, where SELinux says so.
    let program = match kept.join("run").is_file() {
        true => format!("/bin/sh {}/run", kept.display()),
        false => INSTALLED.to_owned(),
    };
    let (memory, disk) = (kept.join(key::FILE), Path::new(key::FOLDER).join(key::FILE));
    format!(
        "\
# Left by attest-node in the initramfs; attest-node.kubelet-key=no on the kernel command line switches it off. Gone with the next boot.
[Unit]
Description=Get the kubelet's certificate for the key that this node has attested
# As long as there is such a key.
ConditionPathExists=|{memory}
ConditionPathExists=|{disk}
{network}After=network-online.target
# What names the node on OpenShift.
After=node-valid-hostname.service gcp-hostname.service openstack-hostname.service powervs-hostname.service vsphere-hostname.service
After=aws-kubelet-nodename.service openstack-kubelet-nodename.service
Before=kubelet.service kubelet-dependencies.target
# OpenShift's first boot ends in a reboot into another image, whose initramfs leaves no unit.
Before=machine-config-daemon-firstboot.service

[Service]
Type=oneshot
RemainAfterExit=yes
# As kubelet.service there, by itself and on AWS and OpenStack.
EnvironmentFile=-/etc/kubernetes/kubelet-env
EnvironmentFile=-/etc/kubernetes/node.env
ExecStart={program} kubelet-certificate request
# It ends by itself, after its --wait.
TimeoutStartSec=infinity
SyslogIdentifier=attest-node
StandardError=journal+console
",
        memory = memory.display(),
        disk = disk.display(),
    )
}

/// Leaves it in a folder of units.
///
/// # Errors
/// The operating system's error.
pub fn leave(folder: &Path, kept: &Path, is_told_to: bool) -> io::Result<()> {
    let wants = folder.join(WANTS);
    DirBuilder::new().recursive(true).mode(0o755).create(&wants)?;
    let path = folder.join(NAME);
    write::replace(&path, text(kept, is_told_to).as_bytes())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    match symlink(format!("../{NAME}"), wants.join(NAME)) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn unit_is_installed_where_systemd_finds_it() {
        let root = tempfile::tempdir().unwrap();
        let (folder, kept) = (root.path().join("systemd/system"), root.path().join("kept"));
        fs::create_dir(&kept).unwrap();
        leave(&folder, &kept, false).unwrap();
        let wanted = folder.join("multi-user.target.wants").join(NAME);
        let unit = fs::read_to_string(&wanted).unwrap();
        assert!(
            unit.contains("\nExecStart=/usr/bin/attest-node kubelet-certificate request\n"),
            "{unit}"
        );
        // A boot without a key waits for nothing because of it.
        assert!(!unit.contains("\nWants="), "{unit}");
        assert!(
            unit.contains(&format!("\nConditionPathExists=|{}/kubelet-key.pem\n", kept.display())),
            "{unit}"
        );
        assert_eq!(fs::metadata(folder.join(NAME)).unwrap().permissions().mode() & 0o777, 0o644);
        // Twice, and with a program that came with the initramfs.
        fs::write(kept.join("run"), "").unwrap();
        leave(&folder, &kept, true).unwrap();
        let unit = fs::read_to_string(&wanted).unwrap();
        assert!(
            unit.contains(&format!("\nExecStart=/bin/sh {}/run kubelet-certificate request\n", kept.display())),
            "{unit}"
        );
        assert!(unit.contains("\nWants=network-online.target\n"), "{unit}");
    }
}
