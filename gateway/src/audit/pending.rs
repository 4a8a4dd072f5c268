//! What was used up and claimed when the gateway was killed: whether anybody got anything for it stands in the log.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use crate::store::{Pending, Store, StoreError};

/// What came of the decisions that were pending at a start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Given back: their decisions are not in the log, so nobody got anything.
    pub given_back: usize,
    /// Used up for good, although their decisions are not in the log: it does not reach back to their time.
    pub kept: usize,
}

/// Of a line, what says which decision it is and when it was made.
#[derive(Deserialize)]
struct Head {
    at: u64,
    id: String,
}

/// Settles the decisions that are in the log, and gives back what those took that are not. Called with the log open, so that nobody else
/// writes to it, and before anything else is used up. Where the log begins too late to tell, nothing is given back: what may have been
/// served is never good twice.
///
/// # Errors
/// [`StoreError`].
pub async fn resolve_pending(store: &dyn Store, log: &Path) -> Result<Resolved, StoreError> {
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
        if recorded.contains(&decision) {
            store.settle(&decision);
        } else if began.is_some_and(|began| began < at) {
            store.give_back(&decision).await?;
            resolved.given_back += 1;
        } else {
            store.settle(&decision);
            resolved.kept += 1;
        }
    }
    Ok(resolved)
}

/// When the log begins, and which of the decisions are in it. A line that cannot be read is none of this gateway's.
fn read(log: &Path, pending: &[Pending]) -> std::io::Result<(Option<u64>, BTreeSet<String>)> {
    let wanted: BTreeSet<&str> = pending.iter().map(|pending| pending.decision.as_str()).collect();
    let (mut began, mut recorded) = (None, BTreeSet::new());
    for line in BufReader::new(File::open(log)?).split(b'\n') {
        let Ok(Head { at, id }) = serde_json::from_slice(&line?) else {
            continue;
        };
        began.get_or_insert(at);
        if wanted.contains(id.as_str()) {
            recorded.insert(id);
        }
    }
    Ok((began, recorded))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::{Embedded, Kind, Spend, Spendable};

    fn thing(id: &str) -> Spendable {
        Spendable {
            kind: Kind::Ticket,
            id: id.to_owned(),
            limit: 1,
            remember_until: 100,
        }
    }

    /// Whether a use is good again that was pending at second 10 when the gateway was killed, with this log.
    async fn good_again(log: &str) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let (file, database) = (folder.path().join("log"), folder.path().join("gateway.db"));
        fs::write(&file, log).unwrap();
        let store = Embedded::open(&database).unwrap();
        let pending = Pending {
            decision: "d1".to_owned(),
            at: 10,
        };
        store.spend_for(thing("a"), pending).await.unwrap();
        let resolved = resolve_pending(&store, &file).await.unwrap();
        assert_eq!(store.pending().await.unwrap(), []);
        assert_eq!(resolve_pending(&store, &file).await.unwrap(), Resolved::default(), "once");
        let good = matches!(store.spend(thing("a")).await.unwrap(), Spend::Granted { .. });
        assert_eq!(resolved.given_back, usize::from(good));
        good
    }

    #[tokio::test]
    async fn a_use_is_given_back_only_where_the_log_can_tell_that_nobody_got_anything() {
        let line = |at: u64, id: &str| format!("{{\"at\":{at},\"id\":\"{id}\",\"more\":{{}}}}\n");
        assert!(good_again(&line(9, "d0")).await);
        assert!(good_again(&(line(9, "d0") + &line(10, "d2"))).await);
        assert!(good_again(&("no line\n".to_owned() + &line(9, "d0"))).await);
        assert!(!good_again(&(line(9, "d0") + &line(10, "d1"))).await, "it is recorded");
        assert!(!good_again(&line(10, "d0")).await, "the log may have been rotated in that second");
        assert!(!good_again(&line(11, "d0")).await);
        assert!(!good_again("").await);
    }
}
