//! An image of GRUB: its release, and the objects that were put into it.
//!
//! `grub-mkimage` puts objects into the section `mods` (`include/grub/kernel.h`): modules, a config that runs before any other, the folder of the config
//! on the disk, a memory disk with files of its own. What a machine measures depends on each of them. Debian's signed images show it: that of 12 runs a
//! config of its own, whose commands are measured first; that of 13 has the module `peimage`, which starts kernels in the firmware's place.
//!
//! So an image is recognised by all of its objects, and only if machines were seen to measure what is computed for it. What is in its modules is not
//! compared: the release in `.sbat` stands for it.

use std::collections::BTreeSet;

use object::LittleEndian as LE;
use object::elf::{EM_X86_64, FileHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};

use super::config::{SET_ROOT, split_words};
use crate::tpm::prediction::pe::{PeImage, SMALL_SECTION_LIMIT_BYTES};

/// Largest section of objects: Debian's has 4 MiB, with its memory disk.
const OBJECTS_LIMIT_BYTES: usize = 64 * 1024 * 1024;
/// Magic number at the beginning of the section, before the objects (`struct grub_module_info64`).
const MAGIC: u32 = 0x676d_696d;
/// Type and size of an object (`struct grub_module_header`).
const OBJECT_HEADER_BYTES: usize = 8;
/// Types of objects in an image's section `mods`.
const MODULE: u32 = 0;
const MEMORY_DISK: u32 = 1;
const CONFIG: u32 = 2;
const PREFIX: u32 = 3;
const SHIM_LOCK_DISABLED: u32 = 6;

/// The section of a module that has its name.
const MODULE_NAME: &[u8] = b".modname";
/// The command that names the folder of the config.
const SET_PREFIX: &str = "set prefix=";
/// Bytes of an image's own config that are shown: Debian's has 26.
const SHOWN_LIMIT_BYTES: usize = 80;

/// The modules of the images that machines were seen to boot by, and those that they need. With fewer of them, GRUB reads modules from the disk and measures
/// their files; others may measure more, or less.
const MODULES: [&str; 23] = [
    "boot",
    "bufio",
    "crypto",
    "datetime",
    "echo",
    "ext2",
    "extcmd",
    "fat",
    "fshelp",
    "gettext",
    "linux",
    "mmap",
    "net",
    "normal",
    "part_gpt",
    "priority_queue",
    "relocator",
    "serial",
    "terminal",
    "terminfo",
    "test",
    "tpm",
    "video",
];
/// Additional module of release 2.06.
const MODULE_OF_206: &str = "linuxefi";

/// A release of GRUB, of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrubRelease {
    /// 2.06 of Debian 12. Without Secure Boot it starts the kernel by itself; with it, it asks shim twice whether it may, and shim measures what it is asked about.
    Debian206,
    /// 2.12 of Debian 13. It opens its config twice, and has the firmware start the kernel.
    Debian212,
}

/// An image of which it is known what it measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrubImage {
    pub(super) release: GrubRelease,
    /// True if, with Secure Boot, it starts only what shim has verified.
    pub(super) asks_shim: bool,
    /// Each partition that is named in the image: where files are looked for, unless the config names another one.
    roots: Vec<String>,
    folder: String,
}

/// The objects that were put into an image.
#[derive(Debug, Default)]
struct ImageObjects<'a> {
    modules: BTreeSet<&'a str>,
    config: &'a [u8],
    prefix: &'a str,
    shim_lock_disabled: bool,
}

impl GrubImage {
    /// Recognises an image by its release and all of its objects.
    ///
    /// # Errors
    /// The reason why it is not known what the image measures.
    pub fn recognise(image: &PeImage<'_>) -> Result<Self, String> {
        let release = GrubRelease::from_image(image)?;
        let section = image.sections().iter().find(|section| section.name.as_bytes() == b"mods");
        let section = section.and_then(|section| section.content()).unwrap_or_default();
        let section = section
            .read(OBJECTS_LIMIT_BYTES)
            .map_err(|error| format!("GRUB's image, section mods: {error}"))?;
        let objects = ImageObjects::read(&section)?;
        objects.check_expected_objects(release)?;
        let (mut roots, mut prefix) = (Vec::new(), objects.prefix.to_owned());
        for (index, line) in objects.config.split(|&byte| byte == b'\n').enumerate() {
            let words = split_words(line, index + 1).map_err(|_| objects.runs_a_config())?;
            let Some(words) = words else { continue };
            let command = words.join(" ");
            match (command.strip_prefix(SET_ROOT), command.strip_prefix(SET_PREFIX)) {
                (Some(root), _) if words.len() == 2 => roots.push(root.to_owned()),
                (_, Some(folder)) if words.len() == 2 => prefix = folder.to_owned(),
                _ => return Err(objects.runs_a_config()),
            }
        }
        let folder = match prefix.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((root, folder)) => {
                roots.push(root.to_owned());
                folder.to_owned()
            }
            None => prefix,
        };
        Ok(Self {
            release,
            asks_shim: !objects.shim_lock_disabled,
            roots,
            folder,
        })
    }

    /// The folder in which it looks for `grub.cfg`, and for lists of modules.
    #[must_use]
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// The partitions that are named in the image. Where none is, it is the one that the image itself is on.
    pub fn roots(&self) -> impl Iterator<Item = &str> {
        self.roots.iter().map(String::as_str)
    }
}

impl GrubRelease {
    /// Reads the release from the component's line in `.sbat`: name, generation, vendor, package, version, URL (shim's SBAT.md).
    fn from_image(image: &PeImage<'_>) -> Result<Self, String> {
        let section = image.sections().iter().find(|section| section.name.as_bytes() == b".sbat");
        let text = section
            .and_then(|section| section.content())
            .ok_or("GRUB's image has no section .sbat")?
            .read(SMALL_SECTION_LIMIT_BYTES)
            .map_err(|error| format!("GRUB's image, section .sbat: {error}"))?;
        let version = |component: &[u8]| {
            let mut lines = text.split(|&byte| byte == b'\n');
            let line = lines.find(|line| line.starts_with(component))?;
            line.split(|&byte| byte == b',').nth(4)
        };
        let upstream = version(b"grub,").unwrap_or_default();
        let Some(package) = version(b"grub.debian,") else {
            return Err(format!(
                "only GRUB 2.06 and 2.12 of Debian are supported; this image is \"{}\", and not Debian's",
                upstream.escape_ascii()
            ));
        };
        // A version of Debian's, or an update of it: 2.06-13, 2.06-13+deb12u2.
        let is = |release: &[u8]| package.strip_prefix(release).is_some_and(|rest| matches!(rest, [] | [b'+', ..]));
        match upstream {
            b"2.06" if is(b"2.06-13") => Ok(Self::Debian206),
            b"2.12" if is(b"2.12-9") => Ok(Self::Debian212),
            other => Err(format!(
                "only GRUB 2.06-13 and 2.12-9 of Debian are supported; this image is \"{}\", {}",
                other.escape_ascii(),
                package.escape_ascii()
            )),
        }
    }
}

impl<'a> ImageObjects<'a> {
    /// Reads the section `mods`.
    fn read(section: &'a [u8]) -> Result<Self, String> {
        let damaged = || "GRUB's image has no section mods that can be read".to_owned();
        let number = |at: usize| Some(u32::from_le_bytes(*section.get(at..)?.first_chunk::<4>()?));
        let long = |at: usize| usize::try_from(u64::from_le_bytes(*section.get(at..)?.first_chunk::<8>()?)).ok();
        if number(0) != Some(MAGIC) {
            return Err(damaged());
        }
        // Behind the magic number are four bytes of padding, and 64 bits for each: where the objects begin, and where they end.
        let (Some(start), Some(end)) = (long(8), long(16)) else {
            return Err(damaged());
        };
        let mut rest = section.get(start..end).ok_or_else(damaged)?;
        let mut objects = Self::default();
        while !rest.is_empty() {
            let header = rest.first_chunk::<OBJECT_HEADER_BYTES>().ok_or_else(damaged)?;
            let [a, b, c, d, size @ ..] = *header;
            let size = usize::try_from(u32::from_le_bytes(size)).map_err(|_| damaged())?;
            let content = rest.get(OBJECT_HEADER_BYTES..size).ok_or_else(damaged)?;
            objects.add(u32::from_le_bytes([a, b, c, d]), content)?;
            rest = rest.get(size..).unwrap_or_default();
        }
        Ok(objects)
    }

    fn add(&mut self, kind: u32, content: &'a [u8]) -> Result<(), String> {
        // Padded with zeros.
        let text = content.split(|&byte| byte == 0).next().unwrap_or_default();
        match kind {
            MODULE => {
                let name = module_name(content).ok_or("GRUB's image has a module that has no name, or is not for x86-64")?;
                if !self.modules.insert(name) {
                    return Err(format!("GRUB's image has two modules {}", name.escape_default()));
                }
            }
            MEMORY_DISK => {
                return Err(format!(
                    "GRUB's image has a memory disk, of {} bytes: GRUB reads files from it",
                    content.len()
                ));
            }
            CONFIG if self.config.is_empty() => self.config = text,
            PREFIX if self.prefix.is_empty() => {
                self.prefix = std::str::from_utf8(text).map_err(|_| "the folder in GRUB's image is not UTF-8")?
            }
            CONFIG | PREFIX => return Err("GRUB's image has two configs, or two folders for them".to_owned()),
            SHIM_LOCK_DISABLED => self.shim_lock_disabled = true,
            other => {
                return Err(format!("GRUB's image has an object of type {other}, which is not supported"));
            }
        }
        Ok(())
    }

    fn check_expected_objects(&self, release: GrubRelease) -> Result<(), String> {
        let more = (release == GrubRelease::Debian206).then_some(MODULE_OF_206);
        let seen: BTreeSet<&str> = MODULES.into_iter().chain(more).collect();
        let names = |names: BTreeSet<&str>| {
            names
                .into_iter()
                .map(|name| name.escape_default().to_string())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (others, missing) = (&self.modules - &seen, &seen - &self.modules);
        if !others.is_empty() {
            return Err(format!(
                "GRUB's image has modules that may measure other things, or start kernels in another way: {}",
                names(others)
            ));
        }
        if !missing.is_empty() {
            return Err(format!(
                "GRUB's image lacks modules, which it would read from the disk: {}",
                names(missing)
            ));
        }
        Ok(())
    }

    fn runs_a_config(&self) -> String {
        let shown = self.config.get(..SHOWN_LIMIT_BYTES).unwrap_or(self.config);
        format!(
            "GRUB's image has a config of its own, which runs first: \"{}\"",
            shown.trim_ascii().escape_ascii()
        )
    }
}

/// The name in a module: an ELF file that is not linked.
fn module_name(module: &[u8]) -> Option<&str> {
    let header = FileHeader64::<LE>::parse(module).ok()?;
    let endian = header.endian().ok()?;
    (header.e_machine(endian) == EM_X86_64).then_some(())?;
    let sections = header.sections(endian, module).ok()?;
    let (_, section) = sections.section_by_name(endian, MODULE_NAME)?;
    let name = section.data(endian, module).ok()?;
    std::str::from_utf8(name.split(|&byte| byte == 0).next()?).ok()
}
