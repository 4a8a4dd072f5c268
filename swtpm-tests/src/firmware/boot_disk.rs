//! What firmware boots: a folder that QEMU shows as a disk, with `EFI/BOOT/BOOTX64.EFI` on it, which firmware starts where it knows of nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A disk to boot from.
#[derive(Debug)]
pub struct BootDisk {
    folder: PathBuf,
}

/// Files for GRUB.
#[derive(Debug, Clone, Copy)]
pub struct GrubFiles<'a> {
    /// Starts GRUB in the firmware's place.
    pub shim: Option<&'a Path>,
    pub grub: &'a Path,
    pub config: &'a str,
    /// `/vmlinuz` on the disk.
    pub kernel: &'a Path,
    /// `/initrd.img` on the disk.
    pub initrd: &'a Path,
}

impl BootDisk {
    /// A disk with one image, in `folder`.
    pub fn uki(image: &Path, folder: &Path) -> Result<Self> {
        let disk = Self::new(folder)?;
        disk.put(image, "EFI/BOOT/BOOTX64.EFI")?;
        Ok(disk)
    }

    /// A disk with GRUB and what it loads, in `folder`.
    pub fn grub(files: &GrubFiles<'_>, folder: &Path) -> Result<Self> {
        let disk = Self::new(folder)?;
        match files.shim {
            Some(shim) => {
                disk.put(shim, "EFI/BOOT/BOOTX64.EFI")?;
                disk.put(files.grub, "EFI/BOOT/grubx64.efi")?;
            }
            None => disk.put(files.grub, "EFI/BOOT/BOOTX64.EFI")?,
        }
        disk.put(files.kernel, "vmlinuz")?;
        disk.put(files.initrd, "initrd.img")?;
        let config = disk.folder.join("grub");
        fs::create_dir_all(&config)?;
        fs::write(config.join("grub.cfg"), files.config)?;
        Ok(disk)
    }

    fn new(folder: &Path) -> Result<Self> {
        let folder = folder.join("boot-disk");
        fs::create_dir_all(folder.join("EFI/BOOT")).with_context(|| format!("creating {}", folder.display()))?;
        Ok(Self { folder })
    }

    fn put(&self, file: &Path, path: &str) -> Result<()> {
        let target = self.folder.join(path);
        fs::copy(file, &target).with_context(|| format!("copying {} to {}", file.display(), target.display()))?;
        Ok(())
    }

    /// What QEMU shows.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
