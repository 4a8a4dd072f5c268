//! What is known of each TPM from when it was trusted last: how far its counters had come ([`counters`]), which firmware it had, and what its machine had
//! booted ([`boot`]). What comes is held against that: a pool is told of what went backwards, or refuses it ([`HistoryRules`]).
//!
//! The counters have an entry, and all else has another one next to it: a release that cannot read the latter goes by the counters, because two releases may
//! serve one store.

mod attested;
mod boot;
mod counters;
mod date;
mod finding;

use std::collections::BTreeSet;

use attest::{AppraisalPolicy, Claims, Counters, Kind, Reject};
use attest_pool::{Answer, HistoryRules, by_its_own_tpm};
use attest_store::{Entry, EntryKind, EntryTransaction, Store, StoreError, Transact};
use boot::{Boot, TrustedBoot};
use counters::KnownCounters;
pub use finding::{Finding, HistoryRefusal};

/// How the id begins under which what a TPM's machine had booted is kept, among the counters.
const BOOT: &str = "booted:";

/// By which identity a TPM's history is kept: an instance's own TPM is the same one, whoever's the instance is said to be.
fn kept_by(identity: &str) -> String {
    by_its_own_tpm(identity).unwrap_or_else(|| identity.to_owned())
}

/// The history of the TPMs that attest, beside what they are now.
#[derive(Debug, Default)]
pub struct History(Vec<Past>);

/// That of one of them.
#[derive(Debug)]
struct Past {
    id: String,
    kind: Kind,
    counters: Option<(Option<KnownCounters>, Counters)>,
    trusted: Option<TrustedBoot>,
    boot: Boot,
}

impl History {
    /// Of the TPMs that these claims are of; of their boots, what this policy asks about.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn read(transaction: &mut EntryTransaction<'_>, claims: &Claims, policy: &AppraisalPolicy) -> Result<Self, StoreError> {
        let mut all = Vec::new();
        for tpm in attested::tpms(claims, policy) {
            let id = kept_by(tpm.identity.as_str());
            let mut found = Vec::new();
            for id in ids(&id) {
                found.push(transaction.get(EntryKind::Clock, &id)?);
            }
            let (trusted, counters) = (found.pop().flatten(), found.pop().flatten());
            let boot = Boot::of(&tpm.quoted, tpm.checks);
            all.push(Past::new(id, tpm.kind, tpm.counters, boot, [counters, trusted])?);
        }
        Ok(Self(all))
    }

    /// The entries that [`History::read`] reads.
    #[must_use]
    pub fn wanted(claims: &Claims, policy: &AppraisalPolicy) -> Vec<(EntryKind, String)> {
        let tpms = attested::tpms(claims, policy).into_iter();
        let ids = tpms.flat_map(|tpm| ids(&kept_by(tpm.identity.as_str())));
        ids.map(|id| (EntryKind::Clock, id)).collect()
    }

    /// A line for the administrator for each thing that is not as it should be.
    pub fn alerts(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(Past::findings).map(|finding| finding.to_string())
    }

    /// What a pool with these rules refuses.
    #[must_use]
    pub fn refused(&self, rules: HistoryRules) -> Option<HistoryRefusal> {
        self.0.iter().find_map(|past| {
            let finding = past.findings().into_iter().find(|finding| refuses(rules, finding))?;
            let tpm = past.id.clone();
            Some(HistoryRefusal { tpm, finding })
        })
    }

    /// What the machine had in the place that it is refused for, when it was trusted last, in words; `None` if that is not known.
    #[must_use]
    pub fn before(&self, reject: &Reject) -> Option<String> {
        let (kind, place) = attested::place(reject)?;
        let past = self.0.iter().find(|past| past.kind == kind)?;
        past.trusted.as_ref()?.beside(&past.boot, &place)
    }

    /// Remembers what they are now, by a decision at this time, seconds since 1970, by which they are trusted. Of most boots that is the counters alone.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn note(&self, transaction: &mut EntryTransaction<'_>, at: u64, decision: &str) -> Result<(), StoreError> {
        for past in &self.0 {
            let [id, of_boot] = ids(&past.id);
            if let Some((_, now)) = past.counters {
                transaction.put(EntryKind::Clock, KnownCounters::from(now).entry(id)?)?;
            }
            let firmware = past.counters.map(|(_, now)| now.firmware_version);
            let is_noted = past.trusted.as_ref().is_some_and(|trusted| trusted.says(&past.boot, firmware, at));
            if !is_noted {
                let trusted = TrustedBoot::new(past.boot.clone(), firmware, at, decision);
                transaction.put(EntryKind::Clock, trusted.entry(of_boot)?)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a pool refuses a machine for this.
fn refuses(rules: HistoryRules, finding: &Finding) -> bool {
    let answer = match finding {
        Finding::CountersBack { .. } => rules.counters_back,
        Finding::FirmwareBack { .. } => rules.firmware_back,
        Finding::AnotherLog { .. } => rules.another_log,
    };
    answer == Answer::Refuse
}

impl Past {
    /// Of what was found under its [`ids`].
    fn new(id: String, kind: Kind, now: Option<Counters>, boot: Boot, found: [Option<Entry>; 2]) -> Result<Self, StoreError> {
        let [counters, trusted] = found;
        let known = counters.map(KnownCounters::read).transpose()?;
        Ok(Self {
            id,
            kind,
            counters: now.map(|now| (known, now)),
            // What cannot be read, as that of a later release, is not known.
            trusted: trusted.and_then(|entry| serde_json::from_str(&entry.value).ok()),
            boot,
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let counters = self.counters.and_then(|(known, now)| known?.behind(now));
        let before = self.trusted.as_ref().and_then(TrustedBoot::firmware);
        let firmware = self.counters.zip(before).and_then(|((_, now), before)| {
            let now = now.firmware_version;
            (now < before).then_some(Finding::FirmwareBack { before, now })
        });
        let log = self.trusted.as_ref().and_then(|trusted| trusted.another_log(&self.boot));
        [counters, firmware, log].into_iter().flatten().collect()
    }
}

/// The ids of its entries: counters, boot.
fn ids(kept_by: &str) -> [String; 2] {
    [kept_by.to_owned(), format!("{BOOT}{kept_by}")]
}

/// Forgets the history of a machine's TPMs, named as [`super::revocations::named`] gives it: what each is next is compared with nothing. That they have
/// attested stays known. Says whether there was anything.
///
/// # Errors
/// [`StoreError`].
pub async fn forget(store: &dyn Store, who: &str) -> Result<bool, StoreError> {
    let who = who.to_owned();
    store
        .transact(move |transaction| {
            let named = transaction.get(EntryKind::Name, &who)?.map(|entry| entry.value);
            let tpms: BTreeSet<String> = named.iter().chain([&who]).map(|who| kept_by(who)).collect();
            let mut was_there = false;
            for tpm in tpms {
                let [counters, boot] = ids(&tpm);
                if transaction.get(EntryKind::Clock, &counters)?.is_some() {
                    // Nothing is behind these; that there are none would say that it has never attested.
                    transaction.put(EntryKind::Clock, KnownCounters::default().entry(counters)?)?;
                    was_there = true;
                }
                was_there |= transaction.remove(EntryKind::Clock, &boot)?;
            }
            Ok(was_there)
        })
        .await
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
