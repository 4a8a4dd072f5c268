//! Reference values: the PCR values that a pool accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::boot_complete::BOOT_COMPLETE_PCR;
use super::pcr::{PcrSelection, SelectionError};
use super::rules::Check;
use super::wire::HashAlg;
use crate::reference_sets::{ReferenceQuery, ReferenceSets};
use crate::values::HexDigest;

/// Accepted values of a PCR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptedValues {
    /// Any value: the administrator has said so.
    NotChecked,
    /// A value from this list.
    AnyOf(Vec<HexDigest>),
    /// A value that the pool's sets have for this PCR.
    ReferenceValues,
}

/// A pool's rule for the firmware's event log. [`Check`] has the rules for the events in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventLogRule {
    /// There has to be one that can be read and leads to the quoted PCRs.
    Required,
    /// If there is one, it has to be like that. A node that withholds its log passes this check.
    #[default]
    Checked,
    /// The log is stored, and nothing depends on it.
    Recorded,
}

impl EventLogRule {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The PCRs that a pool has quoted, and what it accepts in each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawReferenceValues")]
pub struct ReferenceValues {
    bank: HashAlg,
    pcrs: BTreeMap<u8, AcceptedValues>,
    /// Left out where event logs are checked.
    #[serde(skip_serializing_if = "EventLogRule::is_default")]
    event_log: EventLogRule,
    /// Left out where it is not asked for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    only_while_booting: bool,
    /// Checks of the events of a boot, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    boot: Vec<Check>,
    /// The pool's reference values. A policy names the sets by their digests.
    #[serde(skip)]
    sets: Arc<ReferenceSets>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReferenceValues {
    bank: HashAlg,
    pcrs: BTreeMap<u8, AcceptedValues>,
    #[serde(default)]
    event_log: EventLogRule,
    #[serde(default)]
    only_while_booting: bool,
    #[serde(default)]
    boot: Vec<Check>,
}

impl TryFrom<RawReferenceValues> for ReferenceValues {
    type Error = ReferenceValuesError;

    fn try_from(raw: RawReferenceValues) -> Result<Self, Self::Error> {
        let values = Self::new(raw.bank, raw.pcrs)?.with_event_log(raw.event_log);
        values.only_while_booting(raw.only_while_booting).with_boot(raw.boot)
    }
}

/// Reason why values cannot be compared with a quote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceValuesError {
    /// The PCRs cannot be quoted.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// A PCR with an empty list: nothing would ever be accepted.
    #[error("PCR {0} accepts no value: list the accepted digests, or set it to \"not checked\"")]
    NothingAccepted(u8),
    /// A digest of another length than the bank's.
    #[error("PCR {index}: {digest} has {} bytes, a {bank} digest has {}", .digest.as_bytes().len(), .bank.digest_bytes())]
    Length { index: u8, bank: HashAlg, digest: HexDigest },
    /// A check of events in a PCR that is not quoted.
    #[error("boot: {check} needs the events of PCR {pcr}, which is not in pcrs: list its accepted digests, or set {pcr} = \"not checked\"", pcr = .check.pcr())]
    NotQuoted { check: Check },
    /// A check is listed twice.
    #[error("boot: {0} is named twice")]
    CheckRepeated(Check),
}

/// PCRs that every pool must name: the firmware's and the boot loader's (TCG PC Client Platform Firmware Profile, 2.3.4).
const MUST_BE_NAMED: std::ops::RangeInclusive<u8> = 0..=7;

/// Rule in a pool's file for a PCR or a range of PCRs: a list of digests, or the words `"not checked"` or `"reference values"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a list of digests (hexadecimal), \"not checked\", or \"reference values\""
)]
pub enum PcrRule {
    /// A value from this list.
    Digests(Vec<HexDigest>),
    /// Any value is accepted.
    Word(NotChecked),
    /// A value that the pool's sets have.
    Sets(OfSets),
}

/// The words `"reference values"`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum OfSets {
    /// The words as `pool.toml` has them.
    #[serde(rename = "reference values")]
    ReferenceValues,
}

/// The words `"not checked"`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum NotChecked {
    /// The words as `pool.toml` has them.
    #[serde(rename = "not checked")]
    NotChecked,
}

/// Reason why the rules in a pool's file cannot be compared with a quote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PcrRulesError {
    /// A key is neither a PCR nor a range.
    #[error("{0:?} is neither a PCR nor a range such as \"0-7\"")]
    Key(String),
    /// A list for several PCRs.
    #[error("{0:?}: a range cannot share one list of digests")]
    Range(String),
    /// A PCR is listed twice.
    #[error("PCR {0} is named twice")]
    Repeated(u8),
    /// A PCR is left out.
    #[error("PCR {0} is not named: list its accepted digests, or set {0} = \"not checked\"")]
    NotNamed(u8),
    /// The values cannot be compared with.
    #[error(transparent)]
    Values(#[from] ReferenceValuesError),
}

impl ReferenceValues {
    /// Reference values as a pool's file has them: by PCR, or by a range such as `0-7`. Each of the PCRs 0 to 7 must be named.
    ///
    /// # Errors
    /// [`PcrRulesError`].
    pub fn from_rules(bank: HashAlg, rules: BTreeMap<String, PcrRule>) -> Result<Self, PcrRulesError> {
        let mut pcrs = BTreeMap::new();
        for (key, rule) in rules {
            let (first, last) = range(&key).ok_or_else(|| PcrRulesError::Key(key.clone()))?;
            let accepted = match rule {
                PcrRule::Word(NotChecked::NotChecked) => AcceptedValues::NotChecked,
                PcrRule::Sets(OfSets::ReferenceValues) => AcceptedValues::ReferenceValues,
                PcrRule::Digests(_) if first != last => return Err(PcrRulesError::Range(key)),
                PcrRule::Digests(digests) => AcceptedValues::AnyOf(digests),
            };
            for pcr in first..=last {
                if pcrs.insert(pcr, accepted.clone()).is_some() {
                    return Err(PcrRulesError::Repeated(pcr));
                }
            }
        }
        if let Some(missing) = MUST_BE_NAMED.into_iter().find(|pcr| !pcrs.contains_key(pcr)) {
            return Err(PcrRulesError::NotNamed(missing));
        }
        Ok(Self::new(bank, pcrs)?)
    }

    /// Returns the rules as [`ReferenceValues::from_rules`] takes them.
    #[must_use]
    pub fn to_rules(&self) -> BTreeMap<String, PcrRule> {
        let rule = |accepted: &AcceptedValues| match accepted {
            AcceptedValues::NotChecked => PcrRule::Word(NotChecked::NotChecked),
            AcceptedValues::AnyOf(digests) => PcrRule::Digests(digests.clone()),
            AcceptedValues::ReferenceValues => PcrRule::Sets(OfSets::ReferenceValues),
        };
        self.pcrs.iter().map(|(pcr, accepted)| (pcr.to_string(), rule(accepted))).collect()
    }

    /// Returns the pool's sets of reference values.
    pub(crate) fn sets(&self) -> &ReferenceSets {
        &self.sets
    }

    /// Reference values for `pcrs` of `bank`. Every PCR named is quoted, whether its value is checked or not.
    ///
    /// # Errors
    /// [`ReferenceValuesError`].
    pub fn new(bank: HashAlg, pcrs: BTreeMap<u8, AcceptedValues>) -> Result<Self, ReferenceValuesError> {
        PcrSelection::new(bank, pcrs.keys().copied())?;
        for (&index, accepted) in &pcrs {
            let AcceptedValues::AnyOf(digests) = accepted else { continue };
            if digests.is_empty() {
                return Err(ReferenceValuesError::NothingAccepted(index));
            }
            if let Some(digest) = digests.iter().find(|digest| digest.as_bytes().len() != bank.digest_bytes()) {
                return Err(ReferenceValuesError::Length {
                    index,
                    bank,
                    digest: digest.clone(),
                });
            }
        }
        Ok(Self {
            bank,
            pcrs,
            event_log: EventLogRule::default(),
            only_while_booting: false,
            boot: Vec::new(),
            sets: Arc::default(),
        })
    }

    /// Returns the same with these checks of the measured boot.
    ///
    /// # Errors
    /// [`ReferenceValuesError::NotQuoted`], [`ReferenceValuesError::CheckRepeated`].
    pub fn with_boot(mut self, boot: Vec<Check>) -> Result<Self, ReferenceValuesError> {
        for (place, &check) in boot.iter().enumerate() {
            if !self.pcrs.contains_key(&check.pcr()) {
                return Err(ReferenceValuesError::NotQuoted { check });
            }
            if boot.iter().take(place).any(|earlier| *earlier == check) {
                return Err(ReferenceValuesError::CheckRepeated(check));
            }
        }
        self.boot = boot;
        Ok(self)
    }

    /// Returns the checks of the events of a boot.
    #[must_use]
    pub fn boot(&self) -> &[Check] {
        &self.boot
    }

    /// Sets the pool's sets of reference values.
    pub(crate) fn use_sets(&mut self, sets: &Arc<ReferenceSets>) {
        self.sets = Arc::clone(sets);
    }

    /// Returns the rules for which no generation has a value, in words: nothing of the kind would ever be accepted.
    #[must_use]
    pub fn without_values(&self) -> Vec<String> {
        let without = self.wanted().filter(|(wanted, _)| !self.has_values(*wanted));
        without.map(|(_, words)| words).collect()
    }

    fn has_values(&self, wanted: ReferenceQuery) -> bool {
        self.sets.listed(wanted, self.bank).next().is_some()
    }

    /// Returns the values that must be in the pool's sets, each with a description.
    fn wanted(&self) -> impl Iterator<Item = (ReferenceQuery, String)> {
        let pcrs = self
            .pcrs
            .iter()
            .filter(|(_, accepted)| **accepted == AcceptedValues::ReferenceValues);
        let pcrs = pcrs.map(|(pcr, _)| (ReferenceQuery::Pcr(*pcr), format!("PCR {pcr} ({})", self.bank)));
        let checks = self.boot.iter().filter(|check| !check.may_be_nothing());
        pcrs.chain(checks.filter_map(|check| Some((check.wanted()?, format!("{check} ({})", self.bank)))))
    }

    /// Returns the first time, in seconds since 1970, from which on a rule accepts nothing, and that rule in words. `None` if this never
    /// happens.
    #[must_use]
    pub fn lapses(&self) -> Option<(u64, String)> {
        let ends = |wanted| {
            let mut listed = self.sets.listed(wanted, self.bank);
            listed.try_fold(0, |latest, listed| Some(listed.generation.expires?.at.max(latest)))
        };
        let wanted = self.wanted().filter(|(wanted, _)| self.has_values(*wanted));
        wanted.filter_map(|(wanted, words)| Some((ends(wanted)?, words))).min()
    }

    /// Returns whether the rules look for anything in the pool's sets.
    #[must_use]
    pub fn wants_sets(&self) -> bool {
        self.boot.iter().any(|check| check.wanted().is_some())
            || self.pcrs.values().any(|accepted| *accepted == AcceptedValues::ReferenceValues)
    }

    /// Returns the same with another rule for event logs.
    #[must_use]
    pub const fn with_event_log(mut self, event_log: EventLogRule) -> Self {
        self.event_log = event_log;
        self
    }

    /// Returns the same, accepted only while the machine boots if `only` is set. The boot-complete PCR ([`door`]) is then quoted too, and
    /// must have the value that the firmware has left in it. Other rules for that PCR apply as well.
    #[must_use]
    pub const fn only_while_booting(mut self, only: bool) -> Self {
        self.only_while_booting = only;
        self
    }

    /// Accepts a machine that has finished its boot, too.
    pub(crate) const fn allow_after_boot(&mut self) {
        self.only_while_booting = false;
    }

    /// Returns whether evidence is only accepted while the machine boots.
    #[must_use]
    pub const fn is_only_while_booting(&self) -> bool {
        self.only_while_booting
    }

    /// Returns the rule for the event log.
    #[must_use]
    pub const fn event_log(&self) -> EventLogRule {
        self.event_log
    }

    #[must_use]
    pub const fn bank(&self) -> HashAlg {
        self.bank
    }

    /// Returns the accepted values of each PCR that is named. The boot-complete PCR is quoted as well, if evidence is only accepted [while
    /// the machine boots](ReferenceValues::is_only_while_booting).
    #[must_use]
    pub const fn pcrs(&self) -> &BTreeMap<u8, AcceptedValues> {
        &self.pcrs
    }

    /// Returns whether no PCR is checked: the pool then knows the machine's identity, and nothing about its boot.
    #[must_use]
    pub fn checks_nothing(&self) -> bool {
        self.boot.is_empty() && self.pcrs.values().all(|accepted| *accepted == AcceptedValues::NotChecked)
    }

    /// Returns the PCRs that a challenge has to ask for.
    ///
    /// # Errors
    /// None that [`ReferenceValues::new`] would not have given already.
    pub fn selection(&self) -> Result<PcrSelection, SelectionError> {
        PcrSelection::new(self.bank, self.quoted())
    }

    /// Returns the PCRs that are quoted: those named, and the boot-complete PCR.
    pub(crate) fn quoted(&self) -> BTreeSet<u8> {
        let door = self.only_while_booting.then_some(BOOT_COMPLETE_PCR);
        self.pcrs.keys().copied().chain(door).collect()
    }
}

fn range(key: &str) -> Option<(u8, u8)> {
    let (first, last) = key.split_once('-').unwrap_or((key, key));
    let (first, last): (u8, u8) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}
