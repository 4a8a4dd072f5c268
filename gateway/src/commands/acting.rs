//! Commands that change something: who did what is recorded.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use attest_gateway::settings::Settings;
use attest_log::admin::{Act, By, ValueChange, Verb};
use attest_recording::Acting;
use attest_store::{AnyStore, Store};
use attest_system::clock::Clock;

use super::{now, output, owner, with_store};

/// Like [`with_store`], for work that changes something: the transaction that does it records the act. A refusal is recorded, too.
pub(super) fn change_store<T, F: Future<Output = anyhow::Result<T>>>(
    config: &Path,
    verb: Verb,
    work: impl FnOnce(Arc<dyn Store>) -> F,
) -> anyhow::Result<T> {
    // Before this becomes the state's owner.
    change_store_as(By::this_process(), config, verb, work)
}

/// Like [`change_store`], for the user that started this process, if that was looked up already.
pub(super) fn change_store_as<T, F: Future<Output = anyhow::Result<T>>>(
    by: By,
    config: &Path,
    verb: Verb,
    work: impl FnOnce(Arc<dyn Store>) -> F,
) -> anyhow::Result<T> {
    change_store_by(by, config, verb, |store, acting| work(acting.on(Arc::new(store))))
}

/// Like [`change_store_as`], for work that chooses how its changes are recorded.
pub(super) fn change_store_by<T, F: Future<Output = anyhow::Result<T>>>(
    by: By,
    config: &Path,
    verb: Verb,
    work: impl FnOnce(AnyStore, Acting) -> F,
) -> anyhow::Result<T> {
    with_store(config, async |store| {
        let clock = Clock::System;
        let acting = Acting { verb, by, clock };
        let done = work(store.clone(), acting.clone()).await;
        if let Err(error) = &done {
            // That the store is gone is said by this error, too.
            drop(acting.refused(&store, &attest_command_line::in_full(error)).await);
        }
        let done = done?;
        // What was done is not to be undone by an older store in the place of this one.
        store.keep_mark().await?;
        Ok(done)
    })
}

/// Fails if there was nothing to change.
pub(super) fn found(there: bool, otherwise: impl FnOnce() -> String) -> anyhow::Result<()> {
    if !there {
        bail!("{}", otherwise());
    }
    Ok(())
}

/// Runs work that changes files, and not the store; records its changes when it is done. A process that is killed in between has recorded
/// nothing; a gateway that reads the files detects the change by itself.
pub(super) fn change_files<T>(
    settings: &Settings,
    verb: Verb,
    work: impl FnOnce() -> anyhow::Result<(T, Vec<ValueChange>)>,
) -> anyhow::Result<T> {
    let (by, done) = (By::this_process(), work());
    let act = match &done {
        Ok((_, things)) => Act::done(verb, now(), by, things.clone()),
        Err(error) => Act::refused(verb, now(), by, &attest_command_line::in_full(error)),
    };
    if let Err(error) = record_act(settings, &act) {
        output::print_note(format_args!(
            "cannot record this command in the attestation log: {}",
            attest_command_line::in_full(&error)
        ));
    }
    done.map(|(done, _)| done)
}

/// Runs work that cannot be in a transaction with its record: that is made before. If the work fails, that is recorded, too.
pub(super) fn change_after_record(
    settings: &Settings,
    (verb, by): (Verb, By),
    change: ValueChange,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    record_act(settings, &Act::done(verb, now(), by.clone(), vec![change]))?;
    work().inspect_err(|error| {
        let refused = Act::refused(verb, now(), by, &attest_command_line::in_full(error));
        // That the store is gone is said by this error, too.
        drop(record_act(settings, &refused));
    })
}

/// Puts it into the outbox, if there is a store: without one no gateway has ever served here.
fn record_act(settings: &Settings, act: &Act) -> anyhow::Result<()> {
    if !owner::act_quietly(settings)? || !AnyStore::exists(&settings.store)? {
        return Ok(());
    }
    let (store, told) = (AnyStore::open(&settings.store)?, serde_json::to_string(act)?);
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        store.append_to_outbox(told).await?;
        store.keep_mark().await
    })?;
    Ok(())
}
