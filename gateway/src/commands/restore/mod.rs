//! The command `attest-gateway restore`: puts a backup in the place of a lost store, and lists the acts to repeat.

mod settings_in_backup;
mod younger;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use attest_command_line::visible;
use attest_gateway::inspection::newer_files;
use attest_gateway::settings::Settings;
use attest_log::admin::{By, Verb};
use attest_log::{Blobs, CheckpointSigner, CommandLog, Journal, JournalError, LogKey, SegmentLimits, is_written};
use attest_recording::{take, with_store};
use attest_store::settings::{EngineSettings, StoreSettings};
use attest_store::{AcceptedStore, AnyStore, Contents, ExpectedStore, Replacement, Store, StoreError};
use attest_system::clock::rfc3339;
use attest_system::files::{self, PRIVATE, make_private_folder};
use serde_json::json;
use zeroize::Zeroizing;

use super::backup::{LOG_KEY, site};
use super::backup_file::{Backup, BackupSite};
use super::store::{keep_checkpoint, prepare_replacement, print_accepted, print_contents};
use super::{OutputOption, output, owner};
use settings_in_backup::SettingsInBackup;
use younger::YoungerActs;

/// Longest wait for the end of the thread that writes the log.
const LOG_CLOSES_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: the store is lost\n  systemctl stop attest-gateway\n  attest-gateway restore /var/backups/attest-gateway/2026-11-28.backup\n  systemctl start attest-gateway\n\nThe command checks the whole file first, and changes nothing if anything is wrong. If it is interrupted, run it again.\n\nThe restored store gets a new identity: all challenges and tickets become invalid. The attestation log continues if it is in the state\nfolder; otherwise a new chain starts with the same key. Settings in the backup are written only if gateway.toml is missing.\n\nThe command lists the administrative acts in the log that the backup lacks. Repeat them in order.\n\nExit code 2: a newer release wrote the backup."
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
    // Before another user acts.
    let by = By::this_process();
    let file = &arguments.file;
    let backup = Backup::read(file).with_context(|| format!("{}: nothing was restored", file.display()))?;
    let new = match config.symlink_metadata().is_err() {
        true => Some(SettingsInBackup::find(config, &backup).with_context(|| file.display().to_string())?),
        false => None,
    };
    let settings = match &new {
        Some(new) => new.settings.clone(),
        None => Settings::load(config)?,
    };
    let checked = owner::acting(&settings, || check_site(&settings, &backup.site, arguments.another_site));
    checked.with_context(|| file.display().to_string())?;
    if let Some(new) = &new {
        new.write_most()?;
    }
    let report = owner::acting(&settings, || restore(&settings, &backup, arguments, by))?;
    if let Some(new) = &new {
        new.write_own()?;
    }
    report.print(&settings, &backup, new.is_some(), arguments.format)?;
    Ok(ExitCode::SUCCESS)
}

/// Result of a restore.
struct RestoreReport {
    accepted: AcceptedStore,
    contents: Contents,
    /// Folder with the files of the replaced store.
    replaced: Option<PathBuf>,
    younger: YoungerActs,
}

fn restore(settings: &Settings, backup: &Backup, arguments: &Arguments, by: By) -> anyhow::Result<RestoreReport> {
    let named = || arguments.file.display().to_string();
    let log = settings.attestation_log();
    if is_written(&log) {
        return Err(JournalError::InUse(log).into());
    }
    let is_there = check_store(&settings.store, arguments.replace)?;
    make_private_folder(&settings.state).with_context(|| settings.state.display().to_string())?;
    restore_log_key(settings, backup)?;
    let knows_last_acts = match is_there {
        true => last_acts_are_recorded(settings)?,
        false => !was_there(&settings.store),
    };
    let younger = YoungerActs::find(&log, backup, knows_last_acts).with_context(|| log.display().to_string())?;
    // No gateway serves meanwhile.
    let mut log = open_log(settings)?;
    let aside = set_aside(settings, is_there || !settings.store.file.exists())?;
    let (mut checkpoint, mut is_begun) = (None, false);
    let first = |replacement: &Replacement| {
        is_begun = true;
        let from = json!({ "file": named(), "at": backup.site.at, "log": backup.site.log });
        let who = (Verb::StoreRestore, by);
        checkpoint = Some(prepare_replacement(settings, &mut log, replacement, who, Some(from))?);
        Ok::<_, anyhow::Error>(())
    };
    let restored = attest_store::import(&settings.store, || Ok(backup.store()), first);
    let (accepted, contents) = match (restored, &aside) {
        (Ok(restored), _) => restored,
        (Err(error), None) => return Err(error.context(named())),
        (Err(error), Some(aside)) if is_begun => {
            return Err(error.context(format!(
                "{}: run the command again; the replaced store is in {}",
                named(),
                aside.folder.display()
            )));
        }
        (Err(error), Some(aside)) => {
            let lost = || format!("{error:#}, and the store cannot be put back from {}", aside.folder.display());
            aside.put_back(settings).with_context(lost)?;
            return Err(error.context(format!("{}: nothing was restored", named())));
        }
    };
    keep_checkpoint(settings, checkpoint.as_deref());
    forget_recorded(&settings.store, &younger.recorded);
    Ok(RestoreReport {
        accepted,
        contents,
        replaced: aside.map(|aside| aside.folder),
        younger,
    })
}

impl RestoreReport {
    fn print(self, settings: &Settings, backup: &Backup, wrote_settings: bool, format: OutputOption) -> anyhow::Result<()> {
        let Self {
            accepted,
            contents,
            replaced,
            younger,
        } = self;
        if format.is_json() {
            return output::json(
                &json!({ "store": accepted.now, "backup": backup.site.at, "replaced": replaced, "younger": younger.json() }),
            );
        }
        if wrote_settings {
            let folder = files::folder(&settings.file);
            output::done(format_args!(
                "{}: wrote the settings, with all keys that the backup has",
                folder.display()
            ))?;
        }
        print_contents(&contents)?;
        print_accepted(accepted)?;
        if let Some(aside) = replaced {
            output::done(format_args!("The replaced store is in {}.", aside.display()))?;
        }
        if !matches!(settings.store.engine, EngineSettings::Embedded) {
            output::done(
                "Next: at each other gateway, before its start: `attest-gateway store accept`. Its log may have further acts: `attest-gateway log show --decision admin --all --wide`.",
            )?;
        }
        younger.print()
    }
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
        visible(&backup.gateway)
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
        Err(error @ StoreError::Schema { .. }) if is_embedded && !replace => {
            return Err(anyhow::Error::from(error)
                .context("nothing was restored; to replace the store, and to keep its files aside, add --replace"));
        }
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
    let content = Zeroizing::new(member.content()?);
    let key = LogKey::parse(&content, &member.file).context("the backup is damaged")?;
    ensure!(
        Some(key.public()) == backup.site.log_key,
        "the backup has another log.key than its first line says"
    );
    let here = attest_log::replica_name(settings.checkpoints.name.as_deref());
    if !path.exists() && (here == backup.site.gateway || matches!(settings.store.engine, EngineSettings::Embedded)) {
        files::create_bytes(&path, PRIVATE, &content)?;
        return Ok(());
    }
    if path.exists() && Some(LogKey::read(&path)?.public()) != backup.site.log_key {
        output::print_note(format_args!(
            "{} is not the key of the backup, and was left unchanged: an audit requires the log of gateway {}",
            path.display(),
            visible(&backup.site.gateway)
        ));
    }
    Ok(())
}

/// Returns whether there was a store once: the acts that waited in it are lost with it.
fn was_there(store: &StoreSettings) -> bool {
    ExpectedStore::load(&store.file).map_or(true, |expected| {
        expected.file.is_some() || expected.log.is_some() || !expected.traces.is_empty()
    })
}

/// Records the acts that wait in the store that is replaced; returns whether that was possible. On a full disk nothing is replaced.
fn last_acts_are_recorded(settings: &Settings) -> anyhow::Result<bool> {
    let Err(error) = record_last_acts(settings) else { return Ok(true) };
    if files::is_disk_full(&settings.attestation_log()) {
        return Err(error.context("the disk is full, and the log cannot take the last acts of the store: nothing was restored"));
    }
    output::print_note(format_args!(
        "cannot record the last acts of the replaced store in the attestation log, which may lack them: {}",
        attest_command_line::in_full(&error)
    ));
    Ok(false)
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
        let journal = with_store(journal, &store);
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

/// Returns the files of an embedded store. The database comes last: without it the store is lost, and no start uses the others.
fn store_files(store: &StoreSettings) -> Vec<PathBuf> {
    let with = |suffix: &str| {
        let mut path = store.file.clone().into_os_string();
        path.push(suffix);
        PathBuf::from(path)
    };
    match store.engine {
        EngineSettings::Embedded => ["-shm", "-wal", ""].map(with).into(),
        _ => Vec::new(),
    }
}

/// Files that were moved into a folder of the state folder.
struct FilesAside {
    folder: PathBuf,
    /// Their former paths.
    moved: Vec<PathBuf>,
}

impl FilesAside {
    fn path(&self, former: &Path) -> PathBuf {
        self.folder.join(former.file_name().unwrap_or_default())
    }

    /// Puts all files back, in the place of an incomplete store.
    fn put_back(&self, settings: &Settings) -> anyhow::Result<()> {
        for file in store_files(&settings.store).into_iter().filter(|file| file.exists()) {
            files::remove(&file)?;
        }
        for former in &self.moved {
            files::rename(&self.path(former), former)?;
        }
        Ok(fs::remove_dir(&self.folder)?)
    }
}

/// Moves files aside: those of an embedded store, and those that a newer release has written, which this one makes again.
fn set_aside(settings: &Settings, with_store: bool) -> anyhow::Result<Option<FilesAside>> {
    let mut moved = newer_files(settings);
    if with_store {
        moved.extend(store_files(&settings.store).into_iter().filter(|file| file.exists()));
    }
    if moved.is_empty() {
        return Ok(None);
    }
    let (folder, time) = (files::folder(&settings.store.file), rfc3339(super::now()).replace([':', '-'], ""));
    let names = (1..).map(|number: u32| match number {
        1 => folder.join(format!("replaced-{time}")),
        number => folder.join(format!("replaced-{time}-{number}")),
    });
    let free = { names }.find(|path| path.symlink_metadata().is_err());
    let folder = free.with_context(|| folder.display().to_string())?;
    make_private_folder(&folder).with_context(|| folder.display().to_string())?;
    let aside = FilesAside { folder, moved };
    for file in &aside.moved {
        files::rename(file, &aside.path(file))?;
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
