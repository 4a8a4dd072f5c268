//! The measured boot for conditions: those parts of a boot that a condition names, as far as they are proven.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::values::LIST_LIMIT;
use crate::claims::{BOOT, Claims, is_what_was_booted};
use crate::tpm::measured_boot::{BootPart, NoPart};

/// `claims.<kind>.boot`, or `claims.<kind>.boot.<part>`, in an expression.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BootMention {
    pub(super) kind: String,
    pub(super) part: Option<String>,
    /// Set if the mention is within `has()`.
    pub(super) is_asked_for: bool,
}

impl BootMention {
    /// Checks that the mentioned part can exist if the section of its kind has these PCRs quoted.
    pub(super) fn check(&self, asked_pcrs: impl Fn(&str) -> Option<BTreeSet<u8>>) -> Result<(), String> {
        let Self { kind, part, is_asked_for } = self;
        if !is_what_was_booted(kind, BOOT) {
            return Err(format!("claims.{kind}.{BOOT} does not exist"));
        }
        let Some(name) = part else {
            return match is_asked_for {
                true => Ok(()),
                false => Err(format!(
                    "the condition must name a part of claims.{kind}.{BOOT}, such as claims.{kind}.{BOOT}.secure_boot"
                )),
            };
        };
        let Some(part) = BootPart::named(name) else {
            return Err(format!(
                "claims.{kind}.{BOOT}.{name} does not exist; docs/reference/conditions.md lists the claims"
            ));
        };
        match asked_pcrs(kind) {
            Some(pcrs) if !pcrs.contains(&part.pcr()) => Err(format!(
                "claims.{kind}.{BOOT}.{name} comes from PCR {}, which is not in pcrs of [{kind}]",
                part.pcr()
            )),
            _ => Ok(()),
        }
    }
}

/// Adds the mentioned parts to `seen`, which are the claims as a record has them. A part that is not proven is left out, and reported. The
/// expression decides whether it can be evaluated without that part.
///
/// # Errors
/// A part that is larger than a condition is given: who boots could have it left out otherwise. A boot that is not asked by its parts.
pub(super) fn add(seen: &mut Value, mentions: &BTreeSet<BootMention>, claims: &Claims) -> Result<Vec<String>, String> {
    let mut missing = Vec::new();
    if mentions.is_empty() {
        return Ok(missing);
    }
    let mut say = |words: String| {
        if !missing.contains(&words) {
            missing.push(words);
        }
    };
    let boots = claims.measured_boots();
    for BootMention { kind, part, is_asked_for } in mentions {
        if part.is_none() && !is_asked_for {
            return Err(format!("the condition names no part of claims.{kind}.{BOOT}"));
        }
        let Some(of_kind) = seen.get_mut(kind).and_then(Value::as_object_mut) else {
            continue;
        };
        let Some((_, boot)) = boots.iter().find(|(proven, _)| proven.section() == kind) else {
            say(format!("claims.{kind}.{BOOT} is absent: no event log gives the quoted PCRs"));
            continue;
        };
        let parts = of_kind.entry(BOOT).or_insert_with(|| Value::Object(Map::new()));
        let (Some(name), Some(parts)) = (part, parts.as_object_mut()) else {
            continue;
        };
        let Some(part) = BootPart::named(name) else {
            say(format!("claims.{kind}.{BOOT}.{name} is absent"));
            continue;
        };
        match boot.part(part, LIST_LIMIT) {
            Ok(value) => drop(parts.insert(name.clone(), value)),
            Err(NoPart::NotProven(why)) => say(format!("claims.{kind}.{BOOT}.{name} is absent: {why}")),
            Err(too_many) => return Err(format!("claims.{kind}.{BOOT}.{name}: {too_many}")),
        }
    }
    Ok(missing)
}
