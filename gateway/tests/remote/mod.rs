//! Common behaviour of stores that several gateways share: each case runs on each engine. `shares!(Site)` makes a test of each case.

#![deny(dead_code, reason = "a case that is not listed is not run")]

pub mod presence;
pub mod releases;
pub mod transactions;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use attest_store::StoreError;
use attest_store::engine::{Engine, KeyRange, Transaction, WorkInterrupted};

/// Engine of a store, and the state of gateways that use it.
pub trait Site: Sized + Send + Sync + 'static {
    type Store: Engine + Clone + 'static;
    /// Part of the error of a serving gateway whose lease has expired.
    const ABSENT: &'static str;

    fn start() -> Self;

    /// Opens the store for the gateway with that name.
    fn open(&self, gateway: &str) -> Self::Store;

    /// Returns the state folder of the gateway.
    fn state(&self, gateway: &str) -> PathBuf;
}

/// Makes a test of each case, in modules of the site's own.
macro_rules! shares {
    ($site:ty) => {
        $crate::remote::shares! { $site:
            transactions: [
                a_transaction_is_done_as_a_whole_or_not_at_all,
                attack_18_of_two_replicas_that_race_for_one_key_exactly_one_wins,
                attack_18_of_two_replicas_that_race_for_one_ticket_exactly_one_spends_it,
                a_storm_of_conflicts_ends_and_loses_nothing,
                replicas_that_contend_for_one_key_commit_in_turn,
                whoever_comes_into_a_storm_that_does_not_end_is_heard,
                the_tasks_of_one_process_share_commits_and_do_not_conflict,
                a_range_is_removed_with_what_others_have_put_into_it,
                what_nobody_waits_for_is_done_soon_and_at_the_end,
            ]
            presence: [
                a_gateway_with_a_copied_state_does_not_start_beside_the_other,
                a_gateway_that_starts_again_where_it_was_needs_not_wait_and_the_one_before_decides_nothing,
                an_entry_is_not_changed_while_the_gateway_serves_that_is_named,
            ]
            releases: [
                what_another_release_keeps_beside_is_left_as_it_is,
            ]
        }
    };
    ($site:ty: $($room:ident: [$($case:ident),+ $(,)?])+) => {
        $(mod $room {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                $crate::remote::$room::$case::<$site>().await;
            })+
        })+
    };
}
pub(crate) use shares;

/// Runs a transaction, and returns the result of its last attempt.
pub async fn run<T: Send + 'static>(
    engine: &impl Engine,
    mut work: impl FnMut(&mut dyn Transaction) -> Result<T, WorkInterrupted> + Send + 'static,
) -> Result<T, StoreError> {
    let slot = Arc::new(Mutex::new(None));
    let found = Arc::clone(&slot);
    let work = Box::new(move |transaction: &mut dyn Transaction| {
        *found.lock().unwrap() = Some(work(transaction)?);
        Ok(())
    });
    engine.transact(work).await?;
    Ok(slot.lock().unwrap().take().unwrap())
}

pub async fn put(engine: &impl Engine, key: &str, value: &str) -> Result<(), StoreError> {
    let (key, value) = (key.to_owned(), value.to_owned());
    run(engine, move |transaction| transaction.put(&key, &value)).await
}

pub async fn get(engine: &impl Engine, key: &str) -> Result<Option<String>, StoreError> {
    let key = key.to_owned();
    run(engine, move |transaction| transaction.get(&key)).await
}

/// Increments a counter, and returns its value.
pub async fn count_up(engine: &impl Engine, key: &str) -> Result<u32, StoreError> {
    let key = key.to_owned();
    run(engine, move |transaction| {
        let number = transaction.get(&key)?.map_or(0, |number| number.parse::<u32>().unwrap()) + 1;
        transaction.put(&key, &number.to_string())?;
        Ok(number)
    })
    .await
}

pub fn range(from: &str, until: &str) -> KeyRange {
    KeyRange {
        from: from.to_owned(),
        until: until.to_owned(),
    }
}
