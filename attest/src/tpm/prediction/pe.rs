//! An image that firmware starts: a PE file, and its digest as PCR 4 has it.
//!
//! Firmware measures an image by its Authenticode digest ("Windows Authenticode Portable Executable Signature Format" 1.0, "Calculating the PE
//! Image Hash"; edk2 `SecurityPkg/Tcg/Tcg2Dxe/MeasureBootPeCoff.c`): all of the file but its checksum, the directory entry of its certificates, and
//! the certificates themselves. So an image has the same digest before and after it is signed.
//!
//! The format allows for files of which readers make different things: sections that overlap or leave gaps, certificates that are not at the end.
//! A linker makes none of these, and of such a file nothing is predicted.

use std::fmt;

use object::LittleEndian as LE;
use object::pe::{IMAGE_DIRECTORY_ENTRY_SECURITY, ImageDosHeader, ImageNtHeaders64, ImageSectionHeader};
use object::read::pe::ImageNtHeaders;

use super::BankDigests;
use super::bytes::{ByteReadError, Bytes};
use crate::tpm::wire::HashAlg;

/// Largest image that is read: several times a unified kernel image with all of its firmware files.
pub const IMAGE_LIMIT_BYTES: usize = 1024 * 1024 * 1024;

/// Most memory of an image, over all of its sections, that the file has not: zeros are hashed, too, and cost the file nothing. Debian's
/// kernels 6.1 and 6.12 have less than half a MiB of it.
pub const ZEROS_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// Most sections that an image may have. The PE format's own limit is 96; images with many profiles have more.
pub const SECTIONS_LIMIT: usize = 512;

/// The part of a file that its headers have to be in: those of 512 sections have some 20 KiB.
pub(super) const HEADERS_LIMIT_BYTES: usize = 128 * 1024;
/// Largest section that is read into memory: a command line, a release, or a file that a stub packs into an archive.
pub(super) const SMALL_SECTION_LIMIT_BYTES: usize = 1024 * 1024;

/// Offset of the checksum in the PE32+ optional header, and offset of its data directories (PE format, "Optional Header").
const CHECKSUM_OFFSET_BYTES: usize = 64;
const DIRECTORIES_OFFSET_BYTES: usize = 112;
/// PE signature and COFF file header, which precede the optional header.
const FILE_HEADER_BYTES: usize = 24;
const CHECKSUM_BYTES: usize = 4;
const DIRECTORY_BYTES: usize = 8;
const SECURITY: usize = IMAGE_DIRECTORY_ENTRY_SECURITY;

/// A well-formed PE32+ image.
#[derive(Debug, Clone)]
pub struct PeImage<'a> {
    /// The file in the pieces that the digest is over, in their order.
    hashed: [Bytes<'a>; 3],
    sections: Vec<PeSection<'a>>,
    image_version: u16,
    is_signed: bool,
}

/// A section, as the image is in memory.
#[derive(Debug, Clone, Copy)]
pub struct PeSection<'a> {
    /// At most eight bytes.
    pub name: SectionName,
    /// The part of its content that the file has, without padding.
    file: Bytes<'a>,
    /// Number of zeros that follow that in memory.
    zeros: usize,
}

/// The name of a section, without trailing zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SectionName([u8; 8]);

impl SectionName {
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let length = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        self.0.get(..length).unwrap_or_default()
    }
}

impl fmt::Display for SectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_bytes().escape_ascii(), f)
    }
}

impl fmt::Debug for SectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reason why the firmware's measurement of a file cannot be predicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeError {
    /// Larger than is read.
    #[error("it has {bytes} bytes, more than {IMAGE_LIMIT_BYTES}")]
    TooLarge { bytes: usize },
    /// An error when reading the file.
    #[error(transparent)]
    Read(#[from] ByteReadError),
    /// The headers are not those of a 64-bit PE image.
    #[error("not a 64-bit PE image: {0}")]
    Headers(#[from] object::read::Error),
    /// The headers' own length.
    #[error("its headers declare {stated} bytes; at least {least} are needed, and the file has {file}")]
    HeaderSize { stated: usize, least: usize, file: usize },
    /// More sections than are read.
    #[error("it has {count} sections, more than {SECTIONS_LIMIT}")]
    Sections { count: usize },
    /// A section that is not in the file.
    #[error("its section {name} is at {start} with {bytes} bytes, in a file of {file}")]
    SectionOutside {
        name: SectionName,
        start: usize,
        bytes: usize,
        file: usize,
    },
    /// A section that does not begin where the one before it ends.
    #[error(
        "its section {name} begins at {start}, before the end of the previous section at {end}: implementations compute different digests of such a file"
    )]
    NotContiguous { name: SectionName, start: usize, end: usize },
    /// An image that is much larger in memory than the file.
    #[error("its sections have {bytes} bytes in memory that are not in the file, up to {name}: more than {ZEROS_LIMIT_BYTES}")]
    Zeros { name: SectionName, bytes: usize },
    /// Certificates that are not at the end of the file, or in its sections.
    #[error("its certificates are at {start} with {bytes} bytes; they have to be behind {sections}, and up to the file's end at {file}")]
    Certificates {
        start: usize,
        bytes: usize,
        sections: usize,
        file: usize,
    },
}

impl<'a> PeImage<'a> {
    /// Parses an image from its file.
    ///
    /// # Errors
    /// [`PeError`].
    pub fn parse(file: impl Into<Bytes<'a>>) -> Result<Self, PeError> {
        let file = file.into();
        if file.len() > IMAGE_LIMIT_BYTES {
            return Err(PeError::TooLarge { bytes: file.len() });
        }
        let head = file.first(HEADERS_LIMIT_BYTES).read(HEADERS_LIMIT_BYTES)?;
        let head: &[u8] = &head;
        let nt_headers = ImageDosHeader::parse(head)?.nt_headers_offset();
        let mut offset = u64::from(nt_headers);
        let (headers, directories) = ImageNtHeaders64::parse(head, &mut offset)?;
        let count = usize::from(headers.file_header.number_of_sections.get(LE));
        if count > SECTIONS_LIMIT {
            return Err(PeError::Sections { count });
        }
        let table = headers.sections(head, offset)?;

        let optional_header = size(nt_headers).saturating_add(FILE_HEADER_BYTES);
        let checksum = optional_header.saturating_add(CHECKSUM_OFFSET_BYTES);
        let security = optional_header.saturating_add(DIRECTORIES_OFFSET_BYTES + SECURITY * DIRECTORY_BYTES);
        let table_end = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .saturating_add(count.saturating_mul(size_of::<ImageSectionHeader>()));
        let header_bytes = size(headers.optional_header.size_of_headers.get(LE));
        if header_bytes < table_end || header_bytes > file.len() {
            return Err(PeError::HeaderSize {
                stated: header_bytes,
                least: table_end,
                file: file.len(),
            });
        }

        let sections: Vec<PeSection<'a>> = table.iter().map(|header| section(file, header)).collect::<Result<_, _>>()?;
        let mut zeros: usize = 0;
        for section in &sections {
            zeros = zeros.saturating_add(section.zeros);
            if zeros > ZEROS_LIMIT_BYTES {
                return Err(PeError::Zeros {
                    name: section.name,
                    bytes: zeros,
                });
            }
        }
        let sections_end = contiguous(header_bytes, table.iter())?;
        let directory = directories.iter().nth(SECURITY);
        let certificates = match directory.map(|entry| (size(entry.virtual_address.get(LE)), size(entry.size.get(LE)))) {
            None | Some((0, 0)) => 0,
            Some((start, bytes)) if start >= sections_end && start.checked_add(bytes) == Some(file.len()) => bytes,
            Some((start, bytes)) => {
                return Err(PeError::Certificates {
                    start,
                    bytes,
                    sections: sections_end,
                    file: file.len(),
                });
            }
        };

        let end = file.len() - certificates;
        let hidden_end = if directory.is_some() {
            [checksum + CHECKSUM_BYTES..security, security + DIRECTORY_BYTES..end]
        } else {
            [checksum + CHECKSUM_BYTES..end, end..end]
        };
        // The optional header was read, and all of it is before the certificates: none of the ranges is outside.
        let [second, third] = hidden_end.map(|range| file.part(range.start, range.len()).unwrap_or_default());
        Ok(Self {
            hashed: [file.first(checksum), second, third],
            sections,
            image_version: headers.optional_header.major_image_version.get(LE),
            is_signed: certificates > 0,
        })
    }

    /// Its Authenticode digest: what firmware extends into PCR 4 when it loads the image.
    ///
    /// # Errors
    /// [`ByteReadError`].
    pub fn authenticode(&self, banks: &[HashAlg]) -> Result<BankDigests, ByteReadError> {
        BankDigests::read(banks, &self.hashed)
    }

    /// Its sections, in the order of their table.
    #[must_use]
    pub fn sections(&self) -> &[PeSection<'a>] {
        &self.sections
    }

    /// MajorImageVersion: what Linux says by it of its EFI stub (include/linux/pe.h, LINUX_EFISTUB_MAJOR_VERSION).
    #[must_use]
    pub const fn image_version(&self) -> u16 {
        self.image_version
    }

    /// Returns whether the image has a signature. The signer and its validity are not checked.
    #[must_use]
    pub const fn is_signed(&self) -> bool {
        self.is_signed
    }
}

impl<'a> PeSection<'a> {
    /// Returns the size of the section in memory, in bytes.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.file.len() + self.zeros
    }

    /// Its content in memory, if the file has all of it.
    #[must_use]
    pub const fn content(&self) -> Option<Bytes<'a>> {
        if self.zeros == 0 { Some(self.file) } else { None }
    }

    /// The digest of its content in memory.
    ///
    /// # Errors
    /// [`ByteReadError`].
    pub fn digests(&self, banks: &[HashAlg]) -> Result<BankDigests, ByteReadError> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut parts = vec![self.file];
        let mut left = self.zeros;
        while left > 0 {
            let part = ZEROS.get(..left).unwrap_or(&ZEROS);
            parts.push(part.into());
            left -= part.len();
        }
        BankDigests::read(banks, &parts)
    }
}

fn section<'a>(file: Bytes<'a>, header: &ImageSectionHeader) -> Result<PeSection<'a>, PeError> {
    let name = SectionName(header.name);
    let (start, bytes) = (size(header.pointer_to_raw_data.get(LE)), size(header.size_of_raw_data.get(LE)));
    let memory = size(header.virtual_size.get(LE));
    // A section without content in the file may say that it is anywhere.
    let raw = match bytes {
        0 => Bytes::default(),
        _ => file.part(start, bytes).ok_or(PeError::SectionOutside {
            name,
            start,
            bytes,
            file: file.len(),
        })?,
    };
    let content = raw.first(memory);
    Ok(PeSection {
        name,
        file: content,
        zeros: memory - content.len(),
    })
}

/// Returns the end of the sections, if each begins at the end of the previous one, or of the headers.
fn contiguous<'h>(header_bytes: usize, headers: impl Iterator<Item = &'h ImageSectionHeader>) -> Result<usize, PeError> {
    let mut places: Vec<(usize, usize, SectionName)> = headers
        .map(|header| {
            (
                size(header.pointer_to_raw_data.get(LE)),
                size(header.size_of_raw_data.get(LE)),
                SectionName(header.name),
            )
        })
        .filter(|(_, bytes, _)| *bytes != 0)
        .collect();
    places.sort_by_key(|(start, ..)| *start);
    let mut end = header_bytes;
    for (start, bytes, name) in places {
        if start != end {
            return Err(PeError::NotContiguous { name, start, end });
        }
        end = start.saturating_add(bytes);
    }
    Ok(end)
}

/// A field of 32 bits as a length. Where it would not fit, no file is as long.
fn size(field: u32) -> usize {
    usize::try_from(field).unwrap_or(usize::MAX)
}
