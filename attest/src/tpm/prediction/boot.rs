//! All of a boot: who loads what, and which PCRs come of it.

use std::borrow::Cow;

use super::bytes::ByteReadError;
use super::linux::{CommandLine, Kernel, STUB_PCR};
use super::loader::ImageInput;
use super::pe::{PeImage, PeSection, SMALL_SECTION_LIMIT_BYTES};
use super::uki::{SECTIONS_PCR, Uki};
use super::{BootPhase, DigestSubject, MeasuredBy, Prediction, initrd};

/// The PCR of images that firmware starts.
pub const IMAGES_PCR: u8 = 4;

/// The PCR of systemd-stub's input from outside the image: command lines, addons and credentials.
pub const BESIDE_PCR: u8 = 12;
/// The PCR of extensions, which nothing else is extended into.
pub const EXTENSIONS_PCR: u8 = 13;

/// Measurement of the firmware before it starts the first image of a boot option (edk2 `MdePkg/Include/IndustryStandard/UefiTcgPlatform.h`,
/// EFI_CALLING_EFI_APPLICATION). Below it, the measurement between its own events and those of what it starts (PC Client Platform Firmware
/// Profile 1.06, 3.3.4.5).
const CALLING: &[u8] = b"Calling EFI Application from Boot Option";
pub(super) const SEPARATOR: [u8; 4] = [0; 4];

/// State of Secure Boot: if it is on, firmware starts only signed images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecureBoot {
    On,
    Off,
}

/// A boot of a unified kernel image.
#[derive(Debug, Clone, Copy)]
pub struct UkiBoot<'a> {
    /// Loaders that are started before the image, with their names: the last one has the firmware load it. Systemd-boot, or nothing.
    pub loaders: &'a [(String, PeImage<'a>)],
    pub uki: &'a Uki<'a>,
    pub secure_boot: SecureBoot,
}

impl UkiBoot<'_> {
    /// PCRs 4, 9, 11, 12 and 13.
    ///
    /// # Errors
    /// [`ByteReadError`].
    pub fn predict(&self, prediction: &mut Prediction) -> Result<(), ByteReadError> {
        begin(prediction);
        for (name, image) in self.loaders {
            load(prediction, name, image)?;
        }
        load(prediction, "unified kernel image", self.uki.image())?;
        self.uki.measure_sections(prediction)?;
        prediction.settle(SECTIONS_PCR, BootPhase::AtKernel);
        prediction.phases(SECTIONS_PCR);
        prediction.settle(EXTENSIONS_PCR, BootPhase::AtKernelWithNothingBeside);
        let given = self.given();
        let stub = match (&given, self.secure_boot) {
            // The stub takes what it is given, and not what is in the image.
            (Err(why), SecureBoot::Off) => Err(why.clone()),
            _ => self.kernel(prediction),
        };
        if let Err(why) = stub {
            prediction.omit(&[STUB_PCR], why);
        }
        if let Err(why) = given.and_then(|given| self.predict_pcr_12(given, prediction)) {
            prediction.omit(&[BESIDE_PCR], why);
        }
        if let Err(why) = self.inner_image(prediction) {
            prediction.omit(&[IMAGES_PCR], why);
        } else {
            prediction.settle(IMAGES_PCR, BootPhase::AtKernel);
        }
        Ok(())
    }

    /// Returns what the last loader before the image gives it.
    fn given(&self) -> Result<ImageInput, String> {
        let Some((_, loader)) = self.loaders.last() else {
            return Ok(ImageInput::Nothing);
        };
        match (ImageInput::by(loader)?, self.secure_boot) {
            (ImageInput::OwnCommandLine, SecureBoot::Off) => Err(
                "this systemd-boot gives the image its command line: the stub's measurements of it without Secure Boot cannot be predicted"
                    .to_owned(),
            ),
            (given, _) => Ok(given),
        }
    }

    /// Predicts PCR 12, which has what the image is given.
    fn predict_pcr_12(&self, given: ImageInput, prediction: &mut Prediction) -> Result<(), String> {
        if let (ImageInput::OwnCommandLine, Some(section)) = (given, self.uki.section(".cmdline")) {
            let bytes = &*command_line(section)?;
            let line = CommandLine::parse(bytes).map_err(|error| format!("the command line: {error}"))?;
            // What it is given is that without one line end.
            if bytes.strip_suffix(b"\n").unwrap_or(bytes) != line.as_str().as_bytes() {
                return Err(
                    "the command line ends with more than one line end: systemd-boot's handling of that cannot be predicted".to_owned(),
                );
            }
            let what = DigestSubject::CommandLine(line.as_str().to_owned());
            prediction.measure(BESIDE_PCR, MeasuredBy::SystemdBoot, what, &[&line.load_options()]);
        }
        prediction.settle(BESIDE_PCR, BootPhase::AtKernelWithNothingBeside);
        Ok(())
    }

    /// The stub has the firmware load the kernel that it contains. With Secure Boot it takes the place of the firmware's checks meanwhile, because
    /// that kernel need not be signed by itself, and with them of their measurement.
    fn inner_image(&self, prediction: &mut Prediction) -> Result<(), String> {
        let kernel = self.inner_kernel();
        if let Ok(kernel) = &kernel {
            kernel.check_last_image()?;
        }
        match self.secure_boot {
            SecureBoot::On => Ok(()),
            SecureBoot::Off => load(prediction, "kernel in the unified kernel image", kernel?.image()).map_err(|error| error.to_string()),
        }
    }

    fn kernel(&self, prediction: &mut Prediction) -> Result<(), String> {
        let kernel = self.inner_kernel()?;
        let section = self.uki.section(".cmdline").ok_or("the image has no command line")?;
        let options = CommandLine::parse(&command_line(section)?).map_err(|error| format!("the command line: {error}"))?;
        let initrd = initrd::digests(self.uki, prediction.banks())?;
        kernel.measure_stub(prediction, &options, &options.load_options(), initrd)?;
        prediction.settle(STUB_PCR, BootPhase::AtKernel);
        Ok(())
    }

    fn inner_kernel(&self) -> Result<Kernel<'_>, String> {
        let section = self.uki.section(".linux").ok_or("the image has no kernel")?;
        let content = section.content().ok_or("the kernel is larger in memory than in the file")?;
        let kernel = Kernel::parse(content).map_err(|error| format!("the kernel in the image: {error}"))?;
        if !kernel.loads_initrd() {
            return Err("the kernel in the image is older than 5.8: it is not started by the firmware".to_owned());
        }
        Ok(kernel)
    }
}

/// Adds the firmware's measurements in PCR 4 before it starts the first image.
pub(super) fn begin(prediction: &mut Prediction) {
    prediction.measure(IMAGES_PCR, MeasuredBy::Firmware, DigestSubject::BootOption, &[CALLING]);
    prediction.measure(IMAGES_PCR, MeasuredBy::Firmware, DigestSubject::Separator, &[&SEPARATOR]);
}

pub(super) fn load(prediction: &mut Prediction, name: &str, image: &PeImage<'_>) -> Result<(), ByteReadError> {
    let digests = image.authenticode(prediction.banks())?;
    prediction.extend(IMAGES_PCR, MeasuredBy::Firmware, DigestSubject::Image(name.to_owned()), digests);
    Ok(())
}

fn command_line<'a>(section: &PeSection<'a>) -> Result<Cow<'a, [u8]>, String> {
    let bytes = section.content().ok_or("the command line is larger in memory than in the file")?;
    bytes
        .read(SMALL_SECTION_LIMIT_BYTES)
        .map_err(|error| format!("the command line: {error}"))
}
