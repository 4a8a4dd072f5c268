//! The embedded store: one SQLite file.
//!
//! SQLite and not a single-process store, because the administrator's commands (`ek add`, `token create`, `node forget`) must
//! work on the same file while the gateway serves. `synchronous=FULL` makes a commit durable; one thread writes, and commits
//! whatever has queued up meanwhile in one transaction, so that a boot storm costs one fsync for many nodes.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use super::{Entry, Kind, Spend, Spendable, Store, StoreError};

/// How long a write waits for another process (the administrator's commands) to finish its own.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests that go into one transaction: bounds how long the first of them waits.
const BATCH_LIMIT: usize = 256;
/// Requests that may wait; beyond that the gateway is overloaded and says so.
const QUEUE_LIMIT: usize = 4096;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS uses (kind TEXT NOT NULL, id TEXT NOT NULL, uses INTEGER NOT NULL, remember_until INTEGER NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS uses_by_expiry ON uses (remember_until);
    CREATE TABLE IF NOT EXISTS entries (kind TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, id)) WITHOUT ROWID;
";

type Job = Box<dyn FnOnce(&Connection) -> Answer + Send>;
/// Given once the job's transaction is committed, or has failed.
type Answer = Box<dyn FnOnce(Result<(), &rusqlite::Error>) + Send>;

/// One SQLite file and the thread that writes it.
pub struct Embedded {
    jobs: Mutex<Option<mpsc::SyncSender<Job>>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Embedded")
    }
}

impl Embedded {
    /// Opens the store, and makes it if there is none.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be made, opened or written, or is no store.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let io = |source| StoreError::Io {
            path: file.to_owned(),
            source,
        };
        // The file's rights, before SQLite makes it with the umask's.
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(file)
            .map_err(io)?;
        let connection = Connection::open(file)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(SCHEMA)?;
        // The directory entry of a new file.
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)?;
        }
        let (sender, receiver) = mpsc::sync_channel(QUEUE_LIMIT);
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || write(&connection, &receiver))
            .map_err(io)?;
        Ok(Self {
            jobs: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Runs `work` in the next transaction; the answer comes when that is committed.
    async fn transact<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let result = work(connection);
            Box::new(move |committed| {
                let result = result.map_err(StoreError::Database).and_then(|value| match committed {
                    Ok(()) => Ok(value),
                    Err(_) => Err(StoreError::Closed),
                });
                // Whoever asked may be gone; what was done is done.
                drop(sender.send(result));
            })
        });
        {
            let jobs = self.jobs.lock().map_err(|_| StoreError::Closed)?;
            jobs.as_ref()
                .ok_or(StoreError::Closed)?
                .try_send(job)
                .map_err(|_| StoreError::Closed)?;
        }
        receiver.await.map_err(|_| StoreError::Closed)?
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Ok(jobs) = self.jobs.get_mut() {
            jobs.take();
        }
        if let Some(thread) = self.thread.get_mut().ok().and_then(Option::take) {
            drop(thread.join());
        }
    }
}

/// The writer: takes what has queued up, does it in one transaction, commits, and only then answers.
fn write(connection: &Connection, jobs: &mpsc::Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let batch: Vec<Job> = std::iter::once(first).chain(jobs.try_iter().take(BATCH_LIMIT - 1)).collect();
        let begun = connection.execute_batch("BEGIN IMMEDIATE");
        if let Err(error) = begun {
            tracing::error!(%error, "the store cannot begin a transaction");
            // Dropping the jobs answers every one of them with `Closed`.
            continue;
        }
        let answers: Vec<Answer> = batch.into_iter().map(|job| job(connection)).collect();
        let committed = connection.execute_batch("COMMIT");
        if let Err(error) = &committed {
            tracing::error!(%error, "the store cannot commit");
            drop(connection.execute_batch("ROLLBACK"));
        }
        for answer in answers {
            answer(committed.as_ref().copied());
        }
    }
}

fn uses(connection: &Connection, kind: Kind, id: &str) -> Result<u32, rusqlite::Error> {
    let used: Option<u32> = connection
        .prepare_cached("SELECT uses FROM uses WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| row.get(0))
        .optional()?;
    Ok(used.unwrap_or(0))
}

fn get(connection: &Connection, kind: Kind, id: &str) -> Result<Option<Entry>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT id, value FROM entries WHERE kind = ?1 AND id = ?2")?
        .query_row(params![kind.as_str(), id], |row| {
            Ok(Entry {
                id: row.get(0)?,
                value: row.get(1)?,
            })
        })
        .optional()
}

fn put(connection: &Connection, kind: Kind, entry: &Entry) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO entries (kind, id, value) VALUES (?1, ?2, ?3)")?
        .execute(params![kind.as_str(), entry.id, entry.value])
        .map(|_| ())
}

#[async_trait]
impl Store for Embedded {
    async fn spend(&self, thing: Spendable) -> Result<Spend, StoreError> {
        self.transact(move |connection| {
            let Spendable {
                kind,
                id,
                limit,
                remember_until,
            } = thing;
            let use_number = uses(connection, kind, &id)?.saturating_add(1);
            if use_number > limit {
                return Ok(Spend::Exhausted);
            }
            connection
                .prepare_cached("INSERT OR REPLACE INTO uses (kind, id, uses, remember_until) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![
                    kind.as_str(),
                    id,
                    use_number,
                    i64::try_from(remember_until).unwrap_or(i64::MAX)
                ])?;
            Ok(Spend::Granted { use_number })
        })
        .await
    }

    async fn uses(&self, kind: Kind, id: &str) -> Result<u32, StoreError> {
        let id = id.to_owned();
        self.transact(move |connection| uses(connection, kind, &id)).await
    }

    async fn insert(&self, kind: Kind, entry: Entry) -> Result<Option<Entry>, StoreError> {
        self.transact(move |connection| {
            if let Some(existing) = get(connection, kind, &entry.id)? {
                return Ok(Some(existing));
            }
            connection
                .prepare_cached("INSERT INTO entries (kind, id, value) VALUES (?1, ?2, ?3)")?
                .execute(params![kind.as_str(), entry.id, entry.value])?;
            Ok(None)
        })
        .await
    }

    async fn put(&self, kind: Kind, entry: Entry) -> Result<(), StoreError> {
        self.transact(move |connection| put(connection, kind, &entry)).await
    }

    async fn get(&self, kind: Kind, id: &str) -> Result<Option<Entry>, StoreError> {
        let id = id.to_owned();
        self.transact(move |connection| get(connection, kind, &id)).await
    }

    async fn remove(&self, kind: Kind, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.transact(move |connection| {
            connection
                .prepare_cached("DELETE FROM entries WHERE kind = ?1 AND id = ?2")?
                .execute(params![kind.as_str(), id])
                .map(|rows| rows > 0)
        })
        .await
    }

    async fn change(&self, kind: Kind, expected: Vec<Entry>, write: Vec<Entry>) -> Result<bool, StoreError> {
        self.transact(move |connection| {
            for entry in &expected {
                if get(connection, kind, &entry.id)?.as_ref() != Some(entry) {
                    return Ok(false);
                }
            }
            // All or none: others' work is in the same transaction.
            connection.execute_batch("SAVEPOINT change")?;
            if let Err(error) = write.iter().try_for_each(|entry| put(connection, kind, entry)) {
                connection.execute_batch("ROLLBACK TO change; RELEASE change")?;
                return Err(error);
            }
            connection.execute_batch("RELEASE change")?;
            Ok(true)
        })
        .await
    }

    async fn list(&self, kind: Kind) -> Result<Vec<Entry>, StoreError> {
        self.transact(move |connection| {
            connection
                .prepare_cached("SELECT id, value FROM entries WHERE kind = ?1 ORDER BY id")?
                .query_map([kind.as_str()], |row| {
                    Ok(Entry {
                        id: row.get(0)?,
                        value: row.get(1)?,
                    })
                })?
                .collect()
        })
        .await
    }

    async fn forget_expired(&self, now: u64) -> Result<(), StoreError> {
        self.transact(move |connection| {
            connection
                .prepare_cached("DELETE FROM uses WHERE remember_until < ?1")?
                .execute([i64::try_from(now).unwrap_or(i64::MAX)])
                .map(|_| ())
        })
        .await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn open() -> (tempfile::TempDir, Embedded) {
        let folder = tempfile::tempdir().unwrap();
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        (folder, store)
    }

    fn thing(id: &str, limit: u32, remember_until: u64) -> Spendable {
        Spendable {
            kind: Kind::Ticket,
            id: id.to_owned(),
            limit,
            remember_until,
        }
    }

    fn entry(id: &str, value: &str) -> Entry {
        Entry {
            id: id.to_owned(),
            value: value.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_change_is_made_only_of_what_was_expected() {
        let (_folder, store) = open();
        store.put(Kind::Token, entry("a", "1")).await.unwrap();
        let change = |expected: &[(&str, &str)], write: &[(&str, &str)]| {
            let entries = |pairs: &[(&str, &str)]| pairs.iter().map(|(id, value)| entry(id, value)).collect();
            store.change(Kind::Token, entries(expected), entries(write))
        };
        assert!(!change(&[("a", "2")], &[("a", "3"), ("b", "3")]).await.unwrap(), "another value");
        assert!(!change(&[("a", "1"), ("b", "1")], &[("a", "3")]).await.unwrap(), "one is missing");
        assert_eq!(store.list(Kind::Token).await.unwrap(), [entry("a", "1")]);
        assert!(change(&[("a", "1")], &[("a", "2"), ("b", "1")]).await.unwrap());
        assert!(!change(&[("a", "1")], &[("a", "3")]).await.unwrap(), "somebody was faster");
        assert!(change(&[], &[("c", "1")]).await.unwrap());
        assert_eq!(
            store.list(Kind::Token).await.unwrap(),
            [entry("a", "2"), entry("b", "1"), entry("c", "1")]
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn attack_18_of_many_that_race_for_few_uses_just_so_many_win() {
        let (folder, store) = open();
        // A second process on the same file races along.
        let stores = [
            Arc::new(store),
            Arc::new(Embedded::open(&folder.path().join("gateway.db")).unwrap()),
        ];
        let racing: Vec<_> = (0..60)
            .flat_map(|_| stores.clone())
            .map(|store| tokio::spawn(async move { store.spend(thing("a", 3, 10)).await.unwrap() }))
            .collect();
        let mut granted = Vec::new();
        for spend in racing {
            if let Spend::Granted { use_number } = spend.await.unwrap() {
                granted.push(use_number);
            }
        }
        granted.sort_unstable();
        assert_eq!(granted, [1, 2, 3]);
    }

    #[tokio::test]
    async fn what_was_spent_is_spent_after_a_restart_and_until_it_is_forgotten() {
        let (folder, store) = open();
        assert_eq!(store.uses(Kind::Ticket, "a").await.unwrap(), 0);
        assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Granted { use_number: 1 });
        assert_eq!(store.uses(Kind::Ticket, "a").await.unwrap(), 1);
        drop(store);
        let store = Embedded::open(&folder.path().join("gateway.db")).unwrap();
        store.forget_expired(10).await.unwrap();
        assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Exhausted);
        let other_kind = Spendable {
            kind: Kind::Challenge,
            ..thing("a", 1, 10)
        };
        assert_eq!(
            store.spend(other_kind).await.unwrap(),
            Spend::Granted { use_number: 1 },
            "each kind has its own ids"
        );
        store.forget_expired(11).await.unwrap();
        assert_eq!(store.spend(thing("a", 1, 10)).await.unwrap(), Spend::Granted { use_number: 1 });
    }

    #[tokio::test]
    async fn the_first_entry_stays_until_it_is_put_or_removed() {
        let (_folder, store) = open();
        assert_eq!(store.insert(Kind::Name, entry("a", "1")).await.unwrap(), None);
        assert_eq!(store.insert(Kind::Name, entry("a", "2")).await.unwrap(), Some(entry("a", "1")));
        assert_eq!(store.get(Kind::Ek, "a").await.unwrap(), None);
        store.put(Kind::Name, entry("a", "3")).await.unwrap();
        store.put(Kind::Name, entry("0", "x")).await.unwrap();
        assert_eq!(store.list(Kind::Name).await.unwrap(), [entry("0", "x"), entry("a", "3")]);
        assert!(store.remove(Kind::Name, "a").await.unwrap());
        assert!(!store.remove(Kind::Name, "a").await.unwrap());
        assert_eq!(store.get(Kind::Name, "a").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_failed_statement_fails_for_whoever_asked_and_for_nobody_else() {
        let (_folder, store) = open();
        let wrong = store.transact(|connection| connection.execute("INSERT INTO nothing VALUES (1)", []));
        let (wrong, right) = tokio::join!(wrong, store.put(Kind::Name, entry("a", "1")));
        assert!(matches!(wrong, Err(StoreError::Database(_))));
        right.unwrap();
        assert_eq!(store.get(Kind::Name, "a").await.unwrap(), Some(entry("a", "1")));
    }
}
