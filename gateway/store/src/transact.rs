//! Transactions with a result.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use super::{EntryTransaction, EntryWork, Mode, Spend, Spendable, Store, StoreError, UseOccasion};

/// Result of the last run of a work.
type LastResult<T, E> = Arc<Mutex<Option<Result<T, E>>>>;

/// Transactions of a store. The work may be run more than once, and only the last run counts. If it returns an error, nothing is written.
pub trait Transact: Store {
    /// Does the work in one transaction, which is durable when this returns.
    ///
    /// # Errors
    /// Those of the work, and [`StoreError`].
    fn transact<T, E>(
        &self,
        work: impl FnMut(&mut EntryTransaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        run(self, Mode::Durable, work)
    }

    /// Does the work of a decision in one transaction. It survives the end of the process; what it wrote is durable before the decision is recorded. If
    /// it is not known whether it was written, the use that it made is given back.
    ///
    /// # Errors
    /// Those of the work, and [`StoreError`].
    fn decide<T, E>(
        &self,
        decision: &str,
        work: impl FnMut(&mut EntryTransaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        async move {
            let (work, place) = in_place(work);
            let done = self.work(Mode::ForRecord, work).await;
            if let Err(StoreError::Engine { .. } | StoreError::Unanswered { .. } | StoreError::Closed) = &done {
                self.give_back_later(decision);
            }
            found(done, &place)
        }
    }

    /// Uses a thing, in a transaction of this mode.
    ///
    /// # Errors
    /// [`StoreError`].
    fn spend_in(&self, mode: Mode, thing: Spendable) -> impl Future<Output = Result<Spend, StoreError>> + Send {
        run(self, mode, move |transaction| transaction.spend(&thing, &UseOccasion::Any, 0))
    }

    /// Runs work that only reads, on one snapshot.
    ///
    /// # Errors
    /// Those of the work, and [`StoreError`].
    fn read<T, E>(
        &self,
        work: impl FnMut(&mut EntryTransaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> impl Future<Output = Result<T, E>> + Send
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        run(self, Mode::Read, work)
    }
}

impl<S: Store + ?Sized> Transact for S {}

async fn run<S, T, E>(store: &S, mode: Mode, work: impl FnMut(&mut EntryTransaction<'_>) -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    S: Store + ?Sized,
    T: Send + 'static,
    E: From<StoreError> + Send + 'static,
{
    let (work, place) = in_place(work);
    found(store.work(mode, work).await, &place)
}

/// The work, and the place for what its last run has found.
fn in_place<T, E>(mut work: impl FnMut(&mut EntryTransaction<'_>) -> Result<T, E> + Send + 'static) -> (EntryWork, LastResult<T, E>)
where
    T: Send + 'static,
    E: Send + 'static,
{
    let place = LastResult::default();
    let found = Arc::clone(&place);
    let work: EntryWork = Box::new(move |transaction| {
        let done = work(transaction);
        let ended = if done.is_ok() { Ok(()) } else { Err(StoreError::Refused) };
        found.lock().unwrap_or_else(PoisonError::into_inner).replace(done);
        ended
    });
    (work, place)
}

fn found<T, E: From<StoreError>>(done: Result<(), StoreError>, place: &Mutex<Option<Result<T, E>>>) -> Result<T, E> {
    let found = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (done, found) {
        (Ok(()) | Err(StoreError::Refused), Some(found)) => found,
        (Ok(()) | Err(StoreError::Refused), None) => Err(StoreError::Closed.into()),
        (Err(error), _) => Err(error.into()),
    }
}
