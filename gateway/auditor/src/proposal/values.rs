//! Values, one by one: as a boot had them, and as a generation of a set accepts them.

use std::collections::BTreeSet;

use attest::HashAlg;
use attest::protocol::HexDigest;
use attest::reference_sets::{EventValue, Is, NewValue, ReferenceQuery, Values};
use attest::tpm::rules::Check;

use super::thing::RuleSubject;

/// A value that a rule would accept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProposedValue {
    Digest(HexDigest),
    /// Name and digest of a section of a unified kernel image.
    Section(String, HexDigest),
    Text(String),
}

impl ProposedValue {
    /// Returns whether it is the value of a PCR that nothing has extended.
    pub(super) fn is_zero(&self) -> bool {
        matches!(self, Self::Digest(digest) if digest.as_bytes().iter().all(|byte| *byte == 0))
    }
}

impl std::fmt::Display for ProposedValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Digest(digest) => write!(f, "{digest}"),
            Self::Section(section, digest) => write!(f, ".{section} {digest}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// A certificate, and a hash of dbx, has one digest, whatever the bank is.
fn bank_of(check: Check, bank: HashAlg) -> HashAlg {
    match check {
        Check::Authorities | Check::Dbx => HashAlg::Sha256,
        _ => bank,
    }
}

/// The values that a check looks at, with what they are called.
pub(super) fn proposed_values(check: Check, values: &Values, bank: HashAlg) -> Vec<(ProposedValue, Option<String>)> {
    let bank = bank_of(check, bank);
    let events = |list: &[EventValue]| -> Vec<(ProposedValue, Option<String>)> {
        let digests = list
            .iter()
            .filter_map(|event| Some((event.digests.get(&bank)?, event.name.clone())));
        digests
            .map(|(digest, name)| (ProposedValue::Digest(digest.clone()), name))
            .collect()
    };
    match check {
        Check::SecureBoot => Vec::new(),
        Check::Dbx => values.dbx.iter().map(|hash| (ProposedValue::Digest(hash.clone()), None)).collect(),
        Check::Authorities => events(&values.authorities),
        Check::Images => events(&values.images),
        Check::Drivers => events(&values.drivers),
        Check::Grub => events(&values.grub),
        Check::Files => events(&values.files),
        Check::KernelConfig => events(&values.kernel_config),
        Check::Mok => events(&values.mok),
        Check::UkiSections => {
            let digests = values.uki_sections.iter();
            let digests = digests.filter_map(|value| Some((value.section.clone(), value.digests.get(&bank)?.clone())));
            digests
                .map(|(section, digest)| (ProposedValue::Section(section, digest), None))
                .collect()
        }
        Check::FirmwareVersion => {
            let versions = values.firmware_versions.iter();
            versions.map(|version| (ProposedValue::Text(version.clone()), None)).collect()
        }
    }
}

/// Adds to a generation what a rule about `thing` then accepts.
pub(super) fn put(
    into: &mut Values,
    thing: RuleSubject,
    bank: HashAlg,
    all: &BTreeSet<ProposedValue>,
    name: impl Fn(&ProposedValue) -> Option<String>,
) {
    let (wanted, bank) = match thing {
        RuleSubject::Pcr(pcr) => (Some(ReferenceQuery::Pcr(pcr)), bank),
        RuleSubject::Boot(check) => (check.wanted(), bank_of(check, bank)),
    };
    let Some(wanted) = wanted else { return };
    for value in all {
        if let (ReferenceQuery::Dbx, ProposedValue::Digest(hash)) = (wanted, value) {
            into.dbx.push(hash.clone());
            continue;
        }
        let (digest, section) = match value {
            ProposedValue::Digest(digest) => (digest, None),
            ProposedValue::Section(section, digest) => (digest, Some(section.clone())),
            ProposedValue::Text(version) => {
                into.firmware_versions.push(version.clone());
                continue;
            }
        };
        let is = Is::Digest {
            bank,
            digest: digest.clone(),
            section,
        };
        let (name, proven) = (name(value), false);
        NewValue { wanted, is, name, proven }.add_to(into);
    }
}
