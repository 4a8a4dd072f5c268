//! A unified kernel image: systemd's stub with a kernel, its initrd and its command line as sections.
//!
//! The stub measures the sections into PCR 11 before it uses them, in the order of a list and not of the file: for each section that is there its
//! name with a zero behind it, then its content as it is in memory, without the file's padding. Which sections are on the list depends on the
//! stub's version: read in systemd's sources, `src/boot/efi/stub.c` and `src/fundamental/tpm-pcr.h` of 252 to 253, `uki.h` of 254 to 257.

use std::fmt;

use super::bytes::{ByteReadError, Bytes};
use super::pe::{PeError, PeImage, PeSection};
use super::{DigestSubject, MeasuredBy, Prediction};

/// The PCR of the sections (`TPM2_PCR_KERNEL_BOOT`).
pub const SECTIONS_PCR: u8 = 11;

/// The section by which an image states its stub, and the beginning of its content.
const MAGIC_SECTION: &[u8] = b".sdmagic";
const MAGIC: &[u8] = b"#### LoaderInfo: ";

/// Longest version that is read: a distribution's is some 20 bytes.
const VERSION_LIMIT_BYTES: usize = 128;

/// The first version that measures sections.
pub(super) const FIRST_VERSION: u32 = 252;
/// The last one whose source was read.
pub(super) const LAST_VERSION: u32 = 257;

/// The list, in its order, and the version that each section is measured since.
const MEASURED: [(&str, u32); 13] = [
    (".linux", 252),
    (".osrel", 252),
    (".cmdline", 252),
    (".initrd", 252),
    (".ucode", 256),
    (".splash", 252),
    (".dtb", 252),
    (".uname", 254),
    (".sbat", 254),
    (".pcrpkey", 252),
    (".profile", 257),
    (".dtbauto", 257),
    (".hwids", 257),
];

/// Sections whose use depends on the machine, or on what is chosen when it boots: an image with one of these measures more than one thing.
const DEPENDENT: [&str; 4] = [".profile", ".dtbauto", ".hwids", ".efifw"];

/// Last version that compares names by prefix: a section also matches a name that its own begins with.
const PREFIX_MATCH_LAST: u32 = 255;

/// A unified kernel image whose measurements can be told.
#[derive(Debug, Clone)]
pub struct Uki<'a> {
    image: PeImage<'a>,
    stub: SystemdVersion,
}

/// The version of a program of systemd's: of the stub, or of systemd-boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemdVersion {
    /// Number of the release, such as 252.
    pub release: u32,
    /// All of it: `252.39-1~deb12u2`.
    text: String,
}

impl fmt::Display for SystemdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reason why an image's measurements cannot be predicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UkiError {
    /// The file is not a PE image.
    #[error(transparent)]
    Image(#[from] PeError),
    /// The image is not a unified kernel image.
    #[error("not a unified kernel image: section {0} is missing")]
    SectionMissing(&'static str),
    /// The section that has the version says something else.
    #[error("its section .sdmagic does not name its version of {program}: \"{said}\"")]
    Version { program: &'static str, said: String },
    /// A stub that measures nothing, or whose measurements are not known.
    #[error("its systemd-stub is {found}: only {FIRST_VERSION} to {LAST_VERSION} are supported")]
    UnknownVersion { found: SystemdVersion },
    /// Stubs differ in which of them they take.
    #[error("it has more than one section that systemd-stub {stub} may take for {section}")]
    Ambiguous { section: &'static str, stub: SystemdVersion },
    /// The measurements are decided when the image boots.
    #[error("it has the section {0}: its measurements depend on the machine, or on the chosen profile")]
    Dependent(&'static str),
}

impl<'a> Uki<'a> {
    /// Parses a unified kernel image from its file.
    ///
    /// # Errors
    /// [`UkiError`].
    pub fn parse(file: impl Into<Bytes<'a>>) -> Result<Self, UkiError> {
        let image = PeImage::parse(file)?;
        let stub = version(&image, "systemd-stub")?;
        if !(FIRST_VERSION..=LAST_VERSION).contains(&stub.release) {
            return Err(UkiError::UnknownVersion { found: stub });
        }
        let has = |name: &str| image.sections().iter().any(|section| section.name.as_bytes() == name.as_bytes());
        if let Some(name) = DEPENDENT.into_iter().find(|name| has(name)) {
            return Err(UkiError::Dependent(name));
        }
        if !has(".linux") {
            return Err(UkiError::SectionMissing(".linux"));
        }
        let uki = Self { image, stub };
        for (section, _) in uki.list().chain([(".pcrsig", FIRST_VERSION)]) {
            if uki.candidates(section).count() > 1 {
                return Err(UkiError::Ambiguous { section, stub: uki.stub });
            }
        }
        Ok(uki)
    }

    /// Returns the PE image itself.
    #[must_use]
    pub const fn image(&self) -> &PeImage<'a> {
        &self.image
    }

    #[must_use]
    pub const fn stub(&self) -> &SystemdVersion {
        &self.stub
    }

    /// Returns a section that the stub knows; a section without content does not count.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&PeSection<'a>> {
        let mut sections = self.image.sections().iter();
        sections.find(|section| section.name.as_bytes() == name.as_bytes() && section.memory_bytes() > 0)
    }

    /// The sections that this stub measures, in its order.
    pub fn measured(&self) -> impl Iterator<Item = &PeSection<'a>> {
        self.list().filter_map(|(name, _)| self.section(name))
    }

    /// Adds the stub's measurements in PCR 11.
    pub(crate) fn measure_sections(&self, prediction: &mut Prediction) -> Result<(), ByteReadError> {
        for section in self.measured() {
            let name = section.name;
            let digests = section.digests(prediction.banks())?;
            prediction.measure(
                SECTIONS_PCR,
                MeasuredBy::SystemdStub,
                DigestSubject::SectionName(name),
                &[name.as_bytes(), &[0]],
            );
            prediction.extend(SECTIONS_PCR, MeasuredBy::SystemdStub, DigestSubject::Section(name), digests);
        }
        Ok(())
    }

    fn list(&self) -> impl Iterator<Item = (&'static str, u32)> + use<'a> {
        let release = self.stub.release;
        MEASURED.into_iter().filter(move |(_, since)| *since <= release)
    }

    /// Returns the sections that this stub may use as the wanted one.
    fn candidates<'s>(&'s self, wanted: &'s str) -> impl Iterator<Item = &'s PeSection<'a>> {
        let prefix = self.stub.release <= PREFIX_MATCH_LAST;
        self.image.sections().iter().filter(move |section| {
            let name = section.name.as_bytes();
            name == wanted.as_bytes() || (prefix && name.starts_with(wanted.as_bytes()))
        })
    }
}

/// Returns the release of systemd that an image states for this program.
pub(super) fn version(image: &PeImage<'_>, program: &'static str) -> Result<SystemdVersion, UkiError> {
    let mut sections = image.sections().iter();
    let magic = sections.find(|section| section.name.as_bytes() == MAGIC_SECTION);
    let magic = magic.ok_or(UkiError::SectionMissing(".sdmagic"))?;
    let text = magic.content().unwrap_or_default().first(VERSION_LIMIT_BYTES);
    let text = text.read(VERSION_LIMIT_BYTES).map_err(PeError::Read)?;
    let refused = || UkiError::Version {
        program,
        said: text.escape_ascii().to_string(),
    };
    let version = text.strip_prefix(MAGIC).and_then(|text| text.strip_prefix(program.as_bytes()));
    let version = version.and_then(|text| text.strip_prefix(b" ")).ok_or_else(refused)?;
    let version: Vec<u8> = version.iter().copied().take_while(|byte| byte.is_ascii_graphic()).collect();
    let version = String::from_utf8(version).map_err(|_| refused())?;
    let digits = version.len() - version.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let release = version.get(..digits).and_then(|digits| digits.parse().ok()).ok_or_else(refused)?;
    Ok(SystemdVersion { release, text: version })
}
