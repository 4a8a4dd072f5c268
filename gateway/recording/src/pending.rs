//! Decisions that the store keeps because their gateway ended, or could not write, before they were recorded: whether the log has them.

use std::path::Path;

use attest_log::{FoundDecisions, PendingDecision, PendingDecisions, Point, StoreFailure};
use attest_store::{DecisionRecord, Pending, Store, StoreError};

/// Outcome of pending decisions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedDecisions {
    /// Number of uses that were given back: their decisions are not in the log, so no client got anything for them.
    pub given_back: usize,
    /// Decisions that are not in the log. A use that still counts stays used: the log does not reach back to it without a gap.
    pub unrecorded: Vec<Unrecorded>,
}

/// A decision that is not in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrecorded {
    pub pending: Pending,
    /// Set if the answer was not sent. Unknown, and not set, where lines are missing, or another gateway's log may have it.
    pub is_unanswered: bool,
}

/// Settles the decisions that are in the log, and gives back the uses of those that are not. If the log begins too late to tell, or lines
/// are missing since, nothing is given back. Otherwise a use that may have been served would be valid twice. The same holds if lines are
/// `missing` that this gateway has signed. A log that was truncated, or restored from a copy, has no gap as far as it goes.
///
/// # Errors
/// [`StoreError`].
async fn resolve(
    store: &dyn Store,
    found: &FoundDecisions,
    pending: Vec<Pending>,
    missing: &[Point],
) -> Result<ResolvedDecisions, StoreError> {
    let mut resolved = ResolvedDecisions::default();
    for mut pending in pending {
        let DecisionRecord { decision, at, .. } = &pending.decided;
        if found.has(decision) {
            store.settle(decision);
            continue;
        }
        let is_whole = missing.is_empty() && found.reaches_back_before(*at);
        if is_whole && store.give_back(decision).await? {
            pending.has_use = false;
            resolved.given_back += 1;
        }
        let is_unanswered = is_whole && !pending.adopted;
        resolved.unrecorded.push(Unrecorded { pending, is_unanswered });
    }
    Ok(resolved)
}

/// Like [`resolve`], for all pending decisions. Called with the log open, so that no other process writes to it, before anything else is
/// used up, and before a segment is compressed.
///
/// # Errors
/// [`StoreError`].
pub async fn resolve_pending(store: &dyn Store, log: &Path, missing: &[Point]) -> Result<ResolvedDecisions, StoreError> {
    let pending = store.pending().await?;
    if pending.is_empty() {
        return Ok(ResolvedDecisions::default());
    }
    let found = FoundDecisions::search(log, &wanted(&pending)).map_err(|source| StoreError::Io {
        path: log.to_owned(),
        source,
    })?;
    resolve(store, &found, pending, missing).await
}

/// Returns these decisions, in the form by which the log is searched.
fn wanted(pending: &[Pending]) -> Vec<PendingDecision> {
    let decided = pending.iter().map(|pending| &pending.decided);
    let wanted = decided.map(|DecisionRecord { decision, at, .. }| PendingDecision {
        id: decision.clone(),
        at: *at,
    });
    wanted.collect()
}

/// The pending decisions of a store, as retention asks for them.
#[derive(Debug, Clone, Copy)]
pub struct PendingIn<'s>(pub &'s dyn Store);

impl PendingDecisions for PendingIn<'_> {
    async fn trusted_time(&self, now: u64) -> Result<u64, StoreFailure> {
        Ok(self.0.time(now).await?)
    }

    async fn pending(&self) -> Result<Vec<PendingDecision>, StoreFailure> {
        Ok(wanted(&self.0.pending().await?))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;
    use attest_store::{Embedded, EntryKind, Spend, Spendable, Transact, UseOccasion};

    fn thing(id: &str) -> Spendable {
        Spendable {
            kind: EntryKind::Ticket,
            id: id.to_owned(),
            limit: 1,
            remember_until: 100,
        }
    }

    /// Returns whether a use is valid again that was pending at second 10 when the gateway was killed, with this log.
    async fn is_reusable(log: &str) -> bool {
        is_reusable_with(&[], log).await
    }

    /// Like [`is_reusable`], with earlier rotated files.
    async fn is_reusable_with(rotated: &[String], log: &str) -> bool {
        let folder = tempfile::tempdir().unwrap();
        for (number, text) in rotated.iter().enumerate() {
            fs::write(folder.path().join(format!("log.{number}")), text).unwrap();
        }
        is_reusable_in(&folder, log).await
    }

    /// Like [`is_reusable`], with other files in the folder.
    async fn is_reusable_in(folder: &tempfile::TempDir, log: &str) -> bool {
        let (file, database) = (folder.path().join("log"), folder.path().join("gateway.db"));
        fs::write(&file, log).unwrap();
        let store = Embedded::open(&database).unwrap();
        let decided: Result<_, StoreError> = store
            .decide("d1", |transaction| {
                transaction.spend(&thing("a"), &UseOccasion::Any, 10)?;
                let [decision, record] = ["d1", "{}"].map(str::to_owned);
                transaction.decide(DecisionRecord { decision, at: 10, record })
            })
            .await;
        decided.unwrap();
        let resolved = resolve_pending(&store, &file, &[]).await.unwrap();
        // Whoever has recorded it settles it; until then it is found again.
        let left: Vec<Pending> = resolved.unrecorded.iter().map(|left| left.pending.clone()).collect();
        assert_eq!(store.pending().await.unwrap(), left);
        let again = resolve_pending(&store, &file, &[]).await.unwrap();
        assert_eq!((again.given_back, &again.unrecorded), (0, &resolved.unrecorded), "given back once");
        let good = matches!(store.spend(thing("a")).await.unwrap(), Spend::Granted { .. });
        assert_eq!(resolved.given_back, usize::from(good));
        let told = |left: &Unrecorded| (left.pending.has_use, left.is_unanswered) == (!good, good);
        assert!(resolved.unrecorded.iter().all(told));
        good
    }

    fn line(at: u64, id: &str) -> String {
        format!("{{\"at\":{at},\"id\":\"{id}\",\"more\":{{}}}}\n")
    }

    #[tokio::test]
    async fn refunds_uses_only_if_the_log_is_complete() {
        assert!(is_reusable(&line(9, "d0")).await);
        assert!(is_reusable(&(line(9, "d0") + &line(10, "d2"))).await);
        assert!(is_reusable(&("no line\n".to_owned() + &line(9, "d0"))).await);
        assert!(!is_reusable(&(line(9, "d0") + &line(10, "d1"))).await, "it is recorded");
        assert!(!is_reusable(&line(10, "d0")).await, "the log may have been rotated in that second");
        assert!(!is_reusable(&line(11, "d0")).await);
        assert!(!is_reusable("").await);
    }

    /// A line of a chain.
    fn nth(number: u64, at: u64, id: &str) -> String {
        let (chain, previous) = ("0a".repeat(16), "0".repeat(64));
        let place = format!("{{\"id\":\"{chain}\",\"number\":{number},\"previous\":\"{previous}\"}}");
        format!("{{\"at\":{at},\"id\":\"{id}\",\"chain\":{place}}}\n")
    }

    #[tokio::test]
    async fn finds_decisions_in_rotated_segments() {
        let now = nth(3, 12, "d2");
        let whole = nth(1, 5, "d0") + &nth(2, 10, "d1");
        assert!(!is_reusable_with(&[whole], &now).await);
        let whole = nth(1, 5, "d0") + &nth(2, 10, "d3");
        assert!(is_reusable_with(&[whole], &now).await, "it reaches back");
        assert!(!is_reusable_with(&[nth(2, 11, "d0")], &now).await, "it does not");
        // The one that begins before it need not have it, if the clock was set back.
        let two = [nth(1, 3, "d0") + &nth(2, 10, "d1"), nth(3, 7, "d3")];
        assert!(!is_reusable_with(&two, &nth(4, 12, "d2")).await);
    }

    #[tokio::test]
    async fn refunds_no_use_while_a_segment_is_missing() {
        let first = nth(1, 5, "d0") + &nth(2, 6, "d3");
        assert!(is_reusable_with(std::slice::from_ref(&first), &nth(3, 12, "d2")).await);
        // Its copy, or a part of it, says nothing else.
        for copy in [first.clone(), nth(1, 5, "d0")] {
            assert!(is_reusable_with(&[first.clone(), copy], &nth(3, 12, "d2")).await);
        }
        let gone = [
            nth(4, 12, "d2"),
            nth(4, 12, "d2") + &nth(5, 13, "d4"),
            // Of another chain; of none.
            nth(3, 12, "d2").replace("0a", "0b"),
            line(12, "d2"),
            // The one that was written last.
            String::new(),
            "no line\n".to_owned(),
        ];
        for log in &gone {
            assert!(!is_reusable_with(std::slice::from_ref(&first), log).await, "{log}");
        }
        // Taken out of the middle.
        assert!(!is_reusable(&(nth(1, 5, "d0") + &nth(3, 12, "d2"))).await);
        assert!(
            !is_reusable_with(&[line(5, "d0")], &line(12, "d2")).await,
            "they may be neighbours or not"
        );
    }

    #[tokio::test]
    async fn a_chain_after_unchained_lines_has_no_gap() {
        let begins = |why: &str| nth(1, 12, "d2").replace("\"}}", &format!("\",\"begins\":{{\"why\":\"{why}\"}}}}}}"));
        assert!(is_reusable(&(line(5, "d0") + &begins("unchained"))).await);
        assert!(!is_reusable(&(line(5, "d0") + &begins("incomplete"))).await);
        assert!(!is_reusable_with(&[line(5, "d0")], &begins("unchained")).await);
    }

    #[tokio::test]
    async fn treats_an_unreadable_segment_as_missing() {
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut zipped, nth(2, 10, "d3").as_bytes()).unwrap();
        let zipped = zipped.finish().unwrap();
        let good = |name: &'static str, bytes: Vec<u8>| async move {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("log.1"), nth(1, 5, "d0")).unwrap();
            fs::write(folder.path().join(name), bytes).unwrap();
            is_reusable_in(&folder, &nth(3, 12, "d2")).await
        };
        assert!(good("log.2.gz", zipped.clone()).await);
        for bytes in [b"no gzip".to_vec(), Vec::new(), zipped[..zipped.len() - 12].to_vec()] {
            assert!(!good("log.2.gz", bytes).await);
        }
        // A folder beside the log is none of its files.
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("log.d")).unwrap();
        assert!(is_reusable_in(&folder, &nth(1, 5, "d0")).await);
    }
}
