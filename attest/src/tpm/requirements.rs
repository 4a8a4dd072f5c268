//! The requirements of reference values, one after the other, each with its result.

use std::collections::BTreeMap;

use rustls_pki_types::UnixTime;

use super::boot_complete::{self, BOOT_COMPLETE_PCR};
use super::claims::{EventLogClaims, TpmClaims};
use super::error::TpmEvidenceError;
use super::measured_boot::MeasuredBoot;
use super::reference_values::{AcceptedValues, EventLogRule, ReferenceValues};
use super::rules::{self, Check};
use super::wire::HashAlg;
use crate::observation::Observation;
use crate::reference_sets::{NewValue, ReferenceKind, ReferenceQuery};
use crate::values::HexDigest;
use crate::withheld::Withheld;

/// A requirement on a quote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// The PCRs of the reference values are quoted.
    Selection,
    Pcr(u8),
    /// The machine is still booting.
    OnlyWhileBooting,
    EventLog,
    Boot(Check),
}

impl Requirement {
    /// Returns whether the requirement is about the measured boot, which a pool may observe. Without the required PCRs there is nothing to
    /// observe. The check that the machine is still booting is about the client: on a machine that has booted, that is any software with
    /// root rights.
    #[must_use]
    pub const fn is_on_what_was_booted(self) -> bool {
        match self {
            Self::Pcr(_) | Self::EventLog | Self::Boot(_) => true,
            Self::Selection | Self::OnlyWhileBooting => false,
        }
    }
}

/// The quoted values, regardless of the endorsement.
#[derive(Debug, Clone, Copy)]
pub struct QuotedPcrs<'q> {
    pub bank: HashAlg,
    pub pcrs: &'q BTreeMap<u8, HexDigest>,
    pub event_log: Option<&'q EventLogClaims>,
}

impl<'q> QuotedPcrs<'q> {
    /// Returns the measured boot, if the event log leads to the quoted values.
    #[must_use]
    pub fn boot(&self) -> Option<&'q MeasuredBoot> {
        self.event_log.and_then(|log| log.boot.as_deref())
    }
}

impl TpmClaims {
    /// Returns the quoted values, which reference values are compared with.
    #[must_use]
    pub fn quoted(&self) -> QuotedPcrs<'_> {
        QuotedPcrs {
            bank: self.pcr_bank,
            pcrs: &self.pcrs,
            event_log: self.event_log.as_ref(),
        }
    }
}

impl ReferenceValues {
    /// All that is required, in the order in which it is looked at: PCRs before the log, and the log before what it says.
    /// Whether the machine boots still is about a PCR.
    pub fn requirements(&self) -> impl Iterator<Item = Requirement> {
        let pcrs = self.pcrs().keys().copied().map(Requirement::Pcr);
        let only_while_booting = self.is_only_while_booting().then_some(Requirement::OnlyWhileBooting);
        let boot = self.boot().iter().copied().map(Requirement::Boot);
        [Requirement::Selection]
            .into_iter()
            .chain(pcrs)
            .chain(only_while_booting)
            .chain([Requirement::EventLog])
            .chain(boot)
    }

    /// Checks that the quoted values are accepted: returns the first unmet requirement that refuses.
    pub(crate) fn appraise<E: From<TpmEvidenceError>>(
        &self,
        quoted: &QuotedPcrs<'_>,
        now: UnixTime,
        observation: &mut Observation<E>,
    ) -> Result<(), E> {
        self.requirements().try_for_each(|requirement| {
            let found = self.meets(requirement, quoted, now).map_err(E::from);
            match requirement.is_on_what_was_booted() {
                true => observation.heed(found),
                false => found,
            }
        })
    }

    /// Each requirement in words, and whether it is met.
    pub(crate) fn by_requirement<E: From<TpmEvidenceError>>(&self, quoted: &QuotedPcrs<'_>, now: UnixTime) -> Vec<(String, Result<(), E>)> {
        let one = |requirement| (self.description(requirement), self.meets(requirement, quoted, now).map_err(E::from));
        self.requirements().map(one).collect()
    }

    /// Checks that a requirement is met.
    ///
    /// # Errors
    /// The refusal that it is.
    pub fn meets(&self, requirement: Requirement, quoted: &QuotedPcrs<'_>, now: UnixTime) -> Result<(), TpmEvidenceError> {
        match requirement {
            Requirement::Selection => self.is_quoted(quoted),
            Requirement::Pcr(index) => {
                let value = quoted.pcrs.get(&index).ok_or(TpmEvidenceError::PcrMissing { index })?;
                self.accept_pcr(index, value, now)
                    .map_err(|accepted| TpmEvidenceError::PcrMismatch {
                        index,
                        bank: quoted.bank,
                        quoted: value.to_string(),
                        accepted,
                    })
            }
            Requirement::OnlyWhileBooting => {
                let log = quoted.event_log.and_then(|log| log.door.as_ref());
                Ok(boot_complete::check_open(quoted.bank, quoted.pcrs, log)?)
            }
            Requirement::EventLog => match (self.event_log(), quoted.event_log) {
                (EventLogRule::Required, None) => Err(TpmEvidenceError::EventLogMissing),
                (EventLogRule::Required | EventLogRule::Checked, Some(log)) => {
                    log.problem.as_ref().map_or(Ok(()), |problem| Err(problem.refusal()))
                }
                (EventLogRule::Checked, None) | (EventLogRule::Recorded, _) => Ok(()),
            },
            Requirement::Boot(check) => {
                let log = quoted.event_log.ok_or(TpmEvidenceError::EventLogMissing)?;
                // Whatever else the pool makes of a log that explains nothing: nothing is known by it.
                let refused = || {
                    log.problem
                        .as_ref()
                        .map_or(TpmEvidenceError::EventLogMissing, |problem| problem.refusal())
                };
                let boot = log.boot.as_deref().ok_or_else(refused)?;
                Ok(rules::judge(check, boot, self.sets(), now.as_secs())?)
            }
        }
    }

    /// Returns the quoted or booted values that must be among the pool's reference values, and are in none of its sets.
    pub(crate) fn unlisted(&self, quoted: &QuotedPcrs<'_>) -> Vec<NewValue> {
        let of = |requirement| match requirement {
            Requirement::Pcr(index) if self.pcrs().get(&index) == Some(&AcceptedValues::ReferenceValues) => {
                let wanted = ReferenceQuery::Pcr(index);
                let value = quoted.pcrs.get(&index);
                let is_listed = |value: &&HexDigest| {
                    self.sets()
                        .listed(wanted, self.bank())
                        .any(|listed| listed.value == ReferenceKind::Digest(value))
                };
                let value = value.filter(|value| !is_listed(value)).cloned();
                value
                    .map(|value| NewValue::digest(wanted, self.bank(), value))
                    .into_iter()
                    .collect()
            }
            Requirement::Boot(check) => quoted
                .boot()
                .map_or_else(Vec::new, |boot| rules::unlisted(check, boot, self.sets())),
            _ => Vec::new(),
        };
        self.requirements().flat_map(of).collect()
    }

    fn is_quoted(&self, quoted: &QuotedPcrs<'_>) -> Result<(), TpmEvidenceError> {
        let wanted = self.quoted();
        if quoted.bank == self.bank() && quoted.pcrs.keys().eq(wanted.iter()) {
            return Ok(());
        }
        let list = |bank: HashAlg, pcrs: Vec<String>| format!("{bank}:{}", pcrs.join(","));
        Err(TpmEvidenceError::ReferenceSelection {
            quoted: list(quoted.bank, quoted.pcrs.keys().map(u8::to_string).collect()),
            accepted: Withheld::from_text(list(self.bank(), wanted.iter().map(u8::to_string).collect())),
        })
    }

    /// Checks that a PCR's value is accepted; the error has the accepted values.
    pub(crate) fn accept_pcr(&self, index: u8, value: &HexDigest, now: UnixTime) -> Result<(), Withheld> {
        match self.pcrs().get(&index) {
            None | Some(AcceptedValues::NotChecked) => Ok(()),
            Some(AcceptedValues::AnyOf(digests)) if digests.contains(value) => Ok(()),
            Some(AcceptedValues::AnyOf(digests)) => Err(Withheld::one_of(digests)),
            Some(AcceptedValues::ReferenceValues) => {
                let (wanted, now) = (ReferenceQuery::Pcr(index), now.as_secs());
                let fits = |found: &ReferenceKind<'_>| *found == ReferenceKind::Digest(value);
                match rules::is_accepted(self.sets(), wanted, self.bank(), fits, now) {
                    true => Ok(()),
                    false => Err(rules::describe_accepted(self.sets(), wanted, self.bank(), fits, now)),
                }
            }
        }
    }

    /// Describes a requirement, for people.
    #[must_use]
    pub fn description(&self, requirement: Requirement) -> String {
        let bank = self.bank();
        match requirement {
            Requirement::Selection => {
                let pcrs: Vec<String> = self.quoted().iter().map(u8::to_string).collect();
                format!("the PCRs {} of {bank} are quoted", pcrs.join(", "))
            }
            Requirement::Pcr(index) => match self.pcrs().get(&index) {
                None | Some(AcceptedValues::NotChecked) if self.boot().iter().any(|check| check.pcr() == index) => {
                    format!("PCR {index}: not compared as a whole; its events are")
                }
                None | Some(AcceptedValues::NotChecked) => format!("PCR {index}: not checked"),
                Some(AcceptedValues::AnyOf(digests)) => format!("PCR {index} has one of {} digests of pool.toml", digests.len()),
                Some(AcceptedValues::ReferenceValues) => {
                    let listed = self.sets().listed(ReferenceQuery::Pcr(index), bank).count();
                    format!("PCR {index} has one of the reference values ({listed})")
                }
            },
            Requirement::OnlyWhileBooting => {
                format!("the machine is still booting: PCR {BOOT_COMPLETE_PCR} was not extended after the firmware")
            }
            Requirement::EventLog => match self.event_log() {
                EventLogRule::Required => "the node sends an event log, and it gives the quoted PCRs".to_owned(),
                EventLogRule::Checked => "the event log, if the node sends one, gives the quoted PCRs".to_owned(),
                EventLogRule::Recorded => "the event log is recorded, and no decision depends on it".to_owned(),
            },
            Requirement::Boot(check) => match check.wanted() {
                None => check.requirement().to_owned(),
                Some(wanted) => {
                    let listed = self.sets().listed(wanted, bank).count();
                    format!("{} ({listed} reference values)", check.requirement())
                }
            },
        }
    }
}
