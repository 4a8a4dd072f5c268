//! Units around Ignition in the initrds of distributions: names and orders, as in `docs/how-to/images.md` and its sources. Their commands
//! are those that a test needs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Folder of the units in an initrd's tree.
const SYSTEM: &str = "usr/lib/systemd/system";
/// Path of the pointer config from QEMU.
const POINTER: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/com.coreos/config/raw";

/// An initrd's units around Ignition, those of `attest-node` not among them.
pub struct Distribution {
    pub name: &'static str,
    units: Vec<Unit>,
    /// Units that always run in this order, first to last, with `ignition-fetch.service` among them.
    pub order: &'static [&'static str],
}

struct Unit {
    name: &'static str,
    /// Lines of the section `[Unit]`.
    order: &'static str,
    /// Lines of the section `[Service]`.
    service: String,
    /// Set if the unit has systemd's default dependencies and no relation to `ignition-complete.target`.
    defaults: bool,
}

fn unit(name: &'static str, order: &'static str, command: &str) -> Unit {
    let service = format!("ExecStart=/bin/sh -c '{command}'");
    Unit {
        name,
        order,
        service,
        defaults: false,
    }
}

/// Creates the unit of a stage of Ignition.
fn stage(name: &'static str, stage: &str, order: &'static str) -> Unit {
    let service = format!(
        "EnvironmentFile=/run/ignition.env\nExecStart=/usr/bin/ignition --root=/sysroot --platform=${{PLATFORM_ID}} --stage={stage}"
    );
    Unit {
        name,
        order,
        service,
        defaults: false,
    }
}

impl Unit {
    /// Gives the unit a mount namespace of its own.
    fn apart(mut self) -> Self {
        self.service.push_str("\nMountFlags=slave");
        self
    }

    /// Gives the unit systemd's default dependencies and no relation to `ignition-complete.target`, unless its order says otherwise.
    fn by_default(mut self) -> Self {
        self.defaults = true;
        self
    }

    fn text(&self) -> String {
        let early = match self.defaults {
            true => "",
            false => "DefaultDependencies=false\nBefore=ignition-complete.target\n",
        };
        format!(
            "[Unit]\nConditionPathExists=/etc/initrd-release\n{early}{}\n[Service]\nType=oneshot\nRemainAfterExit=yes\n{}\n",
            self.order, self.service
        )
    }
}

/// Creates a unit that copies the pointer to where Ignition reads it, as from a disk. It has mounts of its own, because `/usr` is
/// read-only.
fn setup_user(name: &'static str, order: &'static str) -> Unit {
    let command = format!(
        "set -e; modprobe qemu_fw_cfg; mount -o remount,rw /usr; mkdir -p /usr/lib/ignition; cp {POINTER} /usr/lib/ignition/user.ign"
    );
    unit(name, order, &command).apart()
}

/// Returns Ignition's own units, which are also Debian's.
fn upstream() -> Vec<Unit> {
    vec![
        stage(
            "ignition-fetch-offline.service",
            "fetch-offline",
            "After=basic.target\nBefore=ignition-fetch.service",
        ),
        stage(
            "ignition-fetch.service",
            "fetch",
            "After=basic.target ignition-fetch-offline.service network.target\nBefore=ignition-disks.service\n\
             ConditionPathExists=/run/ignition/neednet\nConditionPathExists=!/run/ignition.json",
        ),
        unit(
            "ignition-kargs.service",
            "After=ignition-fetch.service\nBefore=ignition-disks.service",
            "true",
        )
        .apart(),
        unit(
            "ignition-disks.service",
            "After=ignition-fetch.service systemd-udevd.service\nRequires=systemd-udevd.service\n\
             Before=ignition-mount.service initrd-root-device.target sysroot.mount",
            "true",
        ),
        unit(
            "ignition-mount.service",
            "After=ignition-disks.service network.target initrd-root-fs.target\nRequires=initrd-root-fs.target\n\
             Before=ignition-files.service initrd-switch-root.target",
            "true",
        ),
        unit(
            "ignition-files.service",
            "After=ignition-mount.service\nBefore=initrd-parse-etc.service",
            "true",
        ),
    ]
}

pub fn debian() -> Distribution {
    Distribution {
        name: "Debian",
        units: upstream(),
        order: &[
            "basic.target",
            "ignition-fetch-offline.service",
            "ignition-fetch.service",
            "ignition-kargs.service",
            "ignition-disks.service",
        ],
    }
}

/// Returns Fedora CoreOS installed on a disk of its own.
pub fn fedora_coreos() -> Distribution {
    let mut units = upstream();
    units.extend([
        setup_user(
            "coreos-ignition-setup-user.service",
            "Before=ignition-fetch-offline.service ignition-fetch.service",
        ),
        unit(
            "coreos-enable-network.service",
            "ConditionPathExists=|/run/ignition/neednet\nAfter=ignition-fetch-offline.service dracut-cmdline.service\n\
             Before=ignition-fetch.service nm-initrd.service dracut-initqueue.service",
            "true",
        ),
        unit(
            "coreos-copy-firstboot-network.service",
            "After=dracut-cmdline.service coreos-enable-network.service\n\
             Before=nm-initrd.service dracut-initqueue.service ignition-kargs.service",
            "true",
        )
        .apart(),
        // All of them require the device of the boot partition, too.
        unit(
            "coreos-unique-boot.service",
            "After=systemd-udevd.service\nBefore=ignition-diskful.target coreos-gpt-setup.service coreos-boot-edit.service",
            "true",
        ),
        unit(
            "coreos-gpt-setup.service",
            "After=coreos-copy-firstboot-network.service coreos-unique-boot.service\n\
             Before=systemd-fsck-root.service ignition-diskful.target ignition-ostree-uuid-boot.service ignition-kargs.service",
            "true",
        )
        .by_default(),
        unit(
            "ignition-ostree-uuid-boot.service",
            "After=coreos-gpt-setup.service\nBefore=ignition-kargs.service",
            "true",
        )
        .by_default(),
        unit(
            "coreos-boot-edit.service",
            "After=ignition-files.service\nBefore=initrd.target initrd-parse-etc.service",
            "true",
        )
        .by_default()
        .apart(),
        unit(
            "coreos-post-ignition-checks.service",
            "After=ignition-files.service\nBefore=ignition-complete.target",
            "true",
        )
        .by_default(),
        unit(
            "coreos-kargs-reboot.service",
            "ConditionPathExists=/run/coreos-kargs-reboot\nAfter=ignition-kargs.service\nBefore=ignition-disks.service",
            "systemctl reboot --force",
        ),
    ]);
    Distribution {
        name: "Fedora CoreOS",
        units,
        order: &[
            "coreos-ignition-setup-user.service",
            "ignition-fetch-offline.service",
            "coreos-enable-network.service",
            "ignition-fetch.service",
            "ignition-kargs.service",
            "ignition-disks.service",
        ],
    }
}

/// Returns Fedora CoreOS with its root on iSCSI, which has no fetch-offline stage.
pub fn fedora_coreos_on_iscsi() -> Distribution {
    let mut distribution = fedora_coreos();
    distribution.name = "Fedora CoreOS, root on iSCSI";
    distribution.units.retain(|unit| unit.name != "ignition-fetch-offline.service");
    distribution
}

pub fn rhel_coreos() -> Distribution {
    let mut distribution = fedora_coreos();
    distribution.name = "RHEL CoreOS";
    distribution.units.extend([
        unit(
            "rhcos-fips.service",
            "After=ignition-fetch.service ignition-kargs.service\nBefore=coreos-kargs-reboot.service ignition-disks.service",
            "true",
        ),
        unit(
            "rhcos-fips-finish.service",
            "After=ignition-files.service\nBefore=initrd.target",
            "true",
        )
        .apart(),
    ]);
    distribution
}

pub fn micro_os() -> Distribution {
    let mut units = upstream();
    units.extend([
        setup_user("ignition-setup-user.service", "Before=ignition-fetch-offline.service"),
        unit(
            "combustion-prepare.service",
            "After=ignition-setup-user.service\nBefore=ignition-enable-network.service",
            "true",
        ),
        unit(
            "ignition-enable-network.service",
            "ConditionPathExists=/run/ignition/neednet\nAfter=basic.target ignition-fetch-offline.service\n\
             Before=ignition-fetch.service dracut-initqueue.service nm-initrd.service NetworkManager-initrd.service",
            "true",
        ),
        unit(
            "combustion.service",
            "DefaultDependencies=false\nAfter=ignition-complete.target combustion-prepare.service\nBefore=initrd-parse-etc.service",
            "true",
        )
        .by_default(),
    ]);
    Distribution {
        name: "openSUSE MicroOS",
        units,
        order: &[
            "ignition-setup-user.service",
            "ignition-fetch-offline.service",
            "ignition-enable-network.service",
            "ignition-fetch.service",
            "ignition-disks.service",
        ],
    }
}

/// Returns Flatcar since 4694: `user.ign` is a link to the OEM partition. Up to then `ignition-setup.service` copied it from there.
pub fn flatcar() -> Distribution {
    let units = vec![
        unit(
            "ignition-setup-pre.service",
            "Requires=local-fs-pre.target\nBefore=local-fs-pre.target",
            &format!("set -e; modprobe qemu_fw_cfg; mkdir -p /oem; cp {POINTER} /oem/config.ign"),
        ),
        unit(
            "ignition-setup.service",
            "Requires=local-fs-pre.target ignition-setup-pre.service\nAfter=ignition-setup-pre.service\nBefore=local-fs-pre.target",
            "true",
        ),
        stage(
            "ignition-fetch-offline.service",
            "fetch-offline",
            "Wants=sockets.target paths.target slices.target\nAfter=sockets.target paths.target slices.target\n\
             Requires=local-fs-pre.target ignition-setup.service\nAfter=ignition-setup.service\n\
             Before=local-fs-pre.target ignition-fetch.service",
        ),
        stage(
            "ignition-fetch.service",
            "fetch",
            "ConditionPathExists=/run/ignition/neednet\nConditionPathExists=!/run/ignition.json\n\
             Wants=systemd-networkd.service systemd-resolved.service\n\
             After=ignition-fetch-offline.service network.target systemd-networkd.service systemd-resolved.service\n\
             Requires=local-fs-pre.target ignition-setup.service\nAfter=ignition-setup.service\n\
             Before=local-fs-pre.target ignition-disks.service",
        ),
        unit(
            "ignition-kargs.service",
            "After=ignition-fetch.service ignition-setup.service\nRequires=local-fs-pre.target ignition-setup.service\n\
             Before=local-fs-pre.target ignition-disks.service",
            "true",
        )
        .apart(),
        unit(
            "ignition-disks.service",
            "After=ignition-fetch.service ignition-setup.service systemd-udevd.service\n\
             Requires=local-fs-pre.target ignition-setup.service systemd-udevd.service\n\
             Before=local-fs-pre.target ignition-mount.service initrd-root-device.target sysroot.mount",
            "true",
        ),
        unit(
            "disk-uuid.service",
            "Wants=local-fs-pre.target\nAfter=systemd-udevd.service\n\
             Before=local-fs-pre.target systemd-fsck-root.service ignition-setup.service ignition-disks.service",
            "true",
        ),
        unit(
            "ignition-mount.service",
            "After=ignition-disks.service initrd-root-fs.target\nRequires=initrd-root-fs.target\nBefore=initrd-switch-root.target",
            "true",
        ),
        unit(
            "ignition-files.service",
            "After=ignition-mount.service ignition-setup.service ignition-disks.service initrd-root-fs.target\n\
             Requires=ignition-setup.service ignition-disks.service initrd-root-fs.target\nBefore=initrd-parse-etc.service",
            "true",
        ),
        unit(
            "initrd-setup-root-after-ignition.service",
            "DefaultDependencies=no\nAfter=initrd-root-fs.target ignition-files.service\nBefore=initrd-parse-etc.service",
            "true",
        )
        .by_default(),
        unit(
            "sysroot-boot.service",
            "DefaultDependencies=no\nRequiresMountsFor=/sysroot\nBefore=initrd-switch-root.target",
            "true",
        )
        .by_default(),
        unit(
            "ignition-quench.service",
            "DefaultDependencies=no\nBefore=initrd.target\n\
             Requires=ignition-disks.service ignition-files.service sysroot-boot.service\n\
             After=ignition-disks.service ignition-files.service sysroot-boot.service",
            "true",
        )
        .by_default(),
    ];
    Distribution {
        name: "Flatcar",
        units,
        order: &[
            "ignition-setup-pre.service",
            "ignition-setup.service",
            "ignition-fetch-offline.service",
            "ignition-fetch.service",
            "ignition-kargs.service",
            "ignition-disks.service",
            "local-fs-pre.target",
            "basic.target",
        ],
    }
}

impl Distribution {
    /// Writes the distribution's units into an initrd's tree, in place of those of the same name.
    pub fn write(&self, tree: &Path) {
        let system = tree.join(SYSTEM);
        let requires = system.join("ignition-complete.target.requires");
        fs::create_dir_all(&requires).unwrap();
        for unit in &self.units {
            fs::write(system.join(unit.name), unit.text()).unwrap();
            symlink(format!("../{}", unit.name), requires.join(unit.name)).unwrap();
        }
        if self.name == "Flatcar" {
            fs::create_dir_all(tree.join("usr/lib/ignition")).unwrap();
            symlink("/oem/config.ign", tree.join("usr/lib/ignition/user.ign")).unwrap();
        }
    }
}
