use std::collections::BTreeMap;

use aws_lc_rs::digest;

use super::phase::{PHASE_SEQUENCES, PHASES_PCR, Phase};
use super::{Event, EventLog, EventLogError, EventType, OS_SEPARATOR, OS_SEPARATOR_PCRS, PCR_COUNT};
use crate::tpm::wire::HashAlg;
use crate::values::HexDigest;

/// Longest digest of a bank, in bytes.
const DIGEST_LIMIT_BYTES: usize = 64;

/// The PCRs that belong to the firmware: 0 to 7. All extensions of them until the boot loader starts are in the log (PFP 3.3.4), and no
/// operating system extends them later, except for [`OS_SEPARATOR`].
const FIRMWARE_PCR_LAST: u8 = 7;

/// Values that a log's events lead to, for the requested PCRs.
#[derive(Debug, Clone)]
pub struct Replayed {
    bank: HashAlg,
    pcrs: [Option<ReplayedPcr>; PCR_COUNT],
}

#[derive(Debug, Clone, Copy)]
struct ReplayedPcr {
    /// The value; the bank's digest length of it counts.
    value: [u8; DIGEST_LIMIT_BYTES],
    events: usize,
}

impl ReplayedPcr {
    fn new<const N: usize>((short, events): ([u8; N], usize)) -> Self {
        let mut value = [0; DIGEST_LIMIT_BYTES];
        value.iter_mut().zip(short).for_each(|(to, from)| *to = from);
        Self { value, events }
    }
}

impl Replayed {
    #[must_use]
    pub const fn bank(&self) -> HashAlg {
        self.bank
    }

    /// The value of a PCR, `None` if it was not asked for.
    #[must_use]
    pub fn value(&self, pcr: u8) -> Option<&[u8]> {
        self.pcr(pcr)?.value.get(..self.bank.digest_bytes())
    }

    /// The value of a PCR after [`OS_SEPARATOR`], `None` for one into which it is not extended.
    fn separated(&self, pcr: u8) -> Option<Vec<u8>> {
        let value = self.value(pcr).filter(|_| OS_SEPARATOR_PCRS.contains(&pcr))?;
        let word = digest::digest(self.bank.algorithm(), OS_SEPARATOR);
        let extended = digest::digest(self.bank.algorithm(), &[value, word.as_ref()].concat());
        Some(extended.as_ref().to_vec())
    }

    /// The phases that lead from the replayed value of PCR 11 to the quoted one; `None` if none do.
    fn phases(&self, pcr: u8, quoted: &[u8]) -> Option<&'static [Phase]> {
        if pcr != PHASES_PCR {
            return None;
        }
        PHASE_SEQUENCES.into_iter().find_map(|phases| {
            let mut value = self.value(pcr)?.to_vec();
            for (count, phase) in phases.iter().enumerate() {
                let word = digest::digest(self.bank.algorithm(), phase.label());
                value.extend_from_slice(word.as_ref());
                value = digest::digest(self.bank.algorithm(), &value).as_ref().to_vec();
                if value == quoted {
                    return phases.get(..=count);
                }
            }
            None
        })
    }

    /// Returns the number of events that extend a PCR: 0 if it was not requested.
    #[must_use]
    pub fn events(&self, pcr: u8) -> usize {
        self.pcr(pcr).map_or(0, |replayed| replayed.events)
    }

    fn pcr(&self, pcr: u8) -> Option<&ReplayedPcr> {
        self.pcrs.get(usize::from(pcr))?.as_ref()
    }
}

impl<'a> EventLog<'a> {
    /// Computes the values of `pcrs` in one bank: PCR := H(PCR ‖ digest) for each extending event, in the log's order.
    ///
    /// PCR 0 begins with the startup locality, every other one with zeros: 17 to 22 too, as a dynamic launch leaves them
    /// (TCG PC Client Platform TPM Profile 1.06, table of PCR initial values).
    ///
    /// # Errors
    /// [`EventLogError::BankMissing`], [`EventLogError::DigestMissing`], [`EventLogError::NoSuchPcr`].
    pub fn replay(&self, bank: HashAlg, pcrs: impl IntoIterator<Item = u8>) -> Result<Replayed, EventLogError> {
        if !self.algorithms.iter().any(|declared| declared.id == bank.id()) {
            let declared = self.algorithms.iter().map(|declared| declared.id).collect();
            return Err(EventLogError::BankMissing { bank, declared });
        }
        let mut asked = [false; PCR_COUNT];
        for index in pcrs {
            *asked.get_mut(usize::from(index)).ok_or(EventLogError::NoSuchPcr { index })? = true;
        }
        let pcrs = match bank {
            HashAlg::Sha256 => self.replay_bank(bank, asked, |event| event.sha256),
            HashAlg::Sha384 => self.replay_bank(bank, asked, |event| event.sha384),
            HashAlg::Sha512 => self.replay_bank(bank, asked, |event| event.sha512),
        }?;
        Ok(Replayed { bank, pcrs })
    }

    fn replay_bank<const N: usize>(
        &self,
        bank: HashAlg,
        asked: [bool; PCR_COUNT],
        digest_of: impl Fn(&Event<'a>) -> Option<&'a [u8; N]>,
    ) -> Result<[Option<ReplayedPcr>; PCR_COUNT], EventLogError> {
        let mut pcrs = asked.map(|asked| asked.then_some(([0; N], 0)));
        if let Some(Some((value, _))) = pcrs.first_mut()
            && let Some(last) = value.last_mut()
        {
            *last = self.startup_locality;
        }
        for event in &self.events {
            let Some(Some((value, events))) = pcrs.get_mut(usize::from(event.pcr)) else {
                continue;
            };
            if !event.extends() {
                continue;
            }
            let digest = digest_of(event).ok_or(EventLogError::DigestMissing {
                event: event.number,
                index: event.pcr,
                bank,
            })?;
            // One-shot over one buffer is cheaper than a digest context, and most of a replay's time is spent here.
            let hash = digest::digest(bank.algorithm(), [*value, *digest].as_flattened());
            value.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
            *events += 1;
        }
        Ok(pcrs.map(|pcr| pcr.map(ReplayedPcr::new)))
    }

    /// Compares the log with quoted PCRs, and returns the events that the quote proves.
    ///
    /// - PCRs 0 to 7 are the firmware's: each quoted one has to have exactly the value that the log leads to, so a log that is
    ///   re-ordered, shortened (down to no event at all) or extended is refused. [`OS_SEPARATOR`] may have been extended after the log.
    /// - PCRs 8 and above are extended further by operating systems, outside this log (systemd 11 to 13 and 15, IMA 10). One
    ///   that the log leads to is explained, PCR 11 also by the [`Phase`]s that may follow; any other is listed in [`TrustedEvents::unexplained_pcrs`] and none of its events is to be had.
    ///   Such a PCR is not refused here: its quoted value is what the reference values are about, log or no log.
    /// - Events in PCRs that were not quoted are not to be had either: nothing proves them.
    ///
    /// # Errors
    /// [`EventLogError::PcrMismatch`], and those of [`EventLog::replay`].
    pub fn check_against(&self, bank: HashAlg, quoted: &BTreeMap<u8, HexDigest>) -> Result<TrustedEvents<'_, 'a>, EventLogError> {
        let replayed = self.replay(bank, quoted.keys().copied())?;
        let mut explained = Vec::with_capacity(quoted.len());
        let mut separated = Vec::new();
        let mut phases: &[Phase] = &[];
        let mut unexplained = Vec::new();
        for (&index, quoted) in quoted {
            let value = replayed.value(index).unwrap_or_default();
            if quoted.as_bytes() == value {
                explained.push(index);
            } else if replayed.separated(index).is_some_and(|after| quoted.as_bytes() == after) {
                explained.push(index);
                separated.push(index);
            } else if let Some(found) = replayed.phases(index, quoted.as_bytes()) {
                explained.push(index);
                phases = found;
            } else if index <= FIRMWARE_PCR_LAST {
                return Err(EventLogError::PcrMismatch {
                    index,
                    bank,
                    quoted: quoted.to_string(),
                    replayed: data_encoding::HEXLOWER.encode(value),
                    events: replayed.events(index),
                });
            } else {
                unexplained.push(index);
            }
        }
        Ok(TrustedEvents {
            log: self,
            bank,
            explained,
            separated,
            unexplained,
            phases,
        })
    }
}

/// The events that a quote proves: those of quoted PCRs whose replay gives the quoted value.
#[derive(Debug, Clone)]
pub struct TrustedEvents<'l, 'a> {
    log: &'l EventLog<'a>,
    bank: HashAlg,
    explained: Vec<u8>,
    separated: Vec<u8>,
    unexplained: Vec<u8>,
    phases: &'static [Phase],
}

impl<'l, 'a> TrustedEvents<'l, 'a> {
    /// The quoted PCRs that the log leads to, ascending. One of them may have no event: then nothing was extended into it.
    pub fn explained_pcrs(&self) -> impl Iterator<Item = u8> {
        self.explained.iter().copied()
    }

    /// Returns the PCRs into which [`OS_SEPARATOR`] was extended, after all events of the log.
    pub fn separated_pcrs(&self) -> impl Iterator<Item = u8> {
        self.separated.iter().copied()
    }

    /// Returns the quoted PCRs above 7 whose value is not the one that the log leads to, ascending. Something else has extended them, or
    /// the log is wrong about them.
    pub fn unexplained_pcrs(&self) -> impl Iterator<Item = u8> {
        self.unexplained.iter().copied()
    }

    /// Returns the number of events in the log, proven or not.
    pub(in crate::tpm) fn event_count(&self) -> usize {
        self.log.event_count()
    }

    /// The phases of systemd's that were extended into PCR 11 after all events of the log.
    #[must_use]
    pub const fn phases(&self) -> &'static [Phase] {
        self.phases
    }

    /// Events of the log that extended nothing (`EV_NO_ACTION`): **nothing proves them**, neither that they were there nor what they say.
    pub fn unmeasured(&self) -> impl Iterator<Item = &'l Event<'a>> + use<'l, 'a> {
        self.log.events.iter().filter(|event| !event.extends())
    }

    /// The bank of their digests.
    #[must_use]
    pub const fn bank(&self) -> HashAlg {
        self.bank
    }

    /// All of them, in the order of the log: of each PCR, that is the order in which they were extended.
    pub fn events(&self) -> impl Iterator<Item = TrustedEvent<'a>> + use<'_, 'l, 'a> {
        let of_explained = |event: &&Event<'a>| self.explained.contains(&event.pcr) && event.extends();
        let trusted = |event: &Event<'a>| {
            Some(TrustedEvent {
                digest: event.digest(self.bank)?,
                event: *event,
            })
        };
        self.log.events.iter().filter(of_explained).filter_map(trusted)
    }

    /// All events that extended a PCR, in order; `None` if nothing is proven about that PCR.
    #[must_use]
    pub fn events_of(&self, pcr: u8) -> Option<impl Iterator<Item = TrustedEvent<'a>> + use<'l, 'a>> {
        let bank = self.bank;
        let of_pcr = move |event: &&Event<'a>| event.pcr == pcr && event.extends();
        let trusted = move |event: &Event<'a>| {
            Some(TrustedEvent {
                digest: event.digest(bank)?,
                event: *event,
            })
        };
        self.explained
            .contains(&pcr)
            .then(|| self.log.events.iter().filter(of_pcr).filter_map(trusted))
    }
}

/// An event for which the quote proves the digest, the PCR and the position among that PCR's events. Type and data remain the log's own
/// claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedEvent<'a> {
    digest: &'a [u8],
    event: Event<'a>,
}

impl<'a> TrustedEvent<'a> {
    /// Position in the log, counted from 1 after the header.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.event.number
    }

    /// The PCR that it extended.
    #[must_use]
    pub const fn pcr(&self) -> u8 {
        self.event.pcr
    }

    /// Returns the extended digest, with the length of the bank's digests.
    #[must_use]
    pub const fn digest(&self) -> &'a [u8] {
        self.digest
    }

    /// Returns the event's type according to the log. **Not measured.**
    #[must_use]
    pub const fn untrusted_type(&self) -> EventType {
        self.event.event_type
    }

    /// Returns the event's data according to the log. **Not measured**, unless the digest is its hash.
    #[must_use]
    pub const fn untrusted_data(&self) -> &'a [u8] {
        self.event.data
    }
}
