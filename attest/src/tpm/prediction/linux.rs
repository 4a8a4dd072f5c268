//! The kernel's own EFI stub: what Linux measures before it leaves the firmware.
//!
//! Linux extends into PCR 9 the options that it was started with, which are its command line, and the initrd, if it got that by the protocol
//! LoadFile2 (`drivers/firmware/efi/libstub/efi-stub-helper.c`). That it does, and in this order, was seen of 6.1 and 6.12.

use super::bytes::Bytes;
use super::pe::{HEADERS_LIMIT_BYTES, PeError, PeImage};
use super::{BankDigests, DigestSubject, MeasuredBy, Prediction};

/// The PCR of options and initrd.
pub const STUB_PCR: u8 = 9;

/// The first kernel of which it was seen what its stub measures.
const FIRST_VERSION: (u32, u32) = (6, 1);

/// Longest command line: COMMAND_LINE_SIZE of x86 and of ARM64.
const COMMAND_LINE_LIMIT_BYTES: usize = 2048;

/// Positions in a kernel's header that lead to its version (Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header").
const HEADER_MAGIC_OFFSET_BYTES: usize = 0x202;
const HEADER_MAGIC: &[u8] = b"HdrS";
const VERSION_POINTER_OFFSET_BYTES: usize = 0x20e;
/// Position that the version pointer counts from.
const VERSION_BASE_BYTES: usize = 0x200;
/// Longest version text that is read.
const VERSION_LIMIT_BYTES: usize = 256;

/// Position and value that mark ARM64's `Image` (Documentation/arch/arm64/booting.rst).
const ARM64_MAGIC_OFFSET_BYTES: usize = 56;
const ARM64_MAGIC: &[u8] = b"ARM\x64";
/// Position and value that mark a compressed kernel with a decompressor that is an EFI application (`drivers/firmware/efi/libstub/zboot-header.S`).
const ZBOOT_MAGIC_OFFSET_BYTES: usize = 4;
const ZBOOT_MAGIC: &[u8] = b"zimg";

/// Format of a kernel's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KernelFormat {
    /// x86's, whose header states the version, major and minor.
    X86((u32, u32)),
    /// ARM64's `Image`, which states no version.
    Arm64,
    /// A compressed kernel in an EFI application, as on ARM64.
    Zboot,
    Other,
}

/// A kernel with an EFI stub.
#[derive(Debug, Clone)]
pub struct Kernel<'a> {
    image: PeImage<'a>,
    format: KernelFormat,
}

/// A command line of which every boot loader and stub makes the same options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine(String);

/// Reason why the measurements of a command line cannot be predicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandLineError {
    /// The command line has no words.
    #[error("it is empty")]
    Empty,
    /// More than a kernel takes.
    #[error("it has {bytes} bytes, more than {COMMAND_LINE_LIMIT_BYTES}")]
    TooLong { bytes: usize },
    /// A byte that versions treat differently.
    #[error(
        "it has the byte {byte:#04x} at {position}: releases of systemd and GRUB differ in their handling of characters other than printable ASCII"
    )]
    Byte { byte: u8, position: usize },
    /// A leading space, which some releases strip.
    #[error("it begins with a space, which some releases of systemd keep")]
    LeadingSpace,
}

impl CommandLine {
    /// Parses a command line as a file has it: trailing spaces, line ends and zeros are removed.
    ///
    /// # Errors
    /// [`CommandLineError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, CommandLineError> {
        let end = bytes
            .iter()
            .rposition(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | 0))
            .map_or(0, |last| last + 1);
        let bytes = bytes.get(..end).unwrap_or_default();
        if bytes.is_empty() {
            return Err(CommandLineError::Empty);
        }
        if bytes.len() >= COMMAND_LINE_LIMIT_BYTES {
            return Err(CommandLineError::TooLong { bytes: bytes.len() });
        }
        if let Some((position, &byte)) = bytes.iter().enumerate().find(|(_, byte)| !matches!(byte, b' '..=b'~')) {
            return Err(CommandLineError::Byte { byte, position });
        }
        if bytes.first() == Some(&b' ') {
            return Err(CommandLineError::LeadingSpace);
        }
        Ok(Self(String::from_utf8_lossy(bytes).into_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the options as systemd's stub gives them to an EFI application: UTF-16, with a zero at the end.
    #[must_use]
    pub fn load_options(&self) -> Vec<u8> {
        self.0.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
    }

    /// Returns the options as GRUB 2.12 gives them: UTF-16, without the zero.
    #[must_use]
    pub fn without_end(&self) -> Vec<u8> {
        self.0.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }
}

impl<'a> Kernel<'a> {
    /// Parses a kernel from its file.
    ///
    /// # Errors
    /// [`PeError`]: a file without an EFI stub is not an image.
    pub fn parse(file: impl Into<Bytes<'a>>) -> Result<Self, PeError> {
        let file = file.into();
        Ok(Self {
            image: PeImage::parse(file)?,
            // What it points to with 16 bits is there, too.
            format: KernelFormat::detect(&file.first(HEADERS_LIMIT_BYTES).read(HEADERS_LIMIT_BYTES)?),
        })
    }

    #[must_use]
    pub const fn image(&self) -> &PeImage<'a> {
        &self.image
    }

    /// Returns the version, major and minor, if the kernel states it.
    #[must_use]
    pub const fn version(&self) -> Option<(u32, u32)> {
        match self.format {
            KernelFormat::X86(version) => Some(version),
            _ => None,
        }
    }

    /// Checks that the firmware loads nothing after this image. The decompressor of a compressed kernel has the firmware load the kernel in it, up to some
    /// version.
    ///
    /// # Errors
    /// The reason why that is not known.
    pub(crate) fn check_last_image(&self) -> Result<(), &'static str> {
        match self.format {
            KernelFormat::Zboot => {
                Err("the kernel is compressed (EFI zboot): its decompressor may have the firmware load the kernel in it, too")
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the kernel can get its initrd by LoadFile2, as kernels since 5.8 do. Older ones are started in another way, which
    /// measures nothing.
    #[must_use]
    pub const fn loads_initrd(&self) -> bool {
        self.image.image_version() >= 1
    }

    /// Adds the measurements of its stub in PCR 9: the options as they are in memory, and the initrd that it is given.
    pub(crate) fn measure_stub(
        &self,
        prediction: &mut Prediction,
        line: &CommandLine,
        options: &[u8],
        initrd: Option<BankDigests>,
    ) -> Result<(), String> {
        match self.format {
            KernelFormat::X86(version) if version >= FIRST_VERSION => {}
            KernelFormat::X86((major, minor)) => return Err(format!("the measurements of Linux {major}.{minor} cannot be predicted")),
            KernelFormat::Arm64 => {
                return Err("the kernel is for ARM64, whose stub was not seen to measure what is computed here".to_owned());
            }
            KernelFormat::Zboot => return Err("the kernel is compressed (EFI zboot), so its version cannot be read".to_owned()),
            KernelFormat::Other => return Err("the kernel's version cannot be read from its header".to_owned()),
        }
        prediction.measure(
            STUB_PCR,
            MeasuredBy::Linux,
            DigestSubject::CommandLine(line.as_str().to_owned()),
            &[options],
        );
        if let Some(digests) = initrd {
            prediction.extend(STUB_PCR, MeasuredBy::Linux, DigestSubject::Initrd, digests);
        }
        Ok(())
    }
}

impl KernelFormat {
    fn detect(file: &[u8]) -> Self {
        let is = |offset: usize, magic| file.get(offset..).is_some_and(|rest| rest.starts_with(magic));
        match version(file) {
            Some(version) => Self::X86(version),
            None if is(ZBOOT_MAGIC_OFFSET_BYTES, ZBOOT_MAGIC) => Self::Zboot,
            None if is(ARM64_MAGIC_OFFSET_BYTES, ARM64_MAGIC) => Self::Arm64,
            None => Self::Other,
        }
    }
}

fn version(file: &[u8]) -> Option<(u32, u32)> {
    file.get(HEADER_MAGIC_OFFSET_BYTES..)?.strip_prefix(HEADER_MAGIC)?;
    let pointer = file.get(VERSION_POINTER_OFFSET_BYTES..)?.first_chunk::<2>()?;
    let text = file.get(usize::from(u16::from_le_bytes(*pointer)).checked_add(VERSION_BASE_BYTES)?..)?;
    let text = text.get(..VERSION_LIMIT_BYTES).unwrap_or(text);
    let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
    let mut numbers = std::str::from_utf8(text.get(..end)?).ok()?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}
