//! Order of the transactions of processes that write one file.
//!
//! After a commit, SQLite lets the first process that asks go on, and a waiting process asks again after a while. A gateway in a storm
//! begins its next transaction within microseconds, so that a command that revokes a node might wait for the storm's end. Here processes
//! wait in turn. Each holds the turnstile until its transaction has begun, and passes it again for its next one.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use attest_system::files;

use super::StoreError;

/// Time limit for waiting for the holder. A transaction ends in less; a process that holds it for longer is stalled, and is passed.
const LIMIT: Duration = Duration::from_millis(500);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// The lock of the folder that the store is in: an extra file would be another one to copy, lose and wonder about.
pub(super) struct Turnstile(File);

impl Turnstile {
    pub(super) fn for_store(file: &Path) -> Result<Self, StoreError> {
        let folder = files::folder(file);
        let opened = File::open(folder).map_err(|source| StoreError::Io {
            path: folder.to_owned(),
            source,
        })?;
        Ok(Self(opened))
    }

    /// Calls `begin` when it is this process's turn.
    pub(super) fn pass<T>(&self, begin: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        while let Err(TryLockError::WouldBlock) = self.0.try_lock() {
            if since.elapsed() > LIMIT {
                break;
            }
            thread::sleep(PAUSE);
        }
        let begun = begin();
        // Who was passed, or cannot lock, holds nothing; SQLite's own lock is what keeps transactions apart.
        drop(self.0.unlock());
        begun
    }
}

/// Waits for a lock of SQLite's; returns whether to ask again after that many times. It asks often, as the next process waits behind it.
pub(super) fn wait(times: i32) -> bool {
    const LIMIT: i32 = 5000;
    thread::sleep(PAUSE);
    times < LIMIT
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;

    #[test]
    fn a_waiting_process_goes_before_the_last_holder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.db");
        let (gateway, command) = (Turnstile::for_store(&file).unwrap(), Turnstile::for_store(&file).unwrap());
        for _ in 0..50 {
            // What SQLite lets one of them have.
            let transaction = Mutex::new(Vec::new());
            let (waits, waiting) = mpsc::channel();
            thread::scope(|scope| {
                let first = gateway.pass(|| transaction.lock().unwrap());
                let transaction = &transaction;
                let command = &command;
                scope.spawn(move || {
                    command.pass(|| {
                        waits.send(()).unwrap();
                        transaction.lock().unwrap().push("command");
                    });
                });
                waiting.recv().unwrap();
                drop(first);
                gateway.pass(|| transaction.lock().unwrap().push("gateway"));
            });
            assert_eq!(*transaction.lock().unwrap(), ["command", "gateway"]);
        }
    }

    #[test]
    fn a_stalled_holder_does_not_block_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.db");
        let [still, other] = [(); 2].map(|()| Turnstile::for_store(&file).unwrap());
        still.pass(|| assert!(other.pass(|| true)));
    }
}
