//! Reference values: the PCR values that a pool accepts.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::claims::{EventLogClaims, TpmClaims};
use super::door::{self, DOOR_PCR};
use super::error::TpmEvidenceError;
use super::pcr::{PcrSelection, SelectionError};
use super::wire::HashAlg;
use crate::values::HexDigest;
use crate::withheld::Withheld;

/// What a pool accepts in one PCR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accepted {
    /// Any value: the administrator has said so.
    NotChecked,
    /// One of these.
    AnyOf(Vec<HexDigest>),
}

/// What a pool makes of the firmware's event log. No decision is made on the events in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventLogRule {
    /// There has to be one that can be read and leads to the quoted PCRs.
    Required,
    /// If there is one, it has to be like that. As good as none at all is a node that keeps it back.
    #[default]
    Checked,
    /// It is kept, and nothing depends on it.
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
#[serde(try_from = "Raw")]
pub struct ReferenceValues {
    bank: HashAlg,
    pcrs: BTreeMap<u8, Accepted>,
    /// Left out in records of before there was a choice.
    #[serde(skip_serializing_if = "EventLogRule::is_default")]
    event_log: EventLogRule,
    /// Left out where it is not asked for, as in records of before one could.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    only_while_booting: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    bank: HashAlg,
    pcrs: BTreeMap<u8, Accepted>,
    #[serde(default)]
    event_log: EventLogRule,
    #[serde(default)]
    only_while_booting: bool,
}

impl TryFrom<Raw> for ReferenceValues {
    type Error = ReferenceValuesError;

    fn try_from(raw: Raw) -> Result<Self, Self::Error> {
        let values = Self::new(raw.bank, raw.pcrs)?.with_event_log(raw.event_log);
        Ok(values.only_while_booting(raw.only_while_booting))
    }
}

/// Why values are none that a quote could be compared with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceValuesError {
    /// The PCRs cannot be quoted.
    #[error(transparent)]
    Selection(#[from] SelectionError),
    /// A PCR with an empty list: nothing would ever be accepted.
    #[error("PCR {0} accepts no value; list the accepted digests, or say \"not checked\"")]
    NothingAccepted(u8),
    /// A digest of another length than the bank's.
    #[error("PCR {index}: {digest} has {} bytes, a {bank} digest has {}", .digest.as_bytes().len(), .bank.digest_bytes())]
    Length { index: u8, bank: HashAlg, digest: HexDigest },
}

/// PCRs that every pool must speak of: the firmware's and the boot loader's (TCG PC Client Platform Firmware Profile, 2.3.4).
const MUST_BE_NAMED: std::ops::RangeInclusive<u8> = 0..=7;

/// What a pool's file says about a PCR, or a range of them: a list of digests, or the words `"not checked"`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a list of digests (hexadecimal), or \"not checked\"")]
pub enum PcrRule {
    /// One of these.
    Digests(Vec<HexDigest>),
    /// Any value.
    Word(NotChecked),
}

/// The words `"not checked"`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum NotChecked {
    /// These words.
    #[serde(rename = "not checked")]
    NotChecked,
}

/// Why a pool's file says nothing that a quote could be compared with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PcrRulesError {
    /// A key that is no PCR.
    #[error("{0:?} is no PCR and no range such as \"0-7\"")]
    Key(String),
    /// A list for several PCRs.
    #[error("{0:?}: a range cannot share one list of digests")]
    Range(String),
    /// A PCR twice.
    #[error("PCR {0} is named twice")]
    Repeated(u8),
    /// A PCR is left out.
    #[error("PCR {0} is not named: list its accepted digests, or say {0} = \"not checked\"")]
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
                PcrRule::Word(NotChecked::NotChecked) => Accepted::NotChecked,
                PcrRule::Digests(_) if first != last => return Err(PcrRulesError::Range(key)),
                PcrRule::Digests(digests) => Accepted::AnyOf(digests),
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

    /// The same as [`ReferenceValues::from_rules`] takes.
    #[must_use]
    pub fn to_rules(&self) -> BTreeMap<String, PcrRule> {
        let rule = |accepted: &Accepted| match accepted {
            Accepted::NotChecked => PcrRule::Word(NotChecked::NotChecked),
            Accepted::AnyOf(digests) => PcrRule::Digests(digests.clone()),
        };
        self.pcrs.iter().map(|(pcr, accepted)| (pcr.to_string(), rule(accepted))).collect()
    }

    /// Reference values for `pcrs` of `bank`. Every PCR named is quoted, whether its value is checked or not.
    ///
    /// # Errors
    /// [`ReferenceValuesError`].
    pub fn new(bank: HashAlg, pcrs: BTreeMap<u8, Accepted>) -> Result<Self, ReferenceValuesError> {
        PcrSelection::new(bank, pcrs.keys().copied())?;
        for (&index, accepted) in &pcrs {
            let Accepted::AnyOf(digests) = accepted else { continue };
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
        })
    }

    /// The same with another rule for event logs.
    #[must_use]
    pub const fn with_event_log(mut self, event_log: EventLogRule) -> Self {
        self.event_log = event_log;
        self
    }

    /// The same, or only from a machine that boots: the door's PCR ([`door`]) is then quoted, too, and has to be as the firmware has left it. What is said
    /// of that PCR besides holds as well.
    #[must_use]
    pub const fn only_while_booting(mut self, only: bool) -> Self {
        self.only_while_booting = only;
        self
    }

    /// Whether they are accepted from a machine that boots only.
    #[must_use]
    pub const fn is_only_while_booting(&self) -> bool {
        self.only_while_booting
    }

    /// What is made of the event log.
    #[must_use]
    pub const fn event_log(&self) -> EventLogRule {
        self.event_log
    }

    #[must_use]
    pub const fn bank(&self) -> HashAlg {
        self.bank
    }

    /// What is accepted, for each PCR that is named. The door's is quoted besides, if these are [for a machine that
    /// boots](ReferenceValues::is_only_while_booting).
    #[must_use]
    pub const fn pcrs(&self) -> &BTreeMap<u8, Accepted> {
        &self.pcrs
    }

    /// Whether no PCR is checked: the pool then knows which machine it is, and nothing about what it booted.
    #[must_use]
    pub fn checks_nothing(&self) -> bool {
        self.pcrs.values().all(|accepted| *accepted == Accepted::NotChecked)
    }

    /// What a challenge has to ask for.
    ///
    /// # Errors
    /// None that [`ReferenceValues::new`] would not have given already.
    pub fn selection(&self) -> Result<PcrSelection, SelectionError> {
        PcrSelection::new(self.bank, self.quoted())
    }

    fn quoted(&self) -> BTreeSet<u8> {
        let door = self.only_while_booting.then_some(DOOR_PCR);
        self.pcrs.keys().copied().chain(door).collect()
    }
}

fn range(key: &str) -> Option<(u8, u8)> {
    let (first, last) = key.split_once('-').unwrap_or((key, key));
    let (first, last): (u8, u8) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

impl ReferenceValues {
    /// Compares every quoted PCR with the pool's reference values; then the door's, for a machine that boots; only then the event log is looked at.
    pub(crate) fn appraise(&self, tpm: &TpmClaims) -> Result<(), TpmEvidenceError> {
        self.appraise_quoted(tpm.pcr_bank, &tpm.pcrs, tpm.event_log.as_ref())
    }

    /// The same, whoever has vouched for what was quoted.
    pub(crate) fn appraise_quoted(
        &self,
        bank: HashAlg,
        pcrs: &BTreeMap<u8, HexDigest>,
        event_log: Option<&EventLogClaims>,
    ) -> Result<(), TpmEvidenceError> {
        let wanted = self.quoted();
        if bank != self.bank() || !pcrs.keys().eq(wanted.iter()) {
            let list = |bank: HashAlg, pcrs: Vec<String>| format!("{bank}:{}", pcrs.join(","));
            return Err(TpmEvidenceError::ReferenceSelection {
                quoted: list(bank, pcrs.keys().map(u8::to_string).collect()),
                accepted: Withheld::words(list(self.bank(), wanted.iter().map(u8::to_string).collect())),
            });
        }
        for (&index, quoted) in pcrs {
            match self.pcrs.get(&index) {
                None | Some(Accepted::NotChecked) => {}
                Some(Accepted::AnyOf(digests)) if digests.contains(quoted) => {}
                Some(Accepted::AnyOf(digests)) => {
                    return Err(TpmEvidenceError::PcrMismatch {
                        index,
                        bank,
                        quoted: quoted.to_string(),
                        accepted: Withheld::one_of(digests),
                    });
                }
            }
        }
        if self.only_while_booting {
            door::check_open(bank, pcrs, event_log.and_then(|log| log.door.as_ref()))?;
        }
        match (self.event_log(), event_log) {
            (EventLogRule::Required, None) => Err(TpmEvidenceError::EventLogMissing),
            (EventLogRule::Required | EventLogRule::Checked, Some(log)) => {
                log.problem.as_ref().map_or(Ok(()), |problem| Err(problem.refusal()))
            }
            (EventLogRule::Checked, None) | (EventLogRule::Recorded, _) => Ok(()),
        }
    }
}
