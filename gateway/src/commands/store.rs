//! `attest-gateway store`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use attest_gateway::audit::CommandLog;
use attest_gateway::credentials::seal::Seal;
use attest_gateway::files::make_private_folder;
use attest_gateway::settings::Settings;
use attest_gateway::store::{Accepted, AnyStore, Replacement, StoreMark};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Take the store that is there for the right one, or begin an empty one, after the gateway has refused to start.
    #[command(
        after_help = "Example:\n  attest-gateway store accept\n\nThe gateway refuses a store that is not the one it knows: lost, emptied, another one, or restored from before. Bring the right one\nback if there is any. What is lost with it: nodes and EKs revoked or restricted since, names, and which tokens were used. Challenges\nand tickets under way become worthless: the seal gets a new key. The attestation log\nhas a line about it. Stop the gateway first; then look through `node list`, `ek list` and\n`token list`, and revoke again what has to be."
    )]
    Accept,
    /// Make the key that replicas share (store.key_file), or put a new one in its place.
    #[command(
        after_help = "Example: once, on one host; then copy the file to the others, mode 0600\n  attest-gateway store key\n\nExample: a new key, because somebody may have read the file\n  attest-gateway store key --rotate\n\nIt encrypts the seal's keys in the store. With --rotate they are encrypted anew; copy the file to the other hosts at once. Until then their\ngateways go on with the keys that they have, and do not start again. If somebody may have read file and store: seal rotate --drop, too."
    )]
    Key {
        /// Put a new key in the place of the one that is there.
        #[arg(long)]
        rotate: bool,
    },
}

pub fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    match command {
        Command::Accept => accept(&settings),
        Command::Key { rotate: false } => make_key(&settings),
        Command::Key { rotate: true } => replace_key(config, &settings),
    }
}

fn key_file(settings: &Settings) -> anyhow::Result<&Path> {
    let named = settings.store_key_file.as_deref();
    named.context("gateway.toml names no key file: set store.key_file")
}

fn make_key(settings: &Settings) -> anyhow::Result<ExitCode> {
    let file = key_file(settings)?;
    let id = Seal::make_key_file(file)?;
    super::owner::give(settings, file)?;
    println!("{}: a new key, {id}", file.display());
    println!("Copy the file to every replica, for the gateway's user only (0600), and name it there: store.key_file");
    Ok(ExitCode::SUCCESS)
}

fn replace_key(config: &Path, settings: &Settings) -> anyhow::Result<ExitCode> {
    let file = key_file(settings)?;
    let (old, new) = super::with_store(config, async |store| {
        let now = super::store_time(&store).await?;
        Ok(Seal::replace_key_file(&store, file, now).await?)
    })?;
    println!(
        "{}: key {new} in the place of {old}; the seal's keys in the store are encrypted by it",
        file.display()
    );
    println!("Copy the file to every replica now: one that has {old} only does not start again");
    Ok(ExitCode::SUCCESS)
}

fn accept(settings: &Settings) -> anyhow::Result<ExitCode> {
    super::owner::act(settings)?;
    make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    // No gateway serves meanwhile.
    let mut log = CommandLog::open(&settings.attestation_log())?;
    let first = |replacement: &Replacement| {
        log.store_accepted(replacement, super::now())?;
        // What was spent under the old key may not be known to this store. Keys in a store are for that store, and it becomes another one.
        if settings.store_key_file.is_none() {
            Seal::replace(&settings.seal_key())?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let Accepted {
        replacement: Replacement { known, found },
        now,
    } = AnyStore::accept(settings, first)?;
    let named = |mark: Option<StoreMark>, otherwise: &str| mark.map_or_else(|| otherwise.to_owned(), |mark| mark.to_string());
    println!("known was:   {}", named(known, "a store, nobody says which"));
    println!("found was:   {}", named(found, "none, or one of an older release"));
    println!("accepted as: {now}");
    println!(
        "The seal has a new key: challenges and tickets under way are worthless. Revoke again what was revoked since: node list, ek list, token list."
    );
    Ok(ExitCode::SUCCESS)
}
