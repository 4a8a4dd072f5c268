use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ReferenceSetError, VALUES_LIMIT};

use crate::values::HexDigest;
use attest_wire::HashAlg;

/// The PCRs of a PC Client TPM: 0 to 23.
const PCR_COUNT: usize = 24;

/// A digest for each bank for which one is known.
pub type Digests = BTreeMap<HashAlg, HexDigest>;

/// Values of one generation. A list that is left out has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Values {
    /// Values of whole PCRs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pcrs: Vec<PcrValue>,
    /// Boot loaders, kernels and unified kernel images, by their Authenticode digests: PCR 4.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<EventValue>,
    /// Drivers and option ROMs, by their Authenticode digests: PCR 2.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drivers: Vec<EventValue>,
    /// Signers of the boot chain, by the SHA-256 of their DER: PCR 7. An image that is authorised by its own hash has that hash.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub authorities: Vec<EventValue>,
    /// Events of PCR 7 whose meaning is not known, and that do not prevent the proof of Secure Boot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pcr_7_events: Vec<EventValue>,
    /// SHA-256 of images that have to be in dbx: PCR 7.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dbx: Vec<HexDigest>,
    /// GRUB's commands, and the command lines of what it loads: PCR 8.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub grub: Vec<EventValue>,
    /// Files that GRUB has read; the initrd and the command line (in UTF-16) that the kernel's stub was given: PCR 9.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<EventValue>,
    /// Sections of unified kernel images: PCR 11.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uki_sections: Vec<SectionValue>,
    /// Input of a unified kernel image from outside of it: PCR 12.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernel_config: Vec<EventValue>,
    /// shim's variables: PCR 14.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mok: Vec<EventValue>,
    /// The firmware's version, in words: PCR 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub firmware_versions: Vec<String>,
}

/// The value of a PCR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcrValue {
    pub pcr: u8,
    pub digests: Digests,
}

/// Accepted digests of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventValue {
    pub digests: Digests,
    /// Name for people; the default is the name of the generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// The content of a section of a unified kernel image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SectionValue {
    /// Its name, without the dot.
    pub section: String,
    pub digests: Digests,
}

/// Names of the lists of events, as files have them.
const LISTS: [&str; 8] = [
    "images",
    "drivers",
    "authorities",
    "pcr_7_events",
    "grub",
    "files",
    "kernel_config",
    "mok",
];

impl Values {
    /// The lists of events, all but those of sections.
    pub(super) fn lists(&self) -> [&[EventValue]; 8] {
        [
            &self.images,
            &self.drivers,
            &self.authorities,
            &self.pcr_7_events,
            &self.grub,
            &self.files,
            &self.kernel_config,
            &self.mok,
        ]
    }

    /// Returns the same lists with their names.
    pub(super) fn named_lists(&self) -> impl Iterator<Item = (&'static str, &[EventValue])> {
        LISTS.into_iter().zip(self.lists())
    }

    /// The list of that name.
    pub(super) fn list_named(&mut self, name: &str) -> Option<&mut Vec<EventValue>> {
        Some(match name {
            "images" => &mut self.images,
            "drivers" => &mut self.drivers,
            "authorities" => &mut self.authorities,
            "pcr_7_events" => &mut self.pcr_7_events,
            "grub" => &mut self.grub,
            "files" => &mut self.files,
            "kernel_config" => &mut self.kernel_config,
            "mok" => &mut self.mok,
            _ => return None,
        })
    }

    /// Returns the number of values in all lists.
    #[must_use]
    pub fn count(&self) -> usize {
        let events: usize = self.lists().iter().map(|list| list.len()).sum();
        [
            events,
            self.pcrs.len(),
            self.dbx.len(),
            self.uki_sections.len(),
            self.firmware_versions.len(),
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let named = self.lists().into_iter().flatten().filter_map(|value| value.name.as_deref());
        let sections = self.uki_sections.iter().map(|value| value.section.as_str());
        named.chain(sections).chain(self.firmware_versions.iter().map(String::as_str))
    }

    pub(super) fn check(&self, generation: &str) -> Result<(), ReferenceSetError> {
        let generation = || generation.to_owned();
        match self.count() {
            0 => return Err(ReferenceSetError::Empty { generation: generation() }),
            1..=VALUES_LIMIT => {}
            found => {
                return Err(ReferenceSetError::TooManyValues {
                    generation: generation(),
                    found,
                });
            }
        }
        if let Some(value) = self.pcrs.iter().find(|value| usize::from(value.pcr) >= PCR_COUNT) {
            return Err(ReferenceSetError::NoSuchPcr {
                generation: generation(),
                pcr: value.pcr,
            });
        }
        let of_events = self.lists().into_iter().flatten().map(|value| &value.digests);
        let of_pcrs = self.pcrs.iter().map(|value| &value.digests);
        let of_sections = self.uki_sections.iter().map(|value| &value.digests);
        for digests in of_events.chain(of_pcrs).chain(of_sections) {
            if digests.is_empty() {
                return Err(ReferenceSetError::NoDigest { generation: generation() });
            }
            for (&bank, digest) in digests {
                is_of(bank, digest, generation)?;
            }
        }
        let of_certificates = self.authorities.iter().flat_map(|value| &value.digests);
        let wrong = of_certificates.into_iter().find(|(bank, _)| **bank != HashAlg::Sha256);
        if let Some((_, digest)) = wrong {
            return Err(ReferenceSetError::Digest {
                generation: generation(),
                bank: HashAlg::Sha256,
                digest: digest.clone(),
            });
        }
        self.dbx.iter().try_for_each(|digest| is_of(HashAlg::Sha256, digest, generation))
    }
}

fn is_of(bank: HashAlg, digest: &HexDigest, generation: impl Fn() -> String) -> Result<(), ReferenceSetError> {
    if digest.as_bytes().len() == bank.digest_bytes() {
        return Ok(());
    }
    Err(ReferenceSetError::Digest {
        generation: generation(),
        bank,
        digest: digest.clone(),
    })
}
