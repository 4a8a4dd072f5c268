//! Machines with UEFI: Debian's OVMF with Secure Boot by our own keys, the images that it boots, and the measurements until the kernel ran.
//!
//! Reading order: [`SecureBootKeys`] (the accepted keys), `variables` (how they get into the firmware), [`Firmware`], [`loaders`] (unified
//! kernel images, systemd-boot, GRUB and shim), [`boot_disk`] (their disks), [`MachinePcrs`] (the VM's report).

pub mod boot_disk;
mod keys;
pub mod loaders;
mod measured;
mod variables;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use boot_disk::BootDisk;
pub use keys::{SecureBootKeys, SelfSignedKey};
pub use measured::MachinePcrs;

use crate::images::{DebianRelease, Images};

/// Firmware of a machine: the code, which all machines share, and its own variables.
#[derive(Debug)]
pub struct Firmware {
    code: PathBuf,
    variables: PathBuf,
}

impl Firmware {
    /// Creates firmware that only boots images signed by one of these keys; its variables are in `folder`.
    pub fn with_secure_boot(keys: &SecureBootKeys, folder: &Path) -> Result<Self> {
        Self::new(folder, |store| variables::enrol(store, &keys.variables()))
    }

    /// Creates firmware without keys, which boots everything.
    pub fn without_secure_boot(folder: &Path) -> Result<Self> {
        Self::new(folder, |_| Ok(()))
    }

    /// Returns a release's firmware with Microsoft's keys, as its package has them.
    pub fn with_microsoft_keys(release: DebianRelease, folder: &Path) -> Result<Self> {
        let images = Images::firmware(release)?;
        let variables = folder.join("variables.fd");
        let enrolled = images.firmware_file("usr/share/OVMF/OVMF_VARS_4M.ms.fd");
        fs::copy(&enrolled, &variables).with_context(|| format!("copying {}", enrolled.display()))?;
        Ok(Self {
            code: images.firmware_file("usr/share/OVMF/OVMF_CODE_4M.ms.fd"),
            variables,
        })
    }

    fn new(folder: &Path, enrol: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let images = Images::firmware(DebianRelease::Bookworm)?;
        let empty = images.firmware_file("usr/share/OVMF/OVMF_VARS_4M.fd");
        let mut store = fs::read(&empty).with_context(|| format!("reading {}", empty.display()))?;
        enrol(&mut store)?;
        let variables = folder.join("variables.fd");
        fs::write(&variables, store).with_context(|| format!("writing {}", variables.display()))?;
        Ok(Self {
            code: images.firmware_file("usr/share/OVMF/OVMF_CODE_4M.secboot.fd"),
            variables,
        })
    }

    #[must_use]
    pub fn code(&self) -> &Path {
        &self.code
    }

    #[must_use]
    pub fn variables(&self) -> &Path {
        &self.variables
    }
}
