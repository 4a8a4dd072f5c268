//! The command `attest-gateway restore`: puts a backup in the place of a lost store, and lists the acts to repeat.

mod younger;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use attest_gateway::settings::Settings;
use attest_log::admin::{By, Verb};
use attest_log::{Blobs, CheckpointSigner, CommandLog, Journal, JournalError, LogKey, SegmentLimits, is_written};
use attest_recording::{take, with_store};
use attest_store::settings::{EngineSettings, StoreSettings};
use attest_store::{AnyStore, Replacement, Store, StoreError};
use attest_system::clock::rfc3339;
use attest_system::files::{self, PRIVATE, make_private_folder};
use serde_json::json;

use super::backup::{LOG_KEY, SETTINGS, site};
use super::backup_file::{Backup, BackupMember, BackupSite};
use super::store::{keep_checkpoint, prepare_replacement, print_accepted, print_contents};
use super::{OutputOption, output};
use younger::YoungerActs;

/// Longest wait for the end of the thread that writes the log.
const LOG_CLOSES_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: the store is lost\n  systemctl stop attest-gateway\n  attest-gateway restore /var/backups/attest-gateway/2026-11-28.backup\n  systemctl start attest-gateway\n\nThe command checks the whole file first, and changes nothing if anything is wrong. If it is interrupted, run it again.\n\nThe restored store gets a new identity: all challenges and tickets become invalid. The attestation log continues if it is in the state\nfolder; otherwise another chain begins with the same key. Settings in the backup are written if there is no gateway.toml.\n\nThe command lists the administrative acts in the log that the backup lacks. Repeat them in order.\n\nExit code 2: a newer release wrote the backup."
)]
pub(crate) struct Arguments {
    /// File that `attest-gateway backup` wrote.
    file: PathBuf,
    /// Replace the existing store. Its files are kept in a folder replaced-TIME of the state folder.
    #[arg(long)]
    replace: bool,
    /// Restore the backup of another site: another MCS CA, log key and store.
    #[arg(long)]
    another_site: bool,
    #[command(flatten)]
    format: OutputOption,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let who = (Verb::StoreRestore, By::this_process());
    let file = &arguments.file;
    let named = || file.display().to_string();
    if config.symlink_metadata().is_err() {
        // As the user who may write the settings.
        write_settings(config, &read(file)?).with_context(named)?;
    }
    let settings = Settings::load(config)?;
    super::owner::act(&settings)?;
    let backup = read(file)?;
    check_site(&settings, &backup.site, arguments.another_site).with_context(named)?;
    let log = settings.attestation_log();
    if is_written(&log) {
        return Err(JournalError::InUse(log).into());
    }
    let is_there = check_store(&settings.store, arguments.replace)?;
    make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    restore_log_key(&settings, &backup)?;
    if is_there && let Err(error) = record_last_acts(&settings) {
        output::print_note(format_args!(
            "cannot record the last acts of the replaced store in the attestation log, which may lack them: {}",
            attest_command_line::in_full(&error)
        ));
    }
    let younger = YoungerActs::find(&log, &backup)?;
    // No gateway serves meanwhile.
    let mut log = open_log(&settings)?;
    let aside = match is_there || !settings.store.file.exists() {
        true => set_aside(&settings.store)?,
        false => None,
    };
    let mut checkpoint = None;
    let first = |replacement: &Replacement| {
        let from = json!({ "file": named(), "at": backup.site.at, "log": backup.site.log });
        checkpoint = Some(prepare_replacement(&settings, &mut log, replacement, who, Some(from))?);
        Ok::<_, anyhow::Error>(())
    };
    let restored = attest_store::import(&settings.store, || backup.open_store(), first);
    let (accepted, contents) = restored.with_context(|| match &aside {
        Some(aside) => format!("{}; the replaced store is in {}", named(), aside.display()),
        None => named(),
    })?;
    keep_checkpoint(&settings, checkpoint.as_deref());
    forget_recorded(&settings.store, &younger.recorded);
    if arguments.format.is_json() {
        output::json(&json!({ "store": accepted.now, "backup": backup.site.at, "replaced": aside, "younger": younger.json() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print_contents(&contents)?;
    print_accepted(accepted)?;
    if let Some(aside) = aside {
        output::done(format_args!("The replaced store is in {}.", aside.display()))?;
    }
    if !matches!(settings.store.engine, EngineSettings::Embedded) {
        output::done(
            "Next: at each other gateway, before its start: `attest-gateway store accept`. Its log may have further acts: `attest-gateway log show --decision admin --all --wide`.",
        )?;
    }
    younger.print()?;
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> anyhow::Result<Backup> {
    Backup::read(file).with_context(|| format!("{}: nothing was restored", file.display()))
}

/// Checks that one identifier of the backup is also one of this gateway, unless this has none.
fn check_site(settings: &Settings, backup: &BackupSite, another: bool) -> anyhow::Result<()> {
    let here = site(settings)?;
    let id = |site: &BackupSite| site.store.as_ref().map(|store| store.id.clone());
    let is_same = here.ca.iter().any(|ca| backup.ca.contains(ca))
        || here.log_key.is_some() && here.log_key == backup.log_key
        || id(&here).is_some() && id(&here) == id(backup);
    let is_unknown = here.ca.is_empty() && here.log_key.is_none() && here.store.is_none();
    ensure!(
        is_same || is_unknown || another,
        "this is a backup of another site, made by gateway {}: its MCS CA, log key and store are not those of this gateway. To restore it all the same, add --another-site",
        backup.gateway
    );
    Ok(())
}

/// Checks that a store may be restored; returns whether there is one to be replaced.
fn check_store(store: &StoreSettings, replace: bool) -> anyhow::Result<bool> {
    let is_embedded = matches!(store.engine, EngineSettings::Embedded);
    let found = match AnyStore::exists(store) {
        Ok(false) | Err(StoreError::Lost { .. } | StoreError::Unfinished(_)) => return Ok(false),
        // A command that only reads may have made it.
        Ok(true) if is_embedded && attest_store::export(store, &mut std::io::sink())?.contents.count == 0 => return Ok(false),
        Ok(true) => "exists".to_owned(),
        Err(error) if is_embedded => format!("does not open ({error})"),
        Err(error) => return Err(error.into()),
    };
    let place = attest_store::place(store);
    if !is_embedded {
        bail!(
            "the store {place} {found}: nothing was restored. If it is lost, stop all gateways, delete it (etcdctl del --prefix, or kubectl delete secret), and run the command again"
        );
    }
    ensure!(
        replace,
        "the store {place} {found}: nothing was restored. To replace it, and to keep its files aside, add --replace"
    );
    Ok(true)
}

/// Writes the log's key, if the state folder has none. With several gateways each has its own.
fn restore_log_key(settings: &Settings, backup: &Backup) -> anyhow::Result<()> {
    let path = settings.log_key();
    let Some(member) = backup.members.iter().find(|member| member.file == Path::new(LOG_KEY)) else {
        return Ok(());
    };
    let here = attest_log::replica_name(settings.checkpoints.name.as_deref());
    if !path.exists() && (here == backup.site.gateway || matches!(settings.store.engine, EngineSettings::Embedded)) {
        files::create_bytes(&path, PRIVATE, &member.content()?)?;
        return Ok(());
    }
    if path.exists() && Some(LogKey::read(&path)?.public()) != backup.site.log_key {
        output::print_note(format_args!(
            "{} is not the key of the backup, and was left unchanged: an audit requires the log of gateway {}",
            path.display(),
            backup.site.gateway
        ));
    }
    Ok(())
}

/// Records the acts that wait in the store that is replaced.
fn record_last_acts(settings: &Settings) -> anyhow::Result<()> {
    let store: Arc<dyn Store> = Arc::new(AnyStore::open(&settings.store)?);
    let signed = &settings.checkpoints;
    let signer = CheckpointSigner::new(LogKey::open(&settings.log_key())?, signed.name.as_deref(), signed.records);
    let blobs = Blobs::open(&settings.evidence())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (journal, _) = Journal::open(&settings.attestation_log(), signer, SegmentLimits::NEVER, blobs, Arc::new(()))?;
        let journal = with_store(journal, Arc::clone(&store));
        take(&journal, &*store, super::now()).await?;
        journal.checkpoint(super::now()).await?;
        Ok(())
    })
}

/// Opens the log, once the thread that wrote the last acts has closed it.
fn open_log(settings: &Settings) -> Result<CommandLog, JournalError> {
    let begun = Instant::now();
    loop {
        match CommandLog::open(&settings.attestation_log()) {
            Err(JournalError::InUse(_)) if begun.elapsed() < LOG_CLOSES_WITHIN => thread::sleep(Duration::from_millis(10)),
            opened => return opened,
        }
    }
}

/// Moves the files of an embedded store into a folder of the state folder; returns that, if there were any.
fn set_aside(store: &StoreSettings) -> anyhow::Result<Option<PathBuf>> {
    let EngineSettings::Embedded = store.engine else { return Ok(None) };
    let with = |suffix: &str| {
        let mut path = store.file.clone().into_os_string();
        path.push(suffix);
        PathBuf::from(path)
    };
    // The database comes last: without it the store is lost, and no start uses the others.
    let files: Vec<PathBuf> = ["-shm", "-wal", ""].map(with).into_iter().filter(|file| file.exists()).collect();
    if files.is_empty() {
        return Ok(None);
    }
    let (folder, time) = (files::folder(&store.file), rfc3339(super::now()).replace([':', '-'], ""));
    let names = (1..).map(|number: u32| match number {
        1 => folder.join(format!("replaced-{time}")),
        number => folder.join(format!("replaced-{time}-{number}")),
    });
    let free = { names }.find(|path| path.symlink_metadata().is_err());
    let aside = free.with_context(|| folder.display().to_string())?;
    make_private_folder(&aside).with_context(|| aside.display().to_string())?;
    for file in files {
        files::rename(&file, &aside.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(Some(aside))
}

/// Removes acts from the restored outbox that the log has recorded. Others are recorded at the next start.
fn forget_recorded(store: &StoreSettings, recorded: &BTreeSet<String>) {
    let forget = || -> anyhow::Result<()> {
        let store = AnyStore::open(store)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            store.recorded(recorded.iter().cloned().collect()).await?;
            store.keep_mark().await
        })?;
        Ok(())
    };
    if recorded.is_empty() {
        return;
    }
    if let Err(error) = forget() {
        output::print_note(format_args!(
            "the attestation log will list some acts twice, with equal ids: {error:#}"
        ));
    }
}

/// Writes the settings of a backup into the folder of a missing `gateway.toml`.
fn write_settings(config: &Path, backup: &Backup) -> anyhow::Result<()> {
    let in_folder = |member: &'_ BackupMember| member.file.strip_prefix(SETTINGS).map(Path::to_owned).ok();
    let mut members: Vec<(PathBuf, &BackupMember)> = backup
        .members
        .iter()
        .filter_map(|member| Some((in_folder(member)?, member)))
        .collect();
    let name = config.file_name().map(Path::new).unwrap_or(config);
    let Some(own) = members.iter().position(|(path, _)| path == name) else {
        bail!(
            "{} does not exist, and the backup has no such settings: create them, or use a backup of --with-settings",
            config.display()
        );
    };
    // It comes last: whoever is interrupted begins again.
    let own = members.remove(own);
    members.push(own);
    for (path, _) in &members {
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(is_below, "{}: not a path below the folder of settings", path.display());
    }
    let content = members.last().map(|(_, member)| member.content()).transpose()?.unwrap_or_default();
    let settings = Settings::parse(std::str::from_utf8(&content)?, config)?;
    ensure!(
        !rustix::process::geteuid().is_root() || settings.state.exists(),
        "{state} does not exist, and root cannot know which user it should belong to: `attest-gateway state create {state} --owner $(id -u attest-gateway)`. Then run the command again",
        state = settings.state.display()
    );
    let folder = files::folder(config);
    for (path, member) in members {
        write_member(&settings, folder, &path, member)?;
    }
    Ok(())
}

fn write_member(settings: &Settings, folder: &Path, path: &Path, member: &BackupMember) -> anyhow::Result<()> {
    let to = folder.join(path);
    let named = || to.display().to_string();
    let mut parents: Vec<&Path> = files::folder(&to).ancestors().take_while(|parent| !parent.exists()).collect();
    parents.reverse();
    for parent in parents {
        fs::create_dir(parent).with_context(named)?;
        fs::set_permissions(parent, fs::Permissions::from_mode(0o750)).with_context(named)?;
        super::owner::give(settings, parent)?;
    }
    let content = member.content()?;
    if to.symlink_metadata().is_ok() {
        let is_same = fs::read(&to).with_context(named)? == content;
        ensure!(is_same, "{} exists with other contents, and was not changed", to.display());
        return Ok(());
    }
    files::create_bytes(&to, member.mode & 0o777, &content)?;
    super::owner::give(settings, &to)
}
