//! Boot chain in the image of a disk: from the file that firmware starts if it has no boot option, to the kernels.
//!
//! If each step follows from files, the values of PCRs are predicted as if the files had been named. If a boot loader chooses, or its
//! config asks the machine, only the digests of what it can start are known.

use anyhow::{Context, bail};
use attest::tpm::prediction::Prediction;
use attest::tpm::prediction::boot::{BESIDE_PCR, EXTENSIONS_PCR, IMAGES_PCR, SecureBoot, UkiBoot};
use attest::tpm::prediction::bytes::Bytes;
use attest::tpm::prediction::grub::{COMMANDS_PCR, FILES_PCR, GrubBoot, GrubConfig, predict_config};
use attest::tpm::prediction::linux::{CommandLine, Kernel};
use attest::tpm::prediction::loader::is_systemd_boot;
use attest::tpm::prediction::parts::{BootParts, predict_images};
use attest::tpm::prediction::pe::PeImage;
use attest::tpm::prediction::uki::Uki;

use super::Files;
use super::disk_file::{DiskFile, FoundKernel, image, wanted};
use super::grub_files::{GrubFileSource, grub_files};
use super::volume::{Disk, Volume};

/// The folder and the files that firmware starts by itself (UEFI 2.10, 3.5.1.1), with what shim starts next to it, and what it starts in the place of that if it
/// is there: a program that makes boot options, and starts another shim.
const FALLBACK: &str = "EFI/BOOT";
const FIRST: [(&str, &str, &str); 2] = [
    ("bootx64.efi", "grubx64.efi", "fbx64.efi"),
    ("bootaa64.efi", "grubaa64.efi", "fbaa64.efi"),
];

/// Folders in which boot loaders look for unified kernel images, and for entries (UAPI group, Boot Loader Specification).
const UNIFIED: &str = "EFI/Linux";
const ENTRIES: [&str; 2] = ["loader/entries", "boot/loader/entries"];
/// Folders of files that systemd's stub takes in addition to the image and the folder that is named like it (systemd-stub(7)).
const GIVEN: [&str; 2] = ["loader/addons", "loader/credentials"];
const GIVEN_SUFFIX: &str = ".extra.d";
/// Folders of kernels that no entry names: Debian's, and Flatcar's.
const KERNEL_FOLDERS: [&str; 3] = ["", "boot", "flatcar"];
const KERNEL_PREFIX: &str = "vmlinuz";

/// Most kernels and unified kernel images that are read: some hundred MiB each.
const KERNELS_LIMIT: usize = 16;
/// Bytes of an image's component list (SBAT) that are read: Debian's have 400.
const SBAT_LIMIT_BYTES: usize = 64 * 1024;
/// Largest entry of a boot loader.
const ENTRY_LIMIT_BYTES: usize = 64 * 1024;

/// Kind of an image, by its own description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImageFormat {
    Shim,
    Grub,
    SystemdBoot,
    UnifiedKernelImage,
    /// The loader that makes boot options, and starts shim again.
    Fallback,
    Other,
}

/// What a disk boots.
pub(crate) struct PredictedDisk<'d> {
    /// Images in boot order, from firmware on.
    loaders: Vec<(ImageFormat, DiskFile<'d>)>,
    unified: Vec<DiskFile<'d>>,
    kernels: Vec<FoundKernel<'d>>,
    /// The files that GRUB reads, if that is the last loader.
    grub: Option<GrubFileSource<'d>>,
    /// Files that systemd's stub would take in addition to an image.
    given: Vec<String>,
    /// Images that are there, and that nothing on the way from firmware to the kernel starts.
    unused_images: Vec<String>,
}

/// Finds what the disk boots.
pub(crate) fn read(disk: &Disk) -> anyhow::Result<PredictedDisk<'_>> {
    let volumes = || std::iter::once(&disk.system).chain(disk.other_volumes.iter().map(|(_, volume)| volume));
    let loaders = loaders(&disk.system)?;
    let beside = other_images(&disk.system, &loaders)?;
    let (mut unified, mut kernels) = (Vec::new(), Vec::new());
    let first = loaders.first().filter(|(stage, _)| *stage == ImageFormat::UnifiedKernelImage);
    let mut given = given(&disk.system, first.map(|(_, found)| found.path.as_str()))?;
    for volume in volumes() {
        let names = volume.names(UNIFIED)?;
        for path in names.iter().filter(|name| is_image(name)).map(|name| format!("{UNIFIED}/{name}")) {
            check_kernel_limit(unified.len())?;
            unified.push(wanted(volume, &path)?);
            given.extend(self::given(volume, Some(&path))?);
        }
        kernels.extend(kernels_of(volume)?);
        check_kernel_limit((unified.len() + kernels.len()).saturating_sub(1))?;
    }
    let grub = match loaders.last() {
        Some((ImageFormat::Grub, grub)) => Some(grub_files(disk, grub)?),
        _ => None,
    };
    Ok(PredictedDisk {
        loaders,
        unified,
        kernels,
        grub,
        given,
        unused_images: beside,
    })
}

/// Fails if there are as many kernels already as are read.
fn check_kernel_limit(kernels: usize) -> anyhow::Result<()> {
    if kernels >= KERNELS_LIMIT {
        bail!("the disk has more than {KERNELS_LIMIT} kernels: pass the files of the booted kernel instead of --disk");
    }
    Ok(())
}

/// Returns the files that the stub of the image at this path would take in addition to it.
fn given(volume: &Volume, image: Option<&str>) -> anyhow::Result<Vec<String>> {
    let mut given = Vec::new();
    let folder = image.map(|path| format!("{path}{GIVEN_SUFFIX}"));
    for folder in GIVEN.into_iter().chain(folder.as_deref()) {
        given.extend(volume.names(folder)?.into_iter().map(|name| format!("{folder}/{name}")));
    }
    Ok(given)
}

/// Returns the images that firmware starts, and those that they start, as far as no choice is made.
fn loaders(system: &Volume) -> anyhow::Result<Vec<(ImageFormat, DiskFile<'_>)>> {
    let mut loaders = Vec::new();
    for (first, second, instead) in FIRST {
        let Some(found) = find(system, FALLBACK, first)? else { continue };
        let stage = ImageFormat::detect(&found)?;
        loaders.push((stage, found));
        if stage == ImageFormat::Shim {
            loaders.extend(find(system, FALLBACK, instead)?.map(|found| (ImageFormat::Fallback, found)));
            let found = find(system, FALLBACK, second)?.map_or_else(|| elsewhere(system, second), |found| Ok(Some(found)))?;
            let found = found.with_context(|| format!("shim starts {second}, which is not on the EFI system partition"))?;
            loaders.push((ImageFormat::detect(&found)?, found));
        }
        return Ok(loaders);
    }
    bail!("the EFI system partition has no {FALLBACK}/BOOTX64.EFI or BOOTAA64.EFI, which firmware starts without a boot option")
}

/// Returns a file of that name in a distribution's folder: shim is started from there when the fallback has made a boot option of it.
fn elsewhere<'d>(system: &'d Volume, name: &str) -> anyhow::Result<Option<DiskFile<'d>>> {
    for folder in system.names("EFI")?.iter().filter(|folder| !folder.eq_ignore_ascii_case("BOOT")) {
        if let Some(found) = find(system, &format!("EFI/{folder}"), name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the images in boot loaders' folders with other content than the images that were read.
fn other_images(system: &Volume, loaders: &[(ImageFormat, DiskFile<'_>)]) -> anyhow::Result<Vec<String>> {
    let mut beside = Vec::new();
    for folder in system.names("EFI")?.iter().filter(|folder| !folder.eq_ignore_ascii_case("Linux")) {
        for name in system.names(&format!("EFI/{folder}"))?.iter().filter(|name| is_image(name)) {
            let path = format!("EFI/{folder}/{name}");
            if loaders.iter().any(|(_, known)| known.path.eq_ignore_ascii_case(&path)) {
                continue;
            }
            let found = wanted(system, &path)?;
            if !loaders.iter().any(|(_, known)| known.digest == found.digest) {
                beside.push(found.path);
            }
        }
    }
    Ok(beside)
}

/// Returns the kernels that entries name; on a volume without entries, the files that are named like kernels.
fn kernels_of(volume: &Volume) -> anyhow::Result<Vec<FoundKernel<'_>>> {
    let mut kernels = Vec::new();
    for folder in ENTRIES {
        for name in volume.names(folder)?.iter().filter(|name| name.ends_with(".conf")) {
            let path = format!("{folder}/{name}");
            if let Some(text) = volume.read(&path, ENTRY_LIMIT_BYTES)? {
                check_kernel_limit(kernels.len())?;
                kernels.extend(entry(volume, &String::from_utf8_lossy(&text)).context(path)?);
            }
        }
    }
    if !kernels.is_empty() {
        return Ok(kernels);
    }
    for folder in KERNEL_FOLDERS {
        for name in volume.names(folder)?.iter().filter(|name| name.starts_with(KERNEL_PREFIX)) {
            let path = format!("{folder}/{name}");
            // A link to another, or a folder.
            let Some(kernel) = DiskFile::at(volume, path)? else {
                continue;
            };
            let is_known = |known: &FoundKernel<'_>| known.kernel.digest == kernel.digest;
            if !kernels.iter().any(is_known) {
                check_kernel_limit(kernels.len())?;
                kernels.push(FoundKernel {
                    kernel,
                    initrds: Vec::new(),
                    device_trees: Vec::new(),
                    by_systemd_boot: None,
                });
            }
        }
    }
    Ok(kernels)
}

/// Returns the kernel that an entry boots, if it is one.
fn entry<'d>(volume: &'d Volume, text: &str) -> anyhow::Result<Option<FoundKernel<'d>>> {
    let (mut kernel, mut initrds, mut device_trees) = (None, Vec::new(), Vec::new());
    let (mut words, mut options) = (Vec::new(), Vec::new());
    for (key, path) in text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace)) {
        match key {
            "linux" => kernel = Some(wanted(volume, path.trim())?),
            "initrd" => {
                // For kernels that do not take it from the firmware (systemd-boot, `initrd_prepare`).
                words.push(format!("initrd={}", path.trim().replace('/', "\\")));
                initrds.push(wanted(volume, path.trim())?);
            }
            "options" => options.push(path.trim().to_owned()),
            "devicetree" => device_trees.push(wanted(volume, path.trim())?),
            "devicetree-overlay" => {
                for path in path.split_ascii_whitespace() {
                    device_trees.push(wanted(volume, path)?);
                }
            }
            _ => {}
        }
    }
    let by_systemd_boot = (!options.is_empty()).then(|| [words, options].concat().join(" "));
    Ok(kernel.map(|kernel| FoundKernel {
        kernel,
        initrds,
        device_trees,
        by_systemd_boot,
    }))
}

impl ImageFormat {
    fn detect(found: &DiskFile<'_>) -> anyhow::Result<Self> {
        let image = image(found)?;
        let section = |name: &[u8]| {
            // Names of more than eight bytes are cut off.
            image.sections().iter().find(|section| section.name.as_bytes() == name)
        };
        if section(b".linux").is_some() {
            return Ok(Self::UnifiedKernelImage);
        }
        let sbat = section(b".sbat").and_then(|section| section.content()).unwrap_or_default();
        let sbat = sbat.first(SBAT_LIMIT_BYTES).read(SBAT_LIMIT_BYTES)?;
        let is = |component: &[u8]| sbat.split(|&byte| byte == b'\n').any(|line| line.starts_with(component));
        Ok(match () {
            () if is(b"shim,") || section(b".vendor_").is_some() => Self::Shim,
            // Not by `.sbat`, where Debian 12's is "systemd".
            () if is_systemd_boot(&image) => Self::SystemdBoot,
            () if is(b"grub,") => Self::Grub,
            () => Self::Other,
        })
    }
}

impl PredictedDisk<'_> {
    pub(crate) fn has_shim(&self) -> bool {
        self.loaders.iter().any(|(stage, _)| *stage == ImageFormat::Shim)
    }

    /// Predicts the measurements of the boot.
    pub(crate) fn predict(&self, secure_boot: SecureBoot, files: &Files, prediction: &mut Prediction) -> anyhow::Result<()> {
        if !self.unused_images.is_empty() {
            let named = self.unused_images.join(", ");
            prediction.omit(
                &[IMAGES_PCR],
                format!("the disk also has files that the values do not include: {named}"),
            );
        }
        let stages: Vec<ImageFormat> = self.loaders.iter().map(|(stage, _)| *stage).collect();
        let follows = match (stages.as_slice(), self.unified.as_slice(), self.kernels.as_slice()) {
            ([ImageFormat::UnifiedKernelImage], ..) | ([ImageFormat::SystemdBoot], [_], []) if !self.given.is_empty() => {
                let mut given = self.given.clone();
                given.sort();
                given.dedup();
                let why = format!("systemd-stub reads these files in addition to the image: {}", given.join(", "));
                prediction.omit(&[FILES_PCR, BESIDE_PCR, EXTENSIONS_PCR], why);
                false
            }
            ([ImageFormat::UnifiedKernelImage], ..) => self.predict_unified(&[], secure_boot, files, prediction).map(|()| true)?,
            ([ImageFormat::SystemdBoot], [_], []) => self.predict_unified(&self.loaders, secure_boot, files, prediction).map(|()| true)?,
            ([.., ImageFormat::Grub], ..) => self.predict_grub(secure_boot, files, prediction)?,
            _ => false,
        };
        if follows {
            return Ok(());
        }
        self.predict_parts(files, prediction)
    }

    /// Predicts a boot by a unified kernel image that firmware starts, or a loader that has no other.
    fn predict_unified(
        &self,
        loaders: &[(ImageFormat, DiskFile<'_>)],
        secure_boot: SecureBoot,
        files: &Files,
        prediction: &mut Prediction,
    ) -> anyhow::Result<()> {
        let found = match (loaders, self.unified.as_slice(), self.loaders.first()) {
            ([_], [only], _) => only,
            (_, _, Some((_, first))) => first,
            _ => bail!("the disk has no unified kernel image"),
        };
        let loaders = loaders.iter().map(|(_, found)| Ok((file_name(&found.path), noted(files, found)?)));
        files.read_on_disk(&found.path, &found.digest);
        UkiBoot {
            loaders: &loaders.collect::<anyhow::Result<Vec<_>>>()?,
            uki: &Uki::parse(found.bytes()).with_context(|| found.path.clone())?,
            secure_boot,
        }
        .predict(prediction)?;
        Ok(())
    }

    /// Predicts a boot by GRUB; returns whether all of it follows from GRUB's image and config. If not, only the digests of configs are
    /// known, and the reason.
    fn predict_grub(&self, secure_boot: SecureBoot, files: &Files, prediction: &mut Prediction) -> anyhow::Result<bool> {
        let (config, FoundKernel { kernel, initrds, .. }) = match &self.grub {
            None => return Ok(false),
            Some(GrubFileSource::Known { config, kernel }) => (config, kernel.as_ref()),
            Some(GrubFileSource::Unknown { configs, why }) => {
                prediction.omit(&[IMAGES_PCR, COMMANDS_PCR, FILES_PCR], why.clone());
                for config in configs {
                    let reason = GrubConfig::parse(&config.bytes).err();
                    let reason = reason.map(|error| format!("{}: {error}", config.path));
                    if let Some(reason) = reason.filter(|reason| reason != why) {
                        prediction.omit(&[COMMANDS_PCR], reason);
                    }
                    files.read_on_disk(&config.path, &Bytes::from(&config.bytes).sha256()?);
                    predict_config(&config.bytes, prediction);
                }
                return Ok(false);
            }
        };
        let (grub, shim) = match self.loaders.as_slice() {
            [(ImageFormat::Grub, grub)] => (grub, None),
            [(ImageFormat::Shim, shim), (ImageFormat::Grub, grub)] => (grub, Some(shim)),
            other => {
                let before = other.iter().map(|(_, found)| found.path.as_str()).collect::<Vec<_>>().join(", ");
                let why = format!("the machine decides which of these it starts, and in which order: {before}");
                prediction.omit(&[IMAGES_PCR, COMMANDS_PCR, FILES_PCR], why);
                predict_config(&config.bytes, prediction);
                return Ok(false);
            }
        };
        let shim = shim.map(image).transpose()?;
        let initrd_bytes: Vec<Bytes<'_>> = initrds.iter().map(DiskFile::bytes).collect();
        let parsed_kernel = Kernel::parse(kernel.bytes()).with_context(|| kernel.path.clone())?;
        GrubBoot {
            shim: shim.as_ref(),
            grub: &image(grub)?,
            config: &config.bytes,
            kernel: (kernel.bytes(), &parsed_kernel),
            initrds: &initrd_bytes,
            secure_boot,
        }
        .predict(prediction)?;
        let loaders = self.loaders.iter().map(|(_, found)| found);
        for found in loaders.chain([kernel]).chain(initrds) {
            files.read_on_disk(&found.path, &found.digest);
        }
        files.read_on_disk(&config.path, &Bytes::from(&config.bytes).sha256()?);
        Ok(true)
    }

    /// The digests of all that is on the way.
    fn predict_parts(&self, files: &Files, prediction: &mut Prediction) -> anyhow::Result<()> {
        let images = self.loaders.iter().map(|(_, found)| found).chain(&self.unified);
        let images = images.map(|found| Ok((file_name(&found.path), noted(files, found)?)));
        predict_images(&images.collect::<anyhow::Result<Vec<_>>>()?, prediction)?;
        let is_systemd_boot = matches!(self.loaders.last(), Some((ImageFormat::SystemdBoot, _)));
        for FoundKernel {
            kernel,
            initrds,
            device_trees,
            by_systemd_boot,
        } in &self.kernels
        {
            let parsed = match Kernel::parse(kernel.bytes()) {
                Ok(parsed) => parsed,
                Err(error) => {
                    prediction.omit(&[IMAGES_PCR], format!("{}: {error}", kernel.path));
                    continue;
                }
            };
            for found in std::iter::once(kernel).chain(initrds).chain(device_trees) {
                files.read_on_disk(&found.path, &found.digest);
            }
            let [initrds, device_trees] = [initrds, device_trees].map(|files| files.iter().map(DiskFile::bytes).collect::<Vec<_>>());
            let line = by_systemd_boot.as_ref().filter(|_| is_systemd_boot);
            let command_line = line.and_then(|line| CommandLine::parse(line.as_bytes()).ok());
            BootParts {
                name: &file_name(&kernel.path),
                kernel: (kernel.bytes(), &parsed),
                initrds: &initrds,
                device_trees: &device_trees,
                command_line: command_line.as_ref(),
            }
            .predict(prediction)?;
        }
        let has_kernel = |(stage, _): &(ImageFormat, DiskFile<'_>)| *stage == ImageFormat::UnifiedKernelImage;
        if self.kernels.is_empty() && self.unified.is_empty() && !self.loaders.iter().any(has_kernel) {
            prediction.omit(
                &[IMAGES_PCR, FILES_PCR],
                "no kernel was found on the disk's FAT and ext4 file systems",
            );
        }
        prediction.omit(&[COMMANDS_PCR], "the boot loader assembles the command line");
        Ok(())
    }
}

fn noted<'f>(files: &Files, found: &'f DiskFile<'_>) -> anyhow::Result<PeImage<'f>> {
    files.read_on_disk(&found.path, &found.digest);
    image(found)
}

fn find<'d>(volume: &'d Volume, folder: &str, name: &str) -> anyhow::Result<Option<DiskFile<'d>>> {
    let names = volume.names(folder)?;
    let name = names.iter().find(|found| found.eq_ignore_ascii_case(name));
    name.map(|name| wanted(volume, &format!("{folder}/{name}"))).transpose()
}

fn is_image(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("efi"))
}

fn file_name(path: &str) -> String {
    path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned()
}
