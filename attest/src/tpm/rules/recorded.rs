//! Values as a boot had them: what would be accepted so that this boot is.

use std::collections::BTreeMap;

use super::judge::{NAME_LIMIT_CHARS, judge, said_name};
use super::{BootRefusal, Check};
use crate::reference_sets::{Digests, EventValue, PcrValue, ReferenceSets, SectionValue, Values};
use crate::tpm::measured_boot::{AuthorisedBy, BootEvent, DatabaseName, Fact, Meaning, MeasuredBoot};
use crate::tpm::wire::HashAlg;
use crate::values::{HexDigest, printable};

/// The values of a boot: of each check those that hold of it, as far as anything is proven; and of the PCRs named their values. Names are the node's own
/// words where no digest covers them.
#[must_use]
pub fn recorded(boot: &MeasuredBoot, pcrs: &BTreeMap<u8, HexDigest>) -> Values {
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
                name: said_name(event)
                    .map(|name| printable(&name, NAME_LIMIT_CHARS))
                    .filter(|name| !name.is_empty()),
            });
        }
        values
    };
    let authorities = boot.authorities().unwrap_or_default().into_iter().map(|found| {
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
    let dbx = boot
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

/// Whether each check can hold of this boot at all: by its own values, as [`recorded`] gives them. Why not, where none could make it.
#[must_use]
pub fn could_hold(boot: &MeasuredBoot, own: &Values) -> BTreeMap<Check, Result<(), BootRefusal>> {
    let sets = ReferenceSets::of_values(own.clone());
    let judged = |check| (check, judge(check, boot, &sets, 0));
    Check::ALL.into_iter().map(judged).collect()
}
