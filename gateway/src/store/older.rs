//! Stores of older releases, which had a table for each thing: brought up to date once, in one transaction.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Row};

use super::documents::{
    EntryDocument, ExpiryDocument, HolderDocument, PendingDocument, Repeat, Standing, TimeDocument, UseDocument, Used, Version, Written,
    write,
};
use super::engine::{Transaction, Unfinished};
use super::sqlite::{Explain, Part};
use super::{REMEMBERED, StoreError, keys};

/// Those of version 3. Version 1 had no `pending_entries`, 2 no `holders`, `pending_repeats` and `late`; 0 is a release that did not number
/// them, and had `uses` and `entries`.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS uses (kind TEXT NOT NULL, id TEXT NOT NULL, uses INTEGER NOT NULL, remember_until INTEGER NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS freed_uses (kind TEXT NOT NULL, id TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (kind, id, number)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS pending_uses (decision TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (decision, kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS pending_entries (decision TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, before TEXT, at INTEGER NOT NULL, PRIMARY KEY (decision, kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS holders (kind TEXT NOT NULL, id TEXT NOT NULL, holder TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, repeats INTEGER NOT NULL, PRIMARY KEY (kind, id, holder)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS pending_repeats (decision TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, holder TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (decision, kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS late (kind TEXT NOT NULL, id TEXT NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS entries (kind TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS store (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, mark INTEGER NOT NULL, believed INTEGER, forgotten_until INTEGER NOT NULL);
";
/// Before version 3 they did not go with their tokens.
const OF_TOKENS_THAT_ARE_GONE: &str =
    "DELETE FROM uses WHERE kind = 'token-use' AND id NOT IN (SELECT id FROM entries WHERE kind = 'token')";
const GONE: &str = "
    DROP TABLE uses; DROP TABLE freed_uses; DROP TABLE pending_uses; DROP TABLE pending_entries; DROP TABLE holders; DROP TABLE pending_repeats; DROP TABLE late;
    DROP TABLE entries; ALTER TABLE store DROP COLUMN believed; ALTER TABLE store DROP COLUMN forgotten_until;
";

/// A kind and an id.
type Thing = (String, String);

/// Whether the file has tables of an older release.
pub(super) fn is_there(connection: &Connection) -> Result<bool, StoreError> {
    connection
        .query_row(
            "SELECT count(*) > 0 FROM sqlite_master WHERE name IN ('uses', 'entries')",
            [],
            |row| row.get(0),
        )
        .of(connection)
}

/// Writes what the tables say under the keys of today, and removes them. Who has no identity gets this one.
pub(super) fn bring_up_to_date(connection: &Connection, version: i64, id: &str) -> Result<(), StoreError> {
    connection.execute_batch(TABLES).of(connection)?;
    if version < 3 {
        connection.execute_batch(OF_TOKENS_THAT_ARE_GONE).of(connection)?;
    }
    connection
        .execute(
            "INSERT OR IGNORE INTO store (one, id, mark, forgotten_until) VALUES (1, ?1, 1, 0)",
            [id],
        )
        .of(connection)?;
    let mut part = Part::new(connection);
    let done = Tables { connection }.write(&mut part);
    part.end(done)?;
    connection.execute_batch(GONE).of(connection)
}

struct Tables<'a> {
    connection: &'a Connection,
}

impl Tables<'_> {
    fn write(&self, to: &mut dyn Transaction) -> Result<(), Unfinished> {
        let mut pending = self.pending_uses()?;
        let things = self.holders(to, &mut pending)?;
        self.uses(to, pending, &things)?;
        self.entries(to)?;
        self.pending(to)?;
        self.time(to)
    }

    fn each(&self, sql: &str, mut row: impl FnMut(&Row<'_>) -> Result<(), Failed>) -> Result<(), Unfinished> {
        let mut read = || {
            let mut statement = self.connection.prepare(sql)?;
            let mut rows = statement.query([])?;
            while let Some(found) = rows.next()? {
                row(found)?;
            }
            Ok(())
        };
        read().map_err(|failed| match failed {
            Failed::Read(error) => match Err::<(), _>(error).of(self.connection) {
                Err(error) => Unfinished::Refused(error),
                Ok(()) => Unfinished::Engine,
            },
            Failed::Written(unfinished) => unfinished,
        })
    }

    /// By thing, and by number of the use.
    fn pending_uses(&self) -> Result<BTreeMap<Thing, BTreeMap<u32, Standing>>, Unfinished> {
        let mut pending: BTreeMap<Thing, BTreeMap<u32, Standing>> = BTreeMap::new();
        self.each("SELECT kind, id, number, decision FROM pending_uses", |row| {
            let of_thing = pending.entry(thing(row)?).or_default();
            of_thing.entry(row.get(2)?).or_default().decisions.insert(row.get(3)?);
            Ok(())
        })?;
        Ok(pending)
    }

    /// Gives the things that have holders.
    fn holders(
        &self,
        to: &mut dyn Transaction,
        pending: &mut BTreeMap<Thing, BTreeMap<u32, Standing>>,
    ) -> Result<BTreeSet<Thing>, Unfinished> {
        let mut things = BTreeSet::new();
        self.each("SELECT kind, id, holder, number, at, repeats FROM holders", |row| {
            let thing = thing(row)?;
            let made = HolderDocument {
                v: Version,
                number: row.get(3)?,
                at: seconds(row, 4)?,
                repeats: row.get(5)?,
            };
            let key = keys::holder(&thing.0, &thing.1, &row.get::<_, String>(2)?);
            write(to, &key, &made)?;
            if let Some(standing) = pending.get_mut(&thing).and_then(|standing| standing.get_mut(&made.number)) {
                standing.holder = Some(key);
            }
            things.insert(thing);
            Ok(())
        })?;
        Ok(things)
    }

    fn uses(
        &self,
        to: &mut dyn Transaction,
        mut pending: BTreeMap<Thing, BTreeMap<u32, Standing>>,
        held: &BTreeSet<Thing>,
    ) -> Result<(), Unfinished> {
        let mut freed: BTreeMap<Thing, BTreeSet<u32>> = BTreeMap::new();
        self.each("SELECT kind, id, number FROM freed_uses", |row| {
            freed.entry(thing(row)?).or_default().insert(row.get(2)?);
            Ok(())
        })?;
        let mut late = BTreeMap::new();
        self.each("SELECT kind, id, since FROM late", |row| {
            late.insert(thing(row)?, seconds(row, 2)?);
            Ok(())
        })?;
        self.each("SELECT kind, id, uses, remember_until FROM uses", |row| {
            let thing = thing(row)?;
            let used = Used {
                highest: row.get(2)?,
                remember_until: seconds(row, 3)?,
                freed: freed.remove(&thing).unwrap_or_default(),
                late_since: late.remove(&thing),
                holders: held.contains(&thing),
            };
            if REMEMBERED.iter().any(|kind| kind.as_str() == thing.0) {
                write(
                    to,
                    &keys::expiry(&thing.0, used.remember_until, &thing.1),
                    &ExpiryDocument::default(),
                )?;
            }
            let document = UseDocument {
                v: Version,
                used: Some(used),
                pending: pending.remove(&thing).unwrap_or_default(),
            };
            Ok(write(to, &keys::uses(&thing.0, &thing.1), &document)?)
        })?;
        // Their uses are forgotten.
        for ((kind, id), pending) in pending {
            let document = UseDocument {
                pending,
                ..UseDocument::default()
            };
            write(to, &keys::uses(&kind, &id), &document)?;
        }
        Ok(())
    }

    fn entries(&self, to: &mut dyn Transaction) -> Result<(), Unfinished> {
        let mut decisions: BTreeMap<Thing, BTreeMap<String, Written>> = BTreeMap::new();
        self.each("SELECT kind, id, decision, value, before FROM pending_entries", |row| {
            let written = Written {
                value: row.get(3)?,
                before: row.get(4)?,
            };
            decisions.entry(thing(row)?).or_default().insert(row.get(2)?, written);
            Ok(())
        })?;
        self.each("SELECT kind, id, value FROM entries", |row| {
            let thing = thing(row)?;
            let document = EntryDocument {
                v: Version,
                value: row.get(2)?,
                decisions: decisions.remove(&thing).unwrap_or_default(),
            };
            Ok(write(to, &keys::entry(&thing.0, &thing.1), &document)?)
        })?;
        // They are gone.
        for ((kind, id), decisions) in decisions {
            let document = EntryDocument {
                decisions,
                ..EntryDocument::default()
            };
            write(to, &keys::entry(&kind, &id), &document)?;
        }
        Ok(())
    }

    fn pending(&self, to: &mut dyn Transaction) -> Result<(), Unfinished> {
        let mut pending: BTreeMap<String, PendingDocument> = BTreeMap::new();
        let mut stands = |row: &Row<'_>, note: &mut dyn FnMut(&mut PendingDocument, Thing) -> Result<(), Failed>| {
            let at = seconds(row, 3)?;
            let document = pending.entry(row.get(2)?).or_insert(PendingDocument {
                at,
                ..PendingDocument::default()
            });
            document.at = document.at.min(at);
            note(document, thing(row)?)
        };
        self.each("SELECT kind, id, decision, at FROM pending_uses", |row| {
            stands(row, &mut |document, (kind, id)| {
                document.uses.insert(keys::uses(&kind, &id));
                Ok(())
            })
        })?;
        self.each("SELECT kind, id, decision, at FROM pending_entries", |row| {
            stands(row, &mut |document, (kind, id)| {
                document.entries.insert(keys::entry(&kind, &id));
                Ok(())
            })
        })?;
        self.each("SELECT kind, id, decision, at, holder, number FROM pending_repeats", |row| {
            stands(row, &mut |document, (kind, id)| {
                let repeat = Repeat {
                    holder: keys::holder(&kind, &id, &row.get::<_, String>(4)?),
                    number: row.get(5)?,
                };
                document.repeats.insert(keys::uses(&kind, &id), repeat);
                Ok(())
            })
        })?;
        for (decision, document) in pending {
            write(to, &keys::pending(&decision), &document)?;
        }
        Ok(())
    }

    fn time(&self, to: &mut dyn Transaction) -> Result<(), Unfinished> {
        self.each("SELECT believed, forgotten_until FROM store", |row| {
            let time = TimeDocument {
                v: Version,
                believed: row.get::<_, Option<i64>>(0)?.map(i64::unsigned_abs),
                forgotten_until: seconds(row, 1)?,
            };
            Ok(write(to, keys::TIME, &time)?)
        })
    }
}

/// Why a row was not brought up to date.
enum Failed {
    Read(rusqlite::Error),
    Written(Unfinished),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Read(error)
    }
}

impl From<Unfinished> for Failed {
    fn from(unfinished: Unfinished) -> Self {
        Self::Written(unfinished)
    }
}

fn thing(row: &Row<'_>) -> Result<Thing, rusqlite::Error> {
    Ok((row.get(0)?, row.get(1)?))
}

/// Counted from 1970, upwards.
fn seconds(row: &Row<'_>, column: usize) -> Result<u64, rusqlite::Error> {
    Ok(row.get::<_, i64>(column)?.unsigned_abs())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::time::Duration;

    use super::super::{Embedded, EntryKind, Holder, Late, Occasion, Pending, Spend, Spendable, Store, Tick};
    use super::*;

    const ROWS: &str = "
        INSERT INTO store VALUES (1, 'known', 7, 500, 90);
        INSERT INTO uses VALUES ('ticket', 'a', 3, 1000), ('token-use', 't', 2, 5000), ('challenge', 'c', 1, 800);
        INSERT INTO freed_uses VALUES ('ticket', 'a', 2);
        INSERT INTO late VALUES ('ticket', 'a', 700);
        INSERT INTO holders VALUES ('token-use', 't', 'h', 2, 100, 1);
        INSERT INTO pending_uses VALUES ('d1', 'ticket', 'a', 3, 11), ('d2', 'token-use', 't', 2, 12), ('d3', 'token-use', 't', 2, 13), ('d5', 'ticket', 'gone', 1, 15);
        INSERT INTO pending_repeats VALUES ('d3', 'token-use', 't', 'h', 2, 13);
        INSERT INTO entries VALUES ('name', 'n', '2'), ('token', 't', '{}');
        INSERT INTO pending_entries VALUES ('d4', 'name', 'n', '2', '1', 14), ('d6', 'name', 'gone', '1', NULL, 16);
        PRAGMA user_version = 3;
    ";

    fn thing(kind: EntryKind, id: &str, remember_until: u64) -> Spendable {
        Spendable {
            kind,
            id: id.to_owned(),
            limit: 3,
            remember_until,
        }
    }

    #[tokio::test]
    async fn what_an_older_release_kept_in_tables_is_there_and_so_is_what_was_not_decided() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.db");
        let older = Connection::open(&file).unwrap();
        older.execute_batch(TABLES).unwrap();
        older.execute_batch(ROWS).unwrap();
        drop(older);
        let store = Embedded::open(&file).unwrap();
        assert_eq!(
            Store::standing(&store).map(|mark| (mark.id, mark.mark)),
            Some(("known".to_owned(), 7))
        );
        let pending = |number: u64| Pending {
            decision: format!("d{number}"),
            at: 10 + number,
        };
        assert_eq!(store.pending().await.unwrap(), [1, 2, 3, 4, 5, 6].map(pending));

        let ticket = || thing(EntryKind::Ticket, "a", 1000);
        let late = Occasion::Late(Late {
            first_until: 0,
            seconds: 50,
        });
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 2);
        let freed = Spend::Granted { use_number: 2 };
        assert_eq!(store.would_spend(ticket(), late.clone(), 750).await.unwrap(), freed);
        assert_eq!(store.would_spend(ticket(), late, 751).await.unwrap(), Spend::TooLate);
        assert!(store.give_back("d1").await.unwrap());
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);

        let token = async |repeats: u32| {
            let by = Occasion::By(Holder {
                id: "h".to_owned(),
                seconds: 100,
                repeats,
            });
            store.would_spend(thing(EntryKind::TokenUse, "t", 5000), by, 200).await.unwrap()
        };
        let (again, once_more) = (Spend::Again { use_number: 2 }, Spend::Granted { use_number: 3 });
        assert_eq!((token(1).await, token(2).await), (once_more, again));
        assert!(store.give_back("d3").await.unwrap());
        assert_eq!(token(1).await, again, "it was not made again");
        assert!(store.give_back("d2").await.unwrap());
        assert_eq!(token(2).await, Spend::Granted { use_number: 2 }, "nor made");

        assert!(store.give_back("d4").await.unwrap() && store.give_back("d5").await.unwrap() && store.give_back("d6").await.unwrap());
        let names = store.list(EntryKind::Name).await.unwrap();
        assert_eq!(names.iter().map(|name| name.value.as_str()).collect::<Vec<_>>(), ["1"]);
        assert_eq!(store.pending().await.unwrap(), []);

        let challenge = |until: u64| thing(EntryKind::Challenge, "c", until);
        assert!(matches!(
            store.spend(challenge(90)).await,
            Err(StoreError::Forgotten { until: 90, .. })
        ));
        let day = Duration::from_secs(24 * 3600);
        let now = 801 + day.as_secs();
        assert_eq!(
            store.forget_expired(Tick { now, passed: day }).await.unwrap(),
            now,
            "its time went on from there"
        );
        assert_eq!(store.uses(EntryKind::Challenge, "c").await.unwrap(), 0);
        assert_eq!(store.uses(EntryKind::Ticket, "a").await.unwrap(), 1);
        assert!(store.remove(EntryKind::Token, "t").await.unwrap());
        assert_eq!(token(2).await, Spend::Granted { use_number: 1 });
    }
}
