//! A boot in parts, for a pool's condition: of each part only what a digest covers, and all of it or nothing.
//!
//! Types, names, paths and sizes that no digest covers are in none of them. Each list is about **all** events of a PCR, in the order in which they were
//! extended and each as often as it was.

use serde_json::{Map, Value, json};

use super::event::{BootEvent, DatabaseName, Meaning};
use super::facts::{ExitBootServices, NotProven};
use super::signatures::{AuthorisedBy, BootCertificate, SignatureDatabase};
use super::text::LogText;
use super::{Fact, MeasuredBoot};

/// A part of a boot that a condition can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BootPart {
    SecureBoot,
    Database(DatabaseName),
    Authorities,
    SbatLevels,
    DmaProtectionDisabled,
    Images,
    Drivers,
    FirmwareVersion,
    Grub,
    Files,
    UkiSections,
    KernelConfig,
    Mok,
    ExitBootServices,
}

/// Reason why a part is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPart {
    #[error(transparent)]
    NotProven(#[from] NotProven),
    /// The part has more elements than are given out.
    #[error("it has {found} elements, more than {most}")]
    TooMany { found: usize, most: usize },
}

impl BootPart {
    /// All parts that a condition can name.
    pub const ALL: [Self; 17] = [
        Self::SecureBoot,
        Self::Database(DatabaseName::PK),
        Self::Database(DatabaseName::KEK),
        Self::Database(DatabaseName::Db),
        Self::Database(DatabaseName::Dbx),
        Self::Authorities,
        Self::SbatLevels,
        Self::DmaProtectionDisabled,
        Self::Images,
        Self::Drivers,
        Self::FirmwareVersion,
        Self::Grub,
        Self::Files,
        Self::UkiSections,
        Self::KernelConfig,
        Self::Mok,
        Self::ExitBootServices,
    ];

    /// The part of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.name() == name)
    }

    /// Returns the name of the part in conditions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SecureBoot => "secure_boot",
            Self::Database(DatabaseName::PK) => "pk",
            Self::Database(DatabaseName::KEK) => "kek",
            Self::Database(DatabaseName::Db) => "db",
            Self::Database(DatabaseName::Dbx) => "dbx",
            Self::Database(DatabaseName::Dbt) => "dbt",
            Self::Database(DatabaseName::Dbr) => "dbr",
            Self::Authorities => "authorities",
            Self::SbatLevels => "sbat_levels",
            Self::DmaProtectionDisabled => "dma_protection_disabled",
            Self::Images => "images",
            Self::Drivers => "drivers",
            Self::FirmwareVersion => "firmware_version",
            Self::Grub => "grub",
            Self::Files => "files",
            Self::UkiSections => "uki_sections",
            Self::KernelConfig => "kernel_config",
            Self::Mok => "mok",
            Self::ExitBootServices => "exit_boot_services",
        }
    }

    /// The PCR that it is read from: it has to be quoted.
    #[must_use]
    pub const fn pcr(self) -> u8 {
        match self {
            Self::FirmwareVersion => 0,
            Self::Drivers => 2,
            Self::Images => 4,
            Self::ExitBootServices => 5,
            Self::SecureBoot | Self::Database(_) | Self::Authorities | Self::SbatLevels | Self::DmaProtectionDisabled => 7,
            Self::Grub => 8,
            Self::Files => 9,
            Self::UkiSections => 11,
            Self::KernelConfig => 12,
            Self::Mok => 14,
        }
    }
}

impl MeasuredBoot {
    /// A part of it, of lists not more than `most` elements.
    ///
    /// # Errors
    /// [`NoPart`], also for a list that would be empty although such a boot has something there: "all of them" would hold of none.
    pub fn part(&self, part: BootPart, most: usize) -> Result<Value, NoPart> {
        let some = |required: &'static str| {
            move |found: &usize| match found {
                0 => Err(NotProven::Missing { pcr: part.pcr(), required }),
                _ => Ok(()),
            }
        };
        let any = |_: &usize| Ok(());
        match part {
            BootPart::SecureBoot => Ok(self.secure_boot()?.into()),
            BootPart::Database(name) => database(self.database(name)?, most),
            BootPart::Authorities => {
                let authorities = self.authorities()?.into_iter().map(|found| authority(&found.authority.by));
                list(authorities, some("certificate that authorised an image"), most)
            }
            BootPart::SbatLevels => {
                let levels = self
                    .sbat_levels()?
                    .into_iter()
                    .map(|level| whole(level, 7, "SBAT level that is kept whole"));
                list(levels.collect::<Fact<Vec<Value>>>()?.into_iter(), any, most)
            }
            BootPart::DmaProtectionDisabled => Ok(self.dma_protection_disabled()?.into()),
            BootPart::Images => list(digests(self.images(4)?), some("boot loader or kernel"), most),
            BootPart::Drivers => list(digests(self.images(2)?), any, most),
            BootPart::FirmwareVersion => Ok(whole(self.firmware_version()?, 0, "version that is kept whole")?),
            BootPart::Grub => {
                // That each is a text of GRUB's.
                self.grub_texts()?;
                list(texts(self.events_of(8)?), some("text of GRUB's"), most)
            }
            BootPart::Files => list(digests(self.files()?), some("file, initrd or command line"), most),
            BootPart::UkiSections => {
                let sections = self.uki_sections()?.into_iter();
                let sections = sections.map(|found| json!({"section": found.section.name(), "digest": found.digest}));
                list(sections, some("section of a unified kernel image"), most)
            }
            BootPart::KernelConfig => list(texts(self.kernel_config()?), any, most),
            BootPart::Mok => list(digests(self.mok_variables()?), any, most),
            BootPart::ExitBootServices => Ok(match self.exit_boot_services()? {
                ExitBootServices::NotCalled => "not_called".into(),
                ExitBootServices::Invoked => "invoked".into(),
                ExitBootServices::Success => "success".into(),
            }),
        }
    }
}

/// Returns a list of these, if they are not too many; counted before any element is made.
fn list(all: impl ExactSizeIterator<Item = Value>, may_be: impl Fn(&usize) -> Fact<()>, most: usize) -> Result<Value, NoPart> {
    let found = all.len();
    may_be(&found)?;
    match found > most {
        true => Err(NoPart::TooMany { found, most }),
        false => Ok(all.collect()),
    }
}

/// Removes systemd's word, which is not content, and the same on every machine.
fn contents(events: Vec<&BootEvent>) -> Vec<&BootEvent> {
    events.into_iter().filter(|event| event.meaning != Meaning::OsSeparator).collect()
}

fn digests(events: Vec<&BootEvent>) -> impl ExactSizeIterator<Item = Value> {
    contents(events).into_iter().map(|event| event.digest.to_string().into())
}

/// Converts events, each with its text, if the digest is the hash of the text and the text is complete.
fn texts(events: Vec<&BootEvent>) -> impl ExactSizeIterator<Item = Value> {
    contents(events).into_iter().map(|event| {
        let text = match &event.meaning {
            Meaning::GrubText { text, .. } | Meaning::KernelCommandLine { text } if event.is_content() => text.whole(),
            _ => None,
        };
        let mut members = Map::new();
        members.insert("digest".to_owned(), event.digest.to_string().into());
        members.extend(text.map(|text| ("text".to_owned(), text.into())));
        Value::Object(members)
    })
}

fn whole(text: &LogText, pcr: u8, required: &'static str) -> Fact<Value> {
    text.whole().map(Value::from).ok_or(NotProven::Missing { pcr, required })
}

fn authority(by: &AuthorisedBy) -> Value {
    match by {
        AuthorisedBy::Certificate(BootCertificate { sha256, subject, .. }) => {
            json!({"by": "certificate", "sha256": sha256, "subject": subject})
        }
        AuthorisedBy::Hash { sha256, .. } => json!({"by": "image", "sha256": sha256}),
    }
}

/// Converts a database; of its hashes only the number, as a dbx has more than a condition gets.
fn database(database: &SignatureDatabase, most: usize) -> Result<Value, NoPart> {
    let certificates = database
        .certificates
        .iter()
        .map(|certificate| certificate.sha256.to_string().into());
    let versions = database
        .security_versions
        .iter()
        .map(|version| json!({"application": version.application.to_string(), "major": version.major, "minor": version.minor}));
    let any = |_: &usize| Ok(());
    Ok(json!({
        "certificates": list(certificates, any, most)?,
        "hashes": database.hashes.len(),
        "security_versions": list(versions, any, most)?,
        "complete": database.is_complete(),
    }))
}
