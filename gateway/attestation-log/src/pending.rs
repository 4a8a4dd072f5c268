//! What was used up and claimed when the gateway was killed: whether anybody got anything for it stands in the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;

use attest_store::{Pending, Store, StoreError};
use serde::Deserialize;
use serde_json::Value;

use super::chain::Link;
use super::reach::Reach;
use super::reading::{Found, Lines, LogFile, rotated};
use super::{Point, Verdict};

/// What came of the decisions that were pending at a start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Given back: their decisions are not in the log, or are refused there, so nobody got anything.
    pub given_back: usize,
    /// Used up for good, although their decisions are not in the log: it does not reach back to their time without a gap.
    pub kept: usize,
}

/// Of a line, what says which decision it is, when it was made, and whether anything was given.
#[derive(Deserialize)]
struct Head {
    at: u64,
    id: String,
    /// Whatever it is: a line whose verdict cannot be read is there all the same.
    #[serde(default)]
    verdict: Value,
    /// As the verdict.
    #[serde(default)]
    chain: Value,
}

/// What the log says of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Something was given.
    Given,
    /// It came to a refusal after all, and what it had taken could not be given back.
    Refused,
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
    let (began, recorded) = read(log, &pending).map_err(|source| StoreError::Io {
        path: log.to_owned(),
        source,
    })?;
    for Pending { decision, at } in pending {
        let outcome = recorded.get(&decision);
        if outcome == Some(&Outcome::Given) {
            store.settle(&decision);
        } else if missing.is_empty() && (outcome == Some(&Outcome::Refused) || began.is_some_and(|began| began < at)) {
            store.give_back(&decision).await?;
            resolved.given_back += 1;
        } else {
            store.settle(&decision);
            resolved.kept += 1;
        }
    }
    Ok(resolved)
}

/// Settles those of these decisions that are in the log and gave something, and gives back what those took that are refused there: their gateway was told
/// so, and could not have the store do it. Says which are not there.
pub(super) async fn resolve_recorded(store: &dyn Store, recorded: &Recorded, pending: Vec<Pending>) -> Result<Vec<Pending>, StoreError> {
    let mut others = Vec::new();
    for pending in pending {
        match recorded.0.get(&pending.decision) {
            Some(Outcome::Given) => store.settle(&pending.decision),
            Some(Outcome::Refused) => drop(store.give_back(&pending.decision).await?),
            None => others.push(pending),
        }
    }
    Ok(others)
}

/// What the log says of some decisions.
pub(super) struct Recorded(BTreeMap<String, Outcome>);

impl Recorded {
    pub(super) fn of(log: &Path, pending: &[Pending]) -> std::io::Result<Self> {
        Ok(Self(read(log, pending)?.1))
    }
}

/// From when on the log is whole, and what it says of those of the decisions that are in it.
fn read(log: &Path, pending: &[Pending]) -> std::io::Result<(Option<u64>, BTreeMap<String, Outcome>)> {
    let mut read = Read {
        wanted: pending.iter().map(|pending| pending.decision.as_str()).collect(),
        reach: Reach::default(),
        recorded: BTreeMap::new(),
    };
    let first = pending.iter().map(|pending| pending.at).min().unwrap_or(0);
    for file in since(&rotated(log)?, first) {
        // What cannot be read of it leaves a gap.
        if let Err(error) = file.lines(0).and_then(|lines| read.all_of(lines)) {
            file.warn(&error);
        }
    }
    read.all_of(Lines::new(File::open(log)?, 0))?;
    Ok((read.reach.began(), read.recorded))
}

/// The files that were written from this second on: also the one that begins before it, and one more, as clocks are set.
fn since(files: &[LogFile], at: u64) -> &[LogFile] {
    let before = files.iter().rposition(|file| file.began() < at);
    files.get(before.unwrap_or(0).saturating_sub(1)..).unwrap_or_default()
}

struct Read<'p> {
    wanted: BTreeSet<&'p str>,
    reach: Reach,
    recorded: BTreeMap<String, Outcome>,
}

impl Read<'_> {
    /// A line that cannot be read is none of this gateway's.
    fn all_of(&mut self, mut lines: Lines<impl io::Read>) -> io::Result<()> {
        self.reach.another_file();
        while let Some(read) = lines.read()? {
            let Found::Line(line) = read else { continue };
            let Ok(Head { at, id, verdict, chain }) = serde_json::from_slice(line) else {
                continue;
            };
            self.reach.line(at, Link::deserialize(&chain).ok().as_ref());
            if self.wanted.contains(id.as_str()) {
                let refused = Verdict::deserialize(&verdict).is_ok_and(|verdict| verdict == Verdict::Refused);
                // If there are two, one that gave something counts.
                if refused {
                    self.recorded.entry(id).or_insert(Outcome::Refused);
                } else {
                    self.recorded.insert(id, Outcome::Given);
                }
            }
        }
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
