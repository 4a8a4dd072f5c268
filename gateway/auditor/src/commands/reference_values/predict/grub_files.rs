//! Files that GRUB reads on a disk: its config, where the image looks for it, and the files that the config loads.

use attest::tpm::prediction::grub::image::GrubImage;
use attest::tpm::prediction::grub::{CONFIG_LIMIT_BYTES, GrubConfig};

use super::disk_file::{DiskFile, FoundKernel, image, wanted};
use super::volume::Disk;

/// Folders that may have GRUB's config, besides a distribution's folder.
const GRUB_FOLDERS: [&str; 4] = ["grub", "grub2", "boot/grub", "boot/grub2"];
/// Most configs that are listed: each distribution on the disk has one or two.
const CONFIGS_LIMIT: usize = 16;
/// Folder of lists of modules, in the folder of GRUB's config (its `normal/dyncmd.c` and others). Images for other processors are not recognised.
const GRUB_LISTS: &str = "x86_64-efi";

/// A config on the disk.
pub(crate) struct GrubConfigFile {
    pub path: String,
    pub bytes: Vec<u8>,
}

/// The files that GRUB reads.
pub(crate) enum GrubFileSource<'d> {
    /// The files that follow from the image and its config.
    Known {
        config: GrubConfigFile,
        kernel: Box<FoundKernel<'d>>,
    },
    /// The configs that it may read, and why it is not known what it reads.
    Unknown { configs: Vec<GrubConfigFile>, why: String },
}

/// Finds the files that GRUB reads, by its image and by the config that is where the image looks for it.
pub(crate) fn grub_files<'d>(disk: &'d Disk, grub: &DiskFile<'_>) -> anyhow::Result<GrubFileSource<'d>> {
    let system = &disk.system;
    let known = match GrubImage::recognise(&image(grub)?) {
        Ok(known) => known,
        Err(why) => {
            let configs = configs(disk)?;
            return Ok(GrubFileSource::Unknown { configs, why });
        }
    };
    let path = format!("{}/grub.cfg", known.folder().trim_matches('/'));
    let lists = format!("{}/{}", known.folder(), GRUB_LISTS);
    let unknown = |configs, why| Ok(GrubFileSource::Unknown { configs, why });
    let partition = format!("hd0,gpt{}", disk.system_number);
    let elsewhere = |root: &&str| root.trim_matches(['(', ')']) != partition;
    if let Some(root) = known.roots().find(elsewhere) {
        let why = format!("GRUB's image names the partition {root}: only files on the EFI system partition, {partition}, are searched");
        return unknown(configs(disk)?, why);
    }
    let Some(bytes) = system.read(&path, CONFIG_LIMIT_BYTES)? else {
        return unknown(Vec::new(), format!("GRUB's config was not found: {path} does not exist"));
    };
    let config = GrubConfigFile { path, bytes };
    let parsed = match GrubConfig::parse(&config.bytes) {
        Ok(parsed) => parsed,
        Err(error) => {
            let why = format!("{}: {error}", config.path);
            return unknown(vec![config], why);
        }
    };
    if !system.names(&lists)?.is_empty() {
        return unknown(vec![config], format!("GRUB reads lists of modules from {lists}"));
    }
    let (kernel, initrds) = parsed.files();
    let read = |path: &str| wanted(system, path);
    let kernel = kernel.map(read).transpose();
    let initrds = initrds.into_iter().map(read).collect::<anyhow::Result<Vec<_>>>();
    match (kernel, initrds) {
        (Ok(Some(kernel)), Ok(initrds)) if parsed.roots().all(|root| !elsewhere(&root)) => {
            let kernel = Box::new(FoundKernel {
                kernel,
                initrds,
                // Its config has no command that loads one.
                device_trees: Vec::new(),
                by_systemd_boot: None,
            });
            Ok(GrubFileSource::Known { config, kernel })
        }
        _ => {
            let why = format!("{}: the files that it loads are not on its file system", config.path);
            unknown(vec![config], why)
        }
    }
}

/// Each config that an image of GRUB may look for: in a distribution's folder on the EFI system partition, or in GRUB's own on any file system.
fn configs(disk: &Disk) -> anyhow::Result<Vec<GrubConfigFile>> {
    let vendors = disk.system.names("EFI")?.into_iter().map(|folder| format!("EFI/{folder}"));
    let vendors = vendors.map(|folder| (&disk.system, folder));
    let volumes = std::iter::once(&disk.system).chain(disk.other_volumes.iter().map(|(_, volume)| volume));
    let own = volumes.flat_map(|volume| GRUB_FOLDERS.map(|folder| (volume, folder.to_owned())));
    let mut configs = Vec::new();
    for (volume, folder) in vendors.chain(own) {
        let path = format!("{folder}/grub.cfg");
        if configs.len() < CONFIGS_LIMIT
            && let Some(bytes) = volume.read(&path, CONFIG_LIMIT_BYTES)?
        {
            configs.push(GrubConfigFile { path, bytes });
        }
    }
    Ok(configs)
}
