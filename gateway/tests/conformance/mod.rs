//! Conformance suite for every store, whatever its engine. `conforms!(Engine)` makes a test of each case.

#![deny(dead_code, reason = "a case that is not listed is not run")]

pub mod conflicts;
pub mod crashes;
pub mod entries;
pub mod grace_period;
pub mod holders;
pub mod outbox;
pub mod time;
pub mod tokens;
pub mod transactions;
pub mod uses;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use attest_store::{DecisionRecord, EntryKind, Pending, Spend, Spendable, Store, StoreEntry, StoreError, Tick, Transact, UseOccasion};

/// Location of a store on one engine.
#[async_trait]
pub trait Place: Sized + Send + Sync + 'static {
    /// Returns a location without a store.
    async fn empty() -> Self;

    /// Like [`Place::empty`], on an engine of its own, which can be held.
    async fn alone() -> Self {
        Self::empty().await
    }

    /// Opens the store, and creates it if it is missing. Each call acts as another process.
    async fn open(&self) -> Arc<dyn Store>;

    /// Closes the store in order, like a gateway after SIGTERM.
    async fn close(&self, store: Arc<dyn Store>) {
        drop(store);
    }

    /// Makes the engine of [`Place::alone`] hang until the returned value is dropped.
    async fn hold(&self) -> Box<dyn Send>;
}

/// Makes a test of each case, in modules of the place's own.
macro_rules! conforms {
    ($place:ident) => {
        $crate::conformance::conforms! { $place:
            uses: [
                attack_18_of_many_that_race_for_few_uses_just_so_many_win,
                attack_18_giving_back_makes_nothing_good_twice,
                a_use_that_is_given_back_is_free_again_once_and_with_its_number,
                what_was_spent_is_spent_after_a_restart,
                a_decision_without_a_use_gives_none_back,
                what_is_pending_is_told_the_oldest_first,
                to_look_uses_nothing_up,
            ]
            holders: [
                who_comes_again_makes_the_same_use_for_a_while_and_not_without_end,
                attack_33_a_use_that_comes_to_nothing_is_nobodys_also_after_a_crash,
                attack_33_a_repeat_that_comes_to_nothing_is_no_repeat_also_after_a_crash,
                attack_18_a_use_that_its_holder_has_made_again_since_stays_used,
                whose_use_was_forgotten_has_none,
            ]
            grace_period: [
                what_has_expired_is_used_first_in_time_and_then_for_a_while,
                what_was_used_before_it_expired_is_too_late,
                a_late_use_that_comes_to_nothing_was_none,
            ]
            transactions: [
                attack_33_a_decision_that_is_refused_leaves_nothing,
                an_error_of_the_work_writes_nothing_and_is_returned,
                attack_44_what_a_transaction_reads_stood_there_at_one_moment,
                attack_44_of_decisions_that_race_each_sees_what_the_others_have_written,
                attack_13_of_many_that_claim_the_same_one_has_it,
                attack_13_of_two_decisions_about_one_name_exactly_one_gets_it,
                what_a_decision_has_written_stands_whatever_becomes_of_its_use,
            ]
            conflicts: [
                attack_44_a_ticket_is_good_by_what_stands_when_it_is_used,
                attack_44_nothing_is_used_after_a_revocation_was_answered,
                what_is_changed_while_a_machine_is_taken_off_or_released_stays,
                attack_44_a_token_is_good_by_what_stands_when_it_is_used,
                attack_44_a_name_is_not_taken_for_a_machine_that_was_revoked_meanwhile,
            ]
            entries: [
                a_change_is_made_only_of_what_was_expected,
                entries_of_any_kinds_are_written_together_or_not_at_all,
                attack_18_of_many_that_change_the_same_one_writes,
                the_first_entry_stays_until_it_is_put_or_removed,
                ids_are_told_apart_whatever_is_in_them,
                a_hundred_thousand_entries_are_listed_by_id,
                what_is_written_raises_the_mark_and_what_is_read_does_not,
            ]
            outbox: [
                each_change_is_told_of_once_with_what_was_and_what_is,
                what_cannot_be_told_of_is_not_done,
                what_waits_is_taken_in_order_and_page_by_page,
            ]
            tokens: [
                a_token_that_is_rotated_each_minute_is_rotated_on_and_ended_at_once,
            ]
            time: [
                what_is_forgotten_is_not_given_back,
                what_was_spent_is_forgotten_a_day_after_it_expired_and_not_before,
                attack_41_a_challenge_is_remembered_for_a_day_and_is_never_good_again,
                attack_41_after_two_hours_with_a_clock_that_is_ahead_tickets_and_challenges_are_good,
                attack_41_a_clock_that_jumps_makes_nothing_forgotten_and_what_is_forgotten_is_never_good_again,
                a_store_that_was_begun_with_a_clock_ahead_goes_on_with_a_right_one,
                attack_41_a_store_begins_with_the_oldest_thing_that_it_remembers,
                attack_41_the_uses_of_a_token_go_with_it_and_never_by_time,
                what_is_used_again_is_remembered_as_long_as_its_last_use_says,
                a_thousand_things_are_forgotten_and_decisions_come_in_between,
            ]
            crashes: [
                what_was_answered_is_there_after_a_crash,
                a_settle_that_a_crash_has_lost_is_found_again,
                an_engine_that_stands_still_makes_nothing_good_twice,
            ]
        }
    };
    ($place:ident: $($room:ident: [$($case:ident),+ $(,)?])+) => {
        $(mod $room {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                $crate::conformance::$room::$case::<super::$place>().await;
            })+
        })+
    };
}
pub(crate) use conforms;

pub const HOUR: u64 = 3600;
pub const DAY: u64 = 24 * HOUR;

/// Returns a ticket with this limit of uses.
pub fn thing(id: &str, limit: u32, remember_until: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Ticket,
        id: id.to_owned(),
        limit,
        remember_until,
    }
}

pub fn challenge(id: &str, remember_until: u64) -> Spendable {
    Spendable {
        kind: EntryKind::Challenge,
        ..thing(id, 1, remember_until)
    }
}

pub fn entry(id: &str, value: &str) -> StoreEntry {
    StoreEntry {
        id: id.to_owned(),
        value: value.to_owned(),
    }
}

/// Returns a decision at second 5.
pub fn decided(decision: &str) -> DecisionRecord {
    decided_at(decision, 5)
}

pub fn decided_at(decision: &str, at: u64) -> DecisionRecord {
    DecisionRecord {
        decision: decision.to_owned(),
        at,
        record: format!("{{\"id\":{decision:?}}}"),
    }
}

/// Returns the decision of [`decided`] while it is pending, with its use.
pub fn pending(decision: &str) -> Pending {
    pending_at(decision, 5)
}

pub fn pending_at(decision: &str, at: u64) -> Pending {
    Pending {
        decided: decided_at(decision, at),
        has_use: true,
        adopted: false,
    }
}

/// Like [`pending_at`], but adopted from another gateway.
pub fn adopted_at(decision: &str, at: u64) -> Pending {
    Pending {
        adopted: true,
        ..pending_at(decision, at)
    }
}

/// Like [`pending`], but its use was given back.
pub fn without_use(decision: &str) -> Pending {
    Pending {
        has_use: false,
        ..pending(decision)
    }
}

pub const fn granted(use_number: u32) -> Spend {
    Spend::Granted { use_number }
}

/// Uses a thing for a decision, which is pending from then on. Makes no decision if the thing cannot be used.
pub async fn try_use(store: &dyn Store, thing: Spendable, occasion: UseOccasion, decided: DecisionRecord) -> Result<Spend, StoreError> {
    let decision = decided.decision.clone();
    let spent = store.decide(&decision, move |transaction| {
        let found = transaction.spend(&thing, &occasion, decided.at)?;
        if matches!(found, Spend::Granted { .. } | Spend::Again { .. }) {
            transaction.decide(decided.clone())?;
        }
        Ok(found)
    });
    spent.await
}

/// Like [`try_use`], for a store that answers.
pub async fn use_for(store: &dyn Store, thing: Spendable, occasion: UseOccasion, decided: DecisionRecord) -> Spend {
    try_use(store, thing, occasion, decided).await.unwrap()
}

/// Uses a ticket for a decision, if it has this number of uses.
pub async fn spend_for(store: &dyn Store, id: &str, limit: u32, decision: &str) -> Spend {
    use_for(store, thing(id, limit, 10), UseOccasion::Any, decided(decision)).await
}

/// Returns the result that a use would have, without making it.
pub async fn would_spend(store: &dyn Store, thing: Spendable, occasion: UseOccasion, at: u64) -> Result<Spend, StoreError> {
    store.read(move |transaction| transaction.would_spend(&thing, &occasion, at)).await
}

/// Returns the decisions that are pending.
pub async fn decisions(store: &dyn Store) -> Vec<String> {
    let pending = store.pending().await.unwrap();
    pending.into_iter().map(|pending| pending.decided.decision).collect()
}

/// Advances time: the clock's value, and the seconds that the gateway has run.
pub async fn tick(store: &dyn Store, now: u64, passed: u64) -> u64 {
    let passed = Duration::from_secs(passed);
    store.forget_expired(Tick { now, passed }).await.unwrap()
}

/// Ends the store like a killed process: nothing is closed in order.
pub fn crash(store: Arc<dyn Store>) {
    std::mem::forget(store);
}
