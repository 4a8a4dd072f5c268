//! The administrator's commands: each is a file or a folder. `acting` and `owner` determine who acts, and as which user.

mod acting;
pub(crate) mod backup;
mod backup_file;
mod beginnings;
pub(crate) mod ca;
pub(crate) mod certificate;
mod certificate_thing;
pub(crate) mod check;
pub(crate) mod config;
mod console_fields;
pub(crate) mod ek;
pub(crate) mod ek_roots;
pub(crate) mod init;
pub(crate) mod log;
pub(crate) mod machines;
pub(crate) mod manifests;
pub(crate) mod node;
mod owner;
pub(crate) mod pointer;
pub(crate) mod policy;
pub(crate) mod probe;
pub(crate) mod reference_values;
pub(crate) mod report;
pub(crate) mod reports;
pub(crate) mod restore;
pub(crate) mod seal;
pub(crate) mod second_stage;
pub(crate) mod serve;
pub(crate) mod state;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod token;
pub(crate) mod upgrade;
pub(crate) mod waiting;

use std::future::Future;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
pub(crate) use attest_command_line::options::OutputOption;
pub(crate) use attest_command_line::{clean, durations, list, now, objects, output, table, visible, visible_json};
use attest_gateway::credentials::seal::Times;
#[cfg(feature = "cluster")]
use attest_gateway::inspection;
use attest_gateway::pools;
use attest_gateway::settings::Settings;
use attest_pool::Pool;
use attest_pool::needed_before_approval::NeededState;
use attest_store::{AnyStore, Store};
#[cfg(feature = "cluster")]
use attest_system::clock::Clock;
use attest_system::files::make_private_folder;

/// Runs `work`, which only reads, on the gateway's store, which may be in use by a serving gateway. Nothing is written: it works on a full
/// disk.
fn with_store<T, F: Future<Output = anyhow::Result<T>>>(config: &Path, work: impl FnOnce(AnyStore) -> F) -> anyhow::Result<T> {
    let settings = Settings::load(config)?;
    owner::act(&settings)?;
    make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    let store = AnyStore::open(&settings.store)?;
    tokio::runtime::Builder::new_current_thread().build()?.block_on(work(store))
}

/// Runs `work` on the store like [`with_store`], also for a user who can only read it.
fn reading_store<T>(settings: &Settings, work: impl AsyncFnOnce(&dyn Store) -> anyhow::Result<T>) -> anyhow::Result<T> {
    owner::act(settings)?;
    if !settings.state.exists() {
        make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    }
    let store = AnyStore::open_to_read(&settings.store)?;
    tokio::runtime::Builder::new_current_thread().build()?.block_on(work(&*store))
}

/// Returns the time, and the store time, for what a wrong clock would harm.
async fn times(store: &dyn Store) -> anyhow::Result<Times> {
    let now = now();
    Ok(Times::new(store.time(now).await?, now))
}

/// Word for every pool, which is no name of a pool.
const EVERY_POOL: &str = "*";

/// Returns the folder of an existing pool.
fn pool_folder(settings: &Settings, pool: &str) -> anyhow::Result<PathBuf> {
    let folders = attest_pool::folders(&settings.pools)?.pools;
    let Some(folder) = folders.get(pool) else {
        let known: Vec<&str> = folders.keys().map(String::as_str).collect();
        bail!(
            "there is no pool {pool:?} in {}; existing pools: {}",
            settings.pools.display(),
            known.join(", ")
        );
    };
    Ok(folder.clone())
}

/// Returns what nodes need before they are approved, as the cluster reports it.
#[cfg(feature = "cluster")]
async fn needed(settings: &Settings) -> NeededState {
    inspection::cluster::needed(settings, Clock::System).await
}

/// Returns that it is unknown what nodes need before they are approved: this build does not ask the cluster.
#[cfg(not(feature = "cluster"))]
async fn needed(_: &Settings) -> NeededState {
    NeededState::Pending
}

/// Reads a pool as the gateway would.
fn pool(settings: &Settings, name: &str) -> anyhow::Result<Pool> {
    pool_of_folder(settings, name, &pool_folder(settings, name)?)
}

/// Reads a pool from this folder, as the gateway would from its own.
fn pool_of_folder(settings: &Settings, name: &str, folder: &Path) -> anyhow::Result<Pool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async { pools::load(name, folder, &needed(settings).await).await })?)
}
