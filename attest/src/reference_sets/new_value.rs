//! A value that a machine has shown, and no generation has.

use std::fmt;

use attest_wire::HashAlg;
use serde::{Deserialize, Serialize};

use super::loaded::{ReferenceKind, ReferenceQuery};
use super::values::{Digests, EventValue, PcrValue, SectionValue, Values};
use crate::values::HexDigest;

/// Length of a digest in a line for people, in characters: enough to find it again.
const SHORT_DIGEST_CHARS: usize = 16;

/// A value that an administrator may accept. Two with the same [`NewValue::key`] are the same, regardless of the names that machines give
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewValue {
    /// The category of the value in a set.
    pub wanted: ReferenceQuery,
    pub is: Is,
    /// Name of the value, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Set if the digest is that of the name's very text; otherwise the name is the node's own claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proven: bool,
}

/// Content of the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Is {
    Digest {
        bank: HashAlg,
        digest: HexDigest,
        /// The section of a unified kernel image whose content it is, without the dot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        section: Option<String>,
    },
    Text(String),
}

impl NewValue {
    /// Creates a value from a digest of this bank, without a name.
    #[must_use]
    pub const fn digest(wanted: ReferenceQuery, bank: HashAlg, digest: HexDigest) -> Self {
        Self {
            wanted,
            is: Is::Digest {
                bank,
                digest,
                section: None,
            },
            name: None,
            proven: false,
        }
    }

    /// Returns the category and the content as text, without the name.
    #[must_use]
    pub fn key(&self) -> String {
        let wanted = self.wanted.label();
        match &self.is {
            Is::Digest { bank, digest, section } => match section {
                Some(section) => format!("{wanted} .{section} {bank} {digest}"),
                None => format!("{wanted} {bank} {digest}"),
            },
            Is::Text(text) => format!("{wanted} {text:?}"),
        }
    }

    /// Returns the value as a set contains it.
    #[must_use]
    pub fn value(&self) -> ReferenceKind<'_> {
        match &self.is {
            Is::Digest {
                digest,
                section: Some(section),
                ..
            } => ReferenceKind::Section(section, digest),
            Is::Digest { digest, .. } => ReferenceKind::Digest(digest),
            Is::Text(text) => ReferenceKind::Text(text),
        }
    }

    /// Returns the name in words that say who gives it; empty without a name.
    #[must_use]
    pub fn called(&self) -> String {
        match (&self.name, self.proven) {
            (None, _) => String::new(),
            (Some(name), true) => format!("{name:?}"),
            (Some(name), false) => format!("the node names it {name:?}"),
        }
    }

    /// Puts it among values.
    pub fn add_to(&self, values: &mut Values) {
        let (bank, digest, section) = match &self.is {
            Is::Text(text) => return values.firmware_versions.push(text.clone()),
            Is::Digest { bank, digest, section } => (*bank, digest, section),
        };
        let digests: Digests = [(bank, digest.clone())].into();
        if let Some(section) = section {
            let section = section.clone();
            return values.uki_sections.push(SectionValue { section, digests });
        }
        let list = match self.wanted {
            ReferenceQuery::Pcr(pcr) => return values.pcrs.push(PcrValue { pcr, digests }),
            ReferenceQuery::Images => &mut values.images,
            ReferenceQuery::Drivers => &mut values.drivers,
            ReferenceQuery::Authorities => &mut values.authorities,
            ReferenceQuery::Pcr7Events => &mut values.pcr_7_events,
            ReferenceQuery::Grub => &mut values.grub,
            ReferenceQuery::Files => &mut values.files,
            ReferenceQuery::KernelConfig => &mut values.kernel_config,
            ReferenceQuery::Mok => &mut values.mok,
            // Of these one value alone says nothing, or it is no digest.
            ReferenceQuery::Dbx | ReferenceQuery::UkiSections | ReferenceQuery::FirmwareVersions => return,
        };
        let name = self.name.clone();
        list.push(EventValue { digests, name });
    }
}

/// `PCR 4, boot loader or kernel: sha256 ab12…`
impl fmt::Display for NewValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.wanted.description())?;
        match &self.is {
            Is::Digest { bank, digest, section } => {
                if let Some(section) = section {
                    write!(f, " .{section}")?;
                }
                let digest: String = digest.to_string().chars().take(SHORT_DIGEST_CHARS).collect();
                write!(f, ": {bank} {digest}…")
            }
            Is::Text(text) => write!(f, ": {text:?}"),
        }
    }
}

impl ReferenceQuery {
    /// Returns the name of the category in files.
    #[must_use]
    pub fn label(self) -> String {
        match self {
            Self::Pcr(pcr) => format!("pcr-{pcr}"),
            Self::Images => "images".to_owned(),
            Self::Drivers => "drivers".to_owned(),
            Self::Authorities => "authorities".to_owned(),
            Self::Pcr7Events => "pcr_7_events".to_owned(),
            Self::Dbx => "dbx".to_owned(),
            Self::Grub => "grub".to_owned(),
            Self::Files => "files".to_owned(),
            Self::UkiSections => "uki_sections".to_owned(),
            Self::KernelConfig => "kernel_config".to_owned(),
            Self::Mok => "mok".to_owned(),
            Self::FirmwareVersions => "firmware_versions".to_owned(),
        }
    }

    /// Describes the category and its PCR, for people.
    #[must_use]
    pub fn description(self) -> String {
        let words = match self {
            Self::Pcr(pcr) => return format!("PCR {pcr}"),
            Self::Images => "PCR 4, boot loader or kernel",
            Self::Drivers => "PCR 2, driver",
            Self::Authorities => "PCR 7, certificate that authorised an image",
            Self::Pcr7Events => "PCR 7, event of unknown meaning",
            Self::Dbx => "PCR 7, dbx",
            Self::Grub => "PCR 8, text of GRUB's",
            Self::Files => "PCR 9, file, initrd or command line",
            Self::UkiSections => "PCR 11, section of the unified kernel image",
            Self::KernelConfig => "PCR 12, command line, credential or add-on",
            Self::Mok => "PCR 14, variable of shim's",
            Self::FirmwareVersions => "PCR 0, version of the firmware",
        };
        words.to_owned()
    }
}
