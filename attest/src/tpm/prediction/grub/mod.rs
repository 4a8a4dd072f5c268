//! GRUB: the commands that it executes, PCR 8, and the files that it reads, PCR 9.
//!
//! GRUB's module `tpm` extends each command of a config, after variables were put in, into PCR 8, and the kernel's command line again. It
//! extends each file that is opened into PCR 9 (`grub-core/commands/tpm.c`, `script/execute.c`, `kern/verifiers.c`). So PCR 8 follows from
//! a config only if its commands do. A config that depends on the machine (`if`, `search`, variables, a menu for a person to choose from)
//! has to be recorded.
//!
//! The kernel's start differs between releases, and between images of one release: see [`image`]. For an image that is not recognised there
//! are digests, and no value.

mod config;
pub mod image;

use self::config::GrubCommand;
pub use self::config::{CONFIG_LIMIT_BYTES, GrubConfig, GrubConfigError};
use self::image::{GrubImage, GrubRelease};
use super::boot::{IMAGES_PCR, SecureBoot, begin, load};
use super::bytes::{ByteReadError, Bytes};
use super::linux::{CommandLine, Kernel, STUB_PCR};
use super::pe::PeImage;
use super::{BankDigests, BootPhase, DigestSubject, MeasuredBy, Prediction};

/// The PCR of commands.
pub const COMMANDS_PCR: u8 = 8;
/// The PCR of files. The kernel's stub extends it too.
pub const FILES_PCR: u8 = 9;
/// The PCR of shim's lists of keys.
const SHIM_PCR: u8 = 14;

/// Up to a multiple of this an initrd is known to be handed on as it is.
const INITRD_PADDING_BYTES: usize = 4;

/// The first argument of the kernel's command line.
const IMAGE_ARGUMENT: &str = "BOOT_IMAGE=";

/// A boot by GRUB.
#[derive(Debug, Clone, Copy)]
pub struct GrubBoot<'a> {
    /// The shim that starts GRUB; `None` if firmware starts it.
    pub shim: Option<&'a PeImage<'a>>,
    pub grub: &'a PeImage<'a>,
    /// The file that GRUB reads from its folder.
    pub config: &'a [u8],
    /// The kernel's file, as it is.
    pub kernel: (Bytes<'a>, &'a Kernel<'a>),
    /// The files of the initrd, in their order.
    pub initrds: &'a [Bytes<'a>],
    pub secure_boot: SecureBoot,
}

impl GrubBoot<'_> {
    /// Predicts PCRs 4, 8 and 9: their values, or the digests that may be in them, with the reason for the missing value.
    ///
    /// # Errors
    /// [`ByteReadError`].
    pub fn predict(&self, prediction: &mut Prediction) -> Result<(), ByteReadError> {
        let config = GrubConfig::parse(self.config);
        match self.follows(config.as_ref()) {
            Ok((config, release, images)) => self.values(config, release, images, prediction)?,
            Err(why) => {
                prediction.omit(&[IMAGES_PCR, COMMANDS_PCR, FILES_PCR], why);
                self.digests(config.as_ref().ok(), prediction)?;
            }
        }
        if self.shim.is_some() {
            prediction.omit(&[SHIM_PCR], "shim measures its key lists, which are in the machine's NVRAM");
        }
        Ok(())
    }

    /// The release of GRUB, and how often the kernel is measured as an image, if all follows from the files.
    fn follows<'c>(&self, config: Result<&'c GrubConfig, &GrubConfigError>) -> Result<(&'c GrubConfig, GrubRelease, usize), String> {
        let image = GrubImage::recognise(self.grub)?;
        let config = config.map_err(|error| format!("grub.cfg: {error}"))?;
        let expected = config.initrds();
        if expected != self.initrds.len() {
            return Err(format!("the config has {expected} initrds, {} are given", self.initrds.len()));
        }
        Ok((config, image.release, self.kernel_images(&image)?))
    }

    /// Returns how often the kernel is measured as an image.
    fn kernel_images(&self, image: &GrubImage) -> Result<usize, String> {
        match (image.release, self.shim.is_some(), self.secure_boot) {
            (_, false, SecureBoot::On) => Err("without shim, Debian's GRUB starts no kernel with Secure Boot".to_owned()),
            (GrubRelease::Debian206, false, SecureBoot::Off) => Ok(0),
            (GrubRelease::Debian206, true, SecureBoot::On) if !image.asks_shim => {
                Err("the measurements with Secure Boot of a GRUB image made with --disable-shim-lock cannot be predicted".to_owned())
            }
            (GrubRelease::Debian206, true, SecureBoot::On) => Ok(2),
            (GrubRelease::Debian212, false, SecureBoot::Off) => Ok(1),
            (GrubRelease::Debian206, true, SecureBoot::Off) => {
                Err("the measurements of GRUB 2.06 after shim without Secure Boot cannot be predicted".to_owned())
            }
            (GrubRelease::Debian212, true, _) => Err("the measurements of GRUB 2.12 after shim cannot be predicted".to_owned()),
        }
    }

    fn values(
        &self,
        config: &GrubConfig,
        release: GrubRelease,
        kernel_images: usize,
        prediction: &mut Prediction,
    ) -> Result<(), ByteReadError> {
        begin(prediction);
        self.images(kernel_images, prediction)?;
        prediction.settle(IMAGES_PCR, BootPhase::AtKernel);

        let config_opened = match release {
            GrubRelease::Debian206 => 1,
            GrubRelease::Debian212 => 2,
        };
        self.files(config_opened, prediction)?;
        measure_commands(config, prediction);
        prediction.settle(COMMANDS_PCR, BootPhase::AtKernel);

        let stub = match release {
            // It starts the kernel behind its EFI stub.
            GrubRelease::Debian206 => Ok(()),
            GrubRelease::Debian212 => self.stub(config, prediction),
        };
        match stub {
            Ok(()) => prediction.settle(STUB_PCR, BootPhase::AtKernel),
            Err(why) => prediction.omit(&[STUB_PCR], why),
        }
        Ok(())
    }

    /// Predicts GRUB's measurements of these files, for any image of GRUB.
    fn digests(&self, config: Option<&GrubConfig>, prediction: &mut Prediction) -> Result<(), ByteReadError> {
        self.images(1, prediction)?;
        self.files(1, prediction)?;
        if let Some(config) = config {
            measure_commands(config, prediction);
            // The reason for the whole PCR is said already.
            let _ = self.stub(config, prediction);
        }
        Ok(())
    }

    fn images(&self, kernel_images: usize, prediction: &mut Prediction) -> Result<(), ByteReadError> {
        if let Some(shim) = self.shim {
            load(prediction, "shim", shim)?;
        }
        load(prediction, "GRUB", self.grub)?;
        for _ in 0..kernel_images {
            load(prediction, "kernel", self.kernel.1.image())?;
        }
        Ok(())
    }

    fn files(&self, config_opened: usize, prediction: &mut Prediction) -> Result<(), ByteReadError> {
        for _ in 0..config_opened {
            measure_config(self.config, prediction);
        }
        let initrds = self.initrds.iter().map(|&initrd| ("initrd", initrd));
        for (name, content) in std::iter::once(("kernel", self.kernel.0)).chain(initrds) {
            let digests = BankDigests::read(prediction.banks(), &[content])?;
            prediction.extend(FILES_PCR, MeasuredBy::Grub, DigestSubject::File(name), digests);
        }
        Ok(())
    }

    /// Adds the measurements of the kernel's EFI stub, for a GRUB that has the kernel started as an image.
    fn stub(&self, config: &GrubConfig, prediction: &mut Prediction) -> Result<(), String> {
        let options = format!("{IMAGE_ARGUMENT}{}", config.kernel_arguments().unwrap_or_default());
        let options = CommandLine::parse(options.as_bytes()).map_err(|error| format!("the command line: {error}"))?;
        let initrd = match self.initrds {
            [] => None,
            files if files.iter().all(|file| file.len().is_multiple_of(INITRD_PADDING_BYTES)) => {
                Some(BankDigests::read(prediction.banks(), files).map_err(|error| format!("the initrd: {error}"))?)
            }
            _ => return Err("the way in which GRUB 2.12 pads initrds to four bytes is not supported".to_owned()),
        };
        self.kernel.1.measure_stub(prediction, &options, &options.without_end(), initrd)
    }
}

/// The digests of a config that GRUB may read, and of its commands, if they follow from it.
pub fn predict_config(config: &[u8], prediction: &mut Prediction) {
    measure_config(config, prediction);
    if let Ok(config) = GrubConfig::parse(config) {
        measure_commands(&config, prediction);
    }
}

fn measure_config(config: &[u8], prediction: &mut Prediction) {
    prediction.measure(FILES_PCR, MeasuredBy::Grub, DigestSubject::File("grub.cfg"), &[config]);
}

/// The commands of a config, in their order.
fn measure_commands(config: &GrubConfig, prediction: &mut Prediction) {
    for command in &config.commands {
        let (text, line) = match command {
            GrubCommand::Plain(text) | GrubCommand::Initrd { text, .. } => (text, None),
            GrubCommand::Linux { text, arguments } => (text, Some(arguments)),
        };
        let what = DigestSubject::Command(text.clone());
        prediction.measure(COMMANDS_PCR, MeasuredBy::Grub, what, &[text.as_bytes()]);
        if let Some(line) = line {
            let what = DigestSubject::GrubCommandLine(line.clone());
            prediction.measure(COMMANDS_PCR, MeasuredBy::Grub, what, &[line.as_bytes()]);
        }
    }
}
