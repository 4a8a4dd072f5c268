//! The command `attest-gateway store`: accepts and copies the store.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::settings::Settings;
use attest_log::admin::{By, ValueChange, Verb};
use attest_log::{CheckpointSigner, CommandLog, LogKey};
use attest_recording::{ResolvedDecisions, Signs, keep};
use attest_store::{AcceptedStore, AnyStore, Contents, CopiedStore, Replacement, Store, StoreError, StoreMark};
use attest_system::files::make_private_folder;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::acting::{change_files, change_store};
use super::output;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Accept the current store, or initialize an empty one, after the gateway has refused to start.
    #[command(
        after_help = "Example:\n  systemctl stop attest-gateway\n  attest-gateway store accept\n  systemctl start attest-gateway\n\nThe gateway refuses to start if its store was lost, emptied, replaced or rolled back. Restore the right store if you still have it.\n\nThis command continues with the store that is there. It invalidates all challenges and tickets, and writes a line into the attestation\nlog. Revocations, restrictions, names and token uses that this store lacks are lost.\n\nAfterwards look through these lists, and repeat each lost revocation:\n  attest-gateway machines list\n  attest-gateway token list"
    )]
    Accept,
    /// Migrate the store to another engine. Stop its gateways first.
    #[command(
        after_help = "Example: from the embedded store to etcd\n  systemctl stop attest-gateway\n  attest-gateway --config gateway.toml store copy --to gateway-etcd.toml\n\nThe command compares both stores by their digest. The copy gets a new identity; the original is marked as moved, and no gateway opens\nit again. If the command was interrupted, run it again, or take it back with --undo."
    )]
    Copy {
        /// Settings that name the new store, which must be empty.
        #[arg(long, value_name = "GATEWAY.TOML")]
        to: PathBuf,
        /// Take back an interrupted copy: the original store is used again.
        #[arg(long)]
        undo: bool,
    },
    /// Create or replace the key that replicas share (store.key_file).
    #[command(
        after_help = "Example: once, on one host; then copy the file to the other hosts (mode 0600)\n  attest-gateway store create-key\n\nExample: replace the key, because it may have leaked\n  attest-gateway store create-key --rotate\n\nThe key encrypts the seal's keys in the store. After --rotate, copy the new file to the other hosts at once: their gateways keep\nrunning, but do not start again without it.\n\nIf file and store have both leaked, replace the seal's keys, too:\n  attest-gateway seal rotate --drop"
    )]
    CreateKey {
        /// Replace the existing key.
        #[arg(long)]
        rotate: bool,
    },
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    match command {
        Command::Accept => accept(&settings),
        Command::Copy { to, undo: false } => copy(&settings, &Settings::load(to)?),
        Command::Copy { to, undo: true } => undo(&settings, &Settings::load(to)?),
        Command::CreateKey { rotate: false } => make_key(&settings),
        Command::CreateKey { rotate: true } => replace_key(config, &settings),
    }
}

fn key_file(settings: &Settings) -> anyhow::Result<&Path> {
    let named = settings.store_key_file.as_deref();
    named.context("gateway.toml names no key file: set store.key_file in it, then run the command again")
}

fn make_key(settings: &Settings) -> anyhow::Result<ExitCode> {
    let file = key_file(settings)?;
    let id = change_files(settings, Verb::StoreKey, || {
        ensure!(
            file.symlink_metadata().is_err(),
            "{} exists and was not changed; to replace the key: `attest-gateway store create-key --rotate`",
            file.display()
        );
        let id = SealKeyRing::make_key_file(file)?;
        super::owner::give(
            settings,
            rustix::fs::open(
                file,
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC,
                Mode::empty(),
            )?,
        )?;
        Ok((id, vec![ValueChange::file(file)]))
    })?;
    output::done(format_args!("{}: created key {id}", file.display()))?;
    output::done("Next: copy the file to every replica, owned by the gateway's user with mode 0600, and set store.key_file there")?;
    Ok(ExitCode::SUCCESS)
}

fn replace_key(config: &Path, settings: &Settings) -> anyhow::Result<ExitCode> {
    let file = key_file(settings)?;
    let (old, new) = change_store(config, Verb::StoreKeyRotate, async |store| {
        let now = super::times(&*store).await?;
        Ok(SealKeyRing::replace_key_file(&*store, file, now).await?)
    })?;
    output::done(format_args!(
        "{}: replaced key {old} by {new}, which now encrypts the seal's keys in the store",
        file.display()
    ))?;
    output::done(format_args!(
        "Next: copy the file to every replica now; a replica that has only key {old} does not start again"
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn accept(settings: &Settings) -> anyhow::Result<ExitCode> {
    // Before this becomes the state's owner.
    let who = (Verb::StoreAccept, By::this_process());
    super::owner::act(settings)?;
    make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    // No gateway serves meanwhile.
    let mut log = CommandLog::open(&settings.attestation_log())?;
    let mut checkpoint = None;
    let accepted = AnyStore::accept(&settings.store, |replacement| {
        checkpoint = Some(prepare_replacement(settings, &mut log, replacement, who, None)?);
        Ok::<_, anyhow::Error>(())
    })?;
    keep_checkpoint(settings, checkpoint.as_deref());
    print_accepted(accepted)?;
    output::done(
        "Next: compare these lists, and repeat each revocation that the store lacks: `attest-gateway machines list`, `attest-gateway token list`.",
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Prepares the use of another store: records that, and makes worthless what this store may not know to be spent.
pub(super) fn prepare_replacement(
    settings: &Settings,
    log: &mut CommandLog,
    replacement: &Replacement,
    who: (Verb, By),
    from: Option<Value>,
) -> anyhow::Result<String> {
    let store = ValueChange {
        kind: "store".to_owned(),
        id: attest_store::place(&settings.store),
        before: replacement.known.as_ref().map(|known| json!(known)),
        after: Some(from.map_or_else(|| json!({ "found": replacement.found }), |from| json!({ "from": from }))),
    };
    let signed = &settings.checkpoints;
    let signer = CheckpointSigner::new(LogKey::open(&settings.log_key())?, signed.name.as_deref(), signed.records);
    let checkpoint = log.store_accepted(&attest_recording::replacement(replacement), who, store, super::now(), &signer)?;
    // What was spent under the old key may not be known to this store. Keys in a store are for that store, and it becomes another one; a
    // file of before there was a key file would be used again without one.
    match settings.store_key_file {
        None => SealKeyRing::replace(&settings.seal_key())?,
        Some(_) => SealKeyRing::replace_if_exists(&settings.seal_key())?,
    }
    Ok(checkpoint)
}

/// Has the store keep the checkpoint, so that the line that says so cannot be cut off before a gateway serves with it.
pub(super) fn keep_checkpoint(settings: &Settings, checkpoint: Option<&str>) {
    let Some(checkpoint) = checkpoint else { return };
    let kept = || -> anyhow::Result<()> {
        let store = AnyStore::open(&settings.store)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            keep(&store, checkpoint).await?;
            store.keep_mark().await?;
            Ok(())
        })
    };
    if let Err(error) = kept() {
        output::print_note(format_args!(
            "cannot write the log's checkpoint to the store; the gateway writes it at its next start: {error:#}"
        ));
    }
}

pub(super) fn print_accepted(accepted: AcceptedStore) -> anyhow::Result<()> {
    let AcceptedStore {
        replacement: Replacement { known, found },
        now,
    } = accepted;
    let named = |mark: Option<StoreMark>, otherwise: &str| mark.map_or_else(|| otherwise.to_owned(), |mark| mark.to_string());
    output::done(format_args!("expected store: {}", named(known, "unknown: its identity was lost")))?;
    output::done(format_args!("found store:    {}", named(found, "none")))?;
    output::done(format_args!("accepted store: {now}"))?;
    output::done("The seal has a new key: all challenges and tickets are invalid.")
}

pub(super) fn print_contents(Contents { count, sha256 }: &Contents) -> anyhow::Result<()> {
    output::line(format_args!("entries: {count}, with sha-256 {sha256}"))
}

/// Keeps gateways with the state of these settings from serving, on this machine.
fn alone(from: &Settings, to: &Settings) -> anyhow::Result<(CommandLog, Option<CommandLog>)> {
    ensure!(
        from.store != to.store,
        "--to names the store of --config, too: name the settings of another store"
    );
    super::owner::act(to)?;
    make_private_folder(&to.state).with_context(|| to.state.display().to_string())?;
    let log = CommandLog::open(&to.attestation_log())?;
    let other = match from.attestation_log() == to.attestation_log() {
        true => None,
        false => Some(CommandLog::open(&from.attestation_log())?),
    };
    attest_store::alone(&from.store)?;
    Ok((log, other))
}

fn copy(from: &Settings, to: &Settings) -> anyhow::Result<ExitCode> {
    let who = (Verb::StoreCopy, By::this_process());
    let (mut log, _other) = alone(from, to)?;
    decide_pending(from)?;
    let mut checkpoint = None;
    let CopiedStore { accepted, contents } = attest_store::copy(&from.store, &to.store, |replacement| {
        checkpoint = Some(prepare_replacement(
            to,
            &mut log,
            replacement,
            who,
            Some(json!(attest_store::place(&from.store))),
        )?);
        Ok::<_, anyhow::Error>(())
    })?;
    keep_checkpoint(to, checkpoint.as_deref());
    match &contents {
        Some(contents) => print_contents(contents)?,
        None => output::done("The data was complete already: an earlier run has copied it.")?,
    }
    print_accepted(accepted)?;
    output::done("The original store is marked as moved, and no gateway opens it again. Remove it when you no longer need it.")?;
    Ok(ExitCode::SUCCESS)
}

/// Settles the decisions of this gateway that its log has, and gives back the uses of those that were never recorded, like its start does.
/// The store's new place has another log.
fn decide_pending(from: &Settings) -> anyhow::Result<()> {
    let store = match AnyStore::exists(&from.store) {
        // It has gone there before, as it is; or there is none, as is said of it then.
        Err(StoreError::Moved { .. }) | Ok(false) => return Ok(()),
        looked => looked.and_then(|_| AnyStore::open(&from.store))?,
    };
    let log = from.attestation_log();
    tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
        // Nobody else with this state serves meanwhile, wherever.
        store.serve().await?;
        let missing = match fs::exists(from.log_key())? {
            true => {
                let (chain, key) = (
                    attest_log::log_head(&log)?.map(|head| head.chain).unwrap_or_default(),
                    LogKey::read(&from.log_key())?.public(),
                );
                attest_recording::missing(&store, &log, Signs { chain: &chain, key }).await?
            }
            false => Vec::new(),
        };
        let resolved = attest_recording::resolve_pending(&store, &log, &missing).await?;
        let ResolvedDecisions { given_back, unrecorded } = resolved;
        if given_back > 0 || !unrecorded.is_empty() {
            output::done(format_args!(
                "Pending decisions: gave back {given_back} uses of tickets and tokens; {} decisions move with the store, and the next start records them.",
                unrecorded.len()
            ))?;
        }
        store.keep_mark().await?;
        Ok(())
    })
}

fn undo(from: &Settings, to: &Settings) -> anyhow::Result<ExitCode> {
    let (log, other) = alone(from, to)?;
    let store = change_files(from, Verb::StoreCopyUndo, || {
        let store = attest_store::undo(&from.store, &to.store)?;
        let thing = ValueChange {
            kind: "store".to_owned(),
            id: attest_store::place(&from.store),
            before: Some(json!({ "moved": attest_store::place(&to.store) })),
            after: Some(json!(store)),
        };
        Ok((store, vec![thing]))
    })?;
    drop((log, other));
    output::done(format_args!(
        "store {store} is in use again; remove the partial copy at {}, which no gateway opens",
        attest_store::place(&to.store)
    ))?;
    Ok(ExitCode::SUCCESS)
}
