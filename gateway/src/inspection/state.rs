//! Inspection of the private state, which only reads: the user who inspects may not be the user who serves.

use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use attest_log::{LogKey, NewerLog, is_written, lock_file, newer_log, newer_note, next_file};
use attest_store::settings::{EngineSettings, EtcdSettings};
use attest_store::{AnyStore, Embedded, EntryKind, StoreError, mark_file};
use attest_system::files::{self, folder, no_other_than_file, temporary_file};
use attest_system::newer_format::NewerFormat;
use rustix::fs::{Access, access};
use rustix::process::geteuid;

use super::{Depth, InspectionFinding};
#[cfg(feature = "cluster")]
use crate::cluster::attested_nodes::POSITION_VERSION;
use crate::credentials::seal::{SET_FILE, SET_VERSION, SealError, SealKeyRing};
use crate::settings::Settings;

/// File of the state folder with the configuration snapshot that was recorded last, and its version.
pub(crate) const SNAPSHOT_FILE: &str = "standing.json";
pub(crate) const SNAPSHOT_VERSION: u32 = 1;
/// Most that is read of that file, in bytes: some hundred pools and certificates.
pub(crate) const SNAPSHOT_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// Result of the check for a gateway that serves with this state already.
pub(super) enum StateUse {
    /// No gateway uses the state.
    Free,
    /// A gateway is writing the log.
    Served,
}

pub(super) fn inspect(settings: &Settings, depth: Depth, findings: &mut Vec<InspectionFinding>) -> StateUse {
    let folder = &settings.state;
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => ownership(settings, &metadata, findings),
        Ok(_) => {
            findings.push(fault(folder, "is no folder"));
            return StateUse::Free;
        }
        // A link to nowhere is there, and nothing can be made in its place.
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(folder).is_err() => {
            findings.push(to_be_made(folder));
            return StateUse::Free;
        }
        Err(error) => {
            findings.push(fault(folder, &error));
            return StateUse::Free;
        }
    }
    if let Err(error) = writable(folder) {
        findings.push(fault(folder, &format!("cannot be written to: {error}")));
    }
    store(settings, depth, findings);
    match seal(settings) {
        Ok(()) => {}
        Err(SealError::Version(newer)) => {
            let text = format!("the seal's keys in the store have {newer}");
            findings.push(InspectionFinding::Newer(text, newer));
        }
        Err(SealError::NewerFile { path, newer }) => findings.push(newer_file(&path, newer)),
        Err(error) => findings.push(InspectionFinding::Error(error.to_string())),
    }
    versions(settings, findings);
    let log_key = settings.log_key();
    if fs::symlink_metadata(&log_key).is_ok()
        && let Err(error) = LogKey::read(&log_key)
    {
        findings.push(InspectionFinding::Error(error.to_string()));
    }
    let evidence = settings.evidence();
    match writable(&evidence) {
        Err(error) if error.kind() != io::ErrorKind::NotFound || fs::symlink_metadata(&evidence).is_ok() => {
            findings.push(fault(&evidence, &format!("cannot be written to: {error}")));
        }
        _ => {}
    }
    in_the_way(settings, findings);
    log(&settings.attestation_log(), findings)
}

/// Checks the versions of the log and of the state's other files: a newer release may have written them.
fn versions(settings: &Settings, findings: &mut Vec<InspectionFinding>) {
    let log = settings.attestation_log();
    match newer_log(&log) {
        Ok(newer) => findings.extend(
            newer
                .into_iter()
                .chain(newer_note(&log))
                .map(|NewerLog { path, newer }| newer_file(&path, newer)),
        ),
        Err(error) => findings.push(fault(&log, &error)),
    }
    findings.extend(newer_documents(settings).map(|(path, newer)| newer_file(&path, newer)));
}

/// Returns the JSON files of the state that a newer release has written.
fn newer_documents(settings: &Settings) -> impl Iterator<Item = (PathBuf, NewerFormat)> {
    let files = [
        (settings.state.join(SNAPSHOT_FILE), SNAPSHOT_VERSION),
        (folder(&settings.store.file).join(SET_FILE), SET_VERSION.into()),
    ];
    #[cfg(feature = "cluster")]
    let files = files
        .into_iter()
        .chain([(settings.attested_nodes_note().with_added_extension("json"), POSITION_VERSION)]);
    files.into_iter().filter_map(|(path, known)| {
        // An error is reported by the code that uses the file.
        let text = files::read(&path, SNAPSHOT_LIMIT_BYTES).unwrap_or_default();
        NewerFormat::in_json("version", known.into(), &text).map(|newer| (path, newer))
    })
}

/// Returns the files of the state that a newer release has written and that a gateway does without: the seal's keys and caches, not the
/// store and the log.
#[must_use]
pub fn newer_files(settings: &Settings) -> Vec<PathBuf> {
    let seal = settings.seal_key();
    let seal = SealKeyRing::is_newer(&seal).then_some(seal);
    newer_documents(settings).map(|(path, _)| path).chain(seal).collect()
}

fn newer_file(path: &Path, newer: NewerFormat) -> InspectionFinding {
    InspectionFinding::Newer(format!("{} has {newer}", path.display()), newer)
}

/// Checks the other paths that `serve` and its store make, rename or remove, and do not read: only a file may be there.
fn in_the_way(settings: &Settings, findings: &mut Vec<InspectionFinding>) {
    let mut files = vec![next_file(&settings.attestation_log())];
    if settings.store.engine == EngineSettings::Embedded {
        files.extend(Embedded::sqlite_files(&settings.store.file));
    }
    // What is made at the first start is written under another name until it is whole.
    let mut made = vec![mark_file(&settings.store.file), settings.log_key()];
    made.extend(settings.store_key_file.is_none().then(|| settings.seal_key()));
    made.retain(|file| fs::symlink_metadata(file).is_err());
    files.extend(made.iter().filter_map(|file| temporary_file(file)));
    for file in files {
        findings.extend(no_other_than_file(&file).err().map(|error| fault(&file, &error)));
    }
}

/// Checks that the seal's keys, or the key that encrypts them in the store, can be read.
fn seal(settings: &Settings) -> Result<(), SealError> {
    if let Some(key_file) = &settings.store_key_file {
        SealKeyRing::check_key_file(key_file)?;
        // On etcd `serve` alone tries it.
        if settings.store.engine != EngineSettings::Embedded {
            return Ok(());
        }
        // What is wrong with the store itself is said beside this.
        return match Embedded::peek(&settings.store.file, EntryKind::SealKey, SealKeyRing::SHARED_ENTRY) {
            Ok(Some((store, entry))) => SealKeyRing::check_shared(&entry, &store, key_file),
            _ => Ok(()),
        };
    }
    let seal_key = settings.seal_key();
    // A link to nowhere is there.
    match fs::symlink_metadata(&seal_key).is_ok() {
        true => SealKeyRing::open(&seal_key).map(drop),
        false => Ok(()),
    }
}

/// Checks that the store opens, with any engine.
fn store(settings: &Settings, depth: Depth, findings: &mut Vec<InspectionFinding>) {
    let (place, looked) = match &settings.store.engine {
        EngineSettings::Embedded => (settings.store.file.display().to_string(), AnyStore::exists(&settings.store)),
        EngineSettings::Etcd(etcd) => {
            findings.extend(insecure(etcd).map(InspectionFinding::Warning));
            (format!("etcd, {}", etcd.place()), AnyStore::exists(&settings.store))
        }
        EngineSettings::Kubernetes(kubernetes) => (kubernetes.place(), AnyStore::exists(&settings.store)),
    };
    match looked {
        Ok(true) => findings.push(InspectionFinding::Good(format!("{place} opens"))),
        Ok(false) => findings.push(InspectionFinding::Good(format!(
            "{place} does not exist yet; the gateway creates it at its start"
        ))),
        // `serve` waits for it, and says so.
        Err(error) if error.is_unanswered() && matches!(depth, Depth::Start) => return,
        Err(error) if error.is_unanswered() => return findings.push(InspectionFinding::Degraded(format!("{place}: {error}"))),
        Err(StoreError::Schema { path, newer }) => {
            return findings.push(newer_file(&path, newer));
        }
        Err(error) => return findings.push(InspectionFinding::Error(format!("{place}: {error}"))),
    }
    match AnyStore::health(&settings.store) {
        Ok(health) => {
            findings.extend(health.good.into_iter().map(InspectionFinding::Good));
            findings.extend(health.warnings.into_iter().map(InspectionFinding::Warning));
        }
        Err(error) => findings.push(InspectionFinding::Error(format!("{place}: {error}"))),
    }
}

/// Returns a warning if etcd is used without TLS: an attacker on the path can read the endorsements, and write others.
fn insecure(etcd: &EtcdSettings) -> Option<String> {
    let is_here = |endpoint: &String| {
        ["http://127.0.0.1:", "http://[::1]:", "http://localhost:"]
            .iter()
            .any(|here| endpoint.starts_with(here))
    };
    let insecure = !etcd.is_encrypted() && !etcd.endpoints.iter().all(is_here);
    insecure.then(|| {
        format!(
            "etcd, {}: without TLS, anyone on the network path can read and change the store: use https",
            etcd.place()
        )
    })
}

/// Checks that other users cannot access the state, and that all of it belongs to one user.
fn ownership(settings: &Settings, folder: &Metadata, findings: &mut Vec<InspectionFinding>) {
    let (path, mode) = (settings.state.display(), folder.mode() & 0o777);
    if mode & 0o077 != 0 {
        findings.push(if folder.uid() == geteuid().as_raw() {
            InspectionFinding::Warning(format!("{path} has mode {mode:04o}: the gateway sets it to 0700 at its start"))
        } else if mode & 0o007 != 0 {
            let problem = format!("mode {mode:04o} lets all users read keys and log, and this user cannot change it");
            fault(
                &settings.state,
                &format!("{problem}: run chmod 0700; in a volume, set `state` to a folder below it"),
            )
        } else {
            InspectionFinding::Warning(format!(
                "{path} has mode {mode:04o}, which lets a group read keys and log: run chmod 0700"
            ))
        });
    }
    if let Ok(store) = fs::metadata(&settings.store.file)
        && store.uid() != folder.uid()
    {
        findings.push(InspectionFinding::Warning(format!(
            "{} belongs to user {}, its folder to user {}: run the gateway as the first user, or give both to one user with chown -R",
            settings.store.file.display(),
            store.uid(),
            folder.uid()
        )));
    }
}

/// Reports whether a folder that does not exist could be made.
fn to_be_made(folder: &Path) -> InspectionFinding {
    let above = folder.ancestors().skip(1).map(|above| match above.as_os_str().is_empty() {
        true => Path::new("."),
        false => above,
    });
    let mut there = above.filter(|above| fs::symlink_metadata(above).is_ok());
    match there.next().map(writable) {
        Some(Ok(())) => InspectionFinding::Good(format!(
            "{} does not exist yet; the gateway creates it at its start",
            folder.display()
        )),
        Some(Err(error)) => fault(folder, &format!("does not exist, and cannot be created: {error}")),
        None => fault(folder, "does not exist, and cannot be created"),
    }
}

/// Checks that files can be made in a folder.
fn writable(folder: &Path) -> io::Result<()> {
    if !fs::metadata(folder)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Checks that a file that does not exist could be made: at the target, if the path is a link. The folder itself was checked.
fn creatable(path: &Path) -> io::Result<()> {
    let Ok(target) = fs::read_link(path) else { return Ok(()) };
    let target = path.parent().unwrap_or(Path::new("")).join(target);
    writable(target.parent().unwrap_or(Path::new("/")))
}

/// Checks that the attestation log could be written, and whether a gateway is writing it.
fn log(path: &Path, findings: &mut Vec<InspectionFinding>) -> StateUse {
    if is_written(path) {
        return StateUse::Served;
    }
    for path in [path, &lock_file(path)] {
        let opened = no_other_than_file(path).and_then(|()| OpenOptions::new().read(true).append(true).open(path));
        let writable = match opened {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => creatable(path),
            Err(error) => Err(error),
        };
        findings.extend(writable.err().map(|error| fault(path, &with_owner(path, &error))));
    }
    StateUse::Free
}

/// Returns the text of the error, with the file's owner if that may be the cause.
fn with_owner(path: &Path, error: &io::Error) -> String {
    match fs::metadata(path) {
        Ok(found) if error.kind() == io::ErrorKind::PermissionDenied => {
            let (owner, me) = (found.uid(), geteuid().as_raw());
            format!("{error}: it belongs to user {owner}, but this is user {me}: give it to the gateway's user with chown")
        }
        _ => error.to_string(),
    }
}

fn fault(path: &Path, problem: &(impl std::fmt::Display + ?Sized)) -> InspectionFinding {
    InspectionFinding::Error(format!("{}: {problem}", path.display()))
}
