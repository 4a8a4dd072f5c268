//! Digests of images, kernels, initrds and command lines, by whichever boot loader they are started: for rules about what may be among a PCR's events.
//! The values of PCRs do not follow from these.

use super::boot::{IMAGES_PCR, load};
use super::bytes::{ByteReadError, Bytes};
use super::grub::{COMMANDS_PCR, FILES_PCR};
use super::linux::{CommandLine, Kernel, STUB_PCR};
use super::pe::PeImage;
use super::{BankDigests, DigestSubject, MeasuredBy, Prediction};

/// Images of which not more is known than that they are started: boot loaders, by what they are called here.
///
/// # Errors
/// [`ByteReadError`].
pub fn predict_images(images: &[(String, PeImage<'_>)], prediction: &mut Prediction) -> Result<(), ByteReadError> {
    for (name, image) in images {
        load(prediction, name, image)?;
    }
    omit_pcrs(&[IMAGES_PCR], prediction);
    Ok(())
}

fn omit_pcrs(pcrs: &[u8], prediction: &mut Prediction) {
    prediction.omit(
        pcrs,
        "the boot loader decides which of these it measures, and together with which other data",
    );
}

/// A kernel, with its initrds and its command line.
#[derive(Debug, Clone, Copy)]
pub struct BootParts<'a> {
    /// Name of the kernel in the prediction.
    pub name: &'a str,
    /// The kernel's file, as it is.
    pub kernel: (Bytes<'a>, &'a Kernel<'a>),
    pub initrds: &'a [Bytes<'a>],
    /// Device trees that the boot loader gives to the kernel, as on ARM64.
    pub device_trees: &'a [Bytes<'a>],
    pub command_line: Option<&'a CommandLine>,
}

impl BootParts<'_> {
    /// Predicts the digests that any of the boot loaders may extend.
    ///
    /// # Errors
    /// [`ByteReadError`].
    pub fn predict(&self, prediction: &mut Prediction) -> Result<(), ByteReadError> {
        load(prediction, self.name, self.kernel.1.image())?;
        let digests = BankDigests::read(prediction.banks(), &[self.kernel.0])?;
        prediction.extend(FILES_PCR, MeasuredBy::Grub, DigestSubject::File("kernel"), digests);
        for &initrd in self.initrds {
            let digests = BankDigests::read(prediction.banks(), &[initrd])?;
            prediction.extend(FILES_PCR, MeasuredBy::Grub, DigestSubject::File("initrd"), digests);
        }
        for &tree in self.device_trees {
            let digests = BankDigests::read(prediction.banks(), &[tree])?;
            prediction.extend(FILES_PCR, MeasuredBy::Grub, DigestSubject::File("device tree"), digests);
        }
        for initrd in initrds_in_memory(self.initrds) {
            let digests = BankDigests::read(prediction.banks(), &initrd)?;
            prediction.extend(STUB_PCR, MeasuredBy::Linux, DigestSubject::Initrd, digests);
        }
        if let Some(line) = self.command_line {
            let text = line.as_str();
            prediction.measure(
                COMMANDS_PCR,
                MeasuredBy::Grub,
                DigestSubject::GrubCommandLine(text.to_owned()),
                &[text.as_bytes()],
            );
            prediction.measure(
                STUB_PCR,
                MeasuredBy::Linux,
                DigestSubject::CommandLine(text.to_owned()),
                &[&line.load_options()],
            );
        }
        omit_pcrs(&[IMAGES_PCR, COMMANDS_PCR, FILES_PCR], prediction);
        if let Err(why) = self.kernel.1.check_last_image() {
            prediction.omit(&[IMAGES_PCR], why);
        }
        Ok(())
    }
}

/// Returns the initrds that the kernel's stub may measure, in parts. systemd-boot pads each file to four bytes, also a single one, and joins
/// them (`initrd_prepare`); other loaders pass a single file on as it is.
fn initrds_in_memory<'a>(files: &[Bytes<'a>]) -> Vec<Vec<Bytes<'a>>> {
    const ZEROS: [u8; 3] = [0; 3];
    let mut padded = Vec::new();
    for file in files {
        padded.push(*file);
        let padding = ZEROS.get(..(4 - file.len() % 4) % 4).unwrap_or_default();
        padded.push(padding.into());
    }
    match files {
        [] => Vec::new(),
        [only] if only.len() % 4 != 0 => vec![vec![*only], padded],
        _ => vec![padded],
    }
}
