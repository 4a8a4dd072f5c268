//! Watching of folders: which of them change, in which files are being written, and when they are quiet again. Its users, the modules
//! `server`, `pools`, `pki` and `cloud`, decide what to do with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::future::pending;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::sync::{mpsc, oneshot};

/// Time without changes before files are read: a person or program that changes several files at once is rarely slower.
pub const SETTLE: Duration = Duration::from_millis(200);
/// Longest wait for quiet in a folder where something always changes.
pub const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// Most links that are followed, as in the kernel.
const LINK_LIMIT: usize = 40;
/// Room for events, in bytes: some hundred at once; more wait in the kernel.
const EVENT_BUFFER_BYTES: usize = 16 * 1024;

/// Returns a mask of everything that changes the contents of a folder, and of writes in it.
fn events() -> WatchMask {
    WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVED_FROM
        | WatchMask::MOVED_TO
        | WatchMask::MODIFY
        | WatchMask::ATTRIB
        | WatchMask::CLOSE_WRITE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR
}

/// Watched folders, kept current from the kernel's events.
#[derive(Debug)]
struct FolderEvents {
    watches: Watches,
    watched: BTreeMap<PathBuf, WatchDescriptor>,
    /// Files that are being written, by their folder's watch.
    writing: BTreeSet<(i32, OsString)>,
}

impl FolderEvents {
    /// Watches these folders and no others. Returns whether there were new ones.
    fn set(&mut self, folders: BTreeSet<PathBuf>) -> bool {
        let gone: Vec<PathBuf> = self.watched.keys().filter(|folder| !folders.contains(*folder)).cloned().collect();
        for folder in gone {
            // A folder with two paths has one watch.
            if let Some(watch) = self
                .watched
                .remove(&folder)
                .filter(|watch| !self.watched.values().any(|other| other == watch))
            {
                // The kernel has dropped it already if the folder is gone.
                drop(self.watches.remove(watch));
            }
        }
        let mut new = false;
        for folder in folders {
            match self.watches.add(&folder, events()) {
                Ok(watch) => new |= self.watched.insert(folder, watch.clone()) != Some(watch),
                Err(error) => tracing::warn!("cannot watch {} for changes: {error}; send SIGHUP to reload it", folder.display()),
            }
        }
        new
    }

    /// Processes an event of the kernel.
    fn event(&mut self, watch: &WatchDescriptor, name: Option<OsString>, mask: EventMask) {
        let id = watch.get_watch_descriptor_id();
        if mask.contains(EventMask::MODIFY) {
            self.writing.insert((id, name.unwrap_or_default()));
        } else if mask.intersects(EventMask::CLOSE_WRITE | EventMask::DELETE | EventMask::MOVED_FROM) {
            self.writing.remove(&(id, name.unwrap_or_default()));
        } else if mask.contains(EventMask::IGNORED) {
            self.watched.retain(|_, other| other != watch);
            self.writing.retain(|(other, _)| *other != id);
        } else if mask.contains(EventMask::Q_OVERFLOW) {
            // Who closed a file meanwhile is not known: its end must not be waited for.
            self.writing.clear();
        }
    }

    /// Returns the folders in which no file is being written.
    fn view(&self) -> Quiet {
        let busy = |watch: &WatchDescriptor| self.writing.iter().any(|(id, _)| *id == watch.get_watch_descriptor_id());
        Quiet(
            self.watched
                .iter()
                .filter(|(_, watch)| !busy(watch))
                .map(|(folder, _)| folder.clone())
                .collect(),
        )
    }
}

/// Watched folders in which, as far as is known, no file is being written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quiet(BTreeSet<PathBuf>);

impl Quiet {
    /// Returns whether no file is being written in any of these.
    #[must_use]
    pub fn covers(&self, folders: &BTreeSet<PathBuf>) -> bool {
        folders.is_subset(&self.0)
    }
}

/// Folders, with the stream of the kernel's events about them.
#[derive(Debug)]
pub struct WatchedFolders {
    stream: EventStream<Vec<u8>>,
    folders: FolderEvents,
}

impl WatchedFolders {
    /// Starts to watch these folders.
    ///
    /// # Errors
    /// If the kernel cannot watch anything.
    pub fn open(folders: BTreeSet<PathBuf>) -> std::io::Result<Self> {
        let stream = Inotify::init()?.into_event_stream(vec![0; EVENT_BUFFER_BYTES])?;
        let mut watched = FolderEvents {
            watches: stream.watches(),
            watched: BTreeMap::new(),
            writing: BTreeSet::new(),
        };
        watched.set(folders);
        Ok(Self { stream, folders: watched })
    }
}

/// Waits for quiet before files are read.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// In a folder that was not watched before.
    pub new: Duration,
    /// Longest wait where something always changes. `None`: the reader itself checks in which folders files are being written.
    pub limit: Option<Duration>,
}

/// Result of reading files again at SIGHUP, by the names of their settings or pools.
#[derive(Debug, Default)]
pub struct ReloadReport {
    pub changed: Vec<String>,
    /// Broken ones, whose last good state stays in use.
    pub broken: Vec<String>,
}

/// Request of the administrator, who has sent SIGHUP, to read files now.
#[derive(Debug)]
pub struct ReloadRequest(oneshot::Sender<ReloadReport>);

/// Requests for one kind of files.
pub type ReloadRequests = mpsc::Receiver<ReloadRequest>;

impl ReloadRequest {
    /// Returns a request, and its answer when it comes.
    #[must_use]
    pub fn new() -> (Self, oneshot::Receiver<ReloadReport>) {
        let (sender, answer) = oneshot::channel();
        (Self(sender), answer)
    }

    /// Sends the result to the task that waits for the reload.
    pub fn done(self, report: ReloadReport) {
        // Whoever asked may have given up.
        drop(self.0.send(report));
    }
}

/// Reason for which files are to be read.
#[derive(Debug)]
pub enum Wake {
    /// Something may have changed, and the folders are quiet again.
    Quiet,
    /// The administrator has sent SIGHUP.
    Signal(ReloadRequest),
    /// It is the time that was asked for.
    Due,
}

/// Files that are watched until they are quiet.
#[derive(Debug)]
pub struct Settling {
    /// `None`: nothing is known of them.
    files: Option<WatchedFolders>,
    requests: ReloadRequests,
    pace: Pace,
    settled: Option<Instant>,
    limit: Option<Instant>,
}

impl Settling {
    /// Begins; `requests` come at the administrator's signal. What has changed before is seen at the first quiet.
    #[must_use]
    pub fn new(files: Option<WatchedFolders>, requests: ReloadRequests, pace: Pace) -> Self {
        Self {
            files,
            requests,
            pace,
            settled: Some(Instant::now() + pace.new),
            limit: None,
        }
    }

    /// Waits until the files are to be read, or until `due`.
    pub async fn wake(&mut self, due: Option<Instant>) -> Wake {
        loop {
            tokio::select! {
                // What the kernel has told already comes before anything is read.
                biased;
                event = next(&mut self.files) => self.note(event),
                request = received(&mut self.requests) => return Wake::Signal(request),
                () = at(self.settled) => {
                    (self.settled, self.limit) = (None, None);
                    return Wake::Quiet;
                }
                () = at(due) => return Wake::Due,
            }
        }
    }

    fn note(&mut self, event: Option<FileEvent>) {
        match (event, &mut self.files) {
            (Some((watch, name, mask)), Some(files)) => files.folders.event(&watch, name, mask),
            _ => self.files = None,
        }
        let settled = Instant::now() + SETTLE;
        let limit = self
            .pace
            .limit
            .map(|limit| *self.limit.get_or_insert_with(|| Instant::now() + limit));
        self.settled = Some(limit.map_or(settled, |limit| limit.min(settled)));
    }

    /// Watches these folders from now on. Waits for quiet in new ones, because no event reports earlier changes there.
    pub fn set(&mut self, folders: BTreeSet<PathBuf>) {
        if self.files.as_mut().is_some_and(|files| files.folders.set(folders)) {
            self.settled = Some(Instant::now() + self.pace.new);
        }
    }

    /// Returns the folders in which no file is being written, or `None` if nothing is known of that.
    #[must_use]
    pub fn quiet(&self) -> Option<Quiet> {
        self.files.as_ref().map(|files| files.folders.view())
    }
}

/// A watch, the name of a file in its folder, and what has happened to that.
type FileEvent = (WatchDescriptor, Option<OsString>, EventMask);

/// Returns the kernel's next event, or `None` when the watch has ended. Never completes if nothing is watched.
async fn next(files: &mut Option<WatchedFolders>) -> Option<FileEvent> {
    let Some(files) = files else { return pending().await };
    match files.stream.next().await {
        Some(Ok(event)) => Some((event.wd, event.name, event.mask)),
        Some(Err(error)) => {
            tracing::warn!("stopped watching files for changes: {error}; send SIGHUP to reload them");
            None
        }
        None => None,
    }
}

/// Completes at the administrator's signal.
async fn received(requests: &mut ReloadRequests) -> ReloadRequest {
    match requests.recv().await {
        Some(request) => request,
        None => pending().await,
    }
}

/// Completes at that time; never, without one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => pending().await,
    }
}

/// Returns the folders in which a change may change the contents of these files: their own, and those of every link on the way to them. A
/// folder that does not exist is replaced by the one that it would be made in.
pub fn folders_of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    for path in paths {
        follow(path, &mut folders);
    }
    let there = |folder: &PathBuf| folder.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned);
    folders.iter().filter_map(there).collect()
}

/// Adds the folder of a file, and the folders of all links that lead to it. Kubernetes changes a volume by pointing its link `..data`
/// elsewhere.
fn follow(path: &Path, folders: &mut BTreeSet<PathBuf>) {
    let Ok(path) = std::path::absolute(path) else { return };
    folders.extend(path.parent().map(Path::to_owned));
    let mut rest: Vec<PathBuf> = parts(&path);
    let mut done = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == Path::new("..") {
            done.pop();
            continue;
        }
        let here = done.join(&part);
        match fs::read_link(&here) {
            Ok(target) if links < LINK_LIMIT => {
                links += 1;
                folders.insert(done.clone());
                if target.is_absolute() {
                    done = PathBuf::from("/");
                }
                rest.extend(parts(&target));
            }
            _ => done = here,
        }
    }
    folders.extend(done.parent().map(Path::to_owned));
}

/// Returns the parts of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let parts = path
        .components()
        .rev()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| PathBuf::from(part.as_os_str())).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn watches_every_folder_along_a_symlink_path() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let path = |name: &str| root.join(name);
        fs::create_dir_all(path("volume/..1")).unwrap();
        fs::create_dir_all(path("gateway")).unwrap();
        fs::write(path("volume/..1/tls.crt"), "").unwrap();
        symlink("..1", path("volume/..data")).unwrap();
        symlink("..data/tls.crt", path("volume/tls.crt")).unwrap();
        symlink("../volume", path("gateway/tls")).unwrap();
        symlink("loop", path("loop")).unwrap();
        let check = |name: &str, expected: &[&str]| {
            let mut found = BTreeSet::new();
            follow(&path(name), &mut found);
            let expected: BTreeSet<PathBuf> = expected.iter().map(|name| path(name)).collect();
            assert_eq!(found, expected, "{name}");
        };
        check("volume/..1/tls.crt", &["volume/..1"]);
        check("volume/tls.crt", &["volume", "volume/..1"]);
        check("gateway/tls/tls.crt", &["gateway/tls", "gateway", "volume", "volume/..1"]);
        check("gateway/none.crt", &["gateway"]);
        assert!(root.join("loop").parent().is_some_and(|parent| {
            let mut found = BTreeSet::new();
            follow(&path("loop"), &mut found);
            found.contains(parent)
        }));
    }
}
