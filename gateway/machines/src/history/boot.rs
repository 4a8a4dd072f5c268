//! The last trusted boot of a machine.

use std::collections::BTreeMap;

use attest::HashAlg;
use attest::tpm::measured_boot::SAID_FORM;
use attest::tpm::requirements::QuotedPcrs;
use attest::tpm::rules::{self, BootLocation, Check};
use attest_store::{EntryKind, StoreEntry, StoreError};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde::{Deserialize, Serialize};

use super::HistoryFinding;
use super::date::date;

/// Maximum number of values stored per machine, over all checks. A boot has three images, as many certificates, a handful of sections.
/// GRUB's texts are more; for them the PCR's value shows whether they were the same.
const VALUES_LIMIT: usize = 24;

/// Bytes of a digest that are stored, in an entry of each machine. 64 bits suffice to tell values apart unless an attacker makes two
/// collide. With 2^64 hashes it gains only a wrong or missing word in a message.
const BEGIN_BYTES: usize = 8;

/// Maximum number of earlier values that a message names.
const NAMED_LIMIT: usize = 3;

/// Resolution of the time of the last trusted boot: a machine that boots again the same day writes nothing new.
const DAY_SECONDS: u64 = 86_400;

/// First bytes of digests, by PCR. The store has one entry per machine: one text, each digest after its PCR, takes half the space of one
/// member per PCR.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct DigestPrefixes(BTreeMap<u8, [u8; BEGIN_BYTES]>);

impl From<DigestPrefixes> for String {
    fn from(DigestPrefixes(begins): DigestPrefixes) -> Self {
        let bytes = begins.iter().flat_map(|(pcr, begin)| [&[*pcr], begin.as_slice()].concat());
        BASE64URL_NOPAD.encode(&bytes.collect::<Vec<u8>>())
    }
}

impl TryFrom<String> for DigestPrefixes {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const WRONG: &str = "these are not begins of digests, each behind its PCR";
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| WRONG)?;
        let each = bytes.chunks(1 + BEGIN_BYTES).map(|chunk| {
            let (pcr, begin) = chunk.split_first()?;
            Some((*pcr, begin.try_into().ok()?))
        });
        each.collect::<Option<_>>().map(Self).ok_or(WRONG)
    }
}

/// The parts of a boot that are compared with the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Boot {
    bank: HashAlg,
    /// The values of the quoted PCRs.
    pcrs: DigestPrefixes,
    /// Version of the form of `said`.
    said_form: u32,
    /// Digests of what the log says of its events besides their digests, for each PCR that the log explains.
    said: DigestPrefixes,
    /// The values that each check of the pool looked at, if they are few enough.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    values: BTreeMap<Check, Vec<String>>,
}

/// A boot by which its machine was trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TrustedBoot {
    /// Time of the last such boot, in seconds since 1970; exact to the day.
    at: u64,
    /// Id of the decision that recorded it.
    decision: String,
    /// The version of the TPM's firmware, where the kind of evidence says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    firmware: Option<u64>,
    boot: Boot,
}

/// Returns a value of a check as stored: the first digits of a digest. A firmware version is not a digest, and is stored whole.
fn stored_value(check: Check, value: &str) -> String {
    let begin = match check {
        Check::FirmwareVersion => None,
        _ => value.get(..2 * BEGIN_BYTES),
    };
    begin.unwrap_or(value).to_owned()
}

impl Boot {
    pub(super) fn from_quote(quoted: &QuotedPcrs<'_>, checks: &[Check]) -> Self {
        let boot = quoted.boot();
        let said = boot.iter().flat_map(|boot| {
            let explained = boot.explained_pcrs.iter().filter(|pcr| quoted.pcrs.contains_key(pcr));
            explained.filter_map(|pcr| Some((*pcr, *boot.claims_digest(*pcr)?.first_chunk()?)))
        });
        let pcrs = quoted.pcrs.iter();
        let pcrs = pcrs.filter_map(|(pcr, value)| Some((*pcr, *value.as_bytes().first_chunk()?)));
        let mut values = BTreeMap::new();
        let mut room = VALUES_LIMIT;
        for (check, found) in checks.iter().filter_map(|check| Some((*check, rules::values(*check, boot?)?))) {
            if let Some(left) = room.checked_sub(found.len()) {
                room = left;
                values.insert(check, found.iter().map(|value| stored_value(check, value)).collect());
            }
        }
        Self {
            bank: quoted.bank,
            pcrs: DigestPrefixes(pcrs.collect()),
            said_form: SAID_FORM,
            said: DigestPrefixes(said.collect()),
            values,
        }
    }
}

impl TrustedBoot {
    pub(super) fn new(boot: Boot, firmware: Option<u64>, at: u64, decision: &str) -> Self {
        let decision = decision.to_owned();
        Self {
            at,
            decision,
            firmware,
            boot,
        }
    }

    pub(super) const fn firmware(&self) -> Option<u64> {
        self.firmware
    }

    pub(super) fn entry(&self, id: String) -> Result<StoreEntry, StoreError> {
        match serde_json::to_string(self) {
            Ok(value) => Ok(StoreEntry { id, value }),
            Err(source) => {
                let kind = EntryKind::Clock.as_str();
                Err(StoreError::Entry { kind, id, source })
            }
        }
    }

    /// Returns whether it equals what this boot, at this time and with this firmware, would store.
    pub(super) fn says(&self, boot: &Boot, firmware: Option<u64>, at: u64) -> bool {
        self.boot == *boot && self.firmware == firmware && self.at / DAY_SECONDS == at / DAY_SECONDS
    }

    /// Returns the first PCR whose value is the same but whose log differs.
    pub(super) fn another_log(&self, now: &Boot) -> Option<HistoryFinding> {
        let then = &self.boot;
        if then.bank != now.bank || then.said_form != now.said_form {
            return None;
        }
        let is_other = |pcr: &&u8| {
            let same_value = then.pcrs.0.get(pcr).is_some_and(|value| now.pcrs.0.get(pcr) == Some(value));
            let [then, now] = [then, now].map(|boot| boot.said.0.get(pcr));
            same_value && then.zip(now).is_some_and(|(then, now)| then != now)
        };
        let pcr = *now.said.0.keys().find(is_other)?;
        let (at, decision) = (self.at, self.decision.clone());
        Some(HistoryFinding::AnotherLog { pcr, at, decision })
    }

    /// Describes what the machine had in the place that `now` is refused for.
    pub(super) fn describe_previous(&self, now: &Boot, place: &BootLocation) -> Option<String> {
        let (then, until) = (&self.boot, date(self.at));
        if then.bank != now.bank {
            return None;
        }
        let pcr = match place {
            BootLocation::Pcr(pcr) => *pcr,
            BootLocation::Value { check, value } => match then.values.get(check) {
                Some(values) if values.contains(&stored_value(*check, value)) => {
                    return Some(format!("this machine booted that until {until}"));
                }
                Some(values) => {
                    let stayed = now.values.get(check);
                    let is_gone = |value: &&String| stayed.is_none_or(|stayed| !stayed.contains(value));
                    return Some(match named(*check, values.iter().filter(is_gone)) {
                        Some(gone) => format!("this machine booted {gone} until {until}"),
                        None => format!("this machine booted without that until {until}"),
                    });
                }
                None => check.pcr(),
            },
        };
        let (then, now) = (then.pcrs.0.get(&pcr)?, now.pcrs.0.get(&pcr)?);
        Some(match then == now {
            true => format!("this machine booted that until {until}"),
            false => format!("PCR {pcr} of this machine was {}… until {until}", HEXLOWER.encode(then)),
        })
    }
}

/// Lists some values of a check; digests are abbreviated.
fn named<'v>(check: Check, values: impl Iterator<Item = &'v String>) -> Option<String> {
    let end = if check == Check::FirmwareVersion { "" } else { "…" };
    let values: Vec<String> = values.map(|value| format!("{value}{end}")).collect();
    let first = values.get(..NAMED_LIMIT).unwrap_or(&values);
    let more = values.len().saturating_sub(first.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!values.is_empty()).then(|| format!("{}{more}", first.join(", ")))
}
