//! Reuse of the distribution's own first-boot mechanism: CoreOS's convention, recognised by each of its parts.
//!
//! 1. A stamp on the boot filesystem, which GRUB turns into the kernel argument `ignition.firstboot` ([`super::grub`]).
//! 2. `ignition/config.ign` there, which `coreos-ignition-setup-user` of the initramfs copies to where Ignition reads it.
//! 3. `coreos-ignition-firstboot-complete` in the booted system, which removes both.
//!
//! All three are in coreos/fedora-coreos-config, and Red Hat's CoreOS has them from there. If one is missing, nothing is arranged: the
//! config would stay there without being applied, or be applied at each boot.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::grub::{self, Grub, STAMP};
use super::system::System;
use crate::delivery;
use crate::failure::{Failure, printable};
use crate::keep::{CONFIG_ON_BOOT, Initramfs};
use crate::pointer::write;

/// Mount point of the boot filesystem.
const BOOT: &str = "/boot";
/// Paths of GRUB's configuration on the boot filesystem, by distribution.
const GRUB_CONFIGS: [&str; 2] = ["/boot/grub2/grub.cfg", "/boot/grub/grub.cfg"];
/// Folder of the boot menu entries (Boot Loader Specification).
const ENTRIES: &str = "/boot/loader/entries";
/// Name of the unit that removes stamp and config in the booted system.
const COMPLETE: &str = "coreos-ignition-firstboot-complete";
/// Folders of systemd units, in order of precedence.
const UNITS: [&str; 2] = ["/etc/systemd/system", "/usr/lib/systemd/system"];
/// The dracut modules that an image has: its initramfs is made of them.
const DRACUT_MODULES: &str = "/usr/lib/dracut/modules.d";
/// Folder that exists on a system that runs from its medium.
const LIVE: &str = "/run/ostree-live";

/// First-boot mechanism of this system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstBoot {
    stamp: PathBuf,
    folder: PathBuf,
    config: PathBuf,
    /// `true` if the stamp can bring kernel arguments.
    pub takes_arguments: bool,
    /// `true` if its initramfs can change the kernel's arguments for good.
    pub changes_kernel_arguments: bool,
}

/// Builds the failure for a system without a usable first-boot mechanism.
fn unsupported(reason: &str, next_step: &str) -> Failure {
    Failure::new("apply-unsupported", reason, next_step)
}

impl FirstBoot {
    /// Recognises the system's first-boot mechanism.
    ///
    /// # Errors
    /// `apply-unsupported`, with the distribution's alternative.
    pub fn find(system: &System, initramfs: Option<&Initramfs>) -> Result<Self, Failure> {
        if system.path(LIVE).exists() {
            let reason = "this system runs from its installation medium, and each of its boots is a first boot";
            return Err(unsupported(reason, "install it to a disk, or boot again with attestation"));
        }
        Self::from_convention(system, initramfs).map_err(|missing| distribution_failure(system, &missing))
    }

    fn from_convention(system: &System, initramfs: Option<&Initramfs>) -> Result<Self, String> {
        if cfg!(target_arch = "s390x") {
            return Err("zipl reads the stamp when it writes the boot loader, not at the boot".to_owned());
        }
        let config = GRUB_CONFIGS.iter().find_map(|path| system.text(path));
        let config = config.ok_or("/boot has no GRUB configuration")?;
        let grub = Grub::parse(&config, &system.texts(ENTRIES, ".conf")).map_err(|missing| format!("GRUB {missing}"))?;
        // GRUB knows the filesystem, and not where it is mounted.
        let own = system.is_mount_point(BOOT);
        let expected = if own { format!("/{STAMP}") } else { format!("{BOOT}/{STAMP}") };
        if grub.stamp != expected {
            return Err(format!(
                "GRUB looks for the stamp {}, but this program would create {expected}",
                printable(&grub.stamp)
            ));
        }
        completes(system)?;
        // The initramfs of this boot knows better than the modules of which it may not have been made.
        let (copies_config, changes_kernel_arguments) = match initramfs {
            Some(said) => (said.copies_config, said.changes_kernel_arguments),
            None => (
                in_dracut_module(system, "coreos-ignition-setup-user.sh", CONFIG_ON_BOOT),
                in_dracut_module(system, "coreos-kargs.sh", "rdcore kargs"),
            ),
        };
        if !copies_config {
            return Err("the initramfs does not read a config from /boot/ignition/config.ign".to_owned());
        }
        let folder = system.path(BOOT);
        Ok(Self {
            stamp: folder.join(STAMP),
            config: folder.join(CONFIG_ON_BOOT),
            folder: folder.join("ignition"),
            takes_arguments: grub.takes_arguments,
            changes_kernel_arguments,
        })
    }

    /// Sees that nothing is arranged yet.
    ///
    /// # Errors
    /// `apply-arranged`.
    pub fn is_free(&self) -> Result<(), Failure> {
        match self.stamp.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            _ => Err(Failure::new(
                "apply-arranged",
                format!("{} exists: Ignition already runs at the next boot", self.stamp.display()),
                "reboot; or run `attest-node config undo`, and try again",
            )),
        }
    }

    /// Checks that the boot filesystem can be written. If it is mounted read-only, as on CoreOS, it is made writable in a mount namespace
    /// of this program's own, as CoreOS's own programs do. For that, this program restarts itself.
    ///
    /// # Errors
    /// `apply-failed`.
    pub fn make_writable(&self, system: &System) -> Result<(), Failure> {
        let tried = write::probe(&self.stamp);
        let read_only = matches!(&tried, Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem);
        if !read_only || !system.is_this_one() {
            return tried.map_err(|error| self.failed(&error));
        }
        if !delivery::has_own_mounts() {
            return Err(self.failed(&in_own_namespace()));
        }
        let mut mount = Command::new("mount");
        let output = mount.args(["-o", "remount,rw", BOOT]).stdin(Stdio::null()).output();
        match output {
            Ok(output) if output.status.success() => write::probe(&self.stamp).map_err(|error| self.failed(&error)),
            Ok(output) => Err(self.failed(&io::Error::other(printable(String::from_utf8_lossy(&output.stderr).trim())))),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Puts the config there, and the stamp last: without it nothing is applied. If that fails, nothing of the config stays.
    ///
    /// # Errors
    /// `apply-failed`.
    pub fn arrange(&self, config: &[u8], arguments: &[&str]) -> Result<(), Failure> {
        self.arrange_by(write::replace, config, arguments)
    }

    fn arrange_by(&self, replace: impl Fn(&Path, &[u8]) -> io::Result<()>, config: &[u8], arguments: &[&str]) -> Result<(), Failure> {
        self.private_folder().map_err(|error| self.failed(&error))?;
        let arranged = replace(&self.config, config)
            .and_then(|()| sync(&self.folder))
            .and_then(|()| replace(&self.stamp, grub::stamp(arguments).as_bytes()));
        arranged.map_err(|error| {
            let _ = (self.remove_stamp(), self.remove_config());
            self.failed(&error)
        })
    }

    /// Takes it back, the stamp first. Returns whether anything was removed.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn undo(&self) -> io::Result<bool> {
        let stamp = self.remove_stamp()?;
        Ok(self.remove_config()? || stamp)
    }

    fn remove_stamp(&self) -> io::Result<bool> {
        write::tidy(&self.stamp);
        let was_there = removed(fs::remove_file(&self.stamp))?;
        sync(&self.stamp)?;
        Ok(was_there)
    }

    fn remove_config(&self) -> io::Result<bool> {
        write::tidy(&self.config);
        let was_there = removed(fs::remove_file(&self.config))?;
        // Others may have something in it.
        let _ = fs::remove_dir(&self.folder);
        sync(&self.stamp)?;
        Ok(was_there)
    }

    /// Creates the config's folder, if it is missing, and restricts access to its owner.
    fn private_folder(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !self.folder.symlink_metadata()?.is_dir() {
            return Err(io::Error::new(
                ErrorKind::NotADirectory,
                format!("{} is not a folder", self.folder.display()),
            ));
        }
        fs::set_permissions(&self.folder, Permissions::from_mode(0o700))
    }

    /// Converts an I/O error of the boot filesystem into `apply-failed`.
    pub fn failed(&self, error: &io::Error) -> Failure {
        Failure::new(
            "apply-failed",
            format!(
                "{} cannot be written: {error}",
                self.stamp.parent().unwrap_or(&self.stamp).display()
            ),
            "run this command as root, and make the boot filesystem writable with `mount -o remount,rw /boot`; nothing is applied at the next boot",
        )
    }
}

/// Checks that the booted system removes the stamp and the config after that boot.
fn completes(system: &System) -> Result<(), String> {
    let unit = UNITS.iter().find_map(|folder| system.text(&format!("{folder}/{COMPLETE}.service")));
    let unit = unit.ok_or_else(|| format!("{COMPLETE}.service, which would remove the config after that boot, is missing"))?;
    let program = unit.lines().find_map(|line| line.trim().strip_prefix("ExecStart="));
    let script = program
        .and_then(|program| system.text(program.split_whitespace().next()?))
        .unwrap_or_default();
    let removes = |path: &str| {
        script
            .lines()
            .map(str::trim)
            .any(|line| line.starts_with("rm ") && line.split_whitespace().any(|word| word == path))
    };
    match removes(&format!("{BOOT}/{STAMP}")) && removes("/boot/ignition") {
        true => Ok(()),
        false => Err(format!("{COMPLETE}.service does not remove the config after that boot")),
    }
}

/// Returns whether a script of a dracut module of the image contains a word.
fn in_dracut_module(system: &System, script: &str, word: &str) -> bool {
    let modules = fs::read_dir(system.path(DRACUT_MODULES)).into_iter().flatten().flatten();
    let mut names = modules.filter_map(|module| module.file_name().into_string().ok());
    names.any(|module| {
        let text = system.text(&format!("{DRACUT_MODULES}/{module}/{script}"));
        text.is_some_and(|text| text.contains(word))
    })
}

/// Builds the failure that tells the administrator the distribution's alternative.
fn distribution_failure(system: &System, missing: &str) -> Failure {
    match system.os_release("ID").as_deref() {
        Some("flatcar") => unsupported(
            "Flatcar's Ignition reads the config from the OEM partition, and no service removes it there after the boot",
            "fetch the config with `attest-node config fetch --out FILE`, and reinstall this machine with it",
        ),
        Some("opensuse-microos" | "sle-micro" | "sl-micro" | "opensuse-leap-micro") => unsupported(
            "Ignition of openSUSE MicroOS reads a config only from a filesystem that is labelled \"ignition\"",
            "fetch the config with `attest-node config fetch --out FILE`, put it as ignition/config.ign on a medium with that label, boot once with ignition.firstboot on the \
             kernel command line, and remove the medium",
        ),
        _ => unsupported(
            &format!("this system has no way to repeat a first boot: {missing}"),
            "fetch the config with `attest-node config fetch --out FILE`, and reinstall this machine with it",
        ),
    }
}

/// Restarts this program with a mount namespace of its own. Returns only with an error.
fn in_own_namespace() -> io::Error {
    // What the kernel was given: with the loader, where the program has one of its own.
    let given = match fs::read("/proc/self/cmdline") {
        Ok(given) => given,
        Err(error) => return error,
    };
    let words = given.split(|byte| *byte == 0).map(<[u8]>::to_vec);
    let words = words
        .map(std::os::unix::ffi::OsStringExt::from_vec)
        .collect::<Vec<std::ffi::OsString>>();
    let [words @ .., _] = words.as_slice() else {
        return io::Error::other("cannot determine the path of this program");
    };
    Command::new("unshare").args(["--mount", "--"]).args(words).exec()
}

fn removed(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The folder of a path, to the disk.
fn sync(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

#[cfg(test)]
pub(super) mod tests;
