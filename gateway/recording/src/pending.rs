//! What was used up and claimed when the gateway was killed: whether anybody got anything for it stands in the log.

use std::path::Path;

use attest_log::{Outcome, Outcomes, PendingDecision, PendingDecisions, Point, Record, StoreFailure};
use attest_store::{Pending, Store, StoreError};

/// What came of the decisions that were pending at a start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Given back: their decisions are not in the log, or are refused there, so nobody got anything.
    pub given_back: usize,
    /// Used up for good, although their decisions are not in the log: it does not reach back to their time without a gap.
    pub kept: usize,
}

/// Settles the decisions that are in the log and gave something, and gives back what those took that are not there, or are refused. Called
/// with the log open, so that nobody else writes to it, before anything else is used up, and before a segment is compressed. Where the log begins
/// too late to tell, or lines are missing since, nothing is given back: what may have been served is never good twice. Nor is anything where lines
/// are `missing` that this gateway has signed: a log that was cut, or that came back from a copy, is whole as far as it goes.
///
/// # Errors
/// [`StoreError`].
pub async fn resolve_pending(store: &dyn Store, log: &Path, missing: &[Point]) -> Result<Resolved, StoreError> {
    let pending = store.pending().await?;
    let mut resolved = Resolved::default();
    if pending.is_empty() {
        return Ok(resolved);
    }
    let wanted: Vec<PendingDecision> = pending.iter().cloned().map(decision).collect();
    let outcomes = Outcomes::of(log, &wanted).map_err(|source| StoreError::Io {
        path: log.to_owned(),
        source,
    })?;
    for Pending { decision, at } in pending {
        let outcome = outcomes.get(&decision);
        if outcome == Some(Outcome::Given) {
            store.settle(&decision);
        } else if missing.is_empty() && (outcome == Some(Outcome::Refused) || outcomes.reaches_back_before(at)) {
            store.give_back(&decision).await?;
            resolved.given_back += 1;
        } else {
            store.settle(&decision);
            resolved.kept += 1;
        }
    }
    Ok(resolved)
}

/// Returns what the store remembers while something is used up for the decision of this record and it is not recorded.
#[must_use]
pub fn pending<C, B>(record: &Record<C, B>) -> Pending {
    Pending {
        decision: record.id.clone(),
        at: record.at,
    }
}

fn decision(Pending { decision: id, at }: Pending) -> PendingDecision {
    PendingDecision { id, at }
}

/// The pending decisions of a store, as retention asks for them.
#[derive(Debug, Clone, Copy)]
pub struct PendingIn<'s>(pub &'s dyn Store);

impl PendingDecisions for PendingIn<'_> {
    async fn trusted_time(&self, now: u64) -> Result<u64, StoreFailure> {
        Ok(self.0.time(now).await?)
    }

    async fn pending(&self) -> Result<Vec<PendingDecision>, StoreFailure> {
        let pending = self.0.pending().await?;
        Ok(pending.into_iter().map(decision).collect())
    }

    fn settle(&self, id: &str) {
        self.0.settle(id);
    }

    async fn give_back(&self, id: &str) -> Result<(), StoreFailure> {
        self.0.give_back(id).await?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;
    use attest_store::{Embedded, EntryKind, Occasion, Spend, Spendable};

    fn thing(id: &str) -> Spendable {
        Spendable {
            kind: EntryKind::Ticket,
            id: id.to_owned(),
            limit: 1,
            remember_until: 100,
        }
    }

    /// Whether a use is good again that was pending at second 10 when the gateway was killed, with this log.
    async fn good_again(log: &str) -> bool {
        good_again_with(&[], log).await
    }

    /// As [`good_again`], with files that were rotated before.
    async fn good_again_with(rotated: &[String], log: &str) -> bool {
        let folder = tempfile::tempdir().unwrap();
        for (number, text) in rotated.iter().enumerate() {
            fs::write(folder.path().join(format!("log.{number}")), text).unwrap();
        }
        good_again_in(&folder, log).await
    }

    /// As [`good_again`], with what else is there.
    async fn good_again_in(folder: &tempfile::TempDir, log: &str) -> bool {
        let (file, database) = (folder.path().join("log"), folder.path().join("gateway.db"));
        fs::write(&file, log).unwrap();
        let store = Embedded::open(&database).unwrap();
        let pending = Pending {
            decision: "d1".to_owned(),
            at: 10,
        };
        store.spend_for(thing("a"), Occasion::Any, pending.into()).await.unwrap();
        let resolved = resolve_pending(&store, &file, &[]).await.unwrap();
        assert_eq!(store.pending().await.unwrap(), []);
        assert_eq!(resolve_pending(&store, &file, &[]).await.unwrap(), Resolved::default(), "once");
        let good = matches!(store.spend(thing("a")).await.unwrap(), Spend::Granted { .. });
        assert_eq!(resolved.given_back, usize::from(good));
        good
    }

    fn line(at: u64, id: &str) -> String {
        format!("{{\"at\":{at},\"id\":\"{id}\",\"more\":{{}}}}\n")
    }

    /// The decision was recorded, and nothing was given.
    fn refused(at: u64) -> String {
        format!("{{\"at\":{at},\"id\":\"d1\",\"verdict\":\"refused\"}}\n")
    }

    #[tokio::test]
    async fn a_use_is_given_back_only_where_the_log_can_tell_that_nobody_got_anything() {
        assert!(good_again(&line(9, "d0")).await);
        assert!(good_again(&(line(9, "d0") + &line(10, "d2"))).await);
        assert!(good_again(&("no line\n".to_owned() + &line(9, "d0"))).await);
        assert!(!good_again(&(line(9, "d0") + &line(10, "d1"))).await, "it is recorded");
        for twice in [line(9, "d1") + &refused(10), refused(9) + &line(10, "d1")] {
            assert!(
                !good_again(&twice).await,
                "something was given, whatever else says that it was refused"
            );
        }
        assert!(!good_again(&line(10, "d0")).await, "the log may have been rotated in that second");
        assert!(!good_again(&line(11, "d0")).await);
        assert!(!good_again("").await);
    }

    #[tokio::test]
    async fn what_could_not_be_given_back_to_who_was_refused_is_given_back_at_the_start() {
        assert!(good_again(&(line(9, "d0") + &refused(10))).await);
        assert!(
            good_again(&refused(10)).await,
            "the log need not reach further back: it says it itself"
        );
        for verdict in ["\"trusted\"", "\"served\"", "\"granted\"", "null", "7"] {
            let given = format!("{{\"at\":10,\"id\":\"d1\",\"verdict\":{verdict}}}\n");
            assert!(!good_again(&(line(9, "d0") + &given)).await, "{verdict}");
        }
    }

    /// A line of a chain.
    fn nth(number: u64, at: u64, id: &str) -> String {
        let (chain, previous) = ("0a".repeat(16), "0".repeat(64));
        let place = format!("{{\"id\":\"{chain}\",\"number\":{number},\"previous\":\"{previous}\"}}");
        format!("{{\"at\":{at},\"id\":\"{id}\",\"chain\":{place}}}\n")
    }

    #[tokio::test]
    async fn what_stands_in_a_file_that_was_rotated_is_recorded() {
        let now = nth(3, 12, "d2");
        let whole = nth(1, 5, "d0") + &nth(2, 10, "d1");
        assert!(!good_again_with(&[whole], &now).await);
        let whole = nth(1, 5, "d0") + &nth(2, 10, "d3");
        assert!(good_again_with(&[whole], &now).await, "it reaches back");
        assert!(!good_again_with(&[nth(2, 11, "d0")], &now).await, "it does not");
        // The one that begins before it need not have it, if the clock was set back.
        let two = [nth(1, 3, "d0") + &nth(2, 10, "d1"), nth(3, 7, "d3")];
        assert!(!good_again_with(&two, &nth(4, 12, "d2")).await);
    }

    #[tokio::test]
    async fn what_may_stand_in_a_file_that_is_gone_is_not_given_back() {
        let first = nth(1, 5, "d0") + &nth(2, 6, "d3");
        assert!(good_again_with(std::slice::from_ref(&first), &nth(3, 12, "d2")).await);
        // Its copy, or a part of it, says nothing else.
        for copy in [first.clone(), nth(1, 5, "d0")] {
            assert!(good_again_with(&[first.clone(), copy], &nth(3, 12, "d2")).await);
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
            assert!(!good_again_with(std::slice::from_ref(&first), log).await, "{log}");
        }
        // Taken out of the middle.
        assert!(!good_again(&(nth(1, 5, "d0") + &nth(3, 12, "d2"))).await);
        assert!(
            !good_again_with(&[line(5, "d0")], &line(12, "d2")).await,
            "they may be neighbours or not"
        );
    }

    #[tokio::test]
    async fn a_chain_that_begins_after_lines_of_an_older_release_leaves_no_gap() {
        let begins = |why: &str| nth(1, 12, "d2").replace("\"}}", &format!("\",\"begins\":{{\"why\":\"{why}\"}}}}}}"));
        assert!(good_again(&(line(5, "d0") + &begins("unchained"))).await);
        assert!(!good_again(&(line(5, "d0") + &begins("incomplete"))).await);
        assert!(!good_again_with(&[line(5, "d0")], &begins("unchained")).await);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_one_that_is_gone() {
        let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut zipped, nth(2, 10, "d3").as_bytes()).unwrap();
        let zipped = zipped.finish().unwrap();
        let good = |name: &'static str, bytes: Vec<u8>| async move {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("log.1"), nth(1, 5, "d0")).unwrap();
            fs::write(folder.path().join(name), bytes).unwrap();
            good_again_in(&folder, &nth(3, 12, "d2")).await
        };
        assert!(good("log.2.gz", zipped.clone()).await);
        for bytes in [b"no gzip".to_vec(), Vec::new(), zipped[..zipped.len() - 12].to_vec()] {
            assert!(!good("log.2.gz", bytes).await);
        }
        // A folder beside the log is none of its files.
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("log.d")).unwrap();
        assert!(good_again_in(&folder, &nth(1, 5, "d0")).await);
    }
}
