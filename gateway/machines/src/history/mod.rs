//! History of each TPM since it was last trusted: its counters ([`counters`]), its firmware version, and the boot of its machine
//! ([`boot`]). New evidence is compared with it. Depending on the pool's [`HistoryRules`], a step backwards raises an alert or is refused.
//!
//! The counters have one store entry, everything else a second one. A release that cannot read the second one uses the counters, because
//! two releases may serve one store.

mod attested;
mod boot;
mod counters;
mod date;
mod finding;

use std::collections::BTreeSet;

use attest::{AppraisalPolicy, Claims, Counters, Kind, Reject};
use attest_pool::{HistoryPolicy, HistoryRules, by_its_own_tpm};
use attest_store::{EntryKind, EntryTransaction, Store, StoreEntry, StoreError, Transact};
use boot::{Boot, TrustedBoot};
use counters::KnownCounters;
pub use finding::{HistoryFinding, HistoryRefusal};

/// Prefix of the id of a boot's entry, among the counters' entries.
const BOOT: &str = "booted:";

/// Returns the identity under which a TPM's history is stored. An instance's own TPM has one history, no matter which account the instance
/// is said to belong to.
fn history_identity(identity: &str) -> String {
    by_its_own_tpm(identity).unwrap_or_else(|| identity.to_owned())
}

/// The history of the TPMs that attest, with their current state.
#[derive(Debug, Default)]
pub struct History(Vec<TpmHistory>);

/// The history of one TPM.
#[derive(Debug)]
struct TpmHistory {
    id: String,
    kind: Kind,
    counters: Option<(Option<KnownCounters>, Counters)>,
    trusted: Option<TrustedBoot>,
    boot: Boot,
}

impl History {
    /// Reads the history of the TPMs of these claims; of their boots, the parts that this policy checks.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn read(transaction: &mut EntryTransaction<'_>, claims: &Claims, policy: &AppraisalPolicy) -> Result<Self, StoreError> {
        let mut all = Vec::new();
        for tpm in attested::tpms(claims, policy) {
            let id = history_identity(tpm.identity.as_str());
            let mut found = Vec::new();
            for id in ids(&id) {
                found.push(transaction.get(EntryKind::Clock, &id)?);
            }
            let (trusted, counters) = (found.pop().flatten(), found.pop().flatten());
            let boot = Boot::from_quote(&tpm.quoted, tpm.checks);
            all.push(TpmHistory::new(id, tpm.kind, tpm.counters, boot, [counters, trusted])?);
        }
        Ok(Self(all))
    }

    /// Returns the entries that [`History::read`] reads.
    #[must_use]
    pub fn wanted(claims: &Claims, policy: &AppraisalPolicy) -> Vec<(EntryKind, String)> {
        let tpms = attested::tpms(claims, policy).into_iter();
        let ids = tpms.flat_map(|tpm| ids(&history_identity(tpm.identity.as_str())));
        ids.map(|id| (EntryKind::Clock, id)).collect()
    }

    /// Returns a message for the administrator for each anomaly.
    pub fn alerts(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(TpmHistory::findings).map(|finding| finding.to_string())
    }

    /// Returns the first finding that a pool with these rules refuses.
    #[must_use]
    pub fn refused(&self, rules: HistoryRules) -> Option<HistoryRefusal> {
        self.0.iter().find_map(|past| {
            let finding = past.findings().into_iter().find(|finding| refuses(rules, finding))?;
            let tpm = past.id.clone();
            Some(HistoryRefusal { tpm, finding })
        })
    }

    /// Describes what the machine had at its last trusted boot in the place that it is refused for; `None` if that is not known.
    #[must_use]
    pub fn before(&self, reject: &Reject) -> Option<String> {
        let (kind, place) = attested::place(reject)?;
        let past = self.0.iter().find(|past| past.kind == kind)?;
        past.trusted.as_ref()?.describe_previous(&past.boot, &place)
    }

    /// Stores the current state as trusted, by a decision at this time, in seconds since 1970. For most boots only the counters change.
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
fn refuses(rules: HistoryRules, finding: &HistoryFinding) -> bool {
    let answer = match finding {
        HistoryFinding::CountersBack { .. } => rules.counters_back,
        HistoryFinding::FirmwareBack { .. } => rules.firmware_back,
        HistoryFinding::AnotherLog { .. } => rules.another_log,
    };
    answer == HistoryPolicy::Refuse
}

impl TpmHistory {
    /// Builds the history from the entries found under its [`ids`].
    fn new(id: String, kind: Kind, now: Option<Counters>, boot: Boot, found: [Option<StoreEntry>; 2]) -> Result<Self, StoreError> {
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

    fn findings(&self) -> Vec<HistoryFinding> {
        let counters = self.counters.and_then(|(known, now)| known?.behind(now));
        let before = self.trusted.as_ref().and_then(TrustedBoot::firmware);
        let firmware = self.counters.zip(before).and_then(|((_, now), before)| {
            let now = now.firmware_version;
            (now < before).then_some(HistoryFinding::FirmwareBack { before, now })
        });
        let log = self.trusted.as_ref().and_then(|trusted| trusted.another_log(&self.boot));
        [counters, firmware, log].into_iter().flatten().collect()
    }
}

/// Returns the ids of its entries: counters, boot.
fn ids(kept_by: &str) -> [String; 2] {
    [kept_by.to_owned(), format!("{BOOT}{kept_by}")]
}

/// Deletes the history of a machine's TPMs, named as [`super::revocations::named`] returns it: their next state is compared with nothing.
/// The fact that they have attested stays. Returns whether there was any history.
///
/// # Errors
/// [`StoreError`].
pub async fn forget(store: &dyn Store, who: &str) -> Result<bool, StoreError> {
    let who = who.to_owned();
    store
        .transact(move |transaction| {
            let named = transaction.get(EntryKind::Name, &who)?.map(|entry| entry.value);
            let tpms: BTreeSet<String> = named.iter().chain([&who]).map(|who| history_identity(who)).collect();
            let mut was_there = false;
            for tpm in tpms {
                was_there |= forget_tpm(transaction, &tpm)?;
            }
            Ok(was_there)
        })
        .await
}

/// Deletes the history of a TPM, by the identity under which it is stored.
pub(super) fn forget_tpm(transaction: &mut EntryTransaction<'_>, tpm: &str) -> Result<bool, StoreError> {
    let [counters, boot] = ids(tpm);
    let was_there = transaction.get(EntryKind::Clock, &counters)?.is_some();
    if was_there {
        // Nothing is behind these; that there are none would say that it has never attested.
        transaction.put(EntryKind::Clock, KnownCounters::default().entry(counters)?)?;
    }
    Ok(transaction.remove(EntryKind::Clock, &boot)? || was_there)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
