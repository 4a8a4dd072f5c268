//! Sets as a pool has them: what is accepted at a time, and what is not any more.

use std::sync::Arc;

use attest_wire::HashAlg;
use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

use super::{Generation, ReferenceSet, ReferenceSetError, Time, ValueOrigin, Values};
use crate::values::HexDigest;

/// The sets of a pool, each with the SHA-256 of its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReferenceSets(Vec<(HexDigest, Arc<ReferenceSet>)>);

/// Category of values that is looked up in sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReferenceQuery {
    /// The value of a whole PCR.
    Pcr(u8),
    Images,
    Drivers,
    Authorities,
    /// Events of PCR 7 whose meaning is not known.
    Pcr7Events,
    Dbx,
    Grub,
    Files,
    UkiSections,
    KernelConfig,
    Mok,
    FirmwareVersions,
}

/// A value of a set, with the generation that has it.
#[derive(Debug, Clone, Copy)]
pub struct ListedValue<'s> {
    pub generation: &'s Generation,
    /// Name for people, or that of the generation.
    pub name: &'s str,
    pub value: ReferenceKind<'s>,
}

impl<'s> ListedValue<'s> {
    fn new(generation: &'s Generation, name: Option<&'s str>, value: ReferenceKind<'s>) -> Self {
        Self {
            generation,
            name: name.unwrap_or(&generation.name),
            value,
        }
    }
}

/// Content of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceKind<'s> {
    Digest(&'s HexDigest),
    /// Digest of this section of a unified kernel image.
    Section(&'s str, &'s HexDigest),
    Text(&'s str),
}

impl ReferenceSets {
    /// Reads the files of a pool.
    ///
    /// # Errors
    /// [`ReferenceSetError`], with the place of the file among them.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, (usize, ReferenceSetError)> {
        let read = |(place, text): (usize, &str)| {
            let set = ReferenceSet::parse(text).map_err(|error| (place, error))?;
            let mut sha256 = [0; 32];
            sha256.copy_from_slice(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
            Ok((HexDigest::from(sha256), Arc::new(set)))
        };
        texts.into_iter().enumerate().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Values that are in no file, and accepted at any time.
    pub(crate) fn from_values(values: Values) -> Self {
        let generation = Generation {
            name: String::new(),
            added: Time { at: 0 },
            by: String::new(),
            from: ValueOrigin::ByHand,
            expires: None,
            values,
        };
        let set = ReferenceSet {
            generations: vec![generation],
            ..ReferenceSet::default()
        };
        Self(vec![(HexDigest::from([0; 32]), Arc::new(set))])
    }

    /// Returns these sets, and another one, which is in no file.
    pub(crate) fn and(&self, set: ReferenceSet) -> Self {
        let mut sets = self.0.clone();
        sets.push((HexDigest::from([0; 32]), Arc::new(set)));
        Self(sets)
    }

    /// SHA-256 of each file: what a record names them by.
    pub fn digests(&self) -> impl Iterator<Item = &HexDigest> {
        self.0.iter().map(|(digest, _)| digest)
    }

    fn generations(&self) -> impl Iterator<Item = &Generation> {
        self.0.iter().flat_map(|(_, set)| &set.generations)
    }

    /// Returns every value of a category, in this bank, including expired ones.
    pub fn listed(&self, wanted: ReferenceQuery, bank: HashAlg) -> impl Iterator<Item = ListedValue<'_>> {
        self.generations()
            .flat_map(move |generation| listed_values(generation, wanted, bank))
    }

    /// Returns the hashes that each generation requires in dbx; generations without any are left out.
    pub fn dbx(&self) -> impl Iterator<Item = (&Generation, &[HexDigest])> {
        let of = |generation: &'_ Generation| !generation.values.dbx.is_empty();
        let having = self.generations().filter(move |generation| of(generation));
        having.map(|generation| (generation, generation.values.dbx.as_slice()))
    }
}

fn listed_values(generation: &Generation, wanted: ReferenceQuery, bank: HashAlg) -> Vec<ListedValue<'_>> {
    let values = &generation.values;
    let listed = |name, value| ListedValue::new(generation, name, value);
    let events = match wanted {
        ReferenceQuery::Images => &values.images,
        ReferenceQuery::Drivers => &values.drivers,
        ReferenceQuery::Authorities => &values.authorities,
        ReferenceQuery::Pcr7Events => &values.pcr_7_events,
        ReferenceQuery::Grub => &values.grub,
        ReferenceQuery::Files => &values.files,
        ReferenceQuery::KernelConfig => &values.kernel_config,
        ReferenceQuery::Mok => &values.mok,
        ReferenceQuery::Pcr(pcr) => {
            let of_pcr = values.pcrs.iter().filter(|value| value.pcr == pcr);
            let digests = of_pcr.filter_map(|value| value.digests.get(&bank));
            return digests.map(|digest| listed(None, ReferenceKind::Digest(digest))).collect();
        }
        ReferenceQuery::Dbx => {
            return values
                .dbx
                .iter()
                .map(|digest| listed(None, ReferenceKind::Digest(digest)))
                .collect();
        }
        ReferenceQuery::UkiSections => {
            let sections = values.uki_sections.iter();
            let sections = sections.filter_map(|value| Some((value.section.as_str(), value.digests.get(&bank)?)));
            return sections
                .map(|(section, digest)| listed(None, ReferenceKind::Section(section, digest)))
                .collect();
        }
        ReferenceQuery::FirmwareVersions => {
            let versions = values.firmware_versions.iter();
            return versions
                .map(|version| listed(Some(version), ReferenceKind::Text(version)))
                .collect();
        }
    };
    // A certificate has one digest, whatever the bank is.
    let bank = if wanted == ReferenceQuery::Authorities {
        HashAlg::Sha256
    } else {
        bank
    };
    let digests = events.iter().filter_map(|value| Some((value, value.digests.get(&bank)?)));
    digests
        .map(|(value, digest)| listed(value.name.as_deref(), ReferenceKind::Digest(digest)))
        .collect()
}
