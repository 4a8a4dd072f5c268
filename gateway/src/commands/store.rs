//! The command `attest-gateway store`: exports, imports and copies the store.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use attest_gateway::credentials::seal::SealKeyRing;
use attest_gateway::settings::Settings;
use attest_log::admin::{By, ValueChange, Verb};
use attest_log::{CheckpointSigner, CommandLog, LogKey};
use attest_recording::{ResolvedDecisions, Signs, keep};
use attest_store::{AcceptedStore, AnyStore, Contents, CopiedStore, Exported, Replacement, Store, StoreError, StoreMark};
use attest_system::files::{self, PRIVATE, make_private_folder};
use serde_json::json;

use super::acting::{change_files, change_store};
use super::output;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Accept the current store, or initialize an empty one, after the gateway has refused to start.
    #[command(
        after_help = "Example:\n  attest-gateway store accept\n\nThe gateway refuses a store that is not the one it knows: lost, emptied, another one, or restored from before. Bring the right one\nback if there is any. What is lost with it: nodes and EKs revoked or restricted since, names, and which tokens were used. Challenges\nand tickets under way become worthless: the seal gets a new key. The attestation log\nhas a line about it. Stop the gateway first; then look through `node list`, `ek list` and\n`token list`, and revoke again what has to be."
    )]
    Accept,
    /// Write all that the store holds to a new file, with a digest. No gateway may serve with it.
    #[command(
        after_help = "Example: to another host, or into another store\n  attest-gateway store export store.jsonl\n\nThe file holds what the store holds, for its owner only (0600); keep it as well as the state folder. What the gateway does after that is not\nin it: to take a copy while it serves, `store backup`."
    )]
    Export { file: PathBuf },
    /// Write a snapshot like `export`, while a gateway serves.
    #[command(
        after_help = "Example:\n  attest-gateway store backup /backup/store-$(date +%F).jsonl\n\nA backup that is restored forgets what was revoked and used up since: `store import` says so in the attestation log."
    )]
    Backup { file: PathBuf },
    /// Take what `export` or `backup` has written into the store, which has to be empty: all of it, or nothing. No gateway may serve.
    #[command(
        after_help = "Example:\n  attest-gateway store import store.jsonl\n\nThe file is read to its end first; one that is torn or altered is refused, and nothing is written. The store becomes another one than that which was\nwritten down, as by `store accept`: that one may have gone on since. So challenges and tickets under way are worthless, and the attestation log\nhas a line about it. Was something revoked, or a token used, after the file was written: do it again."
    )]
    Import { file: PathBuf },
    /// Take what the store holds into that of other settings, which has to be empty: from one engine to another, and back. No gateway may serve.
    #[command(
        after_help = "Example: from the embedded store to etcd\n  attest-gateway --config gateway.toml store copy --to gateway-etcd.toml\n\nBoth sides are compared by their digest. The store becomes another one, as by `store import`, and the one that was copied says where it has gone:\nnobody goes on with it. One of both is the store at any time: a copy that was interrupted is done again, or taken back by --undo."
    )]
    Copy {
        /// The settings of the gateways that are to have it.
        #[arg(long, value_name = "GATEWAY.TOML")]
        to: PathBuf,
        /// Take back a copy that was interrupted: the store is again where it was.
        #[arg(long)]
        undo: bool,
    },
    /// Make the key that replicas share (store.key_file), or put a new one in its place.
    #[command(
        after_help = "Example: once, on one host; then copy the file to the others, mode 0600\n  attest-gateway store create-key\n\nExample: a new key, because somebody may have read the file\n  attest-gateway store create-key --rotate\n\nIt encrypts the seal's keys in the store. With --rotate they are encrypted anew; copy the file to the other hosts at once. Until then their\ngateways go on with the keys that they have, and do not start again. If somebody may have read file and store: seal rotate --drop, too."
    )]
    CreateKey {
        /// Put a new key in the place of the one that is there.
        #[arg(long)]
        rotate: bool,
    },
}

pub(crate) fn run(config: &Path, command: &Command) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    match command {
        Command::Accept => accept(&settings),
        Command::Export { file } => {
            super::owner::act(&settings)?;
            // No gateway serves meanwhile.
            let _log = CommandLog::open(&settings.attestation_log())?;
            attest_store::alone(&settings.store)?;
            write_down(&settings, file)
        }
        Command::Backup { file } => write_down(&settings, file),
        Command::Import { file } => import(&settings, file),
        Command::Copy { to, undo: false } => copy(&settings, &Settings::load(to)?),
        Command::Copy { to, undo: true } => undo(&settings, &Settings::load(to)?),
        Command::CreateKey { rotate: false } => make_key(&settings),
        Command::CreateKey { rotate: true } => replace_key(config, &settings),
    }
}

fn key_file(settings: &Settings) -> anyhow::Result<&Path> {
    let named = settings.store_key_file.as_deref();
    named.context("gateway.toml names no key file: set store.key_file")
}

fn make_key(settings: &Settings) -> anyhow::Result<ExitCode> {
    let file = key_file(settings)?;
    let id = change_files(settings, Verb::StoreKey, || {
        ensure!(
            file.symlink_metadata().is_err(),
            "{} exists, and is left as it is: `store create-key --rotate` puts a new key in its place",
            file.display()
        );
        let id = SealKeyRing::make_key_file(file)?;
        super::owner::give(settings, file)?;
        Ok((id, vec![ValueChange::file(file)]))
    })?;
    output::done(format_args!("{}: a new key, {id}", file.display()))?;
    output::done("Copy the file to every replica, for the gateway's user only (0600), and name it there: store.key_file")?;
    Ok(ExitCode::SUCCESS)
}

fn replace_key(config: &Path, settings: &Settings) -> anyhow::Result<ExitCode> {
    let file = key_file(settings)?;
    let (old, new) = change_store(config, Verb::StoreKeyRotate, async |store| {
        let now = super::times(&*store).await?;
        Ok(SealKeyRing::replace_key_file(&*store, file, now).await?)
    })?;
    output::done(format_args!(
        "{}: key {new} in the place of {old}; the seal's keys in the store are encrypted by it",
        file.display()
    ))?;
    output::done(format_args!(
        "Copy the file to every replica now: one that has {old} only does not start again"
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
    Ok(ExitCode::SUCCESS)
}

/// Prepares the use of another store: records that, and makes worthless what this store may not know to be spent.
fn prepare_replacement(
    settings: &Settings,
    log: &mut CommandLog,
    replacement: &Replacement,
    who: (Verb, By),
    from: Option<String>,
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
fn keep_checkpoint(settings: &Settings, checkpoint: Option<&str>) {
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
            "the store does not keep the log's checkpoint yet; the gateway has it do so at its start: {error:#}"
        ));
    }
}

fn print_accepted(accepted: AcceptedStore) -> anyhow::Result<()> {
    let AcceptedStore {
        replacement: Replacement { known, found },
        now,
    } = accepted;
    let named = |mark: Option<StoreMark>, otherwise: &str| mark.map_or_else(|| otherwise.to_owned(), |mark| mark.to_string());
    output::done(format_args!("known was:   {}", named(known, "a store, nobody says which")))?;
    output::done(format_args!("found was:   {}", named(found, "none")))?;
    output::done(format_args!("accepted as: {now}"))?;
    output::done(
        "The seal has a new key: all challenges and tickets are invalid. Repeat all later revocations: `attest-gateway node list`, `ek list`, `token list`.",
    )
}

fn write_down(settings: &Settings, file: &Path) -> anyhow::Result<ExitCode> {
    super::owner::act(settings)?;
    let named = || file.display().to_string();
    ensure!(
        file.symlink_metadata().is_err(),
        "{} exists, and is left as it is: name another file",
        file.display()
    );
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(file)
        .with_context(named)?;
    let mut lines = BufWriter::new(&mut out);
    let written = attest_store::export(&settings.store, &mut lines);
    drop(lines);
    let written = written.and_then(|written| {
        out.sync_all()?;
        Ok(written)
    });
    if written.is_err() {
        // Half of a store is nothing to keep.
        drop(fs::remove_file(file));
    }
    let Exported { store, contents } = written.with_context(named)?;
    output::done(format_args!("store:   {store}"))?;
    print_contents(&contents)?;
    Ok(ExitCode::SUCCESS)
}

fn print_contents(Contents { count, sha256 }: &Contents) -> anyhow::Result<()> {
    output::done(format_args!("keys:    {count}"))?;
    output::done(format_args!("sha-256: {sha256}"))
}

fn import(settings: &Settings, file: &Path) -> anyhow::Result<ExitCode> {
    let who = (Verb::StoreImport, By::this_process());
    super::owner::act(settings)?;
    make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    // No gateway serves meanwhile.
    let mut log = CommandLog::open(&settings.attestation_log())?;
    let open = || Ok::<Box<dyn BufRead>, io::Error>(Box::new(BufReader::new(files::open(file)?)));
    let mut checkpoint = None;
    let first = |replacement: &Replacement| {
        checkpoint = Some(prepare_replacement(
            settings,
            &mut log,
            replacement,
            who,
            Some(file.display().to_string()),
        )?);
        Ok::<_, anyhow::Error>(())
    };
    let (accepted, contents) = attest_store::import(&settings.store, open, first).with_context(|| file.display().to_string())?;
    keep_checkpoint(settings, checkpoint.as_deref());
    print_contents(&contents)?;
    print_accepted(accepted)?;
    Ok(ExitCode::SUCCESS)
}

/// Keeps gateways with the state of these settings from serving, on this machine.
fn alone(from: &Settings, to: &Settings) -> anyhow::Result<(CommandLog, Option<CommandLog>)> {
    ensure!(from.store != to.store, "both settings name the same store");
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
            Some(attest_store::place(&from.store)),
        )?);
        Ok::<_, anyhow::Error>(())
    })?;
    keep_checkpoint(to, checkpoint.as_deref());
    match &contents {
        Some(contents) => print_contents(contents)?,
        None => output::done("All of it was there already.")?,
    }
    print_accepted(accepted)?;
    output::done("The store that was copied says that it has gone there: nobody goes on with it. Remove it when you need it no more.")?;
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
                    attest_log::last_chain(&log)?.unwrap_or_default(),
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
                "Of decisions that were never recorded, {given_back} uses of tickets and tokens were given back; {} decisions go with the store, and are recorded by the next start.",
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
        "store {store} is in use again; the partial copy at {} is not a store",
        attest_store::place(&to.store)
    ))?;
    Ok(ExitCode::SUCCESS)
}
