//! The command `attest-gateway backup`: writes a snapshot of the store, and what else cannot be made again, into one file.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use attest_command_line::into_file;
use attest_gateway::settings::Settings;
use attest_log::{LogKey, log_head, replica_name};
use attest_store::{ExpectedStore, Exported};
use attest_system::files;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::backup_file::{BackupHeader, BackupMember, BackupSite, BackupWriter, FORMAT, MEMBER_LIMIT_BYTES, VERSION, is_backup};
use super::output::{self, Output, ReaderState, print_note};
use super::owner;

/// Name of the log's key in a backup.
pub(super) const LOG_KEY: &str = "log.key";
/// Folder of the settings in a backup.
pub(super) const SETTINGS: &str = "settings";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  attest-gateway backup /var/backups/attest-gateway/$(date +%F).backup\n\nFILE gets mode 0600. It holds the store and log.key: protect it like the state folder. With --with-settings it also holds all keys and\nsecrets of the settings' folder.\n\nThe attestation log and evidence/ are not in it. Tickets and challenges are invalid after a restore, so the seal is not in it either.\n\nTo restore it: attest-gateway restore FILE"
)]
pub(crate) struct Arguments {
    /// New file for the backup.
    file: PathBuf,
    /// Include the folder of gateway.toml: tls/, pools/, ek-roots/, store.key and all other files in it.
    #[arg(long)]
    with_settings: bool,
}

pub(crate) fn run(config: &Path, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let settings = Settings::load(config)?;
    let file = &arguments.file;
    ensure!(
        file.symlink_metadata().is_err(),
        "{} exists and was not changed: name another file",
        file.display()
    );
    let (site, members) = owner::acting(&settings, || {
        // Before the snapshot: later lines are read again at a restore.
        let site = site(&settings)?;
        let mut members = log_key(&settings)?;
        if arguments.with_settings {
            members.extend(settings_files(config, &settings, file)?);
        }
        Ok((site, members))
    })?;
    // The file is the caller's: it may be in a folder of root's.
    let Exported { store, contents, .. } = into_file(file, |output| owner::acting(&settings, || write(output, site, &members, &settings)))?;
    let size = fs::metadata(file).with_context(|| file.display().to_string())?.len();
    output::done(format_args!("{}: wrote {size} bytes", file.display()))?;
    output::done(format_args!("store:   {store}"))?;
    super::store::print_contents(&contents)?;
    Ok(ExitCode::SUCCESS)
}

fn write(output: &mut Output<File>, site: BackupSite, members: &[BackupMember], settings: &Settings) -> anyhow::Result<Exported> {
    let mut backup = BackupWriter::new(OutputWriter(output));
    backup.line(&BackupHeader {
        format: FORMAT.to_owned(),
        version: VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        site,
    })?;
    for member in members {
        backup.line(member)?;
    }
    let exported = attest_store::export(&settings.store, &mut backup)?;
    backup.finish()?;
    Ok(exported)
}

/// Returns the identifiers of the gateway of these settings.
pub(super) fn site(settings: &Settings) -> anyhow::Result<BackupSite> {
    let (key, log) = (settings.log_key(), settings.attestation_log());
    // A CA that the cluster has not given yet, or that is damaged, identifies nothing.
    let ca = files::read(&settings.tls.ca, MEMBER_LIMIT_BYTES).unwrap_or_default();
    let ca = CertificateDer::pem_slice_iter(&ca).filter_map(Result::ok);
    let known = ExpectedStore::load(&settings.store.file).ok();
    Ok(BackupSite {
        at: super::now(),
        gateway: replica_name(settings.checkpoints.name.as_deref()),
        store: known.and_then(|known| known.file.or(known.log)),
        log_key: match key.exists() {
            true => Some(LogKey::read(&key)?.public()),
            false => None,
        },
        log: match log.exists() {
            true => log_head(&log).with_context(|| log.display().to_string())?,
            false => None,
        },
        ca: ca.map(|der| HEXLOWER.encode(digest(&SHA256, &der).as_ref())).collect(),
    })
}

fn log_key(settings: &Settings) -> anyhow::Result<Vec<BackupMember>> {
    let path = settings.log_key();
    match path.exists() {
        true => Ok(vec![member(&path, LOG_KEY.into())?]),
        // No gateway has served yet.
        false => Ok(Vec::new()),
    }
}

fn member(path: &Path, name: PathBuf) -> anyhow::Result<BackupMember> {
    let named = || path.display().to_string();
    let content = files::read(path, MEMBER_LIMIT_BYTES).with_context(named)?;
    let mode = fs::metadata(path).with_context(named)?.permissions().mode() & 0o777;
    Ok(BackupMember::new(name, mode, &content))
}

/// Reads all files of the settings' folder, without the state folder and the backup itself.
fn settings_files(config: &Path, settings: &Settings, backup: &Path) -> anyhow::Result<Vec<BackupMember>> {
    let folder = fs::canonicalize(files::folder(config)).with_context(|| config.display().to_string())?;
    let state = fs::canonicalize(&settings.state).ok();
    let backups = fs::canonicalize(files::folder(backup)).ok();
    // Each folder once, whatever links lead to it. Backups of backups would grow with each.
    let mut known: BTreeSet<PathBuf> = [Some(folder.clone()), state, backups].into_iter().flatten().collect();
    let (mut left, mut members) = (vec![folder.clone()], Vec::new());
    while let Some(next) = left.pop() {
        let named = || next.display().to_string();
        for entry in fs::read_dir(&next).with_context(named)? {
            let path = entry.with_context(named)?.path();
            let Some(kind) = usable(&path)? else {
                print_note(format_args!(
                    "{} is not in the backup: no regular file, or a backup itself",
                    path.display()
                ));
                continue;
            };
            if kind.is_dir() {
                if known.insert(fs::canonicalize(&path).with_context(|| path.display().to_string())?) {
                    left.push(path);
                }
                continue;
            }
            let name = path.strip_prefix(&folder)?.to_owned();
            members.push(member(&path, Path::new(SETTINGS).join(name))?);
        }
    }
    members.sort_by(|one, other| one.file.cmp(&other.file));
    Ok(members)
}

/// Returns the kind of an entry of the settings' folder that a backup can have; `None` of links to nowhere, such as an editor's locks, of
/// devices and other special files, and of backups, which would grow with each other.
fn usable(path: &Path) -> anyhow::Result<Option<fs::FileType>> {
    let kind = match fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    if kind.is_file() && is_backup(path).with_context(|| path.display().to_string())? {
        return Ok(None);
    }
    Ok((kind.is_file() || kind.is_dir()).then_some(kind))
}

/// An [`Output`] as a writer.
struct OutputWriter<'o>(&'o mut Output<File>);

impl Write for OutputWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.put(bytes).map_err(io::Error::other)? {
            ReaderState::There => Ok(bytes.len()),
            ReaderState::Gone => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map(drop).map_err(io::Error::other)
    }
}
