//! Values as a boot had them: what would be accepted so that this boot is.

use std::collections::BTreeMap;

use super::judge::{NAME_LIMIT_CHARS, event_name, is_grub_environment, judge};
use super::{BootRefusal, Check};
use crate::reference_sets::{Digests, EventValue, PcrValue, ReferenceSets, SectionValue, VALUE_NAME_LIMIT_BYTES, Values};
use crate::tpm::measured_boot::{AuthorisedBy, BootEvent, DatabaseName, Fact, Meaning, MeasuredBoot};
use crate::tpm::wire::HashAlg;
use crate::values::{HexDigest, printable};

/// The values of a boot, and what they lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedValues {
    pub values: Values,
    /// Checks that would refuse this very boot by these values, and why: of them the values have nothing, or not all.
    pub left_out: BTreeMap<Check, BootRefusal>,
    /// Events of PCR 7 whose meaning is not known: they are among the values only if that was asked for.
    pub unknown_pcr_7_events: Vec<UnknownEvent>,
    /// Events of PCR 9 that the node calls GRUB's environment block: their content changes while the machine runs.
    pub grub_environments: Vec<usize>,
}

/// An event that only its digest identifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownEvent {
    /// Its place in the log.
    pub event: usize,
    pub digest: HexDigest,
    /// Description of the event; text that no digest covers is in quotation marks.
    pub summary: String,
}

impl RecordedValues {
    /// Records the values of a boot, with its PCRs `pcrs`. With `lists_unknown`, its events of PCR 7 with unknown meaning become values
    /// too. Facts of PCR 7 are then read as if these were listed.
    #[must_use]
    pub fn from_boot(boot: &MeasuredBoot, pcrs: &BTreeMap<u8, HexDigest>, lists_unknown: bool) -> Self {
        let unknown = boot.unknown_pcr_7_events().unwrap_or_default();
        let listed: &[&BootEvent] = if lists_unknown { &unknown } else { &[] };
        let values = values(boot, pcrs, listed, whole_name);
        let could = could_hold(boot, &values).into_iter();
        Self {
            left_out: could.filter_map(|(check, held)| Some((check, held.err()?))).collect(),
            unknown_pcr_7_events: unknown
                .iter()
                .map(|event| UnknownEvent {
                    event: event.number,
                    digest: event.digest.clone(),
                    summary: event.summary(),
                })
                .collect(),
            grub_environments: boot
                .files()
                .unwrap_or_default()
                .into_iter()
                .filter(|event| is_grub_environment(event))
                .map(|event| event.number)
                .collect(),
            values,
        }
    }
}

/// Returns the values of a boot: for each check those that hold of it, as far as proven, and those of the named PCRs. Names that
/// no digest covers are the node's own claims.
#[must_use]
pub fn recorded(boot: &MeasuredBoot, pcrs: &BTreeMap<u8, HexDigest>) -> Values {
    values(boot, pcrs, &[], short_name)
}

fn short_name(event: &BootEvent) -> Option<String> {
    let name = event_name(event)?;
    Some(printable(&name, NAME_LIMIT_CHARS)).filter(|name| !name.is_empty())
}

/// Returns the name of an event; a text that the digest covers may have the maximum length of a name.
fn whole_name(event: &BootEvent) -> Option<String> {
    if !event.is_content() {
        return short_name(event);
    }
    let mut name = printable(&event_name(event)?, VALUE_NAME_LIMIT_BYTES);
    name.truncate(name.floor_char_boundary(VALUE_NAME_LIMIT_BYTES));
    Some(name).filter(|name| !name.is_empty())
}

fn values(
    boot: &MeasuredBoot,
    pcrs: &BTreeMap<u8, HexDigest>,
    listed: &[&BootEvent],
    name: impl Fn(&BootEvent) -> Option<String>,
) -> Values {
    let digests = |digest: &HexDigest| -> Digests { [(boot.bank, digest.clone())].into() };
    let events = |events: Fact<Vec<&BootEvent>>| -> Vec<EventValue> {
        let mut values: Vec<EventValue> = Vec::new();
        for event in events.unwrap_or_default() {
            let is_known = values.iter().any(|value| value.digests.get(&boot.bank) == Some(&event.digest));
            if event.meaning == Meaning::OsSeparator || is_known {
                continue;
            }
            values.push(EventValue {
                digests: digests(&event.digest),
                name: name(event),
            });
        }
        values
    };
    let is_listed = |digest: &HexDigest| listed.iter().any(|event| event.digest == *digest);
    let pcr_7 = boot.pcr_7(&is_listed);
    let authorities = pcr_7.authorities().unwrap_or_default().into_iter().map(|found| {
        let (sha256, name) = match &found.authority.by {
            AuthorisedBy::Certificate(certificate) => (certificate.sha256, certificate.subject.clone()),
            AuthorisedBy::Hash { sha256, .. } => (*sha256, None),
        };
        EventValue {
            digests: [(HashAlg::Sha256, sha256.into())].into(),
            name: name.map(|name| printable(&name, NAME_LIMIT_CHARS)).filter(|name| !name.is_empty()),
        }
    });
    let sections = boot.uki_sections().unwrap_or_default().into_iter().map(|found| SectionValue {
        section: found.section.name().to_owned(),
        digests: digests(found.digest),
    });
    let dbx = pcr_7
        .database(DatabaseName::Dbx)
        .map(|dbx| dbx.hashes.iter().map(|hash| HexDigest::from(*hash)).collect());
    let version = boot.firmware_version().ok().and_then(|version| version.whole());
    let mut authorities: Vec<EventValue> = authorities.collect();
    authorities.dedup();
    Values {
        pcrs: pcrs
            .iter()
            .map(|(pcr, digest)| PcrValue {
                pcr: *pcr,
                digests: digests(digest),
            })
            .collect(),
        images: events(boot.images(4)),
        drivers: events(boot.images(2)),
        authorities,
        pcr_7_events: events(Ok(listed.to_vec())),
        dbx: dbx.unwrap_or_default(),
        grub: events(boot.grub_texts().and_then(|_| boot.events_of(8))),
        files: events(boot.files()),
        uki_sections: sections.collect(),
        kernel_config: events(boot.kernel_config()),
        mok: events(boot.mok_variables()),
        firmware_versions: version
            .filter(|version| !version.is_empty())
            .map(|version| vec![printable(version, NAME_LIMIT_CHARS)])
            .unwrap_or_default(),
    }
}

/// Returns whether each check can hold of this boot at all, by its own values, as [`recorded`] returns them. The error is the reason why no
/// values could make it hold.
#[must_use]
pub fn could_hold(boot: &MeasuredBoot, own: &Values) -> BTreeMap<Check, Result<(), BootRefusal>> {
    let sets = ReferenceSets::from_values(own.clone());
    let judged = |check| (check, judge(check, boot, &sets, 0));
    Check::ALL.into_iter().map(judged).collect()
}
