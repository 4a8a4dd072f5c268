//! Changes Debian's whole system so that its first boot works like that of CoreOS. It adds a stamp, which the boot loader turns into a
//! kernel argument, and a config on the boot filesystem. The initramfs hands the config to Ignition; a unit removes both. Names and order
//! are those of coreos/fedora-coreos-config (`overlay.d`); the commands are this file's. `/boot` is a folder of the root filesystem here.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::images::{read_from_disk, run};

/// Path of the stamp of a first boot.
pub const STAMP: &str = "/boot/ignition.firstboot";
/// Path of the config that Ignition gets on a first boot.
pub const CONFIG: &str = "/boot/ignition/config.ign";
/// Path of GRUB's config.
const GRUB: &str = "/boot/grub/grub.cfg";
/// Addition to Debian's config: the network is requested on first boots only.
const GRUB_CONFIG: &str = r#"set ignition_firstboot=""
if [ -f "/boot/ignition.firstboot" ]; then
    set ignition_network_kcmdline="ip=dhcp rd.neednet=1"
    source "/boot/ignition.firstboot"
    set ignition_firstboot="ignition.firstboot ${ignition_network_kcmdline}"
fi
linux /vmlinuz root=LABEL=root rw $ignition_firstboot
"#;
const SETUP_UNIT: &str = r"[Unit]
ConditionPathExists=/etc/initrd-release
DefaultDependencies=false
Before=ignition-fetch-offline.service ignition-fetch.service
Requires=dev-disk-by\x2dlabel-root.device
After=dev-disk-by\x2dlabel-root.device

[Service]
Type=oneshot
RemainAfterExit=yes
MountFlags=slave
ExecStart=/usr/sbin/coreos-ignition-setup-user
";
const SETUP: &str = "#!/bin/sh
set -e
mkdir -p /run/boot-partition
mount -o ro /dev/disk/by-label/root /run/boot-partition
config=/run/boot-partition/boot/ignition/config.ign
[ -e $config ] || exit 0
[ -w /usr ] || mount -o remount,bind,rw /usr
mkdir -p /usr/lib/ignition
cp $config /usr/lib/ignition/user.ign
";
const COMPLETE_UNIT: &str = "[Unit]
ConditionKernelCommandLine=ignition.firstboot

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/libexec/coreos-ignition-firstboot-complete
";
const COMPLETE: &str = "#!/bin/sh
set -e
rm -rf /boot/ignition
rm /boot/ignition.firstboot
";
/// Preset between Ignition's and Debian's: units that Ignition does not enable stay as in the image on a first boot.
const PRESET: &str = "disable *\n";

/// Writes a file in a tree, and creates its folders.
pub fn write(tree: &Path, path: &str, mode: u32, text: &str) -> Result<()> {
    let file = tree.join(path);
    fs::create_dir_all(file.parent().context("a file's folder")?)?;
    fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).context("setting a mode")
}

/// Creates a link in a tree, with its folders.
pub fn link(tree: &Path, path: &str, target: &str) -> Result<()> {
    let file = tree.join(path);
    fs::create_dir_all(file.parent().context("a link's folder")?)?;
    symlink(target, &file).with_context(|| format!("linking {}", file.display()))
}

/// Writes the additions to the initramfs into `tree`.
pub fn initramfs(tree: &Path) -> Result<()> {
    let units = "usr/lib/systemd/system";
    write(tree, &format!("{units}/coreos-ignition-setup-user.service"), 0o644, SETUP_UNIT)?;
    write(tree, "usr/sbin/coreos-ignition-setup-user", 0o755, SETUP)?;
    let required = format!("{units}/ignition-complete.target.requires/coreos-ignition-setup-user.service");
    link(tree, &required, "../coreos-ignition-setup-user.service")
}

/// Writes the additions to the disk into `tree`, for a system that has never booted.
pub fn disk(tree: &Path) -> Result<()> {
    write(tree, STAMP.trim_start_matches('/'), 0o644, "")?;
    write(tree, GRUB.trim_start_matches('/'), 0o644, GRUB_CONFIG)?;
    let units = "usr/lib/systemd/system";
    write(
        tree,
        &format!("{units}/coreos-ignition-firstboot-complete.service"),
        0o644,
        COMPLETE_UNIT,
    )?;
    write(tree, "usr/libexec/coreos-ignition-firstboot-complete", 0o755, COMPLETE)?;
    let wanted = format!("{units}/basic.target.wants/coreos-ignition-firstboot-complete.service");
    link(tree, &wanted, "../coreos-ignition-firstboot-complete.service")?;
    write(tree, "etc/systemd/system-preset/30-others.preset", 0o644, PRESET)?;
    // It would ask questions on the console.
    link(tree, "etc/systemd/system/systemd-firstboot.service", "/dev/null")
}

/// Copies a tree onto an ext4 image without mounting it. Existing files are not replaced.
pub fn add_to_disk(image: &Path, tree: &Path) -> Result<()> {
    let mut commands = String::new();
    add(tree, tree, &mut commands)?;
    let script = image.with_extension("debugfs");
    fs::write(&script, commands).with_context(|| format!("writing {}", script.display()))?;
    run(Command::new("/usr/sbin/debugfs").arg("-w").arg("-f").args([&script, image]))?;
    Ok(())
}

fn add(tree: &Path, folder: &Path, commands: &mut String) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let inside = Path::new("/").join(path.strip_prefix(tree)?);
        let (from, to) = (path.display(), inside.display());
        let metadata = path.symlink_metadata()?;
        let line = match () {
            () if metadata.is_symlink() => format!("symlink {to} {}", fs::read_link(&path)?.display()),
            // One that is there is said to be there, and nothing else happens.
            () if metadata.is_dir() => format!("mkdir {to}"),
            () => format!("write {from} {to}\nsif {to} mode {:#o}", metadata.permissions().mode()),
        };
        commands.push_str(&line);
        commands.push('\n');
        if metadata.is_dir() {
            add(tree, &path, commands)?;
        }
    }
    Ok(())
}

/// Returns the kernel arguments that the boot loader of such a disk gives in its current state. A shell runs GRUB's part: it has the same
/// `if`, and other words for `set` and `source`.
pub fn kernel_arguments(image: &Path) -> Result<String> {
    let folder = image.with_extension("boot");
    let _ = fs::remove_dir_all(&folder);
    for path in [GRUB, STAMP] {
        let file = folder.join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().context("a file's folder")?)?;
        let Some(content) = read_from_disk(image, path)? else { continue };
        let text = String::from_utf8(content)?;
        let boot = format!("\"{}/boot/", folder.display());
        let translated = text.replace("set ", "").replace("source ", ". ").replace("\"/boot/", &boot);
        fs::write(&file, translated).with_context(|| format!("writing {}", file.display()))?;
    }
    let script = "linux() { shift; echo \"$@\"; }; . \"$0\"";
    let arguments = run(Command::new("sh")
        .args(["-euc", script])
        .arg(folder.join(GRUB.trim_start_matches('/'))))?;
    Ok(arguments.trim().to_owned())
}
