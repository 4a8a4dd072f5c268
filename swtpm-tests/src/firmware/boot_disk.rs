//! Boot disks for firmware: the raw image of a disk with a partition table (GPT). `EFI/BOOT/BOOTX64.EFI` is on its EFI system partition.
//! Firmware starts this file if no boot entry names another one.

use std::fs::{self, File};
use std::io::{Cursor, Write as _};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use gpt::GptConfig;
use gpt::mbr::ProtectiveMBR;
use gpt::partition_types::{EFI, LINUX_FS, Type};

use crate::images::run;

const MIB: usize = 1024 * 1024;
/// Space that a file system needs in addition to its files, and a disk in addition to its file systems.
const SPARE_BYTES: usize = 4 * MIB;
/// Size of a disk's sector, the unit of its partition table.
const SECTOR_BYTES: usize = 512;

/// Boot entry for a kernel on a file system of its own (UAPI group, Boot Loader Specification).
const ENTRY: &str = "title Tests\nlinux /vmlinuz\ninitrd /initrd.img\n";

/// Disk to boot from.
#[derive(Debug)]
pub struct BootDisk {
    image: PathBuf,
}

/// Files for a disk that boots with GRUB.
#[derive(Debug, Clone)]
pub struct GrubFiles {
    /// Starts GRUB in the firmware's place.
    pub shim: Option<PathBuf>,
    pub grub: PathBuf,
    /// `/grub/grub.cfg` on the EFI system partition.
    pub config: PathBuf,
    /// `/vmlinuz` and `/initrd.img` on the partition that has the kernel.
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

/// Files for a disk whose boot loader reads an entry of type #1.
#[derive(Debug, Clone)]
pub struct EntryFiles {
    /// systemd-boot, or GRUB.
    pub loader: PathBuf,
    /// The entry, with the paths of the layout.
    pub entry: PathBuf,
    pub kernel: PathBuf,
    pub initrd: PathBuf,
}

/// Space for another initrd on a disk that has an entry.
const INITRD_SPARE_BYTES: usize = 32 * MIB;

/// Partition with the kernel and the other files that GRUB loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelOn {
    /// First partition, together with GRUB.
    SystemPartition,
    /// Second partition: ext4, named `boot`, with an entry that names the kernel.
    BootPartition,
}

impl GrubFiles {
    /// Returns the options of `reference-values predict` for these files.
    #[must_use]
    pub fn arguments(&self) -> Vec<(&'static str, &Path)> {
        let shim = self.shim.iter().map(|shim| ("--shim", shim.as_path()));
        let others = [
            ("--grub", self.grub.as_path()),
            ("--grub-config", &self.config),
            ("--kernel", &self.kernel),
            ("--initrd", &self.initrd),
        ];
        shim.chain(others).collect()
    }
}

impl BootDisk {
    /// Creates a disk with one image, in `folder`.
    pub fn uki(image: &Path, folder: &Path) -> Result<Self> {
        Self::new(folder, &fat(&[("EFI/BOOT/BOOTX64.EFI", image)])?, None)
    }

    /// Creates a disk with systemd-boot and the unified kernel image that it starts, in `folder`.
    pub fn systemd_boot(loader: &Path, image: &Path, folder: &Path) -> Result<Self> {
        // As `bootctl install` lays it out.
        let system = fat(&[
            ("EFI/BOOT/BOOTX64.EFI", loader),
            ("EFI/systemd/systemd-bootx64.efi", loader),
            ("EFI/Linux/linux.efi", image),
        ]);
        Self::new(folder, &system?, None)
    }

    /// Creates a disk with GRUB and the files that it loads, in `folder`.
    pub fn grub(files: &GrubFiles, kernel_on: KernelOn, folder: &Path) -> Result<Self> {
        let mut system = vec![("grub/grub.cfg", files.config.as_path())];
        match &files.shim {
            Some(shim) => system.extend([("EFI/BOOT/BOOTX64.EFI", shim.as_path()), ("EFI/BOOT/grubx64.efi", &files.grub)]),
            None => system.push(("EFI/BOOT/BOOTX64.EFI", &files.grub)),
        }
        let loaded = [("vmlinuz", files.kernel.as_path()), ("initrd.img", &files.initrd)];
        if kernel_on == KernelOn::SystemPartition {
            system.extend(loaded);
            return Self::new(folder, &fat(&system)?, None);
        }
        let entry = folder.join("entry.conf");
        fs::write(&entry, ENTRY)?;
        let boot = ext4(&[&loaded[..], &[("loader/entries/tests.conf", &entry)]].concat(), &[], 0, folder)?;
        Self::new(folder, &fat(&system)?, Some(&boot))
    }

    /// Creates a disk with the files where Debian's packages put them, and the kernel next to GRUB; in `folder`.
    pub fn debian(files: &GrubFiles, folder: &Path) -> Result<Self> {
        let shim = files.shim.as_deref().context("Debian's chain begins with shim")?;
        let system = fat(&[
            ("EFI/BOOT/BOOTX64.EFI", shim),
            ("EFI/BOOT/grubx64.efi", &files.grub),
            ("EFI/debian/shimx64.efi", shim),
            ("EFI/debian/grubx64.efi", &files.grub),
            ("EFI/debian/grub.cfg", &files.config),
            ("vmlinuz", &files.kernel),
            ("initrd.img", &files.initrd),
        ]);
        Self::new(folder, &system?, None)
    }

    /// Creates a disk with systemd-boot, and entry, kernel and initrd where kernel-install puts them, in `folder`.
    pub fn with_systemd_boot_entry(files: &EntryFiles, folder: &Path) -> Result<Self> {
        let system = fat_with_room(
            &[
                ("EFI/BOOT/BOOTX64.EFI", &files.loader),
                ("loader/entries/id-6.1.conf", &files.entry),
                ("id/6.1/linux", &files.kernel),
                ("id/6.1/initrd", &files.initrd),
            ],
            INITRD_SPARE_BYTES,
        );
        Self::new(folder, &system?, None)
    }

    /// Creates a disk with GRUB, and a boot partition as OSTree lays it out, in `folder`. [`Self::write_grub_config`] makes it bootable.
    pub fn with_ostree_entry(files: &EntryFiles, folder: &Path) -> Result<Self> {
        let boot = [
            ("loader.1/entries/ostree-1.conf", files.entry.as_path()),
            ("ostree/coreos-0a/vmlinuz", &files.kernel),
            ("ostree/coreos-0a/initramfs.img", &files.initrd),
        ];
        let link = [("loader", "loader.1")];
        let boot = ext4(&boot, &link, INITRD_SPARE_BYTES, folder)?;
        let system = fat(&[("EFI/BOOT/BOOTX64.EFI", files.loader.as_path())])?;
        Self::new(folder, &system, Some(&boot))
    }

    /// Writes GRUB's config with the commands that blscfg makes of the entry on the boot partition. Returns its copy in `folder`.
    pub fn write_grub_config(&self, folder: &Path) -> Result<PathBuf> {
        let disk = GptConfig::new().open(&self.image)?;
        let (size, partitions) = (*disk.logical_block_size(), disk.partitions());
        let start = |number| {
            let partition = partitions.get(&number).context("a partition")?;
            partition.bytes_start(size).context("its start")
        };
        let on_disk = PathBuf::from(format!("{}?offset={}", self.image.display(), start(2)?));

        let entry = run(Command::new("/usr/sbin/debugfs")
            .args(["-R", "cat /loader/entries/ostree-1.conf"])
            .arg(on_disk))?;
        let values = |key: &str| -> Vec<&str> { entry.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).collect() };
        let (kernel, options, initrds) = (values("linux").concat(), values("options").concat(), values("initrd").join(" "));
        let config = folder.join("grub.cfg");
        fs::write(
            &config,
            format!("set root=hd0,gpt2\nlinux {kernel} {options}\ninitrd {initrds}\nboot\n"),
        )?;
        let drive = format!("{}@@{}", self.image.display(), start(1)?);
        run(Command::new("mmd").args(["-D", "s", "-i", &drive, "::/grub"]))?;
        run(Command::new("mcopy")
            .args(["-o", "-i", &drive])
            .arg(&config)
            .arg("::/grub/grub.cfg"))?;
        Ok(config)
    }

    fn new(folder: &Path, system: &[u8], boot: Option<&[u8]>) -> Result<Self> {
        let image = folder.join("boot-disk.raw");
        let file = File::create(&image).with_context(|| format!("creating {}", image.display()))?;
        let bytes = system.len() + boot.map_or(0, <[u8]>::len) + SPARE_BYTES;
        file.set_len(u64::try_from(bytes)?)?;
        let mut disk = GptConfig::new().writable(true).create(&image)?;
        let size = *disk.logical_block_size();
        let mut put = |name: &str, kind: Type, bytes: &[u8]| -> Result<()> {
            let id = disk.add_partition(name, u64::try_from(bytes.len())?, kind, 0, None)?;
            let partition = disk.partitions().get(&id).context("the partition that was added")?;
            Ok(file.write_all_at(bytes, partition.bytes_start(size)?)?)
        };
        put("EFI-SYSTEM", EFI, system)?;
        if let Some(boot) = boot {
            put("boot", LINUX_FS, boot)?;
        }
        // Firmware looks at the table only if the disk's first sector says that there is one.
        let sectors = u32::try_from(bytes / SECTOR_BYTES)?;
        ProtectiveMBR::with_lb_size(sectors - 1).overwrite_lba0(disk.device_mut())?;
        disk.write()?;
        Ok(Self { image })
    }

    /// Returns the path of the raw image.
    #[must_use]
    pub fn image(&self) -> &Path {
        &self.image
    }
}

/// Creates a FAT file system with these files, and returns its bytes.
fn fat(files: &[(&str, &Path)]) -> Result<Vec<u8>> {
    fat_with_room(files, 0)
}

/// Creates such a file system with further space.
fn fat_with_room(files: &[(&str, &Path)], spare: usize) -> Result<Vec<u8>> {
    let mut contents = Vec::new();
    for (path, file) in files {
        contents.push((path, fs::read(file).with_context(|| format!("reading {}", file.display()))?));
    }
    let mut bytes = Cursor::new(vec![
        0;
        room(contents.iter().map(|(_, content)| content.len()).sum::<usize>() + spare)
    ]);
    fatfs::format_volume(&mut bytes, FormatVolumeOptions::new())?;
    let system = FileSystem::new(&mut bytes, FsOptions::new())?;
    for (path, content) in &contents {
        let mut folder = system.root_dir();
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in folders.split('/').filter(|part| !part.is_empty()) {
            folder = folder.create_dir(part)?;
        }
        folder.create_file(name)?.write_all(content)?;
    }
    system.unmount()?;
    Ok(bytes.into_inner())
}

/// Creates an ext4 file system with files, links and further space in `folder`, and returns its bytes.
fn ext4(files: &[(&str, &Path)], links: &[(&str, &str)], spare: usize, folder: &Path) -> Result<Vec<u8>> {
    let (content, image) = (folder.join("boot-partition"), folder.join("boot-partition.ext4"));
    let mut bytes = 0;
    for (path, file) in files {
        let target = content.join(path);
        fs::create_dir_all(target.parent().context("a folder")?)?;
        bytes += fs::copy(file, &target).with_context(|| format!("copying {}", file.display()))?;
    }
    for (path, target) in links {
        symlink(target, content.join(path)).with_context(|| format!("linking {path}"))?;
    }
    let kib = room(usize::try_from(bytes)? + spare) / 1024;
    // GRUB 2.06 reads no file system with the first one.
    let features = "^metadata_csum_seed,^orphan_file";
    let mut make = Command::new("/sbin/mke2fs");
    make.args(["-q", "-t", "ext4", "-L", "boot", "-O", features, "-d"])
        .args([&content, &image]);
    run(make.arg(format!("{kib}k")))?;
    fs::read(&image).with_context(|| format!("reading {}", image.display()))
}

/// Returns the size of a file system for this number of bytes in files.
fn room(bytes: usize) -> usize {
    // A journal, inodes and the like grow with it.
    (bytes + bytes / 4 + SPARE_BYTES).next_multiple_of(MIB)
}
