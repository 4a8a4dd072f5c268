//! The loader that starts a unified kernel image in the firmware's place, and what it gives to it: systemd-boot.
//!
//! Until its release 254, systemd-boot gave an image the command line that it had read from that very image, and measured it
//! (`src/boot/efi/boot.c`). Since 255 it gives only what a person has typed (systemd's pull request 28924). This was observed of 252 and
//! 257.

use super::pe::PeImage;
use super::uki::{FIRST_VERSION, LAST_VERSION, version};

/// Name of the program in its version.
const PROGRAM: &str = "systemd-boot";
/// The first release that gives an image none of its own content.
const SILENT_FIRST: u32 = 255;

/// Returns whether the image states that it is systemd-boot.
#[must_use]
pub fn is_systemd_boot(image: &PeImage<'_>) -> bool {
    version(image, PROGRAM).is_ok()
}

/// Command line that an image is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ImageInput {
    Nothing,
    /// The content of its own section `.cmdline`; the loader that gives it has measured it.
    OwnCommandLine,
}

impl ImageInput {
    /// Returns what this loader gives, or why that is not known.
    pub(super) fn by(loader: &PeImage<'_>) -> Result<Self, String> {
        let version = version(loader, PROGRAM).map_err(|_| {
            "the boot loader is not systemd-boot: the input that another boot loader passes to an image cannot be predicted".to_owned()
        })?;
        match version.release {
            FIRST_VERSION..SILENT_FIRST => Ok(Self::OwnCommandLine),
            SILENT_FIRST..=LAST_VERSION => Ok(Self::Nothing),
            _ => Err(format!(
                "systemd-boot {version} starts the image: only {FIRST_VERSION} to {LAST_VERSION} are supported"
            )),
        }
    }
}
