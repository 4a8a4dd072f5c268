//! Who has made a use: one who makes it again a short while later has made one use. Each function is a part of somebody's transaction.

use rusqlite::{Connection, OptionalExtension, params};

use super::believed::integer;
use super::{Holder, Pending, Spendable};

/// The use that its holder can make again at this time. A clock that was set back since makes none too old: there are so many repeats and
/// no more.
pub(super) fn held(connection: &Connection, thing: &Spendable, holder: &Holder, at: u64) -> Result<Option<u32>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT number FROM holders WHERE kind = ?1 AND id = ?2 AND holder = ?3 AND repeats < ?4 AND at >= ?5")?
        .query_row(
            params![
                thing.kind.as_str(),
                thing.id,
                holder.id,
                holder.repeats,
                integer(at.saturating_sub(holder.seconds))
            ],
            |row| row.get(0),
        )
        .optional()
}

/// Remembers who has made a use; what the same one has made before is too long ago, or was made again too often.
pub(super) fn hold(connection: &Connection, thing: &Spendable, holder: &Holder, use_number: u32, at: u64) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO holders (kind, id, holder, number, at, repeats) VALUES (?1, ?2, ?3, ?4, ?5, 0)")?
        .execute(params![thing.kind.as_str(), thing.id, holder.id, use_number, integer(at)])
        .map(drop)
}

/// Makes a use again, for a decision. As long as the use itself is not recorded it stands for this decision, too.
pub(super) fn repeat(
    connection: &Connection,
    thing: &Spendable,
    holder: &Holder,
    use_number: u32,
    pending: &Pending,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("UPDATE holders SET repeats = repeats + 1 WHERE kind = ?1 AND id = ?2 AND holder = ?3")?
        .execute(params![thing.kind.as_str(), thing.id, holder.id])?;
    connection
        .prepare_cached("INSERT INTO pending_repeats (decision, kind, id, holder, number, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            pending.decision,
            thing.kind.as_str(),
            thing.id,
            holder.id,
            use_number,
            integer(pending.at)
        ])?;
    connection
        .prepare_cached(
            "INSERT INTO pending_uses (decision, kind, id, number, at)
             SELECT ?1, kind, id, number, ?2 FROM pending_uses WHERE kind = ?3 AND id = ?4 AND number = ?5 LIMIT 1",
        )?
        .execute(params![
            pending.decision,
            integer(pending.at),
            thing.kind.as_str(),
            thing.id,
            use_number
        ])
        .map(drop)
}

/// The decision is recorded: that it was made again counts.
pub(super) fn settle(connection: &Connection, decision: &str) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("DELETE FROM pending_repeats WHERE decision = ?1")?
        .execute([decision])
        .map(drop)
}

/// The decision came to nothing: it was not made again. Says whether it was.
pub(super) fn give_back(connection: &Connection, decision: &str) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached(
            "UPDATE holders SET repeats = repeats - 1 WHERE repeats > 0 AND EXISTS (SELECT 1 FROM pending_repeats AS p
             WHERE p.decision = ?1 AND p.kind = holders.kind AND p.id = holders.id AND p.holder = holders.holder AND p.number = holders.number)",
        )?
        .execute([decision])?;
    let rows = connection
        .prepare_cached("DELETE FROM pending_repeats WHERE decision = ?1")?
        .execute([decision])?;
    Ok(rows > 0)
}

/// A use is free again: nobody has made it.
pub(super) fn forget_use(connection: &Connection, kind: &str, id: &str, number: u32) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("DELETE FROM holders WHERE kind = ?1 AND id = ?2 AND number = ?3")?
        .execute(params![kind, id, number])
        .map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::super::{Embedded, EntryKind, Occasion, Spend, Store};
    use super::*;

    const HOUR: u64 = 3600;

    struct Case {
        folder: tempfile::TempDir,
        store: Embedded,
    }

    fn case() -> Case {
        let folder = tempfile::tempdir().unwrap();
        Case {
            store: Embedded::open(&folder.path().join("gateway.db")).unwrap(),
            folder,
        }
    }

    fn thing(limit: u32) -> Spendable {
        Spendable {
            kind: EntryKind::TokenUse,
            id: "t".to_owned(),
            limit,
            remember_until: 1_000_000,
        }
    }

    fn by(who: &str) -> Occasion {
        Occasion::By(Holder {
            id: who.to_owned(),
            seconds: HOUR,
            repeats: 2,
        })
    }

    const fn first(use_number: u32) -> Spend {
        Spend::Granted { use_number }
    }

    const fn again(use_number: u32) -> Spend {
        Spend::Again { use_number }
    }

    impl Case {
        async fn spend(&self, limit: u32, who: &str, decision: &str, at: u64) -> Spend {
            let pending = Pending {
                decision: decision.to_owned(),
                at,
            };
            let would = self.store.would_spend(thing(limit), by(who), at).await.unwrap();
            let found = self.store.spend_for(thing(limit), by(who), pending).await.unwrap();
            assert_eq!(would, found);
            found
        }

        async fn recorded(&self, limit: u32, who: &str, decision: &str, at: u64) -> Spend {
            let found = self.spend(limit, who, decision, at).await;
            self.store.settle(decision);
            found
        }
    }

    #[tokio::test]
    async fn who_comes_again_makes_the_same_use_for_a_while_and_not_without_end() {
        let mut case = case();
        assert_eq!(case.recorded(1, "a", "d1", 100).await, first(1));
        assert_eq!(case.recorded(1, "b", "d2", 100).await, Spend::Exhausted, "somebody else");
        assert_eq!(case.recorded(1, "a", "d3", 100 + HOUR).await, again(1));
        assert_eq!(case.recorded(1, "a", "d4", 101 + HOUR).await, Spend::Exhausted, "too late");
        // What the clock says counts, and what it said; one that was set back has no more repeats.
        assert_eq!(case.recorded(1, "a", "d5", 7).await, again(1));
        assert_eq!(case.recorded(1, "a", "d6", 100).await, Spend::Exhausted, "too often");
        case.store = Embedded::open(&case.folder.path().join("gateway.db")).unwrap();
        assert_eq!(case.recorded(1, "a", "d7", 100).await, Spend::Exhausted, "a start changes nothing");
        // Where there are uses left, it is one more, which can be made again in its turn.
        assert_eq!(case.recorded(2, "a", "d8", 200 + HOUR).await, first(2));
        assert_eq!(case.recorded(2, "a", "d9", 200 + HOUR).await, again(2));
        // What goes with the token goes whole.
        case.store.remove(EntryKind::Token, "t").await.unwrap();
        assert_eq!(case.recorded(1, "b", "d10", 200 + HOUR).await, first(1));
        assert_eq!(case.recorded(1, "a", "d11", 200 + HOUR).await, Spend::Exhausted);
    }

    #[tokio::test]
    async fn attack_33_a_use_that_comes_to_nothing_is_nobodys_also_after_a_crash() {
        let mut case = case();
        assert_eq!(case.spend(1, "a", "d1", 100).await, first(1));
        case.store = Embedded::open(&case.folder.path().join("gateway.db")).unwrap();
        assert!(case.store.give_back("d1").await.unwrap());
        assert_eq!(case.recorded(1, "b", "d2", 100).await, first(1));
        assert_eq!(
            case.recorded(1, "a", "d3", 100).await,
            Spend::Exhausted,
            "it has not made the use that is another's now"
        );
        assert_eq!(case.recorded(1, "b", "d4", 100).await, again(1));
    }

    #[tokio::test]
    async fn attack_33_a_repeat_that_comes_to_nothing_is_no_repeat_also_after_a_crash() {
        let mut case = case();
        case.recorded(1, "a", "d", 100).await;
        for decision in ["d1", "d2", "d3", "d4"] {
            assert_eq!(case.spend(1, "a", decision, 100).await, again(1));
            case.store = Embedded::open(&case.folder.path().join("gateway.db")).unwrap();
            let pending = case.store.pending().await.unwrap();
            assert_eq!(
                pending.iter().map(|pending| pending.decision.as_str()).collect::<Vec<_>>(),
                [decision]
            );
            assert!(case.store.give_back(decision).await.unwrap());
            assert!(!case.store.give_back(decision).await.unwrap(), "once");
        }
        assert_eq!(case.store.uses(EntryKind::TokenUse, "t").await.unwrap(), 1);
        for (decision, found) in [("d5", again(1)), ("d6", again(1)), ("d7", Spend::Exhausted)] {
            assert_eq!(case.recorded(1, "a", decision, 100).await, found);
        }
        assert!(case.store.pending().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn attack_18_a_use_is_free_when_all_have_given_it_back_that_made_it_and_not_before() {
        // In whatever order they come to nothing, and whichever is recorded.
        for (back, settled) in [
            (["d1", "d2"].as_slice(), [].as_slice()),
            (&["d2", "d1"], &[]),
            (&["d1"], &["d2"]),
            (&["d2"], &["d1"]),
        ] {
            for settled_first in [true, false] {
                let case = case();
                assert_eq!(case.spend(1, "a", "d1", 100).await, first(1));
                assert_eq!(case.spend(1, "a", "d2", 100).await, again(1));
                let settle = || settled.iter().for_each(|decision| case.store.settle(decision));
                if settled_first {
                    settle();
                }
                for decision in back {
                    assert_eq!(case.spend(1, "b", "other", 100).await, Spend::Exhausted, "{back:?} {settled:?}");
                    case.store.give_back(decision).await.unwrap();
                }
                settle();
                let free = case.spend(1, "b", "d3", 100).await == first(1);
                assert_eq!(free, settled.is_empty(), "{back:?} {settled:?}");
                assert_eq!(
                    case.spend(1, "a", "d4", 100).await == again(1),
                    !settled.is_empty(),
                    "{back:?} {settled:?}"
                );
            }
        }
    }
}
